"""Find the unit of measurement after the number at the end of a text."""

import re

_SPELLINGS = {
    "mm": "millimeters? millimetres?",
    "cm": "centimeters? centimetres?",
    "dm": "decimeters? decimetres?",
    "m": "meters? metres?",
    "km": "kilometers? kilometres? kms",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yards? yds",
    "mi": "miles?",
    "mg": "milligrams?",
    "g": "grams?",
    "kg": "kilograms? kgs",
    "lb": "pounds? lbs",
    "oz": "ounces?",
    "ton": "tons tonnes?",
    "s": "seconds? secs?",
    "min": "minutes? mins",
    "h": "hours? hrs?",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years? yrs?",
    "ml": "milliliters? millilitres?",
    "l": "liters? litres?",
    "gal": "gallons?",
    "deg": "degrees?",
    "rad": "radians?",
    "dollar": "dollars",
    "cent": "cents",
}
_NAME = "|".join(f"{name}|{'|'.join(others.split())}" for name, others in _SPELLINGS.items())
# A digit, what may stand between it and its unit, the unit, its power, and no further digit.
_UNIT = re.compile(
    rf"""\d [\s~$}})\\,;!]*+ (?: (?<=\\) (?: text | mathrm | mbox | textbf | rm ) \s* \{{? [\s~\\]*+ )?
         (?P<power> square \s+ | sq\.? \s+ | cubic \s+ | cu\.? \s+ )? (?P<unit> {_NAME} ) (?! [A-Za-z] )
         (?: \s* (?: / | \bper\b ) \s* (?P<per> {_NAME} ) (?! [A-Za-z] ) )?
         [\s}}.]*+ (?: \^ \s* \{{? \s* (?P<exponent> [23] ) )? [^\d]*+ $""",
    re.VERBOSE | re.IGNORECASE,
)
_POWERS = {"s": "2", "c": "3"}
_LONGEST = 200
"""Number of characters at the end of a text in which a unit is looked for."""


def unit_of(text: str) -> str:
    """Return the unit of the last number of a text, however it is spelt: "km" for "5 kilometers"; "" if it has none."""
    found = _UNIT.search(text[-_LONGEST:])
    if found is None:
        return ""
    exponent = found["exponent"] or (_POWERS[found["power"][0].lower()] if found["power"] else "")
    per = "/" + _canonical(found["per"]) if found["per"] else ""
    return _canonical(found["unit"]) + exponent + per


def _canonical(spelling: str) -> str:
    lower = spelling.lower()
    for name, others in _SPELLINGS.items():
        if lower == name or re.fullmatch("|".join(others.split()), lower):
            return name
    raise ValueError(spelling)
