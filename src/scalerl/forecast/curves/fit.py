"""Fit a curve to rewards against compute; return one frozen value. `decide.py` takes decisions from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scalerl.forecast.curves.data import Bounds, Points, make_blocks, make_points
from scalerl.forecast.curves.draws import tails
from scalerl.forecast.curves.forms import FORMS, Array, Form
from scalerl.forecast.curves.model import Kind, Posterior, posterior
from scalerl.forecast.curves.paper import Grid, paper_fit
from scalerl.forecast.curves.priors import WEAK, Prior

LEVEL = 0.9
LEAST_POINTS = 6
"""Number of points that a fit needs. A known start counts as one."""
LEAST_COMPUTES = 3
OF_POINTS = ("compute", "reward", "run", "evaluation", "num_samples", "bounds")
"""What a fit keeps of its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What is missing to fit a run, or to judge it."""

    what: Literal["points", "computes", "beginning"]
    """`beginning`: the log starts in the middle of the run, so its rise cannot be seen from the start."""
    num: float
    """The present number; for a beginning, the compute of the first evaluation."""
    needed: float
    """The needed number; for a beginning, the largest compute that the first evaluation may have."""
    num_left_out: int = 0
    """Number of points outside the requested window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted curve. `params` are posterior medians, by name."""

    form: str
    params: dict[str, float]
    lack: Lack | None
    """Why there is no curve; None if there is one."""
    compute: Array = field(repr=False)
    reward: Array = field(repr=False)
    run: np.ndarray = field(repr=False)
    """Which run each point belongs to: 0, 1, ..."""
    evaluation: np.ndarray | None = field(repr=False)
    num_samples: np.ndarray | None = field(repr=False)
    noise_sd: float
    """Scatter of one evaluation around its run's curve."""
    run_sd: float | None
    """Spread of the ceiling between runs; None with one run."""
    level: float
    """Level of the shown intervals. No decision depends on it."""
    bounds: Bounds
    scale: float
    """The largest compute fitted."""
    start: float | None
    """The given reward before training."""
    start_sd: float | None
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Parameters held fixed, by name."""
    edges: tuple[str, ...] = ()
    """Parameters whose best value is on the edge of the paper's grid."""
    posterior: Posterior | None = field(repr=False, default=None)
    """None without a curve, and for the paper's procedure, which has no intervals."""
    prior: Prior | None = field(repr=False, default=None)
    """The prior learned from other runs; None for the weak prior."""
    alone: "Fit | None" = field(repr=False, default=None)
    """The same fit without the information of other runs, if this one uses it."""

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
        """Ceiling minus the start, or minus the reward at the first evaluation."""
        if "start" in self.params:
            return self.params["ceiling"] - self.params["start"]
        return self.params["ceiling"] - float(self.reward[np.argmin(self.compute)])

    def probability(self, kind: Kind) -> float:
        return self.drawn.probability(kind)

    def param_draws(self, param: str) -> Array:
        """Draws of one parameter."""
        draws, held = self.drawn.draws, {"ceiling": _form_ceiling(self.own_form, self.bounds), **self.fixed}
        if held.get(param) is not None:
            return np.full(len(draws.kind), held[param])
        match param:
            case "ceiling":
                return self.drawn.ceiling
            case "exponent":
                return np.exp(draws.log_exponent)
            case "midpoint":
                return self.scale * np.exp(draws.log_midpoint)
            case "start":
                return self.drawn.clip(draws.level)
            case "shortfall":
                return draws.gain
        raise ValueError(f"{self.form} has no parameter {param!r}; it has {', '.join(self.own_form.params)}")

    def interval(self, param: str, level: float | None = None) -> tuple[float, float]:
        """Return the central interval of one parameter; NaN for the paper's procedure."""
        if self.posterior is None:
            return (np.nan, np.nan)
        low, high = self._ends(self.param_draws(param), level)
        return float(low), float(high)

    def _ends(self, draws: Array, level: float | None) -> tuple[Array, Array]:
        low, high = np.quantile(draws, tails(self.level if level is None else level), axis=0)
        return low, high

    def curve_draws(self, compute) -> Array:
        """Return the recipe's curve at `compute` (last axis) for every draw (first axis)."""
        return self.drawn.curve(compute)

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
        return self._ends(self.curve_draws(compute), level)

    def new_interval(self, compute, level: float | None = None) -> tuple[Array, Array]:
        """Return the interval of one new evaluation: curve, drift, misfit, noise and spread between runs."""
        return self._ends(self.drawn.new_evaluations(np.asarray(compute, dtype=float)), level)

    @property
    def drawn(self) -> Posterior:
        """The posterior; raises ValueError if there is none."""
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
    bounds: Bounds = (0.0, 1.0),
    pool: Prior | None = None,
    method: Literal["posterior", "paper"] = "posterior",
    grid: Grid | None = None,
    seed: int = 0,
) -> Fit:
    """Fit a curve to reward against compute.

    `start` is the reward before any training (fitted when None) and `start_sd` its own noise (None: that of one more
    evaluation); `fixed` holds parameters by name; `num_samples` is the number of graded completions behind each point;
    `run` labels the run (seed) of each point and `evaluation` its prompts and step (for paired comparisons).
    `skip_before` is a compute or a share of the largest ("10%"). `bounds=None` is for unbounded rewards. `pool` is
    the prior learned from other runs (`scalerl.joint`). `method="paper"` is the grid procedure of arXiv 2510.13786,
    A.5, over `grid`, without intervals. `seed` is of the noise of new evaluations: another one changes their intervals
    by about a per cent of their width, and neither curve nor ceiling nor any decision.
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
    lack = _lack(points, start, num_given)
    empty = _fit_without_curve(points, shape, level, start, start_sd, lack)
    if lack is not None:
        return empty
    if method == "paper":
        assert start is not None
        params, edges = paper_fit(points.compute, points.reward, start, bounds, grid)
        return replace(empty, params=params, edges=edges)
    blocks = make_blocks(points, start, start_sd)
    prior = _prior_with(fixed, WEAK if pool is None else pool, blocks.scale)
    ceiling = fixed.get("ceiling", _form_ceiling(shape, bounds))
    drawn = posterior(blocks, form=form, prior=prior, fixed_ceiling=ceiling, seed=seed)
    done = replace(
        empty,
        fixed=fixed,
        posterior=drawn,
        noise_sd=drawn.noise_sd,
        run_sd=drawn.run_sd if blocks.num_runs > 1 else None,
        prior=pool,
    )
    params = {name: float(np.median(done.param_draws(name))) for name in shape.params}
    return replace(done, params=params if start is None or start_sd != 0 else params | {"start": start})


def refit(curve: Fit, *, ceiling: float | None = None, pool: Prior | None = None) -> Fit:
    """Fit the same points again, with the ceiling held fixed or with another prior."""
    given = {name: getattr(curve, name) for name in (*OF_POINTS, "start", "start_sd", "form", "level")}
    fixed = curve.fixed if ceiling is None else {**curve.fixed, "ceiling": ceiling}
    again = fit(**given, fixed=fixed, pool=pool, seed=0 if curve.posterior is None else curve.posterior.seed)
    return again if pool is None else replace(again, alone=curve)


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


def _lack(points: Points, start: float | None, num_given: int) -> Lack | None:
    """Return what is missing for a fit; None if nothing is."""
    num, num_computes = points.num + (start is not None), len(np.unique(points.compute))
    if num < LEAST_POINTS:
        return Lack(what="points", num=num, needed=LEAST_POINTS, num_left_out=num_given - points.num)
    if num_computes < LEAST_COMPUTES:
        return Lack(what="computes", num=num_computes, needed=LEAST_COMPUTES)
    return None


def _form_ceiling(form: Form, bounds: Bounds) -> float | None:
    """Return the ceiling that a form fixes: the largest possible reward."""
    return None if form.ceiling is None or bounds is None else bounds[1]


def _prior_with(fixed: Mapping[str, float], prior: Prior, scale: float) -> Prior:
    """Return a prior relative to this scale, with no width for fixed parameters."""
    if prior.scale is not None:
        mean, sd = prior.log_midpoint
        prior = replace(prior, log_midpoint=(mean + float(np.log(prior.scale / scale)), sd), scale=None)
    if "exponent" in fixed:
        prior = replace(prior, log_exponent=(float(np.log(fixed["exponent"])), 1e-4))
    if "midpoint" in fixed:
        prior = replace(prior, log_midpoint=(float(np.log(fixed["midpoint"] / scale)), 1e-4))
    return prior


def _window(points: Points, skip_before: float | str | None, fit_until: float | None) -> Points:
    """Keep the points between the two ends. A share is of all points, those after the end as well."""
    kept = np.ones(points.num, dtype=bool)
    if fit_until is not None:
        if not fit_until > 0:
            raise ValueError(f"fit_until must be a positive compute, but is {fit_until:g}")
        kept &= points.compute <= fit_until * (1 + 1e-12)
    if skip_before is not None and points.num:
        kept &= points.compute >= compute_of(skip_before, float(points.compute.max())) * (1 - 1e-12)
    return points if kept.all() else points.take(kept)


def compute_of(rule: float | str, largest: float) -> float:
    """Return the compute that is meant by an amount, or by a share of the largest such as "10%"."""
    text = str(rule).strip()
    try:
        value = float(text[:-1]) / 100.0 * largest if text.endswith("%") else float(text)
    except ValueError:
        value = float("nan")
    if np.isfinite(value):
        return value
    raise ValueError(f'skip_before must be a compute or a share such as "10%", not {rule!r}')


def _fit_without_curve(
    points: Points, form: Form, level: float, start: float | None, start_sd: float | None, lack: Lack | None
) -> Fit:
    return Fit(
        form=form.name,
        params=dict.fromkeys(form.params, float("nan")),
        lack=lack,
        **{name: getattr(points, name) for name in OF_POINTS},
        noise_sd=float("nan"),
        run_sd=None,
        level=level,
        scale=float(points.compute.max()) if points.num else 1.0,
        start=start,
        start_sd=start_sd,
    )
