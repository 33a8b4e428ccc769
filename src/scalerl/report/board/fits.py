"""Functions that worker processes run for the page: fit a curve, recompute its earlier forecasts, compare arms.

Each function takes values and returns plain JSON types, so that the page's process neither fits nor waits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.curves import Verdict, fit
from scalerl.logs.series import Series
from scalerl.report.board.columns import short
from scalerl.report.figures import figure_data
from scalerl.report.json import value_json
from scalerl.report.outlook import FIRST_FIT, forecast_end
from scalerl.report.results import Analysis, CurveResult, FitOptions, param_value
from scalerl.report.words import curve_text

# Numbers of points after which a forecast is kept in the history: four to a doubling.
_HISTORY = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})


def fit_curve(series: Series, end_compute: float | None, unit: str | None) -> dict[str, Any]:
    """Fit one curve; return its line and bands, its forecast, and the messages about it."""
    curve = _fitted(series)
    done = curve.fit
    at_end = None if done is None else forecast_end(done, end_compute)
    curve = replace(curve, at=() if at_end is None else (at_end,))
    (drawn,) = figure_data(Analysis(command="forecast", curves=(curve,))).curves
    fall = None if done is None else done.fall
    return {
        "verdict": curve.verdict,
        "is_ok": drawn.is_ok,
        "form": None if done is None else done.form,
        "num_points": len(series.compute),
        "level": None if done is None else done.level,
        "ceiling": value_json(param_value(done, "ceiling")) if done is not None and done.usable else None,
        "exponent": value_json(param_value(done, "exponent")) if done is not None and done.usable else None,
        "doubling": value_json(curve.doubling),
        "end": None if at_end is None else {"compute": at_end.compute, **(value_json(at_end.reward) or {})},
        "end_compute": end_compute,
        "advice": curve.advice,
        "text": curve_text(curve, unit),
        "fall": fall,
        "line": None if drawn.line is None else _line_json(drawn.line),
    }


def _fitted(series: Series) -> CurveResult:
    if series.problem or not len(series.compute):
        return CurveResult(series=series, fit=None)
    return CurveResult(series=series, fit=fit(series.compute, series.reward, **FitOptions().of(series)))


def _line_json(line: Any) -> dict[str, Any]:
    bands = {name: None if band is None else [short(edge) for edge in band]
             for name, band in (("band", line.band), ("new_band", line.new_band))}  # fmt: skip
    return {"compute": short(line.compute, 6), "reward": short(line.reward), "first": line.first, "last": line.last,
            **bands}  # fmt: skip


# The history of forecasts


def history_counts(num_points: int) -> list[int]:
    """Return after how many points a forecast is kept, all of them before the last point."""
    return [num for num in _HISTORY if FIRST_FIT <= num < num_points]


def history(series: Series, counts: Sequence[int], end_compute: float | None) -> list[dict[str, Any]]:
    """Return the forecasts that would have been made after so many points, each from those points alone."""
    return [_forecast(_first_points(series, num), num, end_compute) for num in counts]


def _first_points(series: Series, num: int) -> Series:
    return series.take(np.sort(np.argsort(series.compute, kind="stable")[:num]))


def _forecast(series: Series, num: int, end_compute: float | None) -> dict[str, Any]:
    curve = _fitted(series)
    at_end = None if curve.fit is None else forecast_end(curve.fit, end_compute)
    usable = curve.fit is not None and curve.fit.usable
    return {
        "num": num,
        "compute": float(series.compute.max()),
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        "ceiling": value_json(param_value(curve.fit, "ceiling")) if usable else None,
        "end": None if at_end is None else value_json(at_end.reward),
    }


def newest_forecast(series: Series, fitted: dict[str, Any]) -> dict[str, Any]:
    """Return the present fit as the last row of the history."""
    end = fitted["end"]
    return {
        "num": fitted["num_points"],
        "compute": float(series.compute.max(initial=0.0)),
        "verdict": fitted["verdict"],
        "is_ok": fitted["is_ok"],
        "ceiling": fitted["ceiling"],
        "end": None if end is None else {key: end[key] for key in ("value", "low", "high")},
    }
