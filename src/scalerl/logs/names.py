"""Names of curves, made safe where they enter and as short as keeps them distinct."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scalerl.errors import InputError, printable

FILE = "file"
ATTEMPT = "attempt"
"""Column that numbers the attempts of a log that holds several."""

CurveKey = tuple[tuple[str, str], ...]
"""(column, value) of each column that sets a curve apart."""

# Names that say what a file is and not of which run it is: the folder tells.
_GENERIC = re.compile(
    r"metrics|trainer_state|output|stdout|evals|history|progress|console|wandb-history|train_?log|events\.out.*|run",
    re.IGNORECASE,
)
_GENERIC_FOLDER = re.compile(r"checkpoint-\d+|files|logs?|tensorboard|tb|runs?|output|outputs|wandb", re.IGNORECASE)
_LONG = 32
_MAX_NAMES = 12
_MAX_LENGTH = 200
# Separators between the parts of a run's name; a dot between digits is a decimal point.
_WORDS = re.compile(r"([-_/\s]+|(?<!\d)\.|\.(?!\d))")


def clean(text: str) -> str:
    """Return a name or word of a log without what a terminal or browser would obey."""
    if text.isprintable() and len(text) <= _MAX_LENGTH:
        return text
    return printable(text[:_MAX_LENGTH]).strip()


def listed(items: Sequence[str]) -> str:
    """Join names for a message: 'a, b, c', at most twelve of them."""
    shown = ", ".join(items[:_MAX_NAMES])
    return shown if len(items) <= _MAX_NAMES else f"{shown} and {len(items) - _MAX_NAMES} more"


def file_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: its stem, or its folder where the stem is generic, as 'metrics' is.

    Where these are equal, as many folders come before them as it takes to tell the paths apart.
    """
    absolute = [path.absolute() for path in paths]
    telling = {path: _telling_path(path) for path in absolute}
    num = Counter(telling.values())
    # Two generic files of one folder go by their own names.
    places = {path: path if num[place] > 1 else place for path, place in telling.items()}
    names = dict(zip(places, _short_paths(list(places.values())), strict=True))
    repeats = [absolute[:at].count(path) for at, path in enumerate(absolute)]
    return [clean(names[path] + f" ({nth + 1})" * bool(nth)) for path, nth in zip(absolute, repeats, strict=True)]


def curve_names(keys: Sequence[CurveKey], labels: Sequence[str] = ()) -> list[str]:
    """Return one name per curve, made of the values that differ; `labels` replace them, one per curve or per file."""
    files = list(dict.fromkeys(dict(key).get(FILE, "") for key in keys))
    if labels and len(labels) == len(keys):
        return _checked_labels(labels)
    if labels and len(labels) == len(files) > 1:
        renamed = dict(zip(files, _checked_labels(labels), strict=True))
        keys = [tuple((column, renamed[value] if column == FILE else value) for column, value in key) for key in keys]
    elif labels:
        names = curve_names(keys)
        raise InputError(
            f"{len(labels)} labels were given for {len(names)} curve{'s' if len(names) > 1 else ''} "
            f"({listed(names)}): give --label once for each, in this order."
        )
    # The file says nothing where there is one, unless it is all there is to say beside an evaluation set.
    if len(files) == 1 and all(any(column not in (FILE, "set") for column, _ in key) for key in keys):
        keys = [tuple(part for part in key if part[0] != FILE) for key in keys]
    names = ["/".join(_part(column, value) for column, value in key) for key in keys]
    return _shortened(names) if not labels else names


def _checked_labels(labels: Sequence[str]) -> list[str]:
    if len(set(labels)) < len(labels) or not all(label.strip() for label in labels):
        raise InputError(f"the labels {listed(list(labels))} must differ from each other and not be empty.")
    return list(labels)


def _part(column: str, value: str) -> str:
    if column == ATTEMPT:
        return f"attempt {value}"
    # A bare number says nothing: 0.7 of what?
    return f"{column}={value}" if column != FILE and not re.search(r"[A-Za-z]{2}|^[A-Za-z]", value) else value


def _shortened(names: Sequence[str]) -> list[str]:
    """Cut what all names begin and end with, in whole words, where they are long; at least one word stays."""
    parts = [_WORDS.split(name) for name in names]  # words and the separators between them, in turn
    num = {len(own) for own in parts}
    if len(set(names)) < 2 or max(map(len, names)) <= _LONG:
        return list(names)
    begin, end = (_num_shared([own[::turn] for own in parts], min(num)) for turn in (1, -1))
    short = ["".join(own[begin : len(own) - end]) for own in parts]
    is_clear = len(set(short)) == len(set(names)) and all(re.search(r"[A-Za-z]", name) for name in short)
    return short if is_clear else list(names)


def _num_shared(parts: Sequence[Sequence[str]], most: int) -> int:
    """Return how many leading parts are equal in all, up to a separator; case is ignored."""
    alike = (len({own[at].lower() for own in parts}) == 1 for at in range(most))
    num = sum(1 for _ in itertools.takewhile(bool, alike))
    return num - num % 2


# Paths


def _telling_path(path: Path) -> Path:
    """Return the path, or the folder around it that says of which run it is."""
    if path.is_dir():
        place = path
    elif _GENERIC.fullmatch(_stem(path.name)) and path.parent.name:
        place = path.parent
    else:
        return path
    while _GENERIC_FOLDER.fullmatch(place.name) and place.parent.name and place != path:
        place = place.parent
    return place


def _short_paths(paths: Sequence[Path]) -> list[str]:
    stems = [path.name if path.is_dir() else _stem(path.name) for path in paths]
    beside = [path.parent / stem for path, stem in zip(paths, stems, strict=True)]
    # log.csv beside log.jsonl: only the suffix differs.
    stems = [
        path.name if beside.count(path.parent / stem) > 1 else stem for path, stem in zip(paths, stems, strict=True)
    ]
    names = list(stems)
    for depth in range(1, max((len(path.parts) for path in paths), default=0)):
        for at in [at for at, name in enumerate(names) if names.count(name) > 1]:
            names[at] = "/".join((*paths[at].parent.parts[-depth:], stems[at]))
    return names


def _stem(name: str) -> str:
    name = name.removesuffix(".gz")
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem and "tfevents" not in name else name
