"""`Selection`: what the commands' shared options say about columns and rows."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.frame import Frame, Mask, Names, label, listed, number
from scalerl.forecast.logs.names import ATTEMPT

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
    """What a row must have: of each column one of the values that are named."""
    where_not: tuple[Condition, ...] = ()
    """What a row must not have."""
    start: Any = None
    """A reward as a user types it, 0.4 or "40%"; "first" for each run's first row; "fit" to fit the start instead of
    reading it from rows at compute 0."""
    y_scale: YScale = "auto"
    holdout: Condition | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    """Names of the curves, or of the files, in their order."""

    def __post_init__(self) -> None:
        if self.gpus is not None and not 0 < self.gpus < float("inf"):
            raise InputError(f"{option:gpus {self.gpus:g}} is not a number of GPUs: give how many the run used.")

    @property
    def columns(self) -> dict[str, str]:
        """The columns that options name, and the option of each."""
        named = [(self.x, "x"), (self.y, "y"), (self.seed, "seed"), *((column, "by") for column in self.by)]
        named += [(column, "where") for column, _ in (*self.where, *self.where_not)]
        named += [(self.holdout[0], "holdout")] if self.holdout else []
        return {column: name for column, name in named if column}

    def selected(self, frame: Frame, besides: str = "") -> Mask:
        """Return the rows that the filters keep, without those on `besides`. Values of one column are alternatives."""
        kept = np.ones(len(frame), dtype=bool)
        for column in dict.fromkeys(column for column, _ in self.where if column != besides):
            kept &= np.logical_or.reduce([matching(frame, each) for each in self.where if each[0] == column])
        for condition in self.where_not:
            if condition[0] != besides:
                kept &= ~matching(frame, condition)
        return kept


def matching(frame: Frame, condition: Condition) -> Mask:
    """Return which rows hold a value as it is written on the command line: 1 is "1.0", true is "True"."""
    column, wanted = condition
    accepted = {wanted, label(number(wanted)) or wanted, *({"true", "false"} & {wanted.lower()})}
    return np.array([word in accepted for word in frame.words(column)], dtype=bool)


def check_columns(known: Iterable[str], selection: Selection, place: Path) -> None:
    """Raise InputError where an option names a column that is not there."""
    names = [*known]
    for column, name in selection.columns.items():
        if column not in (*names, ATTEMPT):
            raise InputError(f"{place} has no column {column!r} ({option:{name}}): {_hint(names, column)}.")


def _hint(names: Names, column: str) -> str:
    """Return which columns there are, the similar ones first."""
    close = difflib.get_close_matches(column, names, n=3, cutoff=0.6)
    close += [name for name in names if column.lower() in name.lower()]
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    hint = f"{option:gpus N} builds it from the log's clock; it" if column == "gpu_hours" and "hours" in names else hint
    return f"{hint} has {listed([*dict.fromkeys([*close, *names])])}"
