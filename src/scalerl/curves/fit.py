"""`fit`: rewards against compute in, one frozen value out. A poor fit is a verdict, not an exception."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scalerl.curves.forms import FORMS, Array, Form
from scalerl.curves.intervals import Draws, posterior
from scalerl.curves.least_squares import Solution, least_squares, paper_grid
from scalerl.curves.notes import FitNote, TooFewComputes, TooFewPoints
from scalerl.curves.points import Known, Points, make_points, noise_guess, scatter, thin, with_start
from scalerl.curves.special import ndtri
from scalerl.curves.verdicts import Verdict, judge, skip_rule
from scalerl.curves.words import note_text

LEVEL = 0.9
MARGIN = 0.06
WANDER = 1.0  # noise variances that a run may stray from its own curve with each doubling beyond the data


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

    @property
    def messages(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return tuple(note_text(note) for note in self.notes)

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
        """Reward on the curve; 0 compute is the start."""
        return FORMS[self.form].curve(np.asarray(compute, dtype=float), self.params, self.scale)

    def interval(self, param: str, level: float | None = None) -> tuple[float, float]:
        """The central interval of one parameter; NaN without draws."""
        if self.draws is None:
            return (np.nan, np.nan)
        return tuple(np.quantile(self.draws.params[param], tails(self.level if level is None else level)).tolist())

    def curve_draws(self, compute) -> Array:
        """The curve at `compute` (last axis) for every draw (first axis)."""
        if self.draws is None:
            raise ValueError("this fit has no draws: fit with intervals=True")
        params = {name: values[:, None] for name, values in self.draws.params.items()}
        return FORMS[self.form].curve(np.atleast_1d(np.asarray(compute, dtype=float)), params, self.scale)

    def curve_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """The interval of the recipe's own curve."""
        low, high = np.quantile(self.curve_draws(compute), tails(self.level if level is None else level), axis=0)
        return low, high

    def new_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """The interval of one new evaluation.

        It holds the uncertainty of the curve, the noise of an evaluation, how far runs wander from their own curve
        beyond the data and, with several runs, the spread between them.
        """
        compute = np.atleast_1d(np.asarray(compute, dtype=float))
        curve = self.curve_draws(compute)
        assert self.draws is not None
        doublings = np.log2(np.maximum(compute / self.scale, 1.0))
        spread = self.draws.noise_sd[:, None] ** 2 * (1.0 + WANDER * doublings)
        if self.num_runs > 1:
            share: Array | float = 1.0
            if FORMS[self.form].rising:
                # How far the run's own ceiling has come in, read off the curve rather than computed again.
                start, ceiling = self.draws.params["start"][:, None], self.draws.params["ceiling"][:, None]
                share = (curve - start) / np.maximum(ceiling - start, 1e-300)
            spread = spread + (self.draws.run_sd[:, None] * share) ** 2
        low, high = mixture_quantiles(curve, np.sqrt(spread), tails(self.level if level is None else level))
        return np.clip(low, *self.bounds), np.clip(high, *self.bounds)


def tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level:g}")
    return (0.5 - level / 2, 0.5 + level / 2)


def mixture_quantiles(centres: Array, sds: Array, probabilities: Sequence[float]) -> list[Array]:
    """Quantiles of the draws' mixture of normals, by adding evenly spread normal noise to each draw."""
    num = centres.shape[0]
    # A fixed, scrambled order, so that the noise does not follow the draws' own order.
    ranks = np.modf((np.arange(num) + 0.5) * (np.sqrt(5.0) - 1.0) / 2.0)[0]
    noisy = centres + sds * ndtri(np.clip(ranks, 1e-6, 1 - 1e-6))[:, None]
    return list(np.quantile(noisy, probabilities, axis=0))


def fit(
    compute,
    reward,
    *,
    start: float | None = None,
    start_sd: float | None = 0.0,
    form: str = "sigmoid",
    fixed: Mapping[str, float] | None = None,
    num_samples=None,
    run=None,
    evaluation=None,
    skip_before: float | str | None = None,
    fit_until: float | None = None,
    level: float = LEVEL,
    margin: float = MARGIN,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    intervals: bool = True,
    method: Literal["posterior", "paper"] = "posterior",
) -> Fit:
    """Fit a form to reward against compute.

    `start` is the reward before any training (fitted when None) and `start_sd` its own noise (None: that of one more
    evaluation); `fixed` holds parameters by name; `num_samples` is the number of graded completions behind each point;
    `run` labels the run (seed) of each point and `evaluation` what it was evaluated on (for paired comparisons);
    `skip_before` is a compute, a share of the largest ("10%") or "auto"; `bounds=None` is for rewards without limits;
    `method="paper"` is the grid procedure of arXiv 2510.13786, A.5, which has no intervals.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; choose one of {', '.join(FORMS)}")
    if method not in ("posterior", "paper"):
        raise ValueError(f'unknown method {method!r}; choose "posterior" or "paper"')
    if method == "paper" and (form != "sigmoid" or start is None or fixed):
        raise ValueError('method="paper" fits the sigmoid from a given start=, with nothing held fixed')
    tails(level)
    shape = FORMS[form]
    if shape.ceiling is not None and bounds is None:
        raise ValueError(
            f"the {form} law has its ceiling at {shape.ceiling:g} and does not suit rewards without limits"
        )
    points = make_points(compute, reward, num_samples=num_samples, run=run, bounds=bounds, evaluation=evaluation)
    guess = noise_guess(points.reward, points.num_samples)
    known = _known(shape, points, start, start_sd, dict(fixed or {}))
    points, known, notes = _window(points, shape, known, skip_before, fit_until)
    num_distinct = len(np.unique(points.log_compute))
    if points.num < known.num_free(shape) + 2 or num_distinct < known.num_free(shape):
        too_few = _too_few(points, shape, known, len(np.ravel(compute)))
        notes = (*notes, too_few)
        return _make(points, shape, known, _no_solution(shape), None, "too few points", notes, level, margin, start_sd)
    few = thin(points)
    best, draws, soft = _solve(few, shape, known, start_sd, guess, intervals=intervals, paper=method == "paper")
    verdict, reasons = judge(few, shape, soft, best, draws, level=level, margin=margin)
    done = _make(points, shape, known, best, draws, verdict, (*notes, *reasons), level, margin, start_sd)
    return done if few is points else _rescatter(done)


def _window(
    points: Points, form: Form, known: Known, skip_before: float | str | None, fit_until: float | None
) -> tuple[Points, Known, tuple[FitNote, ...]]:
    """Keep the points between the two ends; the largest compute kept becomes the unit."""
    notes: list[FitNote] = []
    if fit_until is not None:
        if not fit_until > 0:
            raise ValueError(f"fit_until must be a positive compute, but is {fit_until:g}")
        points = points.take(points.log_compute <= np.log(fit_until) - np.log(points.scale) + 1e-12)
        points, known = _rescale(points, known, form)
    if skip_before is not None and points.num:
        least, reasons = skip_rule(thin(points), form, replace(known, start_sd=0.0), skip_before)
        notes.extend(reasons)
        if least > 0:
            points = points.take(points.log_compute >= np.log(least) - np.log(points.scale) - 1e-12)
            points, known = _rescale(points, known, form)
    return points, known, tuple(notes)


def _solve(
    points: Points,
    form: Form,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    *,
    intervals: bool,
    paper: bool,
) -> tuple[Solution, Draws | None, Known]:
    """Least squares, the posterior if asked for, and what is known with the start's noise as a number."""
    if paper:
        assert known.start is not None
        return paper_grid(points, known.start), None, known
    if known.start is None or start_sd == 0:
        best = least_squares(points, form, known)
        return best, posterior(points, form, known, guess) if intervals else None, known
    size = max(scatter(points), 1e-6 * (points.bounds[1] - points.bounds[0]))
    soft = replace(known, start_sd=size if start_sd is None else start_sd)
    free = replace(known, start=None, start_sd=0.0)
    best = least_squares(with_start(points, known.start, soft.start_sd / size), form, free)
    if not intervals:
        return best, None, soft
    if start_sd is None:
        return best, posterior(with_start(points, known.start, 1.0), form, free, guess), soft
    return best, posterior(points, form, soft, guess), soft


def _rescatter(done: Fit) -> Fit:
    """The noise of one evaluation from all points of a thinned log: blocks of autocorrelated points overstate it."""
    form = FORMS[done.form]
    residual = done.reward - form.curve(done.compute, done.least_squares, done.scale)
    moved = form.curve(done.compute, dict(done.least_squares, ceiling=1.0, start=0.0, shortfall=0.0), done.scale)
    own = residual.copy()
    for run in np.unique(done.run) if done.num_runs > 1 else ():
        # About the run's own ceiling, as among few points.
        mine = done.run == run
        own[mine] -= moved[mine] * (moved[mine] @ residual[mine]) / max(moved[mine] @ moved[mine], 1e-300)
    noise_sd = float(np.sqrt(np.mean(own**2)))
    draws = done.draws
    if draws is not None:
        draws = replace(draws, noise_sd=draws.noise_sd * noise_sd / float(np.median(draws.noise_sd)))
    return replace(done, noise_sd=noise_sd, draws=draws, sum_squares=float(residual @ residual))


def _known(form: Form, points: Points, start: float | None, start_sd: float | None, fixed: dict[str, float]) -> Known:
    unknown = [name for name in fixed if name not in form.params]
    if unknown:
        raise ValueError(f"{form.name} has no parameter {unknown[0]!r}; it has {', '.join(form.params)}")
    if "shortfall" in fixed:
        raise ValueError("the shortfall depends on the largest compute and cannot be held fixed")
    if start_sd is not None and not start_sd >= 0:
        raise ValueError(f"start_sd must not be negative, but is {start_sd:g}")
    if "start" in fixed:
        start = fixed.pop("start")
    ceiling = fixed.pop("ceiling", form.ceiling)
    for name, value in (("start", start), ("ceiling", ceiling)):
        if value is not None and not points.bounds[0] <= value <= points.bounds[1]:
            raise ValueError(f"{name} = {value:g} lies outside the reward's bounds {points.bounds}")
    for name, value in fixed.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, but {value:g} was given")
    scales = {param.name: param.scales_with_compute for param in form.shape_params}
    log_shape = {name: float(np.log(value / (points.scale if scales[name] else 1.0))) for name, value in fixed.items()}
    # A form without a start (the power law) does not use one.
    return Known(start=start if form.rising else None, ceiling=ceiling, log_shape=log_shape)


def _rescale(points: Points, known: Known, form: Form) -> tuple[Points, Known]:
    """Make the largest remaining compute the unit."""
    shift = float(points.log_compute.max()) if points.num else 0.0
    moved = {param.name for param in form.shape_params if param.scales_with_compute}
    log_shape = {name: value - (shift if name in moved else 0.0) for name, value in known.log_shape.items()}
    points = replace(points, log_compute=points.log_compute - shift, scale=points.scale * float(np.exp(shift)))
    return points, replace(known, log_shape=log_shape)


def _named(form: Form, points: Points, best: Solution) -> dict[str, float]:
    named = {"ceiling": best.level + best.gain if form.rising else best.level}
    for param, value in zip(form.shape_params, best.log_shape, strict=True):
        named[param.name] = float(np.exp(value)) * (points.scale if param.scales_with_compute else 1.0)
    named["start" if form.rising else "shortfall"] = best.level if form.rising else -best.gain
    return named


def _make(
    points: Points,
    form: Form,
    known: Known,
    best: Solution,
    draws: Draws | None,
    verdict: Verdict,
    notes: tuple[FitNote, ...],
    level: float,
    margin: float,
    start_sd: float | None,
) -> Fit:
    squares = _named(form, points, best)
    params, run_sd = squares, None
    noise_sd = float(np.sqrt(best.squares / max(points.num - known.num_free(form), 1)))
    if draws is not None:
        params = {name: float(np.median(values)) for name, values in draws.params.items()}
        noise_sd = float(np.median(draws.noise_sd))
        run_sd = float(np.median(draws.run_sd)) if points.num_runs > 1 else None
    return Fit(
        form=form.name,
        params=params,
        verdict=verdict,
        notes=notes,
        compute=points.scale * np.exp(points.log_compute),
        reward=points.reward,
        run=points.run,
        evaluation=points.evaluation,
        num_samples=points.num_samples,
        noise_sd=noise_sd,
        run_sd=run_sd,
        least_squares=squares,
        sum_squares=best.squares,
        level=level,
        margin=margin,
        bounds=points.bounds,
        scale=points.scale,
        start_given=known.start is not None,
        start_sd=start_sd,
        draws=draws,
    )


def _too_few(points: Points, form: Form, known: Known, num_given: int) -> TooFewPoints | TooFewComputes:
    num_free = known.num_free(form)
    if points.num >= num_free + 2:
        return TooFewComputes(num_points=points.num, num_computes=len(np.unique(points.log_compute)))
    return TooFewPoints(
        num_points=points.num,
        num_left_out=num_given - points.num,
        num_params=num_free,
        num_needed=num_free + 2,
    )


def _no_solution(form: Form) -> Solution:
    nan = float("nan")
    return Solution(log_shape=np.full(len(form.shape_params), nan), level=nan, gain=nan, squares=nan, at_bound=())
