"""Which column is which in a log of any trainer: names in the order in which they are tried.

x: GPU-hours; where --gpus was given, GPU-hours built from a clock; then FLOPs, tokens, hours built from a clock, steps,
and epochs or episodes where nothing finer is there.
y: an evaluation (eval/..., val-core/..., test/...), then a plain rate (pass_rate, accuracy), then a training reward. A
column with too few rows to fit comes after all that have enough.
Names are compared in lower case with blanks and dashes as underscores. Among equals the first column is taken.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from scalerl.logs.units import Cells, is_number, known, logged, numeric

_STEPS = (
    *("step", "global_step", "train/global_step", "trainer/global_step", "progress/step"),
    *("training/global_step", "train_step", "training_step", "optimizer_step", "iteration", "iter", "update"),
    *("train/step", "training/step", "trainer/step", "train/iteration", "training_iteration", "iterations", "updates"),
    # RLlib, LLaMA-Factory, ms-swift, Stable-Baselines3
    *("timesteps_total", "timesteps", "current_steps", "global_step/max_steps", "time/total_timesteps"),
    *("total_timesteps", "time/iterations", "checkpoint", "ckpt", "steps"),
    # Baselines, Spinning Up, and frames of games
    *("misc/total_timesteps", "totalenvinteracts", "env_steps", "num_env_steps", "total_env_steps", "frame", "frames"),
)
ROLES: dict[str, tuple[str, ...]] = {
    "gpu_hours": (
        *("gpu_hours", "gpuhours", "compute_gpu_hours", "compute/gpu_hours", "train/gpu_hours", "perf/gpu_hours"),
    ),
    "flops": (
        *("flops", "compute_flops", "total_flops", "train_flops", "training_flops", "compute/flops", "train/flops"),
        *("compute", "total_flos", "train/total_flos"),
    ),
    # Only totals: progress/tokens (prime-rl) and perf/total_num_tokens (verl) are those of one step.
    "tokens": (
        *("tokens", "total_tokens", "num_tokens", "tokens_seen", "num_input_tokens_seen", "progress/total_tokens"),
        *("train/num_tokens", "train/total_tokens", "train/num_input_tokens_seen"),
    ),
    "hours": ("hours",),
    "step": ("step", "_step", *_STEPS[1:]),
    # wandb's own _step counts rows and never falls, the trainer's does when a run is resumed.
    "trainer_step": (*_STEPS, "_step"),
    "coarse": ("episode", "episodes", "epoch"),
    "step_time": (
        *("time/total", "time/step", "time/step_s", "timing/step", "timing_s/step", "step_time", "train/step_time"),
        *("perf/time_per_step", "perf/step_time", "time/step_time", "timing/total", "time_per_step", "step_time_s"),
        "total_step_time",
    ),
    "elapsed": (
        *("elapsed_s", "relative_time_(process)", "relative_time_(wall)", "_runtime", "runtime", "elapsed"),
        *("time/time_elapsed", "time_elapsed", "elapsed_time"),
    ),
    "wall_clock": ("wall_time", "_timestamp", "timestamp", "datetime", "date_time", "time", "created_at"),
    "date": ("date", "day"),
    "num_samples": ("eval/num_samples", "num_eval_samples", "num_samples"),
    "seed": ("seed", "random_seed", "train_seed", "train/seed"),
    "run": ("run", "run_name", "run_id", "run_uuid", "experiment", "experiment_name", "exp_name"),
    "arm": ("recipe", "arm", "model", "config", "method", "variant", "algorithm", "algo"),
    "label": ("attempt", "file"),
    "split": ("split", "phase", "mode", "stage", "subset", "set", "type", "kind", "event"),
    # A table with one metric per row.
    "metric": ("tag", "metric", "metric_name", "metricname", "metric_key", "key", "name", "variable"),
    "value": ("value", "metric_value", "metricvalue"),
}
"""What a column is for, and the names that say so, in the order in which they are tried."""

# Rates from the closest to a pass rate on.
RATES = (
    r"pass_?rate|solve_?rate|success(_?rate)?|win_?rate(_percent)?|pass(@|_at_|_)?1",
    r"acc|accuracy|correct|exact_match",
    r"(avg|mean)@\d+",
    r"rewards?|returns?",
    r"score|scores|pass@\d+",
)
TRAINING = (
    *("reward/mean", "reward", "mean_reward", "reward_mean", "train/reward", "train/reward/mean", "reward/all/mean"),
    *("env/all/reward/total", "critic/score/mean", "critic/rewards/mean", "objective/scores", "avg_reward"),
    *("rollout/raw_reward", "rollout/ep_rew_mean", "ep_rew_mean", "eprewmean", "averageepret", "value"),
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

Columns = Mapping[str, Cells]
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


@lru_cache(maxsize=4096)
def plain(column: str) -> str:
    return re.sub(r"[\s,-]+", "_", column.strip().lower())


@lru_cache(maxsize=256)
def roles(columns: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the columns of each role, in the order of the names; of columns with equal names the first."""
    there = {plain(column): column for column in reversed(columns)}
    return {role: [there[name] for name in names if name in there] for role, names in ROLES.items()}


def find(columns: Iterable[str], *wanted: str) -> str | None:
    """Return the first column that has one of these roles, in the order of the roles."""
    found = roles(tuple(columns))
    return next((column for role in wanted for column in found[role]), None)


def has_role(column: str, *wanted: str) -> bool:
    return any(plain(column) in ROLES[role] for role in wanted)


def is_rate(column: str) -> bool:
    """Return whether a column is named as a rate, which lies in [0, 1] or is per cent; a reward may be any sum."""
    return _NAMED_RATE.search(plain(column)) is not None


def is_part(column: str) -> bool:
    """Return whether a column is a part of a reward, or was chosen from several answers: pass@16 is no mean of them."""
    return _PART.search(plain(column)) is not None


def is_evaluation(column: str) -> bool:
    return _EVALUATION.search(plain(column)) is not None


def is_measured(column: str) -> bool:
    """Return whether a column is named after anything that trainers measure; another may be named after a run."""
    name = plain(column)
    is_counted = has_role(name, "gpu_hours", "flops", "tokens", "coarse", "seed")
    return is_counted or bool(_NEVER.search(name) or _ANY_RATE.search(name))


# The reward


def choose_y(cells: Columns) -> Reward | None:
    """Return the column that looks most like a pass rate or reward and has rows enough, None where none does.

    A rank is (too few rows, kind of reward, whether it is a part of a sum, closeness to a pass rate).
    """
    named = {column: rank for column in cells if (rank := rank_of(column))}
    step, counts = find(cells, "step"), dict.fromkeys(named, 0)
    for column, rank in named.items():
        values = numeric(cells[column])
        # A column without a telling name, as slime's eval/NAME, holds nothing but rates.
        if rank != _BARE or (np.nanmin(values, initial=1) >= 0 and np.nanmax(values, initial=0) <= 1):
            steps = cells[step] if step else np.arange(1, len(values) + 1)
            seen = set(map(str, steps[~np.isnan(values)]))
            counts[column] = len(seen) - (len(seen) > 1 and not seen.isdisjoint(("0", "0.0")))
    if not any(counts.values()):
        # A column without any number is still chosen, so that the message can name it.
        counts = {column: int(logged(cells[column]).sum()) * (named[column] != _BARE) for column in named}
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


_BARE = (0, 2, 0)


@lru_cache(maxsize=4096)
def rank_of(column: str) -> tuple[int, int, int] | None:
    """Return how much a column is named like a reward, the least first; None where it is not."""
    name = plain(column)
    if _NEVER.search(name):
        return None
    closeness = next((rank for rank, rate in enumerate(_RATES) if rate.search(name)), None)
    part, training = int(is_part(name)), (2, 0, TRAINING.index(name)) if name in TRAINING else None
    if closeness is None:
        return _BARE if _BARE_EVALUATION.fullmatch(name) else training
    if _EVALUATION.search(name):
        return 0, part, closeness
    if _PLAIN_RATE.fullmatch(name):
        return 1, 0, 0
    return training or (2, 1 + part, int(not _WHOLE.search(name)))


# Compute


def choose_x(cells: Columns, *, y: str | None, built: bool) -> str | None:
    """Return the column to use as compute; with `built`, gpu_hours comes from --gpus, which the user asked for.

    Most rows with a y have a number there; transformers writes total_flos in the last row only.
    """
    found, rows = roles(tuple(cells)), np.flatnonzero(logged(cells[y])) if y and y in cells else slice(None)
    named = [column for role in ("gpu_hours", "flops", "tokens", "hours", "step") for column in found[role]]
    # An epoch or episode counts training only where nothing finer is there, and where it differs from row to row.
    named = named or [name for name in found["coarse"] if y and _differs(cells, name, rows)]
    given = {name: fill_from_step(cells, name)[rows] for name in [*(["gpu_hours"] * built), *named] if name in cells}
    numbers = [column for column, own in given.items() if 2 * sum(map(is_number, own)) >= max(len(own), 1)]
    texts = [column for column, own in given.items() if 2 * logged(own).sum() >= max(len(own), 1)]
    return next(iter((*numbers, *texts)), None)


def _differs(cells: Columns, column: str, rows: Any) -> bool:
    """Return whether most rows have a value of their own within their run."""
    values, run = cells[column][rows], find(cells, "run")
    runs = cells[run][rows] if run else values
    different = {(str(own), value) for own, value in zip(runs, values, strict=True) if is_number(value)}
    return 2 * len(different) > len(values)


def fill_from_step(cells: Columns, column: str) -> Cells:
    """Return a column; a value that is missing or NaN is taken from another row of the same step and run."""
    step, values, is_there = find(cells, "step"), cells[column], known(cells[column])
    if step is None or step == column or is_there.all():
        return values
    keys = list(zip(cells[step], *(map(str, cells[name]) for name in run_labels(cells, column)), strict=True))
    there = {keys[at]: values[at] for at in np.flatnonzero(is_there) if is_number(keys[at][0])}
    filled = values.copy()
    for at in np.flatnonzero(~is_there):
        filled[at] = there.get(keys[at], values[at])
    return filled


# Labels


def run_labels(cells: Columns, needed: str) -> list[str]:
    """Return the columns that name runs within a file: those named so, and words that repeat, other than dates.

    Each value of theirs has rows with `needed`. This leaves out a column such as split=train|eval, whose eval rows get
    their compute from train rows.
    """
    has_needed = logged(cells[needed])
    named = []
    for name, own in cells.items():
        words = own[logged(own)]
        are_words = {str} >= set(map(type, words)) and 2 * len(set(words)) <= len(words) and not has_role(name, "date")
        named += [name] if are_words or has_role(name, "run", "arm", "seed", "label") else []
    return [column for column in named if set(map(str, cells[column])) == set(map(str, cells[column][has_needed]))]
