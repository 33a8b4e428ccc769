"""One run or log on the page: its numbers, its curves with their fits, its alarms, and all of it as JSON."""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.logs.series import Series
from scalerl.report.alarms import (
    Alarm,
    evaluation_alarms,
    fall_alarms,
    listed,
    moved_alarms,
    signal_alarms,
    uneven_time_alarms,
)
from scalerl.report.board.charts import lines_json, times_json
from scalerl.report.board.columns import Array, short
from scalerl.report.board.fits import history_counts, newest_forecast
from scalerl.report.board.reading.foreign import LogReading
from scalerl.report.board.reading.run_folder import RunFollower
from scalerl.report.board.reading.sources import Source
from scalerl.report.evaluations import Overtrained
from scalerl.report.runs import flat
from scalerl.report.views import axis_label

MOST_DOTS = 600
"""Points of a curve that are sent to the page."""
MOST_CURVES = 40


@dataclass(slots=True)
class Curve:
    """One curve, and the results that workers have computed for it so far."""

    series: Series
    fingerprint: str
    """Hash of its points; a fit with another fingerprint is out of date."""
    fit: dict[str, Any] | None = None
    fitted: str = ""
    """Fingerprint and end that `fit` was made for."""
    history: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Earlier forecasts by the fingerprint of their points."""
    marks: tuple[str, list[tuple[int, str]]] = ("", [])
    """The request that the history was last computed for, and its numbers of points with their marks."""
    next_fit_at: float = 0.0
    busy: bool = False


class Followed:
    """A run folder or log with everything the page shows of it."""

    def __init__(self, source: Source, given_end: float | None) -> None:
        self.source, self._given_end = source, given_end
        self.follower = RunFollower(source) if source.kind == "run" else None
        self.columns: dict[str, Array] = {}
        self.curves: dict[str, Curve] = {}
        self.problem = "Not started yet." if source.kind == "run" else "Not read yet."
        self.kind = source.kind
        self.num_rows = 0
        self.version = 0
        self.updated_at = time.time()
        self.wanted_until = 0.0
        """Time until which a page is showing this run, so that its history is computed."""
        self.end_compute = given_end
        """Compute at the end of the budget; None where it is not known."""
        self._summary: tuple[Any, dict[str, Any]] | None = None
        """The inputs that the cached summary was made from, and the summary."""
        self._uneven_time = 0.0
        self._evals_version = -1
        self._overtrained: list[Overtrained] = []
        self._remedies: Mapping[str, tuple[str, ...]] = {}

    @property
    def is_shown(self) -> bool:
        """Whether it has anything to show: files beside a log that are not logs do not."""
        return not (self.source.quiet and self.problem and not self.curves and not self.columns)

    # Reading

    def poll(self) -> bool:
        """Read what was added to a run folder; return whether anything changed."""
        follower = self.follower
        if follower is None or not follower.poll():
            return False
        self.columns = follower.columns()
        self.num_rows = len(self.columns.get("step", ()))
        own_end = follower.end_compute(self.columns)
        self.end_compute = own_end if own_end is not None else self._given_end
        self._uneven_time = follower.uneven_time(self.columns)
        self.updated_at = follower.changed_at or time.time()
        if follower.evals_version != self._evals_version or not self.curves:
            self._evals_version = follower.evals_version
            series, self.problem = follower.series(self.columns)
            self._overtrained = follower.overtrained()
            self._take(series)
        if "rollout/truncated_frac" in self.columns and not self._remedies:
            self._remedies = follower.remedies()
        return True

    def take_log(self, reading: LogReading, changed_at: float) -> None:
        """Store what a worker read from a log that was last written to at `changed_at`."""
        self.columns = dict(reading.columns or {})
        self.kind = reading.kind or "log"
        self.num_rows = reading.num_rows
        self.problem = reading.problem
        self.updated_at = changed_at
        self._take(list(reading.series))

    def _take(self, series: list[Series]) -> None:
        before, self.curves = self.curves, {}
        for data in series[:MOST_CURVES]:
            mark = fingerprint(data)
            old = before.get(data.name)
            if old is None:
                self.curves[data.name] = Curve(series=data, fingerprint=mark)
            else:
                old.series, old.fingerprint = data, mark
                self.curves[data.name] = old

    # What workers are asked for

    @property
    def hours(self) -> str:
        """What to call the hours that devices were held."""
        return "GPU-hours" if self.follower is None else self.follower.hours

    def unit(self, curve: Curve) -> str:
        return axis_label(curve.series.x_label, self.hours)

    def fit_mark(self, curve: Curve) -> str:
        """Return what a fit depends on: the points, and the end of the budget as far as it matters."""
        return f"{curve.fingerprint} {_rounded_end(self.end_compute)}"

    def missing_history(self, curve: Curve) -> list[tuple[int, str]]:
        """Return the numbers of points whose forecasts are not known yet, each with its mark."""
        asked, end = self.fit_mark(curve), _rounded_end(self.end_compute)
        if curve.marks[0] != asked:
            counts = history_counts(len(curve.series.compute))
            curve.marks = (asked, [(num, f"{fingerprint(curve.series, num)} {end}") for num in counts])
            wanted = {mark for _, mark in curve.marks[1]}
            curve.history = {mark: row for mark, row in curve.history.items() if mark in wanted}
        return [(num, mark) for num, mark in curve.marks[1] if mark not in curve.history]

    # JSON

    def status(self) -> tuple[str, str]:
        return self.follower.status if self.follower is not None else ("log", "")

    def main_curve(self) -> Curve | None:
        curves = list(self.curves.values())
        return next((curve for curve in curves if not curve.series.problem), curves[0] if curves else None)

    def summary_json(self) -> dict[str, Any]:
        """Return the row of this run in the list of runs."""
        known = (self.version, self.source.name, self.status())
        if self._summary is None or self._summary[0] != known:
            self._summary = (known, self._make_summary())
        return self._summary[1]

    def _make_summary(self) -> dict[str, Any]:
        curve = self.main_curve()
        status, reason = self.status()
        fit = None if curve is None else curve.fit
        steps = self.columns.get("step")
        return {
            "key": self.source.key,
            "version": self.version,
            "name": self.source.name,
            "kind": self.kind,
            "study": self.source.study,
            "arm": self.source.arm,
            "seed": self.source.seed,
            "status": status,
            "reason": reason,
            "problem": self.problem,
            "step": float(steps[-1]) if steps is not None and len(steps) else None,
            "num_rows": self.num_rows,
            "updated_at": self.updated_at,
            "reward": _last_reward(curve),
            "x_label": "" if curve is None else self.unit(curve),
            "verdict": None if fit is None else fit["verdict"],
            "is_ok": fit is not None and fit["is_ok"],
            "advice": None if fit is None else fit["advice"],
            "ceiling": None if fit is None else fit["ceiling"],
            "end": None if fit is None else fit["end"],
            "num_alarms": sum(alarm.ended is None for alarm in self._alarms([] if curve is None else [curve])),
            "points": None if curve is None else _points(curve.series, 60),
            "line": None if fit is None or fit["line"] is None else _thin_line(fit["line"]),
        }

    def detail_json(self) -> dict[str, Any]:
        """Return everything the page of this run shows, besides its samples."""
        follower = self.follower
        return {
            **self.summary_json(),
            "curves": [self._curve_json(curve) for curve in self.curves.values()],
            "end_compute": self.end_compute,
            "signals": lines_json(self.columns),
            "times": times_json(self.columns, per_step=follower is None),
            "passes": [] if follower is None else follower.passes(),
            "alarms": listed(self._alarms(self.curves.values())),
            "settings": {} if follower is None else flat(follower.recipe),
            "num_samples": 0 if follower is None else len(follower.sample_offsets),
            "num_skipped": 0 if follower is None else follower.num_skipped,
            "reading": follower is not None and follower.more,
        }

    def _curve_json(self, curve: Curve) -> dict[str, Any]:
        series = curve.series
        rows = sorted(curve.history.values(), key=lambda row: row["num"])
        if curve.fit is not None and len(series.compute):
            rows.append(newest_forecast(series, curve.fit))
        return {
            "name": series.name,
            "set": series.evaluation_set or "",
            "x_label": self.unit(curve),
            "y_label": series.y_label,
            "points": _points(series, MOST_DOTS),
            "num_points": len(series.compute),
            "start": None if series.start is None else series.start,
            "problem": series.problem,
            "notes": list(series.notes),
            "fit": None if curve.fit is None else {key: each for key, each in curve.fit.items() if key != "fall"},
            "is_current": curve.fitted == self.fit_mark(curve),
            "history": rows,
        }

    def _alarms(self, curves: Iterable[Curve]) -> list[Alarm]:
        max_lag = self.follower.max_lag if self.follower is not None else None
        found = signal_alarms(self.columns, remedies=self._remedies, max_lag=max_lag)
        found += uneven_time_alarms(self._uneven_time)
        found += evaluation_alarms(self._overtrained)
        for curve in curves:
            if curve.fit is not None:
                rows = sorted(curve.history.values(), key=lambda row: row["num"])
                name = curve.series.evaluation_set or curve.series.name
                found += fall_alarms(name, curve.fit["fall"], self.columns, curve.series.x_label)
                found += moved_alarms([*rows, newest_forecast(curve.series, curve.fit)])
        return found


def fingerprint(series: Series, num: int | None = None) -> str:
    """Return a short hash of a curve's points, or of the points with the least compute."""
    order = slice(None) if num is None else np.sort(np.argsort(series.compute, kind="stable")[:num])
    start = "" if series.start is None else repr(series.start)
    content = [series.compute[order].tobytes(), series.reward[order].tobytes(), start.encode(), series.x_label.encode()]
    return hashlib.blake2b(b"|".join(content), digest_size=8).hexdigest()


def _rounded_end(end: float | None) -> str:
    """Return the end of the budget to 3 %: at an uneven pace it moves a little with each step."""
    return "" if end is None or end <= 0 else str(round(math.log(end) * 33))


def _last_reward(curve: Curve | None) -> float | None:
    if curve is None or not len(curve.series.compute):
        return None
    return float(curve.series.reward[int(np.argmax(curve.series.compute))])


def _points(series: Series, most: int) -> dict[str, Any]:
    """Return the points of a curve; of more than `most` those of evenly spread places, the last one included."""
    num = len(series.compute)
    order = np.argsort(series.compute, kind="stable")
    if num > most:
        order = order[np.unique(np.linspace(0, num - 1, most).round().astype(int))]
    runs = np.zeros(num, dtype=int) if series.run is None else np.unique(series.run, return_inverse=True)[1]
    return {
        "compute": short(series.compute[order], 6),
        "reward": short(series.reward[order]),
        "run": runs[order].tolist(),
    }


def _thin_line(line: Mapping[str, Any]) -> dict[str, Any]:
    places = range(0, len(line["compute"]), max(len(line["compute"]) // 40, 1))
    return {
        "compute": [line["compute"][place] for place in places],
        "reward": [line["reward"][place] for place in places],
        "last": line["last"],
    }
