"""Which column is which in a log of any trainer: names in the order in which they are tried.

x: GPU-hours; where --gpus was given, GPU-hours built from a clock; then FLOPs, tokens, hours built from a clock, steps,
and epochs or episodes where nothing finer is there.
y: an evaluation (eval/..., val-core/..., test/...), then a plain rate (pass_rate, accuracy), then a training reward. A
column with too few rows to fit comes after all that have enough.
Names are compared in lower case with blanks and dashes as underscores. Among equals the first column is taken.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.logs.units import is_number, numbers

GPU_HOURS = ("gpu_hours", "gpuhours", "compute_gpu_hours", "compute/gpu_hours", "train/gpu_hours", "perf/gpu_hours")
FLOPS = (
    *("flops", "compute_flops", "total_flops", "train_flops", "training_flops", "compute/flops", "train/flops"),
    *("compute", "total_flos", "train/total_flos"),
)
# Only totals: progress/tokens (prime-rl) and perf/total_num_tokens (verl) are those of one step.
TOKENS = (
    *("tokens", "total_tokens", "num_tokens", "tokens_seen", "num_input_tokens_seen", "progress/total_tokens"),
    *("train/num_tokens", "train/total_tokens", "train/num_input_tokens_seen"),
)
STEP = (
    *("step", "_step", "global_step", "train/global_step", "trainer/global_step", "progress/step"),
    *("training/global_step", "train_step", "training_step", "optimizer_step", "iteration", "iter", "update"),
    *("train/step", "training/step", "trainer/step", "train/iteration", "training_iteration", "iterations", "updates"),
    # RLlib, LLaMA-Factory, ms-swift, Stable-Baselines3
    *("timesteps_total", "timesteps", "current_steps", "global_step/max_steps", "time/total_timesteps"),
    *("total_timesteps", "time/iterations", "checkpoint", "ckpt"),
)
COARSE = ("episode", "episodes", "epoch")
# wandb's own _step counts rows and never falls, the trainer's does when a run is resumed.
TRAINER_STEP = (*(name for name in STEP if name != "_step"), "_step")
STEP_TIME = (
    *("time/total", "time/step", "time/step_s", "timing/step", "timing_s/step", "step_time", "train/step_time"),
    *("perf/time_per_step", "perf/step_time", "time/step_time", "timing/total", "time_per_step", "step_time_s"),
    "total_step_time",
)
ELAPSED = (
    *("elapsed_s", "relative_time_(process)", "relative_time_(wall)", "_runtime", "runtime", "elapsed"),
    *("time/time_elapsed", "time_elapsed", "elapsed_time"),
)
WALL_CLOCK = ("wall_time", "_timestamp", "timestamp", "datetime", "date_time", "time", "created_at")
NUM_SAMPLES = ("num_samples", "eval/num_samples", "num_eval_samples")
SEED = ("seed", "random_seed", "train_seed", "train/seed")
RUN = ("run", "run_name", "run_id", "run_uuid", "experiment", "experiment_name", "exp_name")
ARM = ("recipe", "arm", "model", "config", "method", "variant", "algorithm", "algo")
LABELS = (*RUN, *ARM, *SEED, "attempt", "file")

# Rates from the closest to a pass rate on.
RATES = (
    r"pass_?rate|solve_?rate|success(_?rate)?|win_?rate(_percent)?|pass(@|_at_|_)?1",
    r"acc|accuracy|correct|exact_match",
    r"(avg|mean)@\d+",
    r"reward|rewards|return",
    r"score|scores|pass@\d+",
)
TRAINING = (
    *("reward/mean", "reward", "mean_reward", "reward_mean", "train/reward", "train/reward/mean", "reward/all/mean"),
    *("env/all/reward/total", "critic/score/mean", "critic/rewards/mean", "objective/scores", "avg_reward"),
    *("rollout/raw_reward", "rollout/ep_rew_mean", "ep_rew_mean", "value"),
)


def _part(words: str, after: str = "") -> re.Pattern[str]:
    """Return a pattern of words that stand between the separators of a name."""
    return re.compile(rf"(^|[/_. ])({words})([/_. {after}]|$)")


_EVALUATION = _part(r"evals?|evaluation|val|valid|validation|test|held_?out")
_BARE_EVALUATION = re.compile(r"(eval|val|test|validation)/[^/]+")
_RATES = tuple(_part(words, after="@") for words in RATES)
_PLAIN_RATE = re.compile(rf"(mean_|avg_)?({'|'.join(RATES[:3])})")
_ANY_RATE = _part("|".join(RATES), after="@")
_NAMED_RATE = _part("|".join((*RATES[:3], "percent", "pct")), after="@")
# TRL logs every reward function apart from their sum: the parts come after the whole. So does what only says how well
# the format was kept, and what was chosen from several answers (verl's best@8/mean beside mean@8, SkyRL's pass_at_8).
_PART = re.compile(
    r"(^|[/_.])(rewards/[^/]+/mean$|(format|formatting|penalty|bonus|best|worst|maj|majority|oracle|chosen|rejected"
    r"|(pass|acc)(@|_at_)([2-9]|\d\d+))(@\d+)?([/_.]|$))"
)
_WHOLE = _part("total|overall|sum")
_NEVER = _part(
    r"std|stdev|stderr|sem|var|variance|min|max|median|len|lengths?|time|runtime|seconds?|loss|kl|entropy"
    r"|count|num|zero|tokens?|steps?|epoch|lr|clip|clipped|ratio|norm|grad|hash|advantages?|per|truncated"
)
# A sigmoid has four parameters and needs two points more.
ENOUGH_ROWS = 6
# A column with this many times fewer rows than another of its kind was logged only now and then.
_FEWER = 4

Row = Mapping[str, Any]
RewardKind = Literal["evaluation", "rate", "training"]
_KINDS: tuple[RewardKind, ...] = ("evaluation", "rate", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The column taken as reward, and what else could have been."""

    column: str
    kind: RewardKind
    rivals: tuple[str, ...] = ()
    """Columns of the same kind."""
    too_few: tuple[tuple[str, int], ...] = ()
    """(column, rows) of columns of a better kind with too few rows, such as evaluations."""


def plain(column: str) -> str:
    return re.sub(r"[\s-]+", "_", column.strip().lower())


def find(names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the first column that has one of these names, in the order of the names."""
    known = {plain(column): column for column in reversed(columns)}
    return next((known[name] for name in names if name in known), None)


def is_rate(column: str) -> bool:
    """Return whether a column is named as a rate, which lies in [0, 1] or is per cent; a reward may be any sum."""
    return _NAMED_RATE.search(plain(column)) is not None


def is_evaluation(column: str) -> bool:
    return _EVALUATION.search(plain(column)) is not None


def is_measured(column: str) -> bool:
    """Return whether a column is named after anything that trainers measure; another may be named after a run."""
    name = plain(column)
    return name in _COUNTED or bool(_NEVER.search(name) or _ANY_RATE.search(name))


_COUNTED = {*GPU_HOURS, *FLOPS, *TOKENS, *COARSE, *SEED}


# The reward


def choose_y(columns: Sequence[str], rows: Sequence[Row]) -> Reward | None:
    """Return the column that looks most like a pass rate or reward and has rows enough, None where none does.

    A rank is (too few rows, kind of reward, whether it is a part of a sum, closeness to a pass rate).
    """
    named = {column: rank for column in columns if (rank := _rank(column, rows))}
    step = find(STEP, columns)
    steps = [str(row.get(step)) if step else str(at) for at, row in enumerate(rows, start=1)]
    counts = {column: _num_steps(rows, column, steps) for column in named}
    if not any(counts.values()):
        # A column without any number is still chosen, so that the message can name it.
        counts = {column: sum(row.get(column) is not None for row in rows) for column in named}
    most = {kind: max(counts[column] for column in named if named[column][0] == kind) for kind, _, _ in named.values()}
    ranks = {
        column: (counts[column] < max(ENOUGH_ROWS, most[rank[0]] / _FEWER), *rank)
        for column, rank in named.items()
        if counts[column]
    }
    if not ranks:
        return None
    first, *others = sorted(ranks, key=lambda column: ranks[column])
    is_short, kind, part, _ = ranks[first]
    better = (other for other in others if ranks[other][0] and ranks[other][1] < kind and not is_short)
    return Reward(
        column=first,
        kind=_KINDS[kind],
        rivals=tuple(other for other in others if ranks[other][1:3] == (kind, part)),
        too_few=tuple((other, counts[other]) for other in better),
    )


def _num_steps(rows: Sequence[Row], column: str, steps: Sequence[str]) -> int:
    """Return at how many steps after the start a column has a value."""
    found = {step for row, step in zip(rows, steps, strict=True) if is_number(row.get(column))}
    return len(found) - (len(found) > 1 and not found.isdisjoint(("0", "0.0")))


def _rank(column: str, rows: Sequence[Row]) -> tuple[int, int, int] | None:
    name = plain(column)
    if _NEVER.search(name):
        return None
    closeness = next((rank for rank, rate in enumerate(_RATES) if rate.search(name)), None)
    part, training = int(bool(_PART.search(name))), (2, 0, TRAINING.index(name)) if name in TRAINING else None
    if closeness is None:
        # slime logs an evaluation as eval/NAME; its range shows what it is.
        values = numbers(rows if _BARE_EVALUATION.fullmatch(name) else (), column)
        values = values[~np.isnan(values)]
        return (0, 2, 0) if values.size and 0 <= values.min() <= values.max() <= 1 else training
    if _EVALUATION.search(name):
        return 0, part, closeness
    if _PLAIN_RATE.fullmatch(name):
        return 1, 0, 0
    return training or (2, 1 + part, int(not _WHOLE.search(name)))


# Compute


def choose_x(columns: Sequence[str], rows: Sequence[Row], *, y: str | None, built: bool) -> str | None:
    """Return the column to use as compute; with `built`, gpu_hours comes from --gpus, which the user asked for.

    Most rows with a y have a number there; transformers writes total_flos in the last row only.
    """
    order = (*(("gpu_hours",) if built else ()), *GPU_HOURS, *FLOPS, *TOKENS, "hours", *STEP)
    known = {plain(column): column for column in reversed(columns)}
    # An epoch or episode counts training only where nothing finer is there, and where it differs from row to row.
    named = [known[name] for name in order if name in known] or [
        known[name] for name in COARSE if name in known and _differs(rows, known[name], y)
    ]
    step = find(STEP, columns)
    wanted = np.array([y is None or row.get(y) is not None for row in rows], dtype=bool)
    given = {column: np.array(fill_from_step(rows, column, step), dtype=object)[wanted] for column in named}
    for counts in (is_number, lambda value: value is not None):
        for column, values in given.items():
            if 2 * sum(map(counts, values)) >= max(len(values), 1):
                return column
    return None


def _differs(rows: Sequence[Row], column: str, y: str | None) -> bool:
    rows = [row for row in rows if y is not None and row.get(y) is not None]
    run = find(RUN, list(dict.fromkeys(name for row in rows for name in row))) or ""
    values = {(str(row.get(run)), row[column]) for row in rows if is_number(row.get(column))}
    return 2 * len(values) > len(rows) > 0


def fill_from_step(rows: Sequence[Row], column: str, step: str | None) -> list[Any]:
    """Return a column's values; one that is missing or NaN is taken from another row of the same step and run."""
    values = [row.get(column) for row in rows]
    gaps = [value is None or value != value for value in values]
    if step is None or step == column or not any(gaps):
        return values
    keys = [(row.get(step), *key) for row, key in zip(rows, run_keys(rows, run_labels(rows, column)), strict=True)]
    known = {key: value for key, value, gap in zip(keys, values, gaps, strict=True) if not gap and is_number(key[0])}
    return [known.get(key, value) if gap else value for key, value, gap in zip(keys, values, gaps, strict=True)]


# Labels


def run_labels(rows: Sequence[Row], needed: str) -> list[str]:
    """Return the columns that name runs within a file: those named so, and words that repeat, as dates do not.

    Each value of theirs has rows with `needed`. This leaves out a column such as split=train|eval, whose eval rows get
    their compute from train rows.
    """
    labels = []
    for column in dict.fromkeys(name for row in rows for name in row):
        words = [row[column] for row in rows if row.get(column) is not None]
        if plain(column) in LABELS or (2 * len(set(map(str, words))) <= len(words) and {str} >= set(map(type, words))):
            with_needed = {str(row.get(column)) for row in rows if row.get(needed) is not None}
            labels += [column] if all(str(row.get(column)) in with_needed for row in rows) else []
    return labels


def run_keys(rows: Sequence[Row], labels: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(str(row.get(label)) for label in labels) for row in rows]


def grouped(keys: Iterable[Any]) -> dict[Any, NDArray[np.intp]]:
    """Return the positions of each key."""
    groups: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(key, []).append(at)
    return {key: np.array(positions) for key, positions in groups.items()}


def label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
