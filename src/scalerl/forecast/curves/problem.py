"""The problem that a fit solves: the evaluations and the priors of all unknowns, in one unit.

The priors of courses, gains and covariances are a few numbers each (`priors.py`). The prior of shapes transforms
standard normal numbers (`Problem.shapes`), of which `grid.py` makes boxes.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.data import Blocks
from scalerl.forecast.curves.forms import Array, Form
from scalerl.forecast.curves.normal import log_normal_between, normal_cdf, normal_quantile, student_quantile
from scalerl.forecast.curves.priors import Prior

NO_FALL = 0
"""Number of the course without a fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """Possible courses after a rise: `NO_FALL`, then falls that differ in place and length. One array entry each."""

    place: Array
    """Compute at which the fall begins, relative to the largest."""
    length: Array
    """Time constant of the fall, as a share of the compute from its place to the largest."""
    log_weight: Array
    """Logarithm of the prior probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Normal components of the gain's prior, truncated to 0 .. `room`."""

    mean: Array
    precision: Array
    """In units of the noise."""
    log_weight: Array
    room: float
    """The largest gain that is possible; infinite for rewards without limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The evaluations of a fit, and the priors of all unknowns."""

    blocks: Blocks
    form: Form
    prior: Prior
    fixed_ceiling: float | None
    rewards: Array
    """Rewards relative to `centre`; a known start comes last."""
    centre: float
    level_precision: float
    """Prior precision of the level about the centre, in units of the noise."""
    drop_precision: float
    """Prior precision of the drop, in the same unit."""
    gains: Gains
    courses: Courses
    noise_df: float
    """Degrees of freedom of the noise's prior."""

    @property
    def df(self) -> float:
        """Degrees of freedom of the noise, given the evaluations."""
        return self.blocks.num + self.noise_df

    @property
    def prior_squares(self) -> float:
        """Sum of squares that the noise's prior adds to the residuals'."""
        return self.noise_df * self.blocks.noise**2

    def with_start(self, values: Array) -> Array:
        """Add a row of zeros for a known start, before any rise."""
        return values if self.blocks.start is None else np.concatenate([values, np.zeros((1, values.shape[1]))])

    def rises(self, shapes: Array) -> Array:
        """Return the columns of the gain. With a fixed ceiling, level = ceiling - gain."""
        columns = self.with_start(self.form.shape(self.blocks.x[:, None], *shapes))
        return columns if self.fixed_ceiling is None else columns - 1.0

    def falls(self) -> Array:
        """Return the column of the drop for each course."""
        shares = fallen_share(np.exp(self.blocks.x)[:, None], self.courses.place, self.courses.length)
        shares[:, NO_FALL] = 0.0
        return -self.with_start(shares)

    def shapes(self, normal: Array) -> Array:
        """Map standard normal numbers (columns) to log exponent and midpoint (rows) by the prior."""
        prior = self.prior
        values = normal.T
        if prior.has_heavy_tails:
            values = student_quantile(normal_cdf(np.clip(values, -7.0, 7.0)))
        (log_exponent, its_sd), (log_midpoint, sd) = prior.log_exponent, prior.log_midpoint
        return np.stack([log_exponent + its_sd * values[0], log_midpoint + sd * values[1]])


def fallen_share(compute: Array, place, length) -> Array:
    """Return the share of a fall that has happened: 0 up to its place, then towards 1."""
    return -np.expm1(-np.maximum(compute - place, 0.0) / (length * np.maximum(1.0 - place, 1e-9)))


def make_problem(blocks: Blocks, form: Form, prior: Prior, fixed_ceiling: float | None, fall: float) -> Problem:
    """Return the problem; `fall` is the prior probability of a fall."""
    if fixed_ceiling is not None:
        centre, level_sd = fixed_ceiling, 1e-6 * blocks.span
    elif blocks.start is not None:
        centre, level_sd = blocks.start, 2.0 * blocks.span
    else:
        centre, level_sd = float(blocks.y[0]), 0.5 * blocks.span
    rewards = blocks.y if blocks.start is None else np.append(blocks.y, blocks.start)
    return Problem(
        blocks=blocks,
        form=form,
        prior=prior,
        fixed_ceiling=fixed_ceiling,
        rewards=rewards - centre,
        centre=centre,
        level_precision=(blocks.noise / level_sd) ** 2,
        drop_precision=(blocks.noise / (priors.FALL_SIZE * blocks.span)) ** 2,
        gains=make_gains(blocks, prior),
        courses=make_courses(blocks, fall),
        noise_df=priors.KNOWN_NOISE_DF if blocks.is_noise_known else priors.NOISE_DF,
    )


def room_of(blocks: Blocks) -> float:
    """Return the largest possible gain; infinite for unbounded rewards."""
    if blocks.bounds is None:
        return np.inf
    low, high = blocks.bounds
    if blocks.start is None:
        # A run may have risen during its first evaluations, or fallen below them since.
        first = blocks.y[np.argsort(blocks.x, kind="stable")][: max(blocks.num // 20, 1)]
        from_here = min(float(first.mean()), float(np.quantile(blocks.y, 0.1)))
    else:
        from_here = blocks.start
    return max(high - from_here, 0.02 * (high - low))


def gain_unit(blocks: Blocks) -> float:
    """Return the prior's unit of gains: the possible gain, or the observed range."""
    return blocks.span if blocks.bounds is None else room_of(blocks)


def make_gains(blocks: Blocks, prior: Prior) -> Gains:
    """Return the prior of the gain: wide components, plus narrow ones if earlier runs inform it."""
    unit = gain_unit(blocks)
    rows = [
        (0.0, scale * unit, weight)
        for scale, weight in (priors.GAIN_SPANS if blocks.bounds is None else priors.GAIN_SHARES)
    ]
    if prior.log_share is not None:
        # A mixture of normals along the quantiles of a Student-t in the logarithm.
        centre, spread = prior.log_share
        steps = np.arange(5) * 0.2 + 0.1
        quantile = student_quantile if prior.has_heavy_tails else normal_quantile
        likely = unit * np.exp(centre + spread * quantile(steps))
        rows = [(mean, sd, priors.SURPRISE * weight) for mean, sd, weight in rows]
        rows += [(mean, max(0.5 * spread, 0.02) * mean, (1.0 - priors.SURPRISE) / 5) for mean in likely]
    mean, sd, weight = (np.array(column) for column in zip(*rows, strict=True))
    room = room_of(blocks)
    precision = (blocks.noise / sd) ** 2
    log_weight = np.log(weight) + 0.5 * np.log(precision) - log_normal_between(-mean / sd, (room - mean) / sd)
    return Gains(mean=mean, precision=precision, log_weight=log_weight, room=room)


def make_courses(blocks: Blocks, fall: float) -> Courses:
    """Return the course without a fall, then falls: sudden ones in every gap, slow ones at a few places."""
    compute = np.sort(np.exp(blocks.x))
    gaps = (0.5 * (compute[1:] + compute[:-1]))[2:-2]
    rows = [(1.0, 1.0, 1.0)]
    if len(gaps) and fall:
        few = np.unique(np.quantile(gaps, np.linspace(0, 1, 10), method="nearest"))
        rows[0] = (1.0, 1.0, 1.0 - fall)
        for length, places in zip(priors.FALL_LENGTHS, (gaps, few), strict=True):
            weight = fall / len(priors.FALL_LENGTHS) / len(places)
            rows += [(place, length, weight) for place in places]
    place, length, weight = (np.array(column) for column in zip(*rows, strict=True))
    return Courses(place=place, length=length, log_weight=np.log(weight))
