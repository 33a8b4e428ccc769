"""From tables to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.clock import time_of_day
from scalerl.logs.columns import has_role, is_part, is_rate
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import FILE, curve_names, listed
from scalerl.logs.runs import Curve, curves_from
from scalerl.logs.selection import Selection, same
from scalerl.logs.table import Table
from scalerl.logs.units import (
    SCALES,
    Bounds,
    Cells,
    Floats,
    Mask,
    YScale,
    grouped,
    known,
    label,
    labels,
    logged,
    number,
)

__all__ = ["InputError", "Selection", "Series", "in_shares", "series_from"]

# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# The same for the step of an evaluation beside training rewards: some trainers log before their first step.
_FIRST_STEPS = 0.02
# The share of itself by which a time of day grows during a run.
_A_LITTLE = 0.05
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4
# Share of the rows that repeat another one, from which it is taken for more than chance.
_MANY = 1 / 3
# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0
# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
# A clock that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's points, sorted by run and compute."""

    name: str
    compute: Floats
    reward: Floats
    x_label: str
    y_label: str
    run: NDArray[np.str_] | None = None
    """The run each point belongs to, None where there is one."""
    num_samples: NDArray[np.int64] | None = None
    start: float | None = None
    start_sd: float | None = 0.0
    """Noise of `start`: 0 for one that is given, None for one read that is as noisy as any evaluation of the curve."""
    holdout_compute: Floats = field(default_factory=lambda: np.empty(0))
    holdout_reward: Floats = field(default_factory=lambda: np.empty(0))
    evaluation: NDArray[np.str_] | None = None
    """'prompts_hash@step': equal strings mean the same prompts at the same step."""
    problem: str | None = None
    """Why this curve cannot be fitted, None where it can."""
    key: tuple[tuple[str, str], ...] = ()
    """What sets it apart: columns and their values."""
    evaluation_set: str | None = None
    """The set of a run folder with several: curves of different sets are not compared."""
    y_scale: YScale = "1"
    """The scale of the rewards, which is that of the log: 1, 100 (per cent), pm1 or none (no limits)."""
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
    def bounds(self) -> Bounds:
        """The least and the largest reward there is, None for rewards without limits."""
        return SCALES[self.y_scale]

    def take(self, which: Mask | NDArray[np.intp]) -> "Series":
        """Return the series with only these points, by mask or index; held-out points stay."""
        optional = {name: getattr(self, name) for name in ("run", "num_samples", "evaluation")}
        picked = {name: None if values is None else values[which] for name, values in optional.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], **picked)


def series_from(tables: Sequence[Table], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each set, run or attempt."""
    curves = curves_from(tables, selection)
    built: list[Series] = []
    for name, curve in zip(curve_names([curve.key for curve in curves], selection.labels), curves, strict=True):
        # A file without such columns is shown beside the others, on their axes.
        table = curves[0].rows if curve.problem else curve.rows
        named: dict[str, Any] = {"name": name, "key": curve.key, "x_label": table.x, "y_label": table.y}
        named["evaluation_set"] = dict(curve.key).get("set") if "set" in table.apart else None
        try:
            if curve.problem:
                raise InputError(curve.problem)
            built.append(_series(curve, selection, named))
        except InputError as fault:
            if len(curves) == 1:
                raise
            built.append(Series(compute=np.empty(0), reward=np.empty(0), problem=str(fault), **named))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    # What is put side by side has one unit.
    is_mixed = {"1", "100"} <= {series.y_scale for series in built if not series.problem}
    if not is_mixed:
        return built
    shares = [in_shares(series) if series.y_scale == "100" else series for series in built]
    if isinstance(selection.start, float | int):  # it is one number for all of them, so it is given in shares
        shares = [replace(each, start=float(selection.start)) if each.start is not None else each for each in shares]
    return shares


def in_shares(series: Series) -> Series:
    """Return a curve with limits as shares of what lies between them."""
    if series.bounds is None or series.y_scale == "1":
        return series
    low, width = series.bounds[0], series.bounds[1] - series.bounds[0]
    places = {name: getattr(series, name) for name in ("reward", "holdout_reward", "start")}
    return replace(
        series,
        y_scale="1",
        **{name: None if value is None else (value - low) / width for name, value in places.items()},
        start_sd=None if series.start_sd is None else series.start_sd / width,
    )


def _series(curve: Curve, selection: Selection, names: dict[str, Any]) -> Series:
    name, facts = names["name"], list(curve.rows.facts)
    for option in ("x", "y"):
        columns = sorted({str(getattr(each, option)) for each in curve.tables})
        if len(columns) > 1:
            raise InputError(
                f"the files of {name} use different columns ({listed(columns)}): choose one with --{option}."
            )
    points = _without_repeated(_points(curve.rows, selection, facts), facts)
    points = points.take(np.argsort(points.run, kind="stable"))
    table, x, run, held = points.table, points.x, points.run, points.held
    y, y_scale = _rewards(points, curve.tables, selection.y_scale, facts)
    _check_clock(points)
    if held.all():
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {name} matches --holdout {wanted}: none is left to fit.")
    is_start = _before_training(points, selection)
    if (held | is_start).all():
        raise InputError(f"{name} has no row left to fit besides its start, at {table.where(is_start)}.")
    samples = table.numbers(table.find("num_samples"))
    is_mean = y_scale != "none" and not is_part(table.y or "")
    samples[~((samples >= 1) & (samples < 2**63) & is_mean)] = np.nan
    start, start_sd = _start(y[is_start], samples[is_start], selection, SCALES[y_scale])
    facts += _start_facts(start, points.take(is_start), x[~held], selection)
    reward = curve.tables[0].reward
    is_open = start is None and selection.start is None and y_scale == "1"
    if reward and reward.too_few and is_open and (before := _evaluated_before(curve, table.numbers(table.step))):
        start, start_sd = before.values["start"], None
        facts.append(before)
    facts += _mixed(points, selection)
    prompts = zip(table["prompts_hash"], table[table.step], strict=True)
    evaluation = np.array(["" if None in pair else "@".join(map(label, pair)) for pair in prompts])
    order = np.lexsort((evaluation, y, x, run))
    fitted, late = order[~(held | is_start)[order]], order[held[order]]
    late = late[np.lexsort((y[late], x[late]))]
    return Series(
        compute=x[fitted],
        reward=y[fitted],
        run=run[fitted] if len(set(run[fitted])) > 1 else None,
        num_samples=None if np.isnan(samples[fitted]).any() else samples[fitted].astype(np.int64),
        start=start,
        start_sd=start_sd,
        holdout_compute=x[late],
        holdout_reward=y[late],
        evaluation=evaluation[fitted] if all(evaluation[fitted]) else None,
        y_scale=y_scale,
        facts=tuple(facts),
        **names,
    )


# Which rows count


@dataclass(frozen=True, slots=True)
class Points:
    """The rows of a curve as numbers."""

    table: Table
    x: Floats
    y: Floats
    run: NDArray[np.str_]
    held: Mask
    """Rows that `--holdout` names."""

    def take(self, which: Any) -> "Points":
        """Return some of the points, by mask or index, in the order given."""
        return Points(self.table.take(which), self.x[which], self.y[which], self.run[which], self.held[which])

    @property
    def words(self) -> dict[str, Cells]:
        """The columns of text; none for a run folder, which is one run."""
        table = self.table
        columns = [name for name in table.cells if name not in (FILE, table.seed) and table.kind != "run"]
        return {name: table[name] for name in columns if {str, type(None)} >= set(map(type, table[name]))}


def _points(table: Table, selection: Selection, facts: list[Fact]) -> Points:
    """Return the rows as numbers and their runs, without those that are NaN, unless that leaves none.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    axes = {"x": table.x, "y": table.y}
    numbers = {axis: np.array(list(map(number, table[column])), dtype=np.float64) for axis, column in axes.items()}
    no_x, no_y = ~known(table[table.x]), ~known(table[table.y])
    missing = (no_x | no_y) & np.isfinite(numbers["y"][~(no_x | no_y)]).any()
    for axis, column in axes.items():
        is_odd = ~np.isfinite(numbers[axis]) & ~missing
        if is_odd.any():
            shown = sorted({str(cell)[:40] for cell in table[column][is_odd]})
            options = " ".join(f"--where '{column}!={word}'" for word in shown[:3])
            raise InputError(
                f"{column!r} is {listed(list(map(repr, shown)), 3)} where a finite number is needed, at "
                f"{table.where(is_odd)}: correct or remove those rows, leave them out with {options}, or choose "
                f"another column with --{axis}."
            )
    if missing.any():
        columns = [str(name) for name, gone in ((table.x, no_x), (table.y, no_y & ~no_x)) if gone.any()]
        values = {"columns": tuple(sorted(columns)), "num": int(missing.sum()), "num_rows": len(missing)}
        facts.append(Fact(kind="nan_rows", values=values | {"place": table.where(missing)}))
    held = np.zeros(len(table), dtype=bool)
    if selection.holdout:
        column, value = selection.holdout
        held = same(table[column], value)
    # Files pooled into one curve are different runs, unless the user names the column of runs.
    run = labels(table[selection.seed or FILE])
    points = Points(table, numbers["x"], numbers["y"], run, held).take(~missing)
    return _named_by_seed(points, facts) if table.seed and not selection.seed else points


def _named_by_seed(points: Points, facts: list[Fact]) -> Points:
    """Put the seed into the name of each run where a file holds several."""
    seed = points.table[points.table.seed]
    pairs = list(zip(points.run, labels(np.where(logged(seed), seed, "")), strict=True))
    num_files, num_runs = len(set(points.run)), len(set(pairs))
    if num_runs == num_files:
        return points
    columns = {"columns": (points.table.seed,)}
    if 2 * num_runs > len(pairs):
        facts.append(Fact(kind="seed_has_too_many_values", values=columns))
        return points
    facts.append(Fact(kind="runs_by_column", values=columns))
    named = ["/".join(filter(None, pair if num_files > 1 else pair[1:])) or pair[0] for pair in pairs]
    return replace(points, run=np.array(named))


def _without_repeated(points: Points, facts: list[Fact]) -> Points:
    """Count a value once: drop rows that a log holds twice, and rows that hold a value until there is a new one.

    A value is held where most values stand several times in a row, and hardly one comes again later, as counts of right
    answers do.
    """
    order = np.lexsort((points.x, points.held, points.run))
    computes, rewards = [*zip(points.run.tolist(), points.x.tolist(), strict=True)], points.y.tolist()
    if len(set(computes)) < len(computes):
        samples = map(str, points.table.numbers(points.table.find("num_samples")))
        texts = [*zip(rewards, *points.words.values(), strict=True)]
        rows = zip(computes, samples, points.held, texts, strict=True)
        kind, kept = "repeated_rows", np.array([own[-1] for own in grouped(rows).values()])
        # Few different values, such as 0 and 1 of single answers, are equal without being the same row.
        are_answers = 2 * len(set(rewards)) < len(set(computes))
        kept = order if are_answers or len(kept) >= (1 - _MANY) * len(order) else kept
        counts = Counter(computes[at] for at in kept[~points.held[kept]])
        usual = median(counts.values()) if counts else 0
        # Words that differ have a fact of their own.
        if usual >= 2 and len({words[1:] for words in texts}) == 1 and not are_answers:
            facts.append(Fact(kind="several_per_compute", values={"x": points.table.x, "num": usual}))
    else:
        rows = [
            (computes[at][0], held, rewards[at]) for at, held in zip(order, points.held[order].tolist(), strict=True)
        ]
        begins = np.array([at for at, row in enumerate(rows) if at == 0 or row != rows[at - 1]])
        is_held = len(begins) >= 6 and np.median(np.diff(begins, append=len(rows))) >= 2
        kind, kept = "held_values", order[begins] if is_held and len(set(rows)) >= 0.8 * len(begins) else order
    if len(kept) < len(order):
        facts.append(Fact(kind=kind, values={"num": len(order) - len(kept), "num_rows": len(order)}))
    return points.take(np.sort(kept))


def _mixed(points: Points, selection: Selection) -> list[Fact]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    differing = []
    for column, words in points.words.items():
        groups = grouped(zip(points.run, words, strict=True))
        # A word with hardly more than one row, such as a date, does not separate curves; nor do phases of a run.
        spans = {key: points.x[own] for key, own in groups.items() if key[1] is not None and len(own) > 2}
        ends = sorted((run, own.min(), own.max()) for (run, _), own in spans.items())
        overlaps = any(run == other and begin < last for (run, _, last), (other, begin, _) in itertools.pairwise(ends))
        differing += [column] if overlaps and column not in {*selection.mentioned, *points.table.apart} else []
    return [Fact(kind="mixed", values={"columns": tuple(differing)})] if differing else []


# Numbers


def _rewards(points: Points, tables: Sequence[Table], asked: YScale, facts: list[Fact]) -> tuple[Floats, YScale]:
    """Return the rewards, and their scale: shares, per cent only for what is named as a rate, else none."""
    column, rewards, scale = points.table.y or "", points.y, asked
    low, high = float(rewards.min()), float(rewards.max())
    if asked == "auto":
        # A column has one unit: an arm that stays below 1 % is not a share.
        every = np.concatenate([rewards, *(table.numbers(table.y) for table in tables)])
        low, high = (float(end(every[np.isfinite(every)])) for end in (np.min, np.max))
        is_percent = is_rate(column) and low >= 0 and _MIN_PERCENT <= high <= 100
        scale = "1" if low >= -_ROUNDING and high <= 1 + _ROUNDING else "100" if is_percent else "none"
        values = {"y": column, "low": low, "high": high}
        facts += [Fact(kind="percent" if is_percent else "own_scale", values=values)] if scale != "1" else []
    if (bounds := SCALES[scale]) is None:
        return rewards, scale
    fitted = np.clip(rewards, *bounds)
    outside = np.abs(fitted - rewards) > _ROUNDING * (bounds[1] - bounds[0])
    if outside.any():
        raise InputError(
            f"{column!r} runs from {low:g} to {high:g}, outside [{bounds[0]:g}, {bounds[1]:g}] of --y-scale {scale} at "
            f"{points.table.where(outside)}: leave --y-scale out, and it is read as it is."
        )
    return fitted, scale


def _check_clock(points: Points) -> None:
    """Raise InputError for a time of day, and where compute falls while the step of a run rises.

    Seconds (or milli-, micro- or nanoseconds) since 1970 only grow by a little. A clock that falls began anew, and what
    was spent before is missing from it.
    """
    table, x = points.table, points.x
    low, high = x.min(), x.max()
    is_clock = time_of_day(low) is not None and time_of_day(high) is not None
    if is_clock and 0 < high - low < _A_LITTLE * low and not has_role(str(table.x), "flops", "tokens"):
        raise InputError(
            f"{table.x!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: leave --x "
            "out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )
    if table.kind == "run" or table.x == table.step:
        return
    steps = table.numbers(table.step)
    for own in grouped(zip(table[FILE], points.held, points.run, strict=True)).values():
        own = own[np.argsort(steps[own], kind="stable")]
        rises, gains = np.diff(steps[own]) > 0, np.diff(x[own])
        falls = np.flatnonzero((x[own[1:]] > 0) & (x[own[1:]] < (1 - _MIN_FALL) * x[own[:-1]]))
        # A step without a number, or with two clocks as of runs side by side, proves nothing.
        if len(falls) and (rises | (gains == 0)).all() and not np.isnan(steps[own]).any():
            before, after = own[falls[0]], own[falls[0] + 1]
            raise InputError(
                f"compute {table.x!r} falls from {x[before]:g} to {x[after]:g} at {table.where([after])} "
                f"while the step rises from {steps[before]:g} to {steps[after]:g}: the clock of a resumed run began "
                f"anew. Add what was spent before, or choose a column that goes on, such as --x {table.step}."
            )


# The start


def _before_training(points: Points, selection: Selection) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early. InputError for any other row at or below 0.
    """
    x, column = points.x, points.table.x
    to_fit = np.where(points.held, math.inf, x)
    is_start = (to_fit == 0) | ((to_fit < 0) & has_role(str(column), "step"))
    if selection.start == "first":
        least = {name: to_fit[points.run == name].min() for name in set(points.run)}
        is_first = to_fit == np.array([least[name] for name in points.run])
        is_start = is_first & (x >= 0) & (x <= max(_BEFORE_TRAINING * x[~points.held].max(), 0.0))
    wrong = (x <= 0) & ~is_start
    if wrong.any():
        raise InputError(
            f"compute {column!r} is {x[wrong][0]:g} at {points.table.where(wrong)}, which is neither training nor the "
            "start: remove those rows, or name other columns with --x, --seed or --by."
        )
    return is_start


def _start(y: Floats, samples: Floats, selection: Selection, bounds: Bounds) -> tuple[float | None, float | None]:
    """Return the start and its sd: the value given, else the mean over the rows that are the start."""
    given = selection.start
    if isinstance(given, float | int):
        if not math.isfinite(given) or (bounds and not bounds[0] <= given <= bounds[1]):
            low, high = bounds or (-math.inf, math.inf)
            scale = f"outside [{low:g}, {high:g}], the scale of the rewards"
            raise InputError(f"--start {given:g} is {scale}: give the reward before training, in the unit of the log.")
        return float(given), 0.0
    if not y.size or given == "fit":
        return None, 0.0
    mean = math.fsum(y) / y.size
    if bounds and not np.isnan(samples).any():
        # Binomial: p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        low, width = bounds[0], bounds[1] - bounds[0]
        rates = np.clip((y - low) / width, 0.02, 0.98)
        return mean, width * math.sqrt(math.fsum(rates * (1 - rates) / samples)) / y.size
    # The same number in every run is one evaluation, written down several times.
    if y.size < _ENOUGH_STARTS or len(set(y)) == 1:
        return mean, None
    return mean, float(np.std(y, ddof=1)) / math.sqrt(y.size)


def _start_facts(start: float | None, first: Points, x: Floats, selection: Selection) -> list[Fact]:
    """Return which rows became the start where that is not plain from the options."""
    num, is_first = len(first.x), selection.start == "first"
    if is_first and not num:
        return [Fact(kind="start_is_late", values={"compute": float(x.min())})]
    is_mean = is_first and len(set(first.run)) < num
    is_silent = first.table.kind == "run" or selection.start is not None
    values = {"start": start, "num": num, "compute": float(x.min()), "x": first.table.x}
    return [Fact(kind="start_at_zero", values=values)] if num and (is_mean or not is_silent) else []


def _evaluated_before(curve: Curve, steps: Floats) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    table, *others = curve.tables
    if np.isnan(steps).all() or others or table.kind == "run" or not table.reward or table.reward.kind != "training":
        return None
    early = min(np.nanmin(steps), _FIRST_STEPS * np.nanmax(steps) + 1e-9)
    is_before = table.numbers(table.step) < early
    for name, value in curve.key:
        is_before &= labels(table[name]) == value
    for column, _ in table.reward.too_few:
        values = table.numbers(column)[is_before]
        values = values[(values >= 0) & (values <= 1)]
        if values.size:
            return Fact(kind="start_from_evaluation", values={"start": float(values[0]), "column": column})
    return None
