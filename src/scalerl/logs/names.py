"""Names of curves, as short as keeps them distinct."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalerl.errors import InputError
from scalerl.logs.frame import clean, listed

FILE = "file"
ATTEMPT = "attempt"
"""Column that numbers the attempts of a log that holds several."""

CurveKey = tuple[tuple[str, str], ...]
"""(column, value) of each column that sets a curve apart."""

# Names that say what a file is and not which run it belongs to: the folder says that.
_GENERIC = re.compile(
    r"metrics|trainer_state|output|stdout|evals|history|progress|console|wandb-history|train_?log|events\.out.*|run",
    re.IGNORECASE,
)
_GENERIC_FOLDER = re.compile(r"checkpoint-\d+|files|logs?|tensorboard|tb|runs?|outputs?|wandb", re.IGNORECASE)
_SEED = re.compile(r"[-_./ ]?(?<![A-Za-z])seed[-_= ]?\d+(?![A-Za-z\d])|[-_.]s\d{1,4}$", re.IGNORECASE)
_LONG = 32
# Separators between the parts of a run's name; a dot between digits is a decimal point.
_WORDS = re.compile(r"([-_/\s]+|(?<!\d)\.|\.(?!\d))")


def without_seed(name: str) -> str:
    """Return a name without the part that says its seed: grpo_seed1 is a run of grpo."""
    return _SEED.sub("", name).strip("-_./ ")


def file_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: its stem, or its folder where the stem is generic, as 'metrics' is.

    Where these are equal, the suffix and as many folders are added as it takes to tell the paths apart.
    """
    absolute = [path.absolute() for path in paths]
    choices = {path: _choices(path) for path in absolute}
    taken = Counter(name for names in choices.values() for name in set(names))
    short = {path: next((name for name in names if taken[name] == 1), names[-1]) for path, names in choices.items()}
    repeats = [absolute[:at].count(path) for at, path in enumerate(absolute)]
    return [clean(short[path] + f" ({nth + 1})" * bool(nth)) for path, nth in zip(absolute, repeats, strict=True)]


def _choices(path: Path) -> list[str]:
    """Return names for a path, from short to whole: of the folder that names its run, of its stem, of the file.

    A seed alone is not a name if there is another.
    """
    telling = _telling_path(path)
    stem = telling if telling.is_dir() else telling.with_name(_stem(telling.name))
    ends = (stem, path.with_name(_stem(path.name)), path)
    names = ["/".join(end.parts[-depth:]) for end in ends for depth in range(1, len(end.parts) + 1)]
    return [name for name in names if without_seed(name)] or names


def _telling_path(path: Path) -> Path:
    """Return the path, or the folder around it that names its run."""
    if path.is_dir() or not _GENERIC.fullmatch(_stem(path.name)):
        return path
    named = (place for place in path.parents if place.name and not _GENERIC_FOLDER.fullmatch(place.name))
    return next(named, path)


def _stem(name: str) -> str:
    name = name.removesuffix(".gz")
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem and "tfevents" not in name else name


def curve_names(keys: Sequence[CurveKey], labels: Sequence[str] = ()) -> list[str]:
    """Return one name per curve, made of the values that differ; `labels` replace them, one per curve or per file."""
    files = list(dict.fromkeys(dict(key).get(FILE, "") for key in keys))
    if labels and len(labels) == len(keys) == len(set(labels)):
        return list(labels)
    if labels and not len(files) == len(set(labels)) == len(labels) > 1:
        names = curve_names(keys)
        raise InputError(
            f"the labels {listed(labels)} do not name the curves {listed(names)}: give --label once for each of the "
            f"{len(names)}, in this order, each another."
        )
    renamed = dict(zip(files, labels or files, strict=True))
    # The file says nothing where there is one, unless it is all there is to say beside an evaluation set.
    is_shown = len(files) > 1 or not all(dict(key).keys() - {FILE, "set"} for key in keys)
    parts = [[part for part in key if part[0] != FILE or is_shown] for key in keys]
    names = ["/".join(_part(column, value, renamed) for column, value in part) for part in parts]
    is_long = len(set(names)) > 1 and max(map(len, names)) > _LONG
    return _shortened(names) if is_long and not labels else names


def _part(column: str, value: str, files: Mapping[str, str]) -> str:
    if column in (FILE, ATTEMPT):
        return files[value] if column == FILE else f"attempt {value}"
    # A bare number says nothing: 0.7 of what?
    return value if re.search(r"[A-Za-z]{2}|^[A-Za-z]", value) else f"{column}={value}"


def _shortened(names: Sequence[str]) -> list[str]:
    """Cut what all names begin and end with, in whole words; at least one word stays."""
    parts = [_WORDS.split(name) for name in names]  # words and the separators between them, in turn
    lower = [_WORDS.split(name.lower()) for name in names]
    from_ends = (zip(*(words[::turn] for words in lower), strict=False) for turn in (1, -1))
    shared = [list(itertools.takewhile(lambda words: len(set(words)) == 1, ranks)) for ranks in from_ends]
    begin, end = (len(words) // 2 * 2 for words in shared)
    short = ["".join(words[begin : len(words) - end]) for words in parts]
    is_clear = len(set(short)) == len(set(names)) and all(re.search(r"[A-Za-z]", name) for name in short)
    return short if is_clear else list(names)
