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
from scalerl.logs.clock import time_of_day
from scalerl.logs.columns import FLOPS, STEP, TOKENS, grouped, is_rate, label, plain
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import curve_names, listed
from scalerl.logs.selection import Points, Selection, curves_from, words_of
from scalerl.logs.table import Table
from scalerl.logs.units import SCALES, Bounds, YScale, fitting_scale, is_nan, number, numbers

__all__ = ["InputError", "Selection", "Series", "in_shares", "series_from"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
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
    for name, (key, points) in zip(curve_names(list(curves), selection.labels), curves.items(), strict=True):
        table = points.table
        labels: dict[str, Any] = {"name": name, "key": key, "x_label": table.x, "y_label": table.y}
        labels["evaluation_set"] = dict(key).get("set") if "set" in table.apart else None
        try:
            built.append(_series(points, selection, labels))
        except InputError as fault:
            if len(curves) == 1:
                raise
            values: dict[str, Any] = dict.fromkeys(("run", "num_samples", "start", "evaluation"))
            values |= dict.fromkeys(("compute", "reward", "holdout_compute", "holdout_reward"), np.empty(0))
            built.append(Series(start_sd=0.0, problem=str(fault), **labels, **values))
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


def _series(points: Points, selection: Selection, labels: dict[str, Any]) -> Series:
    name, table, tables = labels["name"], points.table, points.distinct_tables()
    for option, columns in (("--x", {str(each.x) for each in tables}), ("--y", {str(each.y) for each in tables})):
        if len(columns) > 1:
            raise InputError(
                f"the files of {name} use different columns ({listed(sorted(columns))}): choose one with {option}."
            )
    facts = list({repr(fact): fact for each in tables for fact in each.facts}.values())
    for rule in (_without_nan, _named_by_seed, _without_repeated, _without_held):
        points = rule(points, facts)
    points = points.take(np.argsort(points.run, kind="stable"))
    run, held = points.run, points.held
    x = _numbers(points, points.cells("x"), table.x or "", "--x")
    y, y_scale = _rewards(points, selection.y_scale, facts)
    _check_clock(points, x)
    if held.all():
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {name} matches --holdout {wanted}: none is left to fit.")
    is_start = _before_training(points, x, selection)
    _check_positive(points, np.where(is_start, math.inf, x), selection)
    if (held | is_start).all():
        raise InputError(f"{name} has no row left to fit besides its start, at {points.where(is_start)}.")
    samples = numbers(points.rows, table.num_samples or "num_samples")
    samples = np.where((samples >= 1) & np.isfinite(samples) & (y_scale != "none"), samples, np.nan)
    start, start_sd = _start(y[is_start], samples[is_start], selection, SCALES[y_scale])
    facts += _start_facts(start, points.take(is_start), x[~held], selection)
    if start is None and selection.start is None and y_scale == "1" and (before := _evaluated_before(points)):
        start, start_sd = before.values["start"], None
        facts.append(before)
    facts += _mixed(points, x, selection)
    # Prompts and step of each row, for rows that can be compared answer by answer; empty for others.
    pairs = [(row.get("prompts_hash"), row.get(table.step or "step")) for row in points.rows]
    evaluation = np.array(["" if None in pair else "@".join(map(label, pair)) for pair in pairs])
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
        problem=None,
        y_scale=y_scale,
        facts=tuple(facts),
        **labels,
    )


# Which rows count: each rule returns the rows it keeps and appends what it did to the facts


def _without_nan(points: Points, facts: list[Fact]) -> Points:
    """Drop the rows whose compute or reward is NaN, unless that leaves none.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    no_x, no_y = (np.array([is_nan(cell) for cell in points.cells(role)]) for role in ("x", "y"))
    missing = no_x | no_y
    kept = points.take(~missing)
    if not missing.any() or not any(math.isfinite(number(cell) or 0.0) for cell in kept.cells("y")):
        return points
    columns = [str(name) for name, gone in ((points.table.x, no_x), (points.table.y, no_y & ~no_x)) if gone.any()]
    values = {"columns": tuple(sorted(columns)), "num": int(missing.sum()), "num_rows": len(missing)}
    facts.append(Fact(kind="nan_rows", values=values | {"place": points.where(missing)}))
    return kept


def _named_by_seed(points: Points, facts: list[Fact]) -> Points:
    """Put the seed into the name of each run where a file holds several, unless an option names the runs."""
    seeds = ["" if cell is None else label(cell) for cell in points.cells("seed")]
    num_files, num_runs = len(set(points.run)), len(set(zip(points.run, seeds, strict=True)))
    if num_runs == num_files or points.is_run_named:
        return points
    columns = {"columns": tuple(sorted({str(table.seed) for table in points.distinct_tables() if table.seed}))}
    if 2 * num_runs > len(seeds):
        facts.append(Fact(kind="seed_has_too_many_values", values=columns))
        return points
    facts.append(Fact(kind="runs_by_column", values=columns))
    named = [
        (f"{run}/{seed}" if num_files > 1 else seed) if seed else run
        for run, seed in zip(points.run, seeds, strict=True)
    ]
    return replace(points, run=np.array(named))


def _without_repeated(points: Points, facts: list[Fact]) -> Points:
    """Drop the rows that a log holds twice; note several evaluations per compute.

    Rewards with few different values, such as 0 and 1 of single answers, are equal without being the same row.
    """
    computes = list(zip(points.run, map(str, points.cells("x")), strict=True))
    rewards, num = list(map(str, points.cells("y"))), len(computes)
    if len(set(computes)) == num or 2 * len(set(rewards)) < len(set(computes)):
        return points
    words = list(dict.fromkeys(column for table in points.distinct_tables() for column in words_of(table)))
    texts = [tuple(str(row.get(column)) for column in words) for row in points.rows]
    samples = [
        str(row.get(table.num_samples or "num_samples")) for row, table in zip(points.rows, points.tables, strict=True)
    ]
    once = [rows[-1] for rows in grouped(zip(computes, rewards, samples, points.held, texts, strict=True)).values()]
    is_kept = np.ones(num, dtype=bool)
    if num - len(once) > _MANY * num:
        facts.append(Fact(kind="repeated_rows", values={"num": num - len(once), "num_rows": num}))
        is_kept = np.isin(np.arange(num), once)
    counts = Counter(computes[at] for at in np.flatnonzero(is_kept & ~points.held))
    usual = median(counts.values()) if counts else 0
    # Words that differ have a fact of their own.
    if usual >= 2 and len(set(texts)) == 1:
        facts.append(Fact(kind="several_per_compute", values={"x": points.table.x, "num": usual}))
    return points.take(is_kept)


def _without_held(points: Points, facts: list[Fact]) -> Points:
    """Keep the first of rows that only repeat the value of the row before them, as loggers do between two values.

    Most values must stand several times in a row, and hardly one may come again later: counts of right answers do.
    """
    x, y = points.cells("x"), np.array(list(map(str, points.cells("y"))))
    if len(set(zip(points.run, map(str, x), strict=True))) < len(x):
        return points  # several rows per compute, of which some agree
    order = np.lexsort((np.array([number(cell) or 0.0 for cell in x]), points.held, points.run))
    run, held, y = points.run[order], points.held[order], y[order]
    is_new = np.append(True, (run[1:] != run[:-1]) | (held[1:] != held[:-1]) | (y[1:] != y[:-1]))
    begins = np.flatnonzero(is_new)
    distinct = len(set(zip(run, held, y, strict=True)))
    if len(begins) < 6 or np.median(np.diff(np.append(begins, len(y)))) < 2 or distinct < 0.8 * len(begins):
        return points
    facts.append(Fact(kind="held_values", values={"num": len(begins), "num_rows": len(y)}))
    return points.take(order[begins])


def _mixed(points: Points, x: Floats, selection: Selection) -> list[Fact]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    tables = points.distinct_tables()
    known = selection.mentioned.union(*(table.apart for table in tables))
    differing = []
    for column in dict.fromkeys(column for table in tables for column in words_of(table) if column not in known):
        spans = grouped((run, row.get(column)) for run, row in zip(points.run, points.rows, strict=True))
        # A word with hardly more than one row, such as a date, does not separate curves; nor do phases of a run.
        ends = sorted(
            (run, x[own].min(), x[own].max()) for (run, word), own in spans.items() if word is not None and len(own) > 2
        )
        if any(run == other and begin < last for (run, _, last), (other, begin, _) in itertools.pairwise(ends)):
            differing.append(column)
    return [Fact(kind="mixed", values={"columns": tuple(differing)})] if differing else []


# Numbers


def _rewards(points: Points, asked: YScale, facts: list[Fact]) -> tuple[Floats, YScale]:
    """Return the rewards, and their scale."""
    column = points.table.y or ""
    rewards = _numbers(points, points.cells("y"), column, "--y")
    low, high = float(rewards.min()), float(rewards.max())
    scale = asked
    if asked == "auto":
        # A column has one unit: an arm that stays below 1 % is not a share.
        every = np.concatenate([rewards, *(numbers(table.rows, table.y or "") for table in points.distinct_tables())])
        every = every[np.isfinite(every)]
        low, high = float(every.min()), float(every.max())
        is_unit = low >= -_ROUNDING and high <= 1 + _ROUNDING
        scale = "1" if is_unit else fitting_scale(low, high, is_rate=is_rate(column))
        if scale != "1":
            values = {"y": column, "low": low, "high": high}
            facts.append(Fact(kind="percent" if scale == "100" else "own_scale", values=values))
    bounds = SCALES[scale]
    if bounds is None:
        return rewards, scale
    fitted = np.clip(rewards, *bounds)
    outside = np.abs(fitted - rewards) > _ROUNDING * (bounds[1] - bounds[0])
    if outside.any():
        raise InputError(
            f"{column!r} runs from {low:g} to {high:g}, outside {_span(bounds)} of --y-scale {scale} at "
            f"{points.where(outside)}: leave --y-scale out, and it is read as it is."
        )
    return fitted, scale


def _span(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:g}, {bounds[1]:g}]"


def _numbers(points: Points, cells: Sequence[Any], column: str, option: str) -> Floats:
    found = [number(cell) for cell in cells]
    if None in found:
        shown = repr(cells[found.index(None)])
        raise InputError(
            f"{column!r} holds {shown if len(shown) <= 40 else shown[:40] + '...'} where a number is needed, at "
            f"{points.where([value is None for value in found])}: write plain numbers such as "
            f"{'0.25' if option == '--y' else '1000.5'} there, or choose another column with {option}."
        )
    known = np.array(found, dtype=np.float64)
    is_odd = ~np.isfinite(known)
    if is_odd.any():
        words = sorted(set(map(str, known[is_odd])))
        what = " or ".join(sorted({"NaN" if word == "nan" else "infinite" for word in words}))
        options = " ".join(f"--where '{column}!={word}'" for word in words)
        raise InputError(
            f"{column!r} is {what} at {points.where(is_odd)}: remove those rows, or leave them out with {options}."
        )
    return known


def _check_clock(points: Points, x: Floats) -> None:
    """Raise InputError for a time of day, and where compute falls while the step of a run rises.

    Seconds (or milli-, micro- or nanoseconds) since 1970 only grow by a little. A clock that falls began anew, and what
    was spent before is missing from it.
    """
    table, low, high = points.table, x.min(), x.max()
    is_clock = time_of_day(low) is not None and time_of_day(high) is not None
    if is_clock and 0 < high - low < _A_LITTLE * low and plain(table.x or "") not in (*FLOPS, *TOKENS):
        raise InputError(
            f"{table.x!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: leave --x "
            "out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )
    if table.kind == "run" or table.x == table.step:
        return
    steps = numbers(points.rows, table.step)
    for own in grouped(zip(map(id, points.tables), points.held, points.run, strict=True)).values():
        own = own[np.argsort(steps[own], kind="stable")]
        rises, gains = np.diff(steps[own]) > 0, np.diff(x[own])
        falls = np.flatnonzero((x[own[1:]] > 0) & (x[own[1:]] < (1 - _MIN_FALL) * x[own[:-1]]))
        # A step without a number, or with two clocks as of runs side by side, proves nothing.
        if len(falls) and (rises | (gains == 0)).all() and not np.isnan(steps[own]).any():
            before, after = own[falls[0]], own[falls[0] + 1]
            raise InputError(
                f"compute {table.x!r} falls from {x[before]:g} to {x[after]:g} at {points.take([after]).where([True])} "
                f"while the step rises from {steps[before]:g} to {steps[after]:g}: the clock of a resumed run began "
                f"anew. Add what was spent before, or choose a column that goes on, such as --x {table.step}."
            )


def _check_positive(points: Points, x: Floats, selection: Selection) -> None:
    """Raise InputError for compute at or below 0 that is not the start."""
    column = points.table.x
    if (x < 0).any():
        raise InputError(
            f"compute {column!r} is negative ({x[x < 0][0]:g}) at {points.where(x < 0)}: remove those rows, or choose "
            "another column with --x."
        )
    if (x == 0).any():
        advice = (
            "--start first takes one row at 0 of each run: name the column of runs with --seed, or of curves with --by"
            if selection.start == "first"
            else "rows that are held out lie after the start; choose another column with --x or another --holdout"
        )
        raise InputError(f"compute {column!r} is zero at {points.where(x == 0)}: {advice}.")


# The start


def _before_training(points: Points, x: Floats, selection: Selection) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early.
    """
    run, held = points.run, points.held
    if selection.start != "first":
        return ~held & ((x == 0) | ((x < 0) & (plain(points.table.x or "") in STEP)))
    to_fit = np.where(held, math.inf, x)
    least = {name: to_fit[run == name].min() for name in set(run)}
    is_first = to_fit == np.array([least[name] for name in run])
    return is_first & (x >= 0) & (x <= max(_BEFORE_TRAINING * x[~held].max(), 0.0))


def _start(y: Floats, samples: Floats, selection: Selection, bounds: Bounds) -> tuple[float | None, float | None]:
    """Return the start and its sd: the value given, else the mean over the rows that are the start."""
    given = selection.start
    if isinstance(given, float | int):
        if not math.isfinite(given) or (bounds and not bounds[0] <= given <= bounds[1]):
            scale = "not a number" if bounds is None else f"outside {_span(bounds)}, the scale of the rewards"
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
    values = {"start": start, "num": len(first.rows), "compute": float(x.min())}
    if selection.start == "first" and not first.rows:
        return [Fact(kind="start_is_late", values={"compute": values["compute"]})]
    if selection.start == "first" and len(set(first.run)) < len(first.rows):
        return [Fact(kind="start_is_a_mean", values={"start": start, "num": len(first.rows)})]
    if selection.start is None and first.rows and first.table.kind != "run":
        return [Fact(kind="start_at_zero", values=values | {"x": first.table.x})]
    return []


def _evaluated_before(points: Points) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    table, reward = points.table, points.table.reward
    steps = numbers(points.rows, table.step)
    steps = steps[np.isfinite(steps)]
    few = [column for column, _ in reward.too_few] if reward is not None and reward.kind == "training" else []
    if not few or not steps.size or len(points.distinct_tables()) > 1 or table.kind == "run":
        return None
    early = min(steps.min(), _FIRST_STEPS * steps.max() + 1e-9)
    own = {column: label(points.rows[0].get(column)) for column in table.apart}
    rows = [row for row in table.rows if all(label(row.get(name)) == value for name, value in own.items())]
    before = numbers(rows, table.step) < early
    for column in few:
        values = numbers(rows, column)[before]
        values = values[(values >= 0) & (values <= 1)]
        if values.size:
            return Fact(kind="start_from_evaluation", values={"start": float(values[0]), "column": column})
    return None
