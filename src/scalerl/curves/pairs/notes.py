"""Notes on a pair of curves, as values: each class is one kind of note and holds its numbers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

PairKind = Literal["higher_ceiling", "more_efficient", "not_separable", "no_curve", "not_comparable"]


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
    winner: str
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstable:
    """A curve of the pair is unstable."""

    kind: ClassVar = "unstable"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPeak:
    """A curve of the pair fell after its peak: it is compared by its reward there, in place of a ceiling."""

    kind: ClassVar = "past_peak"
    name: str
    best: float
    """Reward of the curve at the peak."""
    compute: float
    """Where the peak ends."""


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
    winner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierMidpoint:
    """Ceilings and exponents tie and the winner reaches its midpoint sooner."""

    kind: ClassVar = "earlier_midpoint"
    winner: str
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
    NoCurve | NoIntervals | CeilingDifference | Unstable | PastPeak | IfCeilingShared | ProbablyHigher | MixedEfficiency
    | LargerExponent | EarlierMidpoint | MeasuredDifference | NotMeasuredTogether | SameRun | NotMeasured
    | KnownFromPrior | NoEfficiency | AssumedRunSpread | SamePrompts | Crossing | DifferentPrompts
)  # fmt: skip
