"""The rules by which the columns of a log are chosen: an ordered table for each role, such as the column of steps.

The first rule that makes a choice counts, and an option of the user is the first rule of its role.
"""

from dataclasses import replace

import numpy as np

from scalerl.forecast.logs.amounts import duration
from scalerl.forecast.logs.columns import AXES, has_role, is_measured, is_part, reward_rank, with_role
from scalerl.forecast.logs.evidence import Evidence
from scalerl.forecast.logs.facts import fact
from scalerl.forecast.logs.labels import arm_and_set, file_alone, labels_that_explain
from scalerl.forecast.logs.plan import Choice, Plan, Rule
from scalerl.forecast.logs.refusals import check
from scalerl.forecast.logs.rewards import (
    asked_reward,
    like_a_reward,
    of_the_export,
    only_candidate,
    only_numbers,
    only_reward,
    our_reward,
)
from scalerl.forecast.logs.tidy import APART, first, wall_times

# Rows without any counter are counted where as many have a reward.
_COUNTABLE = 3


def named(role: str, counted: str = "total") -> Rule:
    """Return the rule that chooses the first column whose name has a role; `counted` says how its amounts are."""

    def by_name(plan: Plan) -> Choice:
        columns = plan.named(role) if counted == "total" else with_role(plan.frame.columns, role)
        return Choice(columns[:1], counted, columns[1:])

    return by_name


# The step


def named_step(plan: Plan) -> Choice | None:
    """Choose the first column named as a step that half of the rows have; otherwise the first one.

    Where it often falls or never changes, as the length of an episode, and another counter rises, choose that one.
    """
    evidence = {name: Evidence(plan.frame, name) for name in plan.named("step", "coarse")}
    names = plan.named("step")
    common = [name for name in names if evidence[name].is_in_half_of_rows]
    chosen = (common or names)[:1]
    if chosen and (evidence[chosen[0]].often_falls or not evidence[chosen[0]].varies):
        others = [name for name in evidence if name != chosen[0]]
        rising = [name for name in others if evidence[name].is_in_all_rows and evidence[name].hardly_ever_falls]
        chosen = rising[:1] or chosen
    return Choice(chosen)


def coarse_counter(plan: Plan) -> Choice | None:
    """Choose an epoch or episode, if most rows have their own and no column is named as compute."""
    columns = with_role(plan.frame.columns, "coarse")[:1]
    places = plan.frame.groups([*columns, *with_role(plan.frame.columns, "run", "arm", "seed")])
    is_fine = 2 * np.count_nonzero(np.diff(places)) >= len(plan.frame) - 1
    return Choice(columns) if is_fine and not plan.named(*AXES) else None


def rising_integers(plan: Plan) -> Choice | None:
    """Choose integers that rise from row to row, such as an index, if no column is named as compute.

    Where none does, choose those that do but for rows at which they begin anew or are repeated.
    """
    if plan.named(*AXES) or len(plan.frame) < 3:
        return None
    rising: list[str] = []
    counting: list[str] = []
    for name in plan.frame.columns:
        evidence = Evidence(plan.frame, name)
        if not (evidence.is_in_all_rows and evidence.is_whole):
            continue
        if is_measured(name) or has_role(name, "wall_clock", "elapsed"):
            continue
        if evidence.always_rises:
            rising.append(name)
        elif evidence.counts_on and not has_role(name, "run", "seed", "arm", "item"):
            counting.append(name)
    return Choice((rising or counting)[:1])


def counted(plan: Plan) -> Choice | None:
    """Count the rows, if no column is named as compute or time and several have a reward."""
    rewards = [name for name in plan.frame.columns if reward_rank(name)]
    is_countable = any(plan.frame.known(name).sum() >= _COUNTABLE for name in rewards)
    is_timed = plan.named(*AXES, "coarse", "seconds_per_step", "elapsed", "wall_clock")
    return Choice(("step",)) if is_countable and not is_timed else None


# Compute


def elapsed(plan: Plan) -> Choice | None:
    """Choose the time since the beginning, which does not often fall within a run, as the time of each row does."""
    clocks = with_role(plan.frame.columns, "elapsed")
    if not clocks:
        return None
    by_run = plan.frame.take(np.argsort(plan.runs(plan.frame), kind="stable"))
    names = [name for name in clocks if not Evidence(by_run, name).often_falls]
    return Choice(names[:1], "elapsed", names[1:])


def time_of_day(plan: Plan) -> Choice | None:
    """Choose the time of day, also one without a day, as 10:03:20 and the time since the beginning are.

    Where a console prints no dates, its 'time' is in seconds: since the beginning if they only grow, else since the row
    before.
    """
    column = first(plan.frame, "wall_clock")
    texts = plan.frame.words(column) if plan.frame.is_words(column) else []
    if np.isfinite(wall_times(plan.frame)).any() or np.isfinite([duration(text) for text in texts]).any():
        return Choice((column,), "clock")
    seconds = Evidence(plan.frame, column)
    if plan.kind != "console" or not len(seconds.values):
        return None
    is_elapsed = seconds.always_rises and len(seconds.values) > 2
    return Choice((column,), "elapsed" if is_elapsed else "per_row")


def asked_compute(plan: Plan) -> Choice | None:
    """Choose the column of --x, or the hours if that is a time of day."""
    if not plan.options.x:
        return None
    is_clock = has_role(plan.options.x, "wall_clock") and "hours" in plan.roles
    return Choice(("hours" if is_clock else plan.options.x,), "option")


def hours_times_gpus(plan: Plan) -> Choice | None:
    """Choose the log's clock times --gpus."""
    return Choice(("hours",), "times_gpus") if plan.options.gpus and "hours" in plan.roles else None


def answers_of_a_mean(plan: Plan) -> Choice | None:
    """Choose the number of answers that the reward is the mean of; the best of several answers is no mean."""
    return None if is_part(plan["y"]) else named("num_samples")(plan)


RULES: dict[str, tuple[Rule, ...]] = {
    "step": (named_step, coarse_counter, rising_integers, counted),
    "y": (asked_reward, of_the_export, like_a_reward, only_numbers, only_candidate),
    "label": (labels_that_explain,),
    "hours": (
        named("hours"),
        named("seconds_per_step", "per_step"),
        elapsed,
        time_of_day,
    ),
    "gpu_hours": (named("gpu_hours"), hours_times_gpus),
    "flops": (named("flops"),),
    "tokens": (named("tokens"), named("tokens_per_step", "per_step")),
    "cost": (named("cost"),),
    "num_samples": (answers_of_a_mean,),
    "x": (asked_compute,),
}
CLEAN_RULES: dict[str, tuple[Rule, ...]] = {
    **RULES,
    "step": (named("step"),),
    "y": (only_reward,),
    "label": (file_alone,),
    "hours": (named("hours"), named("seconds_per_step", "per_step"), elapsed),
}
"""Rules of tables whose names say all: they have no time of day."""
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
    all_rules = OUR_RULES if plan.is_ours else CLEAN_RULES if plan.is_clean else RULES
    for role, rules in all_rules.items():
        choice = _first_choice(plan, rules)
        if choice is not None:
            plan = replace(plan, roles={**plan.roles, role: choice})
    check(plan)
    facts = [each for each in plan.facts if plan["y"] in each.values.get("columns", ()) or each.kind != APART]
    if plan.roles["y"].rule == "only_candidate":
        facts.append(fact("reward_by_values", y=plan["y"]))
    if "step" in plan.roles and plan.roles["step"].rule == "rising_integers" and not has_role(plan["step"], "row"):
        facts.append(fact("step_by_values", step=plan["step"]))
    return replace(plan, facts=tuple(facts))


def _first_choice(plan: Plan, rules: tuple[Rule, ...]) -> Choice | None:
    for rule in rules:
        choice = rule(plan)
        if choice is not None and choice.columns:
            return choice._replace(rule=choice.rule or rule.__name__)
    return None
