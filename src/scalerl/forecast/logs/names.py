"""Names of curves, as short as keeps them distinct."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Names, clean, listed

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
_GENERIC_FOLDER = re.compile(r"checkpoint-\d+|files|logs?|tensorboard|tb|runs?|outputs?|wandb|", re.IGNORECASE)
_SEED = re.compile(r"[-_./ ]?(?<![A-Za-z])seed[-_= ]?\d+(?![A-Za-z\d])|[-_.]s\d{1,4}$", re.IGNORECASE)
_SPLIT = re.compile(
    r"(?:^|[-_. ])(?:train|training|eval|evals|evaluation|val|valid|validation|test)(?=[-_. ])", re.IGNORECASE
)
_LONG = 32
# Separators between the parts of a run's name; a dot between digits is a decimal point.
_WORDS = re.compile(r"([-_/\s]+|(?<!\d)\.|\.(?!\d))")


def without_seed(name: str) -> str:
    """Return a name without the part that says its seed: grpo_seed1 is a run of grpo."""
    return _SEED.sub("", name).strip("-_./ ")


def without_split(name: str) -> tuple[str, bool]:
    """Return a name without its word for training or evaluation, as in train_metrics, and whether it has one."""
    rest = _SPLIT.sub("", name).lstrip("-_. ")
    return rest, rest != name


def file_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: its stem, or its folder where the stem is generic, as 'metrics' is.

    Where these are equal, the suffix and as many folders are added as it takes to tell the paths apart.
    """
    choices = {path: _choices(path.absolute()) for path in paths}
    taken = Counter(name for names in choices.values() for name in set(names))
    short = [next((name for name in choices[path] if taken[name] == 1), choices[path][-1]) for path in paths]
    return [
        clean(f"{name} ({short[:at].count(name) + 1})" if name in short[:at] else name) for at, name in enumerate(short)
    ]


def _choices(path: Path) -> Names:
    """Return names for a path, from short to whole: of the folder that names its run, of its stem, of the file.

    A seed alone is not a name if there is another.
    """
    stem = (
        path
        if path.is_dir() or "tfevents" in path.name
        else path.with_name(path.name.removesuffix(".gz")).with_suffix("")
    )
    is_generic = _GENERIC.fullmatch(stem.name) and not path.is_dir()
    folders = [place for place in path.parents if is_generic and not _GENERIC_FOLDER.fullmatch(place.name)]
    ends = [*folders[:1], stem, path]
    names = ["/".join(end.parts[-depth:]) for end in ends for depth in range(1, len(end.parts) + 1)]
    return [name for name in names if without_seed(name)] or names


def curve_names(keys: Sequence[CurveKey], labels: Names = ()) -> Names:
    """Return one name per curve, made of the values that differ; `labels` replace them, one per curve or per file."""
    files = list(dict.fromkeys(dict(key).get(FILE, "") for key in keys))
    # The file says nothing where there is one, unless it is all there is to say beside an evaluation set.
    is_shown = len(files) > 1 or not all(dict(key).keys() - {FILE, "set"} for key in keys)
    per_file = len(labels) == len(files) > 1
    renamed = dict(zip(files, labels if per_file else files, strict=True))
    names = ["/".join(_part(*part, renamed) for part in key if part[0] != FILE or is_shown) for key in keys]
    if (labels and not per_file and len(labels) != len(keys)) or len({*labels}) < len(labels):
        raise InputError(
            f"the labels {listed(labels)} do not name the curves {listed(names)}: give --label once for each of the "
            f"{len(names)}, in this order, each another."
        )
    if len(labels) == len(keys) > 0:
        return labels
    is_long = len(set(names)) > 1 and max(map(len, names)) > _LONG
    return _shortened(names) if is_long and not labels else names


def _part(column: str, value: str, files: dict[str, str]) -> str:
    # A bare number says nothing: 0.7 of what?
    is_word = re.search(r"[A-Za-z]{2}|^[A-Za-z]", value)
    return (
        files[value]
        if column == FILE
        else f"attempt {value}"
        if column == ATTEMPT
        else value
        if is_word
        else f"{column}={value}"
    )


def _shortened(names: Names) -> Names:
    """Cut what all names begin and end with, in whole words; at least one word stays."""
    words = [_WORDS.split(name) for name in names]  # words and the separators between them, in turn
    lower = [_WORDS.split(name.lower()) for name in names]
    begin, end = (num_shared([each[::turn] for each in lower]) // 2 * 2 for turn in (1, -1))
    short = ["".join(each[begin : len(each) - end]) for each in words]
    is_clear = len(set(short)) == len(set(names)) and all(re.search(r"[A-Za-z]", name) for name in short)
    return short if is_clear else names


def num_shared(lists: Sequence[Names]) -> int:
    """Return with how many words all lists begin."""
    return sum(1 for _ in takewhile(lambda words: len({*words}) == 1, zip(*lists, strict=False)))
