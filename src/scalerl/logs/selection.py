"""`Selection`: what the commands' shared options say about columns and rows."""

import difflib
from dataclasses import dataclass
from typing import Literal

from scalerl.errors import InputError
from scalerl.logs.frame import Frame, Mask, label, listed, number

YScale = Literal["auto", "1", "100", "pm1", "none"]
Bounds = tuple[float, float] | None
SCALES: dict[YScale, Bounds] = {"1": (0.0, 1.0), "100": (0.0, 100.0), "pm1": (-1.0, 1.0), "none": None}
Condition = tuple[str, str]
"""(column, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the commands' shared options say."""

    x: str | None = None
    y: str | None = None
    by: tuple[str, ...] = ()
    seed: str | None = None
    where: tuple[Condition, ...] = ()
    """What a row must have."""
    where_not: tuple[Condition, ...] = ()
    """What a row must not have."""
    start: float | Literal["first", "fit"] | None = None
    """In the unit of the log; "fit" leaves out rows at compute 0 and fits the start."""
    y_scale: YScale = "auto"
    holdout: Condition | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    """Names of the curves, or of the files, in their order."""

    def __post_init__(self) -> None:
        if self.gpus is not None and not 0 < self.gpus < float("inf"):
            raise InputError(
                f"--gpus {self.gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8."
            )

    @property
    def named(self) -> dict[str, str]:
        """The columns that options name, and the option."""
        conditions = {column: "--where" for column, _ in (*self.where_not, *self.where)}
        held = {self.holdout[0]: "--holdout"} if self.holdout else {}
        single = {self.seed: "--seed", self.y: "--y", self.x: "--x"}
        everything = conditions | held | dict.fromkeys(self.by, "--by") | single
        return {column: option for column, option in everything.items() if column is not None}

    @property
    def separating(self) -> set[str]:
        """The columns that options name as what tells rows apart."""
        held = [self.holdout[0]] if self.holdout else []
        return {*self.by, *held, *(column for column, _ in self.where), *([self.seed] if self.seed else [])}


def matching(frame: Frame, condition: Condition) -> Mask:
    """Return which rows hold a value as it is written on the command line: 1 is "1.0", true is "True"."""
    column, wanted = condition
    value = number(wanted)
    accepted = {wanted, label(value) or wanted, *({"true", "false"} & {wanted.lower()})}
    return frame.has(column) & [word in accepted for word in frame.words(column)]


def check_columns(frame: Frame, selection: Selection, place: str) -> None:
    """Raise InputError where an option names a column that is not there."""
    for column, option in selection.named.items():
        if column not in frame:
            raise InputError(f"{place} has no column {column!r} ({option}): {_hint(frame, column)}.")


def _hint(frame: Frame, column: str) -> str:
    """Return which columns there are, the similar ones first."""
    names = list(frame.columns)
    close = difflib.get_close_matches(column, names, n=3, cutoff=0.6)
    close += [name for name in names if column.lower() in name.lower() and name not in close]
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    hint = "--gpus N builds it from the log's clock; it" if column == "gpu_hours" and "hours" in frame else hint
    return f"{hint} has {listed(list(dict.fromkeys([*close, *names])))}"
