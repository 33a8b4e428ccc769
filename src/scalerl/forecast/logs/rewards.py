"""Which column is the reward: rules in the order in which they are tried.

Names and values are weighed: an evaluation comes before a plain rate, and that before a training reward; a whole before
its parts; a column with a value at many steps before one with few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    CLOCKS,
    RATE_OF,
    REWARD_KINDS,
    Rank,
    counts_successes,
    has_role,
    is_lower_better,
    is_measured,
    is_whole,
    reward_rank,
    with_role,
)
from scalerl.forecast.logs.evidence import ENOUGH_STEPS, Evidence
from scalerl.forecast.logs.frame import Floats, Rows
from scalerl.forecast.logs.plan import Choice, Plan

# A column with this many times fewer steps than another of its kind was logged only now and then.
_FEWER = 4
# A column with this many times more rows per step than another holds single answers.
_PER_SAMPLE = 1.5
# So many columns of a table with a reward that no name tells, besides compute.
_MOST_BESIDE = 2
_EVALUATION = 0
"""The place of evaluations among the kinds of rewards."""


def asked_reward(plan: Plan) -> Choice | None:
    """Choose the column of --y."""
    return Choice((plan.options.y,), "option") if plan.options.y else None


def of_the_export(plan: Plan) -> Choice | None:
    """Choose the only metric of a table that had a column for each run, whatever its name."""
    metrics: list[str] = []
    for fact in plan.facts:
        metrics += [name for name in fact.values.get("metrics", ()) if not name.startswith("_")]
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


# By names and values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardColumn:
    """A column that is named like a reward, and what its values say."""

    name: str
    rank: Rank
    evidence: Evidence
    num_steps: int
    """Steps at which it has a value, without step 0, which is the model before training."""
    per_place: float
    """How many values it has for each run and step."""

    @property
    def kind(self) -> int:
        return self.rank[0]


class Flaws(NamedTuple):
    """What speaks against a column as the reward, from the worst on: the column with the least is chosen."""

    is_short: bool
    is_constant: bool
    is_rare: bool
    is_per_sample: bool
    rank: Rank
    is_no_whole: bool


def like_a_reward(plan: Plan) -> Choice | None:
    """Choose the column that is named most like a pass rate or reward, and has values at enough steps.

    A column with several values per step holds single answers, and comes after those with one.
    """
    columns = _named_like_rewards(plan)
    measured = [column for column in columns if column.num_steps] or columns
    if not measured:
        return None
    flaws = _flaws(measured)
    best, *rest = sorted(measured, key=lambda column: flaws[column.name])
    others = [column.name for column in rest if column.rank[:2] == best.rank[:2]]
    rivals = [column.name for column in rest if flaws[column.name] == flaws[best.name]]
    if best.rank == RATE_OF:
        rivals = [column.name for column in rest if not flaws[column.name].is_short]
    elif best.evidence.is_mostly_zero and best.kind != _EVALUATION:
        # Nothing is solved yet at most steps, where a reward beside it may tell more.
        rivals += [column.name for column in rest if not column.evidence.is_mostly_zero][:1]
    rarer = [column for column in rest if column.kind < best.kind and not flaws[best.name].is_rare]
    too_few = {column.name: column.num_steps for column in rarer if flaws[column.name].is_rare}
    return Choice((best.name,), REWARD_KINDS[best.kind], others, rivals, too_few)


def _named_like_rewards(plan: Plan) -> list[RewardColumn]:
    """Return the columns that are named like rewards, unless their values say that they are something else."""
    frame, steps = plan.frame, plan.steps(plan.frame)
    places = _places(plan, steps)
    found: list[RewardColumn] = []
    for name in frame.columns:
        rank = reward_rank(name)
        if rank is None:
            continue
        evidence = Evidence(frame, name)
        is_bare = rank[:2] == BARE and not evidence.is_rate
        if is_bare or (evidence.counts and counts_successes(name)):
            continue
        known = frame.known(name)
        num_values = len(evidence.values)
        num_steps = len({*steps[known].tolist()} - {0.0}) or min(num_values, 1)
        per_place = num_values / max(len({*places[known].tolist()}), 1)
        found.append(RewardColumn(name=name, rank=rank, evidence=evidence, num_steps=num_steps, per_place=per_place))
    return found


def _places(plan: Plan, steps: Floats) -> Rows:
    """Return a number for each row, equal for rows at one place: those with the same labels and step."""
    frame = plan.frame
    words = [name for name in frame.columns if frame.is_words(name) and 2 * frame.num_groups([name]) <= len(frame)]
    labels = dict.fromkeys([*words, *with_role(frame.columns, "run", "set", "seed", "arm")])
    return frame.having({"": steps}).groups([*labels, ""])


def _flaws(columns: Sequence[RewardColumn]) -> dict[str, Flaws]:
    """Return what speaks against each column, beside the others."""
    most_steps: dict[int, int] = {}
    for column in columns:
        most_steps[column.kind] = max(most_steps.get(column.kind, 0), column.num_steps)
    least_per_place = min(column.per_place for column in columns)
    # Training is logged more densely than it is evaluated: only another evaluation shows that one holds single answers.
    evaluations = [column.per_place for column in columns if column.kind == _EVALUATION]
    flaws: dict[str, Flaws] = {}
    for column in columns:
        is_short = column.num_steps < ENOUGH_STEPS
        least = min(evaluations) if column.kind == _EVALUATION else least_per_place
        flaws[column.name] = Flaws(
            is_short=is_short,
            is_constant=not is_short and not column.evidence.varies,
            is_rare=column.num_steps < max(ENOUGH_STEPS, most_steps[column.kind] / _FEWER),
            is_per_sample=column.per_place > _PER_SAMPLE * least,
            rank=column.rank,
            is_no_whole=not is_whole(column.name),
        )
    return flaws


# By values alone


def only_numbers(plan: Plan) -> Choice | None:
    """Choose the only column of numbers besides compute, time and the number of answers.

    A console prints many numbers by accident, and a trainer logs many that are no reward.
    """
    if plan.kind == "console" or not plan.named(*AXES):
        return None
    known = [name for name in plan.frame.columns if plan.frame.known(name).any()]
    others = [name for name in known if not has_role(name, *AXES, *CLOCKS, "coarse", "wall_clock", "num_samples")]
    nameless = [name for name in others if not is_measured(name)]
    if len(nameless) != 1 or len(others) > _MOST_BESIDE or Evidence(plan.frame, nameless[0]).counts:
        return None
    return Choice(nameless)


def only_candidate(plan: Plan) -> Choice | None:
    """Choose the only column whose values are like scores, in a log that counts its steps itself."""
    names = may_be_rewards(plan)
    return Choice(names) if len(names) == 1 else None


def may_be_rewards(plan: Plan) -> list[str]:
    """Return the columns whose values are like scores, and whose names say nothing else.

    Loose names and values in a text are no curve by themselves.
    """
    is_counted = not plan["step"] or plan.roles["step"].rule == "counted"
    if plan.kind == "console" or (is_counted and not plan.named(*AXES)):
        return []
    return [name for name in plan.frame.columns if _may_be_one(name) and Evidence(plan.frame, name).is_like_a_score]


def _may_be_one(name: str) -> bool:
    """Return whether a name may be that of a reward, for all that it says."""
    has_another_role = has_role(name, *AXES, *CLOCKS, "coarse", "seed", "run", "wall_clock", "date", "cost")
    is_something_else = is_lower_better(name) or (is_measured(name) and reward_rank(name) is None)
    return not has_another_role and not is_something_else
