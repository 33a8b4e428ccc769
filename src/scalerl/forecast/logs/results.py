"""Tables that are no history of a run: each row is an answer, an item, a setting or a finished run.

They have columns that are named as rewards, too. They are told by their rows: each has labels of its own, and no
compute orders them.
"""

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from scalerl.forecast.logs.amounts import seconds_since_1970
from scalerl.forecast.logs.columns import AXES, CLOCKS, has_role, reward_rank, with_role
from scalerl.forecast.logs.evidence import evidence
from scalerl.forecast.logs.frame import Floats, Frame, Names, Words, listed
from scalerl.forecast.logs.labels import ANSWERS, has_texts
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.shapes import word_columns

# A table of results has at least so many rows.
_MIN_RUNS = 3
# Of a sweep, at least this share of all combinations of its settings was tried.
_MOST_POSSIBLE = 4
_MOST_SETTINGS = 10
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_BY_VALUE = ("rising_integers", "counted")
"""Rules of steps that no name tells: such a step may be the number of something else."""


def has_answers(plan: Plan) -> bool:
    """Return whether each row is a single answer with its text: nothing is named as their mean, or as their step."""
    is_named = bool(plan["y"]) and plan.roles["y"].rule != "only_candidate"
    if not is_named or not plan.frame.known(plan["y"]).any():
        return has_texts(plan.frame)
    is_numbered = "step" in plan.roles and plan.roles["step"].rule in _BY_VALUE
    return is_numbered and has_texts(plan.frame, of_several_words=True)


def item_of(plan: Plan) -> str:
    """Return what each row of a table without a step is of, such as a problem; "" if nothing says so."""
    has_step = "step" in plan.roles and plan.roles["step"].rule not in _BY_VALUE
    if has_step or plan.named(*AXES, *CLOCKS, "coarse", "wall_clock"):
        return ""
    names = with_role(plan.frame.columns, "item")
    return next((name for name in names if plan.frame.num_groups([name]) == len(plan.frame) > 1), "")


def finished_runs(plan: Plan, reward: str) -> str:
    """Return what tells the rows of a table of results apart, which has no history of any run; "" for other tables.

    Its rows are not in the order of any step or compute, and each has its own name, or its own combination of words and
    seeds at a step that others have too, or there are settings, values that come back, and no step at all.
    """
    frame = plan.frame.take(plan.frame.known(reward)) if plan.frame.known(reward).any() else plan.frame
    if len(frame) < _MIN_RUNS:
        return ""
    is_counted = any(each.kind == "rows_counted" for each in plan.facts)
    progress = np.full(len(frame), np.nan) if is_counted else plan.progress(frame)
    is_history = bool((np.diff(progress) > 0).all())
    words = _naming_words(frame, {reward, plan["y"], FILE})
    named = with_role(frame.columns, "run", "arm", *([] if is_history else ["metric"]))
    name = _own_name(plan, frame, words, named, is_history)
    if name or _are_numbered(plan, frame, words, reward):
        return name or plan["step"]
    labels = [*dict.fromkeys([*named, *words, *with_role(frame.columns, "seed")])]
    known = progress[np.isfinite(progress)]
    if labels:
        return listed(labels) if _are_told_apart(frame, labels, known) else ""
    settings = _settings(plan, frame, reward)
    if not len(known):
        return listed(_tried(frame, settings))
    is_unordered = not plan["step"] and 4 * (np.diff(known) < 0).sum() >= len(frame)
    return listed(settings) if is_unordered else ""


def _naming_words(frame: Frame, others: set[str]) -> list[str]:
    """Return the columns with a word in every row that may name something, and is not only an answer to a question."""
    names: list[str] = []
    for name in word_columns(frame):
        if name in others or has_role(name, *AXES, *CLOCKS):
            continue
        words = {*frame.words(name).tolist()}
        if "" not in words and not words <= ANSWERS:
            names.append(name)
    return names


def _own_name(plan: Plan, frame: Frame, words: Names, named: Names, is_history: bool) -> str:
    """Return the column that has a name of its own for each row: one of runs or arms, or the first without a step."""
    columns = [name for name in frame.columns if name != FILE]
    first = [] if plan["step"] in frame else columns[:1]
    for name in dict.fromkeys([*named, *first]):
        is_named = name in named
        is_told = _are_names(frame.words(name), is_named) if name in words else has_role(name, "run")
        if frame.num_groups([name]) == len(frame) and (is_told or (is_named and not is_history)):
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

    The answers of each step come in the order of steps, if what tells them apart is not the names of runs.
    """
    if frame.num_groups(labels) < len(frame):
        return False
    if len(progress):
        num_places = len({*progress.tolist()})
        if num_places in (1, len(progress)):
            return num_places == 1
        # A seed of its own in each row may be that of an episode.
        if frame.num_groups(with_role(labels, "seed")) == len(frame):
            return False
        if frame.num_groups(with_role(labels, "run", "arm", "seed")) == len(frame):
            return True
        return not (np.diff(progress) >= 0).all()
    return len(labels) > 1 and all(frame.num_groups([name]) < len(frame) for name in labels)


def _are_numbered(plan: Plan, frame: Frame, words: Names, reward: str) -> bool:
    """Return whether the step only numbers runs.

    Each of its rows has a beginning and an end, or a word and a setting that comes back to what it was.
    """
    is_guessed = plan["step"] in frame and plan.roles["step"].rule == "rising_integers"
    if not is_guessed or not evidence(frame, plan["step"]).always_rises:
        return False
    clocks = {name for name in frame.columns if np.isfinite(seconds_since_1970(frame.columns[name])).all()}
    if len(clocks) > 1 or not {*words} - clocks:
        return len(clocks) > 1
    for name in _settings(plan, frame, reward):
        values = frame.numbers(name)
        if np.count_nonzero(np.diff(values)) >= 2 * len({*values.tolist()}):
            return True
    return False


def _tried(frame: Frame, settings: Sequence[str]) -> Sequence[str]:
    """Return the first settings of which each row has its own combination, out of hardly more than there are rows."""
    for num in range(2, min(len(settings), _MOST_SETTINGS) + 1):
        tried = settings[:num]
        num_possible = math.prod(frame.num_groups([name]) for name in tried)
        if frame.num_groups(tried) == len(frame):
            return tried if num_possible <= _MOST_POSSIBLE * len(frame) else ()
    return ()


def _settings(plan: Plan, frame: Frame, reward: str) -> list[str]:
    """Return the columns of numbers that come back, and are neither rewards nor compute."""
    others = {reward, *plan.named(*AXES, "coarse", "elapsed", "wall_clock", "cost", "num_samples")}
    names = [name for name in frame.columns if not frame.is_words(name) and name not in others]
    return [name for name in names if reward_rank(name) is None and 1 < frame.num_groups([name]) <= len(frame) / 2]
