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
from scalerl.forecast.logs.written import argument, number_and_unit

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
        if self.start not in (None, "first", "fit"):
            try:
                number_and_unit(self.start, "start")
            except InputError:
                expected = "a reward such as 0.4 or 40%, 'first' or 'fit'"
                raise InputError(f"{argument('start')} takes {expected}, not {self.start!r}.") from None
        if self.y_scale != "auto" and self.y_scale not in SCALES:
            scales = ", ".join(["auto", *SCALES])
            raise InputError(f"{argument('y-scale')} must be one of {scales}, not {self.y_scale!r}.")

    @property
    def columns(self) -> dict[str, str]:
        """The columns that options name, and the option of each."""
        named = [(self.x, "x"), (self.y, "y"), (self.seed, "seed")]
        named += [(column, "by") for column in self.by]
        named += [(column, "where") for column, _ in (*self.where, *self.where_not)]
        if self.holdout:
            named.append((self.holdout[0], "holdout"))
        return {column: name for column, name in named if column}

    def selected(self, frame: Frame, besides: str = "") -> Mask:
        """Return the rows that the filters keep, without those on `besides`. Values of one column are alternatives."""
        kept = np.ones(len(frame), dtype=bool)
        alternatives: dict[str, Mask] = {}
        for column, value in self.where:
            others = alternatives.get(column, np.zeros(len(frame), dtype=bool))
            alternatives[column] = others | matching(frame, (column, value))
        for column, value in self.where_not:
            if column != besides:
                kept &= ~matching(frame, (column, value))
        for column, is_one in alternatives.items():
            if column != besides:
                kept &= is_one
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
    has = f"has {listed([*dict.fromkeys([*close, *names])])}"
    if column == "gpu_hours" and "hours" in names:
        return f"{option:gpus N} builds it from the log's clock; it {has}"
    return f"did you mean {close[0]!r}? It {has}" if close else f"it {has}"
