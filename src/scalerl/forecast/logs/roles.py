"""What the columns of a log are for: for each role, such as the column of steps, rules in the order of trial.

The first rule that makes a choice counts. An option of the user is the first rule of its role; names come before values
where several columns could be meant, and values before names where a column cannot be what its name says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scalerl.forecast.logs.amounts import duration, seconds_since_1970
from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    CLOCKS,
    METRICS,
    RATE_OF,
    REWARD_KINDS,
    Rank,
    counts_successes,
    has_role,
    in_ones,
    is_lower_better,
    is_measured,
    is_part,
    is_statistic,
    is_whole,
    names_a_counter,
    plain,
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.evidence import ENOUGH_STEPS, Evidence, evidence
from scalerl.forecast.logs.facts import fact
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.labels import arm_and_set, file_alone, is_right_or_wrong, labels_that_explain
from scalerl.forecast.logs.plan import Choice, Plan, Rule
from scalerl.forecast.logs.question import check, may_be_rewards
from scalerl.forecast.logs.selection import Selection
from scalerl.forecast.logs.shapes import APART, wall_times

# Rows without any counter are counted where as many have a reward.
_COUNTABLE = 3
# With more rows than those of training, evaluation and test, an epoch does not count them.
_MOST_PER_PLACE = 3
# A counter that falls at more of its rows, and goes on by no usual amount, is an amount of each row.
_MANY_FALLS = 1 / 3
# A column with this many times fewer steps than another of its kind was logged only now and then.
_FEWER = 4
# A column with this many times more rows per step than another holds single answers.
_PER_SAMPLE = 1.5
_EVALUATION = 0
"""The place of evaluations among the kinds of rewards."""
_BESIDE_REWARDS = (*AXES, *METRICS, "seconds_per_step", "tokens_per_step", "cost", "num_samples")


def decided(plan: Plan) -> Plan:
    """Return the plan with a choice for every role that a rule finds one for; InputError if one is missing."""
    all_rules = OUR_RULES if plan.is_ours else CLEAN_RULES if plan.is_clean else RULES
    for role, rules in all_rules.items():
        for rule in rules:
            choice = rule(plan)
            if choice is not None and choice.columns:
                choice = choice._replace(rule=choice.rule or rule.__name__)
                plan = replace(plan, roles={**plan.roles, role: choice})
                break
    check(plan)
    # What is said of evaluations is true where one of them is the reward.
    facts = [each for each in plan.facts if each.kind != APART or plan["y"] in each.values["columns"]]
    if plan.roles["y"].rule == "only_candidate":
        facts.append(fact("reward_by_values", y=plan["y"]))
    if "step" in plan.roles and plan.roles["step"].rule == "rising_integers" and not has_role(plan["step"], "row"):
        facts.append(fact("step_by_values", step=plan["step"]))
    return replace(plan, facts=tuple(facts))


def is_clean(frame: Frame, options: Selection) -> bool:
    """Return whether the names of a table say all: one reward, steps that rise from row to row, else what is known.

    Such a table is read as it is, and nothing about it is guessed. Options may name no more than the column of compute.
    """
    if len(frame) < 2 or options.columns.keys() - {options.x}:
        return False
    num_rewards = 0
    for name in frame.columns:
        counted = in_ones(name)
        if frame.is_words(name) or (counted and counted[0] != name):
            return False
        rank = reward_rank(name)
        if rank and rank[:2] != BARE and not has_role(name, "value") and not counts_successes(name):
            num_rewards += 1
        elif rank or not (has_role(name, *_BESIDE_REWARDS) or (is_lower_better(name) and is_statistic(name))):
            return False
    steps = with_role(frame.columns, "step")
    return num_rewards == len(steps) == 1 and bool((np.diff(frame.numbers(steps[0])) > 0).all())


def named(role: str, counted: str = "total") -> Rule:
    """Return the rule that chooses the first column whose name has a role; `counted` says how its amounts are."""

    def by_name(plan: Plan) -> Choice:
        columns = plan.named(role) if counted == "total" else with_role(plan.frame.columns, role)
        return Choice(columns[:1], counted, columns[1:])

    return by_name


# The step -------------------------------------------------------------------------------------------------------------


def named_step(plan: Plan) -> Choice | None:
    """Choose the first column named as a step that half of the rows have; otherwise the first one.

    Where it often falls or never changes, as the length of an episode, and another counter rises, choose that one.
    Rows are counted where none does, and it is an amount of each row.
    """
    found = {name: evidence(plan.frame, name) for name in plan.named("step", "coarse")}
    names = plan.named("step")
    common = [name for name in names if found[name].is_in_half_of_rows]
    chosen = (common or names)[:1]
    if not chosen or (found[chosen[0]].varies and not found[chosen[0]].often_falls):
        return Choice(chosen)
    for name, other in found.items():
        if name not in chosen and other.is_in_all_rows and other.hardly_ever_falls:
            return Choice((name,))
    return Choice(("",), "counted") if _is_of_each_row(found[chosen[0]]) else Choice(chosen)


def _is_of_each_row(column: Evidence) -> bool:
    """Return whether values go up and down, and not because the rows of a counter come in another order."""
    gaps = np.diff(np.unique(column.values))
    num_falls = int(np.count_nonzero(np.diff(column.values) < 0))
    num_usual = int(np.unique(gaps, return_counts=True)[1].max(initial=0))
    is_even = 2 * num_usual >= len(gaps)
    return not is_even and len(gaps) + 1 == len(column.values) and num_falls > _MANY_FALLS * len(gaps)


def coarse_counter(plan: Plan) -> Choice | None:
    """Choose an epoch or episode, if it has a few rows at most and no column is named as compute."""
    columns = with_role(plan.frame.columns, "coarse")[:1]
    num_places = plan.frame.num_groups([*columns, *with_role(plan.frame.columns, "run", "arm", "seed")])
    is_fine = _MOST_PER_PLACE * num_places >= len(plan.frame)
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
        column = evidence(plan.frame, name)
        is_something_else = is_measured(name) and not names_a_counter(name)
        if not column.is_in_all_rows or is_something_else or has_role(name, "wall_clock", "elapsed"):
            continue
        if column.always_rises:
            rising.append(name)
        elif column.goes_on and not has_role(name, "run", "seed", "arm", "item"):
            counting.append(name)
    return Choice((rising or counting)[:1])


def rising_time(plan: Plan) -> Choice | None:
    """Choose a time of no known unit that rises from row to row, if nothing else counts."""
    if plan.named(*AXES, *CLOCKS, "coarse") or len(plan.frame) < 3:
        return None
    for name in plan.named("wall_clock"):
        values = plan.frame.numbers(name)
        if (np.diff(values) > 0).all() and np.isnan(seconds_since_1970(values)).all():
            return Choice((name,))
    return None


def counted(plan: Plan) -> Choice | None:
    """Count the rows, if no column is named as compute or time and several have a reward."""
    rewards = [name for name in plan.frame.columns if reward_rank(name)]
    is_countable = any(plan.frame.known(name).sum() >= _COUNTABLE for name in rewards)
    is_timed = plan.named(*AXES, *CLOCKS, "coarse", "wall_clock")
    return Choice(("step",)) if is_countable and not is_timed else None


# Compute --------------------------------------------------------------------------------------------------------------


def elapsed(plan: Plan) -> Choice | None:
    """Choose the time since the beginning, which does not often fall within a run, as the time of each row does."""
    clocks = with_role(plan.frame.columns, "elapsed")
    if not clocks:
        return None
    by_run = plan.frame.take(np.argsort(plan.runs(plan.frame), kind="stable"))
    names = [name for name in clocks if not evidence(by_run, name).often_falls]
    return Choice(names[:1], "elapsed", names[1:])


def time_of_day(plan: Plan) -> Choice | None:
    """Choose the time of day, also one without a day, as 10:03:20 and the time since the beginning are.

    Where a console prints no dates, its 'time' is in seconds: since the beginning if they only grow, else since the row
    before.
    """
    columns = with_role(plan.frame.columns, "wall_clock", "date")[:1]
    if not columns:
        return None
    texts = plan.frame.words(columns[0]) if plan.frame.is_words(columns[0]) else []
    if np.isfinite(wall_times(plan.frame)).any() or np.isfinite([duration(text) for text in texts]).any():
        return Choice(columns, "clock")
    if plan.kind != "console" or not plan.frame.known(columns[0]).any():
        return None
    moves = np.diff(plan.frame.values(columns[0]))
    return Choice(columns, "elapsed" if len(moves) > 1 and (moves > 0).all() else "per_row")


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


# The reward, by its name ----------------------------------------------------------------------------------------------


def asked_reward(plan: Plan) -> Choice | None:
    """Choose the column of --y."""
    return Choice((plan.options.y,), "option") if plan.options.y else None


def of_the_export(plan: Plan) -> Choice | None:
    """Choose the only metric of a table that had a column for each run, whatever its name, unless it is compute."""
    metrics: list[str] = []
    for each in plan.facts:
        for name in each.values.get("metrics", ()):
            if not (name.startswith("_") or has_role(name, *AXES, *CLOCKS, "coarse")):
                metrics.append(name)
    return Choice(metrics, "evaluation") if len(metrics) == 1 else None


def our_reward(plan: Plan) -> Choice | None:
    """Choose the reward of our own evaluations."""
    return Choice(("reward",), "total") if "reward" in plan.frame else None


def only_reward(plan: Plan) -> Choice | None:
    """Choose the only column that is named as a reward."""
    for name in plan.frame.columns:
        rank = reward_rank(name)
        if rank:
            return Choice((name,), REWARD_KINDS[rank[0]])
    return None


class Named(NamedTuple):
    """A column that is named like a reward, and what its values say."""

    name: str
    rank: Rank
    column: Evidence
    num_steps: int
    """Steps at which it has a value, without step 0, which is the model before training."""
    per_place: float
    """How many values it has for each run and step."""

    @property
    def kind(self) -> int:
        return self.rank[0]

    @property
    def is_idle(self) -> bool:
        """Whether it is no evaluation, and nothing is solved yet at most steps: a reward beside it may tell more."""
        return self.column.is_mostly_zero and self.kind != _EVALUATION


class Flaws(NamedTuple):
    """What speaks against a column as the reward, from the worst on: the column with the least is chosen."""

    is_short: bool
    is_constant: bool
    is_rare: bool
    is_per_sample: bool
    is_idle: bool
    rank: Rank
    is_longer: bool
    """Whether its name has all words of another's, and one more: that one is the whole, or this one a running mean."""
    is_no_whole: bool


def like_a_reward(plan: Plan) -> Choice | None:
    """Choose the column that is named most like a pass rate or reward, and has values at enough steps.

    An evaluation comes before a plain rate, and that before a training reward; a whole before its parts; the mean of
    answers before single ones, of which there are several per step. What is as likely as the choice is its rival.
    """
    columns = _named_like_rewards(plan)
    measured = [column for column in columns if column.num_steps] or columns
    if not measured:
        return None
    flaws = _flaws(measured)
    best, *rest = sorted(measured, key=lambda column: flaws[column.name])
    rivals = [column for column in rest if flaws[column.name] == flaws[best.name]]
    if best.rank == RATE_OF:
        rivals = [column for column in rest if not flaws[column.name].is_short]
    elif best.column.is_mostly_zero and best.kind != _EVALUATION:
        rivals += [column for column in rest if not column.column.is_mostly_zero][:1]
    else:
        rivals += [column for column in rest if column.is_idle and _is_likelier(column, best, flaws)][:1]
    rarer = [column for column in rest if column.kind < best.kind and not flaws[best.name].is_rare]
    return Choice(
        (best.name,),
        REWARD_KINDS[best.kind],
        others=[column.name for column in rest if column.rank[:2] == best.rank[:2]],
        rivals=[column.name for column in rivals],
        too_few={column.name: column.num_steps for column in rarer if flaws[column.name].is_rare},
    )


def _is_likelier(column: Named, best: Named, flaws: Mapping[str, Flaws]) -> bool:
    """Return whether a column would be chosen, but for its zeros."""
    return flaws[column.name]._replace(is_idle=False) < flaws[best.name]


def _named_like_rewards(plan: Plan) -> list[Named]:
    """Return the columns that are named like rewards, unless their values say that they are something else."""
    frame = plan.frame
    steps = plan.steps(frame)
    words = [name for name in frame.columns if frame.is_words(name) and 2 * frame.num_groups([name]) <= len(frame)]
    labels = dict.fromkeys([*words, *with_role(frame.columns, "run", "set", "seed", "arm")])
    # Rows at one place have the same labels and step.
    places = frame.having({"": steps}).groups([*labels, ""])
    found: list[Named] = []
    for name in frame.columns:
        rank = reward_rank(name)
        if rank is None:
            continue
        column = evidence(frame, name)
        is_bare = rank[:2] == BARE and not column.is_rate
        if is_bare or (column.counts and counts_successes(name)):
            continue
        known = frame.known(name)
        num_steps = len({*steps[known].tolist()} - {0.0}) or min(len(column.values), 1)
        per_place = len(column.values) / max(len({*places[known].tolist()}), 1)
        found.append(Named(name, rank, column, num_steps, per_place))
    return found


def _flaws(columns: Sequence[Named]) -> dict[str, Flaws]:
    """Return what speaks against each column, beside the others."""
    most_steps: dict[int, int] = {}
    for column in columns:
        if not column.is_idle and column.rank != RATE_OF:
            most_steps[column.kind] = max(most_steps.get(column.kind, 0), column.num_steps)
    least_per_place = min(column.per_place for column in columns)
    # Training is logged more densely than it is evaluated: only another evaluation shows that one holds single answers.
    evaluations = [column.per_place for column in columns if column.kind == _EVALUATION]
    alike = {(column.rank, _words(column.name)) for column in columns}
    flaws: dict[str, Flaws] = {}
    for column in columns:
        words = _words(column.name)
        is_short = column.num_steps < ENOUGH_STEPS
        least = min(evaluations) if column.kind == _EVALUATION else least_per_place
        is_an_answer = column.kind != _EVALUATION and is_right_or_wrong(column.column.values)
        flaws[column.name] = Flaws(
            is_short=is_short,
            is_constant=not is_short and not column.column.varies,
            is_rare=column.num_steps < max(ENOUGH_STEPS, most_steps.get(column.kind, 0) / _FEWER),
            is_per_sample=is_an_answer or column.per_place > _PER_SAMPLE * least,
            is_idle=column.is_idle,
            rank=column.rank,
            is_longer=any((column.rank, words - {word}) in alike for word in words),
            is_no_whole=not is_whole(column.name),
        )
    return flaws


def _words(name: str) -> frozenset[str]:
    return frozenset(plain(name).split("_"))


# The reward, by its values --------------------------------------------------------------------------------------------


def only_numbers(plan: Plan) -> Choice | None:
    """Choose the only column of numbers besides compute, time and the number of answers.

    A console prints many numbers by accident.
    """
    if plan.kind == "console" or not plan.named(*AXES):
        return None
    known = [name for name in plan.frame.columns if plan.frame.known(name).any()]
    others = [name for name in known if not has_role(name, *AXES, *CLOCKS, "coarse", "wall_clock", "num_samples")]
    is_told = len(others) == 1 and not is_measured(others[0]) and not evidence(plan.frame, others[0]).counts
    return Choice(others) if is_told else None


def only_candidate(plan: Plan) -> Choice | None:
    """Choose the only column whose values are like scores, in a log that counts its steps itself."""
    names = may_be_rewards(plan, ENOUGH_STEPS)
    return Choice(names) if len(names) == 1 else None


RULES: dict[str, tuple[Rule, ...]] = {
    "step": (named_step, coarse_counter, rising_integers, rising_time, counted),
    "y": (asked_reward, of_the_export, like_a_reward, only_numbers, only_candidate),
    "label": (labels_that_explain,),
    "hours": (named("hours"), named("seconds_per_step", "per_step"), elapsed, time_of_day),
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
    "num_samples": (named("num_samples"),),
    "hours": (named("hours"), named("seconds_per_step", "per_step")),
}
"""Rules of tables whose names say all: they have no clock."""
OUR_RULES: dict[str, tuple[Rule, ...]] = {
    "y": (asked_reward, our_reward, like_a_reward),
    "label": (arm_and_set,),
    "num_samples": (answers_of_a_mean,),
    **{axis: (named(axis),) for axis in ("step", "gpu_hours", "flops", "tokens")},
    "x": (asked_compute,),
}
"""Rules of our own run folders: the store knows what a row is, and nothing is guessed."""
