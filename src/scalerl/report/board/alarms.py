"""Compute the alarms of a run, with the step at which each began and, if it is over, ended. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.logs.axes import UNEVEN_TIME
from scalerl.report.board.columns import Array
from scalerl.report.signals import ALARM_STEPS, FEWEST_STEPS, SIGNALS, Alarm, AlarmKind
from scalerl.report.words import alarm_text

Kind = AlarmKind | Literal["lag", "forecast_moved"]

LAG_LIMIT = 8.0
"""Largest lag for which the paper found no loss (PipelineRL-8); the limit where a run does not name its own."""
MOST_PAST = 12
"""Alarms that are over, the latest ones, that the page lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One alarm, and the steps for which it lasted."""

    kind: Kind
    began: float | None
    """Step at which it began; None where only the compute is known."""
    ended: float | None
    """Step of the last row of an alarm that is over; None while it lasts."""
    value: float | None = None
    limit: float | None = None
    text: str = ""
    began_compute: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "began": self.began,
            "ended": self.ended,
            "value": self.value,
            "limit": self.limit,
            "text": self.text[:1].upper() + self.text[1:],
            "began_compute": self.began_compute,
        }


def signal_episodes(
    columns: Mapping[str, Array], *, remedies: Mapping[str, tuple[str, ...]], max_lag: float | None
) -> list[Episode]:
    """Return the alarms of signals that passed their limits, those that last first."""
    steps = columns.get("step")
    if steps is None or not len(steps):
        return []
    episodes: list[Episode] = []
    for signal in SIGNALS:
        if signal.alarm is None or signal.limit is None or signal.key not in columns:
            continue
        means = rolling_means(columns[signal.key])
        with np.errstate(invalid="ignore"):
            passed = means < signal.limit if signal.below else means > signal.limit
        for first, last in _stretches(passed):
            worst = means[first : last + 1]
            value = float(means[last] if last == len(steps) - 1 else (worst.min() if signal.below else worst.max()))
            alarm = Alarm(
                kind=signal.alarm,
                value=value,
                limit=signal.limit,
                below=signal.below,
                remedies=tuple(remedies.get(signal.alarm, ())),
            )
            episodes.append(_episode(alarm.kind, steps, first, last, value, signal.limit, alarm_text(alarm)))
    return [*episodes, *_lag_episodes(columns, steps, max_lag)]


def _episode(kind: Kind, steps: Array, first: int, last: int, value: float, limit: float, text: str) -> Episode:
    lasts = last == len(steps) - 1
    return Episode(
        kind=kind,
        began=float(steps[first]),
        ended=None if lasts else float(steps[last]),
        value=value,
        limit=limit,
        text=text,
    )


def _lag_episodes(columns: Mapping[str, Array], steps: Array, max_lag: float | None) -> list[Episode]:
    """Return alarms for the steps in which the lag was larger than the recipe, or else the paper, allows."""
    values = columns.get("rollout/lag_max", columns.get("rollout/lag_mean"))
    if values is None:
        return []
    limit = LAG_LIMIT if max_lag is None else max_lag
    means = rolling_means(values)
    with np.errstate(invalid="ignore"):
        passed = means > limit + 1e-9
    named = "pipeline.max_lag allows" if max_lag is not None else "were seen to be harmless"
    return [
        _episode(
            "lag", steps, first, last, float(means[last]), limit,
            f"answers are trained on up to {means[last]:.3g} steps after they were begun, more than the {limit:g} that "
            f"{named}: generate with fewer slots, or push weights more often",
        )
        for first, last in _stretches(passed)
    ]  # fmt: skip


def uneven_time_episode(disagreement: float) -> list[Episode]:
    """Return the alarm of a run whose GPU-hours and FLOPs disagree, which has no beginning."""
    if disagreement <= UNEVEN_TIME:
        return []
    alarm = Alarm(kind="uneven_time", value=disagreement, limit=UNEVEN_TIME)
    return [
        Episode(
            kind="uneven_time",
            began=None,
            ended=None,
            value=disagreement,
            limit=UNEVEN_TIME,
            text=alarm_text(alarm),
        )
    ]


def curve_episodes(name: str, fit: Mapping[str, Any] | None, history: Sequence[Mapping[str, Any]]) -> list[Episode]:
    """Return the alarms of a curve: that it falls, and that its forecast moved out of an earlier interval."""
    episodes: list[Episode] = []
    if fit is not None and fit["fall"] is not None:
        text = alarm_text(Alarm(kind="fall", subject=name, value=fit["drop"]))
        episodes.append(Episode(kind="fall", began=None, ended=None, text=text, began_compute=fit["fall"]))
    moved = forecast_moved(history)
    if moved is not None:
        earlier, later = moved
        what = "the end of the budget" if later["end"] is not None else "the ceiling"
        before, now = _forecast_of(earlier), _forecast_of(later)
        assert before is not None
        assert now is not None
        text = (
            f"the forecast for {what} has left the interval that it gave itself: "
            f"{now['value']:.3f} now, and {before['low']:.3f} to {before['high']:.3f} after "
            f"{earlier['num']} evaluations; trust its intervals less than they say"
        )
        episodes.append(
            Episode(
                kind="forecast_moved",
                began=None,
                ended=None,
                value=now["value"],
                text=text,
                began_compute=later["compute"],
            )
        )
    return episodes


def forecast_moved(history: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return (earlier forecast, first later one outside its interval) if the newest one is outside too."""
    rows = [row for row in history if _forecast_of(row) is not None]
    if len(rows) < 2:
        return None
    for at, earlier in enumerate(rows[:-1]):
        interval = _forecast_of(earlier)
        if interval is None or not _is_outside(rows[-1], interval):
            continue
        later = rows[at + 1 :]
        # The alarm began after the last forecast that was still inside.
        inside = [place for place, row in enumerate(later) if not _is_outside(row, interval)]
        return earlier, later[inside[-1] + 1 if inside else 0]
    return None


def _forecast_of(row: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the forecast for the end of the budget; where that is not known, the ceiling of a fit that knows it."""
    if row.get("end") is not None:
        return row["end"]
    return row.get("ceiling") if row.get("is_ok") else None


def _is_outside(row: Mapping[str, Any], interval: Mapping[str, float]) -> bool:
    value = _forecast_of(row)
    if value is None or None in (interval["low"], interval["high"]):
        return False
    return not interval["low"] <= value["value"] <= interval["high"]


def rolling_means(values: Array) -> Array:
    """Return the mean over the last ALARM_STEPS rows at each row; NaN where fewer than FEWEST_STEPS are known."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - ALARM_STEPS, 0)
    num = count[ends] - count[begins]
    return np.where(num >= FEWEST_STEPS, (total[ends] - total[begins]) / np.maximum(num, 1), np.nan)


def _stretches(flags: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, last) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def listed(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Return the alarms as the page shows them: those that last first, then the latest of the others."""
    active = [episode for episode in episodes if episode.ended is None]
    past = sorted((each for each in episodes if each.ended is not None), key=lambda each: -(each.ended or 0))
    return [episode.as_json() for episode in (*active, *past[:MOST_PAST])]
