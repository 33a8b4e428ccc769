"""One look at a run, a log or a study: everything that the page shows of it. Runs in a worker process.

Each look reads the files anew. `memory` carries the forecasts that an earlier look has made of the same points.
"""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import store
from scalerl.curves import Verdict
from scalerl.errors import InputError, UserError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.table import Table
from scalerl.report.alarms import Alarm, fall_alarms, listed, moved_alarms, signal_alarms
from scalerl.report.board.charts import lines_json, times_json
from scalerl.report.columns import COLUMNS, MOST_COLUMNS, Array, number, number_columns, renamed, thinned
from scalerl.report.content import page_json
from scalerl.report.figures import figure_data, points_json
from scalerl.report.files import read_lines
from scalerl.report.json import plain
from scalerl.report.outlook import FIRST_FIT, forecast_end
from scalerl.report.results import Analysis, FitOptions, curve_text, fitted_curve, param_value
from scalerl.report.run_folder import WAITING, RunFolder
from scalerl.report.samples import line_offsets
from scalerl.report.sources import Source, planned
from scalerl.report.views import axis_label, build_report

# Of files that anyone may have written.
UNFORESEEN = (OSError, MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
MAX_BYTES = 256 << 20
"""Largest log that is read: it is read as a whole whenever it grows."""
MOST_CURVES = 40
FITS_AT_ONCE = 4
"""Fits that can wait of which a look makes so many, or as many as take the time of reading; the next makes others."""
RUN_FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.SAMPLES, store.STATUS)
FORECAST = ("num", "compute", "verdict", "is_ok", "ceiling", "end")
"""What is kept of a fit in the history of forecasts."""
# Numbers of points after which a forecast is kept: four to a doubling.
_HISTORY = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})
_DEPTH, _MOST_FILES = 3, 4000
NO_BANDS = {"band": None, "new_band": None}
NOT_COMPARED = {"report": None, "problem": "", "planner": {}, "decision": ""}
"""What is shown of a study before its arms are compared."""

Json = dict[str, Any]
File = tuple[str, int, int]
"""Path, size and time of the last change in nanoseconds."""


@dataclass(slots=True, kw_only=True)
class Look:
    """What the page shows, and what the next look starts from."""

    summary: Json = field(default_factory=dict)
    """The row of the list."""
    detail: Json = field(default_factory=dict)
    """What the page of one run or study shows besides."""
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    settings: Json = field(default_factory=dict)
    memory: Json = field(default_factory=dict)
    more: bool = False
    """Whether fits are left to the next look."""
    cpu_s: float = 0.0
    """CPU time that it took, without the fits that can wait: the longer, the longer until the next look."""

    @property
    def is_empty(self) -> bool:
        return bool(self.summary["problem"]) and not self.detail["curves"] and not self.columns


@dataclass(slots=True, kw_only=True)
class Fits:
    """The fits of a look; those of an earlier look are in `memory`.

    Early forecasts can wait until new rows are shown, and in the first look all can: it lists the log.
    """

    memory: Json
    with_history: bool = False
    read_s: float = 0.0
    used: Json = field(default_factory=dict)
    num: int = 0
    seconds: float = 0.0
    """CPU time of the fits that could wait."""
    more: bool = False

    def made(self, key: str, fit: Callable[[], Json], *, is_early: bool) -> Json | None:
        """Return a fit; None where it is left to the next look."""
        can_wait = is_early or not self.memory
        began = time.process_time()
        if key in self.memory:
            self.used[key] = self.memory[key]
        elif can_wait and self.num >= FITS_AT_ONCE and self.seconds >= self.read_s:
            self.more = True
        else:
            self.used[key] = fit()
            self.num += can_wait
            self.seconds += (time.process_time() - began) * can_wait
        return self.used.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a run folder or a log holds."""

    series: Sequence[Series] = ()
    columns: Mapping[str, Array] = field(default_factory=dict)
    kind: str = "log"
    num_rows: int = 0
    problem: str = ""
    """Why there is no curve; empty where there is one."""
    run: RunFolder | None = None
    alarms: Sequence[Alarm] = ()


def files_of(source: Source) -> list[File]:
    """Return the files of a run, a log or a study: it is looked at again when they have changed."""
    path = source.path
    if source.kind == "study":
        folders = [path / store.portable(place) for *_, place in planned(source.plan)]
        names = [
            path / store.STUDY,
            path / store.DECISIONS,
            *(folder / name for folder in folders for name in RUN_FILES),
        ]
    elif source.kind == "run":
        names = [path / name for name in RUN_FILES]
    elif path.is_dir():
        names = list(_log_files(path))
    else:
        # Beside a database lies what SQLite has not moved into it yet.
        names = [path, *([f"{path}-wal"] if path.suffix == ".db" else [])]
    files = []
    for name in names:
        with suppress(OSError):
            status = os.stat(name)
            files.append((str(name), status.st_size, status.st_mtime_ns))
    return sorted(files)


def _log_files(path: Path) -> Iterator[str]:
    """Yield what may be part of a log in a folder, by name; weights and optimizer states are not."""
    num = 0
    for folder, folders, inside in os.walk(path):
        depth = len(Path(folder).relative_to(path).parts)
        folders[:] = [each for each in folders if depth < _DEPTH and not each.startswith(".")]
        for name in inside:
            if "tfevents" in name or name.endswith((".json", ".jsonl", ".wandb", ".log", ".csv", ".db")):
                yield os.path.join(folder, name)
                num += 1
        if num >= _MOST_FILES:
            return


def unreadable(source: Source, fault: str) -> Look:
    """Return what is shown of something that cannot be read."""
    problem = f"{source.name} cannot be read: {fault}."
    if source.kind == "study":
        return Look(detail=NOT_COMPARED | {"problem": problem})
    return _look(source, Reading(problem=problem), None, Fits(memory={}))


def look_at(source: Source, end_compute: float | None, with_history: bool, memory: Json) -> Look:
    """Read a source; `end_compute` is the end of a budget that the run does not name itself."""
    began, fits = time.process_time(), Fits(memory=memory, with_history=with_history)
    try:
        if source.kind == "study":
            look = _look_at_study(source)
        else:
            reading = _read_run(source) if source.kind == "run" else _read_log(source)
            own_end = None if reading.run is None else reading.run.end_compute()
            fits.read_s = time.process_time() - began
            look = _look(source, reading, end_compute if own_end is None else own_end, fits)
    except UNFORESEEN as fault:
        look = unreadable(source, f"{type(fault).__name__}: {fault}")
    return replace(look, cpu_s=time.process_time() - began - fits.seconds)


# Reading


def _read_run(source: Source) -> Reading:
    run = RunFolder(source)
    series, problem = [], ""
    try:
        table, axis = run.table(), run.axis()
        series = series_from([table], Selection(x=axis if axis in table.columns else None))
    except UserError as fault:
        waiting = "Not started yet." if run.status == WAITING else "No evaluation yet."
        problem = str(fault) if run.evals else waiting
    num = len(run.columns.get("step", ()))
    return Reading(
        series=series, columns=run.columns, kind="run", num_rows=num, problem=problem, run=run, alarms=run.alarms()
    )


def _read_log(source: Source) -> Reading:
    """Read a log of any known format; whatever is wrong with it is its `problem`."""
    if refusal := _refusal(source):
        return Reading(problem=refusal)
    try:
        table = read_table(source.path)
    except InputError as fault:
        return Reading(problem=str(fault))
    columns, series, problem = _columns(table), [], ""
    try:
        series = series_from([table], Selection())
    except InputError as fault:
        problem = str(fault)
    alarms = signal_alarms(columns, max_lag=None)
    num = len(table)
    return Reading(series=series, columns=columns, kind=table.kind, num_rows=num, problem=problem, alarms=alarms)


def _refusal(source: Source) -> str:
    """Return why a log is not read; empty where it may be."""
    files = files_of(source)
    if any(not source.root.holds(Path(name)) for name, _, _ in files):
        return f"{source.name} is not read: it holds a link to a file outside the folder that was named."
    if not source.path.is_dir() and not source.path.is_file():
        return f"{source.name} is not read: it is not a regular file."
    size = sum(size for _, size, _ in files)
    if size > MAX_BYTES:
        return (
            f"{source.name} is {size / 1e6:,.0f} MB long and is not followed: logs of up to {MAX_BYTES / 1e6:,.0f} MB "
            "are. Cut it, or use scalerl forecast."
        )
    return ""


def _columns(table: Table) -> dict[str, Array]:
    """Return the numbers of a log, the usual ones under our names, one entry per training step, in order of steps.

    The row number is the step in a log without a column of steps; rows whose step is missing are skipped.
    """
    names = renamed(table.columns)
    step_column = names.pop("step", table.step)
    taken = {*names.values(), step_column, *COLUMNS}
    shown = {**names, **{name: name for name in [each for each in table.columns if each not in taken][:MOST_COLUMNS]}}
    shown.pop("attempt", None)
    by_step: dict[float, dict[str, float]] = {}
    for place, row in enumerate(table.rows):
        step = float(place) if step_column is None else number(row.get(step_column))
        values = {key: number(row.get(name)) for key, name in shown.items()}
        known = {key: value for key, value in values.items() if not math.isnan(value)}
        if known and not math.isnan(step):
            # A trainer may write several rows for one step, such as one of the losses and one of the times.
            by_step.setdefault(step, {}).update(known)
    return number_columns({"step": step, **by_step[step]} for step in sorted(by_step))


# What the page shows


def _look(source: Source, reading: Reading, end: float | None, fits: Fits) -> Look:
    run, columns = reading.run, reading.columns
    curves, alarms = [], list(reading.alarms)
    for series in reading.series[:MOST_CURVES]:
        unit = axis_label(series.x_label, "GPU-hours" if run is None else run.hours)
        row = _curve_json(series, end, unit, fits)
        fall = None if row["fit"] is None else row["fit"].pop("fall")
        alarms += fall_alarms(series.evaluation_set or series.name, fall, columns, series.x_label)
        alarms += moved_alarms(row["history"])
        curves.append(row)
    main = next((row for row in curves if not row["problem"]), curves[0] if curves else None)
    summary = {
        "key": source.key,
        "name": source.name,
        "kind": reading.kind,
        "study": source.study,
        "arm": source.arm,
        "seed": source.seed,
        "status": "log" if run is None else run.status,
        "reason": "" if run is None else run.reason,
        "problem": reading.problem,
        "step": float(columns["step"][-1]) if len(columns.get("step", ())) else None,
        "num_rows": reading.num_rows,
        "updated_at": max((changed for _, _, changed in files_of(source)), default=0) / 1e9,
        "num_alarms": sum(alarm.ended is None for alarm in alarms),
        **_main_json(main),
    }
    detail = {
        "curves": curves,
        "end_compute": end,
        "signals": lines_json(columns),
        "times": times_json(columns, per_step=run is None),
        "passes": [] if run is None else run.passes(),
        "alarms": listed(alarms),
        "settings": {} if run is None else plain(run.settings),
        "num_samples": 0 if run is None else max(len(line_offsets(source.path / store.SAMPLES, source.root)) - 1, 0),
        "num_skipped": 0 if run is None else run.num_skipped,
    }
    shown = {name: thinned(name, values) for name, values in columns.items()}
    kept = {"memory": fits.used, "more": fits.more}
    return Look(summary=summary, detail=detail, columns=shown, settings=detail["settings"], **kept)


def _main_json(curve: Json | None) -> Json:
    """Return what the list shows of a run's first curve."""
    if curve is None or curve["fit"] is None:
        return {"reward": None, "x_label": "", "is_ok": False, "points": None, "line": None,
                **dict.fromkeys(("verdict", "advice", "ceiling", "end"))}  # fmt: skip
    points, fit, line = curve["points"], curve["fit"], curve["fit"]["line"]
    every = max(math.ceil(len(points["compute"]) / 60), 1)
    return {
        "reward": points["reward"][-1],
        "x_label": curve["x_label"],
        **{key: fit[key] for key in ("verdict", "advice", "ceiling", "end", "is_ok")},
        # The last one too.
        "points": {key: points[key][::-1][::every][::-1] for key in ("compute", "reward", "run")},
        "line": line and {**line, "compute": line["compute"][::3], "reward": line["reward"][::3], **NO_BANDS},
    }


def _curve_json(series: Series, end: float | None, unit: str, fits: Fits) -> Json:
    order = np.argsort(series.compute, kind="stable")
    # An end at an uneven pace moves a little with each step: to 3 % it is the same.
    about = "" if end is None or end <= 0 else str(round(math.log(end) * 33))

    def forecast(num: int, *, is_early: bool) -> Json | None:
        part = series.take(np.sort(order[:num]))
        return fits.made(f"{_fingerprint(part)} {about}", partial(fit_curve, part, end, unit), is_early=is_early)

    num = len(series.compute)
    latest = forecast(num, is_early=False) if num else None
    early = [forecast(size, is_early=True) for size in reversed(_HISTORY) if size < num and fits.with_history]
    return {
        "name": series.name,
        "set": series.evaluation_set or "",
        "x_label": unit,
        "y_label": series.y_label,
        "points": points_json(series),
        "num_points": num,
        "start": series.start,
        "problem": series.problem,
        "notes": list(series.notes),
        "fit": dict(latest) if latest else None,
        "history": [{key: row[key] for key in FORECAST} for row in (*early[::-1], latest) if row],
    }


def _fingerprint(series: Series) -> str:
    """Return a short hash of a curve's points."""
    content = [series.compute.tobytes(), series.reward.tobytes(), repr(series.start).encode(), series.x_label.encode()]
    return hashlib.blake2b(b"|".join(content), digest_size=8).hexdigest()


def fit_curve(series: Series, end_compute: float | None, unit: str | None) -> Json:
    """Fit one curve; return its line and bands, its forecast for the end of the budget, and the words on it."""
    curve = fitted_curve(series, FitOptions())
    done = curve.fit
    at_end = None if done is None else forecast_end(done, end_compute)
    curve = replace(curve, at=() if at_end is None else (at_end,))
    (drawn,) = figure_data(Analysis(command="forecast", curves=(curve,))).curves
    params = {name: plain(param_value(done, name)) if curve.usable else None for name in ("ceiling", "exponent")}
    return {
        "num": len(series.compute),
        "compute": float(series.compute.max(initial=0.0)),
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        **params,
        "end": None if at_end is None else {"compute": at_end.compute, **plain(at_end.reward)},
        "form": None if done is None else done.form,
        "level": None if done is None else done.level,
        "doubling": plain(curve.doubling),
        "end_compute": end_compute,
        "advice": curve.advice,
        "text": curve_text(curve, unit),
        "fall": None if done is None else done.fall,
        "line": None if drawn.line is None else drawn.line.as_json(),
    }


# Studies


def _look_at_study(source: Source) -> Look:
    """Compare the arms on the study's own axis, without the views that only a finished page needs."""
    report, problem = None, ""
    if all(source.root.holds(Path(name)) for name, _, _ in files_of(source)):
        try:
            report = page_json(build_report([source.path], Selection(), FitOptions(), quick=True))
        except UserError as error:
            problem = str(error)
    decision = next(
        (row for _, row in reversed([*read_lines(source.path / store.DECISIONS, source.root)]) if row is not None), {}
    )
    words = {"planner": planner_words(decision), "decision": str(decision.get("kind") or "")}
    return Look(detail={"report": report, "problem": problem, **words})


def planner_words(decision: Mapping[str, Any]) -> dict[str, str]:
    """Return what the policy of a study knew about each arm at its last decision; empty for a study without one."""
    known = decision.get("known")
    rows = known.get("arms") if isinstance(known, Mapping) else None
    words: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
            continue
        parts = [str(row["action"])] if row.get("action") else []
        if (p_best := number(row.get("p_best"))) == p_best:
            parts.append(f"P(best) at the target {p_best:.2f}")
        if row["name"] == (known or {}).get("favourite"):
            parts.append("the favourite")
        if row["name"] == decision.get("arm"):
            until = number(decision.get("until"))
            parts.append("given compute next" + (f", until {until:.0%} of its budget" if until == until else ""))
        words[row["name"]] = ", ".join(parts)
    return words
