"""GSM8K's test problems with fresh numbers: a model that has seen the test cannot have seen these.

    python benchmarks/fresh_numbers.py gsm8k-test.jsonl --out fresh.jsonl [--seed 0] [--num 500]

Every solution of GSM8K notes its arithmetic, as in `16 - 3 - 4 = <<16-3-4=9>>9`. So a problem is a small program: each
number of an equation stands in the question, is the result of an earlier equation, or is a constant that a word of the
question implies (2 of "half", 7 of "week"). Where this reading is the only one, the numbers of the question are drawn
anew, keeping their order, and the equations give the new answer. Everything else is left out: fractions and decimals,
a number that could be two of these things, equations that do not lead to the noted answer. Whole numbers stay whole and
positive.

Rows have `question`, `answer`, and `original`, the number of the problem in the file: compare accuracies on the same
problems before and after. --originals writes those.
"""

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

WORDS = dict(
    zip(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
        range(2, 13),
        strict=True,
    )
)
IMPLIED = {
    "half": (2,), "halves": (2,), "halved": (2,), "twice": (2,), "double": (2,), "doubles": (2,), "doubled": (2,),
    "pair": (2,), "pairs": (2,), "couple": (2,), "both": (2,), "triple": (3,), "triples": (3,), "thrice": (3,),
    "third": (3,), "thirds": (3,), "quarter": (4,), "quarters": (4,), "fourth": (4,), "fifth": (5,), "tenth": (10,),
    "dozen": (12,), "dozens": (12,), "week": (7,), "weeks": (7,), "weekly": (7,), "daily": (7, 30, 365),
    "day": (24, 7, 30, 365), "days": (24, 7, 30, 365), "hour": (60,), "hours": (60, 24), "minute": (60,),
    "minutes": (60,), "month": (12, 4, 30), "months": (12, 4, 30), "monthly": (12,), "year": (12, 52, 365),
    "years": (12, 52, 365), "yearly": (12,), "annual": (12,), "percent": (100,), "cents": (100,), "feet": (12, 3),
    "foot": (12,), "yard": (3,), "yards": (3,), "decade": (10,), "century": (100,), "weekend": (2,), "weekends": (2,),
    "weekday": (5,), "weekdays": (5,), "twins": (2,), "average": (), "one": (1,), "once": (1,),
}  # fmt: skip
"""The constants that a word may bring into a solution."""
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/])|\b(?:" + "|".join(WORDS) + r")\b", re.IGNORECASE)
EQUATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
TRIES = 300


@dataclass(frozen=True, slots=True)
class Given:
    """A number of the question."""

    value: int


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an earlier equation."""

    place: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a word implies."""

    value: int


Operand = Given | Result | Constant


@dataclass(frozen=True, slots=True)
class Equation:
    """An arithmetic expression whose operands are named, such as "{0}-{1}-{2}"."""

    form: str
    operands: tuple[Operand, ...]

    def value(self, numbers: Mapping[int, int], results: Sequence[Fraction]) -> Fraction:
        """Return its value where the question's numbers are replaced by `numbers`."""
        values: list[Fraction] = []
        for operand in self.operands:
            if isinstance(operand, Given):
                values.append(Fraction(numbers[operand.value]))
            elif isinstance(operand, Result):
                values.append(results[operand.place])
            else:
                values.append(Fraction(operand.value))
        names = {f"n{place}": value for place, value in enumerate(values)}
        # The form holds names, brackets and the four operations alone: `equation_of` has checked it.
        return eval(self.form, {"__builtins__": {}}, names)


def given_numbers(question: str) -> dict[int, list[tuple[int, int]]] | None:
    """Return where each whole number of a question stands; None if it has others."""
    if re.search(r"\d/\d|\d\.\d|\d:\d", question):
        return None
    places: dict[int, list[tuple[int, int]]] = {}
    for match in NUMBER.finditer(question):
        text = match.group().lower().replace(",", "")
        value = WORDS[text] if text in WORDS else int(text)
        places.setdefault(value, []).append(match.span())
    return places


def constants_of(question: str) -> set[int]:
    """Return the constants that words of the question may bring into its solution."""
    constants: set[int] = set()
    for word in re.findall(r"[a-z]+", question.lower()):
        constants.update(IMPLIED.get(word, ()))
    if "%" in question:
        constants.add(100)
    return constants


def equation_of(text: str, given: set[int], constants: set[int], results: Sequence[Fraction]) -> Equation | None:
    """Return an equation whose operands each have one origin; None if one has none, or several."""
    operands: list[Operand] = []
    form = ""
    for piece in re.findall(r"\d+(?:\.\d+)?|\S", text.replace(",", "")):
        if not piece[0].isdigit():
            if piece not in "+-*/()":
                return None
            form += piece
            continue
        if not piece.isdigit():
            return None
        value = int(piece)
        origins: list[Operand] = []
        if value in given:
            origins.append(Given(value))
        if value in constants:
            origins.append(Constant(value))
        origins.extend(Result(place) for place, result in enumerate(results) if result == value)
        if len(origins) != 1:
            return None
        form += f"n{len(operands)}"
        operands.append(origins[0])
    return Equation(form, tuple(operands))


def program_of(question: str, solution: str) -> list[Equation] | None:
    """Return the equations of a solution; None if their reading is not the only one, or gives another answer."""
    places = given_numbers(question)
    *_, final = solution.split("####")
    answer = final.strip().replace(",", "")
    if places is None or not answer.isdigit():
        return None
    program: list[Equation] = []
    results: list[Fraction] = []
    for text, noted in EQUATION.findall(solution):
        equation = equation_of(text, set(places), constants_of(question), results)
        if equation is None:
            return None
        try:
            value = equation.value({number: number for number in places}, results)
        except (ZeroDivisionError, SyntaxError):
            return None
        if not re.fullmatch(r"[\d,]+", noted.strip()) or value != int(noted.replace(",", "")):
            return None
        program.append(equation)
        results.append(value)
    if not results or results[-1] != int(answer):
        return None
    return program


def used_numbers(program: Sequence[Equation]) -> set[int]:
    """Return the numbers of the question that the equations use."""
    used: set[int] = set()
    for equation in program:
        used.update(operand.value for operand in equation.operands if isinstance(operand, Given))
    return used


def redrawn(value: int, chance: random.Random) -> int:
    """Return another number of about the same size; round numbers stay round."""
    step = 1
    while value % (step * 10) == 0:
        step *= 10
    low, high = max(2, round(value / step * 0.6)), max(4, round(value / step * 1.7))
    return chance.randint(low, high) * step


def fresh(question: str, solution: str, chance: random.Random) -> tuple[str, int] | None:
    """Return a problem with other numbers and its answer; None if it cannot be made safely."""
    program = program_of(question, solution)
    places = given_numbers(question)
    if program is None or places is None or not (used := used_numbers(program)):
        return None
    for _ in range(TRIES):
        numbers = {value: redrawn(value, chance) if value in used else value for value in places}
        if not _keeps_order(numbers) or any(numbers[value] == value for value in used):
            continue
        results: list[Fraction] = []
        for equation in program:
            results.append(equation.value(numbers, results) if _sound(results) else Fraction(-1))
        if _sound(results):
            return _written(question, places, numbers), int(results[-1])
    return None


def _sound(results: Sequence[Fraction]) -> bool:
    return all(result > 0 and result.denominator == 1 for result in results)


def _keeps_order(numbers: Mapping[int, int]) -> bool:
    """Whether smaller numbers are still smaller, so that what is taken away is still there."""
    renewed = [numbers[value] for value in sorted(numbers)]
    return all(low < high for low, high in pairwise(renewed))


def _written(question: str, places: Mapping[int, list[tuple[int, int]]], numbers: Mapping[int, int]) -> str:
    words = {value: word for word, value in WORDS.items()}
    text = question
    spans = [(span, value) for value, found in places.items() for span in found]
    for (start, end), value in sorted(spans, reverse=True):
        new = numbers[value]
        old = text[start:end]
        if old[0].isdigit():
            written = f"{new:,}" if "," in old else str(new)
        else:
            written = words.get(new, str(new))
            written = written.capitalize() if old[0].isupper() else written
        text = text[:start] + written + text[end:]
    return text


def fresh_rows(rows: Sequence[Mapping[str, str]], seed: int) -> Iterator[dict[str, object]]:
    """Yield every problem that can be given fresh numbers."""
    for place, row in enumerate(rows):
        made = fresh(row["question"], row["answer"], random.Random(f"{seed}:{place}"))
        if made is not None:
            question, answer = made
            yield {"question": question, "answer": f"#### {answer}", "original": place}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--originals", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num", type=int, default=500)
    options = parser.parse_args()
    opened = gzip.open if options.file.suffix == ".gz" else open
    with opened(options.file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    made = list(fresh_rows(rows, options.seed))[: options.num]
    options.out.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    if options.originals:
        kept = [rows[int(str(row["original"]))] for row in made]
        options.originals.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    print(f"{len(made)} of {len(rows)} problems have fresh numbers")


if __name__ == "__main__":
    main()
