"""Cells, one per covariance, shape and course: their mass, with everything linear integrated out in closed form.

prepare         integrates the level out of rewards and falls, once for all shapes
make_cells      integrates level and drop out of every cell: a covariance, a shape and a course
rough_mass      approximates the mass of every cell by its best gain
integrate_gain  weighs cells with the whole prior of the gain and all limits
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.covariances import CovarianceGroup, make_groups
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.normal import log_normal_between, log_normal_cdf
from scalerl.forecast.curves.problem import NO_FALL, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A problem under every covariance (first axis): everything that does not depend on the shape of the rise."""

    problem: Problem
    groups: list[CovarianceGroup]
    columns: Array
    """The level, the rewards and each fall (last axis), times the inverse covariance. The product of a rise with one of
    them is their scalar product under that covariance. The level is projected out of rewards and falls."""
    log_weight: Array
    spread: Array | None
    """Spread between runs, as a share of the observed range: one of `RUN_SPREADS` or 0; None with one run."""
    level_precision: Array
    """Posterior precision of the level, given gain and drop."""
    level: Array
    """Posterior mean of the level without gain and drop."""
    squares: Array
    """Sum of squares of the rewards after removing the level."""
    fall_on_level: Array
    """Decrease of the level's mean per unit of drop, for each course."""
    fall_precision: Array
    """Posterior precision of the drop under each course, given the gain."""
    fall: Array
    """`fall_precision` times the drop's mean without a gain."""


def prepare(problem: Problem, rise: Array | None = None) -> Prepared:
    """Integrate the level out of rewards and falls, under every covariance.

    Runs of one recipe differ in proportion to `rise`, its values at the blocks; with None they do not differ.
    """
    groups = make_groups(problem.blocks, rise)
    ones = np.ones((len(problem.rewards), 1))
    table = np.concatenate([ones, problem.rewards[:, None], problem.falls()], axis=1)
    columns, own = [], []
    for group in groups:
        rotated = group.rotate @ table
        columns.append(group.rotate.T @ (group.shrink[:, :, None] * rotated))
        own.append(group.shrink @ rotated**2)
    columns, own = np.concatenate(columns), np.concatenate(own)
    products = table[:, :2].T @ columns
    precision = products[:, 0, 0] + problem.level_precision
    level = products[:, 0, 1] / precision
    on_level = products[:, 0, 2:] / precision[:, None]
    columns[:, :, 1:] -= columns[:, :, :1] * np.concatenate([level[:, None], on_level], axis=1)[:, None]
    unit = problem.blocks.span / problem.blocks.noise
    return Prepared(
        problem=problem,
        groups=groups,
        columns=columns,
        log_weight=np.concatenate([each.log_weight for each in groups])
        + 0.5 * np.log(problem.level_precision / precision),
        spread=np.concatenate([np.full(len(each.size), each.spread / unit) for each in groups])
        if problem.blocks.num_runs > 1
        else None,
        level_precision=precision,
        level=level,
        squares=own[:, 1] - precision * level**2,
        fall_on_level=on_level,
        fall_precision=own[:, 2:] - precision[:, None] * on_level**2 + problem.drop_precision,
        fall=products[:, 1, 2:] - precision[:, None] * on_level * level[:, None],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Cells, one per covariance, shape and course: level and drop are integrated out, the gain is not yet."""

    covariance: np.ndarray
    course: np.ndarray
    """Indices of the remaining courses (and, above, covariances)."""
    log_weight: Array
    precision: Array
    """Precision of the gain, without its prior."""
    pull: Array
    """`precision` times the least-squares gain."""
    squares: Array
    """Sum of squares of the rewards after removing level and drop."""
    on_level: Array
    """Decrease of the level's mean per unit of gain (without courses)."""
    on_fall: Array
    """Decrease of the drop's mean per unit of gain."""

    def take(self, covariance: np.ndarray, shape: np.ndarray, course: np.ndarray) -> "Cells":
        """Return the selected cells of each axis."""
        whole, of_all_shapes = (covariance, shape, course), (covariance, 0, course)
        return Cells(
            covariance=self.covariance[covariance],
            course=self.course[course],
            log_weight=self.log_weight[of_all_shapes],
            precision=self.precision[whole],
            pull=self.pull[whole],
            squares=self.squares[of_all_shapes],
            on_level=self.on_level[covariance, shape],
            on_fall=self.on_fall[whole],
        )


def make_cells(prepared: Prepared, shapes: Array, covariance: np.ndarray, course: np.ndarray) -> Cells:
    """Integrate level and drop out of every cell of these shapes, covariances and courses."""
    problem = prepared.problem
    rises = problem.rises(shapes)
    products = rises.T @ prepared.columns[covariance][:, :, np.concatenate([[0, 1], 2 + course])]
    own = rise_squares(prepared.groups, rises, covariance)
    level_precision = prepared.level_precision[covariance, None]
    on_level = products[:, :, 0] / level_precision
    rise = own - level_precision * on_level**2
    here = np.ix_(covariance, course)
    fall_precision, fall = (values[here][:, None] for values in (prepared.fall_precision, prepared.fall))
    pull, along = products[:, :, 1:2], products[:, :, 2:]
    on_fall = along / fall_precision
    has_fall = np.where(course == NO_FALL, 0.0, 1.0)
    log_weight = prepared.log_weight[covariance, None] + problem.courses.log_weight[course]
    # A drop is positive, so its prior is a half-normal.
    log_weight = log_weight + has_fall * np.log(2.0 * np.sqrt(problem.drop_precision / fall_precision[:, 0]))
    return Cells(
        covariance=covariance,
        course=course,
        log_weight=log_weight[:, None],
        precision=np.maximum(rise[:, :, None] - along * on_fall, 1e-12),
        pull=pull - on_fall * fall,
        squares=prepared.squares[covariance, None, None] - fall**2 / fall_precision,
        on_level=on_level,
        on_fall=on_fall,
    )


def rise_squares(groups: list[CovarianceGroup], rises: Array, covariance: np.ndarray) -> Array:
    """Return the squared norm of each rise (columns) under these covariances, counted through all groups."""
    squares, begin = [], 0
    for group in groups:
        end = begin + len(group.size)
        size = covariance[(covariance >= begin) & (covariance < end)] - begin
        if len(size):
            squares.append(group.shrink[size] @ (group.rotate @ rises) ** 2)
        begin = end
    return np.concatenate(squares)


def log_spread_prior(spread: Array, log_gain: Array) -> Array:
    """Return the log prior of the spread between runs over the sizes to try; the spread is a share of the gain.

    `log_gain` is the logarithm of the gain in the unit of those sizes. The size 0 represents all smaller ones. The
    weights add up to 1 for every gain, so the prior of the gain does not depend on the sizes.
    """
    mean, sd = priors.LOG_RUN_SPREAD
    smallest, second = np.log(priors.RUN_SPREADS[:2]) / sd
    step = second - smallest
    none = priors.NO_RUN_SPREAD * np.sqrt(2.0 * np.pi) / step
    expected = (log_gain + mean) / sd
    # A size has the weight exp(-(size - expected)^2 / 2). Sizes are evenly spaced as logarithms, so the weights of two
    # neighbours differ by a power of one ratio: w_k = w_0 ratio^k exp(-(k step)^2 / 2). Further above them than 40, the
    # weight of each is 0. Arrays are as large as all cells, and are written in place.
    above = np.minimum(expected - smallest, 40.0)
    ratio = np.exp(step * above)
    tried = np.zeros_like(ratio)
    for k in reversed(range(len(priors.RUN_SPREADS))):
        tried *= ratio
        tried += np.exp(-0.5 * (k * step) ** 2)
    above *= above
    above *= -0.5
    tried *= np.exp(above, out=above)
    tried += none
    mine = np.log(np.maximum(spread, 1e-300)) / sd - expected
    mine *= mine
    mine *= -0.5
    np.copyto(mine, np.log(none), where=spread <= 0.0)
    mine -= np.log(tried, out=tried)
    return mine


def rough_mass(prepared: Prepared, cells: Cells) -> Array:
    """Return the log mass of every cell at its best possible gain, under the widest component of the gain's prior."""
    problem = prepared.problem
    precision = cells.precision + problem.gains.precision.min()
    gain = cells.pull / precision
    np.clip(gain, 0.0, problem.gains.room, out=gain)
    log_mass = cells.log_weight - 0.5 * np.log(precision)
    # What is left of the squares: those without a gain - 2 gain pull + precision gain^2.
    precision *= gain
    precision -= 2.0 * cells.pull
    precision *= gain
    squares = np.maximum(cells.squares + precision, 0.0, out=precision)
    squares += problem.prior_squares
    log_squares = np.log(squares, out=squares)
    log_mass -= 0.5 * problem.df * log_squares
    if prepared.spread is None:
        return log_mass
    # Spreads are in units of the noise, which may turn out larger than estimated.
    log_gain = np.log(np.maximum(gain, 1e-12, out=gain), out=gain)
    log_squares -= np.log(problem.df)
    log_squares *= 0.5
    log_gain -= log_squares
    log_gain -= np.log(problem.blocks.span / problem.blocks.noise)
    log_mass += log_spread_prior(prepared.spread[cells.covariance, None, None], log_gain)
    return log_mass


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCells:
    """Fully weighed cells (last axis) for each component of the gain's prior (first axis)."""

    log_mass: Array
    squares: Array
    """Remaining sum of squares, with that of the noise's prior."""
    drop: Array
    drop_precision: Array
    gain: Array
    gain_precision: Array
    """Precision of the gain, given the drop."""
    gain_per_drop: Array
    """Decrease of the gain's mean per unit of drop."""
    shape: Array
    covariance: np.ndarray
    course: np.ndarray
    on_level: Array


def integrate_gain(prepared: Prepared, mine: Cells, shape: Array, log_share: Array) -> FullCells:
    """Weigh cells with the whole prior of the gain and all limits; `log_share` is the log prior mass of their shapes.

    Everything is in closed form but the limits, whose probabilities are taken at likely values of the other unknowns.
    """
    problem = prepared.problem
    gains, df = problem.gains, problem.df
    # The gain under each component of its prior, with the drop integrated out ...
    precision = mine.precision + gains.precision[:, None]
    gain = (mine.pull + (gains.precision * gains.mean)[:, None]) / precision
    squares = mine.squares + (gains.precision * gains.mean**2)[:, None] - precision * gain**2
    squares = np.maximum(squares, 0.0) + problem.prior_squares
    log_mass = log_share + mine.log_weight
    log_mass = log_mass + gains.log_weight[:, None] - 0.5 * np.log(precision) - 0.5 * df * np.log(squares)
    # ... and the drop, with the gain integrated out.
    has_fall = mine.course != NO_FALL
    fall_precision = prepared.fall_precision[mine.covariance, mine.course]
    gain_precision = precision + fall_precision * mine.on_fall**2
    drop = prepared.fall[mine.covariance, mine.course] / fall_precision - gain * mine.on_fall
    weighed = FullCells(
        log_mass=log_mass,
        squares=squares,
        drop=np.where(has_fall, drop, 0.0),
        drop_precision=fall_precision * precision / gain_precision,
        gain=gain,
        gain_precision=gain_precision,
        gain_per_drop=fall_precision * mine.on_fall / gain_precision,
        shape=shape,
        covariance=mine.covariance,
        course=mine.course,
        on_level=mine.on_level,
    )
    for log_probability in log_limits(prepared, weighed):
        log_mass += log_probability
    return weighed


def log_limits(prepared: Prepared, weighed: FullCells) -> Iterator[Array]:
    """Yield the log probabilities that the drop, then the gain, the spread of runs and the level are within limits.

    Each is conditional on likely values of those before it. The limit of the drop often matters, so it comes first.
    """
    problem = prepared.problem
    blocks, room, covariance = problem.blocks, problem.gains.room, weighed.covariance
    error = np.sqrt(weighed.squares / problem.df)
    has_fall, drop = weighed.course != NO_FALL, weighed.drop
    drop_sd, gain_sd = error / np.sqrt(weighed.drop_precision), error / np.sqrt(weighed.gain_precision)
    is_drop = np.zeros_like(drop)
    is_drop[:, has_fall] = log_normal_cdf((drop / drop_sd)[:, has_fall])
    yield is_drop
    likely_drop = np.where(has_fall, np.where(drop > 0.0, drop, 0.4 * drop_sd), 0.0)
    gain = weighed.gain - weighed.gain_per_drop * (likely_drop - drop)
    yield log_normal_between(-gain / gain_sd, (room - gain) / gain_sd)
    likely_gain = np.where(gain > 0.0, np.minimum(gain, room), 0.4 * gain_sd)
    if prepared.spread is not None:
        unit = error * blocks.span / blocks.noise
        yield log_spread_prior(prepared.spread[covariance], np.log(np.maximum(likely_gain, 1e-12) / unit))
    if blocks.bounds is not None and problem.fixed_ceiling is None:
        # Allow a level one standard error below the limit, since noise may put it there.
        level = problem.centre + prepared.level[covariance] - likely_gain * weighed.on_level - blocks.bounds[0]
        level -= likely_drop * prepared.fall_on_level[covariance, weighed.course]
        yield log_normal_cdf(level / error * np.sqrt(prepared.level_precision[covariance]) + 1.0)


def log_sum(values: Array) -> float:
    """Return log(sum(exp(values)))."""
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))
