"""`Selection`, what the commands' shared options say, and `Point`, one row of one curve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.logs.facts import Fact
from scalerl.logs.names import CurveKey

_MAX_PLACES = 5

YScale = Literal["1", "100", "pm1", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the commands' shared options say."""

    x: str | None = None
    y: str | None = None
    by: tuple[str, ...] = ()
    seed: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    """(column, value) that a row must have."""
    where_not: tuple[tuple[str, str], ...] = ()
    """(column, value) that a row must not have."""
    start: float | Literal["first", "fit"] | None = None
    """On the scale that is fitted, after `y_scale`; "fit" leaves out rows at compute 0 and fits the start."""
    y_scale: YScale = "1"
    holdout: tuple[str, str] | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    """Names of the curves, or of the files, in their order."""
    bins: int | Literal["auto"] | None = None
    """Number of bins along compute in which the rewards of each run are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row of one curve, its values as the file has them."""

    curve: CurveKey
    evaluation_set: str | None
    """The set of a run folder that has several; part of the curve's name."""
    run: str
    seed: tuple[str, str] | None
    """(column, value) of a column recognised as seed, where no option says what tells runs apart."""
    x_label: str
    y_label: str
    x: Any
    y: Any
    num_samples: Any
    evaluation: str | None
    step_label: str
    step: float | None
    """The step of a log that may have been resumed; None for our run folders, whose rows are known to count."""
    is_held_out: bool
    is_run_folder: bool
    """Whether compute 0 is known to mean the model before training, as in our run folders."""
    place: str
    source: str
    labels: tuple[tuple[str, str], ...] = ()
    """(column, value) of the columns of words that no option mentions: they may tell curves apart."""
    unit_columns: tuple[str, ...] = ()
    """Columns of the same log that could be the reward and lie in [0, 1]."""
    facts: tuple[Fact, ...] = ()
    """What the reader of the log decided."""


def at(points: Sequence[Point]) -> str:
    """Return the places of rows for a message: 'lines 3, 5 and 2 more of a.csv'."""
    shown = points[:_MAX_PLACES]
    more = f" and {len(points) - len(shown)} more" if len(points) > len(shown) else ""
    units = {(point.place.rpartition(" ")[0], point.source) for point in shown}
    if len(shown) == 1 or len(units) > 1:
        return ", ".join(f"{point.place} of {point.source}" for point in shown) + more
    [(unit, source)] = units
    return f"{unit}s {', '.join(point.place.rpartition(' ')[2] for point in shown)}{more} of {source}"
