"""A report as plain JSON types: kinds and numbers for `--json`, and the words that the page adds to them."""

from typing import Any

from scalerl.curves import FORMS, NoteKind, Verdict, find_note, note_text
from scalerl.logs.series import Series
from scalerl.report.charts import lines_json
from scalerl.report.conclusions import leader, open_questions, reference, sentence, summary, warnings
from scalerl.report.decisions import decisions_json, pooled_json
from scalerl.report.figures import line_of, points_json
from scalerl.report.json import plain, ranking_json, to_json
from scalerl.report.results import curve_text
from scalerl.report.runs import Run, differences, environments, hours_name
from scalerl.report.tables import report_tables
from scalerl.report.views import HELD_OUT, TARGETS, Report, View

LINE_POINTS = 48
# Times the largest compute at which the page has exact forecasts; between those it interpolates.
KNOWN = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, *TARGETS, 8.0, 16.0)


def report_json(report: Report) -> dict[str, Any]:
    """Return kinds and numbers: what `--json` prints."""
    material = report.material
    runs = [_run_json(run) for run in material.runs]
    return {
        "title": material.title,
        "description": str(material.plan.get("description") or ""),
        "form": report.options.form,
        "formula": FORMS[report.options.form].formula,
        "level": report.options.level,
        "y_label": report.series[report.axes[0].column][0].y_label,
        "summary": {name: plain(summary(report, name)) for name in report.sets},
        "warnings": plain(warnings(report)),
        "notes": plain(report.notes),
        "open": {name: plain(open_questions(report, name)) for name in report.sets},
        "axes": [{"key": axis.column, "label": axis.label} for axis in report.axes],
        "windows": [{"key": window.key, "label": window.label} for window in report.windows],
        "window": report.window.key,
        "sets": [_set_json(report, name) for name in report.sets],
        "views": [_view_json(report, view) for view in report.views],
        "runs": runs,
        "hours": hours_name(material.runs),
        "differences": {
            "base": material.base or next((run.arm for run in material.runs), None),
            "rows": differences(material.runs, material.base),
        },
        "environment": environments(material.runs),
        "pooled": pooled_json(report),
        "decisions": decisions_json(report),
    }


def page_json(report: Report) -> dict[str, Any]:
    """Return the same in words where people read it: what the page and the Markdown show."""
    content = report_json(report)
    for row, view in zip(content["views"], report.views, strict=True):
        for curve_row, curve in zip(row["curves"], view.analysis.curves, strict=True):
            curve_row |= {"verdict_text": curve.verdict, "text": curve_text(curve, notes=curve.notes)}
        for pair_row, pair in zip(row["pairs"], view.analysis.pairs, strict=True):
            wanted = find_note(pair.notes, NoteKind.SETTLED_BY)
            pair_row["text"] = pair.verdict
            pair_row["to_decide"] = None if wanted is None else note_text(wanted)
    return {
        **content,
        "summary": {name: [sentence(fact) for fact in summary(report, name)] for name in report.sets},
        "warnings": [sentence(fact) for fact in warnings(report)],
        "notes": [sentence(fact) for fact in report.notes],
        "open": {name: [sentence(fact) for fact in open_questions(report, name)] for name in report.sets},
        "tables": [table.as_json() for table in report_tables(content)],
    }


def _set_json(report: Report, name: str) -> dict[str, Any]:
    members = {axis.column: report.members(name, axis.column) for axis in report.axes}
    first = members[report.axes[0].column]
    return {
        "name": name,
        "lead": plain(leader(report, name)),
        "reference": reference(report, name),
        "curves": [{"name": data.name, "label": data.name, "problem": data.problem} for data in first],
        "points": {
            column: {data.name: points_json(data, _held_out(report, column, data)) for data in series}
            for column, series in members.items()
        },
    }


def _held_out(report: Report, column: str, data: Series) -> set[tuple[float, float]]:
    """Return the points that the first window leaves out."""
    if all(window.key != HELD_OUT for window in report.windows):
        return set()
    curves = report.view(data.evaluation_set or "", column, HELD_OUT).analysis.curves
    held = [curve.series for curve in curves if curve.name == data.name]
    return {point for each in held for point in zip(each.holdout_compute, each.holdout_reward, strict=True)}


def _view_json(report: Report, view: View) -> dict[str, Any]:
    analysis = to_json(view.analysis)
    series = report.members(view.evaluation_set, view.axis.column)
    largest = max(float(data.compute.max(initial=0.0)) for data in series)
    computes = [times * largest for times in KNOWN]
    for row, curve in zip(analysis["curves"], view.analysis.curves, strict=True):
        row |= {"label": curve.name, "is_known": curve.verdict == Verdict.KNOWN, "line": None}
        if curve.fit is not None and curve.usable and curve.fit.has_intervals:
            begin = min(float(curve.fit.compute.min()) / 4, computes[0])
            row["line"] = line_of(curve.fit, begin, 1.5 * computes[-1], num=LINE_POINTS, at=computes).as_json()
    straight = {
        name: {**refitted.params, "first": float(refitted.compute.min()), "last": refitted.scale}
        for name, refitted in view.comparison.shared_fits.items()
    }
    del analysis["rankings"]
    keys = {"set": view.evaluation_set, "axis": view.axis.column, "window": view.window.key}
    return {**analysis, **ranking_json(view.comparison), **keys, "compared": view.is_compared, "straight": straight}


def _run_json(run: Run) -> dict[str, Any]:
    shown = ("name", "arm", "seed", "status", "reason", "num_steps", "cost", "seconds")
    more = {"faults": run.faults(), "signals": lines_json(run.columns), "passes": run.passes()}
    return {**{key: getattr(run, key) for key in shown}, **more}
