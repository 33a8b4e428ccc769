"""A run that falls after its peak, abruptly or slowly.

The peak is where a reward that only rises before and only falls after fits best (least squares). The fall is tested
with the curve of the rising part, linearised, against the same curve with a decline from the peak on, under
autocorrelated noise; docs/math.md states how often runs that have levelled off are called falling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.least_squares import Solution, least_squares
from scalerl.curves.notes import Fall
from scalerl.curves.points import Known, Points, noise_guess, scatter
from scalerl.curves.residuals.columns import add_columns, evidence
from scalerl.curves.residuals.rise import FALL_LIMIT, find_rise
from scalerl.curves.residuals.tangents import residuals, tangents

LEAST_POINTS = 8  # of a run, before a fall is looked for
LEAST_AFTER = 3  # points after the peak
MOST_AVERAGED = 12  # points that the reward at the peak, and that of the end, are averages of
LEAST_AFTER_SMALL = 5  # after the peak of a run that is not unstable: a dip of fewer may pass
MANY_BEFORE = 8  # points from which the rising part shows how its noise hangs together
LITTLE_KNOWN = 0.5  # autocorrelation that is assumed of fewer
COLLAPSE_Z = 4.0  # standard errors of the noise before a collapse
# Nats of evidence for a decline: with many points, and what is enough with few, times their number.
LIMIT, FEW_POINTS = 5.3, 14.0
# Where declines begin that are tried, as shares of what lies after the peak: before 0 is before the peak.
BEGINS = (-0.6, -0.3, 0.0, 0.3, 0.6)
LEAST_Z = 2.0  # standard errors of the drop below which evidence for a decline does not count
LEAST_SHARE = 0.01  # of the rise before it: a smaller drop does not matter to anyone
REGAINED_Z = 4.0  # standard errors above the lowest points since the peak, which are chosen with the data in view
REGAINED_SHARE = 0.25  # of what was lost by then
LARGE_SHARE = 0.1  # of the rise before it, from which a fall makes a run unstable
LEAST_NOISE = 0.5  # of binomial noise: evaluations of the same prompts vary by less than it
ROUNDING = 1e-12  # of sums of squares that are equal
NOTHING = 1e-9  # of the reward's range: a difference between equal numbers


def residual_sd(points: Points, form: Form, known: Known, best: Solution) -> Array:
    """Noise of one evaluation about the least squares, as an array of one."""
    return np.array([np.sqrt(best.squares / max(points.num - known.num_free(form), 1))])


def find_falls(points: Points, form: Form, known: Known) -> tuple[Fall, ...]:
    """Return the fall of each run that falls after its peak, with the number of the run where there are several."""
    falls = []
    for number in np.unique(points.run):
        mine = points.take(points.run == number)
        fall = _fall_of_run(mine, form, known)
        if fall is not None and _moved(mine, known, fall):
            falls.append(fall if points.num_runs == 1 else replace(fall, run=str(number)))
    return tuple(falls)


def is_large(fall: Fall) -> bool:
    """Return whether a fall is so large that the run counts as unstable, rather than as past its peak."""
    return fall.drop_share is None or fall.drop_share > LARGE_SHARE


def rising_part(points: Points, falls: Sequence[Fall]) -> np.ndarray:
    """Return which points lie before the end of their run's peak."""
    rising = np.ones(points.num, dtype=bool)
    for fall in falls:
        mine = points.run == (points.run[0] if fall.run is None else int(fall.run))
        rising &= ~mine | (points.log_compute <= np.log(fall.compute / points.scale) + 1e-9)
    return rising


def _moved(points: Points, known: Known, fall: Fall) -> bool:
    """Return whether the run rose, fell, or rose before it fell: autocorrelated noise about a constant wanders too."""
    rise = find_rise(points, known)
    if rise.seen or rise.fell:
        return True
    return find_rise(points.take(rising_part(points, [replace(fall, run=None)])), known).statistic > FALL_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drop:
    """Averages at the peak and at the end of a run."""

    peak: int
    """Points up to the end of the peak."""
    size: int
    """Points that each is an average of."""
    best: float
    mean: float
    best_noise: float
    """Variance of each average over that of one evaluation, of independent noise."""
    mean_noise: float

    @property
    def size_of_drop(self) -> float:
        return self.best - self.mean


def _fall_of_run(points: Points, form: Form, known: Known) -> Fall | None:
    if points.num < LEAST_POINTS:
        return None
    drop = _drop(points)
    if drop is None:
        return None
    rise = drop.best - (known.start if known.start is not None else float(points.reward[: drop.size].mean()))
    least = NOTHING * (points.bounds[1] - points.bounds[0]) + LEAST_SHARE * max(rise, 0.0)
    # Second differences understate the noise where it is autocorrelated: what they rule out is no fall.
    independent = scatter(points) * float(np.sqrt(drop.best_noise + drop.mean_noise))
    if drop.size_of_drop <= max(least, LEAST_Z * independent):
        return None
    is_collapse = rise <= 0 or drop.size_of_drop > LARGE_SHARE * rise
    if not is_collapse and points.num - drop.peak < LEAST_AFTER_SMALL:
        return None
    test = _test(points, form, known, drop, is_collapse)
    noise_sd = max(test.noise_sd, LEAST_NOISE * (noise_guess(points) or 0.0))
    together = _together(test.autocorrelation)
    errors = [noise_sd * np.sqrt(noise * min(together, drop.size)) for noise in (drop.best_noise, drop.mean_noise)]
    error = float(np.hypot(*errors))
    if test.statistic <= test.limit or drop.size_of_drop < LEAST_Z * error:
        return None
    return Fall(
        compute=points.scale * float(np.exp(points.log_compute[drop.peak - 1])),
        num_points=drop.size,
        mean=drop.mean,
        best=drop.best,
        best_error=float(errors[0]),
        mean_error=float(errors[1]),
        drop=drop.size_of_drop,
        drop_error=error,
        drop_share=drop.size_of_drop / rise if rise > 0 else None,
        num_after=points.num - drop.peak,
        last=points.scale * float(np.exp(points.log_compute[-1])),
        statistic=test.statistic,
        limit=test.limit,
        regained=_regained(points, drop, errors[1]),
    )


def _regained(points: Points, drop: _Drop, error: float) -> float:
    """Return by how much the last points lie above the lowest since the peak; 0 where noise or little explains it."""
    after = points.reward[drop.peak :]
    means = np.convolve(after, np.full(drop.size, 1.0 / drop.size), mode="valid")
    lowest = float(means[: max(len(means) - drop.size, 1)].min())
    back = drop.mean - lowest
    is_more = back > max(REGAINED_Z * np.sqrt(2.0) * error, REGAINED_SHARE * (drop.best - lowest))
    return back if is_more else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """Log likelihood ratio of a decline from the peak on against none, and the noise with the decline in the fit."""

    statistic: float
    limit: float
    noise_sd: float
    autocorrelation: float


def _test(points: Points, form: Form, known: Known, drop: _Drop, is_collapse: bool) -> _Test:
    """Test a decline after the peak of a run."""
    head = points.take(np.arange(points.num) < drop.peak)
    residual, tangent = points.reward - points.reward.mean(), np.ones((points.num, 1))
    if head.num >= known.num_free(form) + 2:
        best = least_squares(head, form, known)
        residual, tangent = residuals(points, form, best), tangents(points, form, known, best)
    columns = _declines(points, drop.peak)
    _, down = evidence(residual, tangent, columns, points)
    tests = add_columns(residual, tangent, columns, points)
    which = int(np.argmin(tests.t))
    noise_sd, autocorrelation = float(tests.noise_sd[which]), float(tests.autocorrelation[which])
    if is_collapse:
        # A collapse that no line or step follows is not noise, and what lies before it shows what is.
        size, rho = _noise_aside(points, head, residual, tangent.shape[1], drop)
        if size**2 * _together(rho) < noise_sd**2 * _together(autocorrelation):
            noise_sd, autocorrelation = size, rho
        down = max(down, _collapse_evidence(points, head, residual, drop, size * np.sqrt(_together(rho))))
    return _Test(
        statistic=down, limit=LIMIT - FEW_POINTS / points.num, noise_sd=noise_sd, autocorrelation=autocorrelation
    )


def _noise_aside(points: Points, head: Points, residual: Array, num_free: int, drop: _Drop) -> tuple[float, float]:
    """Return the noise on both sides of a drop but not across it, and its autocorrelation before the drop."""
    sd = max(scatter(head), scatter(points.take(np.arange(points.num) >= points.num - drop.size)))
    sd = max(sd, LEAST_NOISE * (noise_guess(points) or 0.0))
    if head.num < MANY_BEFORE:
        return sd, LITTLE_KNOWN
    before = residual[: drop.peak]
    total = float(before @ before)
    rho = float(before[1:] @ before[:-1]) / total if total > 0 else 0.0
    return max(sd, float(np.sqrt(total / max(head.num - num_free, 1)))), min(max(rho, 0.0), 0.9)


def _collapse_evidence(points: Points, head: Points, residual: Array, drop: _Drop, noise: float) -> float:
    """Return the log likelihood ratio of a drop of many standard errors, from the peak and from the curve before it."""
    drops = [drop.size_of_drop]
    if head.num >= MANY_BEFORE:
        drops.append(-float(residual[points.num - drop.size :].mean()))
    z = min(drops) / max(noise * np.sqrt(drop.best_noise + drop.mean_noise), 1e-300)
    return z**2 / 2 if z >= COLLAPSE_Z else -np.inf


def _together(autocorrelation: float) -> float:
    """Return the variance of a mean of many evaluations, over that of a mean of independent ones."""
    return (1 + autocorrelation) / (1 - autocorrelation)


def _declines(points: Points, peak: int) -> Array:
    """Return shapes of a decline: straight lines in compute from several places on, and a step where the reward drops
    most after the peak.

    Places beside the peak are there because it is where noise is largest too; the likelihood is averaged over them.
    """
    begins = np.unique(np.clip([round(peak + share * (points.num - peak)) for share in BEGINS], 1, points.num - 2))
    compute = np.exp(points.log_compute)
    lines = np.maximum(compute[:, None] - compute[begins - 1], 0.0) / (compute[-1] - compute[begins - 1])
    total = np.concatenate([[0.0], np.cumsum(points.reward)])
    breaks = np.arange(peak, points.num - LEAST_AFTER + 1)
    before, after = np.maximum(breaks - LEAST_AFTER, 0), breaks + LEAST_AFTER
    drops = (total[breaks] - total[before]) / (breaks - before) - (total[after] - total[breaks]) / LEAST_AFTER
    step = np.where(np.arange(points.num) >= breaks[np.argmax(drops)], 1.0, 0.0)
    return np.concatenate([lines, step[:, None]], axis=1)


def _drop(points: Points) -> _Drop | None:
    """Return the peak and what the reward lost since; None where too few points lie after the peak."""
    weight = points.noise**-2.0
    rising = _monotone_squares(points.reward, weight)
    falling = _monotone_squares(points.reward[::-1], weight[::-1])[::-1]
    total = rising[1:] + falling[1:]
    # The highest point belongs to either side; here to the rise.
    peak = 1 + int(np.flatnonzero(total <= total.min() + ROUNDING * abs(float(total.min())))[-1])
    after = points.num - peak
    if after < LEAST_AFTER:
        return None
    size = max(min(after // 3, peak, MOST_AVERAGED), LEAST_AFTER)
    # Around the peak, but not on the rise before it.
    begins = range(max(peak - size, 0), min(peak, points.num - 2 * size + 1) or 1)
    top = max((slice(begin, begin + size) for begin in begins), key=lambda part: points.reward[part].mean())
    end = slice(points.num - size, points.num)
    variance = points.noise**2
    return _Drop(
        peak=peak,
        size=size,
        best=float(points.reward[top].mean()),
        mean=float(points.reward[end].mean()),
        best_noise=float(variance[top].mean()) / size,
        mean_noise=float(variance[end].mean()) / size,
    )


def _monotone_squares(values: Array, weight: Array) -> Array:
    """Return the least sum of squares of a rising sequence through the first 0, 1, ... values (pool adjacent
    violators), less a sum that is the same for all."""
    explained = np.zeros(len(values) + 1)
    blocks: list[tuple[float, float]] = []  # weight and weighted sum of values that share one mean
    total = 0.0
    for index, (value, own) in enumerate(zip(values.tolist(), weight.tolist(), strict=True)):
        mass, moment = own, own * value
        while blocks and blocks[-1][1] * mass >= moment * blocks[-1][0]:
            before = blocks.pop()
            total -= before[1] ** 2 / before[0]
            mass, moment = mass + before[0], moment + before[1]
        blocks.append((mass, moment))
        total += moment**2 / mass
        explained[index + 1] = total
    return -explained
