"""From tables to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.binning import bin_runs
from scalerl.logs.columns import FLOPS, STEP, TOKENS, is_rate, plain
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import CurveKey, curve_names, listed
from scalerl.logs.selection import Point, Selection, label, places_of, points_from, words_of
from scalerl.logs.table import Table
from scalerl.logs.units import YScale, fitting_scale, is_nan, is_number, number, scaled

__all__ = ["InputError", "Selection", "Series", "series_from"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# The same for the step of an evaluation beside training rewards: some trainers log before their first step.
_FIRST_STEPS = 0.02
# Seconds since 1970, of which a run takes a little.
_YEAR_2001, _YEAR_2065 = 1e9, 3e9
_A_LITTLE = 0.05
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4
# Share of the rows that repeat another one, from which it is taken for more than chance.
_MANY = 1 / 3
# A clock that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's points, sorted by run and compute."""

    name: str
    compute: Floats
    reward: Floats
    run: NDArray[np.str_] | None
    """The run each point belongs to, None where there is one."""
    num_samples: NDArray[np.int64] | None
    start: float | None
    start_sd: float | None
    """Noise of `start`: 0 for one that is given, None for one read that is as noisy as any evaluation of the curve."""
    holdout_compute: Floats
    holdout_reward: Floats
    evaluation: NDArray[np.str_] | None
    """'prompts_hash@step': equal strings mean the same prompts at the same step."""
    x_label: str
    y_label: str
    problem: str | None
    """Why this curve cannot be fitted, None where it can."""
    error: Floats | None = None
    """Standard error of each reward, where rewards are means of several."""
    evaluation_set: str | None = None
    """The set of a run folder with several: curves of different sets are not compared."""
    y_scale: YScale = "1"
    """The scale that the log has: 1, 100 (per cent), pm1 or none (no limits)."""
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

    @property
    def bounded(self) -> bool:
        """Whether rewards lie in [0, 1]."""
        return self.y_scale != "none"

    def take(self, which: Mask | NDArray[np.intp]) -> "Series":
        """Return the series with only these points, by mask or index; held-out points stay."""
        optional = {name: getattr(self, name) for name in ("run", "num_samples", "evaluation", "error")}
        picked = {name: None if values is None else values[which] for name, values in optional.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], **picked)


def series_from(tables: Sequence[Table], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each set, run or attempt."""
    _check_start(selection)
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
            values: dict[str, Any] = dict.fromkeys(("run", "num_samples", "start", "evaluation"))
            values |= dict.fromkeys(("compute", "reward", "holdout_compute", "holdout_reward"), np.empty(0))
            built.append(Series(name=name, start_sd=0.0, problem=str(fault), **_labels(points[0]), **values))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    return built


def _labels(point: Point) -> dict[str, Any]:
    sets = dict(point.curve).get("set") if "set" in point.table.apart else None
    return {"x_label": point.table.x, "y_label": point.table.y, "evaluation_set": sets}


def _series(name: str, points: list[Point], selection: Selection) -> Series:
    for option, labels in (("--x", {point.table.x for point in points}), ("--y", {point.table.y for point in points})):
        if len(labels) > 1:
            columns = listed(sorted(map(str, labels)))
            raise InputError(f"the files of {name} use different columns ({columns}): choose one with {option}.")
    tables = {id(point.table): point.table for point in points}.values()
    facts = list({repr(fact): fact for table in tables for fact in table.facts}.values())
    for rule in (_without_nan, _named_by_seed, _without_superseded, _without_repeated, _without_held):
        points = rule(points, facts)
    table = points[0].table
    x = _numbers([point.x for point in points], points, table.x or "", "--x")
    y, y_scale = _rewards(points, selection.y_scale, facts)
    run = np.array([point.run for point in points])
    is_held_out = np.array([point.is_held_out for point in points])
    _check_amount(table.x or "", x)
    _check_clock(points, x)
    if is_held_out.all():
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {name} matches --holdout {wanted}: none is left to fit.")
    is_start = ~is_held_out & _before_training(table, x, run, selection)
    _check_positive(points, np.where(is_start, math.inf, x), selection)
    is_fitted = ~is_held_out & ~is_start
    if not is_fitted.any():
        raise InputError(f"{name} has no row left to fit besides its start, at {_places(points, is_start)}.")
    samples = np.array([number(point.num_samples) or math.nan for point in points])
    samples[~((samples >= 1) & np.isfinite(samples)) | (y_scale == "none")] = math.nan
    start, start_sd = _start(y[is_start], samples[is_start], selection, y_scale)
    facts += _start_facts(start, x, run, is_start, is_fitted, table, selection)
    if start is None and selection.start is None and (before := _evaluated_before(points, y_scale)) is not None:
        start, start_sd = before.values["start"], None
        facts.append(before)
    facts += _mixed(points, x, selection)
    evaluation = np.array([point.evaluation or "" for point in points])
    order = np.lexsort((evaluation, y, x, run))
    fitted, held = order[is_fitted[order]], order[is_held_out[order]]
    held = held[np.lexsort((y[held], x[held]))]
    series = Series(
        name=name,
        compute=x[fitted],
        reward=y[fitted],
        run=run[fitted] if len(set(run[fitted])) > 1 else None,
        num_samples=None if np.isnan(samples[fitted]).any() else samples[fitted].astype(np.int64),
        start=start,
        start_sd=start_sd,
        holdout_compute=x[held],
        holdout_reward=y[held],
        evaluation=evaluation[fitted] if all(evaluation[fitted]) else None,
        problem=None,
        y_scale=y_scale,
        facts=tuple(facts),
        **_labels(points[0]),
    )
    bins = None if selection.bins is None else bin_runs(series.compute, series.reward, series.run, selection.bins)
    if bins is None:
        return series
    return replace(series, num_samples=None, evaluation=None, facts=(*series.facts, bins[1]), **bins[0])


def _places(points: Sequence[Point], which: Mask) -> str:
    return places_of([points[at] for at in np.flatnonzero(which).tolist()])


# Which rows count: each rule returns the points it keeps and appends what it did to the facts


def _without_nan(points: list[Point], facts: list[Fact]) -> list[Point]:
    """Drop the rows whose compute or reward is NaN, unless that leaves none.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    missing = [point for point in points if is_nan(point.x) or is_nan(point.y)]
    kept = [point for point in points if not (is_nan(point.x) or is_nan(point.y))]
    if not missing or not any(math.isfinite(number(point.y) or 0.0) for point in kept):
        return points
    columns = {str(point.table.x if is_nan(point.x) else point.table.y) for point in missing}
    values = {"columns": tuple(sorted(columns)), "num": len(missing), "num_rows": len(points)}
    facts.append(Fact(kind="nan_rows", values=values | {"place": places_of(missing)}))
    return kept


def _named_by_seed(points: list[Point], facts: list[Fact]) -> list[Point]:
    """Put the seed into the name of the run of each point where a file holds several."""
    files, runs = {point.run for point in points}, {(point.run, point.seed) for point in points}
    if len(runs) == len(files):
        return points
    columns = {"columns": tuple(sorted({str(point.table.seed) for point in points if point.seed is not None}))}
    if 2 * len(runs) > len(points):
        facts.append(Fact(kind="seed_has_too_many_values", values=columns))
        return points
    facts.append(Fact(kind="runs_by_column", values=columns))
    return [
        point if point.seed is None else replace(point, run="/".join((point.run, point.seed)[len(files) == 1 :]))
        for point in points
    ]


def _without_superseded(points: list[Point], facts: list[Fact]) -> list[Point]:
    """Drop the points that a resumed attempt of the same run superseded."""
    seen = {(id(point.table), point.at): (point.curve, point.run, point.is_held_out) for point in points}
    replaced: dict[int, int] = {}
    for place, point in enumerate(points):
        by = point.table.superseded[point.at]
        if by is None or (replace(point, at=by).y is None and replace(point, at=by).step == point.step):
            continue  # the checkpoint was evaluated once more, not trained
        # The row itself may have no reward: the next one that has shows to which run it belongs.
        later = next((at for at in range(by, len(point.table.rows)) if (id(point.table), at) in seen), None)
        if later is not None and seen[(id(point.table), later)] == (point.curve, point.run, point.is_held_out):
            replaced[place] = by
    if not replaced:
        return points
    place, by = min(replaced.items(), key=lambda pair: pair[1])
    first, last = replace(points[place], at=by), replace(points[place], at=by - 1)
    values = {"from_step": last.step or 0.0, "to_step": first.step or 0.0, "place": places_of([first])}
    values |= {"times": len(set(replaced.values())), "num": len(replaced)}
    facts.append(Fact(kind="superseded", values=values))
    return [point for place, point in enumerate(points) if place not in replaced]


def _without_repeated(points: list[Point], facts: list[Fact]) -> list[Point]:
    """Drop the rows that a log holds twice; note several evaluations per compute.

    Rewards with few different values, such as 0 and 1 of single answers, are equal without being the same row.
    """
    computes = {(point.run, str(point.x)) for point in points}
    if len(computes) == len(points) or 2 * len({str(point.y) for point in points}) < len(computes):
        return points
    words = {id(table): words_of(table) for table in {id(point.table): point.table for point in points}.values()}
    texts = [tuple(str(point.row.get(column)) for column in words[id(point.table)]) for point in points]
    once = {
        (point.run, str(point.x), str(point.y), str(point.num_samples), point.is_held_out, text): point
        for point, text in zip(points, texts, strict=True)
    }
    if len(points) - len(once) > _MANY * len(points):
        values = {"num": len(points) - len(once), "num_rows": len(points)}
        facts.append(Fact(kind="repeated_rows", values=values))
        points = list(once.values())
    counts = Counter((point.run, str(point.x)) for point in points if not point.is_held_out)
    num = median(counts.values()) if counts else 0
    # Words that differ have a fact of their own.
    if num >= 2 and len(set(texts)) == 1:
        facts.append(Fact(kind="several_per_compute", values={"x": points[0].table.x, "num": num}))
    return points


def _without_held(points: list[Point], facts: list[Fact]) -> list[Point]:
    """Keep the first of rows that only repeat the value of the row before them, as loggers do between two values.

    Most values must stand several times in a row, and hardly one may come again later: counts of right answers do.
    """
    ordered = sorted(points, key=lambda point: (point.run, point.is_held_out, number(point.x) or 0.0))
    texts = [(point.run, point.is_held_out, str(point.y)) for point in ordered]
    if len({(point.run, str(point.x)) for point in points}) < len(points):
        return points  # several rows per compute, of which some agree
    lengths = [len(list(stretch)) for _, stretch in itertools.groupby(texts)]
    if len(lengths) < 6 or median(lengths) < 2 or len(set(texts)) < 0.8 * len(lengths):
        return points
    facts.append(Fact(kind="held_values", values={"num": len(lengths), "num_rows": len(points)}))
    return [ordered[end - length] for length, end in zip(lengths, itertools.accumulate(lengths), strict=True)]


def _mixed(points: Sequence[Point], x: Floats, selection: Selection) -> list[Fact]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    tables = {id(point.table): point.table for point in points}.values()
    known = selection.mentioned.union(*(table.apart for table in tables))
    columns = dict.fromkeys(column for table in tables for column in words_of(table) if column not in known)
    differing = []
    for column in columns:
        spans: dict[tuple[str, str], list[float]] = {}
        for point, compute in zip(points, x, strict=True):
            if (word := point.row.get(column)) is not None:
                spans.setdefault((point.run, str(word)), []).append(compute)
        # A word with hardly more than one row, such as a date, does not separate curves; nor do phases of a run.
        ends = sorted((run, min(own), max(own)) for (run, _), own in spans.items() if len(own) > 2)
        if any(run == other and begin < last for (run, _, last), (other, begin, _) in itertools.pairwise(ends)):
            differing.append(column)
    return [Fact(kind="mixed", values={"columns": tuple(differing)})] if differing else []


# Numbers


def _rewards(points: Sequence[Point], asked: YScale, facts: list[Fact]) -> tuple[Floats, YScale]:
    """Return the rewards on the scale that is fitted, and that scale."""
    column = points[0].table.y or ""
    rewards = _numbers([point.y for point in points], points, column, "--y")
    span = {"y": column, "low": float(rewards.min()), "high": float(rewards.max())}
    scale = asked
    if asked == "auto":
        is_unit = span["low"] >= -_ROUNDING and span["high"] <= 1 + _ROUNDING
        scale = "1" if is_unit else fitting_scale(span["low"], span["high"], is_rate=is_rate(column))
        if scale != "1":
            facts.append(Fact(kind="percent" if scale == "100" else "own_scale", values=span))
    fitted = scaled(rewards, scale)
    if scale == "none":
        return fitted, scale
    outside = (fitted < -_ROUNDING) | (fitted > 1 + _ROUNDING)
    if outside.any():
        raise InputError(
            f"{column!r} runs from {span['low']:g} to {span['high']:g}, outside [0, 1] after --y-scale {scale} at "
            f"{_places(points, outside)}: leave --y-scale out, and it is read as it is."
        )
    return np.clip(fitted, 0.0, 1.0), scale


def _numbers(values: Sequence[Any], points: Sequence[Point], column: str, option: str) -> Floats:
    numbers = [number(value) for value in values]
    if None in numbers:
        shown = repr(values[numbers.index(None)])
        is_text = np.array([value is None for value in numbers])
        raise InputError(
            f"{column!r} holds {shown if len(shown) <= 40 else shown[:40] + '...'} where a number is needed, at "
            f"{_places(points, is_text)}: write plain numbers such as {'0.25' if option == '--y' else '1000.5'} there, "
            f"or choose another column with {option}."
        )
    known = np.array(numbers, dtype=np.float64)
    bad = ~np.isfinite(known)
    if bad.any():
        words = sorted({str(value) for value in known[bad]})
        what = " or ".join(sorted({"NaN" if word == "nan" else "infinite" for word in words}))
        options = " ".join(f"--where '{column}!={word}'" for word in words)
        raise InputError(
            f"{column!r} is {what} at {_places(points, bad)}: remove those rows, or leave them out with {options}."
        )
    return known


def _check_start(selection: Selection) -> None:
    start = selection.start
    is_number = isinstance(start, float | int)
    if is_number and not (math.isfinite(start) and (selection.y_scale in ("auto", "none") or 0 <= start <= 1)):
        raise InputError(
            f"--start {start:g} is outside [0, 1]: give it on the scale that is fitted, such as --start 0.4."
        )


def _check_amount(column: str, x: Floats) -> None:
    """Raise InputError for the seconds (or milli-, micro- or nanoseconds) since 1970, which only grow by a little."""
    low, high = x.min(), x.max()
    is_clock = any(unit * _YEAR_2001 <= low < high < unit * _YEAR_2065 for unit in (1.0, 1e3, 1e6, 1e9))
    if is_clock and high - low < _A_LITTLE * low and plain(column) not in (*FLOPS, *TOKENS):
        raise InputError(
            f"{column!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: leave --x "
            "out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )


def _check_clock(points: Sequence[Point], x: Floats) -> None:
    """Raise InputError where compute falls while the step of a run rises: what was spent before is missing from it."""
    runs: dict[tuple[Any, ...], dict[float, set[int]]] = {}
    for at, point in enumerate(points):
        own = runs.setdefault((point.table.path, point.run, point.is_held_out), {})
        own.setdefault(math.nan if point.step is None else point.step, set()).add(at)
    for by_step in runs.values():
        # A step without a number, or with two clocks as of runs side by side, proves nothing.
        if any(step != step or len(set(x[list(rows)])) > 1 for step, rows in by_step.items()):
            continue
        for before, after in itertools.pairwise(sorted(by_step)):
            spent, then = (x[min(by_step[step])] for step in (before, after))
            if 0 < then < (1 - _MIN_FALL) * spent:
                point = points[min(by_step[after])]
                raise InputError(
                    f"compute {point.table.x!r} falls from {spent:g} to {then:g} at {places_of([point])} while the "
                    f"step rises from {before:g} to {after:g}: the clock of a resumed run began anew. Add what was "
                    f"spent before, or choose a column that goes on, such as --x {point.table.step}."
                )


def _check_positive(points: Sequence[Point], x: Floats, selection: Selection) -> None:
    """Raise InputError for compute at or below 0 that is not the start."""
    column = points[0].table.x
    if (x < 0).any():
        raise InputError(
            f"compute {column!r} is negative ({x[x < 0][0]:g}) at {_places(points, x < 0)}: remove those rows, or "
            "choose another column with --x."
        )
    if (x == 0).any():
        advice = (
            "--start first takes one row at 0 of each run: name the column of runs with --seed, or of curves with --by"
            if selection.start == "first"
            else "rows that are held out lie after the start; choose another column with --x or another --holdout"
        )
        raise InputError(f"compute {column!r} is zero at {_places(points, x == 0)}: {advice}.")


# The start


def _before_training(table: Table, x: Floats, run: NDArray[np.str_], selection: Selection) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early.
    """
    if selection.start != "first":
        return (x == 0) | ((x < 0) & (plain(table.x or "") in STEP))
    least = np.array([x[run == name].min() for name in run])
    return (x == least) & (x >= 0) & (x <= max(_BEFORE_TRAINING * x.max(), 0.0))


def _start(y: Floats, samples: Floats, selection: Selection, y_scale: YScale) -> tuple[float | None, float | None]:
    """Return the start and its sd: the value given, else the mean over the rows that are the start."""
    given = selection.start
    if isinstance(given, float | int):
        return (given / 100 if y_scale == "100" and given > 1 else float(given)), 0.0
    if not y.size or given == "fit":
        return None, 0.0
    mean = math.fsum(y) / y.size
    if not np.isnan(samples).any():
        # Binomial: p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        rates = np.clip(y, 0.02, 0.98)
        return mean, math.sqrt(float(np.sum(rates * (1 - rates) / samples))) / y.size
    # The same number in every run is one evaluation, written down several times.
    if y.size < _ENOUGH_STARTS or len(set(y)) == 1:
        return mean, None
    return mean, float(np.std(y, ddof=1)) / math.sqrt(y.size)


def _start_facts(
    start: float | None,
    x: Floats,
    run: NDArray[np.str_],
    is_start: Mask,
    is_fitted: Mask,
    table: Table,
    selection: Selection,
) -> list[Fact]:
    """Return which rows became the start where that is not plain from the options."""
    num = int(is_start.sum())
    if selection.start == "first" and not num:
        return [Fact(kind="start_is_late", values={"compute": float(x[is_fitted].min())})]
    if selection.start == "first" and len(set(run[is_start])) < num:
        return [Fact(kind="start_is_a_mean", values={"start": start, "num": num})]
    if selection.start is None and num and table.kind != "run":
        values = {"start": start, "num": num, "x": table.x, "compute": float(x[is_start].min())}
        return [Fact(kind="start_at_zero", values=values)]
    return []


def _evaluated_before(points: Sequence[Point], y_scale: YScale) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    table = points[0].table
    steps = [point.step for point in points if point.step is not None]
    is_training = table.reward is not None and table.reward.kind == "training" and y_scale == "1"
    if not is_training or not steps or any(point.table is not table for point in points):
        return None
    mine = [(column, value) for column, value in points[0].curve if column in table.apart]
    rows = [row for row in table.rows if all(label(row.get(column)) == value for column, value in mine)]
    for column, _ in table.reward.too_few if table.reward else ():
        for row in rows:
            step, value = row.get(table.step or ""), row.get(column)
            is_early = is_number(step) and step < min(steps) and step <= _FIRST_STEPS * max(steps)
            if is_early and is_number(value) and 0 <= value <= 1:
                return Fact(kind="start_from_evaluation", values={"start": float(value), "column": column})
    return None
