"""What tells the runs in a log apart: labels, found by what they explain, in whatever order the rows come.

Rows of several runs lie at the same steps, or jump from one reward to another. A label within whose values they do not
is one of runs. A table in which every row has labels of its own is one of results, and has no history.
"""

import math
from typing import NamedTuple

import numpy as np

from scalerl.forecast.logs.columns import AXES, has_role, reward_rank, with_role
from scalerl.forecast.logs.frame import Floats, Frame, Names
from scalerl.forecast.logs.names import FILE
from scalerl.forecast.logs.plan import Choice, Plan
from scalerl.forecast.logs.shapes import word_columns

_KNOWN = ("run", "set", "seed", "arm")
"""Roles of labels."""
# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
# A column of words without a role may name so many runs; with more, it names problems or samples.
_MAX_UNNAMED = 64
_MAX_SETTINGS = 20
# Of all steps that settings may have, each row is one: some end long before others.
_MOST_GAPS = 4
# More runs than these, in all labels together, are no runs.
_MAX_GROUPS = 1000
# What a question is answered by, as in 'solved'; no run has such a name.
ANSWERS = frozenset({"true", "false", "True", "False", "yes", "no"})
# Rewards jump as far with one label fewer if they do within this factor.
_SAME_JUMP = 1.25


def file_alone(plan: Plan) -> Choice:
    """Choose the file: its rows are of one run."""
    return Choice((FILE,))


def arm_and_set(plan: Plan) -> Choice:
    """Choose the arm of a study's run, or else its file, and the evaluation set; seeds are runs of one curve."""
    options = plan.options
    apart = [name for name in ("arm", "set") if name in plan.frame and name not in options.columns]
    seed = options.seed or ("seed" if "arm" in apart else "")
    return Choice([*(options.by or ([] if "arm" in apart else [FILE])), *apart], others=[seed] if seed else [])


def labels_that_explain(plan: Plan) -> Choice:
    """Choose the file, and labels that explain why several rows lie at one step, or why rewards jump from row to row.

    Arms, runs and seeds are always chosen; runs may yet be parts of one run. Of the other labels, as few are chosen as
    explain what they explain together, if that is at least half; a label with a known role comes before one without.
    Seeds, and runs within an arm, tell runs of one curve apart: they become `others`. Where the user says what a curve
    is, evaluation sets stay apart.
    """
    options = plan.options
    frame = plan.frame.take(plan.frame.known(plan["y"]))
    names = _that_separate(frame, plan)
    arms = [name for name in names if has_role(name, "arm")]
    base = [name for name in (*options.by, *arms, options.seed or "") if name in frame]
    rows = Rows(frame, base, plan.progress(frame), frame.numbers(plan["y"]))
    chosen = _fewest(rows, [name for name in names if name not in arms])
    if rows.disorder(chosen).repeats and not options.by:
        chosen += _setting(rows, chosen, {*options.columns})
    repeats = [name for name in chosen if has_role(name, "seed") or (arms and has_role(name, "run"))]
    apart = [*arms, *(name for name in frame.columns if name in chosen and name not in repeats)]
    return Choice([*(options.by or (FILE,)), *apart], others=[options.seed] if options.seed else repeats)


# Which columns may tell runs apart ------------------------------------------------------------------------------------


def _that_separate(frame: Frame, plan: Plan) -> list[str]:
    """Return the columns that may tell runs apart: those without a known role first, and not the words of answers."""
    options = plan.options
    known = with_role(frame.columns, *(("set", "seed") if options.by else _KNOWN))
    unknown: list[str] = []
    if not (options.by or is_right_or_wrong(frame.numbers(plan["y"])) or has_texts(frame)):
        unknown = [name for name in frame.columns if frame.is_words(name) and name not in known]
    found: list[str] = []
    for name in (*unknown, *known):
        # Numbers that go round and round as the step rises, as the episodes of a batch do, are no names.
        goes_on = (np.diff(frame.numbers(name)) == 1) & (np.diff(plan.progress(frame)) > 0)
        is_counter = 2 * np.count_nonzero(goes_on) > len(frame)
        if name not in options.columns and name != FILE and not is_counter and _separates(frame, name):
            found.append(name)
    return found


def _separates(frame: Frame, column: str) -> bool:
    """Return whether a column may tell runs apart: all rows have a word, no time, and most words have several rows."""
    words = frame.words(column)
    if (words == "").any() or {*words.tolist()} <= ANSWERS or has_role(column, "date", "wall_clock", "elapsed"):
        return False
    sizes = np.unique(words.astype(str), return_counts=True)[1]
    most = _MAX_RUNS if has_role(column, *_KNOWN) else _MAX_UNNAMED
    return 1 < len(sizes) <= most and bool(np.median(sizes) > 1)


def has_texts(frame: Frame, *, of_several_words: bool = False) -> bool:
    """Return whether each of many rows has a text of its own, such as an answer."""
    if len(frame) <= _MAX_SETTINGS:
        return False
    for name in word_columns(frame):
        is_long = not of_several_words or all(" " in word.strip() for word in frame.words(name))
        if is_long and frame.num_groups([name]) == len(frame):
            return True
    return False


def is_right_or_wrong(rewards: Floats) -> bool:
    """Return whether rewards are those of single answers: right or wrong, and nothing between."""
    return len({*rewards.tolist()}) > 1 and {*rewards.tolist()} <= {-1.0, 0.0, 1.0}


# What they explain ----------------------------------------------------------------------------------------------------


class Disorder(NamedTuple):
    """What rows look like if labels are left out that tell runs apart."""

    repeats: int
    """Rows at a step that another row of the same group has."""
    jump: float
    """How far the reward goes from one step of a group to the next, on average."""


class Rows(NamedTuple):
    """Rows that labels may set apart, beside those that always do."""

    frame: Frame
    base: Names
    progress: Floats
    rewards: Floats

    def disorder(self, labels: Names) -> Disorder:
        """Return what rows look like that only these labels set apart."""
        groups = self.frame.groups([*self.base, *labels])
        order = np.lexsort((self.rewards, self.progress, groups))
        steps = np.diff(self.progress[order])
        is_next = (np.diff(groups[order]) == 0) & np.isfinite(self.progress[order][1:])
        is_repeat = is_next & (steps == 0)
        jumps = np.abs(np.diff(self.rewards[order]))[is_next & ~is_repeat]
        has_enough = 2 * len(jumps) >= (~is_repeat).sum() > 0
        return Disorder(int(is_repeat.sum()), float(jumps.mean()) if has_enough else math.inf)


def _fewest(rows: Rows, names: Names) -> list[str]:
    """Return as few labels as explain what all explain, and those of runs and seeds."""
    kept = [name for name in names if has_role(name, "run", "seed")]
    before = rows.disorder([])
    after = rows.disorder(names)
    # At least half of the disorder is gone: of the repeats, or of the jumps if none repeat.
    if before.repeats:
        explains = 2 * after.repeats <= before.repeats
    else:
        explains = 0 < before.jump >= 2 * after.jump
    num_groups = rows.frame.num_groups([*rows.base, *names])
    chosen = [*names] if explains and num_groups <= min(_MAX_GROUPS, len(rows.frame) / 2) else kept
    for name in tuple(chosen):
        fewer = [other for other in chosen if other != name]
        num_fewer = rows.frame.num_groups([*rows.base, *fewer])
        is_split = name in kept and num_fewer < rows.frame.num_groups([*rows.base, *chosen])
        without = rows.disorder(fewer)
        is_no_worse = without.repeats <= after.repeats and without.jump <= _SAME_JUMP * after.jump
        if not is_split and is_no_worse:
            chosen = fewer
    return chosen


def _setting(rows: Rows, labels: Names, others: set[str]) -> list[str]:
    """Return the first column of numbers by which no step comes twice: a setting such as rho, 0.7 or 0.9.

    Numbers that follow each other count something, as the answers of a step. Settings share most of their steps: where
    each value has only a few, it is something that was measured, and a run was resumed.
    """
    placed = rows.frame.having({"": rows.progress})
    num_steps = len({*rows.progress.tolist()})
    for name in rows.frame.columns:
        values = np.unique(rows.frame.numbers(name))
        is_few = 1 < len(values) <= _MAX_SETTINGS and _MOST_GAPS * len(placed) >= len(values) * num_steps
        is_setting = is_few and np.isfinite(values).all() and not (np.diff(values) == 1).all()
        is_other = name in others or reward_rank(name) or has_role(name, "step", "coarse", *AXES)
        if not is_setting or is_other or not _separates(rows.frame, name):
            continue
        if placed.num_groups([*rows.base, *labels, name, ""]) == len(placed):
            return [name]
    return []
