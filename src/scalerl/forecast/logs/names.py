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
_SEPARATORS = "-_./ "
_LONG = 32
# Separators between the parts of a run's name; a dot between digits is a decimal point.
_WORDS = re.compile(r"([-_/\s]+|(?<!\d)\.|\.(?!\d))")


def without_seed(name: str) -> str:
    """Return a name without the part that says its seed: grpo_seed1 is a run of grpo."""
    return _SEED.sub("", name).strip(_SEPARATORS)


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
    short: list[str] = []
    found: list[str] = []
    for path in paths:
        own = [name for name in choices[path] if taken[name] == 1]
        name = own[0] if own else choices[path][-1]
        # A path that is given twice.
        num_before = short.count(name)
        short.append(name)
        found.append(clean(f"{name} ({num_before + 1})" if num_before else name))
    return found


def _choices(path: Path) -> Names:
    """Return names for a path, from short to whole: of the folder that names its run, of its stem, of the file.

    A seed alone is not a name if there is another.
    """
    is_whole = path.is_dir() or "tfevents" in path.name
    stem = path if is_whole else path.with_name(path.name.removesuffix(".gz")).with_suffix("")
    ends = [stem, path]
    if _GENERIC.fullmatch(stem.name) and not path.is_dir():
        folders = [folder for folder in path.parents if not _GENERIC_FOLDER.fullmatch(folder.name)]
        ends = [*folders[:1], *ends]
    names: list[str] = []
    for end in ends:
        names += ["/".join(end.parts[-depth:]) for depth in range(1, len(end.parts) + 1)]
    return [name for name in names if _SEED.sub("", name).strip(_SEPARATORS)] or names


def curve_names(keys: Sequence[CurveKey], labels: Names = ()) -> Names:
    """Return one name per curve, made of the values that differ; `labels` replace them, one per curve or per file."""
    files = list(dict.fromkeys(dict(key).get(FILE, "") for key in keys))
    are_of_files = len(labels) == len(files) > 1
    shown = dict(zip(files, labels if are_of_files else files, strict=True))
    # The file says nothing where there is one, unless it is all there is to say beside an evaluation set.
    if len(files) == 1 and all(dict(key).keys() - {FILE, "set"} for key in keys):
        shown = {}
    names: list[str] = []
    for key in keys:
        parts: list[str] = []
        for column, value in key:
            if column != FILE:
                parts.append(_label(column, value))
            elif value in shown:
                parts.append(shown[value])
        names.append("/".join(parts))
    are_all_named = are_of_files or len(labels) in (0, len(keys))
    if not are_all_named or len({*labels}) < len(labels):
        raise InputError(
            f"the labels {listed(labels)} do not name the curves {listed(names)}: give --label once for each of the "
            f"{len(names)}, in this order, each another."
        )
    if labels:
        return labels if len(labels) == len(keys) else names
    return _shortened(names) if len({*names}) > 1 and max(map(len, names)) > _LONG else names


def _label(column: str, value: str) -> str:
    """Return a value as part of a name; a bare number says nothing: 0.7 of what?"""
    if column == ATTEMPT:
        return f"attempt {value}"
    return value if re.search(r"[A-Za-z]{2}|^[A-Za-z]", value) else f"{column}={value}"


def _shortened(names: Names) -> Names:
    """Cut what all names begin and end with, in whole words; at least one word stays."""
    words = [_WORDS.split(name) for name in names]  # words and the separators between them, in turn
    lower = [_WORDS.split(name.lower()) for name in names]
    # An even number, so that a name neither begins nor ends with a separator.
    begin = num_shared(lower) // 2 * 2
    end = num_shared([each[::-1] for each in lower]) // 2 * 2
    short = ["".join(each[begin : len(each) - end]) for each in words]
    is_clear = len({*short}) == len({*names}) and all(re.search(r"[A-Za-z]", name) for name in short)
    return short if is_clear else names


def num_shared(lists: Sequence[Names]) -> int:
    """Return with how many words all lists begin; of texts, with how many characters."""
    return sum(1 for _ in takewhile(lambda words: len({*words}) == 1, zip(*lists, strict=False)))
