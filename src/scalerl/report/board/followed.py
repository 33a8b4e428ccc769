"""One run or log on the page: its numbers, its curves with their fits, its alarms, and all of it as JSON."""

import hashlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.errors import UserError
from scalerl.logs.series import Selection, Series, series_from
from scalerl.report.alarms import Alarm, fall_alarms, listed, moved_alarms, signal_alarms
from scalerl.report.board.charts import lines_json, times_json
from scalerl.report.board.fits import FORECAST, history_counts
from scalerl.report.board.foreign import LogReading
from scalerl.report.columns import Array, rounded
from scalerl.report.json import plain
from scalerl.report.run_folder import RunFolder
from scalerl.report.sources import Source
from scalerl.report.views import axis_label

MOST_DOTS = 600
"""Points of a curve that are sent to the page."""
MOST_CURVES = 40


@dataclass(slots=True)
class Slot:
    """Something that one worker at a time is asked for, with a pause after each answer."""

    busy: bool = False
    next_at: float = 0.0


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
    slot: Slot = field(default_factory=Slot)

    def forecasts(self) -> list[dict[str, Any]]:
        """Return all forecasts by number of points, the present one last."""
        rows = sorted(self.history.values(), key=lambda row: row["num"])
        return rows if self.fit is None else [*rows, {key: self.fit[key] for key in FORECAST}]


class Followed:
    """A run folder or log with everything the page shows of it."""

    def __init__(self, source: Source, given_end: float | None) -> None:
        self.source, self._given_end = source, given_end
        self.run = RunFolder(source) if source.kind == "run" else None
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
        self.slot = Slot()
        """Of the worker that reads a log."""
        self.files: list[tuple[str, int, int]] = []
        """The files of a log as they were read last."""
        self._summary: tuple[Any, dict[str, Any]] | None = None
        """The inputs that the cached summary was made from, and the summary."""
        self._evals_version = -1
        self._own_alarms: list[Alarm] = []

    @property
    def is_shown(self) -> bool:
        """Whether it has anything to show: files beside a log that are not logs do not."""
        return not (self.source.quiet and self.problem and not self.curves and not self.columns)

    # Reading

    def poll(self) -> bool:
        """Read what was added to a run folder; return whether anything changed."""
        run = self.run
        if run is None or not run.poll():
            return False
        self.columns = run.columns
        self.num_rows = len(self.columns.get("step", ()))
        own_end = run.end_compute()
        self.end_compute = own_end if own_end is not None else self._given_end
        self.updated_at = run.changed_at or time.time()
        self._own_alarms = run.alarms()
        if run.evals_version != self._evals_version or not self.curves:
            self._evals_version = run.evals_version
            self._take_evaluations(run)
        return True

    def _take_evaluations(self, run: RunFolder) -> None:
        try:
            table, axis = run.table(), run.axis()
            series = series_from([table], Selection(x=axis if axis in table.columns else None))
            self.problem = ""
        except UserError as fault:
            series, self.problem = [], str(fault) if run.evals else "No evaluation yet."
        self._take(series)

    def take_log(self, reading: LogReading) -> None:
        """Store what a worker read from a log."""
        self.columns = dict(reading.columns or {})
        self.kind = reading.kind or "log"
        self.num_rows = reading.num_rows
        self.problem = reading.problem
        self.updated_at = max((changed for _, _, changed in self.files), default=0) / 1e9
        self._own_alarms = signal_alarms(self.columns, max_lag=None)
        self._take(list(reading.series))

    def _take(self, series: list[Series]) -> None:
        before, self.curves = self.curves, {}
        for data in series[:MOST_CURVES]:
            curve = self.curves[data.name] = before.get(data.name) or Curve(series=data, fingerprint="")
            curve.series, curve.fingerprint = data, fingerprint(data)

    # What workers are asked for

    def unit(self, curve: Curve) -> str:
        """Return what the compute of a curve is counted in."""
        return axis_label(curve.series.x_label, "GPU-hours" if self.run is None else self.run.hours)

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
        return ("log", "") if self.run is None else (self.run.status, self.run.reason)

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
        fit = (curve.fit if curve is not None else None) or {}
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
            **{key: fit.get(key) for key in ("verdict", "advice", "ceiling", "end")},
            "is_ok": bool(fit.get("is_ok")),
            "num_alarms": sum(alarm.ended is None for alarm in self._alarms([] if curve is None else [curve])),
            "points": None if curve is None else _points(curve.series, 60),
            "line": _thin_line(fit.get("line")),
        }

    def detail_json(self) -> dict[str, Any]:
        """Return everything the page of this run shows, besides its samples."""
        run = self.run
        return {
            **self.summary_json(),
            "curves": [self._curve_json(curve) for curve in self.curves.values()],
            "end_compute": self.end_compute,
            "signals": lines_json(self.columns),
            "times": times_json(self.columns, per_step=run is None),
            "passes": [] if run is None else run.passes(),
            "alarms": listed(self._alarms(self.curves.values())),
            "settings": {} if run is None else plain(run.settings),
            "num_samples": 0 if run is None else len(run.sample_offsets),
            "num_skipped": 0 if run is None else run.num_skipped,
            "reading": run is not None and run.more,
        }

    def _curve_json(self, curve: Curve) -> dict[str, Any]:
        series = curve.series
        return {
            "name": series.name,
            "set": series.evaluation_set or "",
            "x_label": self.unit(curve),
            "y_label": series.y_label,
            "points": _points(series, MOST_DOTS),
            "num_points": len(series.compute),
            "start": series.start,
            "problem": series.problem,
            "notes": list(series.notes),
            "fit": None if curve.fit is None else {key: each for key, each in curve.fit.items() if key != "fall"},
            "is_current": curve.fitted == self.fit_mark(curve),
            "history": curve.forecasts(),
        }

    def _alarms(self, curves: Iterable[Curve]) -> list[Alarm]:
        found = list(self._own_alarms)
        for curve in curves:
            if curve.fit is not None:
                name = curve.series.evaluation_set or curve.series.name
                found += fall_alarms(name, curve.fit["fall"], self.columns, curve.series.x_label)
                found += moved_alarms(curve.forecasts())
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
        "compute": rounded(series.compute[order], 6),
        "reward": rounded(series.reward[order]),
        "run": runs[order].tolist(),
    }


def _thin_line(line: dict[str, Any] | None) -> dict[str, Any] | None:
    if line is None:
        return None
    every = max(len(line["compute"]) // 40, 1)
    return {"compute": line["compute"][::every], "reward": line["reward"][::every], "last": line["last"]}
