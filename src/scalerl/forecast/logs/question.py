"""What ends a reading: a question where several columns may be the reward, or a sentence on what the log is instead.

A guess that is wrong without a word costs more than a question. There is none where one known score stands out, or
where the user has named the reward.
"""

import numpy as np

from scalerl.errors import Candidate, InputError, UnclearLogError, option
from scalerl.forecast.logs.columns import (
    AXES,
    CLOCKS,
    has_role,
    is_lower_better,
    is_measured,
    reward_rank,
    with_role,
    without_brackets,
)
from scalerl.forecast.logs.evidence import ENOUGH_STEPS, evidence
from scalerl.forecast.logs.frame import Names, listed, number, objects, steps_of_names
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.readers.console import COUNTED_RECORDS
from scalerl.forecast.logs.results import finished_runs, has_answers, item_of
from scalerl.forecast.logs.selection import check_columns
from scalerl.forecast.logs.shapes import VALUE

_MOST = 10
_FEW = 5
"""Values from which a column without a telling name is asked about; fewer are results, or too early to judge."""
# Two columns say the same if they differ by no more than this share, one of them perhaps in per cent.
_ROUNDING = 1e-3
_FACTORS = (1.0, 100.0, 0.01)
_MAY_BE = ("an evaluation", "a pass rate", "a training reward")
_ANYTHING = "a number that changes"
# So many columns of a table without a reward are tried as results of runs.
_TRIED = 3


def check(plan: Plan) -> None:
    """Raise InputError if an option names nothing, the log is no history, or compute or reward is not recognised.

    UnclearLogError if there are several that may be the reward.
    """
    axes = [axis for axis in map(plan.axis, AXES) if axis]
    if plan.options.columns:
        check_columns([*plan.frame.columns, *axes], plan.options, plan.path)
    if plan.options.gpus and not plan.options.x and not plan["gpu_hours"]:
        raise InputError(
            f"{option:gpus {plan.options.gpus:g}} needs a clock, and {plan.path} has none: it has {_columns(plan)}."
        )
    if not (plan.is_ours or plan.is_clean):
        _refuse_results_table(plan)
        if not plan["y"]:
            _without_reward(plan)
        refuse_few(plan, int(plan.frame.known(plan["y"]).sum()))
        _ask_which(plan)
    for role, what, is_known in (("y", "reward", plan["y"]), ("x", "compute", plan["x"] or axes)):
        if not is_known:
            raise InputError(
                f"{plan.path} has no column recognised as {what}: name it with {option:{role}}; it has "
                f"{_columns(plan)}."
            )


def _columns(plan: Plan) -> str:
    return listed([name for name in plan.frame.columns if name != FILE])


# Questions ------------------------------------------------------------------------------------------------------------


def _ask_which(plan: Plan) -> None:
    """Raise UnclearLogError where the reward of a plan is not clearly the best reading."""
    if plan.options.y or not plan["y"]:
        return
    names = [plan["y"]]
    for name in [*plan.roles["y"].rivals, *_beside_in_brackets(plan)]:
        if len(names) < _MOST and not _say_the_same(plan, plan["y"], name):
            names.append(name)
    num = max(int(plan.frame.known(name).sum()) for name in names)
    if len(names) > 1 and num < _FEW:
        raise InputError(_too_few(plan, num, "no more"))
    if len(names) > 1:
        raise _question(plan, names, f"several columns that may be the reward ({listed(names, 4)})")


def _beside_in_brackets(plan: Plan) -> list[str]:
    """Return the columns whose names differ from that of the reward only in brackets behind them, as those of runs."""
    stem = without_brackets(plan["y"])
    if stem == plan["y"]:
        return []
    return [name for name in plan.frame.columns if without_brackets(name) == stem and name != plan["y"]]


def _question(plan: Plan, names: Names, what: str) -> UnclearLogError:
    several = f" (or {option:y {','.join(names[:2])}} where each is a run)" if len(names) > 1 else ""
    sentence = f"{plan.path} has {what}: name it with {option:y}{several}."
    return UnclearLogError(sentence, tuple(_candidate(plan, name) for name in names))


def _candidate(plan: Plan, name: str) -> Candidate:
    """Return a column as a candidate, with its first and last value in the order of steps."""
    known = plan.frame.known(name)
    if not known.any():
        raise InputError(f"{plan.path} has no number in {name!r}.")
    order = np.argsort(plan.progress(plan.frame)[known], kind="stable")
    values = plan.frame.values(name)[order]
    rank = None if name == VALUE else reward_rank(name)
    may_be = _ANYTHING if rank is None else _MAY_BE[rank[0]]
    return Candidate(name=name, first=float(values[0]), last=float(values[-1]), may_be=may_be, options=(("y", name),))


def _say_the_same(plan: Plan, one: str, other: str) -> bool:
    """Return whether two columns hold the same numbers where both have one, one of them perhaps in per cent."""
    known = plan.frame.known(one) & plan.frame.known(other)
    if known.sum() < ENOUGH_STEPS:
        return False
    first = plan.frame.numbers(one)[known]
    second = plan.frame.numbers(other)[known]
    return any(bool(np.allclose(first, factor * second, rtol=_ROUNDING, atol=1e-9)) for factor in _FACTORS)


def may_be_rewards(plan: Plan, enough: int = _FEW) -> list[str]:
    """Return the columns with so many values that are like scores, and whose names say nothing else.

    Loose names and values in a text are no curve by themselves.
    """
    is_counted = not plan["step"] or plan.roles["step"].rule == "counted"
    if plan.kind == "console" or (is_counted and not plan.named(*AXES)):
        return []
    return [name for name in plan.frame.columns if _may_be_one(name) and _is_like_scores(plan, name, enough)]


def _is_like_scores(plan: Plan, name: str, enough: int) -> bool:
    column = evidence(plan.frame, name)
    return len(column.values) >= enough and column.is_like_a_score


def _may_be_one(name: str) -> bool:
    """Return whether a name may be that of a reward, for all that it says."""
    has_another_role = has_role(name, *AXES, *CLOCKS, "coarse", "seed", "run", "wall_clock", "date", "cost")
    is_something_else = is_lower_better(name) or (is_measured(name) and reward_rank(name) is None)
    return not has_another_role and not is_something_else


# What is no history ---------------------------------------------------------------------------------------------------


def counts_rows(plan: Plan) -> bool:
    """Return whether the steps are only the numbers of rows: counted here, or by the reader of a table or a text."""
    if "step" in plan.roles and plan.roles["step"].rule == "counted":
        return True
    origins = [fact.values["origin"] for fact in plan.facts if fact.kind == "lines_taken"]
    return COUNTED_RECORDS in origins or any(fact.kind == "rows_counted" for fact in plan.facts)


def refuse_few(plan: Plan, num: int) -> None:
    """Raise InputError for values that no column orders: for so few, and for records of a text that say the same."""
    if not plan["y"] or plan.options.y or not counts_rows(plan):
        return
    if num < ENOUGH_STEPS:
        raise InputError(_too_few(plan, num, "nothing that counts steps"))
    if plan.kind == "console" and not evidence(plan.frame, plan["y"]).varies:
        raise InputError(_too_few(plan, num, "nothing that counts steps, and all are equal"))


def _too_few(plan: Plan, num: int, lack: str) -> str:
    few = f", or too few rows of one, which needs {ENOUGH_STEPS} points" if 3 < num < ENOUGH_STEPS else ""
    return (
        f"{plan.path} has {num} values of {plan['y']!r} and {lack}: these are results, and no history{few}; give a log "
        "with a row for each step."
    )


def refuse_unread_compute(plan: Plan) -> None:
    """Raise InputError where rows would be counted beside a column that is named as compute and holds words."""
    for name in with_role(plan.frame.columns, *AXES, *CLOCKS):
        if plan.frame.is_words(name) and not plan.frame.known(name).any():
            example = next((word for word in plan.frame.words(name) if word), "")
            raise InputError(
                f"{plan.path} has {example[:40]!r} in {name!r}, which is no number: write plain numbers, with the "
                f"unit in the name, such as 'tokens (B)', or name another column with {option:x}."
            )


def _refuse_results_table(plan: Plan) -> None:
    """Raise InputError for a table whose rows are known to be something else than moments of a run."""
    if has_answers(plan):
        raise InputError(
            f"{plan.path} has one row per answer of an evaluation: give a row for each evaluation, with its step and "
            "the mean reward."
        )
    item = "" if plan.options.x else item_of(plan)
    if item:
        raise InputError(
            f"{plan.path} has one row per {item} and nothing that counts steps: these are results, and no history; "
            f"give a log with a row for each step, or name what counts with {option:x}."
        )
    # A cell may hold all rewards of a run, which are no word that tells it from others.
    is_number = bool(plan.frame.known(plan["y"]).any())
    for name in [plan["y"]] if is_number else _numbers_of(plan)[:_TRIED]:
        what = "" if plan.options.x else finished_runs(plan, name)
        if what:
            raise InputError(
                f"{plan.path} has one row per run ({what}), its result: give the histories of the runs, with a row "
                "for each step."
            )
    is_nameless = plan["y"] == VALUE and plan.kind == "json" and not plan.options.y
    if is_nameless and not _is_like_scores(plan, VALUE, ENOUGH_STEPS):
        raise InputError(
            f"{plan.path} holds numbers that nothing names as a reward: give a log with named columns, a step and the "
            f"reward, or say {option:y value} to read them."
        )


def _numbers_of(plan: Plan) -> list[str]:
    """Return the columns of numbers that may be results."""
    names = [name for name in plan.frame.columns if not plan.frame.is_words(name) and not has_role(name, *AXES)]
    return [name for name in names if not is_lower_better(name)]


def _without_reward(plan: Plan) -> None:
    """Raise the sentence, or the question, that a log without a recognised reward needs; none if there is no better."""
    frame = plan.frame
    names = [name for name in frame.columns if name != FILE]
    if steps_of_names(objects(names[1:])) is not None:
        raise InputError(
            f"{plan.path} has a column for each step ({listed(names[1:], 3)}): turn it, so that it has a row for each "
            "step and a column for each run or metric."
        )
    if 2 * sum(np.isfinite(number(name)) for name in names) > len(names):
        raise InputError(f"{plan.path} has numbers in place of the names of its columns: put a line with names above.")
    is_constant = not any(evidence(frame, name).varies for name in frame.columns)
    if is_constant and len(frame.columns) > 2 and plan.kind in ("json", "jsonl"):
        raise InputError(
            f"{plan.path} holds settings or one result, and no rows of steps: give what the run logged, such as "
            "metrics.jsonl, trainer_state.json or its console output."
        )
    candidates = may_be_rewards(plan)[:_MOST]
    if candidates:
        raise _question(plan, candidates, f"no column recognised as reward; it may be {listed(candidates, 4)}")
    falling = [name for name in names if frame.known(name).any() and is_lower_better(name)]
    if falling:
        raise InputError(
            f"{plan.path} has no column recognised as reward, and lower is better in {listed(falling)}: add one "
            f"that rises, such as 1 - {falling[0]}, or name another with {option:y}; it has {_columns(plan)}."
        )
    if plan.kind == "console" and counts_rows(plan):
        printed = listed([name for name in names if name != plan["step"]])
        raise InputError(
            f"{plan.path} has no column recognised as reward, and no step; it prints {printed}. If one of them is the "
            f"reward, name it with {option:y}; a configuration, or one record per answer, is no history: give the log "
            "that has the mean reward of each step."
        )
