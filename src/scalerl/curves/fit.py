"""`fit`: rewards against compute in, one frozen value out. A poor fit is a verdict, not an exception."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scalerl.curves import priors
from scalerl.curves.data import Bounds, Points, make_blocks, make_points
from scalerl.curves.draws import explained_share, tails
from scalerl.curves.forms import FORMS, Array, Form
from scalerl.curves.model import Kind, Posterior, posterior
from scalerl.curves.notes import Note, NoteKind, Verdict, find_note, note
from scalerl.curves.paper import Grid, paper_fit
from scalerl.curves.priors import WEAK, Prior
from scalerl.curves.words import note_text

LEVEL = 0.9
MARGIN = 0.12
"""How far a known ceiling may lie from the middle of its interval, as a share of the gain. About the paper's
+-0.02 at a gain of 0.2."""
LEAST_POINTS = 6
"""The start counts as one, where it is known."""
NUM_LATER = 8
"""Means that the evaluations of a longer run are summed up by, to say what they would tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted curve. `params` are posterior medians, by name."""

    form: str
    params: dict[str, float]
    verdict: Verdict
    notes: tuple[Note, ...]
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
    level: float
    margin: float
    """In units of the reward."""
    bounds: Bounds
    scale: float
    """The largest compute fitted."""
    start: float | None
    """The reward before training, as it was given."""
    start_sd: float | None
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Parameters held fixed, by name."""
    posterior: Posterior | None = field(repr=False, default=None)
    """None where there is no curve, and for the paper's procedure, which has no intervals."""
    prior: Prior | None = field(repr=False, default=None)
    """The prior that other runs made; None for the weak one."""
    unpooled: "Fit | None" = field(repr=False, default=None)
    """The fit that was fitted again with that prior."""

    @property
    def messages(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return tuple(note_text(each) for each in self.notes)

    @property
    def fall(self) -> Note | None:
        """The fall after its peak, where that is the verdict."""
        return find_note(self.notes, NoteKind.FALL)

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

    @property
    def has_intervals(self) -> bool:
        return self.posterior is not None

    @property
    def own_form(self) -> Form:
        return FORMS[self.form]

    @property
    def gain(self) -> float:
        """What the curve adds to its start, or to the reward at the first evaluation, at its ceiling."""
        if "start" in self.params:
            return self.params["ceiling"] - self.params["start"]
        return self.params["ceiling"] - float(self.reward[np.argmin(self.compute)])

    def probability(self, kind: Kind) -> float:
        return self._posterior.probability(kind)

    def param_draws(self, param: str) -> Array:
        """Draws of one parameter."""
        draws, held = self._posterior.draws, {"ceiling": _form_ceiling(self.own_form, self.bounds), **self.fixed}
        if held.get(param) is not None:
            return np.full(len(draws.kind), held[param])
        match param:
            case "ceiling":
                return self._posterior.ceiling
            case "exponent":
                return np.exp(draws.log_exponent)
            case "midpoint":
                return self.scale * np.exp(draws.log_midpoint)
            case "start":
                return self._posterior.clipped(draws.level)
            case "shortfall":
                return draws.gain
        raise ValueError(f"{self.form} has no parameter {param!r}; it has {', '.join(self.own_form.params)}")

    def interval(self, param: str, level: float | None = None) -> tuple[float, float]:
        """Return the central interval of one parameter; NaN for the paper's procedure."""
        if self.posterior is None:
            return (np.nan, np.nan)
        low, high = np.quantile(self.param_draws(param), tails(self.level if level is None else level))
        return float(low), float(high)

    def curve_draws(self, compute) -> Array:
        """Return the recipe's curve at `compute` (last axis) for every draw (first axis)."""
        return self._posterior.curve(compute)

    @property
    def standing_draws(self) -> Array:
        """Draws of what runs are ranked by: the ceiling; of a run that is flat or has fallen, where it stands."""
        if self.verdict in (Verdict.FLAT, Verdict.FALLEN):
            return self.curve_draws([self.scale])[:, 0]
        return self.param_draws("ceiling")

    def predict(self, compute) -> Array:
        """Return the reward on the curve: the median of its draws."""
        places = np.asarray(compute, dtype=float)
        if self.posterior is None:
            p, scale = self.params, self.scale
            with np.errstate(divide="ignore"):
                x = np.log(places / scale)
            shape = self.own_form.shape(x, np.log(p["exponent"]), np.log(p["midpoint"] / scale))
            return p["start"] + (p["ceiling"] - p["start"]) * shape
        return np.median(self.curve_draws(places.ravel()), axis=0).reshape(places.shape)

    def curve_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """Return the interval of the recipe's own curve."""
        low, high = np.quantile(self.curve_draws(compute), tails(self.level if level is None else level), axis=0)
        return low, high

    def new_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """Return the interval of one new evaluation: of the curve, drift, misfit, noise and spread between runs."""
        values = self._posterior.new(np.asarray(compute, dtype=float))
        low, high = np.quantile(values, tails(self.level if level is None else level), axis=0)
        return low, high

    @property
    def _posterior(self) -> Posterior:
        if self.posterior is None:
            raise ValueError('a fit with method="paper", or of too few points, has no intervals')
        return self.posterior


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
    margin: float | None = None,
    bounds: Bounds = (0.0, 1.0),
    pool: Prior | None = None,
    method: Literal["posterior", "paper"] = "posterior",
    grid: Grid | None = None,
) -> Fit:
    """Fit a curve to reward against compute.

    `start` is the reward before any training (fitted when None) and `start_sd` its own noise (None: that of one more
    evaluation); `fixed` holds parameters by name; `num_samples` is the number of graded completions behind each point;
    `run` labels the run (seed) of each point and `evaluation` what it was evaluated on (for paired comparisons).
    `skip_before` is a compute or a share of the largest ("10%"). `margin` is how wide a ceiling's interval may be to
    either side, by default a share of the gain. `bounds=None` is for rewards without limits. `pool` is what other runs
    say of its parameters (`scalerl.joint`). `method="paper"` is the grid procedure of arXiv 2510.13786, A.5, over
    `grid`, without intervals.
    """
    shape, fixed = _checked(form, method, start, dict(fixed or {}), bounds)
    tails(level)
    start = fixed.pop("start", start)
    if start_sd is not None and not start_sd >= 0:
        raise ValueError(f"start_sd must not be negative, but is {start_sd:g}")
    points = make_points(compute, reward, num_samples=num_samples, run=run, bounds=bounds, evaluation=evaluation)
    num_given = points.num
    points = _window(points, skip_before, fit_until)
    start = start if shape.has_start else None
    empty = _fit_without_curve(points, shape, level, margin, start, start_sd)
    num = points.num + (start is not None)
    if num < LEAST_POINTS:
        few = note(NoteKind.TOO_FEW_POINTS, num=num, num_left_out=num_given - points.num, needed=LEAST_POINTS)
        return replace(empty, notes=(few,))
    if len(np.unique(points.compute)) < 3:
        num = len(np.unique(points.compute))
        return replace(empty, notes=(note(NoteKind.TOO_FEW_COMPUTES, num=points.num, num_computes=num),))
    if method == "paper":
        assert start is not None
        params, edges = paper_fit(points.compute, points.reward, start, grid or Grid())
        return replace(empty, params=params, verdict=Verdict.WIDE if edges else Verdict.KNOWN, notes=edges)
    blocks = make_blocks(points, start, start_sd)
    prior = _prior_with(fixed, WEAK if pool is None else pool, blocks.scale)
    ceiling = fixed.get("ceiling", _form_ceiling(shape, bounds))
    found = posterior(blocks, form=form, prior=prior, fixed_ceiling=ceiling)
    done = replace(
        empty,
        fixed=fixed,
        posterior=found,
        noise_sd=found.noise_sd,
        run_sd=found.run_sd if blocks.num_runs > 1 else None,
    )
    params = {name: float(np.median(done.param_draws(name))) for name in shape.params}
    done = replace(done, params=params if start is None or start_sd != 0 else params | {"start": start})
    done = replace(done, margin=MARGIN * max(done.gain, 0.0) if margin is None else margin)
    verdict, notes = judge(done)
    return replace(done, verdict=verdict, notes=notes, prior=pool)


def refit(curve: Fit, *, ceiling: float | None = None, pool: Prior | None = None) -> Fit:
    """Fit the same points again, with the ceiling held fixed or with another prior."""
    again = fit(
        curve.compute,
        curve.reward,
        start=curve.start,
        start_sd=curve.start_sd,
        num_samples=curve.num_samples,
        form=curve.form,
        fixed=curve.fixed if ceiling is None else {**curve.fixed, "ceiling": ceiling},
        run=curve.run,
        evaluation=curve.evaluation,
        level=curve.level,
        margin=curve.margin,
        bounds=curve.bounds,
        pool=pool,
    )
    return again if pool is None else replace(again, unpooled=curve)


def judge(curve: Fit) -> tuple[Verdict, tuple[Note, ...]]:
    """Return the verdict, which is what is likelier than not, and its reasons."""
    found = curve._posterior
    draws = found.draws
    notes = _shape_notes(curve)
    if curve.probability(Kind.fall) > 0.5:
        return Verdict.FALLEN, (_fall_note(curve), *notes)
    if float(np.mean(~draws.seen)) > 0.5:
        noticed = priors.NOTICED * curve.noise_sd * 2.0 / np.sqrt(curve.num_points)
        return Verdict.FLAT, (note(NoteKind.NO_RISE, probability=float(np.mean(~draws.seen)), noticed=noticed),)
    low, high = curve.interval("ceiling")
    if curve.bounds is not None:
        top = curve.bounds[1] - 0.01 * (curve.bounds[1] - curve.bounds[0])
        share = float(np.mean(found.ceiling > top))
        if share > 0.5 and curve.own_form.ceiling is None:
            return Verdict.AT_BOUND, (note(NoteKind.AT_BOUND, probability=share, value=curve.bounds[1]), *notes)
    if high - low <= 2 * curve.margin:
        return Verdict.KNOWN, notes
    times = compute_to_know(curve)
    wide = note(NoteKind.WIDE_CEILING, level=curve.level, low=low, high=high, margin=curve.margin, times=times)
    return Verdict.WIDE, (wide, *notes)


def _fall_note(curve: Fit) -> Note:
    found = curve._posterior
    fall = found.draws.kind == Kind.fall
    drop = found.drop[fall]
    peak = curve.scale * float(np.median(found.draws.place[fall]))
    low, high = np.quantile(drop, tails(curve.level))
    return note(
        NoteKind.FALL,
        probability=curve.probability(Kind.fall),
        compute=peak,
        best=float(np.median(found.ceiling[fall])),
        now=float(np.median(found.curve(np.array([curve.scale]))[fall])),
        drop=float(np.median(drop)),
        low=float(low),
        high=float(high),
        num_after=int(np.sum(curve.compute > peak)),
    )


def _shape_notes(curve: Fit) -> tuple[Note, ...]:
    """Return what is likelier than not about the curve beside its verdict: the intervals have paid for it already."""
    found = curve._posterior
    kinds = ((Kind.second, NoteKind.SECOND_RISE), (Kind.tail, NoteKind.SLOW_TAIL), (Kind.late, NoteKind.LATE_START))
    notes = [note(name, probability=curve.probability(kind)) for kind, name in kinds if curve.probability(kind) > 0.5]
    size = {
        name: np.array([getattr(each, name) for each in found.covariances])[found.draws.covariance]
        for name in ("drift", "misfit")
    }
    for name, kind in (("drift", NoteKind.DRIFT), ("misfit", NoteKind.MISFIT)):
        share = float(np.mean(size[name] > 0))
        if share > 0.9:
            power = 0.5 if name == "drift" else 1.0
            notes.append(note(kind, probability=share, sd=float(np.median(found.draws.noise * size[name] ** power))))
    return tuple(notes)


def compute_to_know(curve: Fit) -> float | None:
    """Return how many times the present compute should make the ceiling known, if the run is evaluated as often.

    None: not even 16 times the compute.
    """
    found = curve._posterior
    found = replace(found, draws=found.draws.take(slice(None, None, 4)))
    low, high = curve.interval("ceiling")
    narrower = 2 * curve.margin / max(high - low, 1e-12)
    for times in (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0):
        per_place = max((times - 1.0) * curve.scale / found.blocks.spacing / NUM_LATER, 1.0)
        later = found.curve(curve.scale * np.linspace(1.0, times, NUM_LATER + 1)[1:])
        explained = explained_share(found.ceiling, later, curve.noise_sd**2 / per_place)
        if np.sqrt(max(1.0 - explained, 0.0)) <= narrower:
            return times
    return None


def _checked(
    form: str, method: str, start: float | None, fixed: dict[str, float], bounds: Bounds
) -> tuple[Form, dict[str, float]]:
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
    for name, value in fixed.items():
        if name not in shape.params:
            raise ValueError(f"{form} has no parameter {name!r}; it has {', '.join(shape.params)}")
        if name == "shortfall":
            raise ValueError("the shortfall depends on the largest compute and cannot be held fixed")
        if name in ("exponent", "midpoint") and not value > 0:
            raise ValueError(f"{name} must be positive, but {value:g} was given")
    for name, value in (("start", fixed.get("start", start)), ("ceiling", fixed.get("ceiling"))):
        if value is not None and bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ValueError(f"{name} = {value:g} lies outside the reward's bounds {bounds}")
    return shape, fixed


def _form_ceiling(form: Form, bounds: Bounds) -> float | None:
    """Return the ceiling that a form fixes: the largest reward there is."""
    return None if form.ceiling is None or bounds is None else bounds[1]


def _prior_with(fixed: Mapping[str, float], prior: Prior, scale: float) -> Prior:
    """Return a prior relative to this scale, without room for what is held fixed."""
    if prior.scale is not None:
        mean, sd = prior.log_midpoint
        prior = replace(prior, log_midpoint=(mean + float(np.log(prior.scale / scale)), sd), scale=None)
    if "exponent" in fixed:
        prior = replace(prior, log_exponent=(float(np.log(fixed["exponent"])), 1e-4))
    if "midpoint" in fixed:
        prior = replace(prior, log_midpoint=(float(np.log(fixed["midpoint"] / scale)), 1e-4))
    return prior


def _window(points: Points, skip_before: float | str | None, fit_until: float | None) -> Points:
    """Keep the points between the two ends."""
    if fit_until is not None:
        if not fit_until > 0:
            raise ValueError(f"fit_until must be a positive compute, but is {fit_until:g}")
        points = points.take(points.compute <= fit_until * (1 + 1e-12))
    if skip_before is not None and points.num:
        points = points.take(points.compute >= _compute_of(skip_before, float(points.compute.max())) * (1 - 1e-12))
    return points


def _compute_of(rule: float | str, largest: float) -> float:
    text = str(rule).strip()
    try:
        value = float(text[:-1]) / 100.0 * largest if text.endswith("%") else float(text)
    except ValueError:
        value = float("nan")
    if np.isfinite(value):
        return value
    raise ValueError(f'skip_before must be a compute or a share such as "10%", not {rule!r}')


def _fit_without_curve(
    points: Points, form: Form, level: float, margin: float | None, start: float | None, start_sd: float | None
) -> Fit:
    nan = float("nan")
    return Fit(
        form=form.name,
        params=dict.fromkeys(form.params, nan),
        verdict=Verdict.TOO_FEW,
        notes=(),
        compute=points.compute,
        reward=points.reward,
        run=points.run,
        evaluation=points.evaluation,
        num_samples=points.num_samples,
        noise_sd=nan,
        run_sd=None,
        level=level,
        margin=nan if margin is None else margin,
        bounds=points.bounds,
        scale=float(points.compute.max()) if points.num else 1.0,
        start=start,
        start_sd=start_sd,
    )
