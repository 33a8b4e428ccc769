"""Functions that worker processes run for the page: fit a curve, and recompute its earlier forecasts.

Each takes values and returns plain JSON types, so that the page's process neither fits nor waits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.curves import Verdict
from scalerl.logs.series import Series
from scalerl.report.columns import rounded
from scalerl.report.figures import Line, figure_data
from scalerl.report.json import plain
from scalerl.report.outlook import FIRST_FIT, forecast_end
from scalerl.report.results import Analysis, CurveResult, FitOptions, curve_text, fitted_curve, param_value

FORECAST = ("num", "compute", "verdict", "is_ok", "ceiling", "end")
"""What is kept of a fit in the history of forecasts."""
# Numbers of points after which a forecast is kept: four to a doubling.
_HISTORY = sorted({round(FIRST_FIT * 2 ** (quarter / 4)) for quarter in range(60)})


def fit_curve(series: Series, end_compute: float | None, unit: str | None) -> dict[str, Any]:
    """Fit one curve; return its line and bands, its forecast, and the messages about it."""
    curve = _fitted(series, end_compute)
    done = curve.fit
    (drawn,) = figure_data(Analysis(command="forecast", curves=(curve,))).curves
    return {
        **_forecast(curve),
        "form": None if done is None else done.form,
        "num_points": len(series.compute),
        "level": None if done is None else done.level,
        "exponent": plain(param_value(done, "exponent")) if curve.usable else None,
        "doubling": plain(curve.doubling),
        "end_compute": end_compute,
        "advice": curve.advice,
        "text": curve_text(curve, unit),
        "fall": None if done is None else done.fall,
        "line": None if drawn.line is None else _line_json(drawn.line),
    }


def _fitted(series: Series, end_compute: float | None) -> CurveResult:
    """Return the curve with its forecast for the end of the budget."""
    curve = fitted_curve(series, FitOptions()) if len(series.compute) else CurveResult(series=series, fit=None)
    at_end = None if curve.fit is None else forecast_end(curve.fit, end_compute)
    return replace(curve, at=() if at_end is None else (at_end,))


def _forecast(curve: CurveResult) -> dict[str, Any]:
    return {
        "num": len(curve.series.compute),
        "compute": float(curve.series.compute.max(initial=0.0)),
        "verdict": curve.verdict,
        "is_ok": curve.verdict == Verdict.KNOWN,
        "ceiling": plain(param_value(curve.fit, "ceiling")) if curve.usable else None,
        "end": next(({"compute": at.compute, **plain(at.reward)} for at in curve.at), None),
    }


def _line_json(line: Line) -> dict[str, Any]:
    bands = {"band": line.band, "new_band": line.new_band}
    return {
        "compute": rounded(line.compute, 6),
        "reward": rounded(line.reward),
        "first": line.first,
        "last": line.last,
        **{name: None if band is None else [rounded(edge) for edge in band] for name, band in bands.items()},
    }


def history_counts(num_points: int) -> list[int]:
    """Return after how many points a forecast is kept, all of them before the last point."""
    return [num for num in _HISTORY if FIRST_FIT <= num < num_points]


def history(series: Series, counts: Sequence[int], end_compute: float | None) -> list[dict[str, Any]]:
    """Return the forecasts that would have been made after so many points, each from those points alone."""
    order = np.argsort(series.compute, kind="stable")
    return [_forecast(_fitted(series.take(np.sort(order[:num])), end_compute)) for num in counts]
