"""What a plot shows, as numbers: `figure_data(analysis)` is pure; picture.py only draws it.

Compute is on a logarithmic axis, rewards on a linear one. Ranges come from points and ceilings, so that a band that
explodes beyond the data does not flatten everything else.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import Comparison, Fit, Value, Verdict, linearise, tails
from scalerl.curves.data import block_means
from scalerl.logs.series import Series
from scalerl.report.columns import rounded
from scalerl.report.results import Analysis, CurveResult, param_value

Array = NDArray[np.float64]
Role = Literal["fitted", "left out", "held out"]

MOST_DOTS = 300  # points of one run that are drawn one by one
MOST_QUANTISED = 100  # and of rewards that take few values: rows of points that hide each other
FEW_VALUES = 0.25  # distinct rewards over points, below which rewards count as quantised
MOST_BANDS = 8  # bands of more curves than this hide each other
REACH = 4.0  # how far beyond the data a curve is drawn, in multiples of the data
MOST_REACH = 100.0  # a mark further out than this would squeeze the data into a corner
GRID = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of one run that play one part, or means of these."""

    role: Role
    run: int
    run_label: str
    """Empty where there is one run."""
    compute: Array
    reward: Array
    residual: Array
    """Reward less the curve; NaN where there is no curve."""
    error: Array | None
    """Standard error of each reward; None for single rewards."""
    count: NDArray[np.int64] | None
    """Rewards in each bin; None where the points are drawn one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The curve on a grid that holds both ends of the data. Bands are (low, high)."""

    compute: Array
    reward: Array
    first: float
    """The least compute fitted."""
    last: float
    """The largest compute fitted: what lies beyond is a forecast."""
    band: tuple[Array, Array] | None
    """Where the recipe's own curve lies."""
    new_band: tuple[Array, Array] | None
    """Where one new evaluation should fall."""

    @property
    def pieces(self) -> tuple[tuple[bool, NDArray[np.bool_]], ...]:
        """(within the data, which grid points): before, within and beyond the data, sharing their end points."""
        before, within, after = (
            self.compute <= self.first,
            (self.compute >= self.first) & (self.compute <= self.last),
            self.compute >= self.last,
        )
        return tuple((mask is within, mask) for mask in (before, within, after) if mask.sum() > 1)

    def as_json(self) -> dict[str, Any]:
        """Return what a page draws; between the points of the grid it interpolates."""
        bands = {"band": self.band, "new_band": self.new_band}
        return {
            "compute": rounded(self.compute, 6),
            "reward": rounded(self.reward),
            "first": self.first,
            "last": self.last,
            **{name: None if band is None else [rounded(edge) for edge in band] for name, band in bands.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A forecast that was asked for: the reward at a compute, or the compute for a reward."""

    compute: Value
    reward: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveData:
    name: str
    label: str
    """The name without what all names share."""
    verdict: Verdict
    dots: tuple[Dots, ...]
    line: Line | None
    ceiling: Value | None
    noise_sd: float
    marks: tuple[Mark, ...]
    peak: tuple[float, float] | None = None
    """(compute, reward) after which the reward fell; None where it did not."""
    p_best: float | None = None
    """Probability to be the best of its evaluation set, where curves are compared."""

    @property
    def is_ok(self) -> bool:
        return self.verdict == Verdict.KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Straight:
    """One recipe of the linearised comparison: log10 F against compute, a line of slope `exponent`."""

    curve: int
    compute: Array
    log_f: Array
    exponent: Value
    line_compute: Array
    line_log_f: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureData:
    title: str
    x_label: str
    y_label: str
    level: float
    curves: tuple[CurveData, ...]
    straights: tuple[Straight, ...] = ()
    """Empty, or two and more."""
    shared_ceiling: float | None = None
    crossings: tuple[tuple[float, float], ...] = ()
    """(compute, reward) where two compared curves cross."""
    target: float | None = None

    @property
    def x_range(self) -> tuple[float, float]:
        drawn = [dots.compute for curve in self.curves for dots in curve.dots]
        drawn += [curve.line.compute for curve in self.curves if curve.line is not None]
        ends = [float(end) for computes in drawn for end in (computes.min(), computes.max())]
        if not ends:
            return (1.0, 10.0)
        low, high = min(ends), max(ends)
        pad = max(high / low, 1.5) ** 0.025
        return low / pad, high * pad

    @property
    def y_range(self) -> tuple[float, float]:
        """The range of rewards to show: all points, and curves and ceilings unless far above; no bands."""
        points = np.concatenate([dots.reward for curve in self.curves for dots in curve.dots] or [np.array([0.0, 1.0])])
        low, top = float(points.min()), float(points.max())
        span = max(top - low, 0.02 * abs(top), 1e-9)
        tips = chain.from_iterable(
            (curve.ceiling.value, curve.ceiling.high) if curve.is_ok else (curve.ceiling.value,)
            for curve in self.curves
            if curve.ceiling is not None
        )
        drawn = [float(curve.line.reward[-1]) for curve in self.curves if curve.line is not None]
        high = max(tip for tip in (top, *tips, *drawn) if tip <= top + 1.5 * span)
        pad = 0.05 * (high - low) if high > low else span
        return low - pad, high + pad

    @property
    def noise_sd(self) -> float:
        """The median over the curves: half of what the residuals' guide spans on each side."""
        return float(np.median([curve.noise_sd for curve in self.curves if curve.line is not None] or [0.0]))

    @property
    def residual_limit(self) -> float:
        """A limit of the residual axis that shows all fitted points; distant held-out ones are clipped to it."""
        sizes: dict[str, float] = {"fitted": 3 * self.noise_sd, "held out": 0.0}
        for dots in chain.from_iterable(curve.dots for curve in self.curves if curve.line is not None):
            if dots.role in sizes:
                sizes[dots.role] = max(sizes[dots.role], float(np.abs(dots.residual).max()))
        limit = max(sizes["fitted"], min(sizes["held out"], 8 * self.noise_sd))
        return 1.15 * limit or 0.01 * (self.y_range[1] - self.y_range[0])

    @property
    def straight_range(self) -> tuple[float, float]:
        """The range of the lines, with room for most points: a point just below the ceiling may lie anywhere."""
        if not self.straights:
            return (0.0, 1.0)
        lines = np.concatenate([straight.line_log_f for straight in self.straights])
        points = np.concatenate([straight.log_f for straight in self.straights] or [lines])
        low, high = np.quantile(points, [0.02, 0.98]) if len(points) else (lines.min(), lines.max())
        low, high = min(low, lines.min()), max(high, lines.max())
        pad = 0.06 * max(high - low, 1e-6)
        return float(low - pad), float(high + pad)


def figure_data(analysis: Analysis) -> FigureData:
    """Return everything that the figure of an analysis shows."""
    results = analysis.curves
    prefix, labels = short_names([result.name for result in results])
    x_label = _common([result.series.x_label for result in results], "compute (different units)")
    y_label = _common([result.series.y_label for result in results], "reward")
    # Recipes that are compared are drawn to one end: they differ by their curves, not by how far each one ran.
    is_shared = analysis.command == "compare" and len({result.series.x_label for result in results}) == 1
    shared_end = max(map(_end, results)) if is_shared else 0.0
    shared_end = max(shared_end, analysis.at or 0.0)
    with_bands = len(results) <= MOST_BANDS
    curves = tuple(
        _curve(result, label, max(_end(result), shared_end), with_bands)
        for result, label in zip(results, labels, strict=True)
    )
    # With several evaluation sets there is no one ceiling to linearise at.
    comparison = next(iter(analysis.comparisons.values())) if len(analysis.comparisons) == 1 else None
    straights = _straights(results, comparison) if is_shared else ()
    p_best = dict(analysis.ranking)
    fits = {result.name: result.fit for result in results if result.fit is not None}
    curves = tuple(replace(curve, p_best=p_best.get(curve.name)) for curve in curves)
    return FigureData(
        title=prefix or (labels[0] if len(labels) == 1 else f"{y_label} of {len(labels)} curves"),
        x_label=x_label,
        y_label=y_label,
        level=next((result.fit.level for result in results if result.fit is not None), 0.9),
        curves=curves,
        straights=straights,
        shared_ceiling=comparison.shared_ceiling if comparison is not None and straights else None,
        crossings=tuple(
            (pair.crossing, float(fits[pair.a].predict(pair.crossing)))
            for pair in analysis.pairs
            if is_shared and pair.crossing is not None
        ),
        target=analysis.at,
    )


# Words


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folders that all names share, and the names without them: fig2/a, fig2/b -> fig2, [a, b]."""
    if len(names) < 2:
        return "", list(names)
    parts = [name.split("/") for name in names]
    most = min(map(len, parts)) - 1
    shared = next((n for n in range(most) if len({part[n] for part in parts}) > 1), most)
    return "/".join(parts[0][:shared]), ["/".join(part[shared:]) for part in parts]


def _common(labels: Sequence[str], otherwise: str) -> str:
    return labels[0] if len(set(labels)) == 1 else otherwise


# One curve


def _end(result: CurveResult) -> float:
    """Return the compute up to which the curve is drawn: beyond the data, and to any point held out or requested."""
    series, fit = result.series, result.fit
    data = fit.scale if fit is not None and fit.num_points else series.compute.max(initial=0.0)
    asked = [forecast.compute for forecast in result.at]
    asked += [forecast.compute.value for forecast in result.reach if forecast.compute is not None]
    asked = [compute for compute in asked if compute <= MOST_REACH * data]
    return float(max(REACH * data, series.compute.max(initial=0.0), series.holdout_compute.max(initial=0.0), *asked))


def _begin(result: CurveResult) -> float:
    series = result.series
    return float(min(each.min(initial=np.inf) for each in (series.compute, series.holdout_compute)))


def _curve(result: CurveResult, label: str, end: float, with_bands: bool) -> CurveData:
    fit = result.fit if result.fit is not None and result.fit.usable else None
    dots = curve_dots(result.series, result.fit, fit)
    return CurveData(
        name=result.name,
        label=label,
        verdict=result.verdict,
        dots=dots,
        line=None if fit is None else line_of(fit, _begin(result), end, bands=with_bands),
        ceiling=None if fit is not None and fit.fall is not None else param_value(fit, "ceiling"),
        peak=(fit.fall.compute, fit.fall.best) if fit is not None and fit.fall is not None else None,
        noise_sd=_scatter(dots, fit) if fit is not None else math.nan,
        marks=_marks(result, end) if fit is not None else (),
    )


def _scatter(dots: tuple[Dots, ...], fit: Fit) -> float:
    """Return how far the points that are drawn scatter about their curve: means by less than single rewards."""
    errors = [some.error for some in dots if some.error is not None and some.count is not None]
    return float(np.median(np.concatenate(errors))) if errors else fit.noise_sd


def line_of(
    fit: Fit, begin: float, end: float, *, num: int = GRID, at: Sequence[float] = (), bands: bool = True
) -> Line:
    """Return the curve of a fit on a grid between two computes that holds the ends of its data, and `at`."""
    first, last = float(fit.compute.min()), fit.scale
    grid = np.unique(np.concatenate([np.geomspace(begin, end, num), [first, last], at]))
    if not fit.has_intervals:
        return Line(compute=grid, reward=fit.predict(grid), first=first, last=last, band=None, new_band=None)
    tail = tails(fit.level)
    low, middle, high = np.quantile(fit.curve_draws(grid), [tail[0], 0.5, tail[1]], axis=0)
    return Line(
        compute=grid,
        reward=middle,
        first=first,
        last=last,
        band=(low, high) if bands else None,
        new_band=fit.new_interval(grid) if bands else None,
    )


def _marks(result: CurveResult, end: float) -> tuple[Mark, ...]:
    exact = lambda value: Value(value=value, low=value, high=value)  # noqa: E731
    marks = [Mark(compute=exact(forecast.compute), reward=forecast.reward) for forecast in result.at]
    marks += [
        Mark(compute=reach.compute, reward=exact(reach.reward)) for reach in result.reach if reach.compute is not None
    ]
    return tuple(mark for mark in marks if 0 < mark.compute.value <= end)


# Points


def in_blocks(reward: Array) -> bool:
    """Return whether so many rewards of one run are drawn as means of blocks."""
    is_quantised = len(np.unique(reward)) < FEW_VALUES * len(reward)
    return len(reward) > (MOST_QUANTISED if is_quantised else MOST_DOTS)


def curve_dots(series: Series, fit: Fit | None, usable: Fit | None) -> tuple[Dots, ...]:
    """Return the points of a series; `usable` is the fit where it has a curve."""
    left_out = _left_out(series.compute, fit)
    groups = dots_by_run(series, {"left out": left_out, "fitted": ~left_out}, usable)
    if len(series.holdout_compute):
        groups.append(_dots("held out", 0, "", series.holdout_compute, series.holdout_reward, usable))
    return tuple(groups)


def dots_by_run(series: Series, roles: Mapping[Role, NDArray[np.bool_]], fit: Fit | None) -> list[Dots]:
    """Return the points of each run that play each role; very many of them as means."""
    runs, labels = np.zeros(len(series.compute), dtype=int), [""]
    if series.run is not None:
        unique, runs = np.unique(series.run, return_inverse=True)
        labels = [str(label) for label in unique]
    groups = []
    for (run, label), (role, mask) in product(enumerate(labels), roles.items()):
        which = mask & (runs == run)
        if which.any():
            groups.append(_dots(role, run, label, series.compute[which], series.reward[which], fit))
    return groups


def _dots(role: Role, run: int, label: str, compute: Array, reward: Array, fit: Fit | None) -> Dots:
    error = count = None
    if in_blocks(reward):
        compute, reward, error, count = block_means(compute, reward)
    residual = reward - fit.predict(compute) if fit is not None else np.full(len(reward), np.nan)
    return Dots(role=role, run=run, run_label=label, compute=compute, reward=reward, residual=residual, error=error,
                count=count)  # fmt: skip


def _left_out(compute: Array, fit: Fit | None) -> NDArray[np.bool_]:
    """Return which points lie outside the fitted window, with a tolerance for rounding."""
    if fit is None:
        return np.zeros(len(compute), dtype=bool)
    if not fit.num_points:
        return np.ones(len(compute), dtype=bool)
    return (compute < fit.compute.min() * (1 - 1e-9)) | (compute > fit.scale * (1 + 1e-9))


def points_json(series: Series, held_out: Collection[tuple[float, float]] = ()) -> dict[str, Any]:
    """Return the points of a curve by compute; of a run with very many points means, so that the page stays small."""
    points = zip(series.compute.tolist(), series.reward.tolist(), strict=True)
    held = np.array([point in held_out for point in points], dtype=bool)
    groups = dots_by_run(series, {"fitted": ~held, "held out": held}, None)
    together = lambda values: np.concatenate([*values, np.empty(0)])  # noqa: E731
    compute, reward = together(dots.compute for dots in groups), together(dots.reward for dots in groups)
    error = together(np.full(len(dots.reward), np.nan) if dots.error is None else dots.error for dots in groups)
    run = together(np.full(len(dots.reward), dots.run) for dots in groups)
    is_held = together(np.full(len(dots.reward), dots.role == "held out") for dots in groups)
    order = np.lexsort((run, compute))
    return {
        "compute": rounded(compute[order], 6),
        "reward": rounded(reward[order]),
        "error": rounded(error[order], 3) if any(dots.error is not None for dots in groups) else None,
        "run": run[order].astype(int).tolist(),
        "runs": list(dict.fromkeys(dots.run_label for dots in groups)) or [""],
        "held_out": np.flatnonzero(is_held[order]).tolist(),
        "num_points": len(series.reward),
    }


# A comparison


def _straights(results: Sequence[CurveResult], comparison: Comparison | None) -> tuple[Straight, ...]:
    if comparison is None or len(comparison.shared_fits) < 2:
        return ()
    straights, exponents = [], comparison.shared_exponents
    for place, result in enumerate(results):
        again = comparison.shared_fits.get(result.name)
        if again is None:
            continue
        log_compute, log_f = linearise(again)
        ends = np.array([again.compute.min(), again.scale])
        straights.append(
            Straight(
                curve=place,
                compute=np.exp(log_compute),
                log_f=log_f / math.log(10),
                exponent=exponents[result.name],
                line_compute=ends,
                line_log_f=again.params["exponent"] * np.log10(ends),
            )
        )
    return tuple(straights)
