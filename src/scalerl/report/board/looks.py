"""One look at a run, a log or a study: everything that the page shows of it. Runs in a worker process.

`memory` carries the forecasts that an earlier look has made of the same points. The rows of run folders stay in the
process that read them, so that a look reads only what was added; any process can read all of them anew.
"""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import store
from scalerl.curves import Verdict, note_text
from scalerl.errors import InputError, UserError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series
from scalerl.report.alarms import fall_alarms, listed, moved_alarms
from scalerl.report.charts import lines_json, times_json
from scalerl.report.columns import thinned
from scalerl.report.content import page_json
from scalerl.report.figures import line_to, points_json
from scalerl.report.json import curve_json, plain
from scalerl.report.outlook import FIRST_FIT, with_end
from scalerl.report.results import FitOptions, fitted_curve
from scalerl.report.runs import WAITING, Rows, Run, log_run, read_folder
from scalerl.report.samples import line_offsets
from scalerl.report.sources import Source, planned
from scalerl.report.views import axis_label, build_report

# Of files that anyone may have written.
UNFORESEEN = (OSError, MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
MAX_BYTES = 256 << 20
"""Largest log that is read: it is read as a whole whenever it grows."""
MOST_CURVES = 40
FIT_S = 0.2
"""CPU time after which a look leaves further fits to the next one; or that of reading, where it took longer."""
MOST_VALUES = 30_000_000
"""Numbers of run folders that a process keeps, to read only what is added: 8 bytes each."""
RUN_FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.SAMPLES, store.STATUS)
FORECAST = ("num", "compute", "verdict", "is_ok", "ceiling", "end")
"""What is kept of a fit in the history of forecasts."""
# Numbers of points after which a forecast is kept: four to a doubling.
_HISTORY = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})
_DEPTH, _MOST_FILES = 3, 4000
_ROWS: dict[Path, Rows] = {}
NO_BANDS = {"band": None, "new_band": None}

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
    """Its fits by the points they were made of, and the latest of each curve by its name."""
    more: bool = False
    """Whether fits are left to the next look."""
    read_s: float = 0.0
    """CPU time that it took without its fits: the longer, the longer until the next look."""

    @property
    def is_empty(self) -> bool:
        return bool(self.summary.get("problem")) and not self.detail["curves"] and not self.columns


@dataclass(slots=True, kw_only=True)
class Fits:
    """The fits of a look. What is new is shown first: its fits are made by the looks that follow, a few each."""

    memory: Json = field(default_factory=dict)
    with_history: bool = False
    fit_s: float = 0.0
    """CPU time for fits in this look."""
    used: Json = field(default_factory=dict)
    seconds: float = 0.0
    more: bool = False

    def made(self, key: str, fit: Callable[[], Json]) -> Json | None:
        """Return a fit; None where it is left to the next look."""
        if key in self.memory:
            self.used[key] = self.memory[key]
        elif self.seconds >= self.fit_s:
            self.more = True
        else:
            began = time.process_time()
            self.used[key] = fit()
            self.seconds += time.process_time() - began
        return self.used.get(key)


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
        return study_look(source, problem=problem)
    return _look(Run(source=source, kind="log", problem=problem), None, Fits())


def look_at(source: Source, end_compute: float | None, memory: Json, *, with_history: bool, has_changed: bool) -> Look:
    """Read a source; `end_compute` is the end of a budget that the run does not name itself."""
    began, fits = time.process_time(), Fits(memory=memory, with_history=with_history)
    try:
        if source.kind == "study":
            look = _look_at_study(source)
        else:
            run = _read_run(source) if source.kind == "run" else _read_log(source)
            own_end = run.end_compute()
            fits.fit_s = 0.0 if has_changed else max(FIT_S, time.process_time() - began)
            look = _look(run, end_compute if own_end is None else own_end, fits)
    except UNFORESEEN as fault:
        look = unreadable(source, f"{type(fault).__name__}: {fault}")
    return replace(look, read_s=time.process_time() - began - fits.seconds)


# Reading


def _read_run(source: Source) -> Run:
    """Read a run folder: what was added since the last look in this process, or all of it."""
    rows = _ROWS.pop(source.path, None) or Rows()
    run = read_folder(source, rows)
    _ROWS[source.path] = rows
    while sum(each.num_values for each in _ROWS.values()) > MOST_VALUES:
        del _ROWS[next(iter(_ROWS))]
    if run.problem and not run.evals:
        run.problem = "Not started yet." if run.status == WAITING else "No evaluation yet."
    return run


def _read_log(source: Source) -> Run:
    """Read a log of any known format; whatever is wrong with it is its `problem`."""
    refusal = _refusal(source)
    try:
        return Run(source=source, kind="log", problem=refusal) if refusal else log_run(source, read_table(source.path))
    except InputError as fault:
        return Run(source=source, kind="log", problem=str(fault))


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


# What the page shows


def _look(run: Run, end: float | None, fits: Fits) -> Look:
    source, columns, problem = run.source, run.columns, run.problem
    curves, alarms, all_series = [], run.alarms(), []
    try:
        all_series = [] if problem else run.series()
    except UserError as fault:
        problem = str(fault)
    for series in all_series[:MOST_CURVES]:
        row = _curve_json(series, end, axis_label(series.x_label, run.hours), fits)
        fall = None if row["fit"] is None else row["fit"].pop("fall")
        alarms += fall_alarms(series.evaluation_set or series.name, fall, columns, series.x_label)
        alarms += moved_alarms(row["history"])
        curves.append(row)
    main = next((row for row in curves if not row["problem"]), curves[0] if curves else None)
    summary = {
        "key": source.key,
        "name": source.name,
        "kind": run.kind,
        "study": source.study,
        "arm": source.arm,
        "seed": source.seed,
        "status": run.status,
        "reason": run.reason,
        "problem": problem,
        "step": float(columns["step"][-1]) if len(columns.get("step", ())) else None,
        "updated_at": max((changed for _, _, changed in files_of(source)), default=0) / 1e9,
        "num_alarms": sum(alarm.ended is None for alarm in alarms),
        **_main_json(main),
    }
    settings = plain(run.settings)
    detail = {
        "curves": curves,
        "end_compute": end,
        "signals": lines_json(columns),
        "times": times_json(columns, per_step=run.kind != "run"),
        "passes": run.passes(),
        "alarms": listed(alarms),
        "settings": settings,
        "num_samples": max(len(line_offsets(source.path / store.SAMPLES, source.root)) - 1, 0),
        "num_skipped": run.num_skipped,
    }
    shown = {name: thinned(name, values) for name, values in columns.items()}
    return Look(summary=summary, detail=detail, columns=shown, settings=settings, memory=fits.used, more=fits.more)


def _main_json(curve: Json | None) -> Json:
    """Return what the list shows of a run's first curve."""
    points = {} if curve is None else curve["points"]
    fit: Json = (None if curve is None else curve["fit"]) or {"is_ok": False}
    line = fit.get("line")
    every = max(math.ceil(len(points.get("compute", ())) / 60), 1)
    return {
        "reward": points["reward"][-1] if points.get("reward") else None,
        "x_label": "" if curve is None else curve["x_label"],
        **{key: fit.get(key) for key in ("verdict", "advice", "ceiling", "end", "is_ok")},
        # The last one too.
        "points": {key: points[key][::-1][::every][::-1] for key in ("compute", "reward", "run")} if points else None,
        "line": line and {**line, "compute": line["compute"][::3], "reward": line["reward"][::3], **NO_BANDS},
    }


def _curve_json(series: Series, end: float | None, unit: str, fits: Fits) -> Json:
    order = np.argsort(series.compute, kind="stable")
    # An end at an uneven pace moves a little with each step: to 3 % it is the same.
    about = "" if end is None or end <= 0 else str(round(math.log(end) * 33))

    def forecast(num: int) -> Json | None:
        part = series.take(np.sort(order[:num]))
        return fits.made(f"{_fingerprint(part)} {about}", partial(fit_curve, part, end, unit))

    num, name = len(series.compute), f"latest {series.name}"
    latest = forecast(num) if num else None
    # Until the new points are fitted, the curve of the earlier ones is shown.
    latest = fits.used[name] = latest or fits.memory.get(name)
    early = [forecast(size) for size in reversed(_HISTORY) if size < num and fits.with_history]
    history = {row["num"]: row for row in (*early[::-1], latest) if row}
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
        "history": [{key: row[key] for key in FORECAST} for row in history.values()],
    }


def _fingerprint(series: Series) -> str:
    """Return a short hash of a curve's points."""
    content = [series.compute.tobytes(), series.reward.tobytes(), repr(series.start).encode(), series.x_label.encode()]
    return hashlib.blake2b(b"|".join(content), digest_size=8).hexdigest()


def fit_curve(series: Series, end_compute: float | None, unit: str | None) -> Json:
    """Fit one curve; return its values, its line, its forecast for the end of the budget, and the words on it."""
    curve = with_end(fitted_curve(series, FitOptions()), end_compute)
    done, at_end, line = curve.fit, curve.at_end, line_to(curve)
    return {
        **curve_json(curve, concluded=False),
        "num": len(series.compute),
        "compute": float(series.compute.max(initial=0.0)),
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        "end": None if at_end is None else {"compute": at_end.compute, **plain(at_end.reward)},
        "level": None if done is None else done.level,
        "end_compute": end_compute,
        # What is to know of its rows is shown beside it.
        "text": " ".join(note_text(each, unit) for each in curve.conclusions) or curve.verdict,
        "fall": None if done is None else done.fall,
        "line": None if line is None else line.as_json(),
    }


# Studies


def study_look(source: Source, report: Json | None = None, problem: str = "") -> Look:
    """Return what is shown of a study: its plan and, when its arms are compared, its report."""
    description = source.plan.get("description")
    detail = {
        "description": description if isinstance(description, str) else "",
        "faults": list(source.faults),
        "report": report,
        "problem": problem,
    }
    return Look(summary={"key": source.key, "name": source.name}, detail=detail)


def _look_at_study(source: Source) -> Look:
    """Compare the arms on the study's own axis, without the views that only a finished page needs."""
    if not all(source.root.holds(Path(name)) for name, _, _ in files_of(source)):
        return study_look(source)
    try:
        return study_look(source, page_json(build_report([source.path], Selection(), FitOptions(), quick=True)))
    except UserError as error:
        return study_look(source, problem=str(error))
