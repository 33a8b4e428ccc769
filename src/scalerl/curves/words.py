"""English for the notes and verdicts of `curves`. Nothing reads these sentences back: programs use the values."""

import math
from collections.abc import Callable, Mapping

from scalerl.curves.notes import Note, NoteKind, PairKind

PAIRS = {
    PairKind.HIGHER_CEILING: "{name} has the higher ceiling",
    PairKind.AHEAD: "{name} is ahead",
    PairKind.MORE_EFFICIENT: "{name} is more efficient",
    PairKind.NOT_SEPARABLE: "not separable",
    PairKind.NOT_COMPARABLE: "not comparable",
    PairKind.NO_CURVE: "no curve",
}


def pair_verdict(kind: PairKind, winner: str | None, labels: Mapping[str, str] | None = None) -> str:
    """Return the verdict on a pair; `labels` replace the curves' names."""
    name = winner if labels is None or winner is None else labels.get(winner, winner)
    return PAIRS[kind].format(name=name)


def note_text(note: Note, unit: str | None = None) -> str:
    """Return a note as a sentence. `unit` names the unit of compute where it is known: "1500 GPU-hours"."""
    return SENTENCES[note.kind](note, lambda compute: amount(compute, unit))


Amount = Callable[[float], str]


def _too_few(n: Note, at: Amount) -> str:
    left_out = f" (the window left out {n.num_left_out})" if n.num_left_out else ""
    return f"Too few points: {n.num} of the {n.needed} that a fit needs{left_out}."


def _levels_off(n: Note, at: Amount) -> str:
    if math.isnan(n.low):
        return f"It levels off at {n.value:.4g} (no interval)."
    return f"It levels off at {n.value:.3g} ({n.level:.0%} between {n.low:.3g} and {n.high:.3g})."


def _wide(n: Note, at: Amount) -> str:
    more = "no 16 times the compute would" if n.times is None else f"about {n.times:g} times the compute should"
    return f"The ceiling lies between {n.low:.3g} and {n.high:.3g} ({n.level:.0%}): {more} narrow it to {n.margin:.2g}."


def _fall(n: Note, at: Amount) -> str:
    return (
        f"The reward fell by {n.drop:.2g} [{n.low:.2g}, {n.high:.2g}] after a peak of {n.best:.3g} at {at(n.compute)}: "
        "take the checkpoint from there. A change of task, grader or length limit would look the same."
    )


def _reached(n: Note, at: Amount) -> str:
    return "Already reached" + (" by the first point." if n.by_first_point else ".")


def _above(n: Note, at: Amount) -> str:
    sure = "" if n.probability is None else f" (probability {n.probability:.0%})"
    return f"{n.reward:g} is above the ceiling of {n.ceiling:.3f}{sure}."


def _most_of_gain(n: Note, at: Amount) -> str:
    verb = "was reached" if n.reached else "should be reached"
    return f"{n.share:.0%} of the gain {verb} at {at(n.value)} [{_ends(n, lambda value: short(value, 3))}]."


def _ends(n: Note, show: Callable[[float], str]) -> str:
    return f"{show(n.low)}, {show(n.high)}" if math.isfinite(n.high) else f"more than {show(n.low)}"


def _difference(n: Note, at: Amount) -> str:
    return (
        f"The ceiling of {n.a} lies {n.difference:+.3g} [{n.low:+.2g}, {n.high:+.2g}] from that of {n.b} "
        f"(probability that it is higher: {n.p_higher:.2f})."
    )


def _ratio(n: Note, at: Amount) -> str:
    return (
        f"For a reward of {n.reward:.3g}, {n.a} needs {n.ratio:.2f} [{_ends(n, '{:.2f}'.format)}] times the compute of "
        f"{n.b} (probability of less: {n.p_less:.2f})."
    )


def _measured(n: Note, at: Amount) -> str:
    higher, lower = (n.a, n.b) if n.difference > 0 else (n.b, n.a)
    return (
        f"Measured: {higher} is {abs(n.difference):.2g} (standard error {n.error:.1g}) above {lower} over {n.num} "
        f"evaluations up to {at(n.high)}."
    )


def _decided_by(n: Note, at: Amount) -> str:
    ways = []
    if n.times is not None:
        ways.append(f"{n.times:g} times the compute")
    if n.seeds is not None:
        ways.append(f"{n.seeds} seeds of each")
    return (
        f"It would take {' and '.join(ways)} to decide." if ways else "They are too alike to be separated in practice."
    )


SENTENCES: dict[NoteKind, Callable[[Note, Amount], str]] = {
    NoteKind.TOO_FEW_POINTS: _too_few,
    NoteKind.TOO_FEW_COMPUTES: lambda n, at: (
        f"{n.num} points at {n.num_computes} different computes are too few for a curve."
    ),
    NoteKind.LEVELS_OFF: _levels_off,
    NoteKind.WIDE_CEILING: _wide,
    NoteKind.NO_RISE: lambda n, at: f"No rise seen: one of {n.noticed:.2g} or more would have been noticed.",
    NoteKind.FALL: _fall,
    NoteKind.AT_BOUND: lambda n, at: (
        f"The ceiling is {n.value:g}, the highest reward there is (probability {n.probability:.0%})."
    ),
    NoteKind.SECOND_RISE: lambda n, at: f"There is an earlier, separate rise (probability {n.probability:.0%}).",
    NoteKind.SLOW_TAIL: lambda n, at: f"A slow rise goes on after the fast one (probability {n.probability:.0%}).",
    NoteKind.LATE_START: lambda n, at: f"The rise began late (probability {n.probability:.0%}).",
    NoteKind.DRIFT: lambda n, at: f"The evaluations drift slowly by about {n.sd:.2g} around the curve.",
    NoteKind.MISFIT: lambda n, at: f"The run departs by about {n.sd:.2g} from every smooth curve that is tried.",
    NoteKind.GRID_EDGE: lambda n, at: f"The best {n.param} lies on the grid's edge {n.value:g}.",
    NoteKind.UNUSED_START: lambda n, at: f"The start of {n.start:.4g} is not used: the {n.form} form has none.",
    NoteKind.NOTHING_TO_SCORE: lambda n, at: f"There are no points {n.side} {at(n.compute)}.",
    NoteKind.AFTER_FALL: lambda n, at: (
        f"The reward fell from {n.best:.3g} to {n.now:.3g}: it may recover or fall further."
    ),
    NoteKind.ABOVE_CEILING: _above,
    NoteKind.MAY_BE_ABOVE_CEILING: lambda n, at: f"Above the ceiling with probability {n.probability:.0%}.",
    NoteKind.ALREADY_REACHED: _reached,
    NoteKind.DOUBLING: lambda n, at: (
        f"Doubling the compute ({at(n.compute)}) should bring {n.value:+.2g} [{n.low:+.2g}, {n.high:+.2g}]."
    ),
    NoteKind.MOST_OF_GAIN: _most_of_gain,
    NoteKind.BEST_EVALUATION: lambda n, at: f"The best evaluation is {n.reward:.4g} at {at(n.compute)}.",
    NoteKind.CEILING_DIFFERENCE: _difference,
    NoteKind.COMPUTE_RATIO: _ratio,
    NoteKind.EXPONENT: lambda n, at: (
        f"At one ceiling for all, the exponent of {n.a} is larger than that of {n.b} with probability {n.p_larger:.2f}."
    ),
    NoteKind.MEASURED: _measured,
    NoteKind.DECIDED_BY: _decided_by,
    NoteKind.RUN_SPREAD: lambda n, at: (
        f"One run of {' and of '.join(n.names)}: a spread of up to {n.sd:.2g} between runs is assumed."
    ),
    NoteKind.SAME_PROMPTS: lambda n, at: (
        f"Evaluated on the same prompts: paired, with residuals correlated at {n.correlation:.2f}."
    ),
    NoteKind.DIFFERENT_PROMPTS: lambda n, at: "Evaluated on different prompts: the two are not comparable.",
    NoteKind.SAME_RUN: lambda n, at: "Both hold the same evaluations: one is the other, or a part of it.",
    NoteKind.CROSSING: lambda n, at: f"The two curves cross at {at(n.compute)}.",
    NoteKind.NO_CURVE: lambda n, at: f"{n.name} has no curve to compare: {n.verdict}.",
    NoteKind.ALONE_IN_SET: lambda n, at: (
        f"{n.name} is compared with nothing: it is the only curve of its evaluation set."
    ),
    NoteKind.NOTHING_POOLED: lambda n, at: (
        f"Nothing is pooled: {n.needed} or more curves that follow a sigmoid are needed."
    ),
    NoteKind.NOT_POOLED: lambda n, at: (
        f"Not pooled, since they do not follow a sigmoid or have too few points: {', '.join(n.names)}."
    ),
}


def short(compute: float, digits: int = 4) -> str:
    """Format an amount of compute to so many digits: 17,190 and not 1.719e+04, but 1.719e+18."""
    if not math.isfinite(compute):
        return str(compute)
    rounded = float(f"{compute:.{digits}g}")
    return f"{rounded:,.0f}" if 100 <= rounded < 1e7 else f"{rounded:.{digits}g}"


def amount(compute: float, unit: str | None) -> str:
    return f"compute {short(compute)}" if unit is None else f"{short(compute)} {unit}"
