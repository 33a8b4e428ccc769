"""One probabilistic model of a reward-against-compute curve, and its posterior.

    reward = level + gain * s(C) - drop * f(C) + wander + run * s(C) + noise

    level, gain   the reward before training, and what the rise adds to it; ceiling = level + gain
    s             the paper's sigmoid (arXiv 2510.13786, eq. 1) with a skew, or another form
    drop, f       how far the reward falls after its peak, and the share of the fall that has happened at C
    wander        slow drift of the evaluations (an Ornstein-Uhlenbeck process along them), or a departure of the curve
                  from its shape (a Matern process in log compute)
    run           deviation of one run's gain from the mean of the runs, and of that mean from the recipe
    noise         binomial where the number of answers is known, otherwise of one unknown size

A curve is *flat* (no rise), a *rise*, or a rise with a *fall*. Given a shape (exponent, midpoint, skew), a course (no
fall, or one that begins at some place) and a covariance of the wander, the rest is linear: level, gain, drop and the
size of the noise integrate out in closed form (`weigh.py`). Courses (`problem.py`) and covariances (`wander.py`) are
few and are summed over. Shapes are found by rounds of weighing and drawing again (`search.py`). There are no tests
before the fit and no corrections after it. `priors.py` has every assumed number; docs/math.md derives the formulas.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.data import Blocks
from scalerl.forecast.curves.forms import FORMS, Array, Form, sigmoid
from scalerl.forecast.curves.normal import normal_cdf, normal_quantile
from scalerl.forecast.curves.priors import Prior
from scalerl.forecast.curves.problem import NO_FALL, Problem, fallen_share, make_problem
from scalerl.forecast.curves.search import Cloud, search
from scalerl.forecast.curves.wander import Wander, kernels, movement, places_of
from scalerl.forecast.curves.weigh import Prepared, Weighed, pick_by_mass, prepare

MODEL = "scalerl-curve-8"
"""Name of the model in JSON, sealed forecasts and prior files. Change it if the same points get different answers."""
NUM_DRAWS = 2000
"""Number of draws in a posterior."""
_NEW_RUN = -1
"""Number of a run that is not among those of the data."""


class Kind(IntEnum):
    """The kind of a curve: flat, a rise, or a rise followed by a fall."""

    flat = 0
    rise = 1
    fall = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws of all parameters, in random order."""

    kind: np.ndarray
    level: Array
    gain: Array
    log_exponent: Array
    log_midpoint: Array
    """Log midpoint, relative to the largest compute."""
    log_skew: Array
    drop: Array
    """Total fall of the reward; 0 without a fall."""
    place: Array
    length: Array
    """Place and length of the fall, as in `Courses`."""
    noise: Array
    covariance: np.ndarray
    """Index of the covariance among those of all wanders, one wander after the other."""
    departure_normal: Array
    """Standard normal numbers that scale the departure from the shape beyond the last evaluation."""
    recipe_normal: Array
    """Standard normal numbers that scale the distance of the recipe from the mean of its runs."""
    seen: np.ndarray
    """Whether the rise or the fall exceeds `NOTICED` times its standard error."""

    def take(self, which) -> "Draws":
        return Draws(**{name: getattr(self, name)[which] for name in self.__slots__})

    @staticmethod
    def join(many: "list[Draws]", order: np.ndarray) -> "Draws":
        names = Draws.__slots__
        return Draws(**{name: np.concatenate([getattr(each, name) for each in many])[order] for name in names})


def draw(prepared: Prepared, weighed: Weighed, num: int, rng: np.random.Generator) -> Draws:
    """Draw shapes, courses and covariances by their mass, then the parameters that were integrated out.

    The noise is drawn first, then the drop given the noise, the gain given the drop, and the level given both.
    """
    problem = prepared.problem
    # One of the normals of the gain's prior, and one cell: a shape, a course and a covariance.
    drawn = np.unravel_index(_sample_by_mass(weighed.log_mass, num, rng), weighed.log_mass.shape)
    cell = drawn[1]
    covariance, course = weighed.covariance[cell], weighed.course[cell]
    noise = np.sqrt(weighed.squares[drawn] / rng.chisquare(problem.df, num))

    falls = course != NO_FALL
    mean_drop = weighed.drop[drawn]
    drop_sd = noise / np.sqrt(weighed.drop_precision[drawn])
    shares = rng.uniform(size=num)
    drop = np.zeros(num)
    drop[falls] = truncated_normal_quantile(mean_drop[falls], drop_sd[falls], np.inf, shares[falls])

    mean_gain = weighed.gain[drawn] - weighed.gain_per_drop[drawn] * (drop - mean_drop)
    gain_sd = noise / np.sqrt(weighed.gain_precision[drawn])
    gain = truncated_normal_quantile(mean_gain, gain_sd, problem.gains.room, rng.uniform(size=num))

    level = problem.centre + prepared.level[covariance] - gain * weighed.on_level[cell]
    level -= drop * prepared.fall_on_level[covariance, course]
    level += noise / np.sqrt(prepared.level_precision[covariance]) * rng.standard_normal(num)
    if problem.fixed_ceiling is not None:
        # The linear model was solved from the ceiling down (`Problem.rises`), so this is the ceiling.
        level -= gain

    log_exponent, log_midpoint, log_skew = weighed.shape[:, cell]
    return Draws(
        kind=np.where(falls, Kind.fall, Kind.rise),
        level=level,
        gain=gain,
        log_exponent=log_exponent,
        log_midpoint=log_midpoint,
        log_skew=log_skew,
        drop=drop,
        place=problem.courses.place[course],
        length=problem.courses.length[course],
        noise=noise,
        covariance=covariance,
        departure_normal=rng.standard_normal(num),
        recipe_normal=rng.standard_normal(num),
        seen=(gain >= priors.NOTICED * gain_sd) | (drop >= priors.NOTICED * drop_sd),
    )


def draw_flat(prepared: Prepared, log_mass: Array, num: int, rng: np.random.Generator) -> Draws:
    """Draw curves without a rise, given the log mass of each covariance."""
    problem = prepared.problem
    covariance = _sample_by_mass(log_mass, num, rng)
    zeros, ones = np.zeros(num), np.ones(num)
    noise = np.sqrt((prepared.squares[covariance] + problem.prior_squares) / rng.chisquare(problem.df, num))
    level = problem.centre + prepared.level[covariance]
    return Draws(
        kind=np.full(num, Kind.flat),
        level=level + noise / np.sqrt(prepared.level_precision[covariance]) * rng.standard_normal(num),
        **dict.fromkeys(("gain", "log_exponent", "log_midpoint", "log_skew", "drop"), zeros),
        # A flat curve has no fall, but place and length must be those of a possible one.
        place=ones,
        length=ones,
        noise=noise,
        covariance=covariance,
        departure_normal=rng.standard_normal(num),
        recipe_normal=rng.standard_normal(num),
        seen=np.zeros(num, dtype=bool),
    )


def _sample_by_mass(log_mass: Array, num: int, rng: np.random.Generator) -> np.ndarray:
    """Return `num` indices into the flattened masses: a systematic sample by mass, in random order."""
    shares = (rng.permutation(num) + rng.uniform()) / max(num, 1)
    return pick_by_mass(np.exp(log_mass - log_mass.max()), shares)


def truncated_normal_quantile(mean: Array, sd: Array, high: float, share: Array) -> Array:
    """Return quantiles, at these shares, of normals truncated to 0 .. `high`."""
    # Compute from the nearer tail, where small probabilities are exact.
    sign = np.where(mean < 0.0, -1.0, 1.0)
    below_zero = normal_cdf(sign * (0.0 - mean) / sd)
    below_high = normal_cdf(sign * (high - mean) / sd)
    probability = np.clip(below_zero + (below_high - below_zero) * share, 1e-300, 1.0 - 1e-15)
    return np.clip(mean + sign * sd * normal_quantile(probability), 0.0, high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Draws of the model given the evaluations, and quantities derived from them. Compute has the unit of the data."""

    blocks: Blocks
    form: Form
    draws: Draws
    wanders: list[Wander]
    shared_shape: Array | None
    """Log exponent, midpoint and skew of the rise to which the differences between runs are proportional; None with one
    run."""
    fixed_ceiling: float | None
    room: float
    """The largest gain that is possible."""

    def curve(self, compute) -> Array:
        """Return draws of the recipe's curve: one row per draw, one column per compute.

        Beyond the last evaluation it may leave its shape, further with each doubling until its rise is over. It
        differs from the mean of several runs in proportion to its rise.
        """
        mean = self.mean_curve(compute)
        if self.shared_shape is None:
            return mean
        x = self._relative_log(compute)
        return self.clip(mean + self.recipe_offset[:, None] * sigmoid(x, *self.shared_shape))

    @property
    def recipe_offset(self) -> Array:
        """Draws of the distance of the recipe's ceiling from the mean of its runs."""
        if self.shared_shape is None:
            return np.zeros(len(self.draws.kind))
        spread = self._of_covariance("spread") * self.draws.noise / np.sqrt(self.blocks.num_runs)
        return spread * self.draws.recipe_normal

    def _relative_log(self, compute) -> Array:
        """Return log compute, relative to the largest measured compute."""
        return np.log(np.maximum(np.atleast_1d(np.asarray(compute, dtype=float)) / self.blocks.scale, 1e-9))

    def mean_curve(self, compute) -> Array:
        """Return draws of the runs' common curve."""
        d, x = self.draws, self._relative_log(compute)
        column = lambda name: getattr(d, name)[:, None]  # noqa: E731
        shape = self.form.shape(x, column("log_exponent"), column("log_midpoint"), column("log_skew"))
        curve = column("level") + column("gain") * shape
        falls = np.flatnonzero(d.kind == Kind.fall)
        curve[falls] -= d.drop[falls, None] * fallen_share(np.exp(x), d.place[falls, None], d.length[falls, None])
        if x.max(initial=0.0) > 0.0:
            curve += self.departure[:, None] * np.sqrt(np.clip(x / np.log(2.0), 0.0, self.doublings_left[:, None]))
        return self.clip(curve)

    @property
    def doublings_left(self) -> Array:
        """Draws of the number of doublings beyond the data until 95 % of the rise is over, limited to 1 to 4.

        With at least 1, a curve whose rise is over may still leave its shape; with at most 4, one whose midpoint is
        far beyond the data does not leave it ever further.
        """
        d = self.draws
        # A sigmoid has 95 % of its rise where (C / C_mid)^B = 0.95 / 0.05 = 19.
        return np.clip((d.log_midpoint + np.log(19.0) * np.exp(-d.log_exponent)) / np.log(2.0), 1.0, 4.0)

    @property
    def departure(self) -> Array:
        """Draws of the curve's departure from its shape one doubling beyond the last evaluation, up or down.

        Its scale is a share of what the last doubling brought, plus the loss after a fall: the run may lose as much
        again, or recover.
        """
        d = self.draws
        ends = self.form.shape(np.log([[0.5], [1.0]]), d.log_exponent, d.log_midpoint, d.log_skew)
        dropped = d.drop * fallen_share(np.ones(len(d.drop)), d.place, d.length)
        return d.departure_normal * (dropped + priors.DIVERGENCE * d.gain * (ends[1] - ends[0]))

    @property
    def ceiling(self) -> Array:
        """Draws of the reward that the curve approaches if it does not fall."""
        d = self.draws
        if self.fixed_ceiling is not None:
            return np.full(len(d.kind), self.fixed_ceiling)
        # The departure after a fall continues or undoes the fall, which the ceiling leaves out.
        departure = np.where(d.kind == Kind.fall, 0.0, self.departure * np.sqrt(self.doublings_left))
        ceiling = d.level + d.gain + departure + d.departure_normal * self._misfit_at_end * d.noise
        return self.clip(ceiling + self.recipe_offset)

    @property
    def _misfit_at_end(self) -> Array:
        """Standard deviation of the misfit at the last evaluation, in units of the noise; 0 for draws without one."""
        size = np.where(self._of_covariance("is_misfit"), self._of_covariance("size"), 0.0)
        at_end = np.zeros(1)  # log of the largest compute, relative to itself
        return np.sqrt(size) * float(movement(self.blocks, at_end)[0])

    def path(self) -> Array:
        """Return draws (rows) of where the run itself was at every block: its curve with its wander, without noise.

        Of each rotated coordinate of the residuals, the share `1 - shrink` is wander and the rest is noise.
        """
        blocks, d = self.blocks, self.draws
        path = self.mean_curve(blocks.compute)
        residual = blocks.y - path
        rng = np.random.default_rng(2)
        for wander, number, mine in self._by_covariance():
            share = 1.0 - wander.shrink[number]
            if share.any():
                # A known start comes after the blocks; it has no residual, and the path does not reach it.
                rotate = wander.rotate[:, : blocks.num]
                rotate_back = np.linalg.inv(wander.rotate)[: blocks.num]
                mean = (residual[mine] @ rotate.T) * share
                sd = d.noise[mine, None] * np.sqrt(share)
                path[mine] += (mean + sd * rng.standard_normal(mean.shape)) @ rotate_back.T
        return self.clip(path)

    def new_evaluations(self, compute) -> Array:
        """Return draws of a new evaluation at each compute: of the same run, or of a new run if there are several.

        The residuals give the present drift and misfit, which decay to 0 beyond the last evaluation.
        """
        blocks, d = self.blocks, self.draws
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        x = np.log(compute / blocks.scale)
        index = blocks.index.max() + (compute - blocks.scale) / blocks.spacing
        here = (x, index, np.full(len(x), 0 if blocks.num_runs == 1 else _NEW_RUN))
        shared = kernels(blocks, places_of(blocks), here)
        risen = np.zeros(len(x)) if self.shared_shape is None else sigmoid(x, *self.shared_shape)
        values = self.curve(compute)
        residual = blocks.y - self.mean_curve(blocks.compute)
        # A fixed seed: the same posterior gives the same answer.
        normal = np.random.default_rng(1).standard_normal(values.shape)
        for wander, number, mine in self._by_covariance():
            size, rotate = wander.size[number], wander.rotate[:, : blocks.num]
            # The wander's mean and variance given the residuals, in the rotated basis; all variances are in units of
            # the noise's.
            root = np.sqrt(wander.shrink[number])[:, None]
            covariance = root * (rotate @ (size * shared[wander.kernel]))
            values[mine] += residual[mine] @ (rotate.T @ (root * covariance))
            known = (covariance**2).sum(axis=0)
            before = size * (movement(blocks, x) ** 2 if wander.is_misfit else 1.0)
            variance = np.maximum(before + (wander.spread * risen) ** 2 - known, 0.0)
            values[mine] += d.noise[mine, None] * np.sqrt(variance + blocks.evaluation_weight) * normal[mine]
        return self.clip(values)

    def clip(self, values: Array) -> Array:
        return values if self.blocks.bounds is None else np.clip(values, *self.blocks.bounds)

    def probability(self, kind: Kind) -> float:
        return float(np.mean(self.draws.kind == kind))

    @property
    def run_sd(self) -> float:
        """Spread of the ceiling between runs of the recipe."""
        # A spread of 0 stands for all that are smaller than the smallest: count it as half of that.
        least = 0.5 * priors.RUN_SPREADS[0] * self.blocks.span / self.blocks.noise
        return float(np.median(np.maximum(self._of_covariance("spread"), least) * self.draws.noise))

    @property
    def noise_sd(self) -> float:
        """Scatter of one evaluation around the curve: noise and drift."""
        drift = np.where(self._of_covariance("is_misfit"), 0.0, self._of_covariance("size"))
        return float(np.median(self.draws.noise * np.sqrt(self.blocks.evaluation_weight + drift)))

    def _of_covariance(self, name: str) -> Array:
        """Return an attribute of each draw's covariance."""
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

    Rises, rises with a fall and flat curves are weighed one after the other and share the draws by mass.
    """
    own_form = FORMS[form]
    # A given ceiling says that the curve rises to it: the curve is not flat and does not fall.
    flat, fall = (priors.FLAT, priors.FALL) if fixed_ceiling is None else (0.0, 0.0)
    problem = make_problem(blocks, own_form, prior_of_form(prior, own_form), fixed_ceiling, fall)
    rng = np.random.default_rng(seed)
    prepared, rise, cloud = search_rises(problem, rng)
    parts = [rise]
    if len(problem.courses.place) > 1:
        falls = np.arange(1, len(problem.courses.place))
        covariances = covariances_with_likely_spread(prepared, rise)
        parts.append(search(prepared, falls, FALL_SIZES, rng, cloud.wider(), covariances)[0])
    flat_mass = weigh_flat(prepared)
    # The masses of the rises and falls are conditional on a curve that is not flat.
    log_masses = [log_sum(part.log_mass) + np.log(1.0 - flat) for part in parts]
    log_masses.append(log_sum(flat_mass) + np.log(max(flat, 1e-300)))
    *counts, num_flat = share_out(np.array(log_masses), NUM_DRAWS)
    drawn = [draw(prepared, part, num, rng) for part, num in zip(parts, counts, strict=True)]
    drawn.append(draw_flat(prepared, flat_mass, int(num_flat), rng))
    return Posterior(
        blocks=blocks,
        form=own_form,
        draws=Draws.join(drawn, rng.permutation(NUM_DRAWS)),
        wanders=prepared.wanders,
        shared_shape=prepared.shared_shape,
        fixed_ceiling=fixed_ceiling,
        room=problem.gains.room,
    )


def prior_of_form(prior: Prior, form: Form) -> Prior:
    """Return the prior with no width for parameters that the form does not have.

    A form without a midpoint is a power law; its exponent has a prior of its own.
    """
    if not form.has_exponent:
        prior = replace(prior, log_exponent=(0.0, 1e-4))
    return prior if form.has_midpoint else replace(prior, log_exponent=priors.LOG_POWER, log_midpoint=(0.0, 1e-4))


def search_rises(problem: Problem, rng: np.random.Generator) -> tuple[Prepared, Weighed, Cloud]:
    """Search for rises without a fall; with several runs, search again with a spread between them.

    Runs differ in proportion to the rise of their recipe. The first search finds its shape, which the spread barely
    changes.
    """
    no_fall = np.array([NO_FALL])
    prepared = prepare(problem)
    rise, cloud = search(prepared, no_fall, RISE_SIZES, rng)
    if problem.blocks.num_runs > 1:
        likeliest = rise.log_mass.max(axis=0).argmax()
        prepared = prepare(problem, rise.shape[:, likeliest])
        rise, cloud = search(prepared, no_fall, RISE_SIZES, rng, cloud.wider())
    return prepared, rise, cloud


def covariances_with_likely_spread(prepared: Prepared, rise: Weighed) -> np.ndarray | None:
    """Return the covariances with a likely spread between runs, given the rises; a fall does not change that spread."""
    if prepared.spread is None:
        return None
    return np.flatnonzero(np.isin(prepared.spread, prepared.spread[rise.covariance]))


def weigh_flat(prepared: Prepared) -> Array:
    """Return the log mass of a flat curve under each covariance; runs of a flat curve do not differ."""
    problem, spread = prepared.problem, prepared.spread
    log_mass = prepared.log_weight - 0.5 * problem.df * np.log(prepared.squares + problem.prior_squares)
    return log_mass if spread is None else np.where(spread > 0.0, -np.inf, log_mass)


def share_out(log_masses: Array, num: int) -> np.ndarray:
    """Divide `num` draws among the masses."""
    share = np.exp(log_masses - log_masses.max())
    return np.diff(np.round(np.cumsum(share) / share.sum() * num).astype(int), prepend=0)


def log_sum(values: Array) -> float:
    """Return log(sum(exp(values)))."""
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))
