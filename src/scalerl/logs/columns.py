"""Which column is which in a log of any trainer: names in the order they are tried, and compute built from step time.

x: GPU_HOURS, then, where --gpus was given, gpu_hours built from time; then FLOPS, TOKENS, hours built from time, STEP,
COARSE.
y: an evaluation's RATES (eval/..., val-core/..., test/...), a plain rate (pass_rate, accuracy), TRAINING reward; a
column with too few rows to fit comes after all that have enough.
Names are compared in lower case with blanks and dashes as underscores. Among equals the first column is taken.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GPU_HOURS = ("gpu_hours", "gpuhours", "compute_gpu_hours", "compute/gpu_hours", "train/gpu_hours", "perf/gpu_hours")
FLOPS = (
    *(
        "flops",
        "compute_flops",
        "total_flops",
        "train_flops",
        "training_flops",
        "compute/flops",
        "train/flops",
        "compute",
    ),
    *("total_flos", "train/total_flos"),
)
# Only totals: progress/tokens (prime-rl) and perf/total_num_tokens (verl) are those of one step.
TOKENS = (
    *("tokens", "total_tokens", "num_tokens", "tokens_seen", "num_input_tokens_seen", "progress/total_tokens"),
    *("train/num_tokens", "train/total_tokens", "train/num_input_tokens_seen"),
)
STEP = (
    *(
        "step",
        "_step",
        "global_step",
        "train/global_step",
        "trainer/global_step",
        "progress/step",
        "training/global_step",
    ),
    *("train_step", "training_step", "iteration", "iter", "update"),
    # LLaMA-Factory, Stable-Baselines3
    *("current_steps", "time/total_timesteps", "total_timesteps", "time/iterations"),
)
# Progress in coarser units, for logs that have nothing better.
COARSE = ("episode", "episodes", "epoch")
# wandb's own _step counts rows and never falls, the trainer's does when a run is resumed.
TRAINER_STEP = (*(name for name in STEP if name != "_step"), "_step")
# Seconds one step took: tinker-cookbook, prime-rl, ours, verl, TRL, and what others write.
STEP_TIME = (
    *("time/total", "time/step", "time/step_s", "timing/step", "timing_s/step", "step_time", "train/step_time"),
    *(
        "perf/time_per_step",
        "perf/step_time",
        "time/step_time",
        "timing/total",
        "time_per_step",
        "step_time_s",
        "total_step_time",
    ),
)
# Seconds since the run began: our reader of event files, wandb.
ELAPSED = ("elapsed_s", "relative_time_(process)", "relative_time_(wall)", "_runtime")
NUM_SAMPLES = ("num_samples", "eval/num_samples", "num_eval_samples")
SEED = ("seed", "random_seed", "train_seed", "train/seed")
RUN_NAME = ("run", "run_name", "run_id", "experiment", "experiment_name", "exp_name")
RUN = ("run", "run_id", "run_name", *SEED)
RATES = (
    r"pass_?rate|solve_rate|success_rate|pass(@|_at_|_)?1",
    r"acc|accuracy|correct|exact_match",
    r"(avg|mean)@\d+",
    r"reward|rewards|return",
    r"score|scores|pass@\d+",
)
TRAINING = (
    *("reward/mean", "reward", "mean_reward", "reward_mean", "train/reward", "train/reward/mean", "reward/all/mean"),
    *(
        "env/all/reward/total",
        "critic/score/mean",
        "critic/rewards/mean",
        "objective/scores",
        "avg_reward",
        "rollout/raw_reward",
        "rollout/ep_rew_mean",
        "value",
    ),
)

_EVALUATION = re.compile(r"(^|[/_.])(evals?|evaluation|val|valid|validation|test|held_?out)([/_.]|$)")
_RATES = tuple(re.compile(rf"(^|[/_.])({rate})([/_.]|$)") for rate in RATES)
_PLAIN_RATE = re.compile(rf"(mean_|avg_)?({'|'.join(RATES[:3])})")
_TRAINING_RATE = re.compile(rf"(^|[/_.])({'|'.join(RATES)})([/_.]|$)")
# TRL logs every reward function apart from their sum: the parts come after the whole. So does what only says how well
# the format was kept, and what was chosen from several answers (verl's best@8/mean beside mean@8).
_PART = re.compile(
    r"(^|[/_.])(rewards/[^/]+/mean$|(format|formatting|penalty|bonus|best|worst|maj|majority|oracle|chosen|rejected)"
    r"(@\d+)?([/_.]|$))"
)
_WHOLE = re.compile(r"(^|[/_.])(total|overall|sum)([/_.]|$)")
_NEVER = re.compile(
    r"(^|[/_. ])(std|stdev|stderr|sem|var|variance|min|max|median|len|lengths?|time|runtime|seconds?|loss|kl|entropy"
    r"|count|num|zero|tokens?|steps?|epoch|lr|clip|clipped|ratio|norm|grad|hash|advantages?|per|truncated)([/_. ]|$)"
)

# What people and spreadsheets write for a number and float() does not read: 1,000.0 and 30.4%.
_WRITTEN_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*%?")

_CORRECTNESS = re.compile(r"correct|acc|answer|exact|pass")
_BARE_EVALUATION = re.compile(r"eval/[^/]+")
# A sigmoid has four parameters and needs two points more.
_ENOUGH_ROWS = 6
# A column with this many times fewer rows than another of its kind was logged by the way.
_FEWER = 4

Row = Mapping[str, Any]


def find(names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the first column that has one of these names, in the order of the names."""
    known = {plain(column): column for column in reversed(columns)}
    return next((known[name] for name in names if name in known), None)


def choose_y(columns: Sequence[str], rows: Sequence[Row]) -> str | None:
    """Return the column that looks most like a pass rate or reward and has rows enough, None where none does."""
    return next((column for _, column in _ranked(columns, rows)), None)


def rivals(columns: Sequence[str], rows: Sequence[Row], y: str) -> list[str]:
    """Return the other columns that could be the reward just as well as `y`: evaluations beside an evaluation."""
    ranked = _ranked(columns, rows)
    kinds = {column: rank[1:3] for rank, column in ranked}
    return [column for rank, column in ranked if column != y and rank[1:3] == kinds.get(y)]


def passed_over(columns: Sequence[str], rows: Sequence[Row], y: str) -> list[tuple[str, int]]:
    """Return (column, rows) of the columns of a better kind than `y` that have too few rows, such as evaluations."""
    ranked = _ranked(columns, rows)
    kind = next((rank[:2] for rank, column in ranked if column == y), (1, 0))
    if kind[0]:
        return []
    return [(column, count(rows, column)) for rank, column in ranked if rank[0] and rank[1] < kind[1]]


def unit_rewards(columns: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns that could be the reward, have rows enough and lie in [0, 1]; those of correctness first."""
    units = [column for rank, column in _ranked(columns, rows) if rank[0] == 0 and _is_unit(rows, column)]
    # A column that never changes, such as normalised rewards, is not a curve.
    units = [column for column in units if len({row.get(column) for row in rows} - {None}) > 1]
    return tuple(sorted(units, key=lambda column: not _CORRECTNESS.search(plain(column))))


def count(rows: Sequence[Row], column: str) -> int:
    """Return how many rows have a number in a column."""
    return sum(_is_numeric(row.get(column)) for row in rows)


def choose_x(columns: Sequence[str], rows: Sequence[Row], *, y: str | None, built: bool) -> str | None:
    """Return the column to use as compute; with `built`, gpu_hours comes from --gpus, which the user asked for."""
    order = (*GPU_HOURS, *FLOPS, *TOKENS, "hours", *STEP)
    if built:
        order = ("gpu_hours", *order)
    step = find(STEP, columns)
    known = {plain(column): column for column in reversed(columns)}
    named = [known[name] for name in order if name in known]
    # As for y: a column that cannot be read is to be named.
    kinds = (_is_numeric, lambda value: value is not None)
    # An epoch or episode counts training only where it differs from row to row.
    coarse = [known[name] for name in COARSE if name in known and _is_progress(rows, known[name], y)]
    named += coarse if not named else []
    return next((column for is_one in kinds for column in named if _stands_by(rows, column, y, step, is_one)), None)


def fill_from_step(rows: Sequence[Row], column: str, step: str | None) -> list[Any]:
    """Return a column's values; one that is missing or NaN is taken from another row of the same step and run."""
    values = [row.get(column) for row in rows]
    is_missing = [value is None or is_nan(value) for value in values]
    if step is None or step == column or not any(is_missing):
        return values
    labels = _run_columns(rows, column)
    keys = [(row.get(step), *(row.get(label) for label in labels)) for row in rows]
    known = {
        key: value
        for key, value, missing in zip(keys, values, is_missing, strict=True)
        if not missing and is_number(key[0])
    }
    return [
        known.get(key, value) if missing and is_number(key[0]) else value
        for key, value, missing in zip(keys, values, is_missing, strict=True)
    ]


def elapsed_hours(rows: Sequence[Row], columns: Sequence[str]) -> list[float | None] | None:
    """Return the hours of training until each row, None where the log has no times.

    A step time stands for every step since the row before it: trainers log its mean over the logging interval.
    """
    step, step_time, elapsed = find(STEP, columns), find(STEP_TIME, columns), find(ELAPSED, columns)
    column = step_time or elapsed
    if column is None:
        return None
    labels = _run_columns(rows, column)
    runs: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        runs.setdefault(tuple(row.get(label) for label in labels), []).append(index)
    hours: list[float | None] = [None] * len(rows)
    for indices in runs.values():
        members = [rows[index] for index in indices]
        values = _cumulated(members, step, column) if step_time else _on_the_clock(members, step, column)
        for index, value in zip(indices, values, strict=True):
            hours[index] = value
    return hours


def _on_the_clock(rows: Sequence[Row], step: str | None, elapsed: str) -> list[float | None]:
    """Return the hours of a clock; one that begins with the first row gets what the steps before it took."""
    known = [
        (row[step], row[elapsed]) for row in rows if step and is_number(row.get(step)) and is_number(row.get(elapsed))
    ]
    missing = 0.0
    if known:
        (first, begin), (last, end) = min(known), max(known)
        if begin == 0 and first > 0 and last > first:
            missing = first * (end - begin) / (last - first)
    return [(row[elapsed] + missing) / 3600 if is_number(row.get(elapsed)) else None for row in rows]


def is_number(value: object) -> bool:
    """Return whether a value is a number; NaN, which pandas and wandb write for what was not logged, is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_nan(value: object) -> bool:
    """Return whether a value is NaN, as a number or as text."""
    return value != value if isinstance(value, float) else isinstance(value, str) and value.strip().lower() == "nan"


def _cumulated(rows: Sequence[Row], step: str | None, step_time: str) -> list[float | None]:
    if step is None:
        places: list[Any] = list(range(1, len(rows) + 1))
    else:
        places = [row.get(step) for row in rows]
    spent = {
        at: row[step_time]
        for at, row in zip(places, rows, strict=True)
        if is_number(at) and is_number(row.get(step_time))
    }
    steps = sorted(spent)
    totals = [0.0]
    # A first row at step 0 is one step; one at step 10 stands for the ten before it.
    last = min(steps[0] - 1, 0) if steps else 0
    for at in steps:
        totals.append(totals[-1] + spent[at] * (at - last) / 3600)
        last = at
    return [totals[bisect_right(steps, at)] if is_number(at) else None for at in places]


def plain(column: str) -> str:
    return re.sub(r"[\s-]+", "_", column.strip().lower())


def _y_rank(name: str) -> tuple[int, int, int] | None:
    """Return (kind of column, whether it is part of a sum, closeness to a pass rate); smaller is better."""
    if _NEVER.search(name):
        return None
    part = int(bool(_PART.search(name)))
    if _EVALUATION.search(name):
        return next(((0, part, rank) for rank, rate in enumerate(_RATES) if rate.search(name)), None)
    if _PLAIN_RATE.fullmatch(name):
        return 1, 0, 0
    if name in TRAINING:
        return 2, 0, TRAINING.index(name)
    return (2, 1 + part, int(not _WHOLE.search(name))) if _TRAINING_RATE.search(name) else None


def _ranked(columns: Sequence[str], rows: Sequence[Row]) -> list[tuple[tuple[int, int, int, int], str]]:
    """Return (rank, column) of those named as a reward that hold numbers, the best first; else that hold anything.

    The rank begins with whether there are too few rows: for a fit, or beside what the column's kind has elsewhere.
    """
    named = [(rank, column) for column in columns if (rank := _y_rank(plain(column)))]
    # slime logs an evaluation as eval/NAME; what the name means, its range tells.
    bare = [
        column for column in columns if _BARE_EVALUATION.fullmatch(plain(column)) and _y_rank(plain(column)) is None
    ]
    bare = [column for column in bare if not _NEVER.search(plain(column)) and _is_unit(rows, column)]
    named += [((0, 2, 0), column) for column in bare]
    counts = {column: count(rows, column) for _, column in named}
    # What cannot be read is to be named; were the column passed over, nobody could say what is wrong with it.
    if not any(counts.values()):
        counts = {column: sum(row.get(column) is not None for row in rows) for column in counts}
    most: dict[int, int] = {}
    for rank, column in named:
        most[rank[0]] = max(most.get(rank[0], 0), counts[column])
    ranked = [
        ((int(counts[column] < max(_ENOUGH_ROWS, most[rank[0]] / _FEWER)), *rank), column)
        for rank, column in named
        if counts[column]
    ]
    return sorted(ranked, key=lambda item: item[0])


def _is_unit(rows: Sequence[Row], column: str) -> bool:
    values = [row[column] for row in rows if is_number(row.get(column))]
    return bool(values) and min(values) >= 0 and max(values) <= 1


def _is_numeric(value: object) -> bool:
    """Return whether a value is a number, also one written as text: one bad cell makes a whole CSV column text."""
    if not isinstance(value, str) or is_nan(value):
        return is_number(value)
    try:
        return float(value) is not None
    except ValueError:
        return _WRITTEN_NUMBER.fullmatch(value) is not None


def _stands_by(
    rows: Sequence[Row], column: str, y: str | None, step: str | None, is_one: Callable[[object], bool]
) -> bool:
    """Return whether most rows with a y have this column too; transformers writes total_flos in the last row only."""
    values = fill_from_step(rows, column, step)
    wanted = [is_one(value) for value, row in zip(values, rows, strict=True) if y is None or row.get(y) is not None]
    return 2 * sum(wanted) >= len(wanted) > 0


def _is_progress(rows: Sequence[Row], column: str, y: str | None) -> bool:
    """Return whether most rows with a y have a number of their own in this column."""
    values = [row.get(column) for row in rows if y is not None and row.get(y) is not None]
    return 2 * len({value for value in values if is_number(value)}) > len(values) > 0


def _run_columns(rows: Sequence[Row], needed: str) -> list[str]:
    """Return the columns that tell runs apart within one file: labels of every row, each with rows holding `needed`.

    The last condition leaves out a column such as split=train|eval, whose eval rows get their compute from train rows.
    """
    labels = []
    for column, first in rows[0].items() if rows else ():
        if not isinstance(first, str) and plain(column) not in RUN:
            continue
        values = [row.get(column) for row in rows]
        is_text = all(isinstance(value, str) for value in values)
        if plain(column) in RUN:
            is_label = is_text or all(is_number(value) for value in values)
        else:
            is_label = is_text and 2 * len(set(values)) <= len(values)
        if not is_label:
            continue
        if set(values) == {value for value, row in zip(values, rows, strict=True) if row.get(needed) is not None}:
            labels.append(column)
    return labels
