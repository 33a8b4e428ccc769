"""What more compute buys, and how well such forecasts did on the run's own past."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves.fit import fit
from scalerl.curves.fitted import FAR, Fit, tails
from scalerl.curves.forms import FORMS, Array, Form
from scalerl.curves.notes import (
    AboveCeiling,
    AfterFall,
    AlreadyReached,
    FarForecast,
    FitNote,
    ForecastNote,
    MayBeAboveCeiling,
    NothingToScore,
)
from scalerl.curves.words import forecast_message

MANY_PLACES = 40  # different computes from which an interval, which is smooth, is interpolated


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number and the ends of its interval. `high` may be infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The reward forecast at a compute."""

    compute: float
    reward: Value
    notes: tuple[FarForecast | AfterFall, ...] = ()

    @property
    def message(self) -> str:
        """The notes as a text; empty where there are none."""
        return forecast_message(self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The compute at which the curve reaches a reward; None where the curve never does."""

    reward: float
    compute: Value | None
    notes: tuple[ForecastNote, ...] = ()
    p_above_ceiling: float | None = None
    """Probability that no compute reaches it; None where no intervals were computed."""

    @property
    def message(self) -> str:
        """The notes as a text; empty where there are none."""
        return forecast_message(self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How a forecast did on points it had not seen."""

    num_points: int
    rmse: float
    bias: float
    """Forecast minus what happened, on average."""
    coverage: float
    """Share of the points within the interval of a new evaluation."""
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    fit: Fit
    holdout: Score | None
    fractions: tuple[tuple[float, Score | None], ...]
    """For each share of the compute: fitted on what lies before it, scored on what lies after."""
    unscored: tuple[tuple[float, FitNote | NothingToScore], ...] = ()
    """Why a share has no score."""


def reward_at(fit: Fit, computes: Sequence[float]) -> list[At]:
    """Return the curve at each compute, with the interval in which a new evaluation there should fall."""
    compute = np.asarray(computes, dtype=float)
    if compute.size and not (compute > 0).all():
        raise ValueError(f"the compute to forecast at must be positive, but {compute.min():g} was given")
    low, high = fit.new_interval(compute) if fit.draws is not None else (np.full(compute.shape, np.nan),) * 2
    return [
        At(compute=float(c), reward=Value(value=float(v), low=float(a), high=float(b)), notes=_caveats(fit, float(c)))
        for c, v, a, b in zip(compute, fit.predict(compute), low, high, strict=True)
    ]


def _caveats(fit: Fit, compute: float) -> tuple[FarForecast | AfterFall, ...]:
    fallen = _after_falls(fit) if compute > fit.scale else ()
    if not is_far(fit, compute):
        return fallen
    return (*fallen, FarForecast(times=FAR, reason="unstable" if fit.falls else "ceiling_unknown"))


def _after_falls(fit: Fit) -> tuple[AfterFall, ...]:
    return tuple(AfterFall(compute=fall.compute, best=fall.best, mean=fall.mean) for fall in fit.falls[:1])


def is_far(fit: Fit, compute: float) -> bool:
    """Return whether a compute lies beyond what a fit without a known ceiling is good for.

    Intervals there have been too low in back-tests (docs/log.md).
    """
    return compute > fit.good_until


def doubling(fit: Fit) -> Value:
    """Return the gain of doubling the budget: the curve at twice the largest compute measured, less the curve there."""
    ends = np.array([fit.end, 2 * fit.end])
    now, later = fit.predict(ends)
    if fit.draws is None:
        return Value(value=float(later - now), low=np.nan, high=np.nan)
    curve = fit.curve_draws(ends)
    low, high = np.quantile(curve[:, 1] - curve[:, 0], tails(fit.level))
    return Value(value=float(later - now), low=float(low), high=float(high))


def compute_for(fit: Fit, rewards: Sequence[float]) -> list[Reach]:
    """Return the compute needed for each reward, or that it lies above the ceiling."""
    return [_reach(fit, float(reward)) for reward in rewards]


def _reach(fit: Fit, reward: float) -> Reach:
    computes = np.empty(0)
    if fit.draws is not None:
        computes = np.concatenate([inverse(fit, form, reward, draws.params) for form, draws in fit.ways()])
    # The parameters of a fit that averages several ways are not those of its curve.
    value = float(np.median(computes) if fit.parts else inverse(fit, fit.own_form, reward, fit.params))
    if fit.falls and value > fit.scale:
        return Reach(reward=reward, compute=None, notes=_after_falls(fit))
    if fit.draws is None:
        if not np.isfinite(value):
            return Reach(reward=reward, compute=None, notes=(_above(fit, reward, None),))
        return Reach(reward=reward, compute=Value(value=value, low=np.nan, high=np.nan))
    never = float(np.mean(~np.isfinite(computes)))
    if not np.isfinite(value):
        return Reach(reward=reward, compute=None, notes=(_above(fit, reward, never),), p_above_ceiling=never)
    low, high = np.quantile(computes, tails(fit.level), method="nearest")
    notes: list[ForecastNote] = []
    by_first_point = bool(reward <= fit.predict(fit.compute.min()))
    if by_first_point or value <= fit.scale:
        notes.append(AlreadyReached(by_first_point=by_first_point))
    if never > 0.5 - fit.level / 2:
        notes.append(MayBeAboveCeiling(probability=never))
    return Reach(
        reward=reward,
        compute=Value(value=value, low=float(low), high=float(high)),
        notes=tuple(notes),
        p_above_ceiling=never,
    )


def _above(fit: Fit, reward: float, probability: float | None) -> AboveCeiling:
    return AboveCeiling(reward=reward, ceiling=fit.params["ceiling"], probability=probability)


def inverse(fit: Fit, form: Form, reward: float, params: Mapping[str, Any]) -> Array:
    """Return the compute at which a curve has this reward: 0 up to the start, infinite from the ceiling on."""
    ceiling = np.asarray(params["ceiling"], dtype=float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if form.rising:
            start = np.asarray(params["start"], dtype=float)
            share = (reward - start) / np.maximum(ceiling - start, 1e-300)
            return np.where(share <= 0, 0.0, np.where(share >= 1, np.inf, form.place(share, params)))
        missing = ceiling - reward
        compute = fit.scale * form.place(missing / np.asarray(params["shortfall"]), params)
        return np.where(missing <= 0, np.inf, compute)


def score(fit: Fit, compute: Array, reward: Array) -> Score | None:
    """Compare a fit with points it has not seen; None where there are none or there is no curve."""
    if not len(compute) or not fit.usable:
        return None
    error = fit.predict(compute) - reward
    coverage = np.nan
    if fit.draws is not None:
        places = np.unique(compute)
        if len(places) > MANY_PLACES:
            places = np.linspace(places[0], places[-1], MANY_PLACES)
        low, high = (np.interp(compute, places, edge) for edge in fit.new_interval(places))
        coverage = float(np.mean((reward >= low) & (reward <= high)))
    return Score(
        num_points=len(compute),
        rmse=float(np.sqrt(np.mean(error**2))),
        bias=float(np.mean(error)),
        coverage=coverage,
        level=fit.level,
    )


def backtest(
    compute,
    reward,
    *,
    holdout: tuple[Any, Any] | None = None,
    fractions: Sequence[float] = (0.25, 0.5, 0.75),
    run=None,
    num_samples=None,
    error=None,
    **options: Any,
) -> Backtest:
    """Fit what lies before each share of the largest compute and score the forecast of what lies after.

    `holdout` is a pair (compute, reward) that is never fitted: it scores the fit of everything else, and counts among
    what lies after a fraction. `options` go to `fit`.
    """
    compute, reward = np.asarray(compute, dtype=float), np.asarray(reward, dtype=float)
    held = [np.asarray(part, dtype=float) for part in holdout] if holdout is not None else [np.empty(0), np.empty(0)]
    run = None if run is None else np.asarray(run)
    num_samples = None if num_samples is None else np.broadcast_to(np.asarray(num_samples), compute.shape)
    error = None if error is None else np.asarray(error, dtype=float)

    def part(mask: np.ndarray) -> Fit:
        picked = lambda values: None if values is None else values[mask]  # noqa: E731
        known = {"run": picked(run), "num_samples": picked(num_samples), "error": picked(error)}
        return fit(compute[mask], reward[mask], **known, **options)

    whole = part(np.ones(len(compute), dtype=bool))
    largest = max(compute.max(initial=0.0), held[0].max(initial=0.0))
    rows, unscored = [], []
    for fraction in fractions:
        if not 0 < fraction < 1:
            raise ValueError(f"a fraction must lie between 0 and 1, not {fraction:g}")
        before = compute <= fraction * largest
        later = held[0] > fraction * largest
        unseen = (np.concatenate([compute[~before], held[0][later]]), np.concatenate([reward[~before], held[1][later]]))
        early = part(before) if before.any() else None
        result = score(early, *unseen) if early is not None else None
        rows.append((float(fraction), result))
        if result is None:
            side = "before" if early is None else "after"
            nothing = NothingToScore(side=side, compute=float(fraction * largest))
            unscored.append((float(fraction), nothing if early is None or early.usable else early.notes[-1]))
    return Backtest(fit=whole, holdout=score(whole, *held), fractions=tuple(rows), unscored=tuple(unscored))


def rank_forms(
    compute, reward, *, holdout: tuple[Any, Any] | None = None, fraction: float = 0.5, **options: Any
) -> list[tuple[str, float]]:
    """Return the forms by their error on held-out points (or on what lies after a fraction), best first."""
    options = {**options, "intervals": True}
    errors = []
    for name, form in FORMS.items():
        if form.ceiling is not None and options.get("bounds", (0.0, 1.0)) is None:
            continue  # a fixed ceiling means nothing for rewards without limits
        fractions = () if holdout is not None else (fraction,)
        done = backtest(compute, reward, holdout=holdout, fractions=fractions, **{**options, "form": name})
        result = done.holdout if holdout is not None else done.fractions[0][1]
        if result is not None:
            errors.append((name, result.rmse))
    return sorted(errors, key=lambda row: row[1])
