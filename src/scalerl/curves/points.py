"""The evaluations to fit, validated and sorted, and the linear part of every fit: level and gain."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.priors.prior import Prior


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Sorted by run, then compute. `noise` is each point's noise relative to one evaluation's.

    Compared and hashed by identity, so that results can be cached per object.
    """

    log_compute: Array
    reward: Array
    noise: Array
    first: np.ndarray
    """True where a run begins: autocorrelation does not cross it."""
    run: np.ndarray
    """The run's number, 0, 1, ..."""
    scale: float
    """The largest compute; log_compute is relative to it."""
    bounds: tuple[float, float]
    """The smallest and largest possible reward."""
    evaluation: np.ndarray | None = None
    """What each point was evaluated on; equal labels of two runs mean the same prompts at the same step."""
    num_samples: np.ndarray | None = None
    error: Array | None = None
    """Standard error of each reward, where rewards are means of several."""

    @property
    def num(self) -> int:
        return len(self.reward)

    @property
    def num_runs(self) -> int:
        return int(self.first.sum())

    def take(self, mask: np.ndarray) -> "Points":
        """Return some of the points, on the same scale."""
        run = self.run[mask]
        return Points(
            log_compute=self.log_compute[mask],
            reward=self.reward[mask],
            noise=self.noise[mask],
            first=np.diff(run, prepend=-1) != 0,
            run=run,
            scale=self.scale,
            bounds=self.bounds,
            evaluation=None if self.evaluation is None else self.evaluation[mask],
            num_samples=None if self.num_samples is None else self.num_samples[mask],
            error=None if self.error is None else self.error[mask],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is not fitted: a start (with its own noise) and parameters held fixed, relative to the scale."""

    start: float | None = None
    start_sd: float = 0.0
    ceiling: float | None = None
    log_shape: Mapping[str, float]
    prior: Prior | None = None
    """What other runs say of a sigmoid's parameters; None for the form's weak prior."""

    def level(self, form: Form) -> float | None:
        """Return the level, where it is known exactly."""
        if not form.rising:
            return self.ceiling
        return self.start if self.start_sd == 0 else None

    def num_free(self, form: Form) -> int:
        fixed = len(self.log_shape) + (self.ceiling is not None) + (form.rising and self.start is not None)
        return len(form.params) - fixed


def make_points(
    compute, reward, *, num_samples=None, run=None, bounds=(0.0, 1.0), evaluation=None, error=None
) -> Points:
    """Validate and sort; compute must be positive and everything finite."""
    compute = np.asarray(compute, dtype=float).ravel()
    reward = np.asarray(reward, dtype=float).ravel()
    if compute.shape != reward.shape:
        raise ValueError(f"compute has {compute.size} values and reward has {reward.size}; they must pair up")
    for name, values in (("compute", compute), ("reward", reward)):
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values))
            raise ValueError(f"{name} holds NaN or infinite values at positions {bad[:5].tolist()}")
    if (compute <= 0).any():
        raise ValueError(
            f"compute must be positive, but {compute.min():g} was given; pass the reward at compute 0 as start="
        )
    if bounds is None:
        bounds = unbounded(reward)
    elif reward.size and (reward.min() < bounds[0] or reward.max() > bounds[1]):
        raise ValueError(
            f"rewards run from {reward.min():g} to {reward.max():g}, outside {bounds}; "
            "rescale them, or pass bounds=None for a reward without limits"
        )
    for name, values in (("run", run), ("evaluation", evaluation)):
        if values is not None and np.shape(values) != compute.shape:
            raise ValueError(f"{name} has {np.size(values)} labels for {compute.size} points; they must pair up")
    labels = np.zeros(compute.size, dtype=int) if run is None else np.unique(np.asarray(run), return_inverse=True)[1]
    noise = np.ones(compute.size)
    if num_samples is not None and compute.size:
        noise = binomial_sd(reward, num_samples)
        noise = noise / np.sqrt(np.mean(noise**2))
    if error is not None and compute.size:
        error = _checked_errors(error, compute, num_samples)
        noise = error / np.sqrt(np.mean(error**2))
    order = np.lexsort((compute, labels))
    scale = float(compute.max()) if compute.size else 1.0
    return Points(
        log_compute=np.log(compute[order] / scale),
        reward=reward[order],
        noise=noise[order],
        first=np.diff(labels[order], prepend=-1) != 0,
        run=labels[order],
        scale=scale,
        bounds=(float(bounds[0]), float(bounds[1])),
        evaluation=None if evaluation is None else np.asarray(evaluation)[order],
        num_samples=None if num_samples is None else np.broadcast_to(num_samples, compute.shape)[order],
        error=None if error is None else np.asarray(error, dtype=float)[order],
    )


def _checked_errors(error, compute: Array, num_samples) -> Array:
    error = np.asarray(error, dtype=float)
    if num_samples is not None:
        raise ValueError("give either num_samples= or error=, not both: each says how noisy the points are")
    if error.shape != compute.shape:
        raise ValueError(f"error has {error.size} values for {compute.size} points; they must pair up")
    if not (np.isfinite(error).all() and (error > 0).all()):
        raise ValueError(f"error must be positive and finite, but holds {error.min():g}")
    return error


def binomial_sd(reward: Array, num_samples) -> Array:
    """sqrt(p (1 - p) / n), with p clipped away from 0 and 1, where the formula claims no noise at all."""
    num = np.broadcast_to(np.asarray(num_samples, dtype=float), reward.shape)
    if not (num > 0).all():
        raise ValueError(f"num_samples must be positive, but holds {num.min():g}")
    rate = np.clip(reward, 0.02, 0.98)
    return np.sqrt(rate * (1 - rate) / num)


def noise_guess(points: Points) -> float | None:
    """Return the noise that the number of samples, or the errors of means, imply alone."""
    if not points.num:
        return None
    if points.error is not None:
        return float(np.sqrt(np.mean(points.error**2)))
    if points.num_samples is None:
        return None
    return float(np.sqrt(np.mean(binomial_sd(points.reward, points.num_samples) ** 2)))


MANY = 150  # points from which neighbours are averaged before the fit
FEW = 100  # blocks that a long log is averaged to, or a few more
BLOCK_WIDTH = np.log(1.05)  # a block spans at most this ratio of compute, so that the curve is straight within it


def with_start(points: Points, start: float, noise: float) -> Points:
    """Return the reward before training as one more evaluation, at compute 0, where every rising shape is 0."""
    put = lambda values, value: np.concatenate([[value], values])  # noqa: E731
    run = put(points.run, points.run[0] if points.num else 0)
    return replace(
        points,
        log_compute=put(points.log_compute, -np.inf),
        reward=put(points.reward, start),
        noise=put(points.noise, noise),
        run=run,
        first=np.diff(run, prepend=-1) != 0,
        evaluation=None,
        num_samples=None,
        error=None,
    )


def scatter(points: Points) -> float:
    """Return the noise of one evaluation, from second differences within runs, to which a smooth curve adds little."""
    inside = ~(points.first[1:-1] | points.first[2:]) if points.num > 2 else np.zeros(0, dtype=bool)
    if inside.sum() < 2:
        return float(np.std(points.reward)) if points.num else 0.0
    second = points.reward[2:] - 2 * points.reward[1:-1] + points.reward[:-2]
    expected = points.noise[2:] ** 2 + 4 * points.noise[1:-1] ** 2 + points.noise[:-2] ** 2
    return float(np.sqrt(np.mean((second**2 / expected)[inside])))


def thin(points: Points) -> Points:
    """Average neighbouring points of a long log: a smooth curve loses nothing by it."""
    if points.num <= MANY:
        return points
    most = -(-points.num // FEW)
    block = np.empty(points.num, dtype=int)
    current, size, begin = -1, 0, 0.0
    for index in range(points.num):
        if points.first[index] or size == most or points.log_compute[index] - begin > BLOCK_WIDTH:
            current, size, begin = current + 1, 0, points.log_compute[index]
        block[index], size = current, size + 1
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    sizes = np.diff(starts, append=points.num)
    mean = lambda values: np.add.reduceat(values, starts) / sizes  # noqa: E731
    run = points.run[starts]
    return replace(
        points,
        log_compute=mean(points.log_compute),
        reward=mean(points.reward),
        noise=np.sqrt(mean(points.noise**2) / sizes),
        run=run,
        first=np.diff(run, prepend=-1) != 0,
        evaluation=None,
        num_samples=None,
        error=None,
    )


def unbounded(reward: Array) -> tuple[float, float]:
    """Return limits for a reward that has none: one range of the data below it, and four ranges above it."""
    span = max(float(np.ptp(reward)), 1e-6 * float(np.abs(reward).max()), 1e-9) if reward.size else 1.0
    return float(reward.min() - span), float(reward.max() + 4.0 * span)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Inner products of shape h, ones and reward y under the noise's covariance; one entry per shape."""

    hh: Array
    h1: Array
    hy: Array
    one: float | Array
    y1: float | Array
    yy: float | Array

    def __getitem__(self, index) -> "Sums":
        return Sums(**{name: np.asarray(getattr(self, name))[index] for name in Sums.__dataclass_fields__})


def plain_sums(shape: Array, points: Points) -> Sums:
    """Independent noise: weighted sums over the points (last axis)."""
    weight = points.noise**-2.0
    # By einsum: for a matrix times a vector a BLAS would wake its threads, which takes longer than the product.
    return Sums(
        hh=np.einsum("kn,kn,n->k", shape, shape, weight),
        h1=np.einsum("kn,n->k", shape, weight),
        hy=np.einsum("kn,n->k", shape, weight * points.reward),
        one=float(weight.sum()),
        y1=float(weight @ points.reward),
        yy=float(weight @ points.reward**2),
    )


def squares(sums: Sums, level: Array, gain: Array) -> Array:
    """Return the sum of squares of y - level - gain * h."""
    of_level = sums.yy + level * (level * sums.one - 2 * sums.y1)
    return np.maximum(of_level + gain * (gain * sums.hh + 2 * (level * sums.h1 - sums.hy)), 0.0)


def gain_limits(form: Form, level: Array, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """Return the gains for which the whole curve stays within the bounds."""
    if form.rising:
        return np.zeros_like(level), bounds[1] - level
    return bounds[0] - level, np.zeros_like(level)


def solve(sums: Sums, form: Form, known: Known, bounds: tuple[float, float]) -> tuple[Array, Array, Array]:
    """Return the best level and gain for each shape within the bounds, and the sum of squares there."""
    fixed = known.level(form)
    if fixed is not None:
        level = np.full_like(sums.hh, fixed)
        if form.rising and known.ceiling is not None:
            gain = known.ceiling - level
        else:
            gain = np.clip((sums.hy - level * sums.h1) / np.maximum(sums.hh, 1e-300), *gain_limits(form, level, bounds))
        return level, gain, squares(sums, level, gain)
    if form.rising and known.ceiling is not None:
        return _pinned_ceiling(sums, known.ceiling, bounds)
    det = sums.hh * sums.one - sums.h1**2
    solvable = det > 1e-12 * sums.hh * sums.one
    gain = (sums.hy * sums.one - sums.h1 * sums.y1) / np.where(solvable, det, 1.0)
    level = (sums.y1 - gain * sums.h1) / sums.one
    low, high = gain_limits(form, level, bounds)
    inside = solvable & (level >= bounds[0]) & (level <= bounds[1]) & (gain >= low) & (gain <= high)
    total = squares(sums, level, gain)
    if inside.all():
        return level, gain, total
    candidates = [(level, gain, np.where(inside, total, np.inf))]
    edges = [np.full_like(sums.hh, bounds[0]), np.clip(sums.y1 / sums.one + 0 * sums.hh, *bounds)]
    if not form.rising:
        edges.append(np.full_like(sums.hh, bounds[1]))
    for edge in edges:
        best = np.clip((sums.hy - edge * sums.h1) / np.maximum(sums.hh, 1e-300), *gain_limits(form, edge, bounds))
        candidates.append((edge, best, squares(sums, edge, best)))
    if form.rising:
        candidates.append(_pinned_ceiling(sums, bounds[1], bounds))
    choice = np.argmin(np.stack([total for _, _, total in candidates]), axis=0)
    pick = lambda k: np.choose(choice, [candidate[k] for candidate in candidates])  # noqa: E731
    return pick(0), pick(1), pick(2)


def _pinned_ceiling(sums: Sums, ceiling: float, bounds: tuple[float, float]) -> tuple[Array, Array, Array]:
    """Return the level when level + gain = ceiling: y = ceiling - (ceiling - level) * (1 - h)."""
    rest = np.maximum(sums.one - 2 * sums.h1 + sums.hh, 1e-300)
    drop = (ceiling * (sums.one - sums.h1) - (sums.y1 - sums.hy)) / rest
    drop = np.clip(drop, 0.0, ceiling - bounds[0])
    level, gain = ceiling - drop, drop
    return level, gain, squares(sums, level, gain)
