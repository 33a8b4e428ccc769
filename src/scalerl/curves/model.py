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

from scalerl.curves import priors
from scalerl.curves.data import Blocks
from scalerl.curves.forms import FORMS, Array, Form, sigmoid
from scalerl.curves.normal import normal_cdf, normal_quantile
from scalerl.curves.priors import Prior
from scalerl.curves.problem import NO_FALL, Problem, fallen_share, make_problem
from scalerl.curves.search import Cloud, search
from scalerl.curves.wander import Wander, kernels, movement, places_of
from scalerl.curves.weigh import Prepared, Weighed, drawn_by_mass, prepare

MODEL = "scalerl-curve-8"
"""Name of the model in JSON, sealed forecasts and prior files. Change it if the same points get different answers."""
NUM_DRAWS = 2000
"""Number of draws in a posterior."""


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
    """Number of the covariance, counted through all wanders."""
    far: Array
    """Standard normal numbers for what no evaluation shows: the departure from the shape beyond the last one ..."""
    beside: Array
    """... and the distance of the recipe from the mean of its runs."""
    seen: np.ndarray
    """Whether the rise or the fall is larger than `NOTICED` of its own standard errors."""

    def take(self, which) -> "Draws":
        return Draws(**{name: getattr(self, name)[which] for name in self.__slots__})

    @staticmethod
    def join(many: "list[Draws]", order: np.ndarray) -> "Draws":
        names = Draws.__slots__
        return Draws(**{name: np.concatenate([getattr(each, name) for each in many])[order] for name in names})


def draw(prepared: Prepared, weighed: Weighed, num: int, rng: np.random.Generator) -> Draws:
    """Draw cells and components of the gain by their mass, then the parameters that were integrated out."""
    problem = prepared.problem
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
    level = problem.centre + prepared.level[covariance] - gain * weighed.on_level[cell]
    level -= drop * prepared.fall_on_level[covariance, course]
    level += noise / np.sqrt(prepared.level_precision[covariance]) * rng.standard_normal(num)
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


def draw_flat(prepared: Prepared, log_mass: Array, num: int, rng: np.random.Generator) -> Draws:
    """Draw curves without a rise, given the log mass of each covariance."""
    problem = prepared.problem
    covariance, zero = _drawn(log_mass, num, rng), np.zeros(num)
    noise = np.sqrt((prepared.squares[covariance] + problem.prior_squares) / rng.chisquare(problem.df, num))
    level = problem.centre + prepared.level[covariance]
    return Draws(
        kind=np.full(num, Kind.flat),
        level=level + noise / np.sqrt(prepared.level_precision[covariance]) * rng.standard_normal(num),
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
    """Return `num` indices into the flattened masses: a systematic sample by mass, in random order."""
    shares = (rng.permutation(num) + rng.uniform()) / max(num, 1)
    return drawn_by_mass(np.exp(log_mass - log_mass.max()), shares)


def cut_normal(mean: Array, sd: Array, high: float, share: Array) -> Array:
    """Return quantiles, at these shares, of normals truncated to 0 .. `high`."""
    # Compute from the nearer tail, where small probabilities are exact.
    sign = np.where(mean < 0.0, -1.0, 1.0)
    one, other = normal_cdf(sign * (0.0 - mean) / sd), normal_cdf(sign * (high - mean) / sd)
    value = mean + sign * sd * normal_quantile(np.clip(one + (other - one) * share, 1e-300, 1.0 - 1e-15))
    return np.clip(value, 0.0, high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Draws of the model given the evaluations, and quantities derived from them. Compute has the unit of the data."""

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
        """Return draws of the recipe's curve: one row per draw, one column per compute.

        Beyond the last evaluation it may leave its shape, further with each doubling until its rise is over. It
        differs from the mean of several runs in proportion to its rise.
        """
        mean = self.mean_curve(compute)
        if self.shared_shape is None:
            return mean
        x = self._x_of(compute)
        return self.clipped(mean + self.recipe_offset[:, None] * sigmoid(x, *self.shared_shape))

    @property
    def recipe_offset(self) -> Array:
        """Draws of the distance of the recipe's ceiling from the mean of its runs."""
        if self.shared_shape is None:
            return np.zeros(len(self.draws.kind))
        spread = self._of_covariance("spread") * self.draws.noise / np.sqrt(self.blocks.num_runs)
        return spread * self.draws.beside

    def _x_of(self, compute) -> Array:
        """Return log compute, relative to the largest measured compute."""
        return np.log(np.maximum(np.atleast_1d(np.asarray(compute, dtype=float)) / self.blocks.scale, 1e-9))

    def mean_curve(self, compute) -> Array:
        """Return draws of the runs' common curve."""
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
        """Draws of the number of doublings beyond the data until 95 % of the rise is over, limited to 1 to 4."""
        d = self.draws
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
        return d.far * (dropped + priors.DIVERGENCE * d.gain * (ends[1] - ends[0]))

    @property
    def ceiling(self) -> Array:
        """Draws of the reward that the curve approaches if it does not fall."""
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
        path = self.mean_curve(blocks.compute)
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
        """Return draws of a new evaluation at each compute: of the same run, or of a new run if there are several.

        The residuals give the present drift and misfit, which decay to 0 beyond the last evaluation.
        """
        blocks, d = self.blocks, self.draws
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        x = np.log(compute / blocks.scale)
        index = blocks.index.max() + (compute - blocks.scale) / blocks.spacing
        here = (x, index, np.full(len(x), 0 if blocks.num_runs == 1 else -1))
        shared = kernels(blocks, places_of(blocks), here)
        risen = np.zeros(len(x)) if self.shared_shape is None else sigmoid(x, *self.shared_shape)
        values = self.curve(compute)
        residual = blocks.y - self.mean_curve(blocks.compute)
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
        """Scatter of one evaluation around the curve: noise and drift."""
        is_drift = self._of_covariance("kernel") < len(priors.DRIFT_LENGTHS)
        drift = np.where(is_drift, self._of_covariance("size"), 0.0)
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
    shape = FORMS[form]
    # With a given ceiling, the curve rises to it.
    flat, fall = (priors.FLAT, priors.FALL) if fixed_ceiling is None else (0.0, 0.0)
    problem = make_problem(blocks, shape, prior_of_form(prior, shape), fixed_ceiling, fall)
    rng = np.random.default_rng(seed)
    prepared, rise, cloud = search_rises(problem, rng)
    parts = [rise]
    if len(problem.courses.place) > 1:
        falls = np.arange(1, len(problem.courses.place))
        parts.append(search(prepared, falls, FALL_SIZES, rng, cloud.wider(), like_spread(prepared, rise))[0])
    flat_mass = weigh_flat(prepared)
    # The masses of the rises and falls are conditional on a curve that is not flat.
    log_masses = [log_sum(part.log_mass) + np.log(1.0 - flat) for part in parts]
    log_masses.append(log_sum(flat_mass) + np.log(max(flat, 1e-300)))
    *counts, num_flat = shared_out(np.array(log_masses), NUM_DRAWS)
    drawn = [draw(prepared, part, num, rng) for part, num in zip(parts, counts, strict=True)]
    drawn.append(draw_flat(prepared, flat_mass, int(num_flat), rng))
    return Posterior(
        blocks=blocks,
        form=shape,
        draws=Draws.join(drawn, rng.permutation(NUM_DRAWS)),
        wanders=prepared.wanders,
        shared_shape=prepared.shared_shape,
        fixed_ceiling=fixed_ceiling,
        room=problem.gains.room,
    )


def prior_of_form(prior: Prior, form: Form) -> Prior:
    """Return the prior with no width for parameters that the form does not have."""
    if not form.has_exponent:
        prior = replace(prior, log_exponent=(0.0, 1e-4))
    return prior if form.has_midpoint else replace(prior, log_exponent=priors.LOG_POWER, log_midpoint=(0.0, 1e-4))


def search_rises(problem: Problem, rng: np.random.Generator) -> tuple[Prepared, Weighed, Cloud]:
    """Search for rises without a fall; with several runs, search again with a spread between them.

    Runs of a recipe differ along the shape of its rise, which the spread barely changes.
    """
    no_fall, prepared = np.array([NO_FALL]), prepare(problem)
    rise, cloud = search(prepared, no_fall, RISE_SIZES, rng)
    if problem.blocks.num_runs > 1:
        prepared = prepare(problem, rise.shape[:, rise.log_mass.max(axis=0).argmax()])
        rise, cloud = search(prepared, no_fall, RISE_SIZES, rng, cloud.wider())
    return prepared, rise, cloud


def like_spread(prepared: Prepared, rise: Weighed) -> np.ndarray | None:
    """Return the covariances with a likely spread between runs, given the rises; a fall does not change that spread."""
    if prepared.spread is None:
        return None
    return np.flatnonzero(np.isin(prepared.spread, prepared.spread[rise.covariance]))


def weigh_flat(prepared: Prepared) -> Array:
    """Return the log mass of a flat curve under each covariance; runs of a flat curve do not differ."""
    problem, spread = prepared.problem, prepared.spread
    log_mass = prepared.log_weight - 0.5 * problem.df * np.log(prepared.squares + problem.prior_squares)
    return log_mass if spread is None else np.where(spread > 0.0, -np.inf, log_mass)


def shared_out(log_masses: Array, num: int) -> np.ndarray:
    """Divide `num` draws among the masses."""
    share = np.exp(log_masses - log_masses.max())
    return np.diff(np.round(np.cumsum(share) / share.sum() * num).astype(int), prepend=0)


def log_sum(values: Array) -> float:
    """Return log(sum(exp(values)))."""
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))
