"""English for what this room computes: alarms, and what to take away from a curve. Nothing reads it back."""

from collections.abc import Sequence

from scalerl.curves import Verdict
from scalerl.report.gain import Gain
from scalerl.report.outlook import Ceiling
from scalerl.report.results import CurveResult
from scalerl.report.signals import SIGNALS, Alarm


def join_names(names: Sequence[str]) -> str:
    """Return all names in a sentence: 'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def alarm_text(alarm: Alarm) -> str:
    """Return the text of an alarm of a run in training, with a remedy, without a full stop."""
    if alarm.state == "over":
        return f"over: {_alarm_fact(alarm)}"
    if alarm.state == "changed":
        return f"{_alarm_fact(alarm)} now, after {_alarm_value(alarm, alarm.before)}"
    return f"{_alarm_fact(alarm)}{_remedy(alarm)}"


def _alarm_value(alarm: Alarm, value: float | None) -> str:
    is_share = alarm.kind not in ("mismatch", "backend", "entropy", "fall")
    return "" if value is None else f"{value:.0%}" if is_share else f"{value:.2g}"


def _alarm_fact(alarm: Alarm) -> str:
    value = _alarm_value(alarm, alarm.value)
    match alarm.kind:
        case "truncated":
            return f"{value} of completions reach their length limit and are cut off"
        case "mismatch":
            return f"generator and learner differ by a KL of {value}"
        case "backend":
            return (
                f"generator and learner differ by a KL of {value} at equal weights (largest ratio {alarm.ratio:.3g}), "
                f"so their arithmetic differs"
            )
        case "no_verdict":
            return f"the grader has no verdict on {value} of completions"
        case "skipped":
            return f"{value} of the last steps changed no weight, because loss or gradient was not finite"
        case "empty":
            return f"{value} of the last batches had nothing to train on"
        case "retired":
            whose = f"the training problems of {alarm.subject}" if alarm.subject else "a task's training problems"
            return f"{value} of {whose} are solved and no longer asked"
        case "entropy":
            return f"the entropy of the policy is {value}, so that all answers to a problem are nearly the same"
        case "fall":
            return f"the reward on {alarm.subject} has fallen by {alarm.value:.2g} since its peak"
        case "grader_error":
            return f"the grader {alarm.subject} raised: {alarm.detail}"
        case "uneven_time":
            return f"time per FLOP changed during the run (device-hours and FLOPs differ by up to {value} of the run)"
        case "stalled":
            return f"training stood still for {alarm.value:.0f} s, far beyond the usual time of a step"


def _remedy(alarm: Alarm) -> str:
    names = f" ({' or '.join(alarm.remedies)})" if alarm.remedies else ""
    match alarm.kind:
        case "truncated":
            advice = _truncated_advice(alarm.remedies)
            return f"; above {alarm.limit:.0%}, runs tend to become unstable: {advice}{names}"
        case "mismatch":
            return ": lower pipeline.max_lag, or set model.fp32_head = both"
        case "backend":
            advice = f": set {' or '.join(alarm.remedies)}; " if alarm.remedies else "; "
            return f"{advice}the paper's remedy is an FP32 head at both ends (model.fp32_head)"
        case "no_verdict":
            return f", which are not trained on: {_NO_VERDICT.get(alarm.cause or '', 'see grader/ in metrics.jsonl')}"
        case "skipped":
            return ": check the loss function if it is your own, lower optimizer.lr, or set model.dtype = float32"
        case "empty":
            return f", so the model does not change: {_EMPTY[alarm.cause or 'mixed']}"
        case "retired":
            return f"; with few of them left, the reward can fall: take more problems, or ask all of them{names}"
        case "entropy":
            return ": lower optimizer.lr, raise rollout.temperature, or stop here if the reward is as high as it can be"
        case "fall":
            return ": its best checkpoint is the one at the peak"
        case "uneven_time":
            return ": such a run's curve is fitted over FLOPs"
        case "stalled":
            return "; this time is not on the compute axis (time/stalled_s)"
        case _:
            return ""


def _truncated_advice(remedies: Sequence[str]) -> str:
    keeping = [name.startswith("filter.") for name in remedies]
    if not any(keeping):
        return "leave more room"
    if keeping[0]:
        return "train on cut answers, because nothing else makes answers shorter, or leave more room"
    return "leave more room or train on cut answers"


_NO_VERDICT = {
    "no_answer": "the reference answers cannot be read by this grader",
    "timeout": "grading takes too long (grading.timeout_s, grading.cpu_limit_s)",
    "crash": "the grader's process dies",
    "memory": "grading needs more memory (grading.memory_limit_mb)",
    "error": "the grader raises an exception",
}
_EMPTY = {
    "all_wrong": "no answer was correct, so take easier problems or a stronger model, or begin with scalerl sft",
    "all_right": "every answer was correct, so take harder problems",
    "truncated": "most completions are cut off at their length limit",
    "no_verdict": "the grader gave no verdict on any answer",
    "mixed": "in every group the answers were all correct or all wrong, so raise pipeline.completions_per_group",
}


def past_alarm_text(run: str, alarm: Alarm) -> str:
    """Return the text of an alarm of a finished run, for a report."""
    label = next(signal.label for signal in SIGNALS if signal.alarm == alarm.kind)
    side = "below" if alarm.below else "above"
    return f"{run}: {label.lower()} at {alarm.value:.2g} over the last steps, {side} {alarm.limit:g}."


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
