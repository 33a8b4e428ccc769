"""What charts show, as numbers. Pure: the picture and the page only draw it."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import Fit, linearise, tails
from scalerl.curves.data import block_means
from scalerl.logs.series import Series
from scalerl.report.document import Curves, Dots, Drawn, Level, Line, say
from scalerl.report.results import CurveResult

Role = Literal["fitted", "left out", "held out"]

MOST_DOTS = 300  # points of one run that are drawn one by one
MOST_QUANTISED = 100  # and of rewards that take few values: rows of points that hide each other
FEW_VALUES = 0.25  # distinct rewards over points, below which rewards count as quantised
MOST_BANDS = 8  # bands of more curves than this hide each other
REACH = 4.0  # how far beyond the data a curve is drawn, in multiples of the data
MOST_REACH = 100.0  # a mark further out than this would squeeze the data into a corner
NUM_PLACES = 60
DIFFERENT_UNITS = "compute (different units)"


def dots_of(series: Series, roles: Mapping[Role, NDArray[np.bool_]] | None = None) -> Dots:
    """Return the points of a series, each with the role whose mask holds it, and those held out."""
    roles = {"fitted": np.ones(len(series.compute), dtype=bool)} if roles is None else roles
    runs, labels = np.zeros(len(series.compute), dtype=int), [""]
    if series.run is not None:
        unique, runs = np.unique(series.run, return_inverse=True)
        labels = [str(label) for label in unique]
    groups = [(role, run, mask & (runs == run)) for run, (role, mask) in product(range(len(labels)), roles.items())]
    parts = [(role, run, series.compute[which], series.reward[which]) for role, run, which in groups]
    rows = []
    for role, run, compute, reward in [*parts, ("held out", 0, series.holdout_compute, series.holdout_reward)]:
        error = np.full(len(reward), np.nan)
        is_quantised = len(np.unique(reward)) < FEW_VALUES * len(reward)
        if len(reward) > (MOST_QUANTISED if is_quantised else MOST_DOTS):
            compute, reward, error, _ = block_means(compute, reward)
        rows.append((compute, reward, error, np.full(len(reward), run), np.full(len(reward), role)))
    compute, reward, error, run, role = (np.concatenate(values) for values in zip(*rows, strict=True))
    order = np.lexsort((run, compute))
    picked = {"compute": compute, "reward": reward, "error": error, "run": run, "role": role}
    return Dots(runs=tuple(labels), **{name: values[order] for name, values in picked.items()})


def roles_of(curve: CurveResult) -> dict[Role, NDArray[np.bool_]]:
    """Return which points were fitted, with a tolerance for rounding."""
    compute, fit = curve.series.compute, curve.fit
    first, last = (fit.compute.min(), fit.scale) if fit.num_points else (np.inf, -np.inf)
    left_out = (compute < first * (1 - 1e-9)) | (compute > last * (1 + 1e-9))
    return {"left out": left_out, "fitted": ~left_out}


def line_of(fit: Fit, begin: float, end: float, *, num: int = NUM_PLACES, bands: bool = True) -> Line:
    """Return the curve of a fit between two computes, on a grid that holds the ends of its data."""
    first, last = float(fit.compute.min()), fit.scale
    grid = np.unique(np.concatenate([np.geomspace(begin, end, num), [first, last]]))
    if not fit.has_intervals:
        return Line(compute=grid, reward=fit.predict(grid), first=first, last=last)
    tail = tails(fit.level)
    low, middle, high = np.quantile(fit.curve_draws(grid), [tail[0], 0.5, tail[1]], axis=0)
    band, new_band = ((low, high), fit.new_interval(grid)) if bands else (None, None)
    return Line(compute=grid, reward=middle, first=first, last=last, band=band, new_band=new_band)


def end_of(curve: CurveResult) -> float:
    """Return the compute up to which a curve is drawn: beyond the data, and to any point held out or asked for."""
    series, data = curve.series, curve.fit.scale
    asked = [each.compute for each in curve.at]
    asked += [each.compute.value for each in curve.reach if each.compute is not None]
    asked = [compute for compute in asked if compute <= MOST_REACH * data]
    return float(max(REACH * data, series.compute.max(initial=0.0), series.holdout_compute.max(initial=0.0), *asked))


def chart(
    curves: Sequence[CurveResult],
    key: str,
    *,
    at: float | None = None,
    num: int = NUM_PLACES,
) -> Curves:
    """Return the chart of curves; those on one axis are drawn to one end, since they differ by their curves."""
    units, labels = ({getattr(curve, name) for curve in curves} for name in ("unit", "y"))
    end = max([*(end_of(curve) for curve in curves), at or 0.0]) if len(units) < 2 else 0.0
    bands = len(curves) <= MOST_BANDS
    x_label = next(iter(units)) if len(units) == 1 else DIFFERENT_UNITS
    drawn = []
    for place, curve in enumerate(curves):
        line = None
        if curve.usable:
            series = curve.series
            begin = min(float(each.min(initial=np.inf)) for each in (series.compute, series.holdout_compute))
            line = line_of(curve.fit, begin, max(end, end_of(curve)), num=num, bands=bands)
        dots = dots_of(curve.series, roles_of(curve))
        drawn.append(Drawn(name=curve.name, dots=dots, line=line, colour=place, marks=marks_of(curve)))
    note = say("chart_note", level=curves[0].fit.level, has_bands=bands)
    y_label = labels.pop() if len(labels) == 1 else "reward"
    return Curves(key=key, drawn=tuple(drawn), x_label=x_label, y_label=y_label, at=at, note=note)


def marks_of(curve: CurveResult) -> tuple[tuple[float, float], ...]:
    """Return (compute, reward) of the forecasts that were asked for, and of the last evaluation before a fall."""
    marks = [(each.compute, each.reward.value) for each in curve.at]
    marks += [(each.compute.value, each.reward) for each in curve.reach if each.compute is not None]
    fall = None if curve.decision is None else curve.decision.fall
    marks += [] if fall is None else [(fall.last_good, fall.peak)]
    return tuple((compute, reward) for compute, reward in marks if 0 < compute <= MOST_REACH * curve.fit.scale)


def straight_chart(fits: Mapping[str, Fit], colours: Mapping[str, int], unit: str, ceiling: float) -> Curves:
    """Return log F against compute at one ceiling: a straight line of slope B where the sigmoid holds."""
    drawn = []
    for name, fit in fits.items():
        x, y = linearise(fit)
        ends = np.array([fit.compute.min(), fit.scale])
        height = fit.params["exponent"] * np.log10(ends)
        line = Line(compute=ends, reward=height, first=float(ends[0]), last=float(ends[1]))
        inside = y / np.log(10) <= height[1] + 0.3 * np.ptp(height)
        dots = Dots(
            compute=np.exp(x[inside]),
            reward=y[inside] / np.log(10),
            error=np.full(inside.sum(), np.nan),
            run=np.zeros(inside.sum(), dtype=int),
            role=np.full(inside.sum(), "fitted"),
        )
        drawn.append(Drawn(name=name, dots=dots, line=line, colour=colours.get(name, 0)))
    note = say("straight_note", ceiling=ceiling)
    return Curves(key="straight", drawn=tuple(drawn), x_label=unit, y_label="log10 F", note=note, level=Level.DETAIL)


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folders that all names share, and the names without them: fig2/a, fig2/b -> fig2, [a, b]."""
    if len(names) < 2:
        return "", list(names)
    parts = [name.split("/") for name in names]
    most = min(map(len, parts)) - 1
    shared = next((n for n in range(most) if len({part[n] for part in parts}) > 1), most)
    return "/".join(parts[0][:shared]), ["/".join(part[shared:]) for part in parts]
