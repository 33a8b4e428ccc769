"""`Fit`: a fitted curve as a value, with what it says of any compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scalerl.curves.forms import FORMS, Array, Form
from scalerl.curves.intervals import Draws
from scalerl.curves.notes import Fall, FitNote
from scalerl.curves.points import Known
from scalerl.curves.priors.prior import Prior
from scalerl.curves.residuals.misfit import Misfit
from scalerl.curves.residuals.rise import Rise
from scalerl.curves.special import ndtri
from scalerl.curves.verdicts import Verdict
from scalerl.curves.ways.averaging import WANDER, Part, pooled_ceilings
from scalerl.curves.words import note_text

FAR = 2.0
"""Times the compute measured: how far a forecast is good for while the ceiling is not known."""
SURPRISE = 0.1
"""How fast the weight of a rise that nothing fitted shows grows beyond that: 1 - (FAR / times) ** SURPRISE.

Chosen on simulated runs (benchmarks/early_forecasts.py), where it has the best interval score of 0.05, 0.1 and 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted curve. `params` are posterior medians (least squares where no intervals were asked for)."""

    form: str
    params: dict[str, float]
    verdict: Verdict
    notes: tuple[FitNote, ...]
    """Reasons of the verdict, and what else to know about the fit."""
    compute: Array = field(repr=False)
    reward: Array = field(repr=False)
    run: np.ndarray = field(repr=False)
    """Which run each point belongs to: 0, 1, ..."""
    evaluation: np.ndarray | None = field(repr=False)
    num_samples: np.ndarray | None = field(repr=False)
    error: Array | None = field(repr=False)
    """Standard error of each reward, where rewards are means of several."""
    noise_sd: float
    """Scatter of one evaluation about its run's own curve."""
    run_sd: float | None
    """Spread of the ceiling between runs; None with one run."""
    least_squares: dict[str, float]
    sum_squares: float
    level: float
    margin: float
    bounds: tuple[float, float]
    scale: float
    """The largest compute fitted."""
    start_given: bool
    start_sd: float | None
    """Noise of the given start; None if it is that of one evaluation."""
    draws: Draws | None = field(repr=False, default=None)
    parts: tuple[Part, ...] = field(repr=False, default=())
    """Ways of fitting that intervals and curve are averaged over, where the run does not follow its form."""
    misfit: Misfit | None = None
    """The strongest pattern in the residuals of the form that was asked for; None where it was not looked for."""
    rise: Rise | None = None
    """Whether the run rises at all; None where it was not looked for."""
    known: Known | None = field(repr=False, default=None)
    """What was not fitted, relative to `scale`."""
    prior: Prior | None = field(repr=False, default=None)
    """The prior that other runs made; None for the form's weak one."""
    unpooled: "Fit | None" = field(repr=False, default=None)
    """The same points without that prior."""

    @property
    def messages(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return tuple(note_text(note) for note in self.notes)

    @property
    def falls(self) -> tuple[Fall, ...]:
        """The falls of its runs after their peaks: the curve is that of the rising part, unless a fall says not."""
        return tuple(note for note in self.notes if isinstance(note, Fall))

    @property
    def past_peak(self) -> bool:
        """Whether at least half of the runs fell after their peak: the curve then ends there, and has no ceiling."""
        return bool(self.falls) and 2 * len(self.falls) >= self.num_runs

    @property
    def chosen(self) -> "Fit":
        """The curve as it was fitted in the end, for what lies within the data: without the other ways of fitting that
        forecasts are averaged over, and without what came after a peak."""
        if not self.parts and not self.falls:
            return self
        params = self.params
        if self.draws is not None:
            params = {name: float(np.median(values)) for name, values in self.draws.params.items()}
        notes = tuple(note for note in self.notes if not isinstance(note, Fall))
        return replace(self, params=params, parts=(), notes=notes)

    @property
    def best_draws(self) -> Array:
        """Draws of the best reward to expect: the ceiling or, of a curve past its peak, the reward at the peak."""
        return self.curve_draws([self.scale])[:, 0] if self.past_peak else self.ceiling_draws

    @property
    def end(self) -> float:
        """The largest compute measured: that of the fit, or of what lies after a peak."""
        return max([self.scale, *(fall.last for fall in self.falls)])

    @property
    def good_until(self) -> float:
        """The compute up to which a forecast is more than a guess; infinite where the ceiling is known."""
        return np.inf if self.verdict in ("ok", "at a bound") else FAR * self.end

    @property
    def num_points(self) -> int:
        return len(self.reward)

    @property
    def num_runs(self) -> int:
        return len(np.unique(self.run))

    @property
    def usable(self) -> bool:
        """Whether the fit has a curve."""
        return all(np.isfinite(value) for value in self.params.values())

    def predict(self, compute) -> Array:
        """Return the reward on the curve, the start at compute 0; the median if several ways are averaged.

        Beyond the peak of runs that fell it is what they fell to.
        """
        places = np.asarray(compute, dtype=float)
        if self.parts:
            return np.median(self.curve_draws(places.ravel()), axis=0).reshape(places.shape)
        curve = self.own_form.curve(places, self.params, self.scale)
        if not self.past_peak:
            return curve
        # Most runs fell, so the reward beyond their peak is what they fell to.
        at_peak = self.own_form.curve(np.asarray(self.scale), self.params, self.scale)
        fallen = [at_peak + _way_down(self.scale, fall, places) * (fall.mean - at_peak) for fall in self.falls]
        return np.where(places > self.scale, np.mean(fallen, axis=0), curve)

    def interval(self, param: str, level: float | None = None) -> tuple[float, float]:
        """Return the central interval of one parameter; NaN without draws."""
        if self.draws is None:
            return (np.nan, np.nan)
        values = self.ceiling_draws if param == "ceiling" else self.draws.params[param]
        return tuple(np.quantile(values, tails(self.level if level is None else level)).tolist())

    @property
    def ceiling_draws(self) -> Array:
        """Draws of the ceiling, over all ways of fitting."""
        assert self.draws is not None
        return pooled_ceilings(self.draws, self.parts)

    def curve_draws(self, compute) -> Array:
        """Return the curve at `compute` (last axis) for every draw (first axis)."""
        places = np.atleast_1d(np.asarray(compute, dtype=float))
        return np.concatenate([self._curves(form, draws, places) for form, draws in self.ways()])

    @property
    def own_form(self) -> Form:
        """The form that `form` names."""
        return FORMS[self.form]

    def ways(self) -> list[tuple[Form, Draws]]:
        """Return the form and its draws; where several ways of fitting are averaged, those of each."""
        if self.draws is None:
            raise ValueError("this fit has no draws: fit with intervals=True")
        return [(part.choice.form, part.draws) for part in self.parts] or [(self.own_form, self.draws)]

    def _curves(self, form: Form, draws: Draws, compute: Array) -> Array:
        params = {name: values[:, None] for name, values in draws.params.items()}
        curve = form.curve(compute, params, self.scale)
        beyond = compute > self.scale
        if not self.falls or not beyond.any():
            return curve
        # A draw goes on as one of the runs went on: those that fell stay where they are, for all that is known.
        at_peak = form.curve(np.array([self.scale]), params, self.scale)
        number, normal = _scrambled(len(curve))
        for place, fall in enumerate(self.falls):
            mine = number % self.num_runs == place
            doublings = np.log2(np.maximum(compute[beyond] / fall.last, 1.0))
            level = fall.mean + normal[mine, None] * np.sqrt(fall.mean_error**2 + fall.drop**2 * doublings)
            down = _way_down(self.scale, fall, compute[beyond])
            fallen = (1 - down) * at_peak[mine] + down * level
            curve[np.ix_(mine, beyond)] = np.clip(fallen, *self.bounds)
        return curve

    def curve_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """Return the interval of the recipe's own curve."""
        low, high = np.quantile(self.curve_draws(compute), tails(self.level if level is None else level), axis=0)
        return low, high

    def new_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """Return the interval of one new evaluation.

        It holds the uncertainty of the curve, the noise of an evaluation, how far runs wander from their own curve
        beyond the data and, with several runs, the spread between them. Beyond `good_until` it also holds, with a
        growing weight, that the run rises to anywhere between where it is and the upper bound; not after a fall.
        """
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        curves, spreads = zip(*(self._new(form, draws, compute) for form, draws in self.ways()), strict=True)
        values = with_noise(np.concatenate(curves), np.sqrt(np.concatenate(spreads)))
        probabilities = tails(self.level if level is None else level)
        low, high = np.quantile(values, probabilities, axis=0)
        if not self.falls:
            # The bounds of rewards without limits are finite too: how far from the data ceilings are looked for.
            anywhere = np.linspace(min(float(self.predict(self.end)), self.bounds[1]), self.bounds[1], 101)
            for place in np.flatnonzero(compute > self.good_until):
                weight = 1.0 - (self.good_until / compute[place]) ** SURPRISE
                low[place], high[place] = _mixed_quantiles(values[:, place], anywhere, weight, probabilities)
        return np.clip(low, *self.bounds), np.clip(high, *self.bounds)

    def _new(self, form: Form, draws: Draws, compute: Array) -> tuple[Array, Array]:
        """Curves, and the variance of a new evaluation about each."""
        curve = self._curves(form, draws, compute)
        doublings = np.log2(np.maximum(compute / self.scale, 1.0))
        spread = draws.noise_sd[:, None] ** 2 * (1.0 + WANDER * draws.drift_share * doublings)
        if self.misfit is not None and self.misfit.claimed:
            # What the form missed within the data it may miss again with each doubling.
            spread = spread + self.misfit.size**2 * doublings
        if self.num_runs > 1:
            share: Array | float = 1.0
            if form.rising:
                # How far the run's own ceiling has come in, read off the curve rather than computed again.
                start, ceiling = draws.params["start"][:, None], draws.params["ceiling"][:, None]
                share = (curve - start) / np.maximum(ceiling - start, 1e-300)
            spread = spread + (draws.run_sd[:, None] * share) ** 2
        return curve, spread


def _way_down(scale: float, fall: Fall, compute: Array) -> Array:
    """Return how far along its fall a run is at a compute: 0 at the end of the curve, 1 from its last points on."""
    length = np.log(max(fall.last / scale, 1.0 + 1e-9))
    return np.clip(np.log(np.maximum(compute, scale) / scale) / length, 0.0, 1.0)


def _scrambled(num: int) -> tuple[np.ndarray, Array]:
    """Return a number and a normal number for each draw, in no relation to the order of the draws."""
    ranks = np.modf((np.arange(num) + 0.5) * np.sqrt(2.0))[0]
    return np.argsort(np.modf((np.arange(num) + 0.5) * np.sqrt(3.0))[0]), ndtri(np.clip(ranks, 1e-6, 1 - 1e-6))


def tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level:g}")
    return (0.5 - level / 2, 0.5 + level / 2)


def with_noise(centres: Array, sds: Array) -> Array:
    """Return the draws with evenly spread normal noise added to each, so that their quantiles are the mixture's."""
    num = centres.shape[0]
    # A fixed, scrambled order, so that the noise does not follow the draws' own order.
    ranks = np.modf((np.arange(num) + 0.5) * (np.sqrt(5.0) - 1.0) / 2.0)[0]
    return centres + sds * ndtri(np.clip(ranks, 1e-6, 1 - 1e-6))[:, None]


def _mixed_quantiles(values: Array, others: Array, weight: float, probabilities: Sequence[float]) -> Array:
    """Return quantiles of `values` and `others` together, where `others` have this share of the weight."""
    together = np.concatenate([values, others])
    each = np.repeat([(1 - weight) / len(values), weight / len(others)], [len(values), len(others)])
    # By hand: np.quantile takes weights from NumPy 2.0 on, and 1.26 is supported.
    order = np.argsort(together)
    return np.interp(probabilities, np.cumsum(each[order]) - each[order] / 2, together[order])
