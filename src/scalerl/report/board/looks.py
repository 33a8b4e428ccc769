"""What the board shows of a run, a log or a study: a report on it, which workers make in two parts.

`look_at` reads what its files say and reports on it without fits, whenever they change. `conclude` makes the fits,
whenever the points change. `shown` puts both together: until new points are fitted, the curve of the earlier ones is
drawn. A worker keeps the rows of the runs that it has read and reads what was added; any other can read all of them.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import store
from scalerl.curves import Verdict
from scalerl.errors import InputError, UserError
from scalerl.logs.series import Selection, Series
from scalerl.report.alarms import fall_alarms, listed, moved_alarms
from scalerl.report.metrics import thinned
from scalerl.report.content import page_json, run_json
from scalerl.report.inputs import material_of
from scalerl.report.json import picked, plain
from scalerl.report.outlook import FIRST_FIT, with_end
from scalerl.report.results import CurveResult, FitOptions, fitted_curve, not_fitted, param_value
from scalerl.report.runs import WAITING, Rows, Run, log_columns, new_rows, num_values, read_source
from scalerl.report.samples import lines_of
from scalerl.report.sources import Source, planned
from scalerl.report.views import Report, report_on

# Of files that anyone may have written.
UNFORESEEN = (OSError, MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
MAX_BYTES = 256 << 20
"""Largest log that is read: it is read as a whole whenever it grows."""
MOST_CURVES = 40
"""Curves of one log that are fitted."""
MOST_VALUES = 30_000_000
"""Numbers of run folders that a process keeps, to read only what is added: 8 bytes each."""
RUN_FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.SAMPLES, store.STATUS)
CONCLUDED = ("views", "summary", "open", "notes", "window")
"""Parts of a report that need fits."""
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
    """What the files of a source say."""

    summary: Json
    """The row of the list."""
    report: Json | None = None
    """Without fits; None where there is nothing to report on yet."""
    detail: Json = field(default_factory=dict)
    """What the page shows besides."""
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    settings: Json = field(default_factory=dict)
    key: str = ""
    """Changes with the points of the curves, and with the end of the budget: fits are made anew then."""

    @property
    def is_empty(self) -> bool:
        return self.report is None and not self.columns


def files_of(source: Source) -> list[File]:
    """Return the files of a run, a log or a study: it is looked at again when they have changed."""
    path = source.path
    if source.kind == "study":
        runs = planned(path, source.plan, source.root)
        names = [path / store.STUDY, path / store.DECISIONS, *(run.path / name for run in runs for name in RUN_FILES)]
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


# Reading


def look_at(source: Source, end_compute: float | None) -> Look:
    """Read a source; `end_compute` is the end of a budget that the run does not name itself."""
    try:
        runs, report, problem = _runs(source), None, ""
        try:
            report = _report(source, runs, not_fitted)
        except UserError as fault:
            problem = str(fault)
        return make_look(source, runs, report, problem, _end_of(runs, end_compute))
    except UNFORESEEN as fault:
        return unreadable(source, f"{type(fault).__name__}: {fault}")


def unreadable(source: Source, fault: str) -> Look:
    """Return what is shown of something that cannot be read."""
    return make_look(source, [Run(source=source, kind="log")], problem=f"{source.name} cannot be read: {fault}.")


def _runs(source: Source) -> list[Run]:
    if source.kind == "study":
        return [] if _refusal(source) else [_read(run) for run in planned(source.path, source.plan, source.root)]
    return [_read(source)]


def _report(source: Source, runs: list[Run], fitted: Callable[[Series, FitOptions], CurveResult]) -> Report:
    """Report on a source; UserError says why that cannot be done."""
    if source.kind == "study":
        material = material_of(runs, source.name, source.path, source.plan)
        return report_on(material, Selection(), FitOptions(), quick=True, fitted=fitted)
    if runs[0].problem:
        raise InputError(runs[0].problem)
    material = material_of(runs, source.name)
    axis = runs[0].axis() if runs[0].is_folder else None
    selection = Selection(x=axis if axis and axis in material.tables[0].frame else None)
    return report_on(material, selection, FitOptions(), quick=True, fitted=fitted, compare=False)


def _read(source: Source) -> Run:
    """Read a run or a log; of a run folder, what was added since the last time in this process."""
    if source.kind == "log":
        refusal = _refusal(source)
        run = Run(source=source, kind="log", problem=refusal) if refusal else read_source(source)
        run.columns = {} if run.log is None else log_columns(run.log)
        return run
    rows = _ROWS.pop(source.path, None) or new_rows(source)
    run = read_source(source, rows)
    _ROWS[source.path] = rows
    while sum(map(num_values, _ROWS.values())) > MOST_VALUES:
        del _ROWS[next(iter(_ROWS))]
    if run.problem and not run.evals:
        run.problem = "Not started yet." if run.status == WAITING else "No evaluation yet."
    return run


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


def _end_of(runs: list[Run], end_compute: float | None) -> float | None:
    own = runs[0].end_compute() if len(runs) == 1 else None
    return end_compute if own is None else own


def _key(report: Report, end: float | None) -> str:
    series = [data for own in report.series.values() for data in own]
    return " ".join([*(f"{data.name} {_fingerprint(data)}" for data in series), _about(end)])


def _fingerprint(series: Series) -> str:
    """Return a short hash of a curve's points."""
    content = [series.compute.tobytes(), series.reward.tobytes(), repr(series.start).encode(), series.x_label.encode()]
    return hashlib.blake2b(b"|".join(content), digest_size=8).hexdigest()


def _about(end: float | None) -> str:
    """Return the end of a budget to 3 %: at an uneven pace it moves a little with each step."""
    return "" if end is None or end <= 0 else str(round(math.log(end) * 33))


def make_look(
    source: Source, runs: list[Run], report: Report | None = None, problem: str = "", end: float | None = None
) -> Look:
    content = None if report is None else page_json(report)
    summary = {"key": source.key, "name": source.name, "problem": problem}
    look = Look(summary=summary, report=content, key="" if report is None else _key(report, end))
    if source.kind == "study":
        description = source.plan.get("description")
        look.detail = {"description": description if isinstance(description, str) else "", "faults": source.faults}
        return look
    (run,) = runs
    steps, look.settings = run.columns.get("step", np.empty(0)), plain(run.settings)
    look.columns = {name: thinned(name, values) for name, values in run.columns.items()}
    look.detail = {
        "run": content["runs"][0] if content is not None and content["runs"] else run_json(run),
        "end_compute": end,
        "settings": look.settings,
        "num_samples": len(lines_of(source.path / store.SAMPLES, source.root)),
    }
    look.summary |= {
        **picked(source, "study", "arm", "seed"),
        **picked(run, "kind", "status", "reason", "counted"),
        "step": float(steps[-1]) if len(steps) else None,
        "updated_at": max((changed for _, _, changed in files_of(source)), default=0) / 1e9,
        **_main_json(report, content, end),
    }
    return look


def _main_json(report: Report | None, content: Json | None, end: float | None) -> Json:
    """Return what the list shows of the first curve that can be used."""
    nothing = {"reward": None, "x_label": "", "verdict": "", "is_ok": False, "points": None}
    if report is None or content is None:
        return {**nothing, **dict.fromkeys(("advice", "ceiling", "end", "line"))}
    view, curves = report.view(), report.view().analysis.curves
    place = next((at for at, curve in enumerate(curves) if not curve.series.problem), 0)
    curve, points = curves[place], content["sets"][0]["points"][view.axis.column][curves[place].name]
    line = next(each for each in content["views"] if each["window"] == view.window.key)["curves"][place]["line"]
    every = max(math.ceil(len(points["compute"]) / 60), 1)
    return {
        "reward": points["reward"][-1] if points["reward"] else None,
        "x_label": view.axis.label,
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        "advice": str(curve.advice),
        **_forecast(curve, end),
        # The last one too.
        "points": {key: points[key][::-1][::every][::-1] for key in ("compute", "reward", "run")},
        "line": line and {**line, **NO_BANDS},
    }


# Fits


def conclude(source: Source, end_compute: float | None, known: Json, *, with_history: bool) -> Json | None:
    """Fit the curves of a source; None where there are none. `known` has the earlier forecasts of its history."""
    numbers = count(1)

    def fitted(data: Series, options: FitOptions) -> CurveResult:
        is_one_too_many = source.kind == "log" and next(numbers) > MOST_CURVES
        return not_fitted(data, options) if is_one_too_many else fitted_curve(data, options)

    try:
        runs = _runs(source)
        report = _report(source, runs, fitted)
        content, end = page_json(report), _end_of(runs, end_compute)
        curves = [curve for view in map(report.view, report.sets) for curve in view.analysis.curves]
        history, alarms = {}, []
        for curve in curves if source.kind != "study" else ():
            rows = history[_name(curve)] = _history(curve, end, known) if with_history else []
            subject = curve.series.evaluation_set or curve.name
            alarms += [*fall_alarms(subject, curve.fit.fall, runs[0].columns, curve.axis), *moved_alarms(rows)]
        return {
            "report": {name: content[name] for name in CONCLUDED},
            "sets": [{key: each[key] for key in ("lead", "reference", "curves")} for each in content["sets"]],
            "main": {} if source.kind == "study" else _main_json(report, content, end),
            "alarms": listed(alarms),
            "history": history,
            "known": known,
        }
    except (UserError, *UNFORESEEN):
        return None


def _name(curve: CurveResult) -> str:
    return f"{curve.series.evaluation_set or ''}/{curve.name}"


def _history(curve: CurveResult, end: float | None, known: Json) -> list[Json]:
    """Return how the forecast moved: what it was after some numbers of points, and now."""
    series, rows = curve.series, []
    order = np.argsort(series.compute, kind="stable")
    for num in [num for num in _HISTORY if num < len(order)]:
        part = series.take(np.sort(order[:num]))
        key = f"{_fingerprint(part)} {_about(end)}"
        known[key] = known.get(key) or _forecast_row(fitted_curve(part, FitOptions()), end)
        rows.append(known[key])
    return [*rows, _forecast_row(curve, end)]


def _forecast_row(curve: CurveResult, end: float | None) -> Json:
    return {
        "num": len(curve.series.compute),
        "compute": float(curve.series.compute.max(initial=0.0)),
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        **_forecast(curve, end),
    }


def _forecast(curve: CurveResult, end: float | None) -> Json:
    at_end = with_end(curve, end).at_end
    return {
        "ceiling": plain(param_value(curve.fit, "ceiling")),
        "end": None if at_end is None else {"compute": at_end.compute, **plain(at_end.reward)},
    }


# Both together


def shown(look: Look, fits: Json | None) -> tuple[Json, Json]:
    """Return the row of the list, and all that the page shows."""
    report, summary, history = look.report, look.summary, {}
    if report is not None and fits is not None and fits["sets"] and _curves(report["sets"]) == _curves(fits["sets"]):
        sets = [{**now, **then} for now, then in zip(report["sets"], fits["sets"], strict=True)]
        report = {**report, **fits["report"], "sets": sets}
        now = {key: summary[key] for key in ("reward", "points") if key in summary}
        summary, history = {**summary, **fits["main"], **now}, fits["history"]
    detail = {**look.detail, "report": report, "history": history}
    if "run" in detail:
        alarms = [*(fits or {"alarms": []})["alarms"], *detail["run"]["alarms"]]
        detail["run"] = {**detail["run"], "alarms": alarms}
        summary = {**summary, "num_alarms": sum(alarm["ended"] is None for alarm in alarms)}
        detail["report"] = report and {**report, "runs": [detail["run"]]}
    return summary, {**summary, **detail}


def _curves(sets: list[Json]) -> list[list[str]]:
    return [[curve["name"] for curve in each["curves"]] for each in sets]
