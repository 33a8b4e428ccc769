"""The evaluations to fit: validated, sorted, and averaged in blocks if a log is long."""

from dataclasses import dataclass, replace

import numpy as np

from scalerl.forecast.curves.forms import Array

MOST_BLOCKS = 60
"""Largest number of blocks: a long log's neighbouring evaluations are averaged, and the noise of a mean is known."""
Bounds = tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """All evaluations, sorted by run, then compute."""

    compute: Array
    reward: Array
    variance: Array
    """Noise variance of each point: absolute, or relative to the others if `is_noise_known` is False."""
    run: np.ndarray
    """The run's number, 0, 1, ..."""
    is_noise_known: bool
    bounds: Bounds
    """Smallest and largest possible reward; None for a reward without limits."""
    evaluation: np.ndarray | None
    """Label of each evaluation: two runs with the same label used the same prompts at the same step."""
    num_samples: np.ndarray | None

    @property
    def num(self) -> int:
        return len(self.reward)

    @property
    def num_runs(self) -> int:
        return len(np.unique(self.run))

    def take(self, which: np.ndarray) -> "Points":
        """Return some of the points, by mask or index."""
        own = {name: getattr(self, name) for name in ("compute", "reward", "variance", "evaluation", "num_samples")}
        taken = {name: values[which] for name, values in own.items() if values is not None}
        return replace(self, run=np.unique(self.run[which], return_inverse=True)[1], **taken)


def make_points(compute, reward, *, num_samples=None, run=None, evaluation=None, bounds: Bounds = (0.0, 1.0)) -> Points:
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
    if bounds is not None and reward.size and (reward.min() < bounds[0] or reward.max() > bounds[1]):
        raise ValueError(
            f"rewards run from {reward.min():g} to {reward.max():g}, outside {bounds}; "
            "rescale them, or pass bounds=None for a reward without limits"
        )
    for name, values in (("run", run), ("evaluation", evaluation)):
        if values is not None and np.shape(values) != compute.shape:
            raise ValueError(f"{name} has {np.size(values)} labels for {compute.size} points; they must pair up")
    if num_samples is not None:
        num_samples = np.broadcast_to(np.asarray(num_samples), compute.shape)
        if num_samples.size and not (num_samples > 0).all():
            raise ValueError(f"num_samples must be positive, but {num_samples.min():g} was given")
        # Counts do not give the noise of an unbounded reward.
        num_samples = None if bounds is None else num_samples.astype(float)
    labels = np.zeros(compute.size, dtype=int) if run is None else np.unique(np.asarray(run), return_inverse=True)[1]
    points = Points(
        compute=compute,
        reward=reward,
        variance=noise_variance(reward, num_samples, bounds),
        run=labels,
        is_noise_known=num_samples is not None,
        bounds=bounds,
        evaluation=None if evaluation is None else np.asarray(evaluation),
        num_samples=num_samples,
    )
    return points.take(np.lexsort((compute, labels)))


def noise_variance(reward: Array, num_samples: Array | None, bounds: Bounds) -> Array:
    """Return each evaluation's variance: binomial from its count, or 1 if the count is unknown."""
    if num_samples is None:
        return np.ones(len(reward))
    assert bounds is not None
    low, high = bounds
    share = np.clip((reward - low) / (high - low), 0.0, 1.0)
    # Add one right and one wrong answer: an evaluation with no right answer still has noise.
    share = (share * num_samples + 1.0) / (num_samples + 2.0)
    return (high - low) ** 2 * share * (1.0 - share) / num_samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """The model's input: at most `MOST_BLOCKS` means of neighbouring evaluations, over log compute."""

    x: Array
    """Log compute, relative to `scale`."""
    y: Array
    weight: Array
    """Noise variance of each block, in units of `noise`**2."""
    index: Array
    """Position of each block among the evaluations of its run."""
    size: Array
    run: np.ndarray
    scale: float
    """The largest compute."""
    spacing: float
    """Compute between evaluations."""
    noise: float
    """Noise of one block: known, or estimated from each block's distance to the line between its neighbours."""
    is_noise_known: bool
    span: float
    """Range of the rewards beyond their noise: the unit of gains."""
    bounds: Bounds
    start: float | None
    start_weight: float

    @property
    def compute(self) -> Array:
        return self.scale * np.exp(self.x)

    @property
    def num(self) -> int:
        return len(self.y)

    @property
    def num_runs(self) -> int:
        return int(self.run[-1]) + 1

    @property
    def evaluation_weight(self) -> float:
        """Noise variance of one evaluation, in units of `noise`**2."""
        return float(np.median(self.weight * self.size))


def make_blocks(points: Points, start: float | None, start_sd: float | None) -> Blocks:
    """Average the points in blocks; `start_sd` is the noise of the start, None for that of one evaluation."""
    scale = float(points.compute.max())
    most = max(MOST_BLOCKS // points.num_runs, 8)
    rows = [_blocks_of(points, points.run == run, scale, most) for run in range(points.num_runs)]
    x, y, variance, index, size = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    run = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    unit = float(variance.mean())
    weight = variance / unit
    every = y if start is None else np.append(y, start)
    noise = np.sqrt(unit) if points.is_noise_known else max(_scatter(x, y, weight, run), 1e-3 * np.ptp(every), 1e-9)
    typical = float(noise * np.sqrt(np.median(weight)))
    spacings = [
        np.ptp(points.compute[points.run == each]) / max((points.run == each).sum() - 1, 1) for each in set(run)
    ]
    return Blocks(
        x=x,
        y=y,
        weight=weight,
        index=index,
        size=size,
        run=run,
        scale=scale,
        spacing=max(float(np.median(spacings)), 1e-9 * scale),
        noise=float(noise),
        is_noise_known=points.is_noise_known,
        span=max(float(np.ptp(every)) - 2 * typical, 4 * typical),
        bounds=points.bounds,
        start=start,
        start_weight=float(np.median(weight * size)) if start_sd is None else max(start_sd / noise, 0.02) ** 2,
    )


def _blocks_of(points: Points, mine: np.ndarray, scale: float, most: int) -> tuple[Array, Array, Array, Array, Array]:
    """Return log compute, mean, variance, place and size of the blocks of one run."""
    x, y, precision = np.log(points.compute[mine] / scale), points.reward[mine], 1.0 / points.variance[mine]
    first, num = _block_starts(x, most), len(x)
    total = np.add.reduceat(precision, first)
    size = np.diff(np.append(first, num)).astype(float)
    mean = lambda values: np.add.reduceat(values * precision, first) / total  # noqa: E731
    return mean(x), mean(y), 1.0 / total, np.add.reduceat(np.arange(num, dtype=float), first) / size, size


def _block_starts(x: Array, most: int) -> np.ndarray:
    """Return where the blocks of one run begin, by its log computes."""
    num = len(x)
    label = np.arange(num)
    if num > most:
        # Half by number and half by log compute: this keeps an early rise and averages late noise.
        along = label / num + (x - x[0]) / max(x[-1] - x[0], 1e-9)
        label = np.minimum((along / along[-1] * most).astype(int), most - 1)
    return np.flatnonzero(np.diff(label, prepend=-1))


def block_means(compute: Array, reward: Array) -> tuple[Array, Array, Array, np.ndarray]:
    """Return compute, reward, standard error and size of one run's blocks, for drawing a long log."""
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    first = _block_starts(np.log(compute), MOST_BLOCKS)
    size = np.diff(np.append(first, len(reward)))
    mean = np.add.reduceat(reward, first) / size
    left = reward - np.repeat(mean, size)
    variance = float(left @ left) / max(len(reward) - len(first), 1)
    return np.add.reduceat(compute, first) / size, mean, np.sqrt(variance / size), size


def _scatter(x: Array, y: Array, weight: Array, run: np.ndarray) -> float:
    """Estimate the noise from each point's distance to the line between its neighbours."""
    inner = (run[2:] == run[:-2]).nonzero()[0] + 1
    if not len(inner):
        return 0.0
    compute = np.exp(x)
    share = (compute[inner] - compute[inner - 1]) / np.maximum(compute[inner + 1] - compute[inner - 1], 1e-12)
    off = y[inner] - (1 - share) * y[inner - 1] - share * y[inner + 1]
    variance = weight[inner] + (1 - share) ** 2 * weight[inner - 1] + share**2 * weight[inner + 1]
    return float(np.sqrt(np.mean(off**2 / variance)))
