"""What there is to say of a fit, a forecast or a pair: a kind and its numbers. `words.py` makes sentences of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What a fit knows, read off its posterior."""

    KNOWN = "ok"
    """The ceiling's interval is narrower than the margin asks for."""
    WIDE = "ceiling not identifiable yet"
    FLAT = "no rise seen"
    FALLEN = "past its peak"
    AT_BOUND = "at a bound"
    """The ceiling is the highest reward there is, for all that is known."""
    TOO_FEW = "too few points"
    NO_CURVE = "no curve"
    """The rows could not be read as a curve, so nothing was fitted."""


class PairKind(StrEnum):
    """The verdict on a pair."""

    HIGHER_CEILING = "higher_ceiling"
    AHEAD = "ahead"
    """Higher as far as can be forecast, while the ceilings are not known well enough to decide."""
    MORE_EFFICIENT = "more_efficient"
    NOT_SEPARABLE = "not_separable"
    NOT_COMPARABLE = "not_comparable"
    NO_CURVE = "no_curve"


class NoteKind(StrEnum):
    # of a fit
    TOO_FEW_POINTS = "too_few_points"
    TOO_FEW_COMPUTES = "too_few_computes"
    LEVELS_OFF = "levels_off"
    WIDE_CEILING = "wide_ceiling"
    NO_RISE = "no_rise"
    FALL = "fall"
    AT_BOUND = "at_bound"
    SECOND_RISE = "second_rise"
    SLOW_TAIL = "slow_tail"
    LATE_START = "late_start"
    DRIFT = "drift"
    MISFIT = "misfit"
    GRID_EDGE = "grid_edge"
    UNUSED_START = "unused_start"
    NOTHING_TO_SCORE = "nothing_to_score"
    # of a forecast
    AFTER_FALL = "after_fall"
    ABOVE_CEILING = "above_ceiling"
    MAY_BE_ABOVE_CEILING = "may_be_above_ceiling"
    ALREADY_REACHED = "already_reached"
    DOUBLING = "doubling"
    MOST_OF_GAIN = "most_of_gain"
    BEST_EVALUATION = "best_evaluation"
    # of a pair
    CEILING_DIFFERENCE = "ceiling_difference"
    COMPUTE_RATIO = "compute_ratio"
    EXPONENT = "exponent"
    MEASURED = "measured"
    DECIDED_BY = "decided_by"
    RUN_SPREAD = "run_spread"
    SAME_PROMPTS = "same_prompts"
    DIFFERENT_PROMPTS = "different_prompts"
    SAME_RUN = "same_run"
    CROSSING = "crossing"
    NO_CURVE = "no_curve"
    # of several curves
    ALONE_IN_SET = "alone_in_set"
    NOTHING_POOLED = "nothing_pooled"
    NOT_POOLED = "not_pooled"


@dataclass(frozen=True, slots=True)
class Note:
    kind: NoteKind
    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def note(kind: NoteKind, **values: Any) -> Note:
    return Note(kind, values)


def find_note(notes: Iterable[Note], kind: NoteKind) -> Note | None:
    """Return the first note of a kind."""
    return next((each for each in notes if each.kind == kind), None)


def note_json(given: Note) -> dict[str, Any]:
    return {"kind": str(given.kind), **given.values}
