"""From tables to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.attempts import check_clock, drop_superseded, telling_labels
from scalerl.logs.binning import bin_runs
from scalerl.logs.columns import FLOPS, STEP, TOKENS, is_nan, plain
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import CurveKey, curve_names
from scalerl.logs.points import Point, Selection, YScale, at
from scalerl.logs.repeats import drop_repeated
from scalerl.logs.scale import out_of_range, scaled
from scalerl.logs.selection import points_from, split_by_seed
from scalerl.logs.table import Table, listed

__all__ = ["InputError", "Selection", "Series", "series_from"]

# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# Seconds since 1970, of which a run takes a little.
_YEAR_2001, _YEAR_2065 = 1e9, 3e9
_A_LITTLE = 0.05
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's points, sorted by run and compute."""

    name: str
    compute: NDArray[np.float64]
    reward: NDArray[np.float64]
    run: NDArray[np.str_] | None
    """The run each point belongs to, None where there is one."""
    num_samples: NDArray[np.int64] | None
    start: float | None
    start_sd: float | None
    """Noise of `start`: 0 for one that is given, None for one read that is as noisy as any evaluation of the curve."""
    holdout_compute: NDArray[np.float64]
    holdout_reward: NDArray[np.float64]
    evaluation: NDArray[np.str_] | None
    """'prompts_hash@step': equal strings mean the same prompts at the same step."""
    x_label: str
    y_label: str
    problem: str | None
    """Why this curve cannot be fitted, None where it can."""
    error: NDArray[np.float64] | None = None
    """Standard error of each reward, where rewards are means of several."""
    evaluation_set: str | None = None
    """The set of a run folder with several: curves of different sets are not compared."""
    facts: tuple[Fact, ...] = ()
    """What was decided about the rows that the user did not ask for."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts in English."""
        return tuple(sentence(fact) for fact in self.facts)

    @property
    def mixed(self) -> str:
        """Why it may be several curves in one; empty where it is not."""
        return next((sentence(fact) for fact in self.facts if fact.kind == "mixed"), "")

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> "Series":
        """Return the series with only these points, by mask or index; held-out points stay."""
        optional = {name: getattr(self, name) for name in ("run", "num_samples", "evaluation", "error")}
        picked = {name: None if values is None else values[which] for name, values in optional.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], **picked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A point whose numbers are known to be numbers."""

    point: Point
    compute: float
    reward: float


def series_from(tables: Sequence[Table], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each set, run or attempt."""
    curves: dict[CurveKey, list[Point]] = {}
    for point in points_from(tables, selection):
        curves.setdefault(point.curve, []).append(point)
    built = []
    for name, points in zip(curve_names(list(curves), selection.labels), curves.values(), strict=True):
        try:
            built.append(_series(name, points, selection))
        except InputError as fault:
            if len(curves) == 1:
                raise
            built.append(_unusable(name, points[0], str(fault)))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    return built


def _series(name: str, points: Sequence[Point], selection: Selection) -> Series:
    for option, labels in (("--x", {point.x_label for point in points}), ("--y", {point.y_label for point in points})):
        if len(labels) > 1:
            raise InputError(
                f"the files of {name} use different columns ({listed(sorted(labels))}): choose one with {option}."
            )
    facts = tuple(fact for number, fact in enumerate(points[0].facts) if fact not in points[0].facts[:number])
    points, on_nan = _without_nan(points)
    points, on_seeds = split_by_seed(points)
    points, on_resuming = drop_superseded(points)
    points, on_repeats = drop_repeated(points)
    values = _checked(points, selection.y_scale)
    _check_amount(points[0], [value.compute for value in values])
    check_clock(points, [value.compute for value in values])
    held_out = [value for value in values if value.point.is_held_out]
    to_fit = [value for value in values if not value.point.is_held_out]
    if not to_fit:
        column, wanted = selection.holdout or ("", "")
        raise InputError(f"every row of {name} matches --holdout {column}={wanted}: none is left to fit.")
    starts, fitted = _split_start(to_fit, selection)
    _check_positive([*fitted, *held_out], selection)
    if not fitted:
        raise InputError(
            f"{name} has no row left to fit besides its start, at {at([value.point for value in starts])}."
        )
    start, start_sd = _start(starts, selection)
    facts = (*facts, *on_nan, *on_seeds, *on_resuming, *on_repeats, *_start_facts(start, starts, fitted, selection))
    facts += _mixed([*fitted, *held_out])
    fitted.sort(key=lambda value: (value.point.run, value.compute, value.reward, value.point.evaluation or ""))
    held_out.sort(key=lambda value: (value.compute, value.reward))
    runs = [value.point.run for value in fitted]
    evaluations = [value.point.evaluation for value in fitted]
    series = Series(
        name=name,
        compute=_floats(value.compute for value in fitted),
        reward=_floats(value.reward for value in fitted),
        run=np.array(runs) if len(set(runs)) > 1 else None,
        num_samples=_counts(fitted, selection.y_scale),
        start=start,
        start_sd=start_sd,
        holdout_compute=_floats(value.compute for value in held_out),
        holdout_reward=_floats(value.reward for value in held_out),
        evaluation=np.array(evaluations) if all(evaluations) else None,
        x_label=points[0].x_label,
        y_label=points[0].y_label,
        problem=None,
        evaluation_set=points[0].evaluation_set,
        facts=facts,
    )
    return series if selection.bins is None else _binned(series, selection.bins)


def _binned(series: Series, rule: int | str) -> Series:
    bins = bin_runs(series.compute, series.reward, series.run, rule)
    if bins is None:
        return series
    return replace(
        series,
        compute=bins.compute,
        reward=bins.reward,
        run=bins.run,
        error=bins.error,
        num_samples=None,
        evaluation=None,
        facts=(*series.facts, bins.fact),
    )


def _start_facts(
    start: float | None, starts: Sequence[_Value], fitted: Sequence[_Value], selection: Selection
) -> tuple[Fact, ...]:
    """Say which rows became the start where that is not plain from the options."""
    if selection.start == "first" and not starts:
        return (Fact(kind="start_is_late", values={"compute": min(value.compute for value in fitted)}),)
    if selection.start == "first" and len({value.point.run for value in starts}) < len(starts):
        return (Fact(kind="start_is_a_mean", values={"start": start, "num": len(starts)}),)
    if selection.start is None and starts and not starts[0].point.is_run_folder:
        values = {"start": start, "num": len(starts), "x": starts[0].point.x_label}
        return (Fact(kind="start_at_zero", values=values | {"compute": min(value.compute for value in starts)}),)
    return ()


def _mixed(values: Sequence[_Value]) -> tuple[Fact, ...]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    spans: dict[str, dict[tuple[str, str], list[float]]] = {}
    for value in values:
        for column, word in value.point.labels:
            spans.setdefault(column, {}).setdefault((value.point.run, word), []).append(value.compute)
    columns = tuple(column for column, by_word in spans.items() if _overlap(by_word))
    return (Fact(kind="mixed", values={"columns": columns}),) if columns else ()


def _overlap(spans: Mapping[tuple[str, str], Sequence[float]]) -> bool:
    """Return whether the rows of two words of one run span the same compute, as phases of a run would not."""
    # A word with hardly more than one row, such as a date, does not tell curves apart.
    ends = sorted((run, min(computes), max(computes)) for (run, _), computes in spans.items() if len(computes) > 2)
    return any(run == next_run and start < last for (run, _, last), (next_run, start, _) in itertools.pairwise(ends))


def _unusable(name: str, point: Point, problem: str) -> Series:
    return Series(
        name=name,
        compute=_floats(()),
        reward=_floats(()),
        run=None,
        num_samples=None,
        start=None,
        start_sd=0.0,
        holdout_compute=_floats(()),
        holdout_reward=_floats(()),
        evaluation=None,
        x_label=point.x_label,
        y_label=point.y_label,
        problem=problem,
        evaluation_set=point.evaluation_set,
    )


def _floats(values: Any) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)


# Numbers


def _without_nan(points: Sequence[Point]) -> tuple[list[Point], tuple[Fact, ...]]:
    """Drop the rows whose compute or reward is NaN, unless that leaves none; return the rest and what was done.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    kept = [point for point in points if not (is_nan(point.x) or is_nan(point.y))]
    if len(kept) == len(points) or not any(math.isfinite(_number(point.y) or 0.0) for point in kept):
        return list(points), ()
    dropped = [point for point in points if is_nan(point.x) or is_nan(point.y)]
    labels = {point.x_label if is_nan(point.x) else point.y_label for point in dropped}
    values = {"columns": tuple(sorted(labels)), "num": len(dropped), "num_rows": len(points), "place": at(dropped)}
    return kept, (Fact(kind="nan_rows", values=values),)


def _checked(points: Sequence[Point], y_scale: YScale) -> list[_Value]:
    """Return the points with their numbers, the reward on the scale that is fitted."""
    computes = _numbers([point.x for point in points], points, points[0].x_label, "--x")
    rewards = _numbers([point.y for point in points], points, points[0].y_label, "--y")
    in_unit = [scaled(reward, y_scale) for reward in rewards]
    if y_scale != "none":
        pairs = zip(points, in_unit, strict=True)
        outside = [point for point, reward in pairs if not -_ROUNDING <= reward <= 1 + _ROUNDING]
        if outside:
            raise InputError(out_of_range(points[0], rewards, outside, y_scale))
        in_unit = [min(max(reward, 0.0), 1.0) for reward in in_unit]
    together = zip(points, computes, in_unit, strict=True)
    return [_Value(point=point, compute=compute, reward=reward) for point, compute, reward in together]


def _numbers(values: Sequence[Any], points: Sequence[Point], column: str, option: str) -> list[float]:
    numbers = [_number(value) for value in values]
    text = [(value, point) for value, number, point in zip(values, numbers, points, strict=True) if number is None]
    if text:
        shown = repr(text[0][0])
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        places = at([point for _, point in text])
        plain = "0.25" if option == "--y" else "1000.5"
        raise InputError(
            f"{column!r} holds {shown} where a number is needed, at {places}: write plain numbers such as {plain} "
            f"there, or choose another column with {option}."
        )
    known = [number for number in numbers if number is not None]
    bad = [(number, point) for number, point in zip(known, points, strict=True) if not math.isfinite(number)]
    if bad:
        what = " or ".join(sorted({"NaN" if math.isnan(number) else "infinite" for number, _ in bad}))
        places = at([point for _, point in bad])
        words = " ".join(f"--where '{column}!={word}'" for word in sorted({str(number) for number, _ in bad}))
        raise InputError(f"{column!r} is {what} at {places}: remove those rows, or leave them out with {words}.")
    return known


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_amount(first: Point, computes: Sequence[float]) -> None:
    """Raise InputError for the seconds (or milli-, micro- or nanoseconds) since 1970, which only grow by a little."""
    low, high = min(computes), max(computes)
    is_clock = any(unit * _YEAR_2001 <= low < high < unit * _YEAR_2065 for unit in (1.0, 1e3, 1e6, 1e9))
    if is_clock and high - low < _A_LITTLE * low and plain(first.x_label) not in (*FLOPS, *TOKENS):
        raise InputError(
            f"{first.x_label!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: "
            "subtract the time at which training began, or choose another column with --x."
        )


def _check_positive(values: Sequence[_Value], selection: Selection) -> None:
    """Raise InputError for compute at or below 0 that is not the start."""
    negative = [value for value in values if value.compute < 0]
    if negative:
        raise InputError(
            f"compute {negative[0].point.x_label!r} is negative ({negative[0].compute:g}) at "
            f"{at([value.point for value in negative])}: remove those rows, or choose another column with --x."
        )
    zero = [value.point for value in values if value.compute == 0]
    if not zero:
        return
    if selection.start == "first":
        advice = (
            "--start first takes the rows at 0 of one run, so tell the runs apart with --seed or the curves with --by"
        )
    else:
        advice = "rows that are held out lie after the start; choose another column with --x or another --holdout"
    raise InputError(f"compute {zero[0].x_label!r} is zero at {at(zero)}: {advice}.")


# The start


def _split_start(values: Sequence[_Value], selection: Selection) -> tuple[list[_Value], list[_Value]]:
    """Return (rows that are the start, rows to fit). With 'first' the start is each run's first row, if it is early."""
    if selection.start != "first":
        return _parted(values, [_is_before_training(value) for value in values])
    least: dict[str, float] = {}
    for value in values:
        least[value.point.run] = min(value.compute, least.get(value.point.run, math.inf))
    latest = _BEFORE_TRAINING * max(value.compute for value in values)
    is_first = [value.compute == least[value.point.run] and value.compute <= max(latest, 0.0) for value in values]
    labels: dict[str, set[object]] = {}
    for value, label, first in zip(values, telling_labels([value.point for value in values]), is_first, strict=True):
        if first and value.compute <= 0:
            labels.setdefault(value.point.run, set()).add(label)
    # Rows at 0 that differ in words are several curves in one, which averaging would hide; below 0 there is no start.
    hidden = {run for run, words in labels.items() if len(words) > 1 or least[run] < 0}
    return _parted(
        values, [first and value.point.run not in hidden for value, first in zip(values, is_first, strict=True)]
    )


def _is_before_training(value: _Value) -> bool:
    """Return whether a row is of the model before training: compute 0, or a step below 0 as some loggers write it."""
    is_step = plain(value.point.x_label) in STEP
    return value.compute == 0 or (value.compute < 0 and is_step)


def _parted(values: Sequence[_Value], flags: Sequence[bool]) -> tuple[list[_Value], list[_Value]]:
    pairs = list(zip(values, flags, strict=True))
    return [value for value, flag in pairs if flag], [value for value, flag in pairs if not flag]


def _start(starts: Sequence[_Value], selection: Selection) -> tuple[float | None, float | None]:
    """Return the start and its sd: the value given, else the mean over the rows that are the start."""
    if isinstance(selection.start, float | int):
        return float(selection.start), 0.0
    if not starts or selection.start == "fit":
        return None, 0.0
    mean = math.fsum(value.reward for value in starts) / len(starts)
    counts = _counts(starts, selection.y_scale)
    if counts is not None:
        # Binomial: p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        rates = np.clip([value.reward for value in starts], 0.02, 0.98)
        return mean, math.sqrt(float(np.sum(rates * (1 - rates) / counts))) / len(starts)
    rewards = [value.reward for value in starts]
    # The same number in every run is one evaluation, written down several times.
    if len(starts) < _ENOUGH_STARTS or len(set(rewards)) == 1:
        return mean, None
    return mean, float(np.std(rewards, ddof=1)) / math.sqrt(len(starts))


def _counts(values: Sequence[_Value], y_scale: YScale) -> NDArray[np.int64] | None:
    """Return the samples behind each point; None unless every point says, and for rewards that are not rates."""
    counts = [_number(value.point.num_samples) for value in values]
    known = [count for count in counts if count is not None and 1 <= count < math.inf]
    return np.array(known, dtype=np.int64) if len(known) == len(counts) and y_scale != "none" else None
