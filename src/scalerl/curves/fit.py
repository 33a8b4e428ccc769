"""`fit`: rewards against compute in, one frozen value out. A poor fit is a verdict, not an exception."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from scalerl.curves.fitted import Fit, tails
from scalerl.curves.forms import FORMS, Form
from scalerl.curves.intervals import Draws
from scalerl.curves.least_squares import Solution, paper_grid
from scalerl.curves.notes import Fall, FitNote, TooFewComputes, TooFewPoints
from scalerl.curves.points import Known, Points, make_points, noise_guess, thin
from scalerl.curves.priors.pooled import with_prior
from scalerl.curves.priors.prior import Prior
from scalerl.curves.residuals.falls import find_falls, rising_part
from scalerl.curves.verdicts import Verdict, judge, skip_rule
from scalerl.curves.ways.mending import Settled, settle, unsettled
from scalerl.curves.ways.solving import rescale

LEVEL = 0.9
MARGIN = 0.06


def fit(
    compute,
    reward,
    *,
    start: float | None = None,
    start_sd: float | None = 0.0,
    form: str = "sigmoid",
    fixed: Mapping[str, float] | None = None,
    num_samples=None,
    error=None,
    run=None,
    evaluation=None,
    skip_before: float | str | None = None,
    fit_until: float | None = None,
    level: float = LEVEL,
    margin: float = MARGIN,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    intervals: bool = True,
    mend: bool = True,
    pool: Prior | None = None,
    method: Literal["posterior", "paper"] = "posterior",
) -> Fit:
    """Fit a form to reward against compute.

    `start` is the reward before any training (fitted when None) and `start_sd` its own noise (None: that of one more
    evaluation); `fixed` holds parameters by name; `num_samples` is the number of graded completions behind each point;
    `error` is the standard error of each reward where these are means, as those of `bin_rewards`; `run` labels the run
    (seed) of each point and `evaluation` what it was evaluated on (for paired comparisons);
    `skip_before` is a compute, a share of the largest ("10%") or "auto"; `bounds=None` is for rewards without limits;
    `method="paper"` is the grid procedure of arXiv 2510.13786, A.5, which has no intervals.

    A sigmoid whose residuals have a pattern is mended where that is possible (early points left out, the start fitted,
    another form) and a note says how; `mend=False`, `skip_before` and any other form keep it as it was asked for.
    `pool` is what other runs say of its parameters (`scalerl.joint`); the fit without it is kept as `Fit.unpooled`.
    """
    shape = _checked_form(form, method, start, fixed, bounds)
    tails(level)
    points = make_points(
        compute, reward, num_samples=num_samples, run=run, bounds=bounds, evaluation=evaluation, error=error
    )
    guess = noise_guess(points)
    known = _known(shape, points, start, start_sd, dict(fixed or {}))
    points, known, notes = _window(points, shape, known, skip_before, fit_until)
    num_distinct = len(np.unique(points.log_compute))
    if points.num < known.num_free(shape) + 2 or num_distinct < known.num_free(shape):
        too_few = _too_few(points, shape, known, len(np.ravel(compute)))
        notes = (*notes, too_few)
        nothing = unsettled(points, shape, known, _no_solution(shape))
        return _make(points, shape, known, nothing, "too few points", notes, level, margin, start_sd)
    points, known, falls = _up_to_the_peak(points, shape, known, keep_all=method == "paper")
    few = thin(points)
    is_thinned = few is not points
    settled = _settle(few, shape, known, start_sd, guess, intervals, mend, skip_before, method)
    verdict, reasons = judge(settled, falls, level=level, margin=margin)
    points, known = settled.choice.of(points, known)
    shape, notes = settled.choice.form, (*notes, *(_named_run(note, run) for note in reasons))
    done = _make(points, shape, known, settled, verdict, notes, level, margin, start_sd)
    done = _rescatter(done) if is_thinned else done
    return done if pool is None else with_prior(done, pool)


def _checked_form(
    form: str,
    method: str,
    start: float | None,
    fixed: Mapping[str, float] | None,
    bounds: tuple[float, float] | None,
) -> Form:
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; choose one of {', '.join(FORMS)}")
    if method not in ("posterior", "paper"):
        raise ValueError(f'unknown method {method!r}; choose "posterior" or "paper"')
    if method == "paper" and (form != "sigmoid" or start is None or fixed):
        raise ValueError('method="paper" fits the sigmoid from a given start=, with nothing held fixed')
    shape = FORMS[form]
    if shape.ceiling is not None and bounds is None:
        raise ValueError(
            f"the {form} law has its ceiling at {shape.ceiling:g} and does not suit rewards without limits"
        )
    return shape


def _window(
    points: Points, form: Form, known: Known, skip_before: float | str | None, fit_until: float | None
) -> tuple[Points, Known, tuple[FitNote, ...]]:
    """Keep the points between the two ends; the largest compute kept becomes the unit."""
    notes: list[FitNote] = []
    if fit_until is not None:
        if not fit_until > 0:
            raise ValueError(f"fit_until must be a positive compute, but is {fit_until:g}")
        points = points.take(points.log_compute <= np.log(fit_until) - np.log(points.scale) + 1e-12)
        points, known = rescale(points, known, form)
    if skip_before is not None and points.num:
        least, reasons = skip_rule(thin(points), form, replace(known, start_sd=0.0), skip_before)
        notes.extend(reasons)
        if least > 0:
            points = points.take(points.log_compute >= np.log(least) - np.log(points.scale) - 1e-12)
            points, known = rescale(points, known, form)
    return points, known, tuple(notes)


def _counted(fall: Fall, points: Points) -> Fall:
    """Count the points of a fall that was found among blocks of a long log."""
    mine = points.take(points.run == (points.run[0] if fall.run is None else int(fall.run)))
    num_after = int(np.sum(mine.log_compute > np.log(fall.compute / points.scale) + 1e-9))
    last = points.scale * float(np.exp(mine.log_compute[-1]))
    num_points = max(round(fall.num_points * num_after / fall.num_after), 1)
    return replace(fall, num_after=num_after, last=last, num_points=num_points)


def _up_to_the_peak(
    points: Points, form: Form, known: Known, *, keep_all: bool
) -> tuple[Points, Known, tuple[Fall, ...]]:
    """Leave out what lies after the peak of each run that falls, where enough is left to fit a curve to."""
    falls = tuple(_counted(fall, points) for fall in find_falls(thin(points), form, known))
    if not falls or keep_all:
        return points, known, falls
    rising = points.take(rising_part(points, falls))
    num_free = known.num_free(form)
    if rising.num < num_free + 2 or len(np.unique(rising.log_compute)) < num_free:
        return points, known, falls
    return *rescale(rising, known, form), tuple(replace(fall, until_peak=True) for fall in falls)


def _settle(
    points: Points,
    form: Form,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    intervals: bool,
    mend: bool,
    skip_before: float | str | None,
    method: str,
) -> Settled:
    if method == "paper":
        assert known.start is not None
        return unsettled(points, form, known, paper_grid(points, known.start))
    # What is held fixed may well not fit, and the forms with a fixed ceiling or without a bend are chosen on purpose.
    test = form.name == "sigmoid" and known.ceiling is None and not known.log_shape
    return settle(
        points,
        form,
        known,
        start_sd,
        guess,
        intervals=intervals,
        test=test,
        change=test and mend and skip_before is None,
    )


def _rescatter(done: Fit) -> Fit:
    """Estimate the noise of one evaluation from all points of a thinned log: autocorrelated blocks overstate it."""
    form = done.own_form
    residual = done.reward - form.curve(done.compute, done.least_squares, done.scale)
    moved = form.curve(done.compute, dict(done.least_squares, ceiling=1.0, start=0.0, shortfall=0.0), done.scale)
    own = residual.copy()
    for run in np.unique(done.run) if done.num_runs > 1 else ():
        # About the run's own ceiling, as among few points.
        mine = done.run == run
        own[mine] -= moved[mine] * (moved[mine] @ residual[mine]) / max(moved[mine] @ moved[mine], 1e-300)
    noise_sd = float(np.sqrt(np.mean(own**2)))
    squares = float(residual @ residual)
    if done.draws is None:
        return replace(done, noise_sd=noise_sd, sum_squares=squares)
    factor = noise_sd / float(np.median(done.draws.noise_sd))
    parts = tuple(replace(part, draws=_noisier(part.draws, factor)) for part in done.parts)
    draws = _noisier(done.draws, factor)
    return replace(done, noise_sd=noise_sd, draws=draws, parts=parts, sum_squares=squares)


def _noisier(draws: Draws, factor: float) -> Draws:
    return replace(draws, noise_sd=draws.noise_sd * factor)


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


def _named_run(note: FitNote, run) -> FitNote:
    """Give a fall the label of its run instead of the number."""
    if not isinstance(note, Fall) or note.run is None or run is None:
        return note
    return replace(note, run=str(np.unique(np.asarray(run))[int(note.run)]))


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
    settled: Settled,
    verdict: Verdict,
    notes: tuple[FitNote, ...],
    level: float,
    margin: float,
    start_sd: float | None,
) -> Fit:
    best, draws = settled.best, settled.draws
    squares = _named(form, points, best)
    params, run_sd = squares, None
    noise_sd = float(np.sqrt(best.squares / max(points.num - known.num_free(form), 1)))
    if draws is not None:
        params = {name: float(np.median(values)) for name, values in draws.params.items()}
        params["ceiling"] = float(np.median(settled.ceilings))
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
        error=points.error,
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
        parts=settled.parts,
        misfit=settled.misfit,
        rise=settled.rise,
        known=known,
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
