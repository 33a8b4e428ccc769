"""The alarms of a run: signals beyond their limits, falls, forecasts that moved; each with when it began and ended.

One set of rules for a run that trains, the live page and the report. `words.py` has the sentences.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import Value
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.report.document import Level, Say
from scalerl.report.evaluations import counted, ks_of, pass_at
from scalerl.report.results import CurveResult
from scalerl.report.words import NO_VERDICT

Array = NDArray[np.float64]
Columns = Mapping[str, Array]
Row = Mapping[str, Any]

ALARM_STEPS = 20  # steps that a signal is averaged over before it is compared with its limit
FEWEST_STEPS = 5  # fewer values than these do not distinguish a trend from noise
NOTABLE = 0.25  # relative change of an alarm's value that is reported again
MOST_PAST = 12  # alarms that are over, the latest ones, that a page lists
SURE = 2.0  # standard errors by which training rewards must have risen
WINDOW = 3  # evaluations whose mean is compared
FEWEST_EVALUATIONS = 8  # from which a trend is looked for
SURE_FALL = 3.0  # standard errors of a fall; it is measured from the highest window, which is high by chance too
EMPTY = "batch/empty"  # derived from batch/effective: 1 for a step without anything to train on
CALLS = "rollout/tool_calls_share"  # derived: a step's tool calls per conversation over the most they have been
FEWEST_CALLS = 0.1  # calls per conversation of an agent that uses its tools
SOLVED = "curriculum/solved_frac"  # the largest of all tasks; with several, each is in SOLVED/TASK
# Derived from loss/kl and loss/ratio_max of steps whose tokens were all sampled with the weights that are trained: what
# is left of the difference between generator and learner is that of their arithmetic.
BACKEND_KL, BACKEND_RATIO = "loss/backend_kl", "loss/backend_ratio_max"
# Two FP32 engines differ by 1e-9, bf16 bodies with FP32 heads by about 1e-3; more is a fault, or a rounded head.
BACKEND_LIMIT = 0.01
LAG_LIMIT = 8.0  # largest lag for which the paper found no loss (PipelineRL-8), where a run does not name its own


class AlarmKind(StrEnum):
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
    FALL = "fall"
    OVERTRAINED = "overtrained"
    """pass@1 rises while pass@k falls."""
    OVERFITTED = "overfitted"
    """The training reward rises while the evaluation falls."""
    FORECAST_MOVED = "forecast_moved"
    UNEVEN_TIME = "uneven_time"
    GRADER_ERROR = "grader_error"
    ENVIRONMENT_ERROR = "environment_error"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A column of metrics.jsonl that shows whether a run is healthy."""

    key: str
    limit: float
    """Mean over the last steps beyond which an alarm is raised."""
    alarm: AlarmKind
    below: bool = False
    """Whether the alarm is raised below the limit instead of above it."""


SIGNALS: tuple[Signal, ...] = (
    # arXiv 2510.13786, section 5: 10 to 15 % truncated completions came before a collapse.
    Signal(key="rollout/truncated_frac", limit=0.10, alarm=AlarmKind.TRUNCATED),
    # A model this certain samples the same answer each time, so groups have nothing to compare. Runs that reached 0.9
    # and more on sums and products had 0.007 to 0.03 (docs/results/first_curves.md).
    Signal(key="loss/entropy", limit=0.003, below=True, alarm=AlarmKind.ENTROPY),
    # More than lag alone explains.
    Signal(key="loss/kl", limit=0.2, alarm=AlarmKind.MISMATCH),
    # An agent that has lost its tools does not find them again: what it no longer tries is not rewarded.
    Signal(key=CALLS, limit=0.25, below=True, alarm=AlarmKind.UNUSED_TOOLS),
    # A grader without a verdict on this many answers is at fault, not the answers.
    Signal(key="batch/no_verdict_frac", limit=0.05, alarm=AlarmKind.NO_VERDICT),
    # One in twenty may be an outlier; more is a fault.
    Signal(key="optim/skipped", limit=0.05, alarm=AlarmKind.SKIPPED),
    Signal(key=EMPTY, limit=0.2, alarm=AlarmKind.EMPTY),
    # Runs whose problems were nearly all solved, and no longer asked, fell (docs/results/principles.md).
    Signal(key=SOLVED, limit=0.8, alarm=AlarmKind.SOLVED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at."""

    kind: AlarmKind
    value: float | None = None
    """Mean of the signal over the last steps; of a fall, how far below its peak the reward is."""
    limit: float | None = None
    state: Literal["new", "changed", "over"] = "new"
    before: float | None = None
    """The value last reported of an alarm that has changed or is over; of a forecast that moved, its earlier ends."""
    cause: str | None = None
    """Why batches are empty, or the most frequent reason for which a grader has no verdict."""
    remedies: tuple[str, ...] = ()
    """Settings of the recipe that can help."""
    subject: str = ""
    """The evaluation set, the grader or environment at fault, or the task that has few problems left."""
    detail: str = ""
    num_answers: int = 0
    """Of a grader that gave no reward: how many answers it has seen."""
    answers: tuple[tuple[str, str], ...] = ()
    """Some of them, each with its reference."""
    ratio: float | None = None
    """The largest ratio of probabilities between learner and generator at equal weights."""
    began: float | None = None
    """Step at which it began; None where that is not known."""
    ended: float | None = None
    """Step of the last row of an alarm that is over; None while it lasts."""
    began_compute: float | None = None

    def say(self) -> Say:
        """Return it in words."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return Say(f"alarm_{self.kind}", values, Level.WHY if self.ended is not None else Level.WARNING)


def alarm_text(alarm: Alarm) -> str:
    return alarm.say().text


# The rules


def with_derived(columns: Columns) -> dict[str, Array]:
    """Add the columns that signals need and metrics.jsonl does not have."""
    derived = dict(columns)
    if (effective := columns.get("batch/effective")) is not None:
        derived[EMPTY] = np.where(np.isfinite(effective), (effective == 0).astype(float), np.nan)
    if (calls := columns.get("rollout/tool_calls_mean")) is not None and len(calls):
        most = np.fmax.accumulate(rolling_means(calls))
        with np.errstate(invalid="ignore"):
            derived[CALLS] = np.where(most >= FEWEST_CALLS, calls / most, np.nan)
    if {"rollout/lag_max", "loss/kl", "loss/ratio_max"} <= columns.keys():
        equal = columns["rollout/lag_max"] == 0
        derived[BACKEND_KL] = np.where(equal, columns["loss/kl"], np.nan)
        derived[BACKEND_RATIO] = np.where(equal, columns["loss/ratio_max"], np.nan)
    return derived


def alarms(
    columns: Columns,
    *,
    curves: Mapping[str, CurveResult | None] = MappingProxyType({}),
    evals: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    spent: Sequence[Row] = (),
    remedies: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    max_lag: float | None = np.inf,
) -> list[Alarm]:
    """Return the alarms of a run, those that are over too.

    `curves` and `evals` are by evaluation set; `spent` are rows with GPU-hours and FLOPs; `remedies` are settings of
    the recipe that can help against each kind. `max_lag` is what the recipe allows; None, where it is not known,
    stands for what was seen to be harmless.
    """
    found = signal_alarms(columns, max_lag)
    found = [replace(alarm, remedies=tuple(remedies.get(alarm.kind, ()))) for alarm in found]
    for name, rows in evals.items():
        found += overtrained(rows, name)
    for name, curve in curves.items():
        if curve is not None:
            found += fall_alarms(name, curve, columns)
    if (share := disagreement(spent)) > UNEVEN_TIME:
        found.append(Alarm(kind=AlarmKind.UNEVEN_TIME, value=share, limit=UNEVEN_TIME))
    return found


def signal_alarms(columns: Columns, max_lag: float | None) -> list[Alarm]:
    """Return an alarm for each stretch of steps in which the rolling mean of a signal lies beyond its limit."""
    columns = with_derived(columns)
    num = max((len(values) for values in columns.values()), default=0)
    steps = columns.get("step", np.arange(1.0, num + 1))
    limits = [(signal.alarm, signal.key, signal.limit, signal.below) for signal in SIGNALS]
    lag = next((key for key in ("rollout/lag_max", "rollout/lag_mean") if key in columns), "")
    limits.append((AlarmKind.LAG, lag, LAG_LIMIT if max_lag is None else max_lag, False))
    found = []
    for kind, key, limit, below in limits:
        if key not in columns:
            continue
        means = rolling_means(columns[key])
        for first, last in _stretches((means < limit) if below else (means > limit + 1e-9)):
            lasts = last == num - 1
            worst = means[first : last + 1]
            alarm = Alarm(
                kind=kind,
                value=float(means[last] if lasts else worst.min() if below else worst.max()),
                limit=limit,
                began=float(steps[first]),
                ended=None if lasts else float(steps[last]),
            )
            found.append(_with_cause(alarm, columns) if lasts else alarm)
    return [*found, *_backend_alarm(columns)]


def _with_cause(alarm: Alarm, columns: Columns) -> Alarm:
    recent = {key: values[-ALARM_STEPS:] for key, values in columns.items()}
    if alarm.kind == AlarmKind.EMPTY:
        return replace(alarm, cause=_empty_cause(recent))
    if alarm.kind == AlarmKind.NO_VERDICT:
        counts = Counter({name: float(np.nansum(recent.get(name, 0.0))) for name in NO_VERDICT})
        name, most = counts.most_common(1)[0]
        return replace(alarm, cause=name if most else None)
    if alarm.kind == AlarmKind.SOLVED:
        shares = {key: values[-1] for key, values in recent.items() if key.startswith(f"{SOLVED}/")}
        return replace(alarm, subject=max(shares, key=lambda key: shares[key]).removeprefix(f"{SOLVED}/")
                       if shares else "")  # fmt: skip
    return alarm


def _empty_cause(recent: Columns) -> str:
    empty = recent[EMPTY] == 1.0
    nothing = np.full(len(empty), np.nan)
    correct, truncated = (recent.get(key, nothing)[empty] for key in ("reward/correct_frac", "rollout/truncated_frac"))
    correct, truncated = correct[np.isfinite(correct)], truncated[np.isfinite(truncated)]
    if len(truncated) and truncated.mean() > 0.5:
        return "truncated"
    if not len(correct):
        return "no_verdict"
    return "all_wrong" if correct.max() == 0 else "all_right" if correct.min() == 1 else "mixed"


def _backend_alarm(columns: Columns) -> list[Alarm]:
    """Compare generator and learner where both have the same weights; an asynchronous run has that at its start only.

    One step is enough: it is a mean over thousands of tokens.
    """
    if BACKEND_KL not in columns or not (known := np.isfinite(columns[BACKEND_KL])).any():
        return []
    value, ratio = (columns[key][known][-ALARM_STEPS:] for key in (BACKEND_KL, BACKEND_RATIO))
    if value.mean() <= BACKEND_LIMIT:
        return []
    mean, largest = float(value.mean()), float(np.nanmax(ratio))
    return [Alarm(kind=AlarmKind.BACKEND, value=mean, limit=BACKEND_LIMIT, ratio=largest)]


def overtrained(rows: Sequence[Mapping[str, Any]], name: str) -> list[Alarm]:
    """Return the alarm if pass@1 rose while pass@k fell, for the largest k; differences are paired by problem."""
    usable, correct, num = counted(rows)
    if len(usable) < FEWEST_EVALUATIONS or num < 2 or correct.shape[1] < 2:
        return []
    k = ks_of(num)[-1]
    many, one = pass_at(correct, num, k), correct / num
    last = len(usable) - WINDOW
    peak = int(np.convolve(many.mean(axis=1), np.ones(WINDOW), mode="valid")[: last - WINDOW + 1].argmax())
    changes = []
    for values in (many, one):
        difference = values[last:].mean(axis=0) - values[peak : peak + WINDOW].mean(axis=0)
        changes.append((float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))))
    (change_k, error_k), (change_1, error_1) = changes
    if not (change_k < -SURE_FALL * error_k and change_1 > error_1):
        return []
    since = float(usable[peak + WINDOW // 2]["step"])
    values = {"value": -change_k, "before": change_1, "detail": str(k), "began": since}
    return [Alarm(kind=AlarmKind.OVERTRAINED, subject=name, **values)]


def fall_alarms(name: str, curve: CurveResult, columns: Columns) -> list[Alarm]:
    """Return the alarm of a curve that fell; it is overfitted if the training reward rose meanwhile."""
    fall = None if curve.decision is None else curve.decision.fall
    if fall is None:
        return []
    began = curve.checkpoint
    spent, steps = columns.get(curve.axis), columns.get("step")
    if spent is not None and steps is not None and len(steps):
        began = float(steps[min(int(np.searchsorted(spent, fall.last_good)), len(steps) - 1)])
    is_overfitted = began is not None and "step" in columns and _rose_since(columns, began)
    kind = AlarmKind.OVERFITTED if is_overfitted else AlarmKind.FALL
    return [Alarm(kind=kind, subject=name, value=fall.drop.value, began=began, began_compute=fall.last_good)]


def _rose_since(columns: Columns, step: float) -> bool:
    """Return whether the training reward of the last steps lies clearly above that around a step."""
    rewards = columns.get("reward/correct_frac", columns.get("reward/mean"))
    if rewards is None:
        return False
    place = int(np.searchsorted(columns["step"], step))
    parts = [rewards[max(place - ALARM_STEPS // 2, 0) : place + ALARM_STEPS // 2], rewards[-ALARM_STEPS:]]
    then, now = (part[np.isfinite(part)] for part in parts)
    if min(len(then), len(now)) < FEWEST_STEPS:
        return False
    error = np.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    return bool(now.mean() - then.mean() > SURE * error)


def moved_alarms(history: Sequence[tuple[int, float, Value]], subject: str) -> list[Alarm]:
    """Return the alarm of a forecast that has left the interval which an earlier one gave itself.

    Each row is the number of evaluations, the compute, and the forecast that was made then.
    """
    for at, (num, _, earlier) in enumerate(history[:-1]):
        is_inside = [earlier.low <= later.value <= earlier.high for _, _, later in history[at:]]
        if is_inside[-1] or not np.isfinite([earlier.low, earlier.high]).all():
            continue
        # It began after the last forecast that was still inside.
        first = at + max((place for place, inside in enumerate(is_inside) if inside), default=0) + 1
        detail = f"{earlier.low:.3f} to {earlier.high:.3f} after {num} evaluations"
        now, compute = history[-1][2].value, history[first][1]
        return [Alarm(kind=AlarmKind.FORECAST_MOVED, subject=subject, detail=detail, value=now, began_compute=compute)]
    return []


def rolling_means(values: Array) -> Array:
    """Return the mean over the last ALARM_STEPS rows at each row; NaN where fewer than FEWEST_STEPS are known."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - ALARM_STEPS, 0)
    num = count[ends] - count[begins]
    return np.where(num >= FEWEST_STEPS, (total[ends] - total[begins]) / np.maximum(num, 1), np.nan)


def _stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    yield from ((int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))


def shown(found: Sequence[Alarm]) -> list[Alarm]:
    """Return the alarms that a page shows: those that last first, then the latest of the others."""
    active = [alarm for alarm in found if alarm.ended is None]
    past = sorted((alarm for alarm in found if alarm.ended is not None), key=lambda alarm: -(alarm.ended or 0))
    return [*active, *past[:MOST_PAST]]


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
