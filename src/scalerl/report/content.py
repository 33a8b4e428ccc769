"""A report as plain JSON types: kinds and numbers for `--json`, and the words that the page adds to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import (
    FORMS,
    Comparison,
    Fit,
    NoteKind,
    Verdict,
    find_note,
    note_text,
    pair_verdict,
    reward_at,
)
from scalerl.logs.series import Series
from scalerl.report.columns import rounded
from scalerl.report.conclusions import open_questions, sentence, summary, warnings
from scalerl.report.decisions import decisions_json, pooled_json
from scalerl.report.figures import curve_and_band, dots_by_run
from scalerl.report.json import plain, ranking_json, to_json
from scalerl.report.results import CurveResult
from scalerl.report.run_folder import REPORTED, RunFolder
from scalerl.report.runs import differences, environments, hours_name
from scalerl.report.standing import labels, lead, reference
from scalerl.report.tables import report_tables
from scalerl.report.views import HELD_OUT, Report, View, label_of

# Times the largest compute: where forecasts are given, and where the page has expected values; between those it
# interpolates.
TARGETS = (2.0, 4.0)
LINE_POINTS = 60
NOTHING_COMPARED = Comparison(pairs=(), standings=(), shared_ceiling=None, shared_fits={})
KNOWN = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, *TARGETS, 8.0, 16.0)


def report_json(report: Report) -> dict[str, Any]:
    """Return kinds and numbers: what `--json` prints."""
    material = report.material
    runs = [_run_json(run) for run in material.runs]
    drawn = {key for run in runs if run["signals"] for key in run["signals"]["values"]}
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
        "signals": [
            {"key": signal.key, "label": signal.label, "limit": signal.limit}
            for signal in REPORTED
            if signal.key in drawn
        ],
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
            curve_row |= {"verdict_text": curve.verdict, "text": " ".join(curve.messages)}
        for pair_row, pair in zip(row["pairs"], view.analysis.pairs, strict=True):
            wanted = find_note(pair.notes, NoteKind.SETTLED_BY)
            pair_row["text"] = pair_verdict(pair.kind, pair.winner, labels(view))
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
        "lead": plain(lead(report, name)),
        "reference": reference(report, name),
        "curves": [{"name": data.name, "label": label_of(data), "problem": data.problem} for data in first],
        "points": {
            column: {data.name: points_json(data, _held_out(report, column, data)) for data in series}
            for column, series in members.items()
        },
    }


def points_json(data: Series, held_out: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the points of a curve; a run with very many points is binned, so that the page stays small."""
    groups = dots_by_run(data, {"fitted": ~held_out, "held out": held_out}, None)
    together = lambda values: np.concatenate([*values, np.empty(0)])  # noqa: E731
    compute, reward = together(dots.compute for dots in groups), together(dots.reward for dots in groups)
    error = together(np.full(len(dots.reward), np.nan) if dots.error is None else dots.error for dots in groups)
    run = together(np.full(len(dots.reward), dots.run) for dots in groups)
    is_held = together(np.full(len(dots.reward), dots.role == "held out") for dots in groups)
    order = np.lexsort((compute, run))
    return {
        "compute": rounded(compute[order], 6),
        "reward": rounded(reward[order]),
        "error": rounded(error[order], 3) if any(dots.error is not None for dots in groups) else None,
        "run": run[order].astype(int).tolist(),
        "runs": list(dict.fromkeys(dots.run_label for dots in groups)) or [""],
        "held_out": np.flatnonzero(is_held[order]).tolist(),
        "start": plain(data.start),
        "num_points": len(data.reward),
    }


def _held_out(report: Report, column: str, data: Series) -> NDArray[np.bool_]:
    """Return whether each point belongs to the rows named by --holdout."""
    nothing = np.zeros(len(data.reward), dtype=bool)
    if all(window.key != HELD_OUT for window in report.windows):
        return nothing
    curves = report.view(data.evaluation_set or "", column, HELD_OUT).analysis.curves
    fitted = next((curve.series for curve in curves if curve.name == data.name), None)
    if fitted is None:
        return nothing
    taken = set(zip(fitted.holdout_compute, fitted.holdout_reward, strict=True))
    return np.array([point in taken for point in zip(data.compute, data.reward, strict=True)], dtype=bool)


def _view_json(report: Report, view: View) -> dict[str, Any]:
    analysis = to_json(view.analysis)
    computes = [times * _largest(report, view) for times in KNOWN]
    for row, curve in zip(analysis["curves"], view.analysis.curves, strict=True):
        row |= {"label": label_of(curve.series), **_fit_json(curve, computes)}
    straight = {
        name: {**refitted.params, "first": float(refitted.compute.min()), "last": refitted.scale}
        for name, refitted in view.straight.items()
    }
    ranking = (analysis.pop("rankings") or [ranking_json(NOTHING_COMPARED)])[0]
    keys = {"set": view.evaluation_set, "axis": view.axis.column, "window": view.window.key}
    return {**analysis, **ranking, **keys, "compared": view.is_compared, "straight": straight}


def _fit_json(curve: CurveResult, computes: Sequence[float]) -> dict[str, Any]:
    """Return the fit, and what it expects of new evaluations at these computes, the multiples `KNOWN`."""
    done = curve.fit
    out: dict[str, Any] = {
        "score": plain(curve.holdout),
        "is_known": curve.verdict == Verdict.KNOWN,
        "params": None,
        "forecast": [],
    }
    if done is None or not done.usable or not done.has_intervals:
        return out
    return out | {
        "params": done.params,
        "first": float(done.compute.min()),
        "last": done.scale,
        "bounds": None if done.bounds is None else list(done.bounds),
        "line": _line_json(done, computes),
        "expected": _expected(done, computes),
        "forecast": _expected(
            done, [compute for times, compute in zip(KNOWN, computes, strict=True) if times in TARGETS]
        ),
    }


def _expected(done: Fit, computes: Sequence[float]) -> list[dict[str, float]]:
    return [{"compute": row.compute, **plain(row.reward)} for row in reward_at(done, computes)]


def _line_json(done: Fit, computes: Sequence[float]) -> dict[str, Any]:
    """Return the curve and its band on a grid, between which the page interpolates."""
    grid = np.geomspace(min(float(done.compute.min()) / 4, computes[0]), 1.5 * computes[-1], LINE_POINTS)
    grid = np.unique(np.concatenate([grid, computes, [done.scale]]))
    value, band = curve_and_band(done, grid)
    assert band is not None
    return {"compute": rounded(grid, 6), "value": rounded(value), "low": rounded(band[0]), "high": rounded(band[1])}


def _largest(report: Report, view: View) -> float:
    """Return the largest compute of the set's curves on this axis, so that all are evaluated at the same computes."""
    series = report.members(view.evaluation_set, view.axis.column)
    return max(float(data.compute.max(initial=0.0)) for data in series)


def _run_json(run: RunFolder) -> dict[str, Any]:
    shown = ("name", "arm", "seed", "status", "reason", "num_steps", "cost", "seconds")
    return {**{key: getattr(run, key) for key in shown}, "faults": run.faults(), "signals": run.signals()}
