"""One probabilistic model of a reward-against-compute curve, and its posterior.

    reward = level + gain * s(C) - drop * f(C) + drift or misfit + run * s(C) + noise

    level, gain   the reward before training, and what the rise adds to it; ceiling = level + gain
    s             the paper's sigmoid (arXiv 2510.13786, eq. 1), or another form
    drop, f       how far the reward falls after its peak, and the share of the fall that has happened at C
    drift         slow changes of the evaluations (an Ornstein-Uhlenbeck process along them)
    misfit        departures of the curve from its shape (a Matern process in log compute)
    run           how far one run's gain lies from the mean of the runs, and that mean from the recipe
    noise         binomial where the number of answers is known, otherwise of one unknown size

A curve is *flat* (no rise), a *rise*, or a rise with a *fall*. Given a shape (exponent, midpoint), a course (no fall,
or one that begins at some place) and a covariance of drift or misfit, the rest is linear: level, gain, drop and the
size of the noise integrate out in closed form (`cells.py`). Courses (`problem.py`) and covariances (`covariances.py`)
are few and are summed over, and so are shapes, on boxes that are split where the mass is (`grid.py`). Draws are spread
evenly over what has mass (`sample.py`). Nothing of that is random: the same evaluations have the same draws.

There are no tests before the fit. One thing is added after it, because no evaluation says anything about it: beyond the
last evaluation a forecast gets an *allowance* (`Posterior.allowance`) for how far curves were found to leave their
shape. `priors.py` has every assumed number; docs/math.md derives the formulas.
"""

from dataclasses import dataclass, replace

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.cells import FullCells, Prepared, log_sum, prepare
from scalerl.forecast.curves.covariances import CovarianceGroup, kernels, movement, places_of
from scalerl.forecast.curves.data import Blocks
from scalerl.forecast.curves.forms import FORMS, Array, Form
from scalerl.forecast.curves.grid import Kept, search
from scalerl.forecast.curves.normal import normal_quantile
from scalerl.forecast.curves.priors import Prior
from scalerl.forecast.curves.problem import NO_FALL, Problem, fallen_share, make_problem
from scalerl.forecast.curves.sample import Draws, Kind, draw, draw_flat, even_normals, share_out

MODEL = "scalerl-curve-10"
"""Name of the model in JSON, sealed forecasts and prior files. Change it if the same points get different answers."""
NUM_DRAWS = 2000
"""Number of draws in a posterior."""
EVEN_NORMALS = normal_quantile((np.arange(16) + 0.5) / 16)[None]
"""Even quantiles of a normal number: what no evaluation informs is averaged over them."""
PATHS = 2
"""Stream of the numbers by which paths drift. It is the same for all runs, so a path is a function of the data."""
_NEW_RUN = -1
"""Number of a run that is not among those of the data."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Draws of the model given the evaluations, and quantities derived from them. Compute has the unit of the data."""

    blocks: Blocks
    form: Form
    draws: Draws
    groups: list[CovarianceGroup]
    fixed_ceiling: float | None
    seed: int
    """Seed for the noise of new evaluations; nothing that is decided depends on it."""

    assumed_spread: float = 0.0
    """Spread of the ceiling between runs to assume for a recipe that was run once; with several it is known."""

    def curve(self, compute) -> Array:
        """Return draws of the recipe's curve: one row per draw, one column per compute.

        It differs from that of its runs by the allowance, and in proportion to its rise by the spread between runs.
        """
        return self._with_unseen(self.relative_log(compute), self.draws.unseen_normal[:, None])

    def even_values(self, compute: float) -> Array:
        """Return the curve at one compute: a row per draw, at even quantiles (columns) of what no evaluation informs.

        Probabilities over all are steadier than over `curve`.
        """
        return self._with_unseen(self.relative_log(compute), EVEN_NORMALS)

    def _with_unseen(self, x: Array, normal: Array) -> Array:
        """Return draws of the curve, with what no evaluation informs at these normal numbers: allowance and recipe."""
        rise = self.rise(x)
        unseen_sd = np.hypot(self.allowance_at(x), self.recipe_sd[:, None] * rise)
        return self.clip(self._fallen(x, rise) + unseen_sd * normal)

    def allowance_at(self, x: Array, end: float = 0.0) -> Array:
        """Return draws of the allowance's standard deviation at these relative log computes.

        `end` is the relative log compute of the last evaluation: above 0 for a run that has gone on.
        """
        doublings = np.clip((x - end) / np.log(2.0), 0.0, self.doublings_left(end)[:, None])
        return self.allowance(end)[:, None] * np.sqrt(doublings)

    @property
    def recipe_sd(self) -> Array:
        """Draws of the standard deviation of the recipe's ceiling about the mean of its runs."""
        if self.blocks.num_runs == 1:
            return np.full(len(self.draws.kind), self.assumed_spread)
        return self._of_covariance("spread") * self.draws.noise / np.sqrt(self.blocks.num_runs)

    def relative_log(self, compute) -> Array:
        """Return log compute, relative to the largest measured compute."""
        return np.log(np.maximum(np.atleast_1d(np.asarray(compute, dtype=float)) / self.blocks.scale, 1e-9))

    def rise(self, x: Array) -> Array:
        """Return draws of the share of the gain that is reached at these relative log computes."""
        return self.form.shape(x, self.draws.log_exponent[:, None], self.draws.log_midpoint[:, None])

    def shape_curve(self, x: Array) -> Array:
        """Return draws of level, rise and fall at these relative log computes."""
        return self._fallen(x, self.rise(x))

    def _fallen(self, x: Array, rise: Array) -> Array:
        d = self.draws
        curve = d.level[:, None] + d.gain[:, None] * rise
        falls = np.flatnonzero(d.kind == Kind.fall)
        curve[falls] -= d.drop[falls, None] * fallen_share(np.exp(x), d.place[falls, None], d.length[falls, None])
        return curve

    def doublings_left(self, end: float = 0.0) -> Array:
        """Draws of the number of doublings beyond the data until 95 % of the rise is over, limited to 1 to 4.

        With at least 1, a curve whose rise is over may still leave its shape; with at most 4, one whose midpoint is
        far beyond the data does not leave it ever further.
        """
        d = self.draws
        # A sigmoid has 95 % of its rise where (C / C_mid)^B = 0.95 / 0.05 = 19.
        return np.clip((d.log_midpoint - end + np.log(19.0) * np.exp(-d.log_exponent)) / np.log(2.0), 1.0, 4.0)

    def allowance(self, end: float = 0.0) -> Array:
        """Draws of the allowance's standard deviation one doubling beyond the last evaluation.

        It widens forecasts after the fit: no evaluation informs it, and its size was set on measured curves. It is a
        share of what the last doubling brought, plus the loss after a fall: the run may lose as much again, or recover.
        It grows with the root of the number of doublings until the rise is over.
        """
        d = self.draws
        half_way, now = self.form.shape(np.log([[0.5], [1.0]]) + end, d.log_exponent, d.log_midpoint)
        dropped = d.drop * fallen_share(np.ones(len(d.drop)), d.place, d.length)
        return dropped + priors.DIVERGENCE * d.gain * (now - half_way)

    @property
    def ceiling(self) -> Array:
        """Draws of the reward that the curve approaches if it does not fall."""
        return self._ceilings(self.draws.unseen_normal[:, None])[:, 0]

    @property
    def even_ceilings(self) -> Array:
        """The ceiling: a row per draw, at the same quantiles (columns) as in `even_values`."""
        return self._ceilings(EVEN_NORMALS)

    def _ceilings(self, normal: Array) -> Array:
        d = self.draws
        if self.fixed_ceiling is not None:
            return np.full((len(d.kind), normal.shape[1]), self.fixed_ceiling)
        # The allowance after a fall is for more of it or its end, which the ceiling leaves out.
        allowance = np.where(d.kind == Kind.fall, 0.0, self.allowance() * np.sqrt(self.doublings_left()))
        sd = np.hypot(allowance + self._misfit_at_end * d.noise, self.recipe_sd)
        return self.clip((d.level + d.gain)[:, None] + sd[:, None] * normal)

    @property
    def _misfit_at_end(self) -> Array:
        """Standard deviation of the misfit at the last evaluation, in units of the noise; 0 for draws without one."""
        size = np.where(self._of_covariance("is_misfit"), self._of_covariance("size"), 0.0)
        at_end = np.zeros(1)  # log of the largest compute, relative to itself
        return np.sqrt(size) * float(movement(self.blocks, at_end)[0])

    def path(self) -> Array:
        """Return draws (rows) of where the run itself was at every block: with drift and misfit, without noise.

        Of each rotated coordinate of the residuals, the share `1 - shrink` is drift or misfit and the rest is noise.
        """
        blocks, d = self.blocks, self.draws
        path = self.shape_curve(blocks.x)
        residual = blocks.y - path
        normal = even_normals(len(path), self.groups[0].shrink.shape[1], PATHS)
        for group, number, mine in self._by_covariance():
            share = 1.0 - group.shrink[number]
            if share.any():
                # A known start comes after the blocks; it has no residual, and the path does not reach it.
                rotate = group.rotate[:, : blocks.num]
                rotate_back = np.linalg.inv(group.rotate)[: blocks.num]
                mean = (residual[mine] @ rotate.T) * share
                sd = d.noise[mine, None] * np.sqrt(share)
                path[mine] += (mean + sd * normal[mine]) @ rotate_back.T
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
        risen = self.rise(x)
        values = self.curve(compute)
        residual = blocks.y - self.shape_curve(blocks.x)
        normal = even_normals(*values.shape, self.seed)
        for group, number, mine in self._by_covariance():
            size, rotate = group.size[number], group.rotate[:, : blocks.num]
            # Mean and variance of drift or misfit given the residuals, in the rotated basis; variances are in units of
            # the noise's.
            root = np.sqrt(group.shrink[number])[:, None]
            covariance = root * (rotate @ (size * shared[group.kernel]))
            values[mine] += residual[mine] @ (rotate.T @ (root * covariance))
            known = (covariance**2).sum(axis=0)
            before = size * (movement(blocks, x) ** 2 if group.is_misfit else 1.0)
            variance = np.maximum(before - known + (group.spread * risen[mine]) ** 2, 0.0)
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
        values = [np.broadcast_to(getattr(each, name), len(each.size)) for each in self.groups]
        return np.concatenate(values)[self.draws.covariance].astype(float)

    def _by_covariance(self):
        """Yield each covariance that was drawn: its `CovarianceGroup`, the place of its size there, and its draws."""
        rows = [(each, number) for each in self.groups for number in range(len(each.size))]
        for covariance in np.unique(self.draws.covariance):
            yield *rows[covariance], np.flatnonzero(self.draws.covariance == covariance)


def posterior(
    blocks: Blocks,
    *,
    form: str = "sigmoid",
    prior: Prior = priors.WEAK,
    fixed_ceiling: float | None = None,
    seed: int = 0,
) -> Posterior:
    """Return the posterior of a curve.

    Rises, rises with a fall and flat curves are summed over one after the other and share the draws by mass. The sums
    and the draws are a function of the data; `seed` is of the noise of new evaluations.
    """
    own_form = FORMS[form]
    # A given ceiling says that the curve rises to it: the curve is not flat and does not fall.
    flat, fall = (priors.FLAT, priors.FALL) if fixed_ceiling is None else (0.0, 0.0)
    problem = make_problem(blocks, own_form, prior_of_form(prior, own_form), fixed_ceiling, fall)
    prepared, rise = search_rises(problem)
    parts = [rise]
    if len(problem.courses.place) > 1:
        falls, _ = search(prepared, kept_for_falls(prepared, rise), log_others=log_sum(rise.log_mass))
        parts.append(falls)
    flat_mass = mass_of_flat(prepared)
    # The masses of the rises and falls are conditional on a curve that is not flat.
    log_masses = [log_sum(part.log_mass) + np.log(1.0 - flat) for part in parts]
    log_masses.append(log_sum(flat_mass) + np.log(max(flat, 1e-300)))
    *counts, num_flat = share_out(np.array(log_masses), NUM_DRAWS)
    drawn = [draw(prepared, part, num) for part, num in zip(parts, counts, strict=True)]
    drawn.append(draw_flat(prepared, flat_mass, int(num_flat)))
    return Posterior(
        blocks=blocks,
        form=own_form,
        draws=Draws.join(drawn),
        groups=prepared.groups,
        fixed_ceiling=fixed_ceiling,
        seed=seed,
    )


def prior_of_form(prior: Prior, form: Form) -> Prior:
    """Return the prior with no width for parameters that the form does not have.

    A form without a midpoint is a power law; its exponent has a prior of its own.
    """
    if not form.has_exponent:
        prior = replace(prior, log_exponent=(0.0, 1e-4))
    return prior if form.has_midpoint else replace(prior, log_exponent=priors.LOG_POWER, log_midpoint=(0.0, 1e-4))


FLATTER = 60.0
"""With a spread between runs a posterior is flatter: shapes that were unlikely by so many e-folds are tried again."""


def search_rises(problem: Problem) -> tuple[Prepared, FullCells]:
    """Sum over rises without a fall; with several runs, sum again with a spread between them.

    Runs differ in proportion to the rise of their recipe. That is taken to be the mean rise of the first sum, which
    the spread barely changes.
    """
    prepared = prepare(problem)
    kept = Kept(course=np.array([NO_FALL]), covariance=np.arange(len(prepared.level)))
    rise, boxes = search(prepared, kept)
    if problem.blocks.num_runs > 1:
        prepared = prepare(problem, mean_rise(problem, rise))
        kept = Kept(course=kept.course, covariance=np.arange(len(prepared.level)))
        rise, _ = search(prepared, kept, boxes.within(FLATTER))
    return prepared, rise


def mean_rise(problem: Problem, weighed: FullCells) -> Array:
    """Return the posterior mean of the rise at every block."""
    mass = np.exp(weighed.log_mass - weighed.log_mass.max()).sum(axis=0)
    shapes = problem.form.shape(problem.blocks.x[:, None], *weighed.shape)
    return shapes @ mass / mass.sum()


UNLIKELY_SPREAD = 0.05
"""A spread with less than this share of the mass of rises is not tried for falls."""


def kept_for_falls(prepared: Prepared, rise: FullCells) -> Kept:
    """Return what is weighed for falls: every course, under covariances whose spread between runs is likely.

    A fall does not change that spread, so the likely ones have the share of the mass that they have for rises.
    """
    courses = np.arange(1, len(prepared.problem.courses.place))
    if prepared.spread is None:
        return Kept(course=courses, covariance=np.arange(len(prepared.level)))
    mass = np.exp(rise.log_mass - rise.log_mass.max()).sum(axis=0)
    tried = np.unique(prepared.spread)
    shares = np.array([mass[prepared.spread[rise.covariance] == spread].sum() for spread in tried]) / mass.sum()
    is_likely = shares > UNLIKELY_SPREAD
    return Kept(
        course=courses,
        covariance=np.flatnonzero(np.isin(prepared.spread, tried[is_likely])),
        log_share=float(np.log(shares[is_likely].sum())),
    )


def mass_of_flat(prepared: Prepared) -> Array:
    """Return the log mass of a flat curve under each covariance; runs of a flat curve do not differ."""
    problem, spread = prepared.problem, prepared.spread
    log_mass = prepared.log_weight - 0.5 * problem.df * np.log(prepared.squares + problem.prior_squares)
    return log_mass if spread is None else np.where(spread > 0.0, -np.inf, log_mass)
