"""Notes on fits, comparisons and forecasts, as values: each class is one kind of note and holds its numbers.

`curves/words.py` turns notes into English. Amounts of compute are in the unit of the data.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from scalerl.curves.pairs.notes import PairNote

# Notes on a fit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBound:
    """Least squares puts a parameter at the end of its range."""

    kind: ClassVar = "at_bound"
    param: str
    end: Literal["least", "largest"]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRise:
    """Least squares finds a flat curve."""

    kind: ClassVar = "no_rise"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEdge:
    """The best node of the paper's grid lies on its edge."""

    kind: ClassVar = "grid_edge"
    param: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAboveData:
    """The given start lies above nearly all rewards."""

    kind: ClassVar = "start_above_data"
    start: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A run falls after its peak: its last points lie below what it had reached, by more than noise."""

    kind: ClassVar = "fall"
    compute: float
    """Where the peak ends and the fall begins."""
    num_points: int
    mean: float
    """Mean of the last `num_points` rewards."""
    best: float
    """Reward at the peak: the mean of the last `num_points` rewards up to its end."""
    best_error: float
    """Standard error of `best`, the autocorrelation of the rewards taken into account; `mean_error` is alike."""
    mean_error: float
    drop: float
    """By how much the last points lie below the peak."""
    drop_error: float
    """Standard error of the drop."""
    drop_share: float | None
    """The drop over the rise before it; None where nothing rose."""
    num_after: int
    """Points after the peak."""
    last: float
    """Compute of the last point."""
    statistic: float
    """Evidence for a decline from the peak on: a log likelihood ratio."""
    limit: float
    """The statistic from which a decline counts as one."""
    regained: float = 0.0
    """By how much the last points lie above the lowest since the peak, where that is beyond noise; else 0."""
    until_peak: bool = False
    """Whether the curve is fitted up to the peak only."""
    run: str | None = None
    """Which run falls; None where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideCeiling:
    """The interval of the ceiling is wider than the margin, and what would narrow it."""

    kind: ClassVar = "wide_ceiling"
    level: float
    width: float
    margin: float
    remedy: Literal["more_compute", "much_more_compute", "more_seeds"]
    times: float | None
    """Multiple of the compute fitted that should do, or, for "much_more_compute", that would not; None for seeds."""
    compute: float | None
    """The same as an amount of compute, where it should do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEarly:
    """`skip_before="auto"` left early points out."""

    kind: ClassVar = "skipped_early"
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LackOfFit:
    """The residuals have a pattern that the form cannot follow, and nothing that was tried mends it."""

    kind: ClassVar = "lack_of_fit"
    statistic: float
    """F statistic of the pattern."""
    limit: float
    """The statistic from which a pattern counts as one."""
    size: float
    """By how much the pattern moves the curve at most, in units of the reward."""
    compute: float
    """Around where the pattern begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedFit:
    """The form through all points left a pattern in the residuals; fitted as stated here it does not."""

    kind: ClassVar = "mended_fit"
    statistic: float
    limit: float
    size: float
    compute: float
    skip_before: float | None
    """Points before this compute are left out; None if none are."""
    start_fitted: bool
    """Whether the start is fitted although one was given."""
    form: str
    """The form that was fitted in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRiseSeen:
    """The rewards do not rise by more than noise."""

    kind: ClassVar = "no_rise_seen"
    noticeable: float
    """Smallest gain per doubling of compute that would have been noticed with probability `power`."""
    power: float
    is_constant: bool = False
    """Whether the reward is the same in every evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewPoints:
    kind: ClassVar = "too_few_points"
    num_points: int
    num_left_out: int
    """Points outside the window."""
    num_params: int
    num_needed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewComputes:
    """There are enough points, but at too few different computes."""

    kind: ClassVar = "too_few_computes"
    num_points: int
    num_computes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToScore:
    """A part of a run that leaves nothing to fit, or nothing to score."""

    kind: ClassVar = "nothing_to_score"
    side: Literal["before", "after"]
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedStart:
    """A start was given, and the form does not have one."""

    kind: ClassVar = "unused_start"
    start: float
    form: str


FitNote = (
    AtBound | NoRise | GridEdge | StartAboveData | Fall | WideCeiling | SkippedEarly | LackOfFit | MendedFit
    | NoRiseSeen | TooFewPoints | TooFewComputes
)  # fmt: skip


# Notes on a forecast --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FarForecast:
    """The compute lies too far beyond the data for a fit without a known ceiling: the forecast is a guess."""

    kind: ClassVar = "far_forecast"
    times: float
    """Multiple of the compute fitted up to which such a forecast is good."""
    reason: Literal["unstable", "ceiling_unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterFall:
    """The run fell after its peak: what its rising part says does not hold beyond it."""

    kind: ClassVar = "after_fall"
    compute: float
    """Where the peak ends."""
    best: float
    mean: float
    """The level of the last points, which is the forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AboveCeiling:
    """The fitted curve never reaches the reward."""

    kind: ClassVar = "above_ceiling"
    reward: float
    ceiling: float
    probability: float | None
    """Probability that the reward is above the ceiling; None without intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyReached:
    """The reward is reached within the data."""

    kind: ClassVar = "already_reached"
    by_first_point: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MayBeAboveCeiling:
    """The curve reaches the reward, but the reward may well lie above the ceiling."""

    kind: ClassVar = "may_be_above_ceiling"
    probability: float


ForecastNote = FarForecast | AfterFall | AboveCeiling | AlreadyReached | MayBeAboveCeiling

Note = FitNote | NothingToScore | UnusedStart | PairNote | ForecastNote


def note_json(note: Note) -> dict[str, Any]:
    """Return a note as plain JSON types: its kind and its values."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(note).items()}
    return {"kind": note.kind, **values}
