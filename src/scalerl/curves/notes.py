"""Notes on fits, comparisons and forecasts, as values: each class is one kind of note and holds its numbers.

`curves/words.py` turns notes into English. Amounts of compute are in the unit of the data.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

PairKind = Literal["higher_ceiling", "more_efficient", "not_separable", "no_curve", "not_comparable"]


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
    """A run falls below its own curve: its last points lie below what it had reached."""

    kind: ClassVar = "fall"
    compute: float
    """Where the fall begins."""
    num_points: int
    mean: float
    """Mean of the last `num_points` rewards."""
    best: float
    """The best mean of as many points before."""
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


# Notes on a pair of curves --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCurve:
    """A curve of the pair could not be fitted."""

    kind: ClassVar = "no_curve"
    name: str
    verdict: str
    """The verdict on its fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoIntervals:
    """The fits were made without intervals, so nothing is known of their uncertainty."""

    kind: ClassVar = "no_intervals"


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingDifference:
    """By how much the winner's ceiling is higher."""

    kind: ClassVar = "ceiling_difference"
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstable:
    """A curve of the pair is unstable."""

    kind: ClassVar = "unstable"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IfCeilingShared:
    """The verdict if both had one ceiling, which is not known yet."""

    kind: ClassVar = "if_ceiling_shared"
    verdict: PairKind
    winner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbablyHigher:
    """One ceiling is probably higher, but not with the certainty that a verdict needs."""

    kind: ClassVar = "probably_higher"
    name: str
    difference: float
    probability: float
    before_midpoint: str | None
    """The curve with the lower ceiling, if it may not have passed its midpoint: its ceiling is then a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedEfficiency:
    """One curve reaches its midpoint sooner and the other rises more steeply."""

    kind: ClassVar = "mixed_efficiency"
    sooner: str
    steeper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerExponent:
    """Ceilings tie and the winner's exponent is larger."""

    kind: ClassVar = "larger_exponent"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierMidpoint:
    """Ceilings and exponents tie and the winner reaches its midpoint sooner."""

    kind: ClassVar = "earlier_midpoint"
    ratio: float
    """The winner's midpoint over the other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRunSpread:
    """Curves with a single run: the spread of the ceiling between runs was assumed, not measured."""

    kind: ClassVar = "assumed_run_spread"
    names: tuple[str, ...]
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDifference:
    """What both curves of a pair measured at the same compute: the fact behind the verdict."""

    kind: ClassVar = "measured_difference"
    higher: str
    lower: str
    difference: float
    """Mean reward of `higher` less that of `lower`."""
    error: float
    num_places: int
    low: float
    """From this compute ..."""
    high: float
    """... to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMeasuredTogether:
    """The two were hardly measured at the same compute: the verdict rests on the fitted curves alone."""

    kind: ClassVar = "not_measured_together"


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRun:
    """The two hold the same evaluations: one is the other, or a part of it."""

    kind: ClassVar = "same_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMeasured:
    """The fitted curves would decide for `name`, but the measurements do not support it."""

    kind: ClassVar = "not_measured"
    name: str
    reason: Literal["lower_everywhere", "nowhere_higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFromPrior:
    """Efficiency is not compared: the data do not tell the parameter, and what the fits say of it is the prior."""

    kind: ClassVar = "known_from_prior"
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEfficiency:
    """A curve of the pair has no efficiency to speak of."""

    kind: ClassVar = "no_efficiency"
    name: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePrompts:
    """Both curves were evaluated on the same prompts, so their noise is correlated."""

    kind: ClassVar = "same_prompts"
    correlation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The two curves cross."""

    kind: ClassVar = "crossing"
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentPrompts:
    """The curves were evaluated on different prompts, which makes them incomparable."""

    kind: ClassVar = "different_prompts"


PairNote = (
    NoCurve | NoIntervals | CeilingDifference | Unstable | IfCeilingShared | ProbablyHigher | MixedEfficiency
    | LargerExponent | EarlierMidpoint | MeasuredDifference | NotMeasuredTogether | SameRun | NotMeasured
    | KnownFromPrior | NoEfficiency | AssumedRunSpread | SamePrompts | Crossing | DifferentPrompts
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


ForecastNote = FarForecast | AboveCeiling | AlreadyReached | MayBeAboveCeiling

Note = FitNote | NothingToScore | UnusedStart | PairNote | ForecastNote


def note_json(note: Note) -> dict[str, Any]:
    """Return a note as plain JSON types: its kind and its values."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(note).items()}
    return {"kind": note.kind, **values}
