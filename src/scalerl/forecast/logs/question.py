"""When a log is asked about: several columns may be the reward, or no name says which one is.

A guess that is wrong without a word costs more than a question. There is no question where one known score stands out,
or where the user has named the reward.
"""

import numpy as np

from scalerl.errors import Candidate, InputError, UnclearLogError, option
from scalerl.forecast.logs.columns import reward_rank
from scalerl.forecast.logs.evidence import ENOUGH_STEPS, Evidence
from scalerl.forecast.logs.frame import Names, listed
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.rewards import may_be_rewards
from scalerl.forecast.logs.wide import VALUE

_MOST = 10
# Two columns say the same if they differ by no more than this share, one of them perhaps in per cent.
_ROUNDING = 1e-3
_FACTORS = (1.0, 100.0, 0.01)
_MAY_BE = ("an evaluation", "a pass rate", "a training reward")
_ANYTHING = "a number that changes"


def check_clear(plan: Plan) -> None:
    """Raise UnclearLogError where the reward of a plan is not clearly the best reading."""
    if plan.options.y or plan.is_ours or not plan["y"]:
        return
    names = [plan["y"]]
    for name in plan.roles["y"].rivals:
        if len(names) < _MOST and not _say_the_same(plan, plan["y"], name):
            names.append(name)
    if len(names) > 1:
        raise _question(plan, names, "several columns that may be the reward ({listing}): name one with {option:y}.")


def ask_for_a_name(plan: Plan) -> None:
    """Raise UnclearLogError if no name says which column is the reward, and the values of some could be one."""
    names = may_be_rewards(plan)[:_MOST]
    if names:
        raise _question(plan, names, "no column recognised as reward; it may be {listing}: name it with {option:y}.")


def _question(plan: Plan, names: Names, sentence: str) -> UnclearLogError:
    said = sentence.format(listing=listed(names, 4), option=option)
    return UnclearLogError(f"{plan.path} has {said}", tuple(_candidate(plan, name) for name in names))


def refuse_nameless(plan: Plan) -> None:
    """Raise InputError for the numbers of a JSON document that nothing names, unless they are like scores.

    In a table whose columns are runs or steps, these are named by what stands in the others.
    """
    is_nameless = plan["y"] == VALUE and plan.kind == "json" and not plan.options.y
    if is_nameless and not Evidence(plan.frame, VALUE).is_like_a_score:
        raise InputError(
            f"{plan.path} holds numbers that nothing names as a reward: give a log with named columns, a step and the "
            f"reward, or say {option:y value} to read them."
        )


def _say_the_same(plan: Plan, one: str, other: str) -> bool:
    """Return whether two columns hold the same numbers where both have one, one of them perhaps in per cent."""
    known = plan.frame.known(one) & plan.frame.known(other)
    if known.sum() < ENOUGH_STEPS:
        return False
    first, second = plan.frame.numbers(one)[known], plan.frame.numbers(other)[known]
    return any(bool(np.allclose(first, factor * second, rtol=_ROUNDING, atol=1e-9)) for factor in _FACTORS)


def _candidate(plan: Plan, name: str) -> Candidate:
    """Return a column as a candidate, with its first and last value in the order of steps."""
    known = plan.frame.known(name)
    values = plan.frame.numbers(name)[known]
    progress = plan.progress(plan.frame)[known]
    if not len(values):
        raise InputError(f"{plan.path} has no number in {name!r}.")
    ordered = values[np.argsort(progress, kind="stable")]
    rank = None if name == VALUE else reward_rank(name)
    may_be = _ANYTHING if rank is None else _MAY_BE[rank[0]]
    return Candidate(name=name, first=float(ordered[0]), last=float(ordered[-1]), may_be=may_be, options=(("y", name),))
