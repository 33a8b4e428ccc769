"""When a log is asked about: several columns may be the reward, or no name says which one is.

A guess that is wrong without a word costs more than a question. There is no question where one known score stands out,
or where the user has named the reward.
"""

import numpy as np

from scalerl.errors import Candidate, InputError, UnclearLogError, option
from scalerl.forecast.logs.columns import AXES, CLOCKS, has_role, is_lower_better, is_measured, reward_rank
from scalerl.forecast.logs.frame import Floats, listed
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.wide import VALUE

_MOST = 10
# A sigmoid has four parameters and needs two points more; fewer numbers are hardly a curve.
_ENOUGH_STEPS = 6
# Two columns say the same if they differ by no more than this share, one of them perhaps in per cent.
_ROUNDING = 1e-3
_FACTORS = (1.0, 100.0, 0.01)
# No share and no score of a benchmark is larger.
_MAX_SCORE = 100.0

_MAY_BE = ("an evaluation", "a pass rate", "a training reward")
_ANYTHING = "a number that changes"


def check_clear(plan: Plan) -> None:
    """Raise UnclearLogError where the reward of a plan is not clearly the best reading."""
    if plan.options.y or plan.is_ours or not plan["y"]:
        return
    _refuse_nameless(plan)
    rivals = [name for name in plan.roles["y"].rivals if not _say_the_same(plan, plan["y"], name)]
    if rivals:
        names = [plan["y"], *rivals][:_MOST]
        raise UnclearLogError(
            f"{plan.path} has several columns that may be the reward ({listed(names, 4)}): name one with {option:y}.",
            tuple(_candidate(plan, name) for name in names),
        )


def ask_for_a_name(plan: Plan) -> None:
    """Raise UnclearLogError if no name says which column is the reward, and the values of some could be one.

    Loose names and values in a text are no curve by themselves.
    """
    is_counted = not plan["step"] or plan.roles["step"].rule == "counted"
    if plan.kind == "console" or (is_counted and not plan.named(*AXES)):
        return
    names = [name for name in plan.frame.columns if _may_be_a_reward(plan, name)][:_MOST]
    if not names:
        return
    raise UnclearLogError(
        f"{plan.path} has no column recognised as reward; it may be {listed(names, 4)}: name it with {option:y}.",
        tuple(_candidate(plan, name) for name in names),
    )


def _may_be_a_reward(plan: Plan, name: str) -> bool:
    """Return whether a column holds enough different numbers within the range of scores, and counts nothing."""
    is_known_otherwise = has_role(name, *AXES, *CLOCKS, "coarse", "seed", "run", "wall_clock", "date", "cost")
    if is_known_otherwise or is_lower_better(name) or (is_measured(name) and reward_rank(name) is None):
        return False
    values = _values(plan, name)
    return _is_like_a_score(values) and len({*values.tolist()}) >= _ENOUGH_STEPS


def _is_like_a_score(values: Floats) -> bool:
    """Return whether numbers lie in the range of scores, and are no counts."""
    if len(values) < _ENOUGH_STEPS or np.abs(values).max() > _MAX_SCORE:
        return False
    are_counts = bool((values % 1 == 0).all()) and np.abs(values).max() > 1
    return not are_counts


def _refuse_nameless(plan: Plan) -> None:
    """Raise an error for the numbers of a JSON document that nothing names, unless they are like scores.

    In a table whose columns are runs or steps, these are named by what stands in the others.
    """
    if plan["y"] != VALUE or plan.kind != "json" or _is_like_a_score(_values(plan, VALUE)):
        return
    raise UnclearLogError(
        f"{plan.path} holds numbers that nothing names as a reward: give a log with named columns, a step and the "
        f"reward, or say {option:y value} to read them.",
        (_candidate(plan, VALUE),),
    )


def _say_the_same(plan: Plan, one: str, other: str) -> bool:
    """Return whether two columns hold the same numbers where both have one, one of them perhaps in per cent."""
    known = plan.frame.known(one) & plan.frame.known(other)
    if known.sum() < _ENOUGH_STEPS:
        return False
    first, second = plan.frame.numbers(one)[known], plan.frame.numbers(other)[known]
    return any(bool(np.allclose(first, factor * second, rtol=_ROUNDING, atol=1e-9)) for factor in _FACTORS)


def _values(plan: Plan, name: str) -> Floats:
    return plan.frame.numbers(name)[plan.frame.known(name)]


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
