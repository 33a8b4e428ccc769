"""`Plan`: every decision about the columns of a log, each with the rule that made it.

A role, such as the column of rewards, has an ordered table of rules. A rule sees the earlier decisions and returns a
choice or None; the first choice counts, and an option of the user is the first rule of its role.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalerl.errors import InputError
from scalerl.logs.amounts import duration
from scalerl.logs.columns import (
    AXES,
    BARE,
    CLOCKS,
    REWARD_KINDS,
    has_role,
    is_lower_better,
    is_measured,
    is_part,
    reward_rank,
    with_role,
)
from scalerl.logs.facts import Fact
from scalerl.logs.frame import Floats, Frame, Names, Rows, listed, members
from scalerl.logs.names import FILE
from scalerl.logs.selection import Selection, check_columns
from scalerl.logs.tidy import first, wall_times

# A sigmoid has four parameters and needs two points more.
_ENOUGH_STEPS = 6
# Rows without any counter are counted where as many have a reward.
_COUNTABLE = 3
# A column with this many times fewer steps than another of its kind was logged only now and then.
_FEWER = 4
# A column with this many times more rows per step than another holds single answers.
_PER_SAMPLE = 1.5
# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
# A column of words without a role may name so many runs; with more, it names problems or samples.
_MAX_UNNAMED = 64
_MAX_SETTINGS = 20
# Rewards jump as far with one label fewer if they do within this factor.
_SAME_JUMP = 1.25


class Choice(NamedTuple):
    """What was chosen for a role."""

    columns: Names
    rule: str = ""
    """Why: what a reward is, how an amount is counted, or the name of the rule."""
    others: Names = ()
    """What else could have been chosen."""
    too_few: Mapping[str, int] = {}
    """Columns that would have come first if they had values at more steps, and at how many they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions about a log so far."""

    path: Path
    kind: str
    """The name of the format."""
    frame: Frame
    options: Selection
    facts: tuple[Fact, ...] = ()
    """What the reader and the reshaping of the frame decided."""
    roles: Mapping[str, Choice] = field(default_factory=dict)

    def __getitem__(self, role: str) -> str:
        """Return the first column of a role; "" if it has none."""
        return self.roles[role].columns[0] if role in self.roles else ""

    @property
    def is_ours(self) -> bool:
        """Whether one of our runs wrote it: the store knows what a row is, and nothing is guessed."""
        return self.kind == "run"

    def steps(self, frame: Frame) -> Floats:
        """Return the step of each row of a run; rows are counted where the log has none."""
        return frame.numbers(self["step"]) if self["step"] in frame else np.arange(1.0, len(frame) + 1)

    def progress(self, frame: Frame) -> Floats:
        """Return what rises along a run: the step, else compute or time; NaN where nothing is logged."""
        named = [self["step"], *self.named(*AXES, "elapsed", "wall_clock")]
        return frame.numbers(next((name for name in named if name in frame), ""))

    def axis(self, name: str) -> str:
        """Return the column of an axis of compute, or the axis's own name if it is `BUILT`; "" if there is neither."""
        is_logged = name in self.roles and self.roles[name].rule not in BUILT
        return self[name] if is_logged else name if name in self.roles else ""

    def named(self, *roles: str) -> Names:
        """Return the columns whose names have one of these roles, if they hold any number."""
        return [name for name in with_role(self.frame.columns, *roles) if self.frame.known(name).any()]

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns that are named as compute or time, and hold words that are no amounts."""
        names = [name for name in with_role(self.frame.columns, *AXES, *CLOCKS) if self.frame.is_words(name)]
        return tuple(name for name in names if not self.frame.known(name).any())

    def decided(self) -> "Plan":
        """Return the plan with a choice for every role that a rule finds one for."""
        plan, rules = self, OUR_RULES if self.is_ours else RULES
        for role, table in rules.items():
            for rule in table:
                if choice := rule(plan):
                    named = choice._replace(rule=choice.rule or rule.__name__)
                    plan = replace(plan, roles={**plan.roles, role: named})
                    break
        return plan

    def checked(self) -> "Plan":
        """Return the plan; raise InputError if an option names nothing, or compute or reward is not recognised."""
        columns = listed([name for name in self.frame.columns if name != FILE])
        axes = [axis for axis in map(self.axis, AXES) if axis]
        check_columns([*self.frame.columns, *axes], self.options, self.path)
        if self.options.gpus and not self.options.x and not self["gpu_hours"]:
            raise InputError(f"--gpus {self.options.gpus:g} needs a clock, and {self.path} has none: it has {columns}.")
        falling = [name for name in self.frame.columns if self.frame.known(name).any() and is_lower_better(name)]
        if falling and not self["y"]:
            raise InputError(
                f"{self.path} has no column recognised as reward, and lower is better in {listed(falling)}: add one "
                f"that rises, such as 1 - {falling[0]}, or name another with --y; it has {columns}."
            )
        for option, what, is_known in (("y", "reward", self["y"]), ("x", "compute", self["x"] or axes)):
            if not is_known:
                raise InputError(
                    f"{self.path} has no column recognised as {what}: name it with --{option}; it has {columns}."
                )
        if not self.is_ours and not self.options.x and (what := finished_runs(self)):
            raise InputError(
                f"{self.path} has one row per run ({what}), its result: give the histories of the runs, with a row for "
                "each step."
            )
        return self


def finished_runs(plan: Plan) -> str:
    """Return what tells the rows of a table of results apart, which has no history of any run; "" for other tables.

    Its rows are not in the order of any step or compute, and each has its own name, or its own combination of words and
    seeds at a step that others have too, or there are settings, values that come back, and no step at all.
    """
    frame = plan.frame.take(plan.frame.known(plan["y"]))
    is_counted = any(fact.kind == "rows_counted" for fact in plan.facts)
    progress = np.full(len(frame), np.nan) if is_counted else plan.progress(frame)
    if len(frame) < _COUNTABLE or (np.diff(progress) > 0).all():
        return ""
    names = with_role(frame.columns, "run", "arm", "metric")
    words = [name for name in frame.columns if name != plan["y"] and _is_word(frame, name)]
    labels = [*dict.fromkeys([*names, *words, *with_role(frame.columns, "seed")])]
    own = [name for name in names if _num_groups(frame, [name]) == len(frame)]
    known = progress[np.isfinite(progress)]
    are_crossed = len(labels) > 1 and all(_num_groups(frame, [name]) < len(frame) for name in labels)
    is_repeated = len({*known.tolist()}) < len(known) if len(known) else are_crossed
    if not own and len(known) and (np.diff(known) >= 0).all() and known[0] < known[-1]:
        return ""  # the answers of each step
    if own or (labels and is_repeated and _num_groups(frame, labels) == len(frame)):
        return listed(own[:1] or labels)
    measured = {plan["y"], *plan.named(*AXES, "coarse", "elapsed", "wall_clock", "cost", "num_samples")}
    settings = [
        name
        for name in frame.columns
        if name not in (*measured, *labels, FILE) and reward_rank(name) is None and not frame.is_words(name)
    ]
    recurring = [name for name in settings if 1 < _num_groups(frame, [name]) <= len(frame) / 2]
    is_unordered = 4 * (np.diff(progress) < 0).sum() >= len(frame)
    return listed(recurring) if not plan["step"] and not labels and is_unordered else ""


def _is_word(frame: Frame, name: str) -> bool:
    """Return whether a column holds words, other than times, that may name something."""
    is_time = has_role(name, "date", "wall_clock", "elapsed", "step") or name == FILE
    return frame.is_words(name) and not is_time and (frame.words(name) != "").all()


Rule = Callable[[Plan], Choice | None]


# Rules that several roles share


def asked_for(role: str) -> Rule:
    """Return the rule that chooses the column named by an option."""

    def option(plan: Plan) -> Choice | None:
        column = getattr(plan.options, role)
        return Choice((column,)) if column else None

    return option


def named(role: str, counted: str = "total") -> Rule:
    """Return the rule that chooses the first column whose name has a role; `counted` says how its amounts are."""

    def by_name(plan: Plan) -> Choice | None:
        columns = plan.named(role) if counted == "total" else with_role(plan.frame.columns, role)
        return Choice(columns[:1], counted, columns[1:]) if columns else None

    return by_name


def rollout_and_training(plan: Plan) -> Choice | None:
    """Choose the seconds of rollout and of training of each step, to be added up."""
    columns = [first(plan.frame, "rollout_seconds"), first(plan.frame, "train_seconds")]
    return Choice(columns, "per_step") if all(columns) else None


def present(column: str) -> Rule:
    """Return the rule that chooses the column of exactly this name."""

    def total(plan: Plan) -> Choice | None:
        return Choice((column,)) if column in plan.frame else None

    return total


# The step


def named_step(plan: Plan) -> Choice | None:
    """Choose the first column named as a step that half of the rows have; otherwise the first one."""
    names = plan.named("step")
    common = [name for name in names if 2 * plan.frame.known(name).sum() >= len(plan.frame)]
    return Choice((common or names)[:1]) if names else None


def coarse_counter(plan: Plan) -> Choice | None:
    """Choose an epoch or episode, if most rows have their own and no column is named as compute."""
    column = first(plan.frame, "coarse")
    places = plan.frame.groups([column, *with_role(plan.frame.columns, "run", "arm", "seed")])
    is_fine = 2 * (np.diff(places) != 0).sum() >= len(plan.frame) - 1
    return Choice((column,)) if column and is_fine and not plan.named(*AXES) else None


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


def of_the_export(plan: Plan) -> Choice | None:
    """Choose the only metric of a table that had a column for each run, whatever its name."""
    metrics = [name for each in plan.facts for name in each.values.get("metrics", ()) if name[:1] != "_"]
    return Choice(metrics, "evaluation") if len(metrics) == 1 else None


def like_a_reward(plan: Plan) -> Choice | None:
    """Choose the column that is named most like a pass rate or reward, and has values at enough steps.

    An evaluation comes before a plain rate, and that before a training reward; a whole before its parts. A column with
    several values per step holds single answers, and comes after those with one.
    """
    frame = plan.frame
    ranks = {
        name: rank for name in frame.columns if (rank := reward_rank(name)) and _may_be(frame, name, rank[:2] == BARE)
    }
    if not ranks:
        return None
    # Rows at one place are repeats of one step: those with the same labels and step.
    words = [name for name in frame.columns if frame.is_words(name) and 2 * len({*frame.words(name)}) <= len(frame)]
    labels = dict.fromkeys([*words, *with_role(frame.columns, "run", "set", "seed", "arm")])
    steps = plan.steps(frame)
    places = frame.groups([*labels, plan["step"]]) if plan["step"] in frame else steps
    # Without step 0, which is the model before training.
    num_steps = {name: max(len({*steps[frame.known(name)]} - {0.0}), int(frame.known(name).any())) for name in ranks}
    most_steps = {
        kind: max(num_steps[name] for name in ranks if ranks[name][0] == kind) for kind, _, _ in ranks.values()
    }
    repeats = {name: frame.known(name).sum() / max(len({*places[frame.known(name)]}), 1) for name in ranks}
    most_repeats = _PER_SAMPLE * min((repeats[name] for name in ranks if num_steps[name]), default=1.0)

    def is_rare(name: str) -> bool:
        return num_steps[name] < max(_ENOUGH_STEPS, most_steps[ranks[name][0]] / _FEWER)

    def is_constant(name: str) -> bool:
        return num_steps[name] >= _ENOUGH_STEPS and len({*frame.numbers(name)[frame.known(name)]}) == 1

    best, *rest = sorted(
        ranks,
        key=lambda name: (
            *(not num_steps[name], is_rare(name), is_constant(name), repeats[name] > most_repeats, ranks[name]),
        ),
    )
    kind, part, _ = ranks[best]
    others = [name for name in rest if num_steps[name] and ranks[name][:2] == (kind, part)]
    rarer = [name for name in rest if num_steps[name] and is_rare(name) > is_rare(best) and ranks[name][0] < kind]
    return Choice((best,), REWARD_KINDS[kind], others, {name: num_steps[name] for name in rarer})


def _may_be(frame: Frame, column: str, is_bare: bool) -> bool:
    """Return whether a column may be a reward; one without a telling name holds nothing but rates."""
    values = frame.numbers(column)[frame.known(column)]
    return not is_bare or bool(values.size and values.min() >= 0 and values.max() <= 1)


def only_numbers(plan: Plan) -> Choice | None:
    """Choose the only column of numbers besides those named as step, compute or number of answers."""
    columns = [name for name in plan.frame.columns if plan.frame.known(name).any() and not is_measured(name)]
    others = {*columns} - {*plan.named(*AXES, "elapsed", "wall_clock", "num_samples")}
    # A console prints many numbers by accident.
    is_made = plan.kind != "console" and plan.named(*AXES)
    return Choice([*others]) if is_made and len(others) == 1 else None


# What tells curves apart


def labels_that_explain(plan: Plan) -> Choice | None:
    """Choose the file, and labels that explain why several rows lie at one step, or why rewards jump from row to row.

    The order of rows does not matter. Arms are always chosen, and so are runs and seeds that cover the same steps. Of
    the other labels, as few are chosen as explain what they explain together, if that is at least half; a label with a
    known role comes before one without. Seeds, and runs within an arm, tell runs of one curve apart: they become
    `others`. Where the user says what a curve is, evaluation sets stay apart.
    """
    frame, options = plan.frame.take(plan.frame.known(plan["y"])), plan.options
    known = with_role(frame.columns, "run", "set", "seed", "arm")
    names = [*(name for name in frame.columns if frame.is_words(name) and name not in known), *known]
    names = [name for name in names if name not in (*options.columns, FILE) and _separates(frame, name)]
    progress, rewards = plan.progress(frame), frame.numbers(plan["y"])
    if is_right_or_wrong(rewards) or _has_texts(frame):  # single answers: their problems are not curves
        names = [name for name in names if name in known]
    arms = [name for name in names if has_role(name, "arm") and not options.by]
    chosen = [name for name in names if name not in arms and (has_role(name, "set", "seed") or not options.by)]
    base = [name for name in (*options.by, *arms, options.seed or "") if name in frame]

    def disorder(labels: Names) -> Disorder:
        return _disorder(frame.groups(labels), progress, rewards)

    before, after = disorder(base), disorder([*base, *chosen])
    kept = [name for name in chosen if has_role(name, "run", "seed") and _overlap(frame.groups([name]), progress)]
    chosen = chosen if after.explains(before) else kept
    for name in tuple(chosen):
        fewer = [other for other in chosen if other != name]
        is_split = name in kept and _num_groups(frame, [*base, *fewer]) < _num_groups(frame, [*base, *chosen])
        chosen = chosen if is_split or not disorder([*base, *fewer]).is_as_good_as(after) else fewer
    left = _disorder(frame.groups([*base, *chosen]), progress, rewards)
    chosen += _setting(frame, [*base, *chosen], progress, options) if left.repeats and not options.by else []
    repeats = [name for name in chosen if has_role(name, "seed") or (arms and has_role(name, "run"))]
    apart = [*arms, *(name for name in frame.columns if name in chosen and name not in repeats)]
    return Choice([*(options.by or (FILE,)), *apart], others=[options.seed] if options.seed else repeats)


def _setting(frame: Frame, labels: Names, progress: Floats, options: Selection) -> Names:
    """Return the first column of numbers by which no step comes twice: a setting such as rho, 0.7 or 0.9.

    Numbers that follow each other count something, as the answers of a step.
    """
    placed = frame.having({"": progress})
    for name in frame.columns:
        values = np.unique(frame.numbers(name))
        is_few = 1 < len(values) <= _MAX_SETTINGS and np.isfinite(values).all() and not (np.diff(values) == 1).all()
        is_setting = is_few and not has_role(name, "step", "coarse", *AXES) and reward_rank(name) is None
        if not (is_setting and name not in options.columns and _separates(frame, name)):
            continue
        if _num_groups(placed, [*labels, name, ""]) == len(frame):
            return [name]
    return []


def _separates(frame: Frame, column: str) -> bool:
    """Return whether a column may tell runs apart: all rows have a word, no time, and most words have several rows."""
    words = frame.words(column)
    sizes = np.unique(words.astype(str), return_counts=True)[1]
    is_label = (words != "").all() and not has_role(column, "date", "wall_clock", "elapsed")
    most = _MAX_RUNS if has_role(column, "run", "set", "seed", "arm") else _MAX_UNNAMED
    return bool(is_label and 1 < len(sizes) <= most and np.median(sizes) > 1)


def _has_texts(frame: Frame) -> bool:
    """Return whether each of many rows has a text of its own, such as an answer."""
    texts = [name for name in frame.columns if _is_word(frame, name) and _num_groups(frame, [name]) == len(frame)]
    return len(frame) > _MAX_SETTINGS and bool(texts)


def is_right_or_wrong(rewards: Floats) -> bool:
    """Return whether rewards are those of single answers: right or wrong, and nothing between."""
    return len({*rewards.tolist()}) > 1 and {*rewards.tolist()} <= {-1.0, 0.0, 1.0}


class Disorder(NamedTuple):
    """What rows look like if labels are left out that tell runs apart."""

    repeats: int
    """Rows at a step that another row of the same group has."""
    jump: float
    """How far the reward goes from one step of a group to the next, on average."""

    def explains(self, before: "Disorder") -> bool:
        """Return whether half of the disorder is gone."""
        return 2 * self.repeats <= before.repeats if before.repeats else 2 * self.jump <= before.jump > 0

    def is_as_good_as(self, other: "Disorder") -> bool:
        return self.repeats <= other.repeats and (self.repeats > 0 or self.jump <= _SAME_JUMP * other.jump)


def _disorder(groups: Rows, progress: Floats, rewards: Floats) -> Disorder:
    order = np.lexsort((rewards, progress, groups))
    is_next = (np.diff(groups[order]) == 0) & np.isfinite(progress[order][1:])
    is_repeat = is_next & (np.diff(progress[order]) == 0)
    jumps = np.abs(np.diff(rewards[order]))[is_next & ~is_repeat]
    return Disorder(int(is_repeat.sum()), float(jumps.mean()) if 2 * len(jumps) >= (~is_repeat).sum() > 0 else math.inf)


def _overlap(groups: Rows, progress: Floats) -> bool:
    """Return whether two groups share more than half of the steps that the shorter one spans."""
    spans = sorted((np.nanmin(part), np.nanmax(part)) for rows in members(groups)
                   if np.isfinite(part := progress[rows]).any())  # fmt: skip
    shared = [
        min(end, later_end) - later
        for (begin, end), (later, later_end) in itertools.pairwise(spans)
        if 2 * (min(end, later_end) - later) > min(end - begin, later_end - later)
    ]
    return bool(shared)


def _num_groups(frame: Frame, labels: Names) -> int:
    return len({*frame.groups(labels).tolist()})


# Compute


def time_of_day(plan: Plan) -> Choice | None:
    """Choose the time of day, also one without a day, as 10:03:20 and the time since the beginning are.

    Where a console prints no dates, its 'time' is in seconds: since the beginning if they only grow, else since the row
    before.
    """
    column = first(plan.frame, "wall_clock")
    times = [duration(word) for word in plan.frame.words(column)] if plan.frame.is_words(column) else []
    if np.isfinite(wall_times(plan.frame)).any() or np.isfinite(times).any():
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


def arm_and_set(plan: Plan) -> Choice | None:
    """Choose the arm of a study's run, or else its file, and the evaluation set; seeds are runs of one curve."""
    options = plan.options
    apart = [name for name in ("arm", "set") if name in plan.frame and name not in options.columns]
    files, seeds = ([], ["seed"]) if "arm" in apart and "seed" in plan.frame else ([FILE], [])
    return Choice([*(options.by or files), *apart], others=[options.seed] if options.seed else seeds)


BUILT = ("per_step", "per_row", "elapsed", "clock", "times_gpus", "counted")
"""Rules whose column is not an amount of compute itself, but what the amount is counted from."""
RULES: dict[str, tuple[Rule, ...]] = {
    "step": (named_step, coarse_counter, rising_integers, counted),
    "y": (asked_for("y"), of_the_export, like_a_reward, only_numbers),
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
    "y": (asked_for("y"), present("reward"), like_a_reward),
    "label": (arm_and_set,),
    "num_samples": (answers_of_a_mean,),
    **{name: (present(name),) for name in ("step", "gpu_hours", "flops", "tokens")},
    "x": (asked_compute,),
}
"""Rules of our own run folders: the store knows what a row is, and nothing is guessed."""
