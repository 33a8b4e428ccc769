"""What a plot shows, as numbers: `figure_data(analysis)` is pure; picture.py only draws it.

Compute is on a logarithmic axis, rewards on a linear one. Ranges come from points and ceilings, so that a band that
explodes beyond the data does not flatten everything else.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import Fit, Value, Verdict, tails
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
DIFFERENT_UNITS = "compute (different units)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The points of a curve by compute; of a run with very many points means of neighbours."""

    compute: Array
    reward: Array
    error: Array
    """Standard error of a mean; NaN for a single reward."""
    run: NDArray[np.int64]
    role: NDArray[np.str_]
    runs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "compute": rounded(self.compute, 6),
            "reward": rounded(self.reward),
            "error": rounded(self.error, 3) if np.isfinite(self.error).any() else None,
            "run": self.run.tolist(),
            "runs": list(self.runs),
            "held_out": np.flatnonzero(self.role == "held out").tolist(),
        }


def points_of(series: Series, roles: Mapping[Role, NDArray[np.bool_]]) -> Points:
    """Return the points of a series, each with the role whose mask holds it, and those held out."""
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
    return Points(compute=compute[order], reward=reward[order], error=error[order], run=run[order], role=role[order],
                  runs=tuple(labels))  # fmt: skip


def points_json(series: Series, held_out: Collection[tuple[float, float]] = ()) -> dict[str, Any]:
    """Return the points that a page draws; `held_out` are (compute, reward)."""
    points = zip(series.compute.tolist(), series.reward.tolist(), strict=True)
    held = np.array([point in held_out for point in points], dtype=bool)
    shown = points_of(series, {"fitted": ~held, "held out": held})
    return {**shown.as_json(), "num_points": len(series.reward)}


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
    band, new_band = ((low, high), fit.new_interval(grid)) if bands else (None, None)
    return Line(compute=grid, reward=middle, first=first, last=last, band=band, new_band=new_band)


def line_to(result: CurveResult, end: float = 0.0, *, bands: bool = True) -> Line | None:
    """Return the line of a curve up to `end`, and at least as far as it is usually drawn; None without a curve."""
    if not result.usable:
        return None
    series = result.series
    begin = min(float(each.min(initial=np.inf)) for each in (series.compute, series.holdout_compute))
    return line_of(result.fit, begin, max(_end(result), end), bands=bands)


def _end(result: CurveResult) -> float:
    """Return the compute up to which the curve is drawn: beyond the data, and to any point held out or requested."""
    series, fit = result.series, result.fit
    data = fit.scale if fit.num_points else series.compute.max(initial=0.0)
    asked = [forecast.compute for forecast in result.at]
    asked += [forecast.compute.value for forecast in result.reach if forecast.compute is not None]
    asked = [compute for compute in asked if compute <= MOST_REACH * data]
    return float(max(REACH * data, series.compute.max(initial=0.0), series.holdout_compute.max(initial=0.0), *asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A curve in a figure."""

    result: CurveResult
    label: str
    """The name without what all names share."""
    points: Points
    line: Line | None
    residual: Array
    """Rewards less the curve; NaN where there is no curve."""
    p_best: float | None = None
    """Probability to be the best of its evaluation set, where curves are compared."""

    @property
    def is_ok(self) -> bool:
        return self.result.verdict == Verdict.KNOWN

    @property
    def peak(self) -> tuple[float, float] | None:
        """(compute, reward) after which the reward fell; None where it did not."""
        fall = None if self.line is None else self.result.fit.fall
        return None if fall is None else (fall.compute, fall.best)

    @property
    def ceiling(self) -> Value | None:
        return None if self.line is None or self.peak is not None else param_value(self.result.fit, "ceiling")

    @property
    def marks(self) -> list[tuple[Value, Value]]:
        """Compute and reward of the forecasts that were asked for."""
        exact = lambda value: Value(value=value, low=value, high=value)  # noqa: E731
        marks = [(exact(forecast.compute), forecast.reward) for forecast in self.result.at]
        marks += [(reach.compute, exact(reach.reward)) for reach in self.result.reach if reach.compute is not None]
        end = 0.0 if self.line is None else self.line.compute[-1] * (1 + 1e-9)
        return [(compute, reward) for compute, reward in marks if 0 < compute.value <= end]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureData:
    title: str
    x_label: str
    y_label: str
    level: float
    curves: tuple[Drawn, ...]
    crossings: tuple[tuple[float, float], ...] = ()
    """(compute, reward) where two compared curves cross."""
    target: float | None = None

    @property
    def lines(self) -> list[Line]:
        return [curve.line for curve in self.curves if curve.line is not None]

    @property
    def x_range(self) -> tuple[float, float]:
        drawn = np.concatenate([[], *(line.compute for line in self.lines), *(c.points.compute for c in self.curves)])
        low, high = (drawn.min(), drawn.max()) if len(drawn) else (1.0, 10.0)
        pad = max(high / low, 1.5) ** 0.025
        return float(low / pad), float(high * pad)

    @property
    def y_range(self) -> tuple[float, float]:
        """The range of rewards to show: all points, and curves and ceilings unless far above; no bands."""
        points = np.concatenate([[], *(curve.points.reward for curve in self.curves)])
        low, top = (float(points.min()), float(points.max())) if len(points) else (0.0, 1.0)
        span = max(top - low, 0.02 * abs(top), 1e-9)
        ceilings = [(curve.ceiling, curve.is_ok) for curve in self.curves]
        tips = [value.high if is_ok else value.value for value, is_ok in ceilings if value is not None]
        tips += [float(line.reward[-1]) for line in self.lines]
        high = max(tip for tip in (top, *tips) if tip <= top + 1.5 * span)
        pad = 0.05 * (high - low) if high > low else span
        return low - pad, high + pad

    def residuals(self, role: Role) -> list[Array]:
        curves = [curve for curve in self.curves if curve.line is not None]
        return [curve.residual[curve.points.role == role] for curve in curves]

    @property
    def noise_sd(self) -> float:
        """The median over the curves: half of what the residuals' guide spans on each side."""
        return float(np.median([each.std() for each in self.residuals("fitted") if len(each)] or [0.0]))

    @property
    def residual_limit(self) -> float:
        """A limit of the residual axis that shows all fitted points; distant held-out ones are clipped to it."""
        fitted, held = (
            float(np.abs(np.concatenate([[0.0], *self.residuals(role)])).max()) for role in ("fitted", "held out")
        )
        limit = max(3 * self.noise_sd, fitted, min(held, 8 * self.noise_sd))
        return 1.15 * limit or 0.01 * (self.y_range[1] - self.y_range[0])


def figure_data(analysis: Analysis) -> FigureData:
    """Return everything that the figure of an analysis shows."""
    results = analysis.curves
    prefix, labels = short_names([result.name for result in results])
    x_labels, y_labels = ({getattr(result.series, name) for result in results} for name in ("x_label", "y_label"))
    # Recipes that are compared are drawn to one end: they differ by their curves, not by how far each one ran.
    is_shared = analysis.command == "compare"
    end = max(max(map(_end, results)) if is_shared else 0.0, analysis.at or 0.0)
    p_best = dict(analysis.ranking)
    fits = {result.name: result.fit for result in results}
    y_label = y_labels.pop() if len(y_labels) == 1 else "reward"
    return FigureData(
        title=prefix or (labels[0] if len(labels) == 1 else f"{y_label} of {len(labels)} curves"),
        x_label=x_labels.pop() if len(x_labels) == 1 else DIFFERENT_UNITS,
        y_label=y_label,
        level=results[0].fit.level,
        curves=tuple(
            _drawn(result, label, line_to(result, end, bands=len(results) <= MOST_BANDS), p_best.get(result.name))
            for result, label in zip(results, labels, strict=True)
        ),
        crossings=tuple(
            (pair.crossing, float(fits[pair.a].predict(pair.crossing)))
            for pair in analysis.pairs
            if is_shared and pair.crossing is not None
        ),
        target=analysis.at,
    )


def _drawn(result: CurveResult, label: str, line: Line | None, p_best: float | None) -> Drawn:
    points = points_of(result.series, _roles(result))
    curve = np.nan if line is None else result.fit.predict(points.compute)
    return Drawn(result=result, label=label, points=points, line=line, residual=points.reward - curve, p_best=p_best)


def _roles(result: CurveResult) -> dict[Role, NDArray[np.bool_]]:
    """Return which points were fitted, with a tolerance for rounding."""
    compute, fit = result.series.compute, result.fit
    left_out = np.zeros(len(compute), dtype=bool)
    if result.is_fitted:
        first, last = (fit.compute.min(), fit.scale) if fit.num_points else (np.inf, -np.inf)
        left_out = (compute < first * (1 - 1e-9)) | (compute > last * (1 + 1e-9))
    return {"left out": left_out, "fitted": ~left_out}


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folders that all names share, and the names without them: fig2/a, fig2/b -> fig2, [a, b]."""
    if len(names) < 2:
        return "", list(names)
    parts = [name.split("/") for name in names]
    most = min(map(len, parts)) - 1
    shared = next((n for n in range(most) if len({part[n] for part in parts}) > 1), most)
    return "/".join(parts[0][:shared]), ["/".join(part[shared:]) for part in parts]
