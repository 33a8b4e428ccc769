"""One probabilistic model of a reward-against-compute curve, and its posterior.

    reward = level + gain * s(C; B, C_mid) + extra * e(C) + drift + misfit(log C) + run * s(C) + noise

    level, gain   the reward before training, and what the main rise adds to it; ceiling = level + gain (+ extra)
    s             the paper's sigmoid (arXiv 2510.13786, eq. 1), or another form
    extra, e      by kind of curve: an early second rise, a slow tail, or a fall from some place on; positive
    drift         slow wandering of one run's evaluations (an Ornstein-Uhlenbeck process along them)
    misfit        departure of the curve from all of these shapes (a Matern process in log compute)
    run           how far the gain of one run lies from the recipe's
    noise         binomial where the number of answers is known, otherwise of one unknown size

The kinds of curves are *flat* (no rise), *rise*, *second*, *tail*, *late* (nothing happens before some compute, which
may not have come yet) and *fall*. Given the kind, its place, (B, C_mid) and the covariance of drift and misfit,
everything is linear: level and extra integrate out in closed form, gain gets nodes, the size of the noise integrates
out. So the posterior is a finite mixture, weighed by its evidence, and draws come from it. Nothing is tested first,
repaired, or widened afterwards. `priors.py` has every number that is taken for granted; docs/math.md derives this.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from scalerl.curves import priors
from scalerl.curves.data import Blocks
from scalerl.curves.forms import FORMS, Array, Form, sigmoid
from scalerl.curves.priors import Prior

MODEL = "scalerl-curve-6"
"""Name of the model in JSON, sealed forecasts and prior files. It changes with what it says of the same points."""
NUM_DRAWS = 2000
NODES = (np.arange(8) + 0.5) / 8
STEPS = 5
"""Gauss-Newton steps to the best exponent and midpoint of a candidate."""


class Kind(IntEnum):
    flat = 0
    rise = 1
    second = 2
    tail = 3
    late = 4
    fall = 5


EXTRAS = np.array([priors.EXTRAS.get(kind.name, (0.0, 1.0)) for kind in Kind])
HAS_EXTRA = np.array([kind.name in priors.EXTRAS for kind in Kind])


# Curves ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Curves that may be true, up to their linear parts. Places are log computes; those of falls are computes."""

    kind: np.ndarray
    log_exponent: Array
    log_midpoint: Array
    place: Array
    length: Array
    log_weight: Array
    """Logarithm of the prior probability that each stands for, without that of exponent and midpoint."""

    @property
    def has_extra(self) -> np.ndarray:
        return HAS_EXTRA[self.kind]

    def take(self, which) -> "Candidates":
        return Candidates(**{name: getattr(self, name)[which] for name in self.__slots__})

    def at(self, log_exponent: Array, log_midpoint: Array, log_volume: Array | float = 0.0) -> "Candidates":
        """Return every candidate at several shapes: rows of the two arrays."""
        num = log_exponent.shape[1]
        repeated = self.take(np.repeat(np.arange(len(self.kind)), num))
        return replace(
            repeated,
            log_exponent=log_exponent.ravel(),
            log_midpoint=log_midpoint.ravel(),
            log_weight=repeated.log_weight + np.broadcast_to(log_volume, log_exponent.shape).ravel(),
        )

    @staticmethod
    def join(many: "list[Candidates]") -> "Candidates":
        names = Candidates.__slots__
        return Candidates(**{name: np.concatenate([getattr(each, name) for each in many]) for name in names})


def main_rise(x: Array, form: Form, kind, log_exponent, log_midpoint, place) -> Array:
    """s: it begins late, or ends where a fall begins."""
    x, kind, place = (np.array(each) for each in np.broadcast_arrays(x, kind, place))
    late, fall = kind == Kind.late, kind == Kind.fall
    x[late] = np.log(np.maximum(np.exp(x[late]) - np.exp(place[late]), 1e-9))
    x[fall] = np.minimum(x[fall], np.log(place[fall]))
    return np.where(kind == Kind.flat, 0.0, form.shape(x, log_exponent, log_midpoint))


def extra_part(x: Array, kind, place, length) -> Array:
    """e: an early rise, a slow tail, or how much of a fall has happened, downwards."""
    x, kind, place, length = np.broadcast_arrays(x, kind, place, length)
    part: Array = np.zeros(x.shape)
    for which, exponent in ((Kind.second, priors.SECOND_EXPONENT), (Kind.tail, priors.TAIL_EXPONENT)):
        mine = kind == which
        part[mine] = sigmoid(x[mine], exponent, place[mine])
    fall = kind == Kind.fall
    part[fall] = -fallen_share(x[fall], place[fall], length[fall])
    return part


def fallen_share(x: Array, place, length) -> Array:
    """0 where a fall begins, towards 1 after it."""
    return -np.expm1(-np.maximum(np.exp(x) - place, 0.0) / (length * np.maximum(1.0 - place, 1e-9)))


def columns(blocks: Blocks, form: Form, candidates: Candidates) -> tuple[Array, Array]:
    """s and e at every block (rows) of every candidate (columns)."""
    c, x = candidates, blocks.x[:, None]
    s = main_rise(x, form, c.kind, c.log_exponent, c.log_midpoint, c.place)
    return s, extra_part(x, c.kind, c.place, c.length)


def all_candidates(blocks: Blocks, kinds: dict[str, float]) -> Candidates:
    """Every kind with each of its places, its exponent and midpoint still open."""
    compute = np.sort(np.exp(blocks.x))
    gaps = (0.5 * (compute[1:] + compute[:-1]))[2:-2]
    places: dict[Kind, list[tuple[float, float]]] = {
        Kind.flat: [(0.0, 1.0)],
        Kind.rise: [(0.0, 1.0)],
        Kind.second: [(place, 1.0) for place in priors.SECOND_PLACES],
        Kind.tail: [(place, 1.0) for place in priors.TAIL_PLACES],
        Kind.late: [(place, 1.0) for place in priors.LATE_PLACES],
        Kind.fall: [
            (place, length)
            for index, length in enumerate(priors.FALL_LENGTHS if len(gaps) else ())
            # A sudden fall may begin in any gap; the place of a slow one is less sharp.
            for place in np.unique(
                np.quantile(gaps, np.linspace(0, 1, 8 if index else priors.MOST_FALL_PLACES), method="nearest")
            )
        ],
    }
    rows = [
        (int(kind), place, length, np.log(kinds[kind.name] / len(places[kind])))
        for kind in Kind
        if kinds.get(kind.name)
        for place, length in places[kind]
    ]
    kind, place, length, log_weight = (np.array(column) for column in zip(*rows, strict=True))
    zero = np.zeros(len(kind))
    return Candidates(
        kind=kind, log_exponent=zero, log_midpoint=zero, place=place, length=length, log_weight=log_weight
    )


# Drift, misfit and noise ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Sizes of drift, misfit and spread between runs, in units of the noise; and what whitens the data under them."""

    drift: float
    drift_length: float
    misfit: float
    spread: float
    log_weight: float
    """Logarithm of the prior probability, and of the normalisation under it."""
    whiten: Array
    """What whitens drift, misfit and noise ..."""
    along: Array
    """... and then the directions (columns) in which runs differ ..."""
    less: Array
    """... with the share by which each shrinks to be white too."""

    def whitened(self, values: Array) -> Array:
        """Return white columns."""
        return self._shrunk(self.whiten @ values)

    def _shrunk(self, white: Array) -> Array:
        return white - self.along @ (self.less[:, None] * (self.along.T @ white))

    def explained(self, shared: Array) -> tuple[Array, Array]:
        """Return the weights of the blocks (rows) that predict values elsewhere, and the variance that they explain.

        `shared` are covariances of the blocks with those values.
        """
        # What is known of the start, which may come last, has none.
        white = self.whitened(np.concatenate([shared, np.zeros((len(self.whiten) - len(shared), shared.shape[1]))]))
        return (self.whiten.T @ self._shrunk(white))[: len(shared)], np.einsum("ij,ij->j", white, white)


def products(
    covariances: list[Covariance], table: Array, left: np.ndarray, right: np.ndarray
) -> tuple[Array, Array, Array]:
    """Return inner products of white columns under each covariance (first axis): of the first two with all, of all with
    themselves, and of some pairs."""
    num, columns = len(covariances), table.shape[1]
    first, own, paired = np.empty((num, 2, columns)), np.empty((num, columns)), np.empty((num, len(left)))
    known: dict[int, tuple[Array, ...]] = {}
    for number, each in enumerate(covariances):
        # Covariances that differ in the spread between runs alone share all but a little.
        if id(each.whiten) not in known:
            white = each.whiten @ table
            pairs = np.einsum("ij,ij->j", white[:, left], white[:, right])
            known[id(each.whiten)] = (
                white[:, :2].T @ white, np.einsum("ij,ij->j", white, white), pairs, each.along.T @ white,
            )  # fmt: skip
        *same, along = known[id(each.whiten)]
        fewer = 1.0 - (1.0 - each.less) ** 2
        first[number] = same[0] - (fewer[:, None] * along[:, :2]).T @ along
        own[number] = same[1] - fewer @ along**2
        paired[number] = same[2] - fewer @ (along[:, left] * along[:, right])
    return first, own, paired


def drifting(blocks: Blocks, here, there, length: float) -> Array:
    """Correlation of a run's slow drift between two sets of places."""
    apart = np.abs(np.subtract.outer(here[1], there[1])) / (length * float(np.median(blocks.size)))
    return np.equal.outer(here[2], there[2]) * np.exp(-apart)


def departing(here, there) -> Array:
    """Correlation of the misfit between two sets of places: a Matern process of order 3/2."""
    scaled = np.sqrt(3.0) * np.abs(np.subtract.outer(here[0], there[0])) / priors.MISFIT_LENGTH
    return (1.0 + scaled) * np.exp(-scaled)


def white_noise(blocks: Blocks) -> Covariance:
    """Noise alone."""
    start = [] if blocks.start is None else [blocks.start_weight]
    whiten = np.diag(np.append(blocks.weight, start) ** -0.5)
    none = dict.fromkeys(("drift", "drift_length", "misfit", "spread", "log_weight"), 0.0)
    return Covariance(**none, whiten=whiten, along=np.empty((len(whiten), 0)), less=np.empty(0))


def all_covariances(blocks: Blocks, shared_shape) -> list[Covariance]:
    """Every combination of sizes. The spread between runs follows `shared_shape`, how far a run has come."""
    unit = blocks.span / blocks.noise
    spreads = (0.0, *(priors.RUN_SPREADS if blocks.num_runs > 1 else ()))
    here = (blocks.x, blocks.index, blocks.run)
    noise = np.diag(1.0 / np.diag(white_noise(blocks).whiten) ** 2)
    drifts = {length: drifting(blocks, here, here, length) for _, length, _ in priors.DRIFTS}
    departure = departing(here, here)
    risen = np.zeros((len(noise), blocks.num_runs))
    risen[np.arange(blocks.num), blocks.run] = shared_shape(blocks.x)
    found = []
    for drift, length, drift_weight in priors.DRIFTS:
        for misfit, misfit_weight in priors.MISFITS:
            total = noise.copy()
            total[: blocks.num, : blocks.num] += drift * drifts[length] + (misfit * unit) ** 2 * departure
            factor = np.linalg.cholesky(total)
            whiten = np.asarray(np.linalg.inv(factor), dtype=float)
            along, size, _ = np.linalg.svd(whiten @ risen, full_matrices=False)
            for spread in spreads:
                variance = 1.0 + (spread * unit * size) ** 2
                log_weight = np.log(drift_weight * misfit_weight) - np.log(np.diag(factor)).sum()
                found.append(
                    Covariance(
                        drift=drift,
                        drift_length=length,
                        misfit=misfit * unit,
                        spread=spread * unit,
                        log_weight=log_weight - 0.5 * np.log(variance).sum(),
                        whiten=whiten,
                        along=along,
                        less=1.0 - variance**-0.5,
                    )
                )
    return found


# Evidence -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The data, what is believed before them, and the units that both are in."""

    blocks: Blocks
    form: Form
    prior: Prior
    fixed_ceiling: float | None
    rewards: Array
    """Relative to `centre`; the start, where it is known, comes last."""
    centre: float
    room: float
    """The largest gain that is possible ..."""
    late_room: float
    """... of a rise that has not begun ..."""
    least: float
    """... and the smallest that counts as one."""
    level_precision: float
    """Precision of the level's prior about the centre, in units of the noise."""
    extra_mean: Array
    """Prior mean of the extra part by kind ..."""
    extra_precision: Array
    """... and its precision, in units of the noise."""
    noise_df: float

    @property
    def df(self) -> float:
        return self.blocks.num + self.noise_df

    def padded(self, values: Array) -> Array:
        """Return columns with a row for the start, where nothing has risen yet."""
        if self.blocks.start is None:
            return values
        return np.concatenate([values, np.zeros((1, values.shape[1]))])

    def rising(self, s: Array) -> Array:
        """Return the columns of the gain: with a fixed ceiling, level = ceiling - gain."""
        return self.padded(s) - (0.0 if self.fixed_ceiling is None else 1.0)


def make_problem(blocks: Blocks, form: Form, prior: Prior, fixed_ceiling: float | None) -> Problem:
    if fixed_ceiling is not None:
        centre, level_sd = fixed_ceiling, 1e-6 * blocks.span
    elif blocks.start is not None:
        centre, level_sd = blocks.start, 2.0 * blocks.span
    else:
        centre, level_sd = float(blocks.y[0]), 0.5 * blocks.span
    if blocks.bounds is None:
        room, late_room = priors.ROOM * blocks.span, max(priors.ROOM * blocks.span, priors.LATE_ROOM * blocks.noise)
        least = priors.LEAST_SHARE * blocks.span
    else:
        low, high = blocks.bounds
        from_here = float(np.quantile(blocks.y, 0.1)) if blocks.start is None else blocks.start
        room = late_room = max(high - from_here, 0.02 * (high - low))
        least = priors.LEAST_SHARE * min(room, priors.ROOM * blocks.span)
    if fixed_ceiling is not None:
        room = late_room = max(fixed_ceiling - (blocks.bounds[0] if blocks.bounds else fixed_ceiling - room), least * 2)
    rewards = blocks.y if blocks.start is None else np.append(blocks.y, blocks.start)
    return Problem(
        blocks=blocks,
        form=form,
        prior=prior,
        fixed_ceiling=fixed_ceiling,
        rewards=rewards - centre,
        centre=centre,
        room=room,
        late_room=late_room,
        least=least,
        level_precision=(blocks.noise / level_sd) ** 2,
        extra_mean=EXTRAS[:, 0] * blocks.span,
        extra_precision=(blocks.noise / (EXTRAS[:, 1] * blocks.span)) ** 2,
        noise_df=priors.KNOWN_NOISE_DF if blocks.is_noise_known else priors.NOISE_DF,
    )


def log_density(value: Array, place: tuple[float, float], df: float) -> Array:
    """Log density of a Student-t up to its constant (which is the normal's): heavy tails for what others say."""
    z = ((value - place[0]) / place[1]) ** 2
    body = -0.5 * z if np.isinf(df) else -0.5 * (df + 1.0) * np.log1p(z / df)
    return body - np.log(place[1]) - 0.5 * np.log(2.0 * np.pi)


def log_shape_prior(problem: Problem, candidates: Candidates) -> Array:
    """Log prior of exponent and midpoint."""
    prior, c = problem.prior, candidates
    both = log_density(c.log_exponent, prior.log_exponent, prior.df) + log_density(
        c.log_midpoint, prior.log_midpoint, prior.df
    )
    return c.log_weight + np.where(c.kind == Kind.flat, 0.0, both)


def log_gain_prior(problem: Problem, gain: Array, kind: np.ndarray) -> Array:
    """Log prior density of the logarithm of the gain. Of a rise that has not begun, all gains are equally likely."""
    late = np.log(gain / problem.late_room)
    if problem.prior.log_share is not None:
        return np.where(
            kind == Kind.late, late, log_density(np.log(gain / problem.room), problem.prior.log_share, problem.prior.df)
        )
    share, least = gain / problem.room, problem.least / problem.room
    if problem.blocks.bounds is None:
        weight = 1.0 / (1.0 + gain / problem.blocks.span)
        total = np.log(1.0 / least) - np.log((1.0 + priors.ROOM) / (1.0 + least * priors.ROOM))
    else:
        weight, total = 1.0 - 0.5 * share, np.log(1.0 / least) - 0.5 * (1.0 - least)
    return np.where(kind == Kind.late, late, np.log(weight / total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """For every covariance, node of the gain and candidate: the log mass, and what draws are made from.

    `level`, `gain_on_level` and `extra_on_level` give the level's mean; `extra`, `gain_on_extra` the extra's.
    """

    log_mass: Array
    gain: Array
    squares: Array
    gain_precision: Array
    level_precision: Array
    level: Array
    gain_on_level: Array
    extra_on_level: Array
    extra_precision: Array
    extra: Array
    gain_on_extra: Array


def evidence(problem: Problem, covariances: list[Covariance], candidates: Candidates, *, num_nodes: int) -> Evidence:
    """Integrate level, extra and noise out. One node of the gain: its best value, with a width about it instead."""
    from scipy.special import log_ndtr  # here, so that reading a log does not load scipy

    c, blocks, df = candidates, problem.blocks, problem.df
    s, e = columns(blocks, problem.form, c)
    num, extra, flat = len(c.kind), np.flatnonzero(c.has_extra), c.kind == Kind.flat
    table = np.concatenate(
        [
            np.ones((len(problem.rewards), 1)),
            problem.rewards[:, None],
            np.where(flat, 0.0, problem.rising(s)),
            problem.padded(e[:, extra]),
        ],
        axis=1,
    )
    first, own, cross = products(covariances, table, 2 + extra, np.arange(2 + num, table.shape[1]))
    (ones, ys, rise_squares), (other_ones, other_ys, other_squares) = (
        (first[:, 0, part], first[:, 1, part], own[:, part]) for part in (slice(2, 2 + num), slice(2 + num, None))
    )
    # The level, then the extra given the level, then the gain given both.
    level_precision = first[:, 0, :1] + problem.level_precision
    level, on_level = first[:, 1, :1] / level_precision, ones / level_precision
    squares = np.repeat(own[:, 1:2] - level_precision * level**2, num, axis=1)
    precision = rise_squares - level_precision * on_level**2
    pull = ys - level_precision * on_level * level
    log_mass = np.array([each.log_weight for each in covariances])[:, None] + log_shape_prior(problem, c)
    log_mass = log_mass + 0.5 * np.log(problem.level_precision / level_precision)
    before, before_mean = problem.extra_precision[c.kind[extra]], problem.extra_mean[c.kind[extra]]
    extra_on_level, extra_mean, gain_on_extra = (np.zeros(squares.shape) for _ in range(3))
    extra_precision = np.ones(squares.shape)
    extra_on_level[:, extra] = on = other_ones / level_precision
    extra_precision[:, extra] = width = other_squares - level_precision * on**2 + before
    extra_mean[:, extra] = middle = (other_ys - level_precision * on * level + before * before_mean) / width
    gain_on_extra[:, extra] = slope = (cross - level_precision * on_level[:, extra] * on) / width
    squares[:, extra] += before * before_mean**2 - width * middle**2
    precision[:, extra] -= width * slope**2
    pull[:, extra] -= width * slope * middle
    # The part of the extra's prior below 0 is cut off.
    before_mass = 0.5 * np.log(before) - log_ndtr(before_mean * np.sqrt(before) / blocks.noise)
    log_mass[:, extra] += before_mass - 0.5 * np.log(width)
    precision = np.maximum(precision, 1e-12 * level_precision)
    best = pull / precision
    prior_squares = problem.noise_df * blocks.noise**2
    least_squares = np.maximum(squares - precision * best**2, 0.0) + prior_squares
    sd = np.sqrt(least_squares / df / precision)
    room = np.where(c.kind == Kind.late, problem.late_room, problem.room)
    middle = np.clip(best, problem.least, room)
    if num_nodes == 1:
        gain, log_width = middle[:, None], np.log(np.minimum(2.5 * sd / middle, 4.0))
    else:
        # As far as 11 log units reach from the best gain that is allowed; less where that is not the best of all.
        beyond = np.abs(middle - best) / sd
        reach = sd * 11.0 / (beyond + np.sqrt(beyond**2 + 4.0))
        low, high = np.maximum(middle - reach, problem.least), np.minimum(middle + reach, room)
        ratio = np.log(np.maximum(high / low, 1.0 + 1e-9))
        gain, log_width = low[:, None] * np.exp(ratio[:, None] * NODES[:, None]), np.log(ratio / num_nodes)
    total = least_squares[:, None] + precision[:, None] * (gain - best[:, None]) ** 2
    total = np.where(flat, (squares + prior_squares)[:, None], total)
    density = log_gain_prior(problem, gain, c.kind) + log_width[:, None]
    log_mass = log_mass[:, None] - 0.5 * df * np.log(total) + np.where(flat, -np.log(num_nodes), density)
    gain = np.where(flat, 0.0, gain)
    error = np.sqrt(total / df)
    mean = extra_mean[:, None, extra] - gain[..., extra] * gain_on_extra[:, None, extra]
    log_mass[..., extra] += log_ndtr(mean / error[..., extra] * np.sqrt(width)[:, None])
    early = c.kind[extra] == Kind.second
    which = extra[early]
    sizes = np.maximum(mean[..., early], 0.0) / error[..., which]
    log_mass[..., which] += log_resolved(blocks, c.place[which], e[:, which], sizes)
    if blocks.num_runs > 1:
        risen = gain * s.max(axis=0)
        risen[..., extra] += np.maximum(mean, 0.0) * np.maximum(e[:, extra].max(axis=0), 0.0)
        spread = np.array([each.spread for each in covariances])[:, None, None]
        log_mass += log_spread_prior(problem, spread, risen / error)
    if blocks.bounds is not None and num_nodes > 1 and problem.fixed_ceiling is None:
        # A level below what is possible; by one standard error, since noise may put it there.
        lowest = problem.centre + level[:, None] - gain * on_level[:, None] - blocks.bounds[0]
        log_mass += log_ndtr(lowest / error * np.sqrt(level_precision)[:, None] + 1.0)
    return Evidence(
        log_mass=log_mass,
        gain=gain,
        squares=total,
        gain_precision=precision,
        level_precision=np.broadcast_to(level_precision, precision.shape),
        level=np.broadcast_to(level, precision.shape),
        gain_on_level=on_level,
        extra_on_level=extra_on_level,
        extra_precision=extra_precision,
        extra=extra_mean,
        gain_on_extra=gain_on_extra,
    )


def log_spread_prior(problem: Problem, spread: Array, risen: Array) -> Array:
    """Log prior of the spread between runs in units of the noise, a share of what the recipe has `risen` by.

    No spread stands for all that are smaller than the smallest: a recipe that has not risen has none.
    """
    from scipy.special import log_ndtr

    mean, sd = priors.LOG_RUN_SPREAD
    share = np.log(np.maximum(spread, least_spread(problem.blocks)) / np.maximum(risen, 1e-300))
    apart = np.log(priors.RUN_SPREADS[1] / priors.RUN_SPREADS[0])
    density = log_density(share, (mean, sd), np.inf) + np.log(apart)
    return np.where(spread > 0, density, log_ndtr((share - mean) / sd))


def least_spread(blocks: Blocks) -> float:
    """The largest spread that counts as none, in units of the noise: a step below the smallest that is tried."""
    first, second = priors.RUN_SPREADS[:2]
    return first * np.sqrt(first / second) * blocks.span / blocks.noise


def log_resolved(blocks: Blocks, places: Array, e: Array, sizes: Array) -> Array:
    """Log share of its cell that an early rise stands for: less than all where the data resolve place and exponent.

    The few early rises that are tried lie far apart. One that happens to be the whole of a single rise would otherwise
    explain it without having paid for a place and an exponent, and leave room for a main rise still to come.
    """
    # How much it changes with its log place and log exponent, for a size of 1 in units of the noise.
    by_place = np.exp(priors.SECOND_EXPONENT) * e * (1.0 - e) / np.sqrt(blocks.weight)[:, None]
    by_exponent = by_place * (blocks.x[:, None] - places)
    scaled = sizes / np.sqrt(2.0 * np.pi)
    lost: Array = np.zeros(sizes.shape)
    for cell, slope in zip(priors.SECOND_CELL, (by_place, by_exponent), strict=True):
        lost += np.log(np.maximum(np.linalg.norm(slope, axis=0) * cell * scaled, 1.0))
    return -lost


# Where the mass is ----------------------------------------------------------------------------------------------------


def first_shapes(problem: Problem, covariance: Covariance, candidates: Candidates) -> tuple[Array, Array, Array]:
    """Return the best of a few log exponents and midpoints for every candidate, and its log mass."""
    num, prior = len(candidates.kind), problem.prior
    (b_mean, b_sd), (m_mean, m_sd) = prior.log_exponent, prior.log_midpoint
    b_grid = b_mean + min(b_sd, 1.0) * np.array([-2.1, -0.7, 0.7, 2.1])
    m_grid = np.maximum(m_mean + min(m_sd, 2.0) * np.linspace(-3.4, 1.7, 7), lowest_midpoint(problem))
    b, m = (np.tile(grid.ravel(), (num, 1)) for grid in np.meshgrid(b_grid, m_grid, indexing="ij"))
    mass = evidence(problem, [covariance], candidates.at(b, m), num_nodes=1).log_mass[0, 0].reshape(num, -1)
    best = (np.arange(num), mass.argmax(axis=1))
    return b[best], m[best], mass[best]


def lowest_midpoint(problem: Problem) -> float:
    return max(float(problem.blocks.x.min()) - 3.0, priors.MIDPOINTS[0])


def best_shapes(
    problem: Problem, covariance: Covariance, candidates: Candidates, b: Array, m: Array
) -> tuple[Array, Array, Array]:
    """Return the best log exponent and midpoint of every candidate under one covariance, and the two's covariance.

    Gauss-Newton from a first guess.
    """
    num, lowest = len(candidates.kind), lowest_midpoint(problem)
    exponents = priors.EXPONENTS if problem.form.has_midpoint else priors.POWERS
    variance: Array = np.full(num, problem.blocks.noise**2)
    best = (np.full(num, -np.inf), b, m, np.zeros((num, 2, 2)))
    for _ in range(STEPS):
        here = replace(candidates, log_exponent=b, log_midpoint=m)
        value, spread, step, variance = _gauss_newton(problem, covariance, here, variance)
        better = value > best[0]
        now = (value, b, m, spread)
        best = tuple(
            np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) for new, old in zip(now, best, strict=True)
        )
        b = np.clip(b + np.clip(step[:, 0], -0.5, 0.5), *exponents)
        m = np.clip(m + np.clip(step[:, 1], -0.9, 0.9), lowest, priors.MIDPOINTS[1])
    return best[1], best[2], best[3]


def _gauss_newton(
    problem: Problem, covariance: Covariance, candidates: Candidates, variance: Array
) -> tuple[Array, Array, Array, Array]:
    """Return each candidate's log posterior at its best level, gain and extra, the covariance of exponent and midpoint
    there, the step to better ones, and the variance of the residuals."""
    c, blocks, form = candidates, problem.blocks, problem.form
    num, nudge = len(c.kind), 1e-3
    (b_mean, b_sd), (m_mean, m_sd) = problem.prior.log_exponent, problem.prior.log_midpoint
    s, e = columns(blocks, form, c)
    by_b = (columns(blocks, form, replace(c, log_exponent=c.log_exponent + nudge))[0] - s) / nudge
    by_m = (columns(blocks, form, replace(c, log_midpoint=c.log_midpoint + nudge))[0] - s) / nudge
    one, y = covariance.whitened(np.stack([np.ones(len(problem.rewards)), problem.rewards], axis=1)).T
    parts = (problem.rising(s), problem.padded(e), problem.padded(by_b), problem.padded(by_m))
    white: Array = np.stack([np.tile(one[:, None], num), *(covariance.whitened(part) for part in parts)], axis=2)
    # Level, gain and extra first, then one step of everything.
    linear_part = white[:, :, :3]
    extra_precision = np.where(c.has_extra, problem.extra_precision[c.kind] / blocks.noise**2, 1e12)
    extra_mean = np.where(c.has_extra, problem.extra_mean[c.kind], 0.0)
    weak: Array = np.stack(
        [np.full(num, problem.level_precision), variance / problem.room**2, variance * extra_precision], axis=1
    )
    means = np.stack([np.zeros(num), np.zeros(num), extra_mean], axis=1)
    linear = _solve(linear_part, weak, np.einsum("nki,n->ki", linear_part, y) + weak * means)
    linear[:, 1] = np.clip(linear[:, 1], problem.least, problem.room)
    left: Array = y[:, None] - np.einsum("nki,ki->nk", linear_part, linear)
    variance = (np.einsum("nk,nk->k", left, left) + blocks.noise**2) / (len(y) + 1)
    white[:, :, 3:] *= linear[None, :, 1:2]
    weak = np.concatenate([weak, np.stack([variance / b_sd**2, variance / m_sd**2], axis=1)], axis=1)
    off = np.concatenate([means - linear, np.stack([b_mean - c.log_exponent, m_mean - c.log_midpoint], axis=1)], axis=1)
    inverse: Array = np.linalg.inv(np.einsum("nki,nkj->kij", white, white) + weak[:, :, None] * np.eye(5))
    step: Array = np.einsum("kij,kj->ki", inverse, np.einsum("nki,nk->ki", white, left) + weak * off)
    value = -0.5 * len(y) * np.log(variance)
    value = value - 0.5 * ((c.log_exponent - b_mean) / b_sd) ** 2 - 0.5 * ((c.log_midpoint - m_mean) / m_sd) ** 2
    return value, inverse[:, 3:, 3:] * variance[:, None, None], step[:, 3:], variance


def _solve(white: Array, weak: Array, right: Array) -> Array:
    gram = np.einsum("nki,nkj->kij", white, white) + (weak[:, :, None] + 1e-12) * np.eye(weak.shape[1])
    return np.linalg.solve(gram, right[:, :, None])[:, :, 0]


def around(candidates: Candidates, b: Array, m: Array, spread: Array, *, num: int, reach: float) -> Candidates:
    """Return a grid of num x num shapes about the best of each candidate, along the axes of their covariance."""
    factor = np.linalg.cholesky(spread + 1e-14 * np.eye(2))
    ticks = ((np.arange(num) + 0.5) / num * 2.0 - 1.0) * reach
    u, v = (grid.ravel() for grid in np.meshgrid(ticks, ticks, indexing="ij"))
    log_exponent = b[:, None] + factor[:, 0, 0, None] * u
    log_midpoint = m[:, None] + factor[:, 1, 0, None] * u + factor[:, 1, 1, None] * v
    log_volume = np.log(factor[:, 0, 0] * factor[:, 1, 1] * (2.0 * reach / num) ** 2)
    return candidates.at(log_exponent, log_midpoint, log_volume[:, None])


def log_sum(values: Array, axis=None) -> Array:
    top = values.max()
    return top + np.log(np.maximum(np.exp(values - top).sum(axis=axis), 1e-300))


COARSE = 5
"""A first grid of that many shapes squared, from which the width of the next one is taken."""
FINE = ((0.3, 12), (0.05, 8), (1e-4, 4))
"""Candidates with at least this share of the mass, looked at roughly, get a grid of that many shapes squared."""


FEW = 12
NEARLY_ALL = 0.98


def where_the_mass_is(
    problem: Problem, covariances: list[Covariance], candidates: Candidates
) -> tuple[Candidates, list[Covariance]]:
    """Return a grid of shapes for every candidate that matters, and the covariances with nearly all of the mass."""
    # White noise; a drift and a misfit of middle size, whose best shape is near that of any other; and the
    # largest misfit, under which a plain curve may be as likely as one with a kink that the others ask for.
    num_spreads = len(covariances) // (len(priors.DRIFTS) * len(priors.MISFITS))
    # Each without a spread between runs and, where there are several, with a middle one.
    white, middle, loose = (
        [
            covariances[(drift * len(priors.MISFITS) + misfit) * num_spreads + spread]
            for spread in (0, num_spreads // 2)[:num_spreads]
        ]
        for drift, misfit in ((0, 0), (4, 1), (0, len(priors.MISFITS) - 1))
    )
    b, m, mass = first_shapes(problem, white[0], candidates)
    # Rough as this is, it rules most places of a fall out; the best few of every kind stay.
    rank = (np.equal.outer(candidates.kind, candidates.kind) & np.less.outer(mass, mass)).sum(axis=1)
    kept = (rank < FEW) | (mass > mass.max() - 12.0)
    candidates = candidates.take(kept)
    b, m, spread = best_shapes(problem, middle[-1], candidates, b[kept], m[kept])
    rough = evidence(problem, white + middle + loose, around(candidates, b, m, spread, num=3, reach=2.2), num_nodes=1)
    mass = log_sum(rough.log_mass, axis=(0, 1)).reshape(len(candidates.kind), -1).max(axis=1)
    share = np.exp(mass - log_sum(mass))
    flat, kept = candidates.kind == Kind.flat, (share >= FINE[-1][0]) & (candidates.kind != Kind.flat)
    if not kept.any():
        kept = ~flat
    flat, candidates, share = candidates.take(flat), candidates.take(kept), share[kept]
    # Then all covariances say where the shapes of each candidate lie, and which covariances matter.
    coarse = around(candidates, b[kept], m[kept], spread[kept], num=COARSE, reach=3.0)
    log_mass = evidence(problem, covariances, Candidates.join([coarse, flat]), num_nodes=1).log_mass[:, 0]
    by_covariance = log_sum(log_mass, axis=1)
    order = np.argsort(-by_covariance)
    before = np.cumsum(np.exp(by_covariance[order] - log_sum(by_covariance)))
    matter = [covariances[number] for number in order[np.append(0.0, before[:-1]) < NEARLY_ALL]]
    num = len(candidates.kind)
    shapes = _moments(coarse, log_sum(log_mass[:, : len(coarse.kind)], axis=0).reshape(num, -1))
    grids, above = [flat], np.inf
    for least, fine in FINE:
        mine = (share >= least) & (share < above)
        if mine.any():
            grids.append(around(candidates.take(mine), *(each[mine] for each in shapes), num=fine, reach=3.5))
        above = least
    return Candidates.join(grids), matter


def _moments(coarse: Candidates, log_mass: Array) -> tuple[Array, Array, Array]:
    """Return mean and covariance of log exponent and midpoint of every candidate, over its coarse grid."""
    shape = log_mass.shape
    places = np.stack([coarse.log_exponent.reshape(shape), coarse.log_midpoint.reshape(shape)], axis=2)
    weight = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = np.einsum("kc,kci->ki", weight, places)
    off = places - mean[:, None]
    # A cell is not a point: what the grid cannot resolve is spread evenly over the cell.
    even = places - places.mean(axis=1, keepdims=True)
    within = np.einsum("kci,kcj->kij", even, even) / shape[1] / (COARSE**2 - 1)
    return mean[:, 0], mean[:, 1], np.einsum("kc,kci,kcj->kij", weight, off, off) + within


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
    place: Array
    length: Array
    extra: Array
    noise: Array
    covariance: np.ndarray
    """Its number."""
    far: Array
    """A normal number each, for what no evaluation has seen: the misfit at the ceiling, the course after a fall."""
    seen: np.ndarray
    """Whether a rise has been seen: it is larger than its own standard error `NOTICED` times."""

    def take(self, which) -> "Draws":
        return Draws(**{name: getattr(self, name)[which] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    blocks: Blocks
    form: Form
    draws: Draws
    covariances: list[Covariance]
    shared_shape: tuple[float, float]
    """Log exponent and midpoint of the spread between runs."""
    fixed_ceiling: float | None
    room: float
    """The largest gain that is possible."""

    def curve(self, compute: Array) -> Array:
        """Return the recipe's own curve: one row for every draw, one column for every compute.

        Beyond the last evaluation it may leave its shape, further with each doubling until its rise is over.
        """
        d, scale = self.draws, self.blocks.scale
        x = np.log(np.maximum(np.atleast_1d(np.asarray(compute, dtype=float)), 1e-9 * scale) / scale)[None]
        column = lambda name: getattr(d, name)[:, None]  # noqa: E731
        s = main_rise(x, self.form, column("kind"), column("log_exponent"), column("log_midpoint"), column("place"))
        curve = column("level") + column("gain") * s
        curve += column("extra") * extra_part(x, column("kind"), column("place"), column("length"))
        curve += self.leaves[:, None] * np.sqrt(np.clip(x / np.log(2.0), 0.0, self.to_go[:, None]))
        return self.clipped(curve)

    @property
    def to_go(self) -> Array:
        """Draws of the doublings beyond the last evaluation until 95 % of the main rise is over: 1 to 4."""
        d = self.draws
        return np.clip((d.log_midpoint + np.log(19.0) * np.exp(-d.log_exponent)) / np.log(2.0), 1.0, 4.0)

    @property
    def leaves(self) -> Array:
        """Draws of how far the curve is from its shape one doubling beyond the last evaluation.

        After a fall a run may go on falling or recover, by as much again.
        """
        d = self.draws
        return d.far * (self.drop + priors.DIVERGENCE * (d.gain + np.where(d.kind == Kind.fall, 0.0, d.extra)))

    @property
    def drop(self) -> Array:
        """Draws of how far the reward has fallen since its peak; 0 where it has not."""
        d = self.draws
        fall = d.kind == Kind.fall
        return np.where(fall, d.extra * fallen_share(np.zeros(len(fall)), np.where(fall, d.place, 0.5), d.length), 0.0)

    @property
    def ceiling(self) -> Array:
        """Draws of what the curve rises to; of a curve that falls, the reward at its peak."""
        d = self.draws
        if self.fixed_ceiling is not None:
            return np.full(len(d.kind), self.fixed_ceiling)
        at_peak = main_rise(np.full(len(d.kind), 30.0), self.form, d.kind, d.log_exponent, d.log_midpoint, d.place)
        top = d.level + d.gain * at_peak + np.where((d.kind == Kind.second) | (d.kind == Kind.tail), d.extra, 0.0)
        misfit = np.array([covariance.misfit for covariance in self.covariances])[d.covariance]
        leaves = np.where(d.kind == Kind.fall, 0.0, self.leaves * np.sqrt(self.to_go))
        return self.clipped(top + leaves + d.far * misfit * d.noise)

    def new(self, compute: Array) -> Array:
        """Return draws of a new evaluation at each compute; of a run not seen yet where there are several.

        The residuals of the evaluations say where drift and misfit are now; beyond them these go back to nothing.
        """
        blocks, d = self.blocks, self.draws
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        x = np.log(compute / blocks.scale)
        index = blocks.index.max() + (compute - blocks.scale) / blocks.spacing
        here = (x, index, np.full(len(x), 0 if blocks.num_runs == 1 else -1))
        there = (blocks.x, blocks.index, blocks.run)
        drifts = {length: drifting(blocks, there, here, length) for _, length, _ in priors.DRIFTS}
        departure, risen = departing(there, here), sigmoid(x, *self.shared_shape)
        values = self.curve(compute)
        left = blocks.y - self.curve(blocks.scale * np.exp(blocks.x))
        normal = np.random.default_rng(1).standard_normal(values.shape)
        for number in np.unique(d.covariance):
            c, mine = self.covariances[number], np.flatnonzero(d.covariance == number)
            share, explained = c.explained(c.drift * drifts[c.drift_length] + c.misfit**2 * departure)
            values[mine] += left[mine] @ share
            variance = np.maximum(c.drift + c.misfit**2 + (c.spread * risen) ** 2 - explained, 0.0)
            sd = np.sqrt(variance + blocks.evaluation_weight)
            values[mine] += d.noise[mine, None] * sd * normal[mine]
        return self.clipped(values)

    def clipped(self, values: Array) -> Array:
        return values if self.blocks.bounds is None else np.clip(values, *self.blocks.bounds)

    def probability(self, kind: Kind) -> float:
        return float(np.mean(self.draws.kind == kind))

    @property
    def run_sd(self) -> float:
        """Spread of the ceiling between runs of the recipe."""
        spread = np.array([covariance.spread for covariance in self.covariances])[self.draws.covariance]
        return float(np.median(np.maximum(spread, least_spread(self.blocks)) * self.draws.noise))

    @property
    def noise_sd(self) -> float:
        """Scatter of one evaluation about the curve: noise and drift."""
        drift = np.array([covariance.drift for covariance in self.covariances])[self.draws.covariance]
        return float(np.median(self.draws.noise * np.sqrt(self.blocks.evaluation_weight + drift)))


def posterior(
    blocks: Blocks,
    *,
    form: str = "sigmoid",
    prior: Prior = priors.WEAK,
    fixed_ceiling: float | None = None,
    seed: int = 0,
) -> Posterior:
    """Return what the evaluations say."""
    kinds = dict(priors.KINDS)
    if form != "sigmoid" or fixed_ceiling is not None:
        # Asked for on purpose: this shape and no other.
        kinds = {"rise": 1.0} if fixed_ceiling is not None else {"flat": 0.1, "rise": 0.8, "fall": 0.1}
    shape = FORMS[form]
    if not shape.has_exponent:
        prior = replace(prior, log_exponent=(0.0, 1e-4))
    if not shape.has_midpoint:
        prior = replace(prior, log_exponent=priors.LOG_POWER, log_midpoint=(0.0, 1e-4))
    problem = make_problem(blocks, shape, prior, fixed_ceiling)
    candidates = all_candidates(blocks, kinds)
    shared_shape = _shared_shape(problem, candidates)
    covariances = all_covariances(blocks, lambda x: sigmoid(x, *shared_shape))
    cells, covariances = where_the_mass_is(problem, covariances, candidates)
    found = evidence(problem, covariances, cells, num_nodes=len(NODES))
    draws = _draw(problem, cells, found, np.random.default_rng(seed))
    return Posterior(
        blocks=blocks,
        form=shape,
        draws=draws,
        covariances=covariances,
        shared_shape=shared_shape,
        fixed_ceiling=fixed_ceiling,
        room=problem.room,
    )


def _shared_shape(problem: Problem, candidates: Candidates) -> tuple[float, float]:
    """Return the shape along which runs of a recipe differ: that of the best plain rise."""
    if problem.blocks.num_runs == 1:
        return (0.0, 0.0)
    white = white_noise(problem.blocks)
    rise = candidates.take(candidates.kind == Kind.rise)
    b, m, _ = best_shapes(problem, white, rise, *first_shapes(problem, white, rise)[:2])
    return float(b[0]), float(m[0])


def _draw(problem: Problem, cells: Candidates, found: Evidence, rng: np.random.Generator) -> Draws:
    """Draw from the mixture: evenly spread over its mass, then everything that was integrated out."""
    from scipy.special import ndtr, ndtri

    mass = np.cumsum(np.exp(found.log_mass - found.log_mass.max()).ravel())
    places = (rng.permutation(NUM_DRAWS) + rng.uniform()) / NUM_DRAWS
    which = np.minimum(np.searchsorted(mass, places * mass[-1]), len(mass) - 1)
    covariance, node, cell = np.unravel_index(which, found.log_mass.shape)
    of = lambda values: values[covariance, cell]  # noqa: E731
    gain = found.gain[covariance, node, cell]
    noise = np.sqrt(found.squares[covariance, node, cell] / rng.chisquare(problem.df, NUM_DRAWS))
    has_extra = cells.has_extra[cell]
    extra_sd = noise / np.sqrt(of(found.extra_precision))
    mean = of(found.extra) - gain * of(found.gain_on_extra)
    below = ndtr(-mean / extra_sd)
    extra = mean + extra_sd * ndtri(np.clip(below + (1.0 - below) * rng.uniform(size=NUM_DRAWS), 1e-12, 1.0 - 1e-12))
    extra = np.where(has_extra, np.maximum(extra, 0.0), 0.0)
    level = problem.centre + of(found.level) - gain * of(found.gain_on_level) - extra * of(found.extra_on_level)
    level += noise / np.sqrt(of(found.level_precision)) * rng.standard_normal(NUM_DRAWS)
    if problem.fixed_ceiling is not None:
        level = level - gain
    kind = cells.kind[cell]
    seen = gain >= priors.NOTICED * noise / np.sqrt(of(found.gain_precision))
    seen |= has_extra & (extra >= priors.NOTICED * extra_sd)
    return Draws(
        kind=kind,
        level=level,
        gain=gain,
        log_exponent=cells.log_exponent[cell],
        log_midpoint=cells.log_midpoint[cell],
        place=cells.place[cell],
        length=cells.length[cell],
        extra=extra,
        noise=noise,
        covariance=covariance,
        far=rng.standard_normal(NUM_DRAWS),
        seen=(seen & (kind != Kind.flat)) | (kind == Kind.fall),
    )
