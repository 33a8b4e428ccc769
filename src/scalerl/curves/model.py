"""One probabilistic model of a reward-against-compute curve, and its posterior.

    reward = level + gain * s(C) - drop * f(C) + wander + run * s(C) + noise

    level, gain   the reward before training, and what the rise adds to it; ceiling = level + gain
    s             the paper's sigmoid (arXiv 2510.13786, eq. 1) with a skew, or another form
    drop, f       how far the reward falls after its peak, and the share of the fall that has happened at C
    wander        slow drift of the evaluations (an Ornstein-Uhlenbeck process along them), or a departure of the curve
                  from its shape (a Matern process in log compute)
    run           how far the gain of one run lies from the mean of the runs, and that from the recipe
    noise         binomial where the number of answers is known, otherwise of one unknown size

A curve is *flat* (no rise), a *rise*, or a rise with a *fall*. Given a shape (exponent, midpoint, skew), a course (no
fall, or one that begins at some place) and a covariance of the wander, the rest is linear: level, gain, drop and the
size of the noise integrate out in closed form (`weigh`). Courses and covariances are few and are summed over. Shapes
are found by rounds of weighing and drawing again (`search`). Nothing is tested first, repaired or widened afterwards.
`priors.py` has every number that is taken for granted; docs/math.md derives the formulas.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from scalerl.curves import priors
from scalerl.curves.data import Blocks
from scalerl.curves.forms import FORMS, Array, Form, sigmoid
from scalerl.curves.normal import (
    log_normal_between,
    log_normal_cdf,
    normal_cdf,
    normal_quantile,
    student_quantile,
)
from scalerl.curves.priors import Prior

MODEL = "scalerl-curve-7"
"""Name of the model in JSON, sealed forecasts and prior files. Change it whenever the same points get other answers."""
NUM_DRAWS = 2000
"""Draws that a posterior consists of."""
NO_FALL = 0
"""Number of the course without a fall."""


class Kind(IntEnum):
    """What happens to the reward: nothing, a rise, or a rise with a fall after it."""

    flat = 0
    rise = 1
    fall = 2


# The problem: data and prior in one unit ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """The courses that a rise may take: `NO_FALL`, then falls that differ in place and length. One entry for each."""

    place: Array
    """Compute at which the fall begins, relative to the largest."""
    length: Array
    """Time constant of the fall, as a share of the compute from its place to the largest."""
    log_weight: Array
    """Logarithm of the prior probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wander:
    """Covariances `noise + spread between runs + size * kernel` for several sizes; one rotation makes all diagonal."""

    kernel: int
    """Number of the kernel in the list of `kernels`."""
    size: Array
    """In units of the noise's variance."""
    spread: float
    """Standard deviation between runs, in units of the noise."""
    rotate: Array
    shrink: Array
    """Precision of each rotated direction (columns) for every size (rows), 1 without wander."""
    log_weight: Array
    """Logarithm of the prior probability of each size, plus that of the normal density's constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Normal components of the gain's prior, cut off at 0 and at what is possible."""

    mean: Array
    precision: Array
    """In units of the noise."""
    log_weight: Array
    room: float
    """The largest gain that is possible; infinite for rewards without limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The evaluations of a fit, and the prior of everything that is unknown about them."""

    blocks: Blocks
    form: Form
    prior: Prior
    fixed_ceiling: float | None
    rewards: Array
    """Relative to `centre`; the start, where it is known, comes last."""
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
        """Sum of squares that the noise's prior adds to that of the residuals."""
        return self.noise_df * self.blocks.noise**2

    def with_start(self, values: Array) -> Array:
        """Add a row for the start, where nothing has happened yet."""
        return values if self.blocks.start is None else np.concatenate([values, np.zeros((1, values.shape[1]))])

    def rises(self, shapes: Array) -> Array:
        """Return the columns of the gain. With a fixed ceiling, level = ceiling - gain."""
        columns = self.with_start(self.form.shape(self.blocks.x[:, None], *shapes))
        return columns if self.fixed_ceiling is None else columns - 1.0

    def falls(self) -> Array:
        """Return the column of the drop for every course."""
        shares = fallen_share(np.exp(self.blocks.x)[:, None], self.courses.place, self.courses.length)
        shares[:, NO_FALL] = 0.0
        return -self.with_start(shares)

    def shapes(self, normal: Array) -> Array:
        """Return log exponent, midpoint and skew (rows) for standard normal numbers (columns), following the prior."""
        prior = self.prior
        exponent, midpoint = normal[:, 0], normal[:, 1]
        if prior.has_heavy_tails:
            exponent, midpoint = student_quantile(normal_cdf(np.clip(normal[:, :2].T, -7.0, 7.0)))
        places = (prior.log_exponent, prior.log_midpoint, priors.LOG_SKEW)
        return np.stack([m + sd * z for (m, sd), z in zip(places, (exponent, midpoint, normal[:, 2]), strict=True)])


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
    """Return the largest gain that is possible; infinite for rewards without limits."""
    if blocks.bounds is None:
        return np.inf
    low, high = blocks.bounds
    if blocks.start is None:
        # A run may have risen within its first evaluations, or have fallen below them since.
        first = blocks.y[np.argsort(blocks.x, kind="stable")][: max(blocks.num // 20, 1)]
        from_here = min(float(first.mean()), float(np.quantile(blocks.y, 0.1)))
    else:
        from_here = blocks.start
    return max(high - from_here, 0.02 * (high - low))


def gain_unit(blocks: Blocks) -> float:
    """Return what the prior counts gains in: what is possible, or the range that was seen."""
    return blocks.span if blocks.bounds is None else room_of(blocks)


def make_gains(blocks: Blocks, prior: Prior) -> Gains:
    """Return the prior of the gain: wide components, and narrow ones where earlier runs inform it."""
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


# Wander ---------------------------------------------------------------------------------------------------------------

Place = tuple[Array, Array, np.ndarray]
"""Log compute, number among the evaluations, and run, of several evaluations."""


def places_of(blocks: Blocks) -> Place:
    return blocks.x, blocks.index, blocks.run


def movement(blocks: Blocks, x: Array) -> Array:
    """Return how much of its range the run moves within a factor of compute about each place, up to 1.

    A curve departs from its shape where it moves, not where it has levelled off.
    """
    order = np.argsort(blocks.x, kind="stable")
    places, level = blocks.x[order], blocks.y[order]
    num = max(len(level) // 12, 1)
    smooth = np.convolve(np.pad(level, num, mode="edge"), np.full(2 * num + 1, 1.0 / (2 * num + 1)), mode="valid")
    here = np.clip(x, places[0], places[-1])
    high, low = (np.interp(here + side * 0.5 * priors.MISFIT_LENGTH, places, smooth) for side in (1.0, -1.0))
    return np.clip(np.abs(high - low) / blocks.span, priors.LEAST_MOVEMENT, 1.0)


def kernels(blocks: Blocks, here: Place, there: Place) -> list[Array]:
    """Return the correlations of drift, for each of its lengths, and of misfit between two sets of evaluations."""
    same_run = np.equal.outer(here[2], there[2])
    apart = np.abs(np.subtract.outer(here[1], there[1])) / float(np.median(blocks.size))
    drifts = [same_run * np.exp(-apart / length) for length in priors.DRIFT_LENGTHS]
    scaled = np.sqrt(3.0) * np.abs(np.subtract.outer(here[0], there[0])) / priors.MISFIT_LENGTH
    moving = np.outer(movement(blocks, here[0]), movement(blocks, there[0]))
    return [*drifts, moving * (1.0 + scaled) * np.exp(-scaled)]


def make_wanders(problem: Problem, shared_shape: Array | None) -> list[Wander]:
    """Return every covariance that is tried.

    The rewards of runs of one recipe differ in proportion to a sigmoid of `shared_shape`; with None they do not differ.
    """
    blocks = problem.blocks
    unit = blocks.span / blocks.noise
    num, extra = blocks.num, len(problem.rewards) - blocks.num
    noise = np.diag(np.append(blocks.weight, [blocks.start_weight] * extra))
    # Sizes and their prior probabilities, a table for each kernel. No wander at all stands once, in the first.
    drifts = np.array(priors.DRIFTS)
    no_wander = np.array([[0.0, priors.INDEPENDENT]])
    misfits = np.array(priors.MISFITS) * (unit, 1.0)
    misfits[:, 0] **= 2
    sizes_of_kernels = [np.concatenate([no_wander, drifts]), *[drifts] * (len(priors.DRIFT_LENGTHS) - 1), misfits]
    spreads = (0.0,) if shared_shape is None else (0.0, *priors.RUN_SPREADS)
    risen = np.zeros(num) if shared_shape is None else sigmoid(blocks.x, *shared_shape)
    # What the runs have in common is the recipe's: how far they lie from it in the mean cannot be seen.
    between = (np.equal.outer(blocks.run, blocks.run) - 1.0 / blocks.num_runs) * np.outer(risen, risen)
    matrices = kernels(blocks, places_of(blocks), places_of(blocks))
    wanders = []
    for spread in spreads:
        base = noise.copy()
        base[:num, :num] += (spread * unit) ** 2 * between
        factor = np.linalg.cholesky(base)
        whiten = np.linalg.inv(factor)
        for number, kernel in enumerate(matrices):
            inner = whiten[:, :num] @ kernel @ whiten[:, :num].T
            values, vectors = np.linalg.eigh(inner)
            size, weight = sizes_of_kernels[number].T
            shrink = 1.0 / (1.0 + np.outer(size, np.maximum(values, 0.0)))
            log_weight = np.log(weight) - np.log(np.diag(factor)).sum()
            wanders.append(
                Wander(
                    kernel=number,
                    size=size,
                    spread=spread * unit,
                    rotate=np.asarray(vectors.T @ whiten, dtype=float),
                    shrink=shrink,
                    log_weight=log_weight + 0.5 * np.log(shrink).sum(axis=1),
                )
            )
    return wanders


# Weighing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What does not depend on the shape of the rise: level and drop under every covariance (first axis)."""

    columns: Array
    """The level, the rewards and each fall (last axis), times the inverse covariance. The product of a rise with one of
    them is their scalar product under that covariance. The level is projected out of rewards and falls."""
    log_weight: Array
    spread: Array | None
    """Spread between runs, as a share of the range that was seen: one of `RUN_SPREADS` or 0; None with one run."""
    level_precision: Array
    """Posterior precision of the level, given gain and drop ..."""
    level: Array
    """... and its mean without any."""
    squares: Array
    """Sum of squares of the rewards, less what the level explains."""
    fall_on_level: Array
    """How much a drop of 1 lowers the level, under each course."""
    fall_precision: Array
    """Posterior precision of the drop under each course, given the gain ..."""
    fall: Array
    """... and times the drop's mean without a gain."""


def make_known(problem: Problem, wanders: list[Wander]) -> Known:
    """Integrate the level out of rewards and falls, under every covariance."""
    ones = np.ones((len(problem.rewards), 1))
    table = np.concatenate([ones, problem.rewards[:, None], problem.falls()], axis=1)
    columns, own = [], []
    for wander in wanders:
        rotated = wander.rotate @ table
        columns.append(wander.rotate.T @ (wander.shrink[:, :, None] * rotated))
        own.append(wander.shrink @ rotated**2)
    columns, own = np.concatenate(columns), np.concatenate(own)
    products = table[:, :2].T @ columns
    precision = products[:, 0, 0] + problem.level_precision
    level = products[:, 0, 1] / precision
    on_level = products[:, 0, 2:] / precision[:, None]
    columns[:, :, 1:] -= columns[:, :, :1] * np.concatenate([level[:, None], on_level], axis=1)[:, None]
    unit = problem.blocks.span / problem.blocks.noise
    return Known(
        columns=columns,
        log_weight=np.concatenate([each.log_weight for each in wanders])
        + 0.5 * np.log(problem.level_precision / precision),
        spread=np.concatenate([np.full(len(each.size), each.spread / unit) for each in wanders])
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
    """Covariances x shapes x courses: level and drop are integrated out, the gain is not yet."""

    covariance: np.ndarray
    course: np.ndarray
    """Numbers of the covariances and courses that are still tried."""
    log_weight: Array
    precision: Array
    """Precision of the gain, without its prior ..."""
    pull: Array
    """... and times its least-squares value."""
    squares: Array
    """Sum of squares of the rewards, less what level and drop explain."""
    on_level: Array
    """How much a gain of 1 lowers the level (without courses) ..."""
    on_fall: Array
    """... and the drop."""


def weigh(
    problem: Problem, wanders: list[Wander], known: Known, shapes: Array, covariance: np.ndarray, course: np.ndarray
) -> Cells:
    """Integrate level and drop out of every cell: shapes with these numbers of covariances and courses."""
    rises = problem.rises(shapes)
    with_known = rises.T @ known.columns[covariance][:, :, np.concatenate([[0, 1], 2 + course])]
    # Squares of the rises. Covariances are numbered through all wanders.
    own, begin = [], 0
    for wander in wanders:
        end = begin + len(wander.size)
        size = covariance[(covariance >= begin) & (covariance < end)] - begin
        if len(size):
            own.append(wander.shrink[size] @ (wander.rotate @ rises) ** 2)
        begin = end
    own = np.concatenate(own)
    level_precision = known.level_precision[covariance, None]
    on_level = with_known[:, :, 0] / level_precision
    rise = own - level_precision * on_level**2
    here = np.ix_(covariance, course)
    fall_precision, fall = (values[here][:, None] for values in (known.fall_precision, known.fall))
    pull, along = with_known[:, :, 1:2], with_known[:, :, 2:]
    on_fall = along / fall_precision
    has_fall = np.where(course == NO_FALL, 0.0, 1.0)
    log_weight = known.log_weight[covariance, None] + problem.courses.log_weight[course]
    # A drop is positive: half of its prior is cut off.
    log_weight = log_weight + has_fall * np.log(2.0 * np.sqrt(problem.drop_precision / fall_precision[:, 0]))
    return Cells(
        covariance=covariance,
        course=course,
        log_weight=log_weight[:, None],
        precision=np.maximum(rise[:, :, None] - along * on_fall, 1e-12),
        pull=pull - on_fall * fall,
        squares=known.squares[covariance, None, None] - fall**2 / fall_precision,
        on_level=on_level,
        on_fall=on_fall,
    )


def log_spread_prior(spread: Array, gain: Array, unit: Array) -> Array:
    """Return the log prior of the spread between runs, a share of the gain, among the sizes that are tried.

    `unit` is what those sizes count in. No spread stands for all that are smaller. The weights add up to 1 for every
    gain: how large a gain is likely to be does not depend on the sizes that are tried.
    """
    mean, sd = priors.LOG_RUN_SPREAD
    expected = (np.log(np.maximum(gain, 1e-12) / unit) + mean) / sd
    none = priors.NO_RUN_SPREAD * np.sqrt(2.0 * np.pi) * sd / np.log(priors.RUN_SPREADS[1] / priors.RUN_SPREADS[0])

    def weight(size: Array | float) -> Array:
        return np.exp(np.maximum(-0.5 * (np.log(size) / sd - expected) ** 2, -500.0))

    tried = none + sum(weight(size) for size in priors.RUN_SPREADS)
    mine = np.where(spread > 0.0, weight(np.maximum(spread, 1e-300)), none)
    return np.log(np.maximum(mine, 1e-300) / tried)


def rough_mass(problem: Problem, known: Known, cells: Cells) -> Array:
    """Return the log mass of every cell at the best gain that is possible, under the widest component of its prior."""
    precision = cells.precision + problem.gains.precision.min()
    gain = np.clip(cells.pull / precision, 0.0, problem.gains.room)
    squares = cells.squares - 2.0 * gain * cells.pull + precision * gain**2
    squares = np.maximum(squares, 0.0) + problem.prior_squares
    log_mass = cells.log_weight - 0.5 * np.log(precision) - 0.5 * problem.df * np.log(squares)
    if known.spread is None:
        return log_mass
    # Spreads are tried in units of the noise, which may turn out larger than was guessed.
    unit = np.sqrt(squares / problem.df) * problem.blocks.span / problem.blocks.noise
    return log_mass + log_spread_prior(known.spread[cells.covariance, None, None], gain, unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """Cells that matter (last axis) with the components of the gain's prior (first axis), weighed exactly."""

    log_mass: Array
    squares: Array
    """Sum of squares that is left for the noise, with that of its prior."""
    drop: Array
    drop_precision: Array
    gain: Array
    gain_precision: Array
    """Precision of the gain, given the drop ..."""
    trade: Array
    """... and how much less the gain is for a drop that is larger by 1."""
    shape: Array
    covariance: np.ndarray
    course: np.ndarray
    on_level: Array


NUM_WEIGHED = 1200
"""Cells that are drawn to be weighed exactly."""


def weigh_exactly(
    problem: Problem,
    known: Known,
    cells: Cells,
    shapes: Array,
    rough: Array,
    log_share: Array,
    rng: np.random.Generator,
) -> Weighed:
    """Draw cells by their rough mass, and weigh them with the whole prior of the gain and all limits.

    The limits are those of gain, drop and level. `log_share` is the prior mass that each shape stands for. A drawn cell
    counts by its exact mass over its rough one, so that the total is that of all cells.
    """
    gains, blocks = problem.gains, problem.blocks
    log_cell = rough + log_share[:, None]
    top = float(log_cell.max())
    mass = np.exp(log_cell - top).ravel()
    which = drawn_by_mass(mass, (np.arange(NUM_WEIGHED) + rng.uniform()) / NUM_WEIGHED)
    # Places of the covariance, the shape and the course of each.
    j, r, q = np.unravel_index(which, log_cell.shape)
    log_mass = top + np.log(mass.sum() / NUM_WEIGHED) - rough[j, r, q] + cells.log_weight[j, 0, q]
    # The gain under each component of its prior (first axis), with the drop integrated out.
    gain_precision = cells.precision[j, r, q] + gains.precision[:, None]
    gain = (cells.pull[j, r, q] + (gains.precision * gains.mean)[:, None]) / gain_precision
    squares = cells.squares[j, 0, q] + (gains.precision * gains.mean**2)[:, None] - gain_precision * gain**2
    squares = np.maximum(squares, 0.0) + problem.prior_squares
    error = np.sqrt(squares / problem.df)
    log_mass = log_mass + gains.log_weight[:, None] - 0.5 * np.log(gain_precision) - 0.5 * problem.df * np.log(squares)
    # The limits: that of the drop first, which often matters, then that of the gain at the likely drop.
    covariance, course = cells.covariance[j], cells.course[q]
    has_fall = course != NO_FALL
    fall_precision, on_fall = known.fall_precision[covariance, course], cells.on_fall[j, r, q]
    precision_given_drop = gain_precision + fall_precision * on_fall**2
    drop = np.where(has_fall, known.fall[covariance, course] / fall_precision - gain * on_fall, 0.0)
    drop_precision = fall_precision * gain_precision / precision_given_drop
    drop_sd, gain_sd = error / np.sqrt(drop_precision), error / np.sqrt(precision_given_drop)
    log_mass[:, has_fall] += log_normal_cdf((drop / drop_sd)[:, has_fall])
    likely_drop = np.where(has_fall, np.where(drop > 0.0, drop, 0.4 * drop_sd), 0.0)
    trade = fall_precision * on_fall / precision_given_drop
    gain_given_drop = gain - trade * (likely_drop - drop)
    log_mass += log_normal_between(-gain_given_drop / gain_sd, (gains.room - gain_given_drop) / gain_sd)
    likely_gain = np.where(gain_given_drop > 0.0, np.minimum(gain_given_drop, gains.room), 0.4 * gain_sd)
    on_level = cells.on_level[j, r]
    if known.spread is not None:
        log_mass += log_spread_prior(known.spread[covariance], likely_gain, error * blocks.span / blocks.noise)
    if blocks.bounds is not None and problem.fixed_ceiling is None:
        # A level below what is possible; by one standard error, since noise may put it there.
        level = problem.centre + known.level[covariance] - likely_gain * on_level - blocks.bounds[0]
        level -= likely_drop * known.fall_on_level[covariance, course]
        log_mass += log_normal_cdf(level / error * np.sqrt(known.level_precision[covariance]) + 1.0)
    return Weighed(
        log_mass=log_mass,
        squares=squares,
        drop=drop,
        drop_precision=drop_precision,
        gain=gain,
        gain_precision=precision_given_drop,
        trade=trade,
        shape=shapes[:, r],
        covariance=covariance,
        course=course,
        on_level=on_level,
    )


# Where the shapes are -------------------------------------------------------------------------------------------------

WIDE = 1.2
"""Standard deviation of the first shapes, in units of the prior's."""
ALWAYS_WIDE = 0.1
"""Share of the shapes of every round that are drawn with that width."""
NUM_CENTRES = 40
"""Old shapes that the new ones of a round are drawn about."""
WIDTH = 0.7
"""Standard deviation of a new shape about an old one, in units of the old ones' spread."""
EFFECTIVE = 14.0
"""Least effective number of the old shapes, from which these centres are drawn."""
MOST_ROUNDS = 12
ENOUGH = 0.25
"""The search ends once the effective number of the shapes is this share of their number."""
MOST_COURSES = 12
"""Courses that are still tried after the first round."""
NEGLIGIBLE = 1e-4
"""Share of the mass below which a covariance is no longer tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Shapes, as the numbers that `Problem.shapes` takes, with the log mass of each over covariances and courses."""

    normal: Array
    log_mass: Array

    def wider(self) -> "Cloud":
        """Return the cloud with flatter masses, to begin the search of a problem whose mass is nearby."""
        return Cloud(normal=self.normal, log_mass=0.2 * self.log_mass)


def search(
    problem: Problem,
    wanders: list[Wander],
    known: Known,
    course: np.ndarray,
    sizes: tuple[int, int, int],
    rng: np.random.Generator,
    begin: Cloud | None = None,
) -> tuple[Weighed, Cloud]:
    """Weigh shapes and draw new ones about the heavy ones until enough have mass; return the last, as cells and cloud.

    This is adaptive importance sampling. `course` holds the courses to try, `begin` is a cloud to start from. `sizes`
    are the numbers of shapes in the first round, in later ones and in the last.
    """
    first, again, last = sizes
    covariance = np.arange(len(known.level))
    cloud, log_lost, effective_share, is_last = begin, 0.0, 0.0, False
    num_rounds = 0
    while True:
        is_last = num_rounds >= MOST_ROUNDS or (num_rounds > 1 and effective_share >= ENOUGH)
        num = first if num_rounds == 0 else last if is_last else again
        normal, log_drawn = draw_again(cloud, num, rng)
        shapes = problem.shapes(normal)
        cells = weigh(problem, wanders, known, shapes, covariance, course)
        # Each shape counts by its density under the prior over that with which it was drawn.
        rough, log_share = rough_mass(problem, known, cells), log_normal(normal) - log_drawn
        mass = rough + log_share[:, None]
        mass = np.exp(mass - mass.max())
        by_shape = mass.sum(axis=(0, 2))
        cloud = Cloud(normal=normal, log_mass=np.log(np.maximum(by_shape, 1e-290)))
        if is_last:
            log_share = log_share - np.log(num) - log_lost
            return weigh_exactly(problem, known, cells, shapes, rough, log_share, rng), cloud
        effective_share = effective_number(by_shape) / num
        if len(course) > MOST_COURSES:
            by_course = mass.sum(axis=(0, 1))
            best = np.sort(np.argsort(-by_course)[:MOST_COURSES])
            # The courses that are kept stand for all of them in the total.
            log_lost += np.log(by_course[best].sum() / by_course.sum())
            course = course[best]
        if num_rounds:
            covariance = covariance[mass.sum(axis=(1, 2)) > NEGLIGIBLE * mass.sum()]
        num_rounds += 1


def log_normal(normal: Array, sd: float = 1.0) -> Array:
    """Return the log density of normal numbers (rows), up to the constant that all of these have."""
    return -0.5 * (normal**2).sum(axis=1) / sd**2 - normal.shape[1] * np.log(sd)


def effective_number(weight: Array) -> float:
    """Return how many equal weights would be worth as much as these (Kish)."""
    return float(weight.sum() ** 2 / (weight @ weight))


def draw_again(cloud: Cloud | None, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw shapes about those of a cloud, or from a wide prior without one; return them and their log density."""
    dims = 3
    even = spread_evenly(num, dims + 1, rng)
    normal = normal_quantile(np.clip(even[:, :dims], 1e-4, 1.0 - 1e-4))
    if cloud is None:
        return WIDE * normal, log_normal(WIDE * normal, WIDE)
    weight = tempered(cloud.log_mass, EFFECTIVE)
    off = cloud.normal - weight @ cloud.normal
    factor = WIDTH * np.linalg.cholesky((weight[:, None] * off).T @ off + 1e-10 * np.eye(dims))
    centres = cloud.normal[drawn_by_mass(weight, (np.arange(NUM_CENTRES) + rng.uniform()) / NUM_CENTRES)]
    is_wide = even[:, dims] < ALWAYS_WIDE
    centre = ((even[:, dims] - ALWAYS_WIDE) / (1.0 - ALWAYS_WIDE) * NUM_CENTRES).astype(int)
    drawn = np.where(is_wide[:, None], WIDE * normal, centres[centre] + normal @ factor.T)
    # The density of what was drawn: a mixture of normals about the centres and of the wide one.
    inverse = np.linalg.inv(factor).T
    mine, theirs = drawn @ inverse, centres @ inverse
    apart = (mine**2).sum(axis=1)[:, None] + (theirs**2).sum(axis=1) - 2.0 * mine @ theirs.T
    near = np.exp(-0.5 * apart).mean(axis=1) / np.prod(np.diag(factor))
    return drawn, np.log((1.0 - ALWAYS_WIDE) * near + ALWAYS_WIDE * np.exp(log_normal(drawn, WIDE)))


def drawn_by_mass(mass: Array, shares: Array) -> np.ndarray:
    """Return the places at which these shares of the total mass are reached."""
    total = np.cumsum(mass)
    return np.minimum(np.searchsorted(total, shares * total[-1]), len(total) - 1)


def spread_evenly(num: int, dims: int, rng: np.random.Generator) -> Array:
    """Return points of a unit cube that cover it more evenly than random ones: an additive recurrence."""
    # The golden ratio, generalised to this many dimensions; its powers are the steps.
    base = 2.0
    for _ in range(30):
        base = (1.0 + base) ** (1.0 / (dims + 1))
    steps = base ** -np.arange(1.0, dims + 1)
    places = rng.uniform(size=dims) + np.outer(np.arange(1, num + 1), steps)
    return places - np.floor(places)


def tempered(log_mass: Array, least: float) -> Array:
    """Return weights, the mass to a power: the largest up to 1 whose effective number is at least `least`."""
    power, low, high = 1.0, 0.0, 1.0
    log_mass = log_mass - log_mass.max()
    for _ in range(10):
        weight = np.exp(power * log_mass)
        low, high = (power, high) if effective_number(weight) >= least else (low, power)
        if low == 1.0:
            break
        power = 0.5 * (low + high)
    weight = np.exp(low * log_mass)
    return weight / weight.sum()


# The posterior --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws of everything, in no order."""

    kind: np.ndarray
    level: Array
    gain: Array
    log_exponent: Array
    log_midpoint: Array
    """Relative to the largest compute."""
    log_skew: Array
    drop: Array
    """How far the reward falls in the end; 0 without a fall."""
    place: Array
    length: Array
    """Place and length of the fall, as in `Courses`."""
    noise: Array
    covariance: np.ndarray
    """Number of the covariance, through all wanders."""
    far: Array
    """Standard normal numbers for what no evaluation shows: how far the curve leaves its shape beyond the last ..."""
    beside: Array
    """... and how far the recipe lies from the mean of its runs."""
    seen: np.ndarray
    """Whether the rise or the fall is larger than `NOTICED` of its own standard errors."""

    def take(self, which) -> "Draws":
        return Draws(**{name: getattr(self, name)[which] for name in self.__slots__})

    @staticmethod
    def join(many: "list[Draws]", order: np.ndarray) -> "Draws":
        names = Draws.__slots__
        return Draws(**{name: np.concatenate([getattr(each, name) for each in many])[order] for name in names})


def draw(problem: Problem, known: Known, weighed: Weighed, num: int, rng: np.random.Generator) -> Draws:
    """Draw cells and components of the gain by their mass, then everything that was integrated out."""
    component, cell = np.unravel_index(_drawn(weighed.log_mass, num, rng), weighed.log_mass.shape)
    covariance, course = weighed.covariance[cell], weighed.course[cell]
    noise = np.sqrt(weighed.squares[component, cell] / rng.chisquare(problem.df, num))
    drop_sd = noise / np.sqrt(weighed.drop_precision[component, cell])
    has_fall = course != NO_FALL
    shares, drop = rng.uniform(size=num), np.zeros(num)
    drop[has_fall] = cut_normal(weighed.drop[component, cell][has_fall], drop_sd[has_fall], np.inf, shares[has_fall])
    gain_sd = noise / np.sqrt(weighed.gain_precision[component, cell])
    mean = weighed.gain[component, cell] - weighed.trade[component, cell] * (drop - weighed.drop[component, cell])
    gain = cut_normal(mean, gain_sd, problem.gains.room, rng.uniform(size=num))
    level = problem.centre + known.level[covariance] - gain * weighed.on_level[cell]
    level -= drop * known.fall_on_level[covariance, course]
    level += noise / np.sqrt(known.level_precision[covariance]) * rng.standard_normal(num)
    log_exponent, log_midpoint, log_skew = weighed.shape[:, cell]
    return Draws(
        kind=np.where(has_fall, Kind.fall, Kind.rise),
        level=level if problem.fixed_ceiling is None else level - gain,
        gain=gain,
        log_exponent=log_exponent,
        log_midpoint=log_midpoint,
        log_skew=log_skew,
        drop=drop,
        place=problem.courses.place[course],
        length=problem.courses.length[course],
        noise=noise,
        covariance=covariance,
        far=rng.standard_normal(num),
        beside=rng.standard_normal(num),
        seen=(gain >= priors.NOTICED * gain_sd) | (drop >= priors.NOTICED * drop_sd),
    )


def draw_flat(problem: Problem, known: Known, log_mass: Array, num: int, rng: np.random.Generator) -> Draws:
    """Draw curves without a rise; `log_mass` is that of each covariance."""
    covariance, zero = _drawn(log_mass, num, rng), np.zeros(num)
    noise = np.sqrt((known.squares[covariance] + problem.prior_squares) / rng.chisquare(problem.df, num))
    level = problem.centre + known.level[covariance]
    return Draws(
        kind=np.full(num, Kind.flat),
        level=level + noise / np.sqrt(known.level_precision[covariance]) * rng.standard_normal(num),
        **dict.fromkeys(("gain", "log_exponent", "log_midpoint", "log_skew", "drop"), zero),
        place=zero + 1.0,
        length=zero + 1.0,
        noise=noise,
        covariance=covariance,
        far=rng.standard_normal(num),
        beside=rng.standard_normal(num),
        seen=zero > 0,
    )


def _drawn(log_mass: Array, num: int, rng: np.random.Generator) -> np.ndarray:
    """Return `num` places in the flat array of masses, drawn by mass at even distances, in random order."""
    shares = (rng.permutation(num) + rng.uniform()) / max(num, 1)
    return drawn_by_mass(np.exp(log_mass - log_mass.max()), shares)


def cut_normal(mean: Array, sd: Array, high: float, share: Array) -> Array:
    """Return the quantiles at these shares of normals that are cut off below 0 and above `high`."""
    # From the tail that is nearer, where small probabilities are exact.
    sign = np.where(mean < 0.0, -1.0, 1.0)
    one, other = normal_cdf(sign * (0.0 - mean) / sd), normal_cdf(sign * (high - mean) / sd)
    value = mean + sign * sd * normal_quantile(np.clip(one + (other - one) * share, 1e-300, 1.0 - 1e-15))
    return np.clip(value, 0.0, high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Draws of the model given the evaluations, and what follows from them. Compute has the unit of the data."""

    blocks: Blocks
    form: Form
    draws: Draws
    wanders: list[Wander]
    shared_shape: Array | None
    """Log exponent, midpoint and skew along which runs differ; None with one run."""
    fixed_ceiling: float | None
    room: float
    """The largest gain that is possible."""

    def curve(self, compute) -> Array:
        """Return the recipe's own curve: one row for every draw, one column for every compute.

        Beyond the last evaluation it may leave its shape, further with each doubling until its rise is over. The mean
        of several runs lies above or below the recipe, in proportion to its rise.
        """
        mean = self.mean_curve(compute)
        if self.shared_shape is None:
            return mean
        x = self._x_of(compute)
        return self.clipped(mean + self.recipe_offset[:, None] * sigmoid(x, *self.shared_shape))

    @property
    def recipe_offset(self) -> Array:
        """Draws of how far the recipe's ceiling lies from the mean of its runs."""
        if self.shared_shape is None:
            return np.zeros(len(self.draws.kind))
        spread = self._of_covariance("spread") * self.draws.noise / np.sqrt(self.blocks.num_runs)
        return spread * self.draws.beside

    def _x_of(self, compute) -> Array:
        """Return the logarithm of compute in units of the largest that was measured."""
        return np.log(np.maximum(np.atleast_1d(np.asarray(compute, dtype=float)) / self.blocks.scale, 1e-9))

    def mean_curve(self, compute) -> Array:
        """Return draws of the curve that the runs have in common."""
        d, x = self.draws, self._x_of(compute)
        column = lambda name: getattr(d, name)[:, None]  # noqa: E731
        shape = self.form.shape(x, column("log_exponent"), column("log_midpoint"), column("log_skew"))
        curve = column("level") + column("gain") * shape
        falls = np.flatnonzero(d.kind == Kind.fall)
        curve[falls] -= d.drop[falls, None] * fallen_share(np.exp(x), d.place[falls, None], d.length[falls, None])
        if x.max(initial=0.0) > 0.0:
            curve += self.departure[:, None] * np.sqrt(np.clip(x / np.log(2.0), 0.0, self.doublings_left[:, None]))
        return self.clipped(curve)

    @property
    def doublings_left(self) -> Array:
        """Draws of how many doublings after the last evaluation 95 % of the rise is over, cut to 1 to 4."""
        d = self.draws
        return np.clip((d.log_midpoint + np.log(19.0) * np.exp(-d.log_exponent)) / np.log(2.0), 1.0, 4.0)

    @property
    def departure(self) -> Array:
        """Draws of how far the curve has left its shape one doubling beyond the last evaluation, up or down.

        It is of the order of a share of what the last doubling brought. After a fall, what has been lost is added: the
        run may lose as much again, or recover.
        """
        d = self.draws
        ends = self.form.shape(np.log([[0.5], [1.0]]), d.log_exponent, d.log_midpoint, d.log_skew)
        dropped = d.drop * fallen_share(np.ones(len(d.drop)), d.place, d.length)
        return d.far * (dropped + priors.DIVERGENCE * d.gain * (ends[1] - ends[0]))

    @property
    def ceiling(self) -> Array:
        """Draws of the reward that the curve rises to, if it does not fall."""
        d = self.draws
        if self.fixed_ceiling is not None:
            return np.full(len(d.kind), self.fixed_ceiling)
        departure = np.where(d.kind == Kind.fall, 0.0, self.departure * np.sqrt(self.doublings_left))
        misfit = np.where(self._of_covariance("kernel") == len(priors.DRIFT_LENGTHS), self._of_covariance("size"), 0.0)
        misfit = np.sqrt(misfit) * float(movement(self.blocks, np.zeros(1))[0])
        return self.clipped(d.level + d.gain + departure + d.far * misfit * d.noise + self.recipe_offset)

    def path(self) -> Array:
        """Return draws (rows) of the run's own course at every block: its curve with its wander, without noise."""
        blocks, d = self.blocks, self.draws
        path = self.mean_curve(blocks.scale * np.exp(blocks.x))
        residual = blocks.y - path
        rng = np.random.default_rng(2)
        for wander, number, mine in self._by_covariance():
            kept = 1.0 - wander.shrink[number]
            if kept.any():
                unrotate = np.linalg.inv(wander.rotate)[: blocks.num]
                mean = (residual[mine] @ wander.rotate[:, : blocks.num].T) * kept
                sd = d.noise[mine, None] * np.sqrt(kept)
                path[mine] += (mean + sd * rng.standard_normal(mean.shape)) @ unrotate.T
        return self.clipped(path)

    def new(self, compute) -> Array:
        """Return draws of a new evaluation at each compute: of the same run, or of a new one where there are several.

        The residuals of the evaluations say where drift and misfit are now; beyond them these go back to nothing.
        """
        blocks, d = self.blocks, self.draws
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        x = np.log(compute / blocks.scale)
        index = blocks.index.max() + (compute - blocks.scale) / blocks.spacing
        here = (x, index, np.full(len(x), 0 if blocks.num_runs == 1 else -1))
        shared = kernels(blocks, places_of(blocks), here)
        risen = np.zeros(len(x)) if self.shared_shape is None else sigmoid(x, *self.shared_shape)
        values = self.curve(compute)
        residual = blocks.y - self.mean_curve(blocks.scale * np.exp(blocks.x))
        normal = np.random.default_rng(1).standard_normal(values.shape)
        for wander, number, mine in self._by_covariance():
            size, rotate = wander.size[number], wander.rotate[:, : blocks.num]
            half = np.sqrt(wander.shrink[number])[:, None] * (rotate @ (size * shared[wander.kernel]))
            values[mine] += residual[mine] @ (rotate.T @ (np.sqrt(wander.shrink[number])[:, None] * half))
            own = size * (movement(blocks, x) ** 2 if wander.kernel == len(priors.DRIFT_LENGTHS) else 1.0)
            variance = np.maximum(own + (wander.spread * risen) ** 2 - (half**2).sum(axis=0), 0.0)
            values[mine] += d.noise[mine, None] * np.sqrt(variance + blocks.evaluation_weight) * normal[mine]
        return self.clipped(values)

    def clipped(self, values: Array) -> Array:
        return values if self.blocks.bounds is None else np.clip(values, *self.blocks.bounds)

    def probability(self, kind: Kind) -> float:
        return float(np.mean(self.draws.kind == kind))

    @property
    def run_sd(self) -> float:
        """Spread of the ceiling between runs of the recipe."""
        least = 0.5 * priors.RUN_SPREADS[0] * self.blocks.span / self.blocks.noise
        return float(np.median(np.maximum(self._of_covariance("spread"), least) * self.draws.noise))

    @property
    def noise_sd(self) -> float:
        """Scatter of one evaluation about the curve: noise and drift."""
        is_drift = self._of_covariance("kernel") < len(priors.DRIFT_LENGTHS)
        drift = np.where(is_drift, self._of_covariance("size"), 0.0)
        return float(np.median(self.draws.noise * np.sqrt(self.blocks.evaluation_weight + drift)))

    def _of_covariance(self, name: str) -> Array:
        """Return a value of every draw's covariance."""
        values = [np.broadcast_to(getattr(each, name), len(each.size)) for each in self.wanders]
        return np.concatenate(values)[self.draws.covariance].astype(float)

    def _by_covariance(self):
        """Yield each covariance that was drawn: its `Wander`, the place of its size there, and its draws."""
        rows = [(each, number) for each in self.wanders for number in range(len(each.size))]
        for covariance in np.unique(self.draws.covariance):
            yield *rows[covariance], np.flatnonzero(self.draws.covariance == covariance)


RISE_SIZES = (384, 128, 400)
FALL_SIZES = (64, 96, 192)
"""Numbers of shapes in the first round of a search, in later ones and in the last."""


def posterior(
    blocks: Blocks,
    *,
    form: str = "sigmoid",
    prior: Prior = priors.WEAK,
    fixed_ceiling: float | None = None,
    seed: int = 0,
) -> Posterior:
    """Return the posterior of a curve.

    Rises, rises with a fall and flat curves are weighed one after the other, and share the draws by their mass.
    """
    shape = FORMS[form]
    if not shape.has_exponent:
        prior = replace(prior, log_exponent=(0.0, 1e-4))
    if not shape.has_midpoint:
        prior = replace(prior, log_exponent=priors.LOG_POWER, log_midpoint=(0.0, 1e-4))
    # With a ceiling that is given, the curve rises to it.
    flat, fall = (priors.FLAT, priors.FALL) if fixed_ceiling is None else (0.0, 0.0)
    problem = make_problem(blocks, shape, prior, fixed_ceiling, fall)
    rng = np.random.default_rng(seed)
    no_fall = np.array([NO_FALL])
    shared_shape, wanders = None, make_wanders(problem, None)
    known = make_known(problem, wanders)
    rise, cloud = search(problem, wanders, known, no_fall, RISE_SIZES, rng)
    if blocks.num_runs > 1:
        # Runs of a recipe differ along the shape of its rise, which that spread hardly changes.
        shared_shape = rise.shape[:, rise.log_mass.max(axis=0).argmax()]
        wanders = make_wanders(problem, shared_shape)
        known = make_known(problem, wanders)
        rise, cloud = search(problem, wanders, known, no_fall, RISE_SIZES, rng, cloud.wider())
    parts, log_masses = [rise], [rise.log_mass]
    if len(problem.courses.place) > 1:
        falls = np.arange(1, len(problem.courses.place))
        parts.append(search(problem, wanders, known, falls, FALL_SIZES, rng, cloud.wider())[0])
        log_masses.append(parts[-1].log_mass)
    flat_mass = known.log_weight - 0.5 * problem.df * np.log(known.squares + problem.prior_squares)
    if known.spread is not None:
        # Runs of a recipe that does not rise do not differ.
        flat_mass = np.where(known.spread > 0.0, -np.inf, flat_mass)
    # The masses so far are of curves that are not flat.
    log_masses = [log_sum(each) + np.log(1.0 - flat) for each in log_masses]
    log_masses.append(log_sum(flat_mass) + np.log(max(flat, 1e-300)))
    share = np.exp(np.array(log_masses) - max(log_masses))
    ends = np.round(np.cumsum(share) / share.sum() * NUM_DRAWS).astype(int)
    counts = np.diff(ends, prepend=0)
    drawn = [draw(problem, known, part, num, rng) for part, num in zip(parts, counts[:-1], strict=True)]
    drawn.append(draw_flat(problem, known, flat_mass, int(counts[-1]), rng))
    return Posterior(
        blocks=blocks,
        form=shape,
        draws=Draws.join(drawn, rng.permutation(NUM_DRAWS)),
        wanders=wanders,
        shared_shape=shared_shape,
        fixed_ceiling=fixed_ceiling,
        room=problem.gains.room,
    )


def log_sum(values: Array) -> float:
    """Return the logarithm of the sum of numbers that are given by their logarithms."""
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))
