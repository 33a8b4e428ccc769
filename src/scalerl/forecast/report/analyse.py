"""Analyse series: from curves of numbers to one `Result`.

    analyse_fit, analyse_forecast, analyse_backtest, analyse_compare    what each command does
    fitted_curves   each curve in one pass: fitted, informed by others of its task, decided, tested
    compared        compares the curves of each evaluation set, on every axis of compute
    part            back-tests: the forecast from part of a curve against the rest

A series that cannot be fitted is in `Result.left_out`. If no curve is usable, NoCurveError is raised.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from scalerl.errors import InputError, NoCurveError, option
from scalerl.forecast.curves import (
    Comparison,
    Decision,
    Fit,
    State,
    compute_for,
    decide,
    default_worth,
    fit,
    reward_at,
    score,
)
from scalerl.forecast.logs.frame import grouped
from scalerl.forecast.logs.series import Series
from scalerl.forecast.logs.typed import compute_typed
from scalerl.forecast.logs.written import Typed
from scalerl.forecast.report.axes import AXIS_LABELS, axis_label, check_one_axis, on_own_axis, unit_of
from scalerl.forecast.report.document import Say, say
from scalerl.forecast.report.options import FitOptions, rewards_typed
from scalerl.forecast.report.results import AxisAnswer, Command, CurveResult, Result, Tested, curve_result, fits_of

HALF = 0.5
"""Share of the compute from which a run's own back-test forecasts the rest."""
ALIKE = 0.05
"""Two axes give one answer if the factor between them is the same for all curves, up to this share."""
JOINED = ("files_joined", "seeds_by_name")
"""Facts of a log that made one curve of several."""
MOST_ON_AXES = 8
"""More curves than these are not fitted again to be compared on other axes."""
_FITS: dict[tuple[bytes, bytes, str], Fit] = {}
_most_fits = 0


def remember_fits(most: int) -> None:
    """Keep so many fits in this process, so as not to make them again: a board looks at the same points often."""
    global _most_fits
    _most_fits = most


def analyse_fit(series: Sequence[Series], options: FitOptions, at: Sequence[Typed] = ()) -> Result:
    """Fit every curve; with `at`, forecast the reward there too."""
    return analyse_forecast(series, options, at, (), command="fit")


def analyse_forecast(
    series: Sequence[Series],
    options: FitOptions,
    at: Sequence[Typed],
    reach: Sequence[Typed],
    *,
    command: Command = "forecast",
) -> Result:
    """Forecast the reward at computes and the compute for rewards; by default the reward at 2 and 4 times the data.

    Amounts are as they were typed: in the unit of the log, unless a unit is written.
    """
    asked_computes = [compute_typed(each, "at", series) for each in at]
    rewards = rewards_typed(reach, "reach", series)
    result = _analysed(command, series, options, Window())
    is_unasked = command == "forecast" and not at and not reach
    done: list[CurveResult] = []
    for curve in result.curves:
        computes: Sequence[float] = asked_computes
        if is_unasked:
            computes = computes_ahead(curve.fit)
        if curve.usable and computes:
            curve = replace(curve, at=tuple(reward_at(curve.fit, computes)))
        if curve.usable and rewards:
            curve = replace(curve, reach=tuple(compute_for(curve.fit, rewards)))
        done.append(curve)
    return replace(result, curves=tuple(done))


def computes_ahead(curve: Fit) -> tuple[float, float]:
    """Return the computes for which a forecast is made unasked: 2 and 4 times the data."""
    return 2 * curve.scale, 4 * curve.scale


def analyse_backtest(series: Sequence[Series], options: FitOptions, fractions: Sequence[float]) -> Result:
    """Score each curve's forecast on its held-out points, and on what lies after each fraction."""
    for share in fractions:
        if not 0 < share < 1:
            raise ValueError(f"a fraction must lie between 0 and 1, not {share:g}")
    result = _analysed("backtest", series, options)
    done: list[CurveResult] = []
    for curve in result.curves:
        early = [part(curve.series, Window(until=share), options) for share in fractions]
        shares = [replace(each, share=share) for each, share in zip(early, fractions, strict=True)]
        done.append(replace(curve, early=tuple(shares)))
    return replace(result, curves=tuple(done))


def analyse_compare(series: Sequence[Series], options: FitOptions, at: Typed | None) -> Result:
    """Compare the curves of each evaluation set at a compute, as it was typed; InputError if no set has two."""
    if at is not None:
        options = replace(options, at=compute_typed(at, "at", series))
    sets = grouped(series, lambda data: data.evaluation_set)
    if max(map(len, sets), default=0) < 2:
        raise InputError(_too_few_curves(series, num_sets=len(sets)))
    check_one_axis(series, "curves must be on one axis of compute to be compared")
    return compared(_analysed("compare", series, options))


def _too_few_curves(series: Sequence[Series], *, num_sets: int) -> str:
    """Return why there is nothing to compare, with what was joined into one curve, and how to keep it apart."""
    names = ", ".join(data.name for data in series) or "none"
    number = "only one curve"
    split = "COLUMN"
    if num_sets > 1:
        number = "only one curve of each evaluation set"
        split = "set"
    parts = [
        f"{number} ({names}) was found and two or more are needed to compare: name more files, or split one with "
        f"{option:by {split}}."
    ]
    for data in series:
        for fact in data.facts:
            joined = say(fact.kind, fact.values).text
            if fact.kind in JOINED and joined not in parts:
                parts.append(joined)
    return " ".join(parts)


def compared(result: Result) -> Result:
    """Return a result with the comparison of each evaluation set, on every axis, or with notes on why there is none."""
    comparisons = {}
    by_axis = {}
    notes = list(result.notes)
    for name in result.sets:
        members = result.members(name)
        others: list[str] = []
        if result.command == "report":
            others = _on_other_prompts(members)
            members = [curve for curve in members if curve.name not in others]
        units = sorted({curve.unit for curve in members})
        rewards = tuple(sorted({curve.y for curve in members}))
        if others:
            notes.append(say("different_prompts", names=tuple(others), of_set=f" of {name}" if name else ""))
        if len(members) < 2:
            if not others and any(curve.name != members[0].name for curve in result.curves):
                notes.append(say("alone_in_set", name=members[0].name))
        elif len(units) > 1:
            notes.append(say("different_units", units=tuple(units)))
        elif result.command == "report" and len(rewards) > 1:
            notes.append(say("different_rewards", names=rewards))
        elif sum(curve.usable for curve in members) > 1:
            if len(rewards) > 1:
                notes.append(say("unlike_rewards", names=rewards))
            comparison = result.options.compare(fits_of(members), result.options.at)
            comparisons[name] = comparison
            if isinstance(comparison, Comparison):
                by_axis[name] = _on_axes(members, comparison, result.options)
    return replace(result, comparisons=comparisons, by_axis=by_axis, notes=tuple(notes))


def _on_other_prompts(curves: Sequence[CurveResult]) -> list[str]:
    """Return the names of the curves that were evaluated on other prompts than most, where prompts are known."""
    known: dict[frozenset[str], list[str]] = {}
    for curve in curves:
        if curve.series.evaluation is not None:
            prompts = frozenset(each.partition("@")[0] for each in curve.series.evaluation)
            known.setdefault(prompts, []).append(curve.name)
    usual = max(known.values(), key=len, default=[])
    return sorted(curve.name for curve in curves if curve.series.evaluation is not None and curve.name not in usual)


def _on_axes(members: Sequence[CurveResult], first: Comparison, options: FitOptions) -> tuple[AxisAnswer, ...]:
    """Return the answer on every axis that the curves share, from the evaluations that were fitted on the first one.

    On an axis that is a multiple of the first one, by the same factor for all curves, the answer is the same. On any
    other axis the curves are fitted and compared again, unless there are too many.
    """
    usable = [curve for curve in members if curve.usable]
    own = usable[0].axis
    shared = set.intersection(*(set(curve.series.axes) for curve in usable))
    if len({unit_of(curve.series, "gpu_hours") for curve in usable}) > 1:
        # An hour of a CPU is not an hour of a GPU.
        shared.discard("gpu_hours")
    answers = [AxisAnswer(axis=own, at=first.at, comparison=first)]
    largest = max(curve.fit.scale for curve in usable)
    for axis in AXIS_LABELS:
        on_axis = []
        if axis in shared and axis_label(axis) != axis_label(own):
            on_axis = [fitted_part(curve).on(axis) for curve in usable]
        if not on_axis or not all(len(data.compute) for data in on_axis):
            continue
        largest_there = np.array([data.compute.max() for data in on_axis])
        at = first.at * float(largest_there.max()) / largest
        factors = largest_there / np.array([curve.fit.scale for curve in usable])
        if factors.max() <= (1.0 + ALIKE) * factors.min():
            answers.append(AxisAnswer(axis=axis, at=at, comparison=first))
        elif len(usable) <= MOST_ON_AXES:
            # The ends of what is fitted are amounts, or shares, of the first axis.
            whole = replace(options, skip_before=None, fit_until=None)
            again = options.compare({data.name: _fitted(data, whole) for data in on_axis}, at)
            assert isinstance(again, Comparison)
            # On this axis, the points of a curve may all be at one place.
            if again.standings:
                answers.append(AxisAnswer(axis=axis, at=at, comparison=again))
    return tuple(answers)


def fitted_part(curve: CurveResult) -> Series:
    """Return the evaluations of a curve that are fitted."""
    compute = curve.series.compute
    fitted = curve.fit.compute
    return curve.series.take((compute >= fitted.min()) & (compute <= fitted.max()))


def with_end(curve: CurveResult, end_compute: float | None) -> CurveResult:
    """Return a curve with its forecast for the end of a budget, if it can be judged and the end is ahead."""
    is_early = curve.state == State.TOO_EARLY
    if not curve.usable or is_early or end_compute is None or end_compute <= curve.fit.scale:
        return curve
    return replace(curve, at=tuple(reward_at(curve.fit, [end_compute])))


# Fits -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where a back-test stops to fit, and from where it scores: shares of a curve's compute, or amounts of it."""

    until: float = HALF
    scored_from: float | None = None
    """None: right after what is fitted."""
    until_compute: float | None = None
    scored_from_compute: float | None = None
    axis: str | None = None
    """The axis of the amounts; None: that of the curve."""

    def ends(self, data: Series, largest: float) -> tuple[float, float]:
        """Return the compute up to which a curve is fitted, and the one after which it is scored."""
        until = self.until * largest
        if self.until_compute is not None:
            until = on_own_axis(data, self.until_compute, self.axis)
        begin = until
        if self.scored_from is not None:
            begin = self.scored_from * largest
        if self.scored_from_compute is not None:
            begin = on_own_axis(data, self.scored_from_compute, self.axis)
        return until, max(begin, until)


def _analysed(command: Command, series: Sequence[Series], options: FitOptions, window: Window | None = None) -> Result:
    """Fit every series that has no problem; raise NoCurveError if no curve is usable."""
    result = analysed(command, series, options, window)
    if not any(curve.usable for curve in result.curves):
        first = series[0]
        among = ""
        if len(series) > 1:
            among = f" among {len(series)}; the first, {first.name}"
        why = first.problem
        if not why:
            missing = missing_say(result.curves[0])
            why = ""
            if missing is not None:
                why = missing.text
        raise NoCurveError(f"no usable curve{among}: {why}", reason=why)
    return result


def analysed(
    command: Command,
    series: Sequence[Series],
    options: FitOptions,
    window: Window | None,
    call: Callable[..., Iterable[Any]] = map,
) -> Result:
    """Fit every series that has no problem."""
    curves = tuple(fitted_curves([data for data in series if not data.problem], options, window, call))
    left_out = tuple(data for data in series if data.problem)
    num_informed = sum(curve.fit.alone is not None for curve in curves)
    notes: tuple[Say, ...] = ()
    if num_informed:
        notes = (say("pooled", num=num_informed),)
    return Result(command=command, curves=curves, options=options, left_out=left_out, notes=notes)


def missing_say(curve: CurveResult) -> Say | None:
    """Return the sentence on what is missing of a run that is too early to judge; None if nothing is."""
    missing = None
    if curve.decision is not None:
        missing = curve.decision.missing
    if missing is None:
        return None
    has_start = missing.what == "points" and curve.fit.lack is not None and curve.fit.start is not None
    return say(f"too_early_{missing.what}", missing, curve, has_start=has_start)


def fitted_curves(
    series: Sequence[Series],
    options: FitOptions,
    window: Window | None = None,
    call: Callable[..., Iterable[Any]] = map,
) -> list[CurveResult]:
    """Fit every curve; let curves of one model and task inform each other; decide.

    Each is tested on its held-out rows, or else the forecast from a `window` of it. `call` applies a function to every
    series, here or in workers.
    """
    alone: list[Fit] = []
    tests: list[Tested | None] = []
    for curve, tested in call(partial(_fitted_and_tested, options=options, window=window), series):
        alone.append(curve)
        tests.append(tested)
    fits = pooled(series, alone, options, call)
    decisions = decided(series, fits, options.worth)
    made: list[CurveResult] = []
    for data, curve, decision, tested in zip(series, fits, decisions, tests, strict=True):
        if len(data.holdout_compute):
            tested = _test(curve, data)
        price = price_of_compute(data, options.price)
        made.append(curve_result(data, curve, decision, price=price, tested=tested))
    return made


def fitted_curve(data: Series, options: FitOptions) -> CurveResult:
    """Fit one series and decide about it."""
    (curve,) = fitted_curves([data], options)
    return curve


def _fitted_and_tested(data: Series, *, options: FitOptions, window: Window | None) -> tuple[Fit, Tested | None]:
    """Fit one series, and test the forecast from a window of it where no rows are held out."""
    curve = _fitted(data, options)
    if window is None or len(data.holdout_compute) or not curve.has_intervals or options.fit_until is not None:
        return curve, None
    return curve, part(data, window, options)


def _fitted(data: Series, options: FitOptions) -> Fit:
    """Fit one series, or remember its fit."""
    given = options.of(data)
    what = (data.name, data.start, data.x_label, options, given["skip_before"])
    key = (data.compute.tobytes(), data.reward.tobytes(), repr(what))
    done = _FITS.pop(key, None) or fit(data.compute, data.reward, **given)
    _FITS[key] = done
    while len(_FITS) > _most_fits:
        del _FITS[next(iter(_FITS))]
    return done


def price_of_compute(data: Series, price: float | None) -> float | None:
    """Return the price of one unit of compute: from the price of a GPU-hour, or without it from the cost in the log."""
    if price is not None and unit_of(data, "gpu_hours") != AXIS_LABELS["gpu_hours"]:
        return None  # an hour of a CPU has another price
    spent = data.axes.get("cost" if price is None else "gpu_hours")
    if spent is None or not len(spent) or not np.isfinite(spent[-1]):
        if axis_label(data.x_label) == AXIS_LABELS["gpu_hours"]:
            return price
        return None
    return (1.0 if price is None else price) * float(spent[-1] / data.compute[-1])


def pooled(
    series: Sequence[Series], alone: Sequence[Fit], options: FitOptions, call: Callable[..., Iterable[Any]] = map
) -> list[Fit]:
    """Let curves of one task with a similar start inform each other."""
    if options.method != "posterior" or options.alone or len(alone) < 2:
        return [*alone]
    from scalerl.forecast.several.pool import pool, siblings

    # By place: curves of several evaluation sets may share a name.
    fits = {str(place): curve for place, curve in enumerate(alone)}
    for places in grouped(fits, lambda place: _task(series[int(place)])):
        own = {place: fits[place] for place in places}
        for alike in siblings(own):
            fits |= pool({place: own[place] for place in alike}, call)
    return [*fits.values()]


def _task(data: Series) -> tuple[Any, ...]:
    """Return what curves that inform each other have in common."""
    return data.x_label, unit_of(data), data.y_label, data.evaluation_set, data.y_scale


def decided(series: Sequence[Series], fits: Sequence[Fit], worth: float | None) -> list[Decision | None]:
    """Decide about each curve; those of one scale of rewards share a threshold."""
    decisions: list[Decision | None] = [None] * len(fits)
    for places in grouped(range(len(fits)), lambda place: series[place].y_scale):
        threshold = worth
        if worth is None:
            threshold = default_worth([fits[place] for place in places])
        for place in places:
            if fits[place].has_intervals or fits[place].lack is not None:
                decisions[place] = decide(fits[place], threshold)
    return decisions


# Back-tests -----------------------------------------------------------------------------------------------------------


def part(data: Series, window: Window, options: FitOptions) -> Tested:
    """Fit the series up to the window's end, and test that forecast on what comes after."""
    largest = float(max(data.compute.max(initial=0.0), data.holdout_compute.max(initial=0.0)))
    until, begin = window.ends(data, largest)
    early = held_out_after(data, until)
    curve = _fitted(early, options)
    return replace(_test(curve, early, begin), share=curve.scale / largest)


def _test(curve: Fit, data: Series, begin: float = 0.0) -> Tested:
    """Test the forecast of a fit on the held-out points after a compute."""
    later = data.holdout_compute > begin * (1 + 1e-9)
    return Tested(
        share=None,
        num_points=curve.num_points,
        num_later=len(data.holdout_compute),
        score=score(curve, data.holdout_compute[later], data.holdout_reward[later]),
    )


def held_out_after(data: Series, limit: float) -> Series:
    """Return the series up to a compute, with what lies after it held out."""
    early = data.compute <= limit * (1 + 1e-9)
    held = data.holdout_compute > (limit if np.isfinite(limit) else 0.0)
    return replace(
        data.take(early),
        holdout_compute=np.concatenate([data.compute[~early], data.holdout_compute[held]]),
        holdout_reward=np.concatenate([data.reward[~early], data.holdout_reward[held]]),
    )
