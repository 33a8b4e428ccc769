"""When to stop a run: where most of the gain is reached, what more compute brings, and since when there is no gain."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.fitted import Fit, tails
from scalerl.curves.forecast import Value, doubling
from scalerl.curves.forms import Array, Form
from scalerl.curves.points import Points, make_points, thin
from scalerl.curves.residuals.columns import add_columns
from scalerl.curves.special import ndtri

MOST = 0.95  # share of the gain
LEAST_WINDOW = 5  # points at the end of a run over which a gain could be measured
MAX_WINDOWS = 24
MEASURABLE = 2.0  # standard errors from which a gain counts as measured
NEIGHBOURS = 2  # evaluations on each side that the best one is compared with
CHANCE = 0.05  # of calling the best of a run better than its neighbours where it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """The evaluation with the highest reward."""

    compute: float
    reward: float
    lead: float
    """Above the mean of its neighbours."""
    lead_z: float
    """The lead in standard errors."""
    beyond_noise: bool
    """Whether that is more than the best of so many evaluations leads by through noise alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """What to know before stopping a run, or going on."""

    most_of_gain: Value | None
    """Compute at which 95 % of the gain is reached; None where there is no gain."""
    reached: bool
    """Whether that lies within the data."""
    doubling: Value | None
    """Gain of one more doubling of compute."""
    no_gain_since: float | None
    """Compute since which no gain can be measured; None where one can be, up to the last points."""
    num_without_gain: int
    """Evaluations since then."""
    best: BestEvaluation
    fell_after: float | None = None
    """Compute of the peak after which the reward fell; None where it did not."""
    rising_again: bool = False
    """Whether it has risen again since its lowest after that peak."""


def stopping(fit: Fit) -> Stopping | None:
    """Return when to stop; None if there is no usable curve."""
    if not fit.usable or not fit.num_points:
        return None
    if fit.past_peak:
        return _after_peak(fit)
    flat = fit.verdict == "no rise seen"
    most = None if flat else _most_of_gain(fit)
    since, num = _without_gain(fit)
    return Stopping(
        most_of_gain=most,
        reached=most is not None and most.value <= fit.scale,
        doubling=None if flat else doubling(fit),
        no_gain_since=since,
        num_without_gain=num,
        best=_best(fit),
    )


def _after_peak(fit: Fit) -> Stopping:
    """Return when to stop a run that fell: at its peak. What the curve of the rising part promises beyond is void."""
    peak = max(fall.compute for fall in fit.falls)
    most = _most_of_gain(fit)
    reached = most.value <= fit.scale
    return Stopping(
        most_of_gain=most if reached else None,
        reached=reached,
        doubling=None,
        no_gain_since=peak,
        num_without_gain=max(fall.num_after for fall in fit.falls),
        best=_best(fit),
        fell_after=peak,
        rising_again=all(fall.regained > 0 for fall in fit.falls),
    )


def _most_of_gain(fit: Fit) -> Value:
    if fit.draws is None:
        (value,) = _places(fit, fit.own_form, {name: np.array([given]) for name, given in fit.params.items()})
        return Value(value=float(value), low=np.nan, high=np.nan)
    places = np.concatenate([_places(fit, form, draws.params) for form, draws in fit.ways()])
    low, high = np.quantile(places, tails(fit.level), method="nearest")
    return Value(value=float(np.median(places)), low=float(low), high=float(high))


def _places(fit: Fit, form: Form, params: dict[str, Array]) -> Array:
    """Return the compute at which 95 % of the gain is reached; without a start, of the gain since the first point."""
    with np.errstate(over="ignore", divide="ignore"):
        if not form.rising:
            return float(fit.compute.min()) * form.place(1 - MOST, params)
        return form.place(MOST, params)


def _without_gain(fit: Fit) -> tuple[float | None, int]:
    """Return the longest stretch up to the last point over which no gain can be measured, nor over any shorter one."""
    points = make_points(fit.compute, fit.reward, run=fit.run, bounds=None)
    points = thin(points)
    order = np.sort(points.log_compute)
    if len(order) < LEAST_WINDOW:
        return None, 0
    begin = None
    sizes = np.unique(np.geomspace(LEAST_WINDOW, len(order), MAX_WINDOWS).round().astype(int))
    for size in sizes:
        window = points.take(points.log_compute >= order[-size])
        if _slope_z(window) > MEASURABLE:
            break
        begin = order[-size]
    if begin is None:
        return None, 0
    since = points.scale * float(np.exp(begin))
    return since, int(np.sum(fit.compute >= since * (1 - 1e-9)))


def _slope_z(points: Points) -> float:
    """Return the slope of the reward in log compute over its standard error, with one intercept per run."""
    heights = np.stack([np.where(points.run == run, 1.0, 0.0) for run in np.unique(points.run)], axis=1)
    if points.num < heights.shape[1] + 3:
        return 0.0
    return float(add_columns(points.reward, heights, points.log_compute[:, None], points).t[0])


def _best(fit: Fit) -> BestEvaluation:
    place = int(np.argmax(fit.reward))
    mine = np.flatnonzero(fit.run == fit.run[place])
    at = int(np.flatnonzero(mine == place)[0])
    beside = np.concatenate([mine[max(at - NEIGHBOURS, 0) : at], mine[at + 1 : at + 1 + NEIGHBOURS]])
    lead = float(fit.reward[place] - fit.reward[beside].mean()) if len(beside) else 0.0
    error = fit.noise_sd * np.sqrt(1 + 1 / max(len(beside), 1))
    lead_z = lead / error if error > 0 else 0.0
    limit = float(ndtri(np.array((1 - CHANCE) ** (1 / fit.num_points))))
    return BestEvaluation(
        compute=float(fit.compute[place]),
        reward=float(fit.reward[place]),
        lead=lead,
        lead_z=float(lead_z),
        beyond_noise=bool(lead_z > limit),
    )
