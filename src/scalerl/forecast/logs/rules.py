"""The rules by which the columns of a log are chosen: an ordered table for each role, such as the column of rewards.

The first rule that makes a choice counts, and an option of the user is the first rule of its role.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.amounts import duration
from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    REWARD_KINDS,
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
from scalerl.forecast.logs.frame import Floats, listed
from scalerl.forecast.logs.labels import arm_and_set, finished_runs, labels_that_explain
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Choice, Plan, Rule
from scalerl.forecast.logs.selection import check_columns
from scalerl.forecast.logs.tidy import first, wall_times

# A sigmoid has four parameters and needs two points more.
_ENOUGH_STEPS = 6
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


def named_step(plan: Plan) -> Choice:
    """Choose the first column named as a step that half of the rows have; otherwise the first one."""
    names = plan.named("step")
    common = [name for name in names if 2 * plan.frame.known(name).sum() >= len(plan.frame)]
    return Choice((common or names)[:1])


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
    frame, steps = plan.frame, plan.steps(plan.frame)
    values = {name: frame.numbers(name)[frame.known(name)] for name in frame.columns if reward_rank(name)}
    ranks = {
        name: rank for name in values if (rank := reward_rank(name)) and (rank[:2] != BARE or _is_rate(values[name]))
    }
    if not ranks:
        return None
    # Without step 0, which is the model before training.
    num_steps = {name: max(len({*steps[frame.known(name)]} - {0.0}), min(len(values[name]), 1)) for name in ranks}
    most_steps = {
        kind: max(num for name, num in num_steps.items() if ranks[name][0] == kind) for kind, _, _ in ranks.values()
    }
    # Rows at one place are repeats of one step: those with the same labels and step.
    words = [name for name in frame.columns if frame.is_words(name) and 2 * frame.num_groups([name]) <= len(frame)]
    labels = dict.fromkeys([*words, *with_role(frame.columns, "run", "set", "seed", "arm")])
    places = frame.having({"": steps}).groups([*labels, ""])
    repeats = {name: len(values[name]) / len({*places[frame.known(name)]}) for name, num in num_steps.items() if num}

    def is_rare(name: str) -> bool:
        return num_steps[name] < max(_ENOUGH_STEPS, most_steps[ranks[name][0]] / _FEWER)

    def flaws(name: str) -> tuple[Any, ...]:
        """Return what speaks against a column, from the worst on."""
        num = num_steps[name]
        is_constant = num >= _ENOUGH_STEPS and len({*values[name]}) == 1
        is_per_sample = num > 0 and repeats[name] > _PER_SAMPLE * min(repeats.values())
        is_short = num < _ENOUGH_STEPS
        return not num, is_short, is_constant, is_rare(name), is_per_sample, *ranks[name], not is_whole(name)

    best, *rest = [name for name in sorted(ranks, key=flaws) if num_steps[name]] or ranks
    kind, part, _ = ranks[best]
    others = [name for name in rest if ranks[name][:2] == (kind, part)]
    rarer = [name for name in rest if is_rare(name) > is_rare(best) and ranks[name][0] < kind]
    return Choice((best,), REWARD_KINDS[kind], others, {name: num_steps[name] for name in rarer})


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


def _check(plan: Plan) -> None:
    """Raise InputError if an option names nothing, or compute or reward is not recognised."""
    columns = listed([name for name in plan.frame.columns if name != FILE])
    axes = [axis for axis in map(plan.axis, AXES) if axis]
    check_columns([*plan.frame.columns, *axes], plan.options, plan.path)
    if plan.options.gpus and not plan.options.x and not plan["gpu_hours"]:
        raise InputError(
            f"{option:gpus {plan.options.gpus:g}} needs a clock, and {plan.path} has none: it has {columns}."
        )
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
    if not plan.is_ours and not plan.options.x and (what := finished_runs(plan)):
        raise InputError(
            f"{plan.path} has one row per run ({what}), its result: give the histories of the runs, with a row for "
            "each step."
        )
