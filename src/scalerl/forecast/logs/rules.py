"""The rules by which the columns of a log are chosen: an ordered table for each role, such as the column of rewards.

The first rule that makes a choice counts, and an option of the user is the first rule of its role.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.amounts import duration
from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    REWARD_KINDS,
    Rank,
    counts_successes,
    has_role,
    is_average,
    is_lower_better,
    is_measured,
    is_part,
    is_spread,
    is_whole,
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.frame import Floats, Rows, listed
from scalerl.forecast.logs.labels import arm_and_set, finished_runs, has_texts, labels_that_explain
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Choice, Plan, Rule
from scalerl.forecast.logs.question import ask_for_a_name, check_clear
from scalerl.forecast.logs.selection import check_columns
from scalerl.forecast.logs.tidy import first, wall_times

# A sigmoid has four parameters and needs two points more.
_ENOUGH_STEPS = 6
# A counter that falls at more of its rows is no step where another one hardly ever does.
_MAX_FALLS = 0.1
_MANY_RISES = 0.95
# So many columns of a table without a reward are tried as results of runs.
_TRIED = 3
# Rows without any counter are counted where as many have a reward.
_COUNTABLE = 3
# A column with this many times fewer steps than another of its kind was logged only now and then.
_FEWER = 4
# A column with this many times more rows per step than another holds single answers.
_PER_SAMPLE = 1.5


# Rules that several roles share


def named(role: str, counted: str = "total") -> Rule:
    """Return the rule that chooses the first column whose name has a role; `counted` says how its amounts are."""

    def by_name(plan: Plan) -> Choice:
        columns = plan.named(role) if counted == "total" else with_role(plan.frame.columns, role)
        return Choice(columns[:1], counted, columns[1:])

    return by_name


def rollout_and_training(plan: Plan) -> Choice | None:
    """Choose the seconds of rollout and of training of each step, to be added up."""
    columns = [first(plan.frame, "rollout_seconds"), first(plan.frame, "train_seconds")]
    return Choice(columns, "per_step") if all(columns) else None


# The step


def named_step(plan: Plan) -> Choice | None:
    """Choose the first column named as a step that half of the rows have; otherwise the first one.

    Where it often falls, as the length of an episode does, and another counter hardly ever does, choose that one.
    """
    names = plan.named("step")
    common = [name for name in names if 2 * plan.frame.known(name).sum() >= len(plan.frame)]
    chosen = (common or names)[:1]
    if chosen and _share_of_falls(plan, chosen[0]) > _MAX_FALLS:
        counters = [*names[1:], *plan.named("coarse")]
        rising = [
            name for name in counters if plan.frame.known(name).all() and _share_of_rises(plan, name) > _MANY_RISES
        ]
        chosen = rising[:1] or chosen
    return Choice(chosen)


def _share_of_falls(plan: Plan, name: str) -> float:
    moves = np.diff(plan.frame.numbers(name)[plan.frame.known(name)])
    return float((moves < 0).mean()) if len(moves) else 0.0


def _share_of_rises(plan: Plan, name: str) -> float:
    moves = np.diff(plan.frame.numbers(name)[plan.frame.known(name)])
    return float((moves > 0).mean()) if len(moves) else 0.0


def coarse_counter(plan: Plan) -> Choice | None:
    """Choose an epoch or episode, if most rows have their own and no column is named as compute."""
    columns = with_role(plan.frame.columns, "coarse")[:1]
    places = plan.frame.groups([*columns, *with_role(plan.frame.columns, "run", "arm", "seed")])
    is_fine = 2 * np.count_nonzero(np.diff(places)) >= len(plan.frame) - 1
    return Choice(columns) if is_fine and not plan.named(*AXES) else None


def rising_integers(plan: Plan) -> Choice | None:
    """Choose integers that rise from row to row, such as an index, if no column is named as compute."""
    for name in plan.frame.columns if not plan.named(*AXES) and len(plan.frame) > 2 else ():
        values = plan.frame.numbers(name)
        is_rising = (np.diff(values) > 0).all() and (values % 1 == 0).all()
        if is_rising and not is_measured(name) and not has_role(name, "wall_clock", "elapsed"):
            return Choice((name,))
    return None


def counted(plan: Plan) -> Choice | None:
    """Count the rows, if no column is named as compute or time and several have a reward."""
    is_timed = plan.named(*AXES, "coarse", "seconds_per_step", "elapsed", "wall_clock")
    num_rewards = max((plan.frame.known(name).sum() for name in plan.frame.columns if reward_rank(name)), default=0)
    return None if is_timed or num_rewards < _COUNTABLE else Choice(("step",))


# The reward


def asked_reward(plan: Plan) -> Choice | None:
    """Choose the column of --y."""
    return Choice((plan.options.y,), "option") if plan.options.y else None


def of_the_export(plan: Plan) -> Choice | None:
    """Choose the only metric of a table that had a column for each run, whatever its name."""
    metrics = [name for each in plan.facts for name in each.values.get("metrics", ()) if name[:1] != "_"]
    return Choice(metrics, "evaluation") if len(metrics) == 1 else None


def like_a_reward(plan: Plan) -> Choice | None:
    """Choose the column that is named most like a pass rate or reward, and has values at enough steps.

    An evaluation comes before a plain rate, and that before a training reward; a whole before its parts. A column with
    several values per step holds single answers, and comes after those with one.
    """
    found = _named_like_rewards(plan)
    if not found:
        return None
    _compare(found)
    ordered = sorted(found, key=_RewardColumn.flaws)
    best, *rest = [column for column in ordered if column.num_steps] or ordered
    kind, part, _ = best.rank
    others = [column.name for column in rest if column.rank[:2] == (kind, part)]
    rivals = [column.name for column in rest if column.flaws() == best.flaws()]
    if best.is_mostly_zero:
        # Nothing is solved yet at most steps, where a reward beside it may tell more.
        rivals += [column.name for column in rest if not column.is_mostly_zero and column.num_steps][:1]
    rarer = [column for column in rest if column.is_rare > best.is_rare and column.rank[0] < kind]
    too_few = {column.name: column.num_steps for column in rarer}
    return Choice((best.name,), REWARD_KINDS[kind], others, rivals, too_few)


@dataclass(eq=False)
class _RewardColumn:
    """A column that is named like a reward, and what its values say."""

    name: str
    rank: Rank
    values: Floats
    num_steps: int
    """Steps at which it has a value, without step 0, which is the model before training."""
    per_place: float = 0.0
    """How many values it has for each run and step."""
    is_rare: bool = False
    is_per_sample: bool = False

    @property
    def is_short(self) -> bool:
        return self.num_steps < _ENOUGH_STEPS

    @property
    def is_mostly_zero(self) -> bool:
        return bool(2 * np.count_nonzero(self.values) < len(self.values))

    def flaws(self) -> tuple[Any, ...]:
        """Return what speaks against the column, from the worst on."""
        is_constant = not self.is_short and self.values.min() == self.values.max()
        known = (not self.num_steps, self.is_short, is_constant, self.is_rare, self.is_per_sample)
        return *known, *self.rank, not is_whole(self.name)


def _named_like_rewards(plan: Plan) -> list[_RewardColumn]:
    """Return the columns that are named like rewards, unless their values say that they are something else."""
    frame, steps = plan.frame, plan.steps(plan.frame)
    places = _places(plan, steps)
    found: list[_RewardColumn] = []
    for name in frame.columns:
        rank = reward_rank(name)
        if rank is None:
            continue
        known = frame.known(name)
        values = frame.numbers(name)[known]
        if (rank[:2] == BARE and not _is_rate(values)) or _is_count(name, values):
            continue
        num_steps = max(len({*steps[known].tolist()} - {0.0}), min(len(values), 1))
        column = _RewardColumn(name, rank, values, num_steps)
        if num_steps:
            column.per_place = len(values) / len({*places[known].tolist()})
        found.append(column)
    return found


def _places(plan: Plan, steps: Floats) -> Rows:
    """Return a number for each row, equal for rows at one place: those with the same labels and step."""
    frame = plan.frame
    words = [name for name in frame.columns if frame.is_words(name) and 2 * frame.num_groups([name]) <= len(frame)]
    labels = dict.fromkeys([*words, *with_role(frame.columns, "run", "set", "seed", "arm")])
    return frame.having({"": steps}).groups([*labels, ""])


def _compare(found: list[_RewardColumn]) -> None:
    """Say of each column whether it has far fewer steps, or more values per step, than the others."""
    most_steps: dict[int, int] = {}
    for column in found:
        kind = column.rank[0]
        most_steps[kind] = max(most_steps.get(kind, 0), column.num_steps)
    least_per_place = min((column.per_place for column in found if column.num_steps), default=0.0)
    for column in found:
        column.is_rare = column.num_steps < max(_ENOUGH_STEPS, most_steps[column.rank[0]] / _FEWER)
        column.is_per_sample = column.per_place > _PER_SAMPLE * least_per_place


def _is_count(name: str, values: Floats) -> bool:
    """Return whether a column says how many were correct: whole numbers beyond 1 under such a word."""
    return counts_successes(name) and bool(values.size and (values % 1 == 0).all() and np.abs(values).max() > 1)


def _is_rate(values: Floats) -> bool:
    return bool(values.size and values.min() >= 0 and values.max() <= 1)


def our_reward(plan: Plan) -> Choice | None:
    """Choose the reward of our own evaluations."""
    return Choice(("reward",), "total") if "reward" in plan.frame else None


def mean_of_interval(plan: Plan) -> Choice | None:
    """Choose a column that is named as a mean and nothing else, if its spread or the ends of an interval are beside."""
    names = [name for name in plan.frame.columns if plan.frame.known(name).any() and plan.kind != "console"]
    means = [name for name in names if is_average(name)]
    return Choice(means[:1]) if any(is_spread(name) and name not in means for name in names) and means else None


def only_numbers(plan: Plan) -> Choice | None:
    """Choose the only column of numbers besides those named as step, compute or number of answers."""
    columns = [name for name in plan.frame.columns if plan.frame.known(name).any() and not is_measured(name)]
    others = {*columns} - {*plan.named(*AXES, "elapsed", "wall_clock", "num_samples")}
    # A console prints many numbers by accident.
    is_made = plan.kind != "console" and plan.named(*AXES)
    return Choice([*others]) if is_made and len(others) == 1 else None


# Compute


def time_of_day(plan: Plan) -> Choice | None:
    """Choose the time of day, also one without a day, as 10:03:20 and the time since the beginning are.

    Where a console prints no dates, its 'time' is in seconds: since the beginning if they only grow, else since the row
    before.
    """
    column = first(plan.frame, "wall_clock")
    texts = plan.frame.words(column) if plan.frame.is_words(column) else []
    if np.isfinite([*wall_times(plan.frame), *map(duration, texts)]).any():
        return Choice((column,), "clock")
    seconds = plan.frame.numbers(column)[plan.frame.known(column)]
    rule = "elapsed" if (np.diff(seconds) > 0).all() and len(seconds) > 2 else "per_row"
    return Choice((column,), rule) if seconds.size and plan.kind == "console" else None


def asked_compute(plan: Plan) -> Choice | None:
    """Choose the column of --x, or the hours if that is a time of day."""
    is_clock = has_role(plan.options.x or "", "wall_clock") and "hours" in plan.roles
    return Choice(("hours",) if is_clock else (plan.options.x,), "option") if plan.options.x else None


def hours_times_gpus(plan: Plan) -> Choice | None:
    """Choose the log's clock times --gpus."""
    return Choice(("hours",), "times_gpus") if plan.options.gpus and "hours" in plan.roles else None


def answers_of_a_mean(plan: Plan) -> Choice | None:
    """Choose the number of answers that the reward is the mean of; the best of several answers is no mean."""
    return None if is_part(plan["y"]) else named("num_samples")(plan)


RULES: dict[str, tuple[Rule, ...]] = {
    "step": (named_step, coarse_counter, rising_integers, counted),
    "y": (asked_reward, of_the_export, like_a_reward, mean_of_interval, only_numbers),
    "label": (labels_that_explain,),
    "hours": (
        named("hours"),
        named("seconds_per_step", "per_step"),
        rollout_and_training,
        named("elapsed", "elapsed"),
        time_of_day,
    ),
    "gpu_hours": (named("gpu_hours"), hours_times_gpus),
    "flops": (named("flops"),),
    "tokens": (named("tokens"), named("tokens_per_step", "per_step")),
    "cost": (named("cost"),),
    "num_samples": (answers_of_a_mean,),
    "x": (asked_compute,),
}
OUR_RULES: dict[str, tuple[Rule, ...]] = {
    "y": (asked_reward, our_reward, like_a_reward),
    "label": (arm_and_set,),
    "num_samples": (answers_of_a_mean,),
    **{axis: (named(axis),) for axis in ("step", "gpu_hours", "flops", "tokens")},
    "x": (asked_compute,),
}
"""Rules of our own run folders: the store knows what a row is, and nothing is guessed."""


def decided(plan: Plan) -> Plan:
    """Return the plan with a choice for every role that a rule finds one for; InputError if one is missing."""
    for role, table in (OUR_RULES if plan.is_ours else RULES).items():
        for rule in table:
            if (choice := rule(plan)) and choice.columns:
                plan = replace(plan, roles={**plan.roles, role: choice._replace(rule=choice.rule or rule.__name__)})
                break
    _check(plan)
    return plan


def _refuse_other_tables(plan: Plan) -> None:
    """Raise InputError for a table without a reward that is known to be something else than a history."""
    frame = plan.frame
    if has_texts(frame):
        raise InputError(
            f"{plan.path} has one row per answer of an evaluation: give a row for each evaluation, with its step and "
            "the mean reward."
        )
    numbers = [name for name in frame.columns if not frame.is_words(name) and not has_role(name, *AXES)]
    for name in [name for name in numbers if not is_lower_better(name)][:_TRIED]:
        _refuse_finished_runs(replace(plan, roles={**plan.roles, "y": Choice((name,))}))
    varying = [name for name in frame.columns if len({*frame.numbers(name)[frame.known(name)].tolist()}) > 1]
    if not varying and len(frame.columns) > 2 and plan.kind in ("json", "jsonl"):
        raise InputError(
            f"{plan.path} holds settings or one result, and no rows of steps: give what the run logged, such as "
            "metrics.jsonl, trainer_state.json or its console output."
        )


def _refuse_finished_runs(plan: Plan) -> None:
    """Raise InputError for a table with a row for each run, by its reward."""
    what = "" if plan.is_ours or plan.options.x else finished_runs(plan)
    if what:
        raise InputError(
            f"{plan.path} has one row per run ({what}), its result: give the histories of the runs, with a row for "
            "each step."
        )


def _check(plan: Plan) -> None:
    """Raise InputError if an option names nothing, or compute or reward is not recognised."""
    columns = listed([name for name in plan.frame.columns if name != FILE])
    axes = [axis for axis in map(plan.axis, AXES) if axis]
    check_columns([*plan.frame.columns, *axes], plan.options, plan.path)
    if plan.options.gpus and not plan.options.x and not plan["gpu_hours"]:
        raise InputError(
            f"{option:gpus {plan.options.gpus:g}} needs a clock, and {plan.path} has none: it has {columns}."
        )
    if plan["y"]:
        _refuse_finished_runs(plan)
    check_clear(plan)
    if not plan["y"]:
        _refuse_other_tables(plan)
        ask_for_a_name(plan)
    falling = [name for name in plan.frame.columns if plan.frame.known(name).any() and is_lower_better(name)]
    if falling and not plan["y"]:
        raise InputError(
            f"{plan.path} has no column recognised as reward, and lower is better in {listed(falling)}: add one "
            f"that rises, such as 1 - {falling[0]}, or name another with {option:y}; it has {columns}."
        )
    for role, what, is_known in (("y", "reward", plan["y"]), ("x", "compute", plan["x"] or axes)):
        if not is_known:
            raise InputError(
                f"{plan.path} has no column recognised as {what}: name it with {option:{role}}; it has {columns}."
            )
