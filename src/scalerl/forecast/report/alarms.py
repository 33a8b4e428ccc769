"""Alarms of a run: what a person should look at, with when it began and ended.

    SIGNALS              columns with a limit: an alarm for each stretch of steps whose rolling mean lies beyond it
    backend_alarms       generator and learner differ although their weights are equal
    alarms               both, for a run that trains, a report and the board
    AlarmNews            reduces the alarms of a run that goes on to what is new

All are made from the rows of metrics.jsonl; what evaluations say is decided by the fit. `words.py` has the sentences.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.forecast.report.document import Level, Say
from scalerl.forecast.report.words import NO_VERDICT, text

Array = NDArray[np.float64]
Columns = Mapping[str, Array]
AlarmFields = Mapping[str, Any]
"""Fields of an alarm, to be replaced."""

ALARM_STEPS = 20  # steps that a signal is averaged over before it is compared with its limit
FEWEST_STEPS = 5  # fewer values than these do not distinguish a trend from noise
MOST_PAST = 12  # a page lists at most this many alarms that are over
# Columns that are derived: steps without anything to train on; tool calls per conversation, as a share of the most so
# far; the largest lag, or the mean lag in logs without it.
EMPTY = "derived/empty"
CALLS_SHARE = "derived/tool_calls_share"
LAG = "derived/lag"
SOLVED = "curriculum/solved_frac"  # the largest of all tasks; with several, each is in SOLVED/TASK
FEWEST_CALLS = 0.1  # tool calls per conversation from which an agent counts as using its tools
# Two FP32 engines differ by 1e-9, bf16 bodies with FP32 heads by about 1e-3; more is a fault, or a rounded head.
BACKEND_LIMIT = 0.01


class AlarmKind(StrEnum):
    """What an alarm is about; `words.py` has a sentence for each."""

    TRUNCATED = "truncated"
    MISMATCH = "mismatch"
    BACKEND = "backend"
    NO_VERDICT = "no_verdict"
    SKIPPED = "skipped"
    EMPTY = "empty"
    SOLVED = "solved"
    ENTROPY = "entropy"
    UNUSED_TOOLS = "unused_tools"
    LAG = "lag"
    GRADER_ERROR = "grader_error"
    ENVIRONMENT_ERROR = "environment_error"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at."""

    kind: AlarmKind
    value: float | None = None
    """Mean of the signal over the last steps, or the number in the sentence."""
    limit: float | None = None
    state: Literal["new", "over"] = "new"
    cause: str | None = None
    """Why batches are empty, or the most frequent reason for which a grader has no verdict."""
    remedies: tuple[str, ...] = ()
    """Settings of the recipe that can help."""
    subject: str = ""
    """The grader or environment at fault, or the task that has few problems left."""
    detail: str = ""
    """What a grader or environment said."""
    num_answers: int = 0
    """Number of answers seen by a grader that gave no reward to any."""
    answers: tuple[tuple[str, str], ...] = ()
    """Some of these answers, each with its reference."""
    ratio: float | None = None
    """The largest ratio of probabilities between learner and generator at equal weights."""
    began: float | None = None
    """Step at which it began; None where that is not known."""
    ended: float | None = None
    """Last step of an alarm that is over; None while it lasts."""

    @property
    def text(self) -> str:
        return self.say().text

    def say(self, **where: str) -> Say:
        """Return the alarm in words; given its `run`, they also say when it was."""
        if self.ended is not None:
            level = Level.WHY
        else:
            level = Level.WARNING
        kind = f"alarm_{self.kind}"
        values = {**asdict(self), **where}
        return Say(kind, values, level, text(kind, values))


# Signals --------------------------------------------------------------------------------------------------------------


def _derived(columns: Columns) -> Columns:
    """Return what signals average besides the columns that are logged."""
    derived: dict[str, Array] = {}
    effective = columns.get("batch/effective")
    if effective is not None:
        derived[EMPTY] = np.where(np.isfinite(effective), effective == 0, np.nan)
    calls = columns.get("rollout/tool_calls_mean")
    if calls is not None:
        most = np.fmax.accumulate(rolling_means(calls))
        with np.errstate(invalid="ignore"):
            derived[CALLS_SHARE] = np.where(most >= FEWEST_CALLS, calls / most, np.nan)
    lag = columns.get("rollout/lag_max", columns.get("rollout/lag_mean"))
    if lag is not None:
        derived[LAG] = lag
    return derived


def _why_empty(columns: Columns) -> AlarmFields:
    """Say why the last empty batches had nothing to train on."""
    is_empty = columns["batch/effective"] == 0
    correct = _known(columns, "reward/correct_frac", is_empty)
    truncated = _known(columns, "rollout/truncated_frac", is_empty)
    # First, since completions that were cut off are wrong, or have no verdict, for this reason.
    if len(truncated) and truncated.mean() > 0.5:
        return {"cause": "truncated"}
    if not len(correct):
        return {"cause": "no_verdict"}
    if correct.max() == 0:
        return {"cause": "all_wrong"}
    return {"cause": "all_right" if correct.min() == 1 else "mixed"}


def _known(columns: Columns, key: str, rows: NDArray[np.bool_]) -> Array:
    """Return the known values of a column in these rows; none if it was not logged."""
    values = columns.get(key)
    if values is None:
        return np.empty(0)
    return values[rows & np.isfinite(values)]


def _why_no_verdict(columns: Columns) -> AlarmFields:
    """Name the most frequent reason: the column that counts most answers without a verdict."""
    counts = Counter({name: float(np.nansum(columns.get(name, 0.0))) for name in NO_VERDICT})
    name, most = counts.most_common(1)[0]
    return {"cause": name if most else None}


def _most_solved(columns: Columns) -> AlarmFields:
    """Name the task with the largest solved share; with a single task there is nothing to name."""
    keys = [key for key in columns if key.startswith(f"{SOLVED}/")]
    return {"subject": max(keys, key=lambda key: columns[key][-1], default="").removeprefix(f"{SOLVED}/")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A column of metrics.jsonl, or one derived from them, that shows whether a run is healthy."""

    key: str
    limit: float
    """Mean over the last steps beyond which an alarm is raised."""
    alarm: AlarmKind
    below: bool = False
    """Whether the alarm is raised below the limit instead of above it."""
    explain: Callable[[Columns], AlarmFields] = lambda columns: {}
    """Further fields of an alarm that lasts, from the columns of the last steps."""


SIGNALS: tuple[Signal, ...] = (
    # arXiv 2510.13786, section 5: 10 to 15 % truncated completions came before a collapse.
    Signal(key="rollout/truncated_frac", limit=0.10, alarm=AlarmKind.TRUNCATED),
    # A model this certain samples the same answer each time, so groups have nothing to compare. Runs that reached 0.9
    # and more on sums and products had 0.007 to 0.03 (docs/results/ablations.md).
    Signal(key="loss/entropy", limit=0.003, below=True, alarm=AlarmKind.ENTROPY),
    # More than lag alone explains.
    Signal(key="loss/kl", limit=0.2, alarm=AlarmKind.MISMATCH),
    # An agent that has lost its tools does not find them again: what it no longer tries is not rewarded.
    Signal(key=CALLS_SHARE, limit=0.25, below=True, alarm=AlarmKind.UNUSED_TOOLS),
    # A grader without a verdict on this many answers is at fault, not the answers.
    Signal(key="batch/no_verdict_frac", limit=0.05, alarm=AlarmKind.NO_VERDICT, explain=_why_no_verdict),
    # One in twenty may be an outlier; more is a fault.
    Signal(key="optim/skipped", limit=0.05, alarm=AlarmKind.SKIPPED),
    Signal(key=EMPTY, limit=0.2, alarm=AlarmKind.EMPTY, explain=_why_empty),
    # Runs whose problems were nearly all solved, and no longer asked, fell (docs/results/ablations.md).
    Signal(key=SOLVED, limit=0.8, alarm=AlarmKind.SOLVED, explain=_most_solved),
    # The largest lag for which the paper found no loss (PipelineRL-8), where a run does not name its own.
    Signal(key=LAG, limit=8.0, alarm=AlarmKind.LAG),
)
LIMITS = {signal.key: signal.limit for signal in SIGNALS}
"""Limits of the columns that are averaged as they are, and of those derived."""


def signal_alarms(columns: Columns, max_lag: float | None) -> list[Alarm]:
    """Return an alarm for each stretch of steps in which the rolling mean of a signal lies beyond its limit."""
    num_steps = max((len(values) for values in columns.values()), default=0)
    if not num_steps:
        return []
    steps = columns.get("step", np.arange(1.0, num_steps + 1))
    watched = {**columns, **_derived(columns)}
    recent = {key: values[-ALARM_STEPS:] for key, values in columns.items()}
    raised: list[Alarm] = []
    for signal in SIGNALS:
        means = rolling_means(watched.get(signal.key, np.full(num_steps, np.nan)))
        limit = signal.limit
        if signal.alarm == AlarmKind.LAG and max_lag is not None:
            limit = max_lag
        if signal.below:
            is_beyond = means < limit
        else:
            is_beyond = means > limit + 1e-9
        for first, last in _stretches(is_beyond):
            began = float(steps[first])
            if last == num_steps - 1:
                value = float(means[last])
                more = signal.explain(recent)
                raised.append(Alarm(kind=signal.alarm, value=value, limit=limit, began=began, **more))
            else:
                stretch = means[first : last + 1]
                worst = float(stretch.min() if signal.below else stretch.max())
                ended = float(steps[last])
                raised.append(Alarm(kind=signal.alarm, value=worst, limit=limit, began=began, ended=ended))
    return raised


def alarms(columns: Columns, max_lag: float | None = np.inf) -> list[Alarm]:
    """Return the alarms of a run, those that are over too.

    `max_lag` is the lag that the recipe allows; None stands for unknown, so that the limit of the
    signal counts; infinity, the default, raises no alarm of lag.
    """
    return [*signal_alarms(columns, max_lag), *backend_alarms(columns)]


def with_remedies(alarms: Sequence[Alarm], remedies: Mapping[str, tuple[str, ...]]) -> list[Alarm]:
    """Name the settings of a recipe that can help against each alarm."""
    return [replace(alarm, remedies=tuple(remedies.get(alarm.kind, ()))) for alarm in alarms]


def backend_alarms(columns: Columns) -> list[Alarm]:
    """Return the alarm if generator and learner differ in steps whose tokens were sampled with the trained weights.

    At equal weights only their arithmetic can differ. An asynchronous run has such steps only at its start, and one is
    enough: it is a mean over thousands of tokens.
    """
    if not {"rollout/lag_max", "loss/kl", "loss/ratio_max"} <= columns.keys():
        return []
    is_equal = (columns["rollout/lag_max"] == 0) & np.isfinite(columns["loss/kl"])
    difference = columns["loss/kl"][is_equal][-ALARM_STEPS:]
    ratio = columns["loss/ratio_max"][is_equal][-ALARM_STEPS:]
    if not len(difference) or difference.mean() <= BACKEND_LIMIT:
        return []
    mean = float(difference.mean())
    largest = float(np.nanmax(ratio))
    return [Alarm(kind=AlarmKind.BACKEND, value=mean, limit=BACKEND_LIMIT, ratio=largest)]


def rolling_means(values: Array) -> Array:
    """Return for each row the mean over the last ALARM_STEPS rows; NaN if fewer than FEWEST_STEPS of them are known."""
    known = np.isfinite(values)
    window = np.ones(ALARM_STEPS)
    total = np.convolve(np.where(known, values, 0.0), window)[: len(values)]
    num = np.convolve(known, window)[: len(values)]
    return np.where(num >= FEWEST_STEPS, total / np.maximum(num, 1), np.nan)


def _stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        yield int(first), int(end) - 1


def alarms_to_show(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return the alarms that a page shows: those that last first, then the latest of the others."""
    latest = sorted(alarms, key=lambda alarm: -(np.inf if alarm.ended is None else alarm.ended))
    return latest[: MOST_PAST + sum(alarm.ended is None for alarm in alarms)]


class AlarmNews:
    """Reduces the alarms of each evaluation to what is new: a person reads each alarm once, and when it is over."""

    def __init__(self) -> None:
        self._reported: dict[tuple[AlarmKind, str], Alarm] = {}

    def update(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        """Return the alarms that are new or over; `alarms` are those that last now."""
        current = {(alarm.kind, alarm.subject): alarm for alarm in alarms}
        news: list[Alarm] = []
        for key, alarm in current.items():
            if key not in self._reported:
                news.append(alarm)
        for key, alarm in self._reported.items():
            if key not in current:
                news.append(replace(alarm, state="over"))
        self._reported = current
        return news
