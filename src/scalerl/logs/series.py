"""From tables to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.binning import bin_runs
from scalerl.logs.columns import FLOPS, STEP, TOKENS, is_rate, plain
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import FILE, CurveKey, curve_names, listed
from scalerl.logs.selection import Point, Selection, label, places_of, points_from
from scalerl.logs.table import Table
from scalerl.logs.units import YScale, fitting_scale, is_nan, is_number, number, scaled

__all__ = ["InputError", "Selection", "Series", "series_from"]

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

    @property
    def run(self) -> str:
        return self.point.run

    @property
    def evaluation(self) -> str | None:
        row = self.point.row
        prompts, step = row.get("prompts_hash"), row.get(self.point.table.step or "step")
        return None if prompts is None or step is None else f"{label(prompts)}@{label(step)}"


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
            none = np.array([], dtype=np.float64)
            values: dict[str, Any] = dict.fromkeys(("compute", "reward", "holdout_compute", "holdout_reward"), none)
            values |= dict.fromkeys(("run", "num_samples", "start", "evaluation"))
            built.append(Series(name=name, start_sd=0.0, problem=str(fault), **_labels(points[0]), **values))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    return built


def _labels(point: Point) -> dict[str, Any]:
    sets = [value for column, value in point.curve if column == "set" and column in point.table.apart]
    return {"x_label": point.table.x, "y_label": point.table.y, "evaluation_set": sets[0] if sets else None}


def _series(name: str, points: Sequence[Point], selection: Selection) -> Series:
    for option, labels in (("--x", {point.table.x for point in points}), ("--y", {point.table.y for point in points})):
        if len(labels) > 1:
            columns = listed(sorted(map(str, labels)))
            raise InputError(f"the files of {name} use different columns ({columns}): choose one with {option}.")
    tables = {id(point.table): point.table for point in points}.values()
    found = list({repr(fact): fact for table in tables for fact in table.facts}.values())
    for rule in (_without_nan, _split_by_seed, _without_superseded, _without_repeated, _without_held):
        points, on_rule = rule(points)
        found += on_rule
    values, y_scale = _checked(points, selection.y_scale)
    if selection.y_scale == "auto" and y_scale != "1":
        rewards = [number(point.y) or 0.0 for point in points]
        on_scale = {"y": points[0].table.y, "low": min(rewards), "high": max(rewards)}
        found.append(Fact(kind="percent" if y_scale == "100" else "own_scale", values=on_scale))
    _check_amount(points[0].table.x or "", [value.compute for value in values])
    _check_clock(values)
    held_out = [value for value in values if value.point.is_held_out]
    to_fit = [value for value in values if not value.point.is_held_out]
    if not to_fit:
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {name} matches --holdout {wanted}: none is left to fit.")
    starts, fitted = _split_start(to_fit, selection)
    _check_positive([*fitted, *held_out], selection)
    if not fitted:
        places = places_of([value.point for value in starts])
        raise InputError(f"{name} has no row left to fit besides its start, at {places}.")
    start, start_sd = _start(starts, selection, y_scale)
    found += _start_facts(start, starts, fitted, selection)
    if start is None and selection.start is None and (before := _evaluated_before(fitted, y_scale)) is not None:
        start, start_sd = before.values["start"], None
        found.append(before)
    found += _mixed([*fitted, *held_out], selection)
    fitted.sort(key=lambda value: (value.run, value.compute, value.reward, value.evaluation or ""))
    held_out.sort(key=lambda value: (value.compute, value.reward))
    runs = [value.run for value in fitted]
    evaluations = [value.evaluation for value in fitted]
    series = Series(
        name=name,
        compute=np.array([value.compute for value in fitted]),
        reward=np.array([value.reward for value in fitted]),
        run=np.array(runs) if len(set(runs)) > 1 else None,
        num_samples=_counts(fitted, y_scale),
        start=start,
        start_sd=start_sd,
        holdout_compute=np.array([value.compute for value in held_out], dtype=np.float64),
        holdout_reward=np.array([value.reward for value in held_out], dtype=np.float64),
        evaluation=np.array(evaluations) if all(evaluations) else None,
        problem=None,
        y_scale=y_scale,
        facts=tuple(found),
        **_labels(points[0]),
    )
    bins = None if selection.bins is None else bin_runs(series.compute, series.reward, series.run, selection.bins)
    if bins is None:
        return series
    means = {"compute": bins.compute, "reward": bins.reward, "run": bins.run, "error": bins.error}
    return replace(series, num_samples=None, evaluation=None, facts=(*series.facts, bins.fact), **means)


# Which rows count


Kept = tuple[list[Point], list[Fact]]


def _without_nan(points: Sequence[Point]) -> Kept:
    """Drop the rows whose compute or reward is NaN, unless that leaves none.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    dropped = [point for point in points if is_nan(point.x) or is_nan(point.y)]
    kept = [point for point in points if not (is_nan(point.x) or is_nan(point.y))] if dropped else list(points)
    if not dropped or not any(math.isfinite(number(point.y) or 0.0) for point in kept):
        return list(points), []
    columns = {point.table.x if is_nan(point.x) else point.table.y for point in dropped}
    values = {"columns": tuple(sorted(map(str, columns))), "num": len(dropped), "num_rows": len(points)}
    return kept, [Fact(kind="nan_rows", values=values | {"place": places_of(dropped)})]


def _split_by_seed(points: Sequence[Point]) -> Kept:
    """Put the seed into the name of the run of each point where a file holds several."""
    files = {point.run for point in points}
    runs = {(point.run, point.seed) for point in points}
    if len(runs) == len(files):
        return list(points), []
    columns = {"columns": tuple(sorted({str(point.table.seed) for point in points if point.seed is not None}))}
    if 2 * len(runs) > len(points):
        return list(points), [Fact(kind="seed_has_too_many_values", values=columns)]
    named = [
        point if point.seed is None else replace(point, run="/".join((point.run, point.seed)[len(files) == 1 :]))
        for point in points
    ]
    return named, [Fact(kind="runs_by_column", values=columns)]


def _without_superseded(points: Sequence[Point]) -> Kept:
    """Drop the points that a resumed attempt of the same run superseded."""
    seen = {(id(point.table), point.at): (point.curve, point.run, point.is_held_out) for point in points}
    dropped: list[tuple[Point, int]] = []
    for point in points:
        by = point.table.superseded[point.at]
        if by is not None and replace(point, at=by).y is None and replace(point, at=by).step == point.step:
            continue  # the checkpoint was evaluated once more, not trained
        while by is not None and (id(point.table), by) not in seen and by + 1 < len(point.table.rows):
            by += 1  # the row itself may have no reward: the next one that has says to which run it belongs
        if by is not None and seen.get((id(point.table), by)) == (point.curve, point.run, point.is_held_out):
            dropped.append((point, by))
    if not dropped:
        return list(points), []
    gone = {(id(point.table), point.at) for point, _ in dropped}
    point, by = min(dropped, key=lambda pair: pair[1])
    first, last = replace(point, at=by), replace(point, at=by - 1)
    values = {
        "from_step": last.step or 0.0,
        "to_step": first.step or 0.0,
        "place": places_of([first]),
        "times": len({at for _, at in dropped}),
        "num": len(dropped),
    }
    return [point for point in points if (id(point.table), point.at) not in gone], [
        Fact(kind="superseded", values=values)
    ]


def _without_repeated(points: Sequence[Point]) -> Kept:
    """Drop the rows that a log holds twice; note several evaluations per compute.

    Rewards with few different values, such as 0 and 1 of single answers, are equal without being the same row.
    """
    computes = {(point.run, str(point.x)) for point in points}
    if len(computes) == len(points) or 2 * len({str(point.y) for point in points}) < len(computes):
        return list(points), []
    words = {id(table): _words(table) for table in {id(point.table): point.table for point in points}.values()}

    def told(point: Point) -> tuple[str, ...]:
        return tuple(str(point.row.get(column)) for column in words[id(point.table)])

    once = {
        (point.run, str(point.x), str(point.y), str(_samples(point)), point.is_held_out, told(point)): point
        for point in points
    }
    facts = []
    if len(points) - len(once) > _MANY * len(points):
        values = {"num": len(points) - len(once), "num_rows": len(points)}
        facts.append(Fact(kind="repeated_rows", values=values))
        points = list(once.values())
    counts = Counter((point.run, str(point.x)) for point in points if not point.is_held_out)
    num = median(counts.values()) if counts else 0
    # Words that differ have a fact of their own.
    if num >= 2 and len({told(point) for point in points}) == 1:
        facts.append(Fact(kind="several_per_compute", values={"x": points[0].table.x, "num": num}))
    return list(points), facts


def _without_held(points: Sequence[Point]) -> Kept:
    """Keep the first of rows that only repeat the value of the row before them, as loggers do between two values.

    Most values must stand several times in a row, and hardly one may come again later: counts of right answers do.
    """
    runs: dict[tuple[str, bool], list[Point]] = {}
    for point in points:
        runs.setdefault((point.run, point.is_held_out), []).append(point)
    firsts: list[Point] = []
    lengths: list[int] = []
    distinct = 0
    for own in runs.values():
        own.sort(key=lambda point: number(point.x) or 0.0)
        stretches = [list(stretch) for _, stretch in itertools.groupby(own, key=lambda point: str(point.y))]
        firsts += [stretch[0] for stretch in stretches]
        lengths += [len(stretch) for stretch in stretches]
        distinct += len({str(point.y) for point in own})
        if len({str(point.x) for point in own}) < len(own):
            return list(points), []  # several rows per compute, of which some agree
    if len(lengths) < 6 or median(lengths) < 2 or distinct < 0.8 * len(lengths):
        return list(points), []
    return firsts, [Fact(kind="held_values", values={"num": len(firsts), "num_rows": len(points)})]


def _words(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if all(isinstance(row.get(column), str | None) for row in table.rows)]


def _mixed(values: Sequence[_Value], selection: Selection) -> list[Fact]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    columns: dict[str, None] = {}
    for table in (value.point.table for value in {id(value.point.table): value for value in values}.values()):
        known = {*selection.mentioned, *table.apart}
        columns |= dict.fromkeys(column for column in _words(table) if column not in known)
    differing = []
    for column in columns:
        spans: dict[tuple[str, str], list[float]] = {}
        for value in values:
            if (word := value.point.row.get(column)) is not None:
                spans.setdefault((value.run, str(word)), []).append(value.compute)
        if _overlap(spans):
            differing.append(column)
    return [Fact(kind="mixed", values={"columns": tuple(differing)})] if differing else []


def _overlap(spans: Mapping[tuple[str, str], Sequence[float]]) -> bool:
    """Return whether the rows of two words of one run span the same compute, as phases of a run would not."""
    # A word with hardly more than one row, such as a date, does not separate curves.
    ends = sorted((run, min(computes), max(computes)) for (run, _), computes in spans.items() if len(computes) > 2)
    return any(run == next_run and start < last for (run, _, last), (next_run, start, _) in itertools.pairwise(ends))


# Numbers


def _checked(points: Sequence[Point], asked: YScale) -> tuple[list[_Value], YScale]:
    """Return the points with their numbers, the reward on the scale that is fitted, and that scale."""
    table = points[0].table
    computes = _numbers([point.x for point in points], points, table.x or "", "--x")
    rewards = _numbers([point.y for point in points], points, table.y or "", "--y")
    near_unit = [min(max(reward, 0.0), 1.0) if -_ROUNDING <= reward <= 1 + _ROUNDING else reward for reward in rewards]
    scale = fitting_scale(near_unit, is_rate=is_rate(table.y or "")) if asked == "auto" else asked
    fitted = [scaled(reward, scale) for reward in rewards]
    if scale != "none":
        pairs = zip(points, fitted, strict=True)
        outside = [point for point, reward in pairs if not -_ROUNDING <= reward <= 1 + _ROUNDING]
        if outside:
            raise InputError(
                f"{table.y!r} runs from {min(rewards):g} to {max(rewards):g}, outside [0, 1] after --y-scale {scale} "
                f"at {places_of(outside)}: leave --y-scale out, and it is read as it is."
            )
        fitted = [min(max(reward, 0.0), 1.0) for reward in fitted]
    together = zip(points, computes, fitted, strict=True)
    return [_Value(point=point, compute=compute, reward=reward) for point, compute, reward in together], scale


def _numbers(values: Sequence[Any], points: Sequence[Point], column: str, option: str) -> list[float]:
    numbers = [number(value) for value in values]
    text = [(value, point) for value, known, point in zip(values, numbers, points, strict=True) if known is None]
    if text:
        shown = repr(text[0][0])
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        plain_number = "0.25" if option == "--y" else "1000.5"
        raise InputError(
            f"{column!r} holds {shown} where a number is needed, at {places_of([point for _, point in text])}: write "
            f"plain numbers such as {plain_number} there, or choose another column with {option}."
        )
    known = [value for value in numbers if value is not None]
    bad = [(value, point) for value, point in zip(known, points, strict=True) if not math.isfinite(value)]
    if bad:
        what = " or ".join(sorted({"NaN" if math.isnan(value) else "infinite" for value, _ in bad}))
        places = places_of([point for _, point in bad])
        words = " ".join(f"--where '{column}!={word}'" for word in sorted({str(value) for value, _ in bad}))
        raise InputError(f"{column!r} is {what} at {places}: remove those rows, or leave them out with {words}.")
    return known


def _check_start(selection: Selection) -> None:
    start = selection.start
    if not isinstance(start, float | int):
        return
    if not math.isfinite(start) or (selection.y_scale not in ("auto", "none") and not 0 <= start <= 1):
        raise InputError(
            f"--start {start:g} is outside [0, 1]: give it on the scale that is fitted, such as --start 0.4."
        )


def _check_amount(column: str, computes: Sequence[float]) -> None:
    """Raise InputError for the seconds (or milli-, micro- or nanoseconds) since 1970, which only grow by a little."""
    low, high = min(computes), max(computes)
    is_clock = any(unit * _YEAR_2001 <= low < high < unit * _YEAR_2065 for unit in (1.0, 1e3, 1e6, 1e9))
    if is_clock and high - low < _A_LITTLE * low and plain(column) not in (*FLOPS, *TOKENS):
        raise InputError(
            f"{column!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: leave --x "
            "out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )


def _check_clock(values: Sequence[_Value]) -> None:
    """Raise InputError where compute falls while the step of a run rises: what was spent before is missing from it."""
    runs: dict[tuple[Any, ...], list[_Value]] = {}
    for value in values:
        words = tuple(str(value.point.row.get(column)) for column in value.point.table.apart)
        runs.setdefault((value.point.table.path, value.run, value.point.is_held_out, words), []).append(value)
    for own in runs.values():
        if any(value.point.step is None for value in own):
            continue
        rows = sorted(own, key=lambda value: value.point.step or 0.0)
        spent = {value.point.step: value.compute for value in rows}
        if any(value.compute != spent[value.point.step] for value in rows):
            continue  # several runs side by side, each with its own clock
        for before, after in itertools.pairwise(rows):
            if 0 < after.compute < (1 - _MIN_FALL) * before.compute:
                table = after.point.table
                raise InputError(
                    f"compute {table.x!r} falls from {before.compute:g} to {after.compute:g} at "
                    f"{places_of([after.point])} while the step rises from {before.point.step:g} to "
                    f"{after.point.step:g}, as where a run is resumed and its clock begins anew: add what was spent "
                    f"before to the rows from there on, or choose a column that goes on, such as --x {table.step}."
                )


def _check_positive(values: Sequence[_Value], selection: Selection) -> None:
    """Raise InputError for compute at or below 0 that is not the start."""
    below = [value for value in values if value.compute <= 0]
    if not below:
        return
    column, places = below[0].point.table.x, places_of([value.point for value in below])
    if any(value.compute < 0 for value in below):
        negative = [value for value in below if value.compute < 0]
        raise InputError(
            f"compute {column!r} is negative ({negative[0].compute:g}) at "
            f"{places_of([value.point for value in negative])}: remove those rows, or choose another column with --x."
        )
    advice = (
        "--start first takes the rows at 0 of one run, so name the column of runs with --seed or of curves with --by"
        if selection.start == "first"
        else "rows that are held out lie after the start; choose another column with --x or another --holdout"
    )
    raise InputError(f"compute {column!r} is zero at {places}: {advice}.")


# The start


def _split_start(values: Sequence[_Value], selection: Selection) -> tuple[list[_Value], list[_Value]]:
    """Return (rows that are the start, rows to fit). With 'first' the start is each run's first row, if it is early."""
    if selection.start != "first":
        flags = [_is_before_training(value) for value in values]
    else:
        least: dict[str, float] = {}
        for value in values:
            least[value.run] = min(value.compute, least.get(value.run, math.inf))
        latest = max(_BEFORE_TRAINING * max(value.compute for value in values), 0.0)
        first = [value for value in values if value.compute == least[value.run] and value.compute <= latest]
        hidden = {run for run in least if least[run] < 0} | _mixed_starts(first, selection)
        flags = [value in first and value.run not in hidden for value in values]
    starts = [value for value, flag in zip(values, flags, strict=True) if flag]
    return starts, [value for value, flag in zip(values, flags, strict=True) if not flag]


def _mixed_starts(first: Sequence[_Value], selection: Selection) -> set[str]:
    """Return the runs whose rows at 0 differ in words: several curves in one, which averaging would hide."""
    words: dict[str, set[tuple[str, ...]]] = {}
    for value in first:
        if value.compute <= 0:
            table = value.point.table
            columns = [column for column in _words(table) if column not in {*selection.mentioned, *table.apart}]
            # A word of its own in every row, such as a date, does not separate curves.
            told = [column for column in columns if 2 * len({row.get(column) for row in table.rows}) <= len(table.rows)]
            words.setdefault(value.run, set()).add(tuple(str(value.point.row.get(column)) for column in told))
    return {run for run, told in words.items() if len(told) > 1}


def _is_before_training(value: _Value) -> bool:
    """Return whether a row is of the model before training: compute 0, or a step below 0 as some loggers write it."""
    return value.compute == 0 or (value.compute < 0 and plain(value.point.table.x or "") in STEP)


def _start(starts: Sequence[_Value], selection: Selection, y_scale: YScale) -> tuple[float | None, float | None]:
    """Return the start and its sd: the value given, else the mean over the rows that are the start."""
    if isinstance(selection.start, float | int):
        is_percent = y_scale == "100" and selection.start > 1
        return (selection.start / 100 if is_percent else float(selection.start)), 0.0
    if not starts or selection.start == "fit":
        return None, 0.0
    rewards = [value.reward for value in starts]
    mean = math.fsum(rewards) / len(starts)
    counts = _counts(starts, y_scale)
    if counts is not None:
        # Binomial: p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        rates = np.clip(rewards, 0.02, 0.98)
        return mean, math.sqrt(float(np.sum(rates * (1 - rates) / counts))) / len(starts)
    # The same number in every run is one evaluation, written down several times.
    if len(starts) < _ENOUGH_STARTS or len(set(rewards)) == 1:
        return mean, None
    return mean, float(np.std(rewards, ddof=1)) / math.sqrt(len(starts))


def _start_facts(
    start: float | None, starts: Sequence[_Value], fitted: Sequence[_Value], selection: Selection
) -> list[Fact]:
    """Say which rows became the start where that is not plain from the options."""
    if selection.start == "first" and not starts:
        return [Fact(kind="start_is_late", values={"compute": min(value.compute for value in fitted)})]
    if selection.start == "first" and len({value.run for value in starts}) < len(starts):
        return [Fact(kind="start_is_a_mean", values={"start": start, "num": len(starts)})]
    if selection.start is None and starts and starts[0].point.table.kind != "run":
        values = {"start": start, "num": len(starts), "x": starts[0].point.table.x}
        return [Fact(kind="start_at_zero", values=values | {"compute": min(value.compute for value in starts)})]
    return []


def _evaluated_before(fitted: Sequence[_Value], y_scale: YScale) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    table = fitted[0].point.table
    if table.reward is None or table.reward.kind != "training" or table.step is None or y_scale != "1":
        return None
    steps = [value.point.step for value in fitted if value.point.table is table and value.point.step is not None]
    if not steps or len({id(value.point.table) for value in fitted}) > 1:
        return None
    latest = _FIRST_STEPS * max(steps)
    mine = {column: value for column, value in fitted[0].point.curve if column in table.apart}
    for column, _ in table.reward.too_few:
        for row in table.rows:
            step, value = row.get(table.step), row.get(column)
            is_mine = all(label(row.get(name)) == wanted for name, wanted in mine.items())
            if (
                is_mine
                and is_number(step)
                and is_number(value)
                and step < min(steps)
                and step <= latest
                and 0 <= value <= 1
            ):
                return Fact(kind="start_from_evaluation", values={"start": float(value), "column": column})
    return None


def _samples(point: Point) -> Any:
    return point.row.get(point.table.num_samples or "num_samples")


def _counts(values: Sequence[_Value], y_scale: YScale) -> NDArray[np.int64] | None:
    """Return the samples behind each point; None unless every point says, and for rewards that are not rates."""
    counts = [number(_samples(value.point)) for value in values]
    known = [count for count in counts if count is not None and 1 <= count < math.inf]
    return np.array(known, dtype=np.int64) if len(known) == len(counts) and y_scale != "none" else None
