"""The forecast while a run trains, from its own evaluations, and the alarms the paper found useful. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves import Fit, fit, is_far, reward_at

FIRST_FIT = 4  # evaluations after the start from which a curve is fitted
TRUNCATED = 0.10  # arXiv 2510.13786, section 5: 10 to 15 % truncated completions came before a collapse
MISMATCH = 0.2  # KL between generator and learner that lag alone does not explain
NO_VERDICT = 0.05  # of the answers; a grader that has none on so many is at fault, not the answers
ALARM_STEPS = 20  # steps over which a signal is averaged before it is called an alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the curve says so far."""

    fit: Fit
    at_budget: tuple[float, float, float, float] | None
    """Compute at the end of the budget; the reward there, with its interval. None where it is too far off to tell."""


def outlook(evals: Sequence[Mapping[str, Any]], end_compute: float | None) -> Outlook | None:
    """Refit the run's curve; None before the fourth evaluation. `end_compute` is where the budget ends."""
    rows = [row for row in evals if row.get("reward") is not None]
    start = next((row for row in rows if row["gpu_hours"] == 0), None)
    later = [row for row in rows if row["gpu_hours"] > 0]
    if len(later) < FIRST_FIT:
        return None
    found = fit(
        [row["gpu_hours"] for row in later],
        [row["reward"] for row in later],
        num_samples=[row["num_samples"] for row in later],
        start=None if start is None else start["reward"],
        start_sd=0.0 if start is None else _binomial_sd(start),
    )
    at_budget = None
    if found.usable and end_compute is not None and end_compute > found.scale and not is_far(found, end_compute):
        (row,) = reward_at(found, [end_compute])
        at_budget = (end_compute, row.reward.value, row.reward.low, row.reward.high)
    return Outlook(fit=found, at_budget=at_budget)


def _binomial_sd(row: Mapping[str, Any]) -> float:
    rate = min(max(row["reward"], 0.5 / row["num_samples"]), 1 - 0.5 / row["num_samples"])
    return float(np.sqrt(rate * (1 - rate) / row["num_samples"]))


def alarms(metrics: Sequence[Mapping[str, Any]], found: Mapping[str, Outlook | None]) -> list[str]:
    """What a person should look at now; empty when all is well."""
    recent = metrics[-ALARM_STEPS:]
    said = []
    truncated = _mean(recent, "rollout/truncated_frac")
    if truncated is not None and truncated > TRUNCATED:
        said.append(f"{truncated:.0%} of completions are truncated: runs beyond 10% have collapsed")
    mismatch = _mean(recent, "loss/kl")
    if mismatch is not None and mismatch > MISMATCH:
        said.append(f"generator and learner differ by a KL of {mismatch:.2g}: lower max_lag, or look at precision")
    ungraded = _mean(recent, "batch/no_verdict_frac")
    if ungraded is not None and ungraded > NO_VERDICT:
        said.append(f"the grader has no verdict on {ungraded:.0%} of completions: see grader/ in metrics.jsonl")
    for name, one in found.items():
        if one is not None and one.fit.verdict == "unstable":
            said.append(f"the run falls away from its own curve on {name}")
    return said


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(values)) if len(values) >= min(5, ALARM_STEPS) else None
