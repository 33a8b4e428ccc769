"""What is no history of a run: a sentence says which it is, and what to give instead.

Tables of results, single answers and settings have columns that are named as rewards, too. They are told by their rows:
each row of a table of results has labels of its own, and no compute orders them.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.amounts import seconds_since_1970
from scalerl.forecast.logs.columns import AXES, CLOCKS, has_role, is_lower_better, reward_rank, with_role
from scalerl.forecast.logs.evidence import ENOUGH_STEPS, Evidence
from scalerl.forecast.logs.frame import Floats, Frame, Names, Words, listed, number, objects, steps_of_names
from scalerl.forecast.logs.labels import ANSWERS, has_texts
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Choice, Plan
from scalerl.forecast.logs.question import ask_for_a_name, check_clear, refuse_nameless
from scalerl.forecast.logs.readers.console import COUNTED_RECORDS
from scalerl.forecast.logs.selection import check_columns
from scalerl.forecast.logs.wide import word_columns

# So many columns of a table without a reward are tried as results of runs.
_TRIED = 3
# A table of results has at least so many rows.
_MIN_RUNS = 3
# Of a sweep, at least this share of all combinations of its settings was tried.
_MOST_POSSIBLE = 4
_MOST_SETTINGS = 10
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


def check(plan: Plan) -> None:
    """Raise InputError if an option names nothing, the log is no history, or compute or reward is not recognised."""
    axes = [axis for axis in map(plan.axis, AXES) if axis]
    check_columns([*plan.frame.columns, *axes], plan.options, plan.path)
    if plan.options.gpus and not plan.options.x and not plan["gpu_hours"]:
        raise InputError(
            f"{option:gpus {plan.options.gpus:g}} needs a clock, and {plan.path} has none: it has {_columns(plan)}."
        )
    if not (plan.is_ours or plan.is_clean):
        _refuse_other_tables(plan)
    if not plan["y"]:
        ask_for_a_name(plan)
        _refuse_falling(plan)
        _refuse_loose_values(plan)
    if not plan.is_clean:
        refuse_results(plan, int(plan.frame.known(plan["y"]).sum()))
        check_clear(plan)
    for role, what, is_known in (("y", "reward", plan["y"]), ("x", "compute", plan["x"] or axes)):
        if not is_known:
            raise InputError(
                f"{plan.path} has no column recognised as {what}: name it with {option:{role}}; it has "
                f"{_columns(plan)}."
            )


def refuse_results(plan: Plan, num: int) -> None:
    """Raise InputError for so few values that no column orders: they are results, and no history."""
    if plan["y"] and counts_rows(plan) and not plan.options.y and num < ENOUGH_STEPS:
        raise InputError(
            f"{plan.path} has {num} values of {plan['y']!r} and nothing that counts steps: these are results, and no "
            "history; give a log with a row for each step."
        )


def refuse_unread_compute(plan: Plan) -> None:
    """Raise InputError where rows would be counted beside a column that is named as compute and holds words."""
    for name in with_role(plan.frame.columns, *AXES, *CLOCKS):
        words = plan.frame.words(name)
        if plan.frame.is_words(name) and not plan.frame.known(name).any():
            example = next((word for word in words if word), "")
            raise InputError(
                f"{plan.path} has {example[:40]!r} in {name!r}, which is no number: write plain numbers, with the "
                f"unit in the name, such as 'tokens (B)', or name another column with {option:x}."
            )


def counts_rows(plan: Plan) -> bool:
    """Return whether the steps are only the numbers of rows: counted here, or by the reader of a table or a text."""
    if "step" in plan.roles and plan.roles["step"].rule == "counted":
        return True
    origins = [fact.values["origin"] for fact in plan.facts if fact.kind == "lines_taken"]
    return COUNTED_RECORDS in origins or any(fact.kind == "rows_counted" for fact in plan.facts)


def _columns(plan: Plan) -> str:
    return listed([name for name in plan.frame.columns if name != FILE])


def _refuse_falling(plan: Plan) -> None:
    """Raise InputError for a log without a reward in which lower is better."""
    falling = [name for name in plan.frame.columns if plan.frame.known(name).any() and is_lower_better(name)]
    if falling:
        raise InputError(
            f"{plan.path} has no column recognised as reward, and lower is better in {listed(falling)}: add one "
            f"that rises, such as 1 - {falling[0]}, or name another with {option:y}; it has {_columns(plan)}."
        )


def _refuse_loose_values(plan: Plan) -> None:
    """Raise InputError for a text whose values nothing counts, and of which none is named as a reward."""
    if plan.kind == "console" and counts_rows(plan):
        names = listed([name for name in plan.frame.columns if name not in (FILE, plan["step"])])
        raise InputError(
            f"{plan.path} has no column recognised as reward, and no step; it prints {names}. If one of them is the "
            f"reward, name it with {option:y}; a configuration, or one record per answer, is no history: give the log "
            "that has the mean reward of each step."
        )


# What is no history


def _refuse_other_tables(plan: Plan) -> None:
    """Raise InputError for a table that is known to be something else than a history."""
    frame = plan.frame
    if _has_answers(plan):
        raise InputError(
            f"{plan.path} has one row per answer of an evaluation: give a row for each evaluation, with its step and "
            "the mean reward."
        )
    item = _item(plan)
    if item and not plan.options.x:
        raise InputError(
            f"{plan.path} has one row per {item} and nothing that counts steps: these are results, and no history; "
            f"give a log with a row for each step, or name what counts with {option:x}."
        )
    has_numbers = bool(frame.known(plan["y"]).any())
    # A cell may hold all rewards of a run, which are no word that tells it from others.
    table = plan if has_numbers else replace(plan, frame=frame.without([plan["y"]]))
    for name in [plan["y"]] if has_numbers else _numbers_of(table.frame)[:_TRIED]:
        what = _finished_runs(replace(table, roles={**plan.roles, "y": Choice((name,))}))
        if what and not plan.options.x:
            raise InputError(
                f"{plan.path} has one row per run ({what}), its result: give the histories of the runs, with a row "
                "for each step."
            )
    if plan["y"]:
        refuse_nameless(plan)
        return
    names = [name for name in frame.columns if name != FILE]
    if steps_of_names(objects(names[1:])) is not None:
        raise InputError(
            f"{plan.path} has a column for each step ({listed(names[1:], 3)}): turn it, so that it has a row for each "
            "step and a column for each run or metric."
        )
    if 2 * sum(np.isfinite(number(name)) for name in names) > len(names):
        raise InputError(f"{plan.path} has numbers in place of the names of its columns: put a line with names above.")
    is_constant = not any(Evidence(frame, name).varies for name in frame.columns)
    if is_constant and len(frame.columns) > 2 and plan.kind in ("json", "jsonl"):
        raise InputError(
            f"{plan.path} holds settings or one result, and no rows of steps: give what the run logged, such as "
            "metrics.jsonl, trainer_state.json or its console output."
        )


def _has_answers(plan: Plan) -> bool:
    """Return whether each row is a single answer with its text: nothing is named as their mean, or as their step."""
    is_named = bool(plan["y"]) and plan.roles["y"].rule != "only_candidate"
    if not is_named or not plan.frame.known(plan["y"]).any():
        return has_texts(plan.frame)
    is_numbered = "step" in plan.roles and plan.roles["step"].rule in ("rising_integers", "counted")
    return is_numbered and has_texts(plan.frame, of_several_words=True)


def _item(plan: Plan) -> str:
    """Return what each row of a table without a step is of, such as a problem; "" if nothing says so."""
    if "step" in plan.roles and plan.roles["step"].rule not in ("rising_integers", "counted"):
        return ""
    if plan.named(*AXES, *CLOCKS, "coarse", "wall_clock"):
        return ""
    names = with_role(plan.frame.columns, "item")
    return next((name for name in names if plan.frame.num_groups([name]) == len(plan.frame) > 1), "")


def _numbers_of(frame: Frame) -> list[str]:
    """Return the columns of numbers that may be results."""
    names = [name for name in frame.columns if not frame.is_words(name) and not has_role(name, *AXES)]
    return [name for name in names if not is_lower_better(name)]


def _finished_runs(plan: Plan) -> str:
    """Return what tells the rows of a table of results apart, which has no history of any run; "" for other tables.

    Its rows are not in the order of any step or compute, and each has its own name, or its own combination of words and
    seeds at a step that others have too, or there are settings, values that come back, and no step at all.
    """
    frame = plan.frame.take(plan.frame.known(plan["y"]))
    if len(frame) < _MIN_RUNS:
        return ""
    is_counted = any(fact.kind == "rows_counted" for fact in plan.facts)
    progress = np.full(len(frame), np.nan) if is_counted else plan.progress(frame)
    words: list[str] = []
    for name in word_columns(frame):
        is_something_else = name in (plan["y"], FILE) or has_role(name, *AXES, *CLOCKS)
        if not is_something_else and _names_something(frame.words(name)):
            words.append(name)
    named = with_role(frame.columns, "run", "arm")
    is_history = bool((np.diff(progress) > 0).all())
    if not is_history:
        named += with_role(frame.columns, "metric")
    name = _own_name(plan, frame, words, named, is_history)
    if name:
        return name
    if _are_numbered(plan, frame, words):
        return plan["step"]
    labels = [*dict.fromkeys([*named, *words, *with_role(frame.columns, "seed")])]
    known = progress[np.isfinite(progress)]
    if labels:
        return listed(labels) if _are_told_apart(frame, labels, known) else ""
    settings = _settings(plan, frame)
    if not len(known):
        return listed(_tried(frame, settings))
    is_unordered = not plan["step"] and 4 * (np.diff(known) < 0).sum() >= len(frame)
    return listed(settings) if is_unordered else ""


def _names_something(words: Words) -> bool:
    """Return whether every row has a word, and not only an answer as to a question."""
    return bool((words != "").all()) and not {*words.tolist()} <= ANSWERS


def _own_name(plan: Plan, frame: Frame, words: Names, named: Names, is_history: bool) -> str:
    """Return the column that has a name of its own for each row: one of runs or arms, or the first without a step."""
    columns = [name for name in frame.columns if name != FILE]
    first = [] if plan["step"] in frame else columns[:1]
    for name in dict.fromkeys([*named, *first]):
        if frame.num_groups([name]) < len(frame):
            continue
        is_named = name in named
        is_told = _are_names(frame.words(name), is_named) if name in words else has_role(name, "run")
        if is_told or (is_named and not is_history):
            return name
    return ""


def _are_names(words: Words, is_named: bool) -> bool:
    """Return whether words name runs; the names of checkpoints differ in a number that rises, and in nothing else.

    Names that differ in several numbers, as k64_exp8 and k128_exp16, are those of settings, unless they are times.
    """
    texts = [_NUMBERS.sub("", word) for word in words]
    if len({*texts}) == 1:
        numbers = itertools.zip_longest(*map(_NUMBERS.findall, words))
        num_differing = sum(len({*column}) > 1 for column in numbers)
        return num_differing > 1 and not np.isfinite(seconds_since_1970(words)).any()
    num_plain = sum(text == word for text, word in zip(texts, words, strict=True))
    return is_named or 2 * num_plain > len(texts)


def _are_told_apart(frame: Frame, labels: Sequence[str], progress: Floats) -> bool:
    """Return whether rows have labels of their own, at one place, at places that others have too, or at none.

    The answers of each step come in the order of steps.
    """
    if frame.num_groups(labels) < len(frame):
        return False
    if len(progress):
        num_places = len({*progress.tolist()})
        return num_places == 1 or (num_places < len(progress) and not (np.diff(progress) >= 0).all())
    return len(labels) > 1 and all(frame.num_groups([name]) < len(frame) for name in labels)


def _are_numbered(plan: Plan, frame: Frame, words: Names) -> bool:
    """Return whether the step only numbers runs.

    Each of its rows has a beginning and an end, or a word and a setting that comes back to what it was.
    """
    if plan["step"] not in frame or plan.roles["step"].rule != "rising_integers":
        return False
    if not Evidence(frame, plan["step"]).always_rises:
        return False
    clocks = [name for name in frame.columns if np.isfinite(seconds_since_1970(frame.columns[name])).all()]
    return len(clocks) > 1 or (
        bool({*words} - {*clocks}) and any(_comes_back(frame, name) for name in _settings(plan, frame))
    )


def _tried(frame: Frame, settings: Sequence[str]) -> Sequence[str]:
    """Return the first settings of which each row has its own combination, out of hardly more than there are rows."""
    for num in range(2, min(len(settings), _MOST_SETTINGS) + 1):
        tried = settings[:num]
        num_possible = math.prod(frame.num_groups([name]) for name in tried)
        if frame.num_groups(tried) == len(frame):
            return tried if num_possible <= _MOST_POSSIBLE * len(frame) else ()
    return ()


def _comes_back(frame: Frame, name: str) -> bool:
    values = frame.numbers(name)
    return bool(np.count_nonzero(np.diff(values)) >= 2 * len({*values.tolist()}))


def _settings(plan: Plan, frame: Frame) -> list[str]:
    """Return the columns of numbers that come back, and are neither rewards nor compute."""
    others = {plan["y"], *plan.named(*AXES, "coarse", "elapsed", "wall_clock", "cost", "num_samples")}
    names = [name for name in frame.columns if not frame.is_words(name) and name not in others]
    return [name for name in names if reward_rank(name) is None and 1 < frame.num_groups([name]) <= len(frame) / 2]
