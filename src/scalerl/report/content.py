"""A report as plain JSON types: what `--json` prints, and what the page holds and draws."""

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
    bin_rewards,
    find_note,
    note_text,
    pair_verdict,
    reward_at,
)
from scalerl.curves.forms import Array
from scalerl.logs.series import Series
from scalerl.report.caveats import open_questions, warnings
from scalerl.report.figures import curve_and_band, draw_binned
from scalerl.report.json import number, ranking_json, score_json, to_json
from scalerl.report.results import CurveResult
from scalerl.report.runs import REPORTED, RunFacts, differences, environments, hours_name
from scalerl.report.standing import Lead, labels, lead, reference
from scalerl.report.summary import summary
from scalerl.report.tables import tables
from scalerl.report.together import decisions_json, pooled_json
from scalerl.report.views import HELD_OUT, Report, View, label_of

# Times the largest compute: where forecasts are given, and where the page has expected values; between those it
# interpolates.
TARGETS = (2.0, 4.0)
LINE_POINTS = 60
NOTHING_COMPARED = Comparison(pairs=(), standings=(), shared_ceiling=None, shared_fits={})
KNOWN = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, *TARGETS, 8.0, 16.0)


def report_json(report: Report) -> dict[str, Any]:
    """Return everything that the page shows."""
    content = _report_json(report)
    return {**content, "tables": tables(content)}


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "title": report.material.title,
        "description": report.material.description,
        "form": report.options.form,
        "formula": FORMS[report.options.form].formula,
        "level": report.options.level,
        "y_label": report.series[report.axes[0].column][0].y_label,
        "summary": {name: summary(report, name) for name in report.sets},
        "warnings": warnings(report),
        "notes": list(report.notes),
        "open": {name: open_questions(report, name) for name in report.sets},
        "axes": [{"key": axis.column, "label": axis.label} for axis in report.axes],
        "windows": [{"key": window.key, "label": window.label} for window in report.windows],
        "window": report.window.key,
        "sets": [_set_json(report, name) for name in report.sets],
        "views": [_view_json(report, view) for view in report.views],
        "runs": [_run_json(run) for run in report.material.runs],
        "hours": hours_name(report.material.runs),
        "signals": [
            {"key": signal.key, "label": signal.label, "limit": signal.limit}
            for signal in REPORTED
            if any(run.signals is not None and signal.key in run.signals.values for run in report.material.runs)
        ],
        "differences": {
            "base": report.material.base or next((run.arm for run in report.material.runs), None),
            "rows": [
                {"arm": row.arm, "key": row.key, "base": row.base, "value": row.value}
                for row in differences(report.material.runs, report.material.base)
            ],
        },
        "environment": environments(report.material.runs),
        "pooled": pooled_json(report),
        "decisions": decisions_json(report),
    }


def rounded(values: Any, digits: int = 5) -> list[float | None]:
    """Return numbers rounded to `digits` significant digits; None where not finite."""
    values = np.asarray(values, dtype=float)
    known = np.isfinite(values)
    size = np.abs(np.where(known & (values != 0), values, 1.0))
    # Powers of ten that are exact: what is divided or multiplied by one is the float nearest to its decimals.
    places = np.minimum(digits - 1 - np.floor(np.log10(size)), 300)
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    results = (np.rint(np.where(known, values, 0.0) * up / down) / up * down).tolist()
    return (
        results
        if known.all()
        else [value if is_known else None for value, is_known in zip(results, known, strict=True)]
    )


def _set_json(report: Report, name: str) -> dict[str, Any]:
    members = {
        axis.column: [data for data in report.series[axis.column] if (data.evaluation_set or "") == name]
        for axis in report.axes
    }
    first, leading = members[report.axes[0].column], lead(report, name)
    return {
        "name": name,
        "lead": None if leading is None else _lead_json(leading),
        "reference": reference(report, name),
        "curves": [{"name": data.name, "label": label_of(data), "problem": data.problem} for data in first],
        "points": {
            column: {data.name: points_json(data, _held_out(report, column, data)) for data in series}
            for column, series in members.items()
        },
    }


def _lead_json(leading: Lead) -> dict[str, Any]:
    return {"kind": leading.kind, "name": leading.name, "tied": list(leading.tied), "num": leading.num}


def points_json(data: Series, held_out: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the points of a curve; a run with very many points is binned, so that the page stays small."""
    labels, runs = ([""], np.zeros(len(data.compute), dtype=int))
    if data.run is not None:
        unique, runs = np.unique(data.run, return_inverse=True)
        labels = [str(label) for label in unique]
    parts: list[tuple[int, bool, Array, Array, Array | None]] = []
    for run in range(len(labels)):
        for held in (False, True):
            mask = (runs == run) & (held_out == held)
            compute, reward = data.compute[mask], data.reward[mask]
            error = None if data.error is None else data.error[mask]
            if error is None and draw_binned(reward):
                bins = bin_rewards(compute, reward)
                compute, reward, error = bins.compute, bins.reward, bins.error
            parts.append((run, held, compute, reward, error))
    sizes = [len(compute) for _, _, compute, _, _ in parts]
    errors = [np.full(len(reward), np.nan) if error is None else error for _, _, _, reward, error in parts]
    run, held = np.repeat([run for run, *_ in parts], sizes), np.repeat([held for _, held, *_ in parts], sizes)
    compute = np.concatenate([compute for _, _, compute, _, _ in parts])
    reward = np.concatenate([reward for _, _, _, reward, _ in parts])
    order = np.lexsort((compute, run))
    return {
        "compute": rounded(compute[order], 6),
        "reward": rounded(reward[order], 5),
        "error": rounded(np.concatenate(errors)[order], 3) if any(error is not None for *_, error in parts) else None,
        "run": run[order].tolist(),
        "runs": labels,
        "held_out": np.flatnonzero(held[order]).tolist(),
        "start": number(data.start),
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
    analysis, label = to_json(view.analysis), labels(view)
    computes = [times * _largest(report, view) for times in KNOWN]
    for row, curve in zip(analysis["curves"], view.analysis.curves, strict=True):
        texts = {"verdict_text": curve.verdict, "text": " ".join(curve.messages)}
        row |= {"label": label_of(curve.series), **texts, **_fit_json(curve, computes)}
    for row, pair in zip(analysis["pairs"], view.analysis.pairs, strict=True):
        wanted = find_note(pair.notes, NoteKind.SETTLED_BY)
        row["text"] = pair_verdict(pair.kind, pair.winner, label)
        row["to_decide"] = None if wanted is None else note_text(wanted)
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
        "score": score_json(curve.holdout),
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
    return [
        {"compute": row.compute, "value": row.reward.value, "low": row.reward.low, "high": row.reward.high}
        for row in reward_at(done, computes)
    ]


def _line_json(done: Fit, computes: Sequence[float]) -> dict[str, Any]:
    """Return the curve and its band on a grid, between which the page interpolates."""
    grid = np.geomspace(min(float(done.compute.min()) / 4, computes[0]), 1.5 * computes[-1], LINE_POINTS)
    grid = np.unique(np.concatenate([grid, computes, [done.scale]]))
    value, band = curve_and_band(done, grid)
    assert band is not None
    return {"compute": rounded(grid, 6), "value": rounded(value), "low": rounded(band[0]), "high": rounded(band[1])}


def _largest(report: Report, view: View) -> float:
    """Return the largest compute of the set's curves on this axis, so that all are evaluated at the same computes."""
    series = [data for data in report.series[view.axis.column] if (data.evaluation_set or "") == view.evaluation_set]
    return max(float(data.compute.max(initial=0.0)) for data in series)


def _run_json(run: RunFacts) -> dict[str, Any]:
    signals = run.signals
    return {
        "name": run.name,
        "arm": run.arm,
        "seed": run.seed,
        "status": run.status,
        "reason": run.reason,
        "num_steps": run.num_steps,
        "cost": dict(run.cost),
        "seconds": dict(run.seconds),
        "faults": list(run.faults),
        "signals": None
        if signals is None
        else {
            "compute": {axis: rounded(values, 4) for axis, values in signals.compute.items()},
            "values": {key: rounded(values, 4) for key, values in signals.values.items()},
            "last": dict(signals.last),
        },
    }
