"""Signals of a run's health, their limits, and the alarms raised when a signal passes its limit. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.report.outlook import Outlook

AlarmKind = Literal[
    "truncated",
    "mismatch",
    "backend",
    "no_verdict",
    "skipped",
    "empty",
    "retired",
    "entropy",
    "fall",
    "grader_error",
    "uneven_time",
    "stalled",
]
Cause = Literal[
    "all_wrong",
    "all_right",
    "truncated",
    "mixed",
    "no_verdict",
    "no_answer",
    "timeout",
    "crash",
    "memory",
    "error",
]
"""Why batches are empty, or the most frequent reason for which a grader has no verdict."""

ALARM_STEPS = 20  # steps that a signal is averaged over before it is compared with its limit
FEWEST_STEPS = 5  # fewer values than these do not distinguish a trend from noise
NOTABLE = 0.25  # relative change of an alarm's value that is reported again
EMPTY = "batch/empty"  # derived from batch/effective: 1 for a step without anything to train on
RETIRED = "curriculum/retired_frac"  # the largest of all tasks; with several, each is in RETIRED/TASK
# Derived from loss/kl and loss/ratio_max of steps whose tokens were all sampled with the weights that are trained: what
# is left of the difference between generator and learner is that of their arithmetic.
BACKEND_KL, BACKEND_RATIO = "loss/backend_kl", "loss/backend_ratio_max"
# Two FP32 engines differ by 1e-9, bf16 bodies with FP32 heads by about 1e-3; more is a fault, or a rounded head.
BACKEND_LIMIT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A column of metrics.jsonl that shows whether a run is healthy."""

    key: str
    label: str
    limit: float | None = None
    """Mean over the last steps beyond which an alarm is raised; None for a signal that is only shown."""
    below: bool = False
    """Whether the alarm is raised below the limit instead of above it."""
    alarm: AlarmKind | None = None
    in_report: bool = True
    """Whether a report draws it."""

    def passes(self, value: float) -> bool:
        """Return whether this mean calls for an alarm."""
        return self.limit is not None and (value < self.limit if self.below else value > self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at while a run trains."""

    kind: AlarmKind
    value: float | None = None
    """Mean of the signal over the last steps; of a fall, how far below its peak the reward is."""
    limit: float | None = None
    below: bool = False
    state: Literal["new", "changed", "over"] = "new"
    before: float | None = None
    """The value last reported, of an alarm that has changed or is over."""
    cause: Cause | None = None
    remedies: tuple[str, ...] = ()
    """Settings of the recipe that can help."""
    subject: str = ""
    """The evaluation set of a fall, the grader that raised an error, or the task that has few problems left."""
    detail: str = ""
    """The error of a grader."""
    ratio: float | None = None
    """The largest ratio of probabilities between learner and generator at equal weights."""


def alarms(
    metrics: Sequence[Mapping[str, Any]],
    outlooks: Mapping[str, Outlook | None],
    *,
    remedies: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Alarm]:
    """Return the alarms of a run from its rows of metrics and its forecasts by evaluation set; empty when all is well.

    `remedies` are settings of this run's recipe that can help against each kind of alarm.
    """
    recent = with_derived(metrics[-ALARM_STEPS:])
    means = {signal.key: _mean(recent, signal.key) for signal in SIGNALS}
    raised = signal_alarms({key: mean for key, mean in means.items() if mean is not None})
    causes = {"empty": _empty_cause(recent), "no_verdict": _no_verdict_cause(recent)}
    subjects = {"retired": _most_retired(recent)}
    uneven = disagreement(metrics)
    falls = {name: outlook.fit.fall for name, outlook in outlooks.items() if outlook is not None}
    return [
        *(
            replace(
                alarm,
                cause=causes.get(alarm.kind),
                remedies=(remedies or {}).get(alarm.kind, ()),
                subject=subjects.get(alarm.kind, ""),
            )
            for alarm in raised
        ),
        *_backend_alarm(metrics, (remedies or {}).get("backend", ())),
        *(Alarm(kind="fall", subject=name, value=fall.drop) for name, fall in falls.items() if fall is not None),
        *([Alarm(kind="uneven_time", value=uneven, limit=UNEVEN_TIME)] if uneven > UNEVEN_TIME else []),
    ]


def signal_alarms(last: Mapping[str, float]) -> list[Alarm]:
    """Return the alarms for the means of the last steps, by key."""
    return [
        Alarm(kind=signal.alarm, value=last[signal.key], limit=signal.limit, below=signal.below)
        for signal in SIGNALS
        if signal.alarm is not None and signal.key in last and signal.passes(last[signal.key])
    ]


def with_derived(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Add the columns that signals need and metrics.jsonl does not have."""
    return [{**row, **_derived(row)} for row in rows]


def _derived(row: Mapping[str, Any]) -> dict[str, float]:
    derived = {EMPTY: float(row["batch/effective"] == 0)} if "batch/effective" in row else {}
    if row.get("rollout/lag_max") == 0 and row.get("loss/kl") is not None and row.get("loss/ratio_max") is not None:
        derived |= {BACKEND_KL: row["loss/kl"], BACKEND_RATIO: row["loss/ratio_max"]}
    return derived


def _backend_alarm(metrics: Sequence[Mapping[str, Any]], remedies: tuple[str, ...]) -> list[Alarm]:
    """Compare generator and learner where both have the same weights; an asynchronous run has that at its start only.

    One step is enough: it is a mean over thousands of tokens.
    """
    measured = [row for row in with_derived(metrics) if BACKEND_KL in row][-ALARM_STEPS:]
    if not measured:
        return []
    value, ratio = float(np.mean([row[BACKEND_KL] for row in measured])), max(row[BACKEND_RATIO] for row in measured)
    if value <= BACKEND_LIMIT:
        return []
    return [Alarm(kind="backend", value=value, limit=BACKEND_LIMIT, remedies=remedies, ratio=float(ratio))]


class AlarmNews:
    """Reduces the alarms of each evaluation to what is new: a person reads each alarm once, then its changes."""

    def __init__(self) -> None:
        self._reported: dict[tuple[AlarmKind, str], Alarm] = {}

    def update(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        """Return the alarms that are new, that have changed by NOTABLE since they were reported, or that are over."""
        current: dict[tuple[AlarmKind, str], Alarm] = {(alarm.kind, alarm.subject): alarm for alarm in alarms}
        news = []
        for key, alarm in current.items():
            before = self._reported.get(key)
            if before is None:
                news.append(alarm)
            elif alarm.value is None or before.value is None:
                continue
            elif abs(alarm.value - before.value) > NOTABLE * abs(before.value):
                news.append(replace(alarm, state="changed", before=before.value))
            else:
                continue
            self._reported[key] = alarm
        for key in [key for key in self._reported if key not in current]:
            over = self._reported.pop(key)
            news.append(replace(over, state="over", before=over.value))
        return news


def _empty_cause(rows: Sequence[Mapping[str, Any]]) -> Cause:
    """Return why batches were empty."""
    empty = [row for row in rows if row.get(EMPTY) == 1.0]
    correct = [row["reward/correct_frac"] for row in empty if row.get("reward/correct_frac") is not None]
    truncated = [row["rollout/truncated_frac"] for row in empty if row.get("rollout/truncated_frac") is not None]
    if truncated and np.mean(truncated) > 0.5:
        return "truncated"
    if empty and not correct:
        return "no_verdict"
    if correct and max(correct) == 0:
        return "all_wrong"
    return "all_right" if correct and min(correct) == 1 else "mixed"


def _no_verdict_cause(rows: Sequence[Mapping[str, Any]]) -> Cause | None:
    """Return the most frequent reason for which there was no verdict."""
    counts: Counter[Cause] = Counter()
    for row in rows:
        counts.update({reason: row[f"grader/{reason}"] for reason in _REASONS if row.get(f"grader/{reason}")})
    return counts.most_common(1)[0][0] if counts else None


def _most_retired(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the task with the largest share of retired problems; empty if the run has one task."""
    shares = {key: rows[-1][key] for key in (rows[-1] if rows else ()) if key.startswith(f"{RETIRED}/")}
    return max(shares, key=lambda key: shares[key]).removeprefix(f"{RETIRED}/") if shares else ""


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(values)) if len(values) >= FEWEST_STEPS else None


_REASONS: tuple[Cause, ...] = ("no_answer", "timeout", "crash", "memory", "error")

SIGNALS: tuple[Signal, ...] = (
    # arXiv 2510.13786, section 5: 10 to 15 % truncated completions came before a collapse.
    Signal(key="rollout/truncated_frac", label="Truncated answers", limit=0.10, alarm="truncated"),
    # A model this certain samples the same answer each time, so groups have nothing to compare. Runs that reached 0.9
    # and more on sums and products had 0.007 to 0.03 (docs/results/first_curves.md).
    Signal(key="loss/entropy", label="Entropy", limit=0.003, below=True, alarm="entropy"),
    # More than lag alone explains.
    Signal(key="loss/kl", label="Mismatch (KL of generator and learner)", limit=0.2, alarm="mismatch"),
    # Its alarm has a rule of its own, because most runs have few such steps.
    Signal(key=BACKEND_KL, label="Mismatch at equal weights (KL)", in_report=False),
    Signal(key="rollout/lag_mean", label="Lag, mean"),
    Signal(key="rollout/lag_max", label="Lag, largest"),
    Signal(key="outcome/stopped_frac", label="Programs stopped by the sandbox"),
    # A grader without a verdict on this many answers is at fault, not the answers.
    Signal(
        key="batch/no_verdict_frac", label="Answers without a verdict", limit=0.05, alarm="no_verdict", in_report=False
    ),
    # One in twenty may be an outlier; more is a fault.
    Signal(key="optim/skipped", label="Steps without an update", limit=0.05, alarm="skipped", in_report=False),
    Signal(key=EMPTY, label="Empty batches", limit=0.2, alarm="empty", in_report=False),
    # Runs whose problems were nearly all solved and retired fell (docs/results/principles.md).
    Signal(key=RETIRED, label="Retired problems", limit=0.8, alarm="retired", in_report=False),
)
REPORTED = tuple(signal for signal in SIGNALS if signal.in_report)
