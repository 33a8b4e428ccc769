"""Analyse series: fits, decisions, and the forecasts, scores or comparisons asked for, as one value for all outputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from scalerl.curves import (
    FORMS,
    PAPER_MARGIN,
    Answer,
    At,
    Comparison,
    Decision,
    Fit,
    Grid,
    PaperComparison,
    Reach,
    Score,
    Value,
    compare,
    compare_by_paper,
    compute_for,
    decide,
    default_worth,
    fit,
    reward_at,
    score,
)
from scalerl.errors import InputError
from scalerl.joint.pool import pool, siblings
from scalerl.joint.prior_file import prior_content, read_prior
from scalerl.logs.facts import Fact, fact, sentence
from scalerl.logs.series import Series, uneven_steps

Command = Literal["fit", "forecast", "backtest", "compare"]
GRID_STEP = 0.005  # of the paper's grid of ceilings
FAR = 30.0
"""Times the largest compute: a forecast beyond it is an extrapolation that no data support."""


def check_one_axis(series: Iterable[Series], need: str) -> None:
    """Raise InputError unless all series count compute in one column; `need` begins its sentence."""
    axes = sorted({data.x_label for data in series})
    if len(axes) > 1:
        raise InputError(f"{need}, and these are on {' and '.join(axes)}: name one with --x COLUMN")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Options of a fit that the commands share."""

    form: str = "sigmoid"
    level: float = 0.9
    """Of the intervals that are shown. No decision depends on it."""
    worth: float | None = None
    """The smallest difference of reward that matters. None: 1 % of a bounded scale, else 3 % of the range seen."""
    run_sd: float | None = None
    """Spread of the ceiling between runs of a recipe that was run once. None: a share of the gain."""
    ceiling: tuple[float, ...] = ()
    """One value holds the ceiling fixed; two are the ends of the paper's grid."""
    skip_before: float | str | None = None
    fit_until: float | None = None
    method: Literal["posterior", "paper"] = "posterior"
    """"paper": the grid procedure of arXiv 2510.13786, which has no intervals."""
    alone: bool = False
    """Whether each curve is fitted alone, although others share its start and task."""
    prior: str | None = None
    """File of earlier runs that inform each curve, or `published`."""
    price: float | None = None
    """Of a GPU-hour, in any currency."""

    def of(self, series: Series) -> dict[str, Any]:
        """Return the keyword arguments of `fit` for one series."""
        if series.bounds is None and FORMS[self.form].ceiling is not None:
            raise InputError(f"--form {self.form} needs rewards with limits, and those of {series.name} have none")
        low, high = series.bounds or (-np.inf, np.inf)
        for ceiling in self.ceiling:
            if not low <= ceiling <= high:
                raise InputError(
                    f"--ceiling {ceiling:g} is not between {low:g} and {high:g}: give it in the unit of {series.name}"
                )
        given = {name: getattr(self, name) for name in ("form", "level", "skip_before", "fit_until")}
        given |= {name: getattr(series, name) for name in ("bounds", "start", "start_sd", "run", "num_samples")}
        given["evaluation"] = series.evaluation
        if self.method == "paper":
            if series.start is None:
                raise InputError(
                    f"--method paper needs the reward before training, and {series.name} has no row of it: add --start "
                    "VALUE."
                )
            return given | {"method": "paper", "grid": self.grid(series)}
        if len(self.ceiling) > 1:
            raise InputError("two ceilings are the ends of the paper's grid, and need --method paper")
        return given | {"fixed": {"ceiling": self.ceiling[0]} if self.ceiling else None}

    def grid(self, series: Series) -> Grid | None:
        """Return the ceilings that the paper's procedure tries; None for its own, which follow the rewards."""
        if len(self.ceiling) < 2:
            return Grid(ceilings=np.array(self.ceiling)) if self.ceiling else None
        least, most = series.bounds or (0.0, 1.0)
        low, high = self.ceiling
        return Grid(ceilings=np.linspace(low, high, round((high - low) / (GRID_STEP * (most - least))) + 1))

    def compare(self, fits: Mapping[str, Fit], at: float | None = None) -> Comparison | PaperComparison:
        """Compare fits made with these options, at a budget."""
        if self.method == "paper":
            low, high = next((each.bounds for each in fits.values() if each.bounds), (0.0, 1.0))
            return compare_by_paper(fits, margin=PAPER_MARGIN * (high - low) if self.worth is None else self.worth)
        return compare(fits, at=at, worth=self.worth, run_sd=self.run_sd)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve: its points, the fit, and what is decided about the run."""

    series: Series
    fit: Fit
    """Without points, or with a problem of the series, one that has no curve."""
    decision: Decision | None
    """None for the paper's procedure, and where the series has a problem."""
    holdout: Score | None = None
    """How well it forecasts the points that were held out."""
    early: tuple[tuple[float, "CurveResult"], ...] = ()
    """The same curve up to shares of its compute, with the rest held out."""
    at: tuple[At, ...] = ()
    reach: tuple[Reach, ...] = ()
    price: float | None = None
    """Of one unit of compute; None where it is not known."""

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def axis(self) -> str:
        """The column of compute."""
        return self.series.x_label

    @property
    def is_training(self) -> bool:
        """Whether the rewards are those of training, and not of evaluations."""
        return "y" in self.series.plan and self.series.plan["y"].rule == "training"

    @property
    def at_end(self) -> At | None:
        """The forecast for the end of a budget; None where it is not known, or reached."""
        return self.at[-1] if self.at else None

    @property
    def usable(self) -> bool:
        """Whether there is a curve."""
        return self.fit.usable

    @property
    def ceiling(self) -> Value | None:
        return param_value(self.fit, "ceiling")

    def money(self, compute: float) -> float | None:
        """Return what this much compute costs; None where no price is known."""
        return None if self.price is None else self.price * compute

    @property
    def far(self) -> tuple[float, ...]:
        """The computes of forecasts so far beyond the data that nothing supports them."""
        return tuple(each.compute for each in self.at if each.compute > FAR * self.fit.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisAnswer:
    """What a comparison answers when compute is counted in another column."""

    axis: str
    comparison: Comparison

    @property
    def answer(self) -> Answer | None:
        return None if self.comparison.pick is None else self.comparison.pick.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The curves of one evaluation set, compared."""

    comparison: Comparison | PaperComparison
    axes: tuple[AxisAnswer, ...] = ()
    """The same on each axis that all of them have, the chosen one first; empty if there is only one."""
    uneven: Mapping[str, float] = field(default_factory=dict)
    """Axes on which a step of one curve costs more than one of another, and how many times more."""

    @property
    def disagree(self) -> bool:
        """Whether another axis takes another recipe, or others of which any will do."""
        sure = {answer.comparison.chosen for answer in self.axes if answer.answer in (Answer.TAKE, Answer.EITHER)}
        return len(sure) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The results of a command: each curve, and the curves together."""

    command: Command
    curves: tuple[CurveResult, ...]
    together: Mapping[str, Together] = field(default_factory=dict)
    """Comparisons by evaluation set; one without a name where there is but one."""
    notes: tuple[Fact, ...] = ()
    """On the curves together."""

    @property
    def comparisons(self) -> dict[str, Comparison | PaperComparison]:
        return {name: each.comparison for name, each in self.together.items()}


# Commands -------------------------------------------------------------------------------------------------------------


def analyse_fit(series: Sequence[Series], options: FitOptions, at: Sequence[float] = ()) -> Analysis:
    """Fit every curve and decide about it; with `at`, forecast the reward there too."""
    curves = tuple(_forecast(curve, at, ()) for curve in fitted_curves(series, options))
    return Analysis(command="fit", curves=curves, notes=pool_notes(curves, options))


def analyse_forecast(
    series: Sequence[Series], options: FitOptions, at: Sequence[float], reach: Sequence[float]
) -> Analysis:
    """Forecast the reward at computes, or the compute for rewards; unasked, the reward at 2 and 4 times the data."""
    curves = []
    for done in fitted_curves(series, options):
        usual = () if reach else (2 * done.fit.scale, 4 * done.fit.scale)
        curves.append(_forecast(done, at or usual, reach))
    return Analysis(command="forecast", curves=tuple(curves), notes=pool_notes(curves, options))


def _forecast(curve: CurveResult, at: Sequence[float], reach: Sequence[float]) -> CurveResult:
    if not curve.usable:
        return curve
    return replace(curve, at=tuple(reward_at(curve.fit, at)), reach=tuple(compute_for(curve.fit, reach)))


def analyse_backtest(series: Sequence[Series], options: FitOptions, fractions: Sequence[float]) -> Analysis:
    """Score each curve's forecast on its held-out points and on what lies after each fraction."""
    for share in fractions:
        if not 0 < share < 1:
            raise ValueError(f"a fraction must lie between 0 and 1, not {share:g}")
    early = [(float(share), _scored([before(data, share) for data in series], options)) for share in fractions]
    curves = tuple(
        replace(curve, early=tuple((share, scored[place]) for share, scored in early))
        for place, curve in enumerate(_scored(series, options))
    )
    return Analysis(command="backtest", curves=curves, notes=pool_notes(curves, options))


def _scored(series: Sequence[Series], options: FitOptions) -> list[CurveResult]:
    return [with_score(curve) for curve in fitted_curves(series, options)]


def analyse_compare(
    series: Sequence[Series], options: FitOptions, at: float | None = None, *, each_axis: bool = True
) -> Analysis:
    """Compare all curves, those of several evaluation sets within each set; with `each_axis` on every axis they have.

    `at` is the budget, four times the largest compute if None.
    """
    sets: dict[str | None, list[Series]] = {}
    for data in series:
        sets.setdefault(data.evaluation_set, []).append(data)
    if max(map(len, sets.values()), default=0) < 2:
        number = "only one curve" if len(sets) < 2 else "only one curve of each evaluation set"
        facts = [each for data in series for each in data.facts if each.kind in ("files_joined", "seeds_by_name")]
        joined = "".join(f" {text}" for text in dict.fromkeys(map(sentence, facts)))
        raise InputError(
            f"{number} ({', '.join(data.name for data in series) or 'none'}) was found and two or more are needed to "
            f"compare: name more files, or split one with --by {'COLUMN' if len(sets) < 2 else 'set'}.{joined}"
        )
    check_one_axis(series, "curves must be on one axis of compute to be compared")
    curves = tuple(fitted_curves(series, options))
    fits = fits_of(curves)
    together, notes = {}, []
    for name, members in sets.items():
        if len(members) < 2:
            notes.append(fact("alone_in_set", name=members[0].name))
            continue
        comparison = options.compare({data.name: fits[data.name] for data in members if data.name in fits}, at)
        axes = _on_each_axis(members, comparison, options) if each_axis and isinstance(comparison, Comparison) else ()
        uneven = uneven_steps(members) if is_step_axis(members[0]) else {}
        together["" if len(sets) == 1 else str(name)] = Together(comparison=comparison, axes=axes, uneven=uneven)
    return Analysis(
        command="compare", curves=curves, together=together, notes=(*notes, *pool_notes(curves, options))
    )


def is_step_axis(data: Series) -> bool:
    return "step" in data.axes and np.array_equal(data.axes["step"], data.compute)


def _on_each_axis(members: Sequence[Series], main: Comparison, options: FitOptions) -> tuple[AxisAnswer, ...]:
    """Compare on the other axes that all curves have, at the same multiple of the largest compute."""
    usable = [data for data in members if not data.problem and len(data.compute)]
    largest = lambda series: max(data.compute.max() for data in series)  # noqa: E731
    answers = [AxisAnswer(axis=usable[0].x_label, comparison=main)] if usable else []
    seen = [[data.compute for data in usable]]
    for axis in usable[0].axes if usable else ():
        there = [data.on(axis) for data in usable if axis in data.axes]
        if len(there) < len(usable) or any(len(on.compute) < len(data.compute) for on, data in zip(there, usable)):
            continue
        computes = [data.axes[axis] for data in usable]
        if any(_proportional(computes, each) for each in seen):
            continue
        seen.append(computes)
        at = None if main.is_default_budget else main.at / largest(usable) * largest(there)
        comparison = options.compare(fits_of(fitted_curves(there, options)), at)
        assert isinstance(comparison, Comparison)
        answers.append(AxisAnswer(axis=axis, comparison=comparison))
    return tuple(answers) if len(answers) > 1 else ()


def _proportional(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether two axes are one in another unit, for all curves alike."""
    ratio = np.concatenate(list(one)) / np.concatenate(list(other))
    return bool(np.ptp(ratio) <= 1e-6 * abs(ratio[0]))


# Fits -----------------------------------------------------------------------------------------------------------------


def fitted_curves(series: Sequence[Series], options: FitOptions) -> list[CurveResult]:
    """Fit every curve, let those that share a start and a task inform each other, and decide about each."""
    earlier = None if options.prior is None else read_prior(options.prior)
    fits = {place: fitted(data, options) for place, data in enumerate(series)}
    if options.method == "posterior":
        groups: dict[tuple[Any, ...], dict[str, Fit]] = {}
        for place, data in enumerate(series):
            task = (data.x_label, data.y_label, data.evaluation_set, data.y_scale)
            groups.setdefault(task, {})[str(place)] = fits[place]
        for (axis, *_), own in groups.items():
            known = () if earlier is None else earlier.on_axis(axis)
            for names in [(name,) for name in own] if options.alone else siblings(own):
                pooled = pool({name: own[name] for name in names}, known)
                fits |= {int(name): each for name, each in pooled.items()}
    worths = {
        scale: default_worth([fits[place] for place, data in enumerate(series) if data.y_scale == scale])
        for scale in {data.y_scale for data in series}
    }
    return [
        CurveResult(
            series=data,
            fit=fits[place],
            decision=None
            if data.problem
            else decide(fits[place], worths[data.y_scale] if options.worth is None else options.worth),
            price=price_of_compute(data, options.price),
        )
        for place, data in enumerate(series)
    ]


def fitted(data: Series, options: FitOptions) -> Fit:
    """Fit one series alone."""
    if data.problem:
        return fit([], [], level=options.level)
    return fit(data.compute, data.reward, **options.of(data))


def fitted_curve(data: Series, options: FitOptions) -> CurveResult:
    """Fit one series alone and decide about it."""
    return fitted_curves([data], options)[0]


def price_of_compute(data: Series, price: float | None) -> float | None:
    """Return the price of one unit of compute: from GPU-hours and their price, or from the log's own cost."""
    if data.problem or not len(data.compute):
        return None
    spent = data.axes.get("cost" if price is None else "gpu_hours")
    if spent is None or not np.isfinite(spent[-1]):
        return price if data.x_label == "gpu_hours" else None
    return (1.0 if price is None else price) * float(spent[-1] / data.compute[-1])


def pool_notes(curves: Sequence[CurveResult], options: FitOptions) -> tuple[Fact, ...]:
    """Return which curves inform each other, and which do not."""
    pooled = tuple(curve.name for curve in curves if curve.fit.alone is not None)
    if not pooled:
        return ()
    alone = tuple(curve.name for curve in curves if curve.usable and curve.fit.alone is None)
    return (fact("pooled", names=pooled, alone=alone, prior=options.prior),)


def fits_of(curves: Iterable[CurveResult]) -> dict[str, Fit]:
    """Return the fits by name, of series that could be fitted."""
    return {curve.name: curve.fit for curve in curves if not curve.series.problem}


def prior_of(curves: Sequence[CurveResult]) -> dict[str, Any]:
    """Return the content of a prior file for these curves."""
    check_one_axis([curve.series for curve in curves], "a prior needs runs on one axis of compute")
    return prior_content(fits_of(curves), curves[0].series.x_label)


# What was held out ----------------------------------------------------------------------------------------------------


def with_score(curve: CurveResult) -> CurveResult:
    """Return a curve with the score of its fit on the held-out points, where it has both."""
    return replace(curve, holdout=score(curve.fit, curve.series.holdout_compute, curve.series.holdout_reward))


def largest_compute(data: Series) -> float:
    return float(max(data.compute.max(initial=0.0), data.holdout_compute.max(initial=0.0)))


def before(data: Series, share: float) -> Series:
    """Return the series up to a share of its largest compute, with the rest held out."""
    return held_out_after(data, share * largest_compute(data))


def held_out_after(data: Series, limit: float, test_from: float = 0.0) -> Series:
    """Return the series up to a compute, with what lies after it held out, as far as it lies after `test_from`."""
    early, late = data.compute <= limit * (1 + 1e-9), data.compute >= test_from * (1 - 1e-9)
    later, held = late & ~early, data.holdout_compute > (limit if np.isfinite(limit) else 0.0)
    return replace(
        data.take(early),
        holdout_compute=np.concatenate([data.compute[later], data.holdout_compute[held]]),
        holdout_reward=np.concatenate([data.reward[later], data.holdout_reward[held]]),
    )


def param_value(fit: Fit, name: str) -> Value | None:
    """Return a parameter with its interval; None if there is no curve, or its form does not have it."""
    if not fit.usable or name not in fit.params:
        return None
    low, high = fit.interval(name)
    return Value(value=fit.params[name], low=low, high=high)
