"""English for what a run has gained, and what to take away from a curve. Nothing reads it back."""

from collections.abc import Sequence

from scalerl.curves import Verdict
from scalerl.report.gain import Gain
from scalerl.report.outlook import Ceiling
from scalerl.report.results import CurveResult


def join_names(names: Sequence[str]) -> str:
    """Return all names in a sentence: 'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def gain_text(name: str, gain: Gain) -> str:
    """Return what a run changed on an evaluation set."""
    change = f"{name} went from {gain.first:.3f} to {gain.last:.3f} (mean of the last {gain.num_last})"
    interval = f"95% of the difference between {gain.low:+.3f} and {gain.high:+.3f}"
    match gain.kind:
        case "rose":
            return f"Learned: {change}; {interval}."
        case "fell":
            return f"Got worse: {change}; {interval}."
        case "within_noise":
            return f"Nothing learned beyond noise: {change}; {interval}."
        case "no_update":
            reasons = [(gain.num_skipped, "a loss or gradient that was not finite"), (gain.num_empty, "an empty batch")]
            why = join_names([f"{num:,} had {reason}" for num, reason in reasons if num])
            return f"Not trained: none of {gain.num_steps:,} steps changed a weight ({why}). {change}, which is noise."


def ceiling_cell(ceiling: Ceiling) -> str:
    """Return the cell of a table under the heading "ceiling": the numbers if it is known, else the verdict."""
    if ceiling.verdict == Verdict.KNOWN:
        return f"{ceiling.value:.3f} [{ceiling.low:.3f}, {ceiling.high:.3f}]"
    return "not known yet" if ceiling.verdict == Verdict.WIDE else ceiling.verdict


def ceiling_text(ceiling: Ceiling) -> str:
    """Return the same for a sentence: "ceiling 0.7 [0.6, 0.8]", "ceiling not known yet" or "curve VERDICT".

    Other verdicts judge the whole curve.
    """
    judges_ceiling = ceiling.verdict in (Verdict.KNOWN, Verdict.WIDE)
    return f"{'ceiling' if judges_ceiling else 'curve'} {ceiling_cell(ceiling)}"


def curve_text(curve: CurveResult, unit: str | None = None) -> str:
    """Return the conclusion from one curve in words, with amounts of compute in this unit."""
    return " ".join(curve.messages_in(unit, curve.conclusions)) or curve.verdict
