"""Analyse series: from curves of numbers to one `Result`, which every view of a command shows.

    analyse_fit, analyse_forecast, analyse_backtest, analyse_compare    what each command does
    FitOptions      options of a fit, checked against each series
    CurveResult     one curve: its fit, the decision about it, and forecasts or scores if asked for
    fitted_curves   fits each curve, lets curves of one task inform each other, and decides

A series that cannot be fitted is in `Result.left_out`. If no curve is usable, NoCurveError is raised.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from scalerl.curves import (
    FORMS,
    PAPER_MARGIN,
    At,
    Comparison,
    Decision,
    Fall,
    Fit,
    Grid,
    PaperComparison,
    Reach,
    Score,
    State,
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
from scalerl.errors import InputError, NoCurveError
from scalerl.joint.pool import pool, siblings
from scalerl.joint.prior_file import prior_content, read_prior
from scalerl.logs.columns import has_role
from scalerl.logs.facts import sentence
from scalerl.logs.series import Series
from scalerl.report.document import Level, Say, say
from scalerl.report.numbers import decimals

Command = Literal["fit", "forecast", "backtest", "compare", "report"]
GRID_STEP = 0.005
"""Step of the paper's grid of ceilings, as a share of the scale."""
HALF = 0.5
"""Share of the compute from which a run's own back-test forecasts the rest."""
WEAK = 0.5
"""Share of later evaluations inside the interval below which a forecast should not be trusted."""
ALIKE = 0.05
"""Two axes give one answer if the factor between them is the same for all curves, up to this share."""
MOST_ON_AXES = 8
"""More curves than these are not fitted again to be compared on other axes."""
PARAMS = ("ceiling", "exponent", "midpoint", "start")
AXES = {
    "gpu_hours": "GPU-hours", "flops": "FLOPs", "tokens": "tokens", "step": "steps", "hours": "hours", "cost": "cost",
}  # fmt: skip


def axis_label(column: str, hours: str = "GPU-hours") -> str:
    """Return the name of an axis of compute for people."""
    label = next((label for role, label in AXES.items() if column == role or has_role(column, role)), column)
    return hours if label == AXES["gpu_hours"] else label


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
    worth: float | None = None
    """The smallest difference of reward that matters. None: 1 % of a bounded scale, 3 % of the range seen."""
    run_sd: float | None = None
    """Spread between runs of a recipe that was run once. None: a share of the gain."""
    ceiling: tuple[float, ...] = ()
    """One value holds the ceiling fixed; two are the ends of the paper's grid."""
    skip_before: float | str | None = None
    fit_until: float | None = None
    method: Literal["posterior", "paper"] = "posterior"
    """"paper": the grid procedure of arXiv 2510.13786, which has no intervals."""
    alone: bool = False
    """Whether each curve is fitted by itself, even if others have the same model and task."""
    prior: str | None = None
    """File of earlier runs that inform each curve, or `published`."""
    price: float | None = None
    """Price of a GPU-hour."""

    def of(self, series: Series) -> dict[str, Any]:
        """Return the keyword arguments of `fit` for one series; raise InputError for an option that does not fit it."""
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
        """Return the ceilings that the paper's procedure tries; None for its own, scaled to the data."""
        if not self.ceiling:
            return None
        low, high = min(self.ceiling), max(self.ceiling)
        least, most = series.bounds or (low, high)
        num = round((high - low) / (GRID_STEP * (most - least))) + 1 if high > low else 1
        return Grid(ceilings=np.linspace(low, high, num))

    def compare(self, fits: Mapping[str, Fit], at: float | None = None) -> "Comparison | PaperComparison":
        """Compare fits made with these options."""
        if self.method == "paper":
            low, high = next((each.bounds for each in fits.values() if each.bounds), (0.0, 1.0))
            return compare_by_paper(fits, margin=PAPER_MARGIN * (high - low) if self.worth is None else self.worth)
        return compare(fits, at=at, worth=self.worth, run_sd=self.run_sd)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve, and what is decided about it."""

    series: Series
    fit: Fit
    decision: Decision | None = None
    """None for the paper's procedure."""
    backtest: Score | None = None
    """How well the fit forecasts the held-out rows; without any, how well its first half forecasts the rest."""
    early: tuple[tuple[float, "CurveResult"], ...] = ()
    """The same curve up to shares of its compute, with the rest held out."""
    at: tuple[At, ...] = ()
    """Forecasts of the reward at computes ..."""
    reach: tuple[Reach, ...] = ()
    """... and of the compute for rewards."""
    price: float | None = None
    """Price of one unit of compute; None where it is not known."""

    @property
    def hours(self) -> str:
        """What hours of devices are called: CPU-hours or GPU-hours."""
        return "CPU-hours" if any(each.kind == "cpu_time" for each in self.series.facts) else "GPU-hours"

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def axis(self) -> str:
        """The column of compute."""
        return self.series.x_label

    @property
    def unit(self) -> str:
        """What compute is counted in, for people."""
        return axis_label(self.axis, self.hours)

    @property
    def y(self) -> str:
        """The column of reward."""
        return self.series.y_label

    @property
    def is_training(self) -> bool:
        """Whether the rewards are those of training, and not of evaluations."""
        return "y" in self.series.plan and self.series.plan["y"].rule == "training"

    def money(self, compute: float) -> float | None:
        """Return what this much compute costs; None where no price is known."""
        return None if self.price is None else self.price * compute

    @property
    def evaluation_set(self) -> str:
        return self.series.evaluation_set or ""

    @property
    def decimals(self) -> int:
        return decimals(self.fit)

    @property
    def at_end(self) -> At | None:
        """The forecast for the end of a budget; None where it is not known, or reached."""
        return self.at[-1] if self.at else None

    @property
    def usable(self) -> bool:
        return self.fit.usable

    @property
    def state(self) -> State | None:
        return None if self.decision is None else self.decision.state

    @property
    def fall(self) -> Fall | None:
        """The fall of a run that is past its peak."""
        return None if self.decision is None else self.decision.fall

    @property
    def ceiling(self) -> Value | None:
        """The ceiling; None if there is no curve, or if it is flat or past its peak."""
        has_none = self.state in (State.FLAT, State.TOO_EARLY, State.PAST_PEAK)
        return None if has_none else param_value(self.fit, "ceiling")

    @property
    def params(self) -> "dict[str, Value | None]":
        """The parameters with their intervals; None for one that the form does not have, or without a curve."""
        return {name: param_value(self.fit, name) for name in PARAMS}

    @property
    def doubling(self) -> Value | None:
        """Gain of twice the compute; None where nothing has risen."""
        has_risen = self.decision is not None and self.state not in (State.FLAT, State.TOO_EARLY)
        return self.decision.doubling if has_risen and self.decision is not None else None

    @property
    def is_weak(self) -> bool:
        """Whether the interval of the run's own back-test missed most of what came later."""
        inside = None if self.backtest is None else self.backtest.coverage
        return inside is not None and inside < WEAK

    @property
    def checkpoint(self) -> float | None:
        """The step of the last evaluation before a fall; None without a fall, or without steps."""
        fall, steps = self.fall, self.series.axes.get("step")
        if fall is None or (steps is None and axis_label(self.axis) != AXES["step"]):
            return None
        if steps is None:
            return fall.last_good
        return float(steps[np.argmin(np.abs(self.series.compute - fall.last_good))])


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisAnswer:
    """What a comparison says where compute is counted on another axis."""

    axis: str
    at: float
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found: each curve, and the curves together."""

    command: Command
    curves: tuple[CurveResult, ...]
    options: FitOptions
    left_out: tuple[Series, ...] = ()
    """Series that make no curve; their problems say why."""
    comparisons: Mapping[str, "Comparison | PaperComparison"] = field(default_factory=dict)
    """The comparison of each evaluation set; under "" if there is only one."""
    by_axis: Mapping[str, tuple[AxisAnswer, ...]] = field(default_factory=dict)
    """The answers of each evaluation set on every axis; that of the fits comes first."""
    notes: tuple[Say, ...] = ()
    """Notes on the curves together."""
    material: Any = None
    """The `Material` that a report was made from; None for other commands."""

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(curve.evaluation_set for curve in self.curves))

    def members(self, evaluation_set: str) -> list[CurveResult]:
        """Return the curves of an evaluation set."""
        return [curve for curve in self.curves if curve.evaluation_set == evaluation_set]

    def comparison(self, evaluation_set: str) -> "Comparison | PaperComparison | None":
        """Return the comparison of an evaluation set; None if its curves were not compared."""
        return self.comparisons.get(evaluation_set) or (self.comparisons.get("") if len(self.sets) == 1 else None)

    @property
    def pairs(self) -> tuple[Any, ...]:
        return tuple(pair for comparison in self.comparisons.values() for pair in comparison.pairs)

    @property
    def worth(self) -> float:
        """The smallest difference of reward that matters."""
        return default_worth(list(fits_of(self.curves).values())) if self.options.worth is None else self.options.worth

    @property
    def runs(self) -> tuple[Any, ...]:
        """The run folders that a report was made from."""
        return () if self.material is None else self.material.runs

    @property
    def title(self) -> str:
        return "" if self.material is None else self.material.title


# The commands ---------------------------------------------------------------------------------------------------------


def analyse_fit(series: Sequence[Series], options: FitOptions, at: Sequence[float] = ()) -> Result:
    """Fit every curve; with `at`, forecast the reward there too."""
    return analyse_forecast(series, options, at, (), command="fit")


def analyse_forecast(
    series: Sequence[Series],
    options: FitOptions,
    at: Sequence[float],
    reach: Sequence[float],
    *,
    command: Command = "forecast",
) -> Result:
    """Forecast the reward at computes and the compute for rewards; by default the reward at 2 and 4 times the data."""
    curves, left_out, notes = _analysed(series, options)
    done = []
    for curve in curves:
        default_at = () if reach or command == "fit" else (2 * curve.fit.scale, 4 * curve.fit.scale)
        done.append(with_backtest(_forecast(curve, at or default_at, reach), options))
    return Result(command=command, curves=tuple(done), options=options, left_out=left_out, notes=notes)


def _forecast(curve: CurveResult, at: Sequence[float], reach: Sequence[float]) -> CurveResult:
    """Return a curve with these forecasts, if it can make any."""
    if not curve.usable:
        return curve
    return replace(curve, at=tuple(reward_at(curve.fit, at)), reach=tuple(compute_for(curve.fit, reach)))


def analyse_backtest(series: Sequence[Series], options: FitOptions, fractions: Sequence[float]) -> Result:
    """Score each curve's forecast on its held-out points, and on what lies after each fraction."""
    for share in fractions:
        if not 0 < share < 1:
            raise ValueError(f"a fraction must lie between 0 and 1, not {share:g}")
    curves, left_out, notes = _analysed(series, options)
    done = [
        replace(scored(curve), early=tuple((share, part(curve.series, share, options)) for share in fractions))
        for curve in curves
    ]
    return Result(command="backtest", curves=tuple(done), options=options, left_out=left_out, notes=notes)


def analyse_compare(series: Sequence[Series], options: FitOptions, at: float | None) -> Result:
    """Compare the curves of each evaluation set; raise InputError if no set has two."""
    sets: dict[str | None, list[str]] = {}
    for data in series:
        sets.setdefault(data.evaluation_set, []).append(data.name)
    if max(map(len, sets.values()), default=0) < 2:
        number = "only one curve" if len(sets) < 2 else "only one curve of each evaluation set"
        facts = [fact for data in series for fact in data.facts if fact.kind in ("files_joined", "seeds_by_name")]
        joined = "".join(f" {each}" for each in dict.fromkeys(map(sentence, facts)))
        raise InputError(
            f"{number} ({', '.join(data.name for data in series) or 'none'}) was found and two or more are needed to "
            f"compare: name more files, or split one with --by {'COLUMN' if len(sets) < 2 else 'set'}.{joined}"
        )
    check_one_axis(series, "curves must be on one axis of compute to be compared")
    curves, left_out, notes = _analysed(series, options)
    result = Result(command="compare", curves=curves, options=options, left_out=left_out, notes=notes)
    return compared(result, at)


def compared(result: Result, at: float | None = None) -> Result:
    """Return a result with the comparison of each evaluation set, on every axis, or with notes on why there is none."""
    comparisons, by_axis, notes = {}, {}, list(result.notes)
    for name in result.sets:
        members = result.members(name)
        units = sorted({curve.unit for curve in members})
        rewards = tuple(sorted({curve.y for curve in members}))
        if len(members) < 2:
            has_others = len({curve.name for curve in result.curves}) > 1
            notes += [say("alone_in_set", name=members[0].name)] if has_others else []
        elif len(units) > 1:
            notes.append(say("different_units", Level.WARNING, units=tuple(units)))
        elif result.command == "report" and len(rewards) > 1:
            notes.append(say("different_rewards", names=rewards))
        elif sum(curve.usable for curve in members) > 1:
            notes += [say("unlike_rewards", Level.WARNING, names=rewards)] if len(rewards) > 1 else []
            comparison = comparisons[name] = result.options.compare(fits_of(members), at)
            if isinstance(comparison, Comparison):
                by_axis[name] = _on_axes(members, comparison, result.options)
    return replace(result, comparisons=comparisons, by_axis=by_axis, notes=tuple(notes))


def _on_axes(members: Sequence[CurveResult], first: Comparison, options: FitOptions) -> tuple[AxisAnswer, ...]:
    """Return the answer on every axis that the curves share.

    On an axis that is a multiple of the first one, by the same factor for all curves, the answer is the same. On any
    other axis the curves are fitted and compared again, unless there are too many.
    """
    usable = [curve for curve in members if curve.usable]
    own = usable[0].axis
    shared = set.intersection(*(set(curve.series.axes) for curve in usable))
    answers = [AxisAnswer(axis=own, at=first.at, comparison=first)]
    largest = max(curve.fit.scale for curve in usable)
    for axis in (axis for axis in AXES if axis in shared and axis_label(axis) != axis_label(own)):
        on_axis = [curve.series.on(axis) for curve in usable]
        if any(not len(data.compute) for data in on_axis):
            continue
        largest_there = np.array([data.compute.max() for data in on_axis])
        at = first.at * float(largest_there.max()) / largest
        factors = largest_there / np.array([curve.series.compute.max() for curve in usable])
        if factors.max() <= (1.0 + ALIKE) * factors.min():
            answers.append(AxisAnswer(axis=axis, at=at, comparison=first))
        elif len(usable) <= MOST_ON_AXES:
            fits = {data.name: fit(data.compute, data.reward, evaluation=data.evaluation, **options.of(data))
                    for data in on_axis}  # fmt: skip
            again = options.compare(fits, at)
            assert isinstance(again, Comparison)
            answers.append(AxisAnswer(axis=axis, at=at, comparison=again))
    return tuple(answers)


# Fits -----------------------------------------------------------------------------------------------------------------


def _analysed(
    series: Sequence[Series], options: FitOptions
) -> tuple[tuple[CurveResult, ...], tuple[Series, ...], tuple[Say, ...]]:
    """Return the fitted curves, the series left out, and notes; raise NoCurveError if no curve is usable."""
    left_out = tuple(data for data in series if data.problem)
    curves = fitted_curves([data for data in series if not data.problem], options)
    if not any(curve.usable for curve in curves):
        first = series[0]
        among = f" among {len(series)}; the first, {first.name}" if len(series) > 1 else ""
        missing = None if first.problem else missing_say(curves[0])
        why = first.problem or ("" if missing is None else missing.text)
        raise NoCurveError(f"no usable curve{among}: {why}", reason=why)
    return tuple(curves), left_out, pool_notes(curves, options)


def missing_say(curve: CurveResult) -> Say | None:
    """Return the sentence on what is missing of a run that is too early to judge; None if nothing is."""
    missing = None if curve.decision is None else curve.decision.missing
    if missing is None:
        return None
    has_start = missing.what == "points" and curve.fit.lack is not None and curve.fit.start is not None
    return say(f"too_early_{missing.what}", Level.ANSWER, missing, curve, has_start=has_start)


def fitted_curves(series: Sequence[Series], options: FitOptions) -> list[CurveResult]:
    """Fit every curve; curves of one model and task then inform each other."""
    if options.prior is not None:
        # A file that cannot be read is reported before the fits, which take long.
        read_prior(options.prior)
    return pooled([fitted_curve(data, options) for data in series], options)


def fitted_curve(data: Series, options: FitOptions) -> CurveResult:
    """Fit one series and decide about it."""
    done = fit(data.compute, data.reward, evaluation=data.evaluation, **options.of(data))
    price = price_of_compute(data, options.price)
    return CurveResult(series=data, fit=done, decision=_decision(done, options.worth), price=price)


def price_of_compute(data: Series, price: float | None) -> float | None:
    """Return the price of one unit of compute: from the price of a GPU-hour, or without it from the cost in the log."""
    spent = data.axes.get("cost" if price is None else "gpu_hours")
    if spent is None or not len(spent) or not np.isfinite(spent[-1]):
        return price if axis_label(data.x_label) == AXES["gpu_hours"] else None
    return (1.0 if price is None else price) * float(spent[-1] / data.compute[-1])


def pooled(curves: Sequence[CurveResult], options: FitOptions) -> list[CurveResult]:
    """Let curves of one task with a similar start inform each other, and earlier runs inform all; then decide again."""
    earlier = None if options.prior is None else read_prior(options.prior)
    # By place: curves of several evaluation sets may share a name.
    fits = {str(place): curve.fit for place, curve in enumerate(curves)}
    tasks: dict[tuple[Any, ...], dict[str, Fit]] = {}
    for place, curve in zip(fits, curves if options.method == "posterior" else (), strict=False):
        data = curve.series
        tasks.setdefault((data.x_label, data.y_label, data.evaluation_set, data.y_scale), {})[place] = curve.fit
    for (axis, *_), own in tasks.items():
        known = () if earlier is None else earlier.on_axis(axis)
        for names in [(name,) for name in own] if options.alone else siblings(own):
            fits |= pool({name: own[name] for name in names}, known)
    # Curves of one scale of rewards share a worth.
    of_scale: dict[Any, list[Fit]] = {}
    for place, curve in zip(fits, curves, strict=True):
        of_scale.setdefault(curve.series.y_scale, []).append(fits[place])
    worths = {scale: default_worth(own) if options.worth is None else options.worth for scale, own in of_scale.items()}
    pairs = zip(fits, curves, strict=True)
    return [_decided(curve, fits[place], worths[curve.series.y_scale]) for place, curve in pairs]


def _decided(curve: CurveResult, fit: Fit, worth: float | None) -> CurveResult:
    """Return a curve with this fit and the decision about it, which is made again only if one of both has changed."""
    is_known = fit is curve.fit and (curve.decision is None or curve.decision.worth == worth)
    return curve if is_known else replace(curve, fit=fit, decision=_decision(fit, worth))


def _decision(fit: Fit, worth: float | None) -> Decision | None:
    """Return the decision about a curve; None for a fit by the paper's procedure."""
    return decide(fit, worth) if fit.has_intervals or fit.lack is not None else None


def pool_notes(curves: Sequence[CurveResult], options: FitOptions) -> tuple[Say, ...]:
    """Return notes on how many curves inform each other, and on those that a prior does not inform."""
    informed = [curve.name for curve in curves if curve.fit.alone is not None]
    rest = tuple(curve.name for curve in curves if curve.usable and curve.fit.alone is None)
    if options.prior is not None:
        num = len(read_prior(options.prior).on_axis(None))
        notes = [say("pooled_prior", num=num)] if informed else []
        return (*notes, *([say("not_pooled", names=rest)] if rest else []))
    return (say("pooled", num=len(informed)),) if informed else ()


def fits_of(curves: Iterable[CurveResult]) -> dict[str, Fit]:
    """Return the fits by name."""
    return {curve.name: curve.fit for curve in curves}


def param_value(fit: Fit | None, name: str) -> Value | None:
    """Return a parameter with its interval; None if the form does not have it or there is no curve."""
    if fit is None or not fit.usable or name not in fit.params:
        return None
    low, high = fit.interval(name)
    return Value(value=fit.params[name], low=low, high=high)


def prior_of(curves: Sequence[CurveResult]) -> dict[str, Any]:
    """Return the content of a prior file for these curves."""
    check_one_axis([curve.series for curve in curves], "a prior needs runs on one axis of compute")
    return prior_content(fits_of(curves), curves[0].series.x_label)


# Back-tests -----------------------------------------------------------------------------------------------------------


def scored(curve: CurveResult) -> CurveResult:
    """Return a curve with the score of its fit on the held-out points, where it has both."""
    data = curve.series
    return replace(curve, backtest=score(curve.fit, data.holdout_compute, data.holdout_reward))


def part(
    data: Series, share: float, options: FitOptions, fitted: Callable[[Series, FitOptions], CurveResult] = fitted_curve
) -> CurveResult:
    """Fit the series up to a share of its largest compute, and score it on the rest."""
    largest = max(data.compute.max(initial=0.0), data.holdout_compute.max(initial=0.0))
    return scored(fitted(held_out_after(data, share * float(largest)), options))


def with_backtest(curve: CurveResult, options: FitOptions) -> CurveResult:
    """Return a curve with the score of its forecast of the held-out rows; without any, that of its first half."""
    if len(curve.series.holdout_compute):
        return scored(curve)
    if not curve.fit.has_intervals or options.fit_until is not None:
        return curve
    return replace(curve, backtest=part(curve.series, HALF, options).backtest)


def held_out_after(data: Series, limit: float) -> Series:
    """Return the series up to a compute, with what lies after it held out."""
    early, held = data.compute <= limit * (1 + 1e-9), data.holdout_compute > (limit if np.isfinite(limit) else 0.0)
    return replace(
        data.take(early),
        holdout_compute=np.concatenate([data.compute[~early], data.holdout_compute[held]]),
        holdout_reward=np.concatenate([data.reward[~early], data.holdout_reward[held]]),
    )
