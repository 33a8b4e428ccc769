"""Which column is which in a log of any trainer: names in the order in which they are tried.

x: GPU-hours; where --gpus was given, GPU-hours built from a clock; then FLOPs, tokens, hours built from a clock, steps,
and epochs or episodes where nothing finer is there.
y: an evaluation (eval/..., val-core/..., test/...), then a plain rate (pass_rate, accuracy), then a training reward. A
column with too few rows to fit comes after all that have enough.
Names are compared in lower case with blanks and dashes as underscores. Among equals the first column is taken.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.logs.units import is_number, looks_numeric

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
    # LLaMA-Factory, Stable-Baselines3
    *("current_steps", "time/total_timesteps", "total_timesteps", "time/iterations"),
)
COARSE = ("episode", "episodes", "epoch")
# wandb's own _step counts rows and never falls, the trainer's does when a run is resumed.
TRAINER_STEP = (*(name for name in STEP if name != "_step"), "_step")
STEP_TIME = (
    *("time/total", "time/step", "time/step_s", "timing/step", "timing_s/step", "step_time", "train/step_time"),
    *("perf/time_per_step", "perf/step_time", "time/step_time", "timing/total", "time_per_step", "step_time_s"),
    "total_step_time",
)
ELAPSED = ("elapsed_s", "relative_time_(process)", "relative_time_(wall)", "_runtime", "runtime", "elapsed")
WALL_CLOCK = ("wall_time", "_timestamp", "timestamp", "datetime", "date_time", "time", "created_at")
NUM_SAMPLES = ("num_samples", "eval/num_samples", "num_eval_samples")
SEED = ("seed", "random_seed", "train_seed", "train/seed")
RUN = ("run", "run_name", "run_id", "experiment", "experiment_name", "exp_name")
ARM = ("recipe", "arm", "model", "config", "method", "variant")
LABELS = (*RUN, *ARM, *SEED, "attempt")

# Rates from the closest to a pass rate on.
RATES = (
    r"pass_?rate|solve_?rate|success_?rate|win_?rate(_percent)?|pass(@|_at_|_)?1",
    r"acc|accuracy|correct|exact_match",
    r"(avg|mean)@\d+",
    r"reward|rewards|return",
    r"score|scores|pass@\d+",
)
TRAINING = (
    *("reward/mean", "reward", "mean_reward", "reward_mean", "train/reward", "train/reward/mean", "reward/all/mean"),
    *("env/all/reward/total", "critic/score/mean", "critic/rewards/mean", "objective/scores", "avg_reward"),
    *("rollout/raw_reward", "rollout/ep_rew_mean", "value"),
)
_EVALUATION = re.compile(r"(^|[/_.])(evals?|evaluation|val|valid|validation|test|held_?out)([/_.]|$)")
_BARE_EVALUATION = re.compile(r"eval/[^/]+")
_RATES = tuple(re.compile(rf"(^|[/_.])({rate})([/_.]|$)") for rate in RATES)
_PLAIN_RATE = re.compile(rf"(mean_|avg_)?({'|'.join(RATES[:3])})")
_ANY_RATE = re.compile(rf"(^|[/_.])({'|'.join(RATES)})([/_.]|$)")
_NAMED_RATE = re.compile(rf"(^|[/_.])({'|'.join(RATES[:3])}|percent|pct)([/_.@]|$)")
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


def may_be_run(column: str) -> bool:
    """Return whether a column of a wide table may be named after a run: not after anything that trainers measure."""
    name = plain(column)
    return not (_NEVER.search(name) or _ANY_RATE.search(name) or name in (*GPU_HOURS, *FLOPS, *TOKENS, *COARSE, *SEED))


# The reward


def choose_y(columns: Sequence[str], rows: Sequence[Row]) -> Reward | None:
    """Return the column that looks most like a pass rate or reward and has rows enough, None where none does."""
    ranked = _ranked(columns, rows)
    if not ranked:
        return None
    (is_short, kind, part, _), column, _ = ranked[0]
    return Reward(
        column=column,
        kind=_KINDS[kind],
        rivals=tuple(other for rank, other, _ in ranked[1:] if rank[1:3] == (kind, part)),
        too_few=() if is_short else tuple((other, num) for rank, other, num in ranked if rank[0] and rank[1] < kind),
    )


def _ranked(columns: Sequence[str], rows: Sequence[Row]) -> list[tuple[tuple[int, int, int, int], str, int]]:
    """Return (rank, column, rows) of the columns named as a reward, the best first.

    A rank is (too few rows, kind of reward, whether it is a part of a sum, closeness to a pass rate).
    """
    named = [(rank, column) for column in columns if (rank := _rank(plain(column)))]
    # slime logs an evaluation as eval/NAME; its range shows what it is.
    bare = (column for column in columns if _BARE_EVALUATION.fullmatch(plain(column)) and not _rank(plain(column)))
    named += [((0, 2, 0), column) for column in bare if not _NEVER.search(plain(column)) and _in_unit(rows, column)]
    step = find(STEP, columns)
    counts = {column: _num_steps(rows, column, step, looks_numeric) for _, column in named}
    if not any(counts.values()):
        # A column without any number is still chosen, so that the message can name it.
        counts = {column: _num_steps(rows, column, step, lambda value: value is not None) for column in counts}
    most: dict[int, int] = {}
    for rank, column in named:
        most[rank[0]] = max(most.get(rank[0], 0), counts[column])
    ranked = [
        ((int(num < max(ENOUGH_ROWS, most[rank[0]] / _FEWER)), *rank), column, num)
        for rank, column in named
        if (num := counts[column])
    ]
    return sorted(ranked, key=lambda item: item[0])


def _num_steps(rows: Sequence[Row], column: str, step: str | None, fits: Callable[[object], bool]) -> int:
    """Return at how many steps after the start a column has a value; in how many rows, where there are no steps."""
    found = {str(row.get(step)) if step else str(at) for at, row in enumerate(rows, start=1) if fits(row.get(column))}
    return len(found) - (len(found) > 1 and not found.isdisjoint(("0", "0.0")))


def _rank(name: str) -> tuple[int, int, int] | None:
    if _NEVER.search(name):
        return None
    part = int(bool(_PART.search(name)))
    if _EVALUATION.search(name):
        return next(((0, part, rank) for rank, rate in enumerate(_RATES) if rate.search(name)), None)
    if _PLAIN_RATE.fullmatch(name):
        return 1, 0, 0
    if name in TRAINING:
        return 2, 0, TRAINING.index(name)
    return (2, 1 + part, int(not _WHOLE.search(name))) if _ANY_RATE.search(name) else None


def _in_unit(rows: Sequence[Row], column: str) -> bool:
    values = [row[column] for row in rows if is_number(row.get(column))]
    return bool(values) and min(values) >= 0 and max(values) <= 1


# Compute


def choose_x(columns: Sequence[str], rows: Sequence[Row], *, y: str | None, built: bool) -> str | None:
    """Return the column to use as compute; with `built`, gpu_hours comes from --gpus, which the user asked for."""
    order = (*(("gpu_hours",) if built else ()), *GPU_HOURS, *FLOPS, *TOKENS, "hours", *STEP)
    known = {plain(column): column for column in reversed(columns)}
    named = [known[name] for name in order if name in known]
    if not named:
        # An epoch or episode counts training only where it differs from row to row.
        named = [known[name] for name in COARSE if name in known and _differs(rows, known[name], y)]
    step = find(STEP, columns)
    kinds: tuple[Callable[[object], bool], ...] = (looks_numeric, lambda value: value is not None)
    return next((column for fits in kinds for column in named if _covers(rows, column, y, step, fits)), None)


def fill_from_step(rows: Sequence[Row], column: str, step: str | None) -> list[Any]:
    """Return a column's values; one that is missing or NaN is taken from another row of the same step and run."""
    values = [row.get(column) for row in rows]
    missing = [value is None or value != value for value in values]
    if step is None or step == column or not any(missing):
        return values
    labels = run_labels(rows, column)
    keys = [(row.get(step), *(str(row.get(label)) for label in labels)) for row in rows]
    known = {key: value for key, value, gap in zip(keys, values, missing, strict=True) if not gap and is_number(key[0])}
    return [
        known.get(key, value) if gap and is_number(key[0]) else value
        for key, value, gap in zip(keys, values, missing, strict=True)
    ]


def _covers(rows: Sequence[Row], column: str, y: str | None, step: str | None, fits: Callable[[object], bool]) -> bool:
    """Return whether most rows with a y have this column too; transformers writes total_flos in the last row only."""
    values = fill_from_step(rows, column, step)
    wanted = [fits(value) for value, row in zip(values, rows, strict=True) if y is None or row.get(y) is not None]
    return 2 * sum(wanted) >= len(wanted) > 0


def _differs(rows: Sequence[Row], column: str, y: str | None) -> bool:
    rows = [row for row in rows if y is not None and row.get(y) is not None]
    run = find(RUN, list(dict.fromkeys(itertools.chain.from_iterable(rows)))) or ""
    values = {(str(row.get(run)), row[column]) for row in rows if is_number(row.get(column))}
    return 2 * len(values) > len(rows) > 0


# Labels


def run_labels(rows: Sequence[Row], needed: str) -> list[str]:
    """Return the columns that name runs within a file: those named so, and words that repeat, as dates do not.

    Each value of theirs has rows with `needed`. This leaves out a column such as split=train|eval, whose eval rows get
    their compute from train rows.
    """
    labels = []
    for column in dict.fromkeys(itertools.chain.from_iterable(rows)):
        values = [row.get(column) for row in rows]
        words = [value for value in values if value is not None]
        repeat = all(isinstance(word, str) for word in words) and 2 * len(set(words)) <= len(words)
        if plain(column) in LABELS or repeat:
            texts = list(map(str, values))
            with_needed = {text for text, row in zip(texts, rows, strict=True) if row.get(needed) is not None}
            labels += [column] if with_needed == set(texts) else []
    return labels
