"""Signals of a run's stability, their limits, and the alarms raised when a signal passes its limit. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.analysis.outlook import Outlook

AlarmKind = Literal["truncated", "mismatch", "no_verdict", "fall", "grader_error"]

ALARM_STEPS = 20  # steps that a signal is averaged over before it is compared with its limit
FEWEST_STEPS = 5  # fewer values than these do not distinguish a trend from noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A column of metrics.jsonl that shows whether a run is stable."""

    key: str
    label: str
    limit: float | None = None
    """Mean over the last steps above which an alarm is raised; None for a signal that is only shown."""
    alarm: AlarmKind | None = None
    in_report: bool = True
    """Whether a report draws it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at while a run trains."""

    kind: AlarmKind
    value: float | None = None
    """Mean of the signal over the last steps."""
    limit: float | None = None
    subject: str = ""
    """The evaluation set of a fall, or the grader that raised an error."""
    detail: str = ""
    """The error of a grader."""


def alarms(metrics: Sequence[Mapping[str, Any]], outlooks: Mapping[str, Outlook | None]) -> list[Alarm]:
    """Alarms of a run from its rows of metrics and its forecasts by evaluation set; empty when all is well."""
    recent = metrics[-ALARM_STEPS:]
    means = {signal.key: _mean(recent, signal.key) for signal in SIGNALS}
    fallen = [name for name, outlook in outlooks.items() if outlook is not None and outlook.fit.verdict == "unstable"]
    return [
        *signal_alarms({key: mean for key, mean in means.items() if mean is not None}),
        *(Alarm(kind="fall", subject=name) for name in fallen),
    ]


def signal_alarms(last: Mapping[str, float]) -> list[Alarm]:
    """Alarms for the means of the last steps, by key."""
    return [
        Alarm(kind=signal.alarm, value=last[signal.key], limit=signal.limit)
        for signal in SIGNALS
        if signal.alarm is not None and signal.limit is not None and last.get(signal.key, 0.0) > signal.limit
    ]


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(values)) if len(values) >= FEWEST_STEPS else None


SIGNALS: tuple[Signal, ...] = (
    # arXiv 2510.13786, section 5: 10 to 15 % truncated completions came before a collapse.
    Signal(key="rollout/truncated_frac", label="Truncated answers", limit=0.10, alarm="truncated"),
    Signal(key="loss/entropy", label="Entropy"),
    # More than lag alone explains.
    Signal(key="loss/kl", label="Mismatch (KL of generator and learner)", limit=0.2, alarm="mismatch"),
    Signal(key="rollout/lag_mean", label="Lag, mean"),
    Signal(key="rollout/lag_max", label="Lag, largest"),
    # A grader without a verdict on this many answers is at fault, not the answers.
    Signal(
        key="batch/no_verdict_frac", label="Answers without a verdict", limit=0.05, alarm="no_verdict", in_report=False
    ),
)
REPORTED = tuple(signal for signal in SIGNALS if signal.in_report)
