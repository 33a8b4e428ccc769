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
from scalerl.logs.columns import FLOPS, STEP, TOKENS, is_rate, label, plain
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import curve_names, listed
from scalerl.logs.selection import Rows, Selection, curves_from, words_of
from scalerl.logs.table import Table
from scalerl.logs.units import SCALES, YScale, fitting_scale, is_nan, is_number, number

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
    start = selection.start
    is_given = isinstance(start, float | int)
    if is_given and not (math.isfinite(start) and (selection.y_scale in ("auto", "none") or 0 <= start <= 1)):
        raise InputError(f"--start {start:g} is outside [0, 1]: give it on the scale that is fitted, such as 0.4.")
    curves = curves_from(tables, selection)
    built = []
    for name, (key, rows) in zip(curve_names(list(curves), selection.labels), curves.items(), strict=True):
        labels = {"x_label": rows.first.x, "y_label": rows.first.y}
        labels["evaluation_set"] = dict(key).get("set") if "set" in rows.first.apart else None
        try:
            built.append(_series(name, rows, selection, labels))
        except InputError as fault:
            if len(curves) == 1:
                raise
            values: dict[str, Any] = dict.fromkeys(("run", "num_samples", "start", "evaluation"))
            values |= dict.fromkeys(("compute", "reward", "holdout_compute", "holdout_reward"), np.empty(0))
            built.append(Series(name=name, start_sd=0.0, problem=str(fault), **labels, **values))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    return built


def _series(name: str, rows: Rows, selection: Selection, labels: dict[str, Any]) -> Series:
    tables = rows.used_tables()
    for option, columns in (("--x", {str(table.x) for table in tables}), ("--y", {str(table.y) for table in tables})):
        if len(columns) > 1:
            raise InputError(
                f"the files of {name} use different columns ({listed(sorted(columns))}): choose one with {option}."
            )
    facts = list({repr(fact): fact for table in tables for fact in table.facts}.values())
    for rule in (_without_nan, _named_by_seed, _without_repeated, _without_held):
        rows = rule(rows, facts)
    x = _numbers(rows, rows.x, rows.first.x or "", "--x")
    y, y_scale = _rewards(rows, selection.y_scale, facts)
    _check_compute(rows, x)
    if rows.is_held_out.all():
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {name} matches --holdout {wanted}: none is left to fit.")
    is_start = _before_training(rows, x, selection)
    _check_positive(rows, np.where(is_start, math.inf, x), selection)
    is_fitted = ~rows.is_held_out & ~is_start
    if not is_fitted.any():
        raise InputError(f"{name} has no row left to fit besides its start, at {rows.places(is_start)}.")
    samples = np.array([number(value) or math.nan for value in rows.column(rows.first.num_samples or "num_samples")])
    samples[~((samples >= 1) & np.isfinite(samples)) | (y_scale == "none")] = math.nan
    start, start_sd = _start(y[is_start], samples[is_start], selection, y_scale)
    facts += _start_facts(start, rows, x, is_start, selection)
    if start is None and selection.start is None and (before := _evaluated_before(rows, y_scale)) is not None:
        start, start_sd = before.values["start"], None
        facts.append(before)
    facts += _mixed(rows, x, selection)
    run = rows.run.astype(str)
    evaluation = _evaluations(rows)
    order = np.lexsort((evaluation, y, x, run))
    fitted, held = order[is_fitted[order]], order[rows.is_held_out[order]]
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
        **labels,
    )
    bins = None if selection.bins is None else bin_runs(series.compute, series.reward, series.run, selection.bins)
    if bins is None:
        return series
    return replace(series, num_samples=None, evaluation=None, facts=(*series.facts, bins[1]), **bins[0])


def _evaluations(rows: Rows) -> NDArray[np.str_]:
    """Return prompts and step of each row, for rows that can be compared answer by answer; empty for others."""
    pairs = zip(rows.column("prompts_hash"), rows.column(rows.first.step or "step"), strict=True)
    return np.array(["" if None in pair else "@".join(map(label, pair)) for pair in pairs])


# Which rows count: each rule returns the rows it keeps and appends what it did to the facts


def _without_nan(rows: Rows, facts: list[Fact]) -> Rows:
    """Drop the rows whose compute or reward is NaN, unless that leaves none.

    NaN is how pandas and wandb write that a value was not logged in a row, such as an evaluation's in most rows.
    """
    no_x, no_y = (np.array([is_nan(value) for value in values]) for values in (rows.x, rows.y))
    missing = no_x | no_y
    kept = rows.take(~missing)
    if not missing.any() or not any(math.isfinite(number(value) or 0.0) for value in kept.y):
        return rows
    columns = [str(column) for column, flags in ((rows.first.x, no_x), (rows.first.y, no_y & ~no_x)) if flags.any()]
    values = {"columns": tuple(sorted(columns)), "num": int(missing.sum()), "num_rows": len(missing)}
    facts.append(Fact(kind="nan_rows", values=values | {"place": rows.places(missing)}))
    return kept


def _named_by_seed(rows: Rows, facts: list[Fact]) -> Rows:
    """Put the seed into the name of each run where a file holds several."""
    num_files, num_runs = len(set(rows.run)), len(set(zip(rows.run, rows.seed, strict=True)))
    if num_runs == num_files:
        return rows
    columns = {"columns": tuple(sorted({str(table.seed) for table in rows.used_tables() if table.seed}))}
    if 2 * num_runs > len(rows.run):
        facts.append(Fact(kind="seed_has_too_many_values", values=columns))
        return rows
    facts.append(Fact(kind="runs_by_column", values=columns))
    pairs = zip(rows.run, rows.seed, strict=True)
    names = [run if seed is None else seed if num_files == 1 else f"{run}/{seed}" for run, seed in pairs]
    return replace(rows, run=np.array(names, dtype=object))


def _without_repeated(rows: Rows, facts: list[Fact]) -> Rows:
    """Drop the rows that a log holds twice; note several evaluations per compute.

    Rewards with few different values, such as 0 and 1 of single answers, are equal without being the same row.
    """
    num = len(rows.at)
    places = list(zip(rows.run, map(str, rows.x), strict=True))
    if len(set(places)) == num or 2 * len(set(map(str, rows.y))) < len(set(places)):
        return rows
    words = list(dict.fromkeys(column for table in rows.used_tables() for column in words_of(table)))
    texts = list(zip(*(map(str, rows.column(column)) for column in words), strict=True)) or [()] * num
    samples = map(str, rows.column(rows.first.num_samples or "num_samples"))
    keys = zip(places, map(str, rows.y), samples, rows.is_held_out.tolist(), texts, strict=True)
    once = sorted({key: at for at, key in enumerate(keys)}.values())
    if num - len(once) > _MANY * num:
        facts.append(Fact(kind="repeated_rows", values={"num": num - len(once), "num_rows": num}))
        rows = rows.take(np.array(once))
    counts = Counter(zip(rows.run[~rows.is_held_out], map(str, rows.x[~rows.is_held_out]), strict=True))
    usual = median(counts.values()) if counts else 0
    # Words that differ have a fact of their own.
    if usual >= 2 and len(set(texts)) == 1:
        facts.append(Fact(kind="several_per_compute", values={"x": rows.first.x, "num": usual}))
    return rows


def _without_held(rows: Rows, facts: list[Fact]) -> Rows:
    """Keep the first of rows that only repeat the value of the row before them, as loggers do between two values.

    Most values must stand several times in a row, and hardly one may come again later: counts of right answers do.
    """
    if len(set(zip(rows.run, map(str, rows.x), strict=True))) < len(rows.x):
        return rows  # several rows per compute, of which some agree
    compute = np.array([number(value) or 0.0 for value in rows.x])
    order = np.lexsort((compute, rows.is_held_out, rows.run.astype(str)))
    texts = [(rows.run[at], rows.is_held_out[at], str(rows.y[at])) for at in order]
    begins = [at for at, text in enumerate(texts) if at == 0 or text != texts[at - 1]]
    lengths = np.diff([*begins, len(texts)])
    if len(begins) < 6 or np.median(lengths) < 2 or len(set(texts)) < 0.8 * len(begins):
        return rows
    facts.append(Fact(kind="held_values", values={"num": len(begins), "num_rows": len(texts)}))
    return rows.take(order[begins])


def _mixed(rows: Rows, x: Floats, selection: Selection) -> list[Fact]:
    """Warn where rows over the same compute differ in words: several curves, most likely, fitted as one."""
    tables = rows.used_tables()
    known = selection.mentioned.union(*(table.apart for table in tables))
    differing = []
    for column in dict.fromkeys(column for table in tables for column in words_of(table) if column not in known):
        spans: dict[tuple[str, str], list[float]] = {}
        for run, word, compute in zip(rows.run, rows.column(column), x, strict=True):
            if word is not None:
                spans.setdefault((run, word), []).append(compute)
        # A word with hardly more than one row, such as a date, does not separate curves; nor do phases of a run.
        ends = sorted((run, min(own), max(own)) for (run, _), own in spans.items() if len(own) > 2)
        if any(run == other and begin < last for (run, _, last), (other, begin, _) in itertools.pairwise(ends)):
            differing.append(column)
    return [Fact(kind="mixed", values={"columns": tuple(differing)})] if differing else []


# Numbers


def _rewards(rows: Rows, asked: YScale, facts: list[Fact]) -> tuple[Floats, YScale]:
    """Return the rewards on the scale that is fitted, and that scale."""
    column = rows.first.y or ""
    rewards = _numbers(rows, rows.y, column, "--y")
    low, high = float(rewards.min()), float(rewards.max())
    scale = asked
    if asked == "auto":
        is_unit = low >= -_ROUNDING and high <= 1 + _ROUNDING
        scale = "1" if is_unit else fitting_scale(low, high, is_rate=is_rate(column))
        if scale != "1":
            values = {"y": column, "low": low, "high": high}
            facts.append(Fact(kind="percent" if scale == "100" else "own_scale", values=values))
    least, width = SCALES[scale]
    fitted = (rewards - least) / width
    if scale == "none":
        return fitted, scale
    outside = (fitted < -_ROUNDING) | (fitted > 1 + _ROUNDING)
    if outside.any():
        raise InputError(
            f"{column!r} runs from {low:g} to {high:g}, outside [0, 1] after --y-scale {scale} at "
            f"{rows.places(outside)}: leave --y-scale out, and it is read as it is."
        )
    return np.clip(fitted, 0.0, 1.0), scale


def _numbers(rows: Rows, values: NDArray[Any], column: str, option: str) -> Floats:
    numbers = [number(value) for value in values]
    if None in numbers:
        shown = repr(values[numbers.index(None)])
        raise InputError(
            f"{column!r} holds {shown if len(shown) <= 40 else shown[:40] + '...'} where a number is needed, at "
            f"{rows.places(np.array([value is None for value in numbers]))}: write plain numbers such as "
            f"{'0.25' if option == '--y' else '1000.5'} there, or choose another column with {option}."
        )
    known = np.array(numbers, dtype=np.float64)
    bad = ~np.isfinite(known)
    if bad.any():
        words = sorted({str(value) for value in known[bad]})
        what = " or ".join(sorted({"NaN" if word == "nan" else "infinite" for word in words}))
        options = " ".join(f"--where '{column}!={word}'" for word in words)
        raise InputError(
            f"{column!r} is {what} at {rows.places(bad)}: remove those rows, or leave them out with {options}."
        )
    return known


def _check_compute(rows: Rows, x: Floats) -> None:
    """Raise InputError for a time of day, and where compute falls while the step of a run rises.

    Seconds (or milli-, micro- or nanoseconds) since 1970 only grow by a little. A clock that falls began anew, and what
    was spent before is missing from it.
    """
    column, low, high = rows.first.x or "", x.min(), x.max()
    is_clock = any(unit * _YEAR_2001 <= low < high < unit * _YEAR_2065 for unit in (1.0, 1e3, 1e6, 1e9))
    if is_clock and high - low < _A_LITTLE * low and plain(column) not in (*FLOPS, *TOKENS):
        raise InputError(
            f"{column!r} runs from {low:.0f} to {high:.0f}, which is a time of day and not an amount spent: leave --x "
            "out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )
    if column == rows.first.step or np.isnan(rows.step).all():
        return
    runs = list(zip(rows.table.tolist(), rows.is_held_out.tolist(), rows.run, strict=True))
    for run in set(runs):
        own = np.flatnonzero([other == run for other in runs])
        own = own[np.argsort(rows.step[own], kind="stable")]
        steps, spent = rows.step[own], x[own]
        rises = np.diff(steps) > 0
        # A step without a number, or with two clocks as of runs side by side, proves nothing.
        if np.isnan(steps).any() or (np.diff(spent)[~rises] != 0).any():
            continue
        falls = rises & (spent[1:] > 0) & (spent[1:] < (1 - _MIN_FALL) * spent[:-1])
        if falls.any():
            at = int(np.flatnonzero(falls)[0])
            place = rows.places(np.arange(len(x)) == own[at + 1])
            raise InputError(
                f"compute {column!r} falls from {spent[at]:g} to {spent[at + 1]:g} at {place} while the step rises "
                f"from {steps[at]:g} to {steps[at + 1]:g}: the clock of a resumed run began anew. Add what was spent "
                f"before, or choose a column that goes on, such as --x {rows.first.step}."
            )


def _check_positive(rows: Rows, x: Floats, selection: Selection) -> None:
    """Raise InputError for compute at or below 0 that is not the start."""
    if (x < 0).any():
        raise InputError(
            f"compute {rows.first.x!r} is negative ({x[x < 0][0]:g}) at {rows.places(x < 0)}: remove those rows, or "
            "choose another column with --x."
        )
    if (x == 0).any():
        advice = (
            "--start first takes one row at 0 of each run: name the column of runs with --seed, or of curves with --by"
            if selection.start == "first"
            else "rows that are held out lie after the start; choose another column with --x or another --holdout"
        )
        raise InputError(f"compute {rows.first.x!r} is zero at {rows.places(x == 0)}: {advice}.")


# The start


def _before_training(rows: Rows, x: Floats, selection: Selection) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early.
    """
    if selection.start != "first":
        return ~rows.is_held_out & ((x == 0) | ((x < 0) & (plain(rows.first.x or "") in STEP)))
    to_fit = np.where(rows.is_held_out, math.inf, x)
    least = {run: to_fit[rows.run == run].min() for run in set(rows.run)}
    is_first = to_fit == np.array([least[run] for run in rows.run])
    return is_first & (x >= 0) & (x <= max(_BEFORE_TRAINING * x[~rows.is_held_out].max(), 0.0))


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
        return mean, math.sqrt(math.fsum(rates * (1 - rates) / samples)) / y.size
    # The same number in every run is one evaluation, written down several times.
    if y.size < _ENOUGH_STARTS or len(set(y)) == 1:
        return mean, None
    return mean, float(np.std(y, ddof=1)) / math.sqrt(y.size)


def _start_facts(start: float | None, rows: Rows, x: Floats, is_start: Mask, selection: Selection) -> list[Fact]:
    """Return which rows became the start where that is not plain from the options."""
    num = int(is_start.sum())
    if selection.start == "first" and not num:
        return [Fact(kind="start_is_late", values={"compute": float(x[~rows.is_held_out].min())})]
    if selection.start == "first" and len(set(rows.run[is_start])) < num:
        return [Fact(kind="start_is_a_mean", values={"start": start, "num": num})]
    if selection.start is None and num and rows.first.kind != "run":
        values = {"start": start, "num": num, "x": rows.first.x, "compute": float(x[is_start].min())}
        return [Fact(kind="start_at_zero", values=values)]
    return []


def _evaluated_before(rows: Rows, y_scale: YScale) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    table, reward = rows.first, rows.first.reward
    steps = rows.step[~np.isnan(rows.step)]
    if reward is None or reward.kind != "training" or y_scale != "1" or not steps.size or len(rows.used_tables()) > 1:
        return None
    own = {column: label(table.rows[rows.at[0]].get(column)) for column in table.apart}
    for column, _ in reward.too_few:
        for row in table.rows:
            step, value = row.get(table.step or ""), row.get(column)
            is_early = is_number(step) and step < steps.min() and step <= _FIRST_STEPS * steps.max()
            is_own = all(label(row.get(name)) == wanted for name, wanted in own.items())
            if is_early and is_own and is_number(value) and 0 <= value <= 1:
                return Fact(kind="start_from_evaluation", values={"start": float(value), "column": column})
    return None
