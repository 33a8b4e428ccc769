"""English for what `analysis` computes: alarms, and what to take away from a curve. Nothing reads it back."""

from collections.abc import Sequence

from scalerl.analysis.numbers import compute_text, decimals, fixed, interval_text
from scalerl.analysis.results import CurveResult, param_value
from scalerl.analysis.signals import SIGNALS, Alarm
from scalerl.curves import doubling


def join_names(names: Sequence[str]) -> str:
    """All names in a sentence: 'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def alarm_text(alarm: Alarm) -> str:
    """An alarm of the run that is training, without a full stop."""
    match alarm.kind:
        case "truncated":
            return f"{alarm.value:.0%} of completions are truncated: runs beyond {alarm.limit:.0%} have collapsed"
        case "mismatch":
            return f"generator and learner differ by a KL of {alarm.value:.2g}: lower max_lag, or look at precision"
        case "no_verdict":
            return f"the grader has no verdict on {alarm.value:.0%} of completions: see grader/ in metrics.jsonl"
        case "fall":
            return f"the run falls away from its own curve on {alarm.subject}"
        case "grader_error":
            return f"the grader {alarm.subject} raised: {alarm.detail}"


def past_alarm_text(run: str, alarm: Alarm) -> str:
    """An alarm of a run that a report is about."""
    label = next(signal.label for signal in SIGNALS if signal.alarm == alarm.kind)
    return f"{run}: {label.lower()} at {alarm.value:.2g} over the last steps, above {alarm.limit:g}."


def curve_text(curve: CurveResult) -> str:
    """What a person should take away from one curve."""
    fit = curve.fit
    messages = " ".join(curve.messages)
    if fit is None or not fit.usable or fit.draws is None:
        return messages or curve.verdict
    if fit.verdict in ("unstable", "no rise seen"):
        return messages
    ceiling = param_value(fit, "ceiling")
    assert ceiling is not None
    reward, change = fixed(decimals(fit)), fixed(decimals(fit), "+")
    gain = f"doubling the compute of {compute_text(fit.scale)} should bring {interval_text(doubling(fit), change)}"
    if fit.verdict == "ceiling not identifiable yet":
        return f"the ceiling lies somewhere in {reward(ceiling.low)} to {reward(ceiling.high)}; {gain}. {messages}"
    if fit.form == "log-linear":
        return f"a log-linear law has no ceiling below 1; {gain}. {messages}".rstrip()
    return (
        f"levels off at {reward(ceiling.value)} ({fit.level:.0%} between {reward(ceiling.low)} and "
        f"{reward(ceiling.high)}); {gain}. {messages}"
    ).rstrip()
