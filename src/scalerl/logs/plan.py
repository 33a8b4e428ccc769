"""`Plan`: every decision about a log, each with the rule that made it.

A role, such as the column of rewards, has an ordered table of rules. A rule sees the earlier decisions and returns a
choice or None; the first choice counts, and an option of the user is the first rule of its role.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.logs import amounts
from scalerl.logs.attempts import MIN_ROWS, Restart, chains, numbered_attempts, restarts, superseded
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import AXES, BARE, REWARD_KINDS, has_role, is_measured, reward_rank, with_role
from scalerl.logs.facts import Fact, fact
from scalerl.logs.frame import Cells, Floats, Frame, Mask, Rows, listed, members, numbered, objects, steps_of
from scalerl.logs.names import ATTEMPT, FILE
from scalerl.logs.selection import Selection, check_columns
from scalerl.logs.tidy import tidied, wall_times

ENOUGH_ROWS = 6
"""A sigmoid has four parameters and needs two points more."""
# A column with this many times fewer rows than another of its kind was logged only now and then.
_FEWER = 4
# A column with this many times more rows per step than another holds single answers.
_PER_SAMPLE = 1.5
# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
_MIN_ROWS_PER_RUN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was chosen for a role."""

    columns: tuple[str, ...]
    rule: str
    others: tuple[str, ...] = ()
    """What else could have been chosen."""
    too_few: Mapping[str, int] = field(default_factory=dict)
    """What would have come first, had it more values: column and their number."""
    built: bool = False
    """Whether the columns are not in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a rule chooses."""

    columns: tuple[str, ...]
    rule: str = ""
    """Its reason; unset, the name of the rule."""
    others: tuple[str, ...] = ()
    too_few: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Cells] = field(default_factory=dict)
    """Columns that it builds."""
    facts: tuple[Fact, ...] = ()
    counts: Mask | None = None
    """Rows that count, where some do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions about a log so far, and its frame with the columns that they built."""

    path: Path
    frame: Frame
    counts: Mask
    """Rows that no later attempt superseded."""
    asked: Selection = Selection()
    kind: str = ""
    """The name of the format."""
    num_logs: int = 1
    """How many logs are read together."""
    roles: Mapping[str, Decision] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()

    def column(self, role: str) -> str | None:
        return next(iter(self.columns(role)), None)

    def columns(self, *roles: str) -> tuple[str, ...]:
        return tuple(column for role in roles if role in self.roles for column in self.roles[role].columns)

    def numbers(self, role: str) -> Floats:
        return self.frame.numbers(self.column(role))

    def named(self, *roles: str) -> list[str]:
        """Return the columns of the log that have one of these roles by their names."""
        return with_role(self.frame.columns, *roles)

    @property
    def measured(self) -> Mask:
        """Which rows have a reward."""
        return np.isfinite(self.numbers("y"))

    @property
    def runs(self) -> Rows:
        """A number for each row, equal for rows of one run."""
        extra = [name for name in self.frame.columns if name in self.asked.separating]
        return self.frame.groups(dict.fromkeys([*self.columns("curve", "label", "run", "attempt"), *extra]))

    @property
    def axes(self) -> dict[str, str]:
        """The column of each axis that the log has."""
        return {axis: column for axis in (*AXES, "cost") if (column := self.column(axis))}

    def choosing(self, role: str, rule: str, choice: Choice) -> "Plan":
        decision = Decision(
            columns=choice.columns,
            rule=choice.rule or rule,
            others=choice.others,
            too_few=choice.too_few,
            built=bool(choice.values.keys() - self.frame.columns.keys()),
        )
        return replace(
            self,
            frame=self.frame.having(choice.values),
            counts=self.counts if choice.counts is None else self.counts & choice.counts,
            roles={**self.roles, role: decision},
            facts=(*self.facts, *choice.facts),
        )


Rule = Callable[[Plan], Choice | None]


def decide(
    path: Path, kind: str, frame: Frame, asked: Selection, *, facts: Iterable[Fact] = (), name: str = "", num_logs: int = 1
) -> Plan:
    """Take every decision about a log; InputError where one cannot be taken."""
    rules = OUR_RULES if kind == "run" else RULES
    shaped, found = (frame, []) if kind == "run" else tidied(frame, asked)
    shaped = shaped if FILE in shaped else shaped.having({FILE: objects([name] * len(shaped))})
    plan = Plan(
        path=path,
        kind=kind,
        frame=shaped,
        counts=np.ones(len(shaped), dtype=bool),
        asked=asked,
        num_logs=num_logs,
        facts=(*facts, *found),
    )
    for role, table in rules.items():
        for rule in table:
            if (choice := rule(plan)) is not None:
                plan = plan.choosing(role, rule.__name__, choice)
                break
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    """Raise InputError where an option names nothing, or compute or reward were not recognised."""
    check_columns(plan.frame, plan.asked, str(plan.path))
    columns = listed([name for name in plan.frame.columns if name != FILE])
    if not columns:
        raise InputError(f"{plan.path} has rows, but no value in them: give the log of a run.")
    if plan.asked.gpus is not None and plan.asked.x is None and plan.column("gpu_hours") is None:
        raise InputError(
            f"--gpus {plan.asked.gpus:g} needs a clock, and {plan.path} has no column for it (time/step, step_time, "
            f"timestamp ...): choose the compute column with --x among {columns}."
        )
    for option, what, role in (("--x", "compute", "x"), ("--y", "reward", "y")):
        if plan.column(role) is None:
            raise InputError(
                f"{plan.path} has no column recognised as {what}: choose one with {option} among {columns}."
            )


# Rules that several roles share


def asked_for(role: str) -> Rule:
    """The column that an option names."""

    def option(plan: Plan) -> Choice | None:
        value = getattr(plan.asked, role)
        columns = (value,) if isinstance(value, str) else tuple(value or ())
        return Choice(columns=columns) if columns else None

    return option


def named_column(*roles: str) -> Rule:
    """The first column that has a role by its name and holds numbers."""

    def named(plan: Plan) -> Choice | None:
        columns = [name for name in plan.named(*roles) if np.isfinite(plan.frame.numbers(name)).any()]
        return Choice(columns=(columns[0],), others=tuple(columns[1:])) if columns else None

    return named


def present(*columns: str) -> Rule:
    """Columns of these very names."""

    def named(plan: Plan) -> Choice | None:
        there = tuple(column for column in columns if column in plan.frame)
        return Choice(columns=there) if there else None

    return named


# The step


def named_step(plan: Plan) -> Choice | None:
    """The first column named as a step that half of the rows have, counted through epochs that begin it anew."""
    names = plan.named("step")
    usable = [name for name in names if 2 * plan.frame.has(name).sum() >= len(plan.frame)] or names
    for name in usable:
        steps = plan.frame.numbers(name)
        steps = steps if np.isfinite(steps).any() else steps_of(plan.frame.words(name).tolist())
        if np.isfinite(steps).any():
            return _through_epochs(plan, name, steps)
    return None


def _through_epochs(plan: Plan, name: str, steps: Floats) -> Choice:
    coarse = next(iter(plan.named("coarse")), None)
    epochs = plan.frame.numbers(coarse)
    known = np.flatnonzero(~np.isnan(steps) & ~np.isnan(epochs))
    rises, turns = np.diff(steps[known]), np.diff(epochs[known])
    falls = rises < 0
    if not falls.any() or (turns < 0).any() or falls.sum() != (turns > 0).sum():
        return Choice(columns=(name,), values={name: steps})
    usual = np.median(rises[~falls]) if (~falls).any() else 1.0
    counted = steps.copy()
    counted[known[1:]] += np.cumsum(np.where(falls, usual - rises, 0.0))
    told = fact("steps_per_epoch", step=name, coarse=coarse, num=int(falls.sum()) + 1)
    return Choice(columns=(name,), values={name: counted}, facts=(told,))


def rising_integers(plan: Plan) -> Choice | None:
    """A column of integers that rises from row to row, such as an index, where nothing is named as a step or compute."""
    if plan.named(*AXES) or len(plan.frame) < MIN_ROWS:
        return None
    for name in plan.frame.columns:
        values = plan.frame.numbers(name)
        is_rising = np.isfinite(values).all() and (np.diff(values) > 0).all() and (values % 1 == 0).all()
        if is_rising and not is_measured(name) and not has_role(name, "wall_clock", "elapsed"):
            return Choice(columns=(name,))
    return None


def coarse_counter(plan: Plan) -> Choice | None:
    """An epoch or episode, where nothing finer is there and most rows have their own."""
    for name in plan.named("coarse") if not plan.named(*AXES) else ():
        values = plan.frame.numbers(name)
        runs = plan.frame.groups(plan.named("run", "arm", "seed"))
        known = np.isfinite(values)
        if 2 * len(set(zip(runs[known], values[known], strict=True))) > known.sum() > 0:
            return Choice(columns=(name,))
    return None


# The reward


def of_the_export(plan: Plan) -> Choice | None:
    """The one metric of a table with a column for each run, whatever its name."""
    exported = [told.values["metrics"] for told in plan.facts if told.kind == "one_column_per_run"]
    metrics = [name for names in exported for name in names if not name.startswith("_")]
    return Choice(columns=(metrics[0],), rule="evaluation") if len(metrics) == 1 else None


def like_a_reward(plan: Plan) -> Choice | None:
    """The column that is named most like a pass rate or reward, and has values at enough steps.

    An evaluation comes before a plain rate, and that before a training reward; a whole before its parts. A column with
    several values per step holds single answers, and comes after those with one.
    """
    ranks = {name: rank for name in plan.frame.columns if (rank := reward_rank(name))}
    values = {name: plan.frame.numbers(name) for name in ranks}
    # A column without a telling name, as slime's eval/NAME, holds nothing but rates.
    for name in [name for name in ranks if ranks[name] == BARE]:
        known = values[name][np.isfinite(values[name])]
        if not known.size or known.min() < 0 or known.max() > 1:
            del ranks[name]
    num_rows = {name: int(np.isfinite(values[name]).sum()) for name in ranks}
    num_steps = {name: _num_steps(plan, values[name]) for name in ranks if num_rows[name]}
    if not num_steps:  # one without a number is chosen, so that the message can name it
        named = sorted(ranks, key=lambda name: ranks[name])[:1]
        return Choice(columns=tuple(named), rule=REWARD_KINDS[ranks[named[0]][0]]) if named else None
    most = {kind: max(num for name, num in num_steps.items() if ranks[name][0] == kind) for kind, *_ in ranks.values()
            if any(ranks[name][0] == kind for name in num_steps)}  # fmt: skip
    repeats = {name: num_rows[name] / _num_places(plan, values[name]) for name in num_steps}
    fewest = min(repeats.values())
    is_few = {name: num < max(ENOUGH_ROWS, most[ranks[name][0]] / _FEWER) for name, num in num_steps.items()}
    keys = {name: (is_few[name], repeats[name] > _PER_SAMPLE * fewest, *ranks[name]) for name in num_steps}
    first, *others = sorted(keys, key=lambda name: keys[name])
    kind, part = ranks[first][:2]
    better = {name: num_steps[name] for name in others if is_few[name] > is_few[first] and ranks[name][0] < kind}
    return Choice(
        columns=(first,),
        rule=REWARD_KINDS[kind],
        others=tuple(name for name in others if ranks[name][:2] == (kind, part)),
        too_few=better,
    )


def _num_steps(plan: Plan, values: Floats) -> int:
    """Return the number of steps that have a value, the model before training aside."""
    known, steps = np.isfinite(values), plan.numbers("step")
    seen = np.unique(steps[known & np.isfinite(steps)]) if plan.column("step") else np.arange(1, known.sum() + 1)
    return int(len(seen) - (len(seen) > 1 and 0 in seen))


def _num_places(plan: Plan, values: Floats) -> int:
    """Return the number of steps that have a value, those of other labels apart."""
    known = np.isfinite(values)
    labels = [name for name in plan.frame.columns if plan.frame.is_words(name) and _is_label(plan.frame.words(name))]
    step = plan.column("step")
    places = plan.frame.groups([*labels, step] if step else labels)
    return len(np.unique(places[known])) if step else int(known.sum())


def only_numbers(plan: Plan) -> Choice | None:
    """The only column of numbers beside a step or compute that is named as one."""
    named = {*plan.named(*AXES, "coarse", "seed", "elapsed", "wall_clock", "num_samples"), *plan.columns("step")}
    others = [
        name
        for name in plan.frame.columns
        if name not in named and not is_measured(name) and np.isfinite(plan.frame.numbers(name)).any()
    ]
    return Choice(columns=(others[0],), rule="only_numbers") if plan.named(*AXES) and len(others) == 1 else None


# Curves and runs


def _is_label(words: Cells) -> bool:
    """Return whether words name runs: most come again, and there are not too many."""
    known = words[words != ""]
    return 0 < 2 * len(set(known)) <= len(known) and len(set(known)) <= _MAX_RUNS


def _separates(plan: Plan, column: str) -> bool:
    """Return whether every reward has a value in a column, and there are several values with several rows each."""
    words = plan.frame.words(column)[plan.measured]
    sizes = np.unique(words.astype(str), return_counts=True)[1]
    is_free = column not in {*plan.asked.by, plan.asked.seed, (plan.asked.holdout or ("",))[0]}
    return bool(
        is_free and (words != "").all() and 1 < len(sizes) <= _MAX_RUNS and np.median(sizes) >= _MIN_ROWS_PER_RUN
    )


def named_seed(plan: Plan) -> Choice | None:
    """A column named as a seed, with several rows for each value."""
    seed = next(iter(plan.named("seed")), None)
    if seed is None or seed in plan.asked.separating:
        return None
    words = plan.frame.words(seed)[plan.measured]
    num = len(set(words) - {""})
    if 2 * num > len(words) > 1:
        return Choice(columns=(), facts=(fact("seed_has_too_many_values", columns=(seed,)),))
    return Choice(columns=(seed,), facts=(fact("runs_by_column", columns=(seed,)),) if num > 1 else ())


def run_of_an_arm(plan: Plan) -> Choice | None:
    """The column of runs, where arms are the curves."""
    runs = plan.named("run")[:1]
    has_arms = "arms" in {plan.roles[role].rule for role in ("curve",) if role in plan.roles}
    return Choice(columns=tuple(runs)) if has_arms and runs else None


def arms(plan: Plan) -> Choice | None:
    """Columns named as a recipe, arm or model: the runs and seeds within one are its repeats."""
    columns = tuple(name for name in plan.named("arm") if _separates(plan, name))
    return _apart(plan, columns) if columns else None


def named_runs(plan: Plan) -> Choice | None:
    """A column named as a run, unless each run has a seed of its own."""
    columns = tuple(name for name in plan.named("run")[:1] if _separates(plan, name))
    seed = next(iter(plan.named("seed")), None)
    if not columns or plan.asked.seed:
        return None
    frame = plan.frame.take(plan.measured)
    pairs = set(zip(frame.words(columns[0]), frame.words(seed), strict=True))
    is_repeat = seed is not None and len(pairs) == len({own for _, own in pairs})
    return None if is_repeat else _apart(plan, columns)


def _apart(plan: Plan, columns: tuple[str, ...]) -> Choice:
    frame = plan.frame.take(plan.measured)
    facts = tuple(fact("runs_apart", column=name, num=len(set(frame.words(name)))) for name in columns)
    return Choice(columns=columns, facts=facts)


def labels_that_explain(plan: Plan) -> Choice | None:
    """Columns of words within whose values compute rises from row to row, where it falls or repeats without them."""
    if plan.asked.by:
        return None
    known = [name for name in plan.named(*AXES) if np.isfinite(plan.frame.numbers(name)).any()]
    progress = plan.frame.numbers(plan.column("step") or next(iter(known), None))
    rows = plan.measured & np.isfinite(progress)
    frame, progress = plan.frame.take(rows), progress[rows]
    progress = -progress if (np.diff(progress) < 0).sum() > (np.diff(progress) > 0).sum() else progress
    base = [*plan.columns("curve", "run"), *([plan.asked.seed] if plan.asked.seed else [])]
    chosen = [name for name in frame.columns if name not in base and _may_explain(plan, name)]
    falls, left = _num_falls(frame.groups([*base, *chosen]), progress), _num_falls(frame.groups(base), progress)
    if 2 * falls > left or not chosen or not left:
        return None
    for name in tuple(chosen):
        fewer = [other for other in chosen if other != name]
        chosen = fewer if _num_falls(frame.groups([*base, *fewer]), progress) <= falls else chosen
    return _apart(plan, tuple(chosen)) if chosen else None


def _may_explain(plan: Plan, column: str) -> bool:
    is_other = has_role(column, "date", "wall_clock", "run", "seed", "elapsed")
    return plan.frame.is_words(column) and not is_other and _separates(plan, column)


def _num_falls(runs: Rows, progress: Floats) -> int:
    """Return the number of rows at which compute does not rise within its run."""
    order = np.argsort(runs, kind="stable")
    return int(((np.diff(runs[order]) == 0) & (np.diff(progress[order]) <= 0)).sum())


def joined_runs(plan: Plan) -> Choice | None:
    """Give one name to runs that continue each other, as ids of restarts do."""
    columns = [name for name in plan.columns("curve", "label", "run") if has_role(name, "run")]
    steps, names, facts = plan.numbers("step"), dict[str, Cells](), list[Fact]()
    for column in columns if plan.column("step") else ():
        words = plan.frame.words(column).copy()
        others = [name for name in plan.columns("curve", "label", "run") if name != column]
        for family in members(plan.frame.groups(others)):
            parts = {name: family[words[family] == name] for name in dict.fromkeys(words[family]) if name}
            for run in chains({name: steps[rows] for name, rows in parts.items()}):
                words[np.concatenate([parts[name] for name in run])] = run[0]
                facts.append(fact("runs_joined", column=column, names=tuple(map(str, run))))
        names[column] = words
    return Choice(columns=tuple(columns), values=names, facts=tuple(facts)) if facts else None


# Attempts


def attempts(plan: Plan) -> Choice | None:
    """Number the attempts that begin anew, and leave out what a resumed one superseded."""
    step, frame = plan.column("step"), plan.frame
    if step is None or ATTEMPT in frame or not has_role(step, "step"):
        return None
    steps, dense = frame.numbers(step), _dense(plan)
    attempt, gone, short = (np.zeros(len(frame), dtype=kind) for kind in (np.intp, bool, bool))
    places: list[int] = []
    for rows in members(plan.runs):
        rows = rows[~np.isnan(steps[rows])]
        logged = rows[dense[rows]]
        found = [_moved(restart, rows, logged, steps) for restart in restarts(steps[logged])] if len(logged) else []
        attempt[rows], short[rows] = numbered_attempts(len(rows), found)
        gone[rows] = superseded(steps[rows], found, plan.measured[rows]) & ~short[rows]
        places += [int(rows[restart.at]) for restart in found if not restart.is_anew]
    facts = _attempt_facts(plan, steps, places, gone, short)
    num = int(attempt[~short].max(initial=1))
    counts = ~gone & ~short
    if num < 2:
        return Choice(columns=(), facts=facts, counts=counts) if facts else None
    differing = _settings(frame.take(counts & plan.measured), attempt[counts & plan.measured])
    if differing:
        return Choice(columns=differing[:1], facts=(*facts, *_apart(plan, differing[:1]).facts), counts=counts)
    told = fact("attempts", num=num, place=plan.path.name)
    values = {ATTEMPT: objects(map(str, np.maximum(attempt, 1)))}
    return Choice(columns=(ATTEMPT,), facts=(*facts, told), counts=counts, values=values)


def _dense(plan: Plan) -> Mask:
    """Return which rows have the number that most rows have, as the reward or the loss: those that show the order."""
    others = {*plan.named(*AXES, "coarse", "elapsed", "wall_clock", "seed"), *plan.columns("step")}
    columns = [name for name in plan.frame.columns if name not in others and not plan.frame.is_words(name)]
    known = [plan.measured, *(plan.frame.has(name) for name in columns if is_measured(name))]
    return max(known, key=np.sum)


def _moved(restart: Restart, rows: Rows, logged: Rows, steps: Floats) -> Restart:
    """Return a restart among all rows of a run: it begins where the step of any of them came back."""
    after = np.searchsorted(rows, logged[restart.at])
    before = np.searchsorted(rows, logged[restart.at - 1])
    falls = before + 1 + np.flatnonzero(np.diff(steps[rows[before : after + 1]]) <= 0)
    at = int(falls[-1] if len(falls) else after)
    is_later = steps[rows[at]] > steps[rows].min()
    return Restart(at, min(steps[rows[at]], restart.step) if is_later and not restart.is_anew else restart.step)


def _attempt_facts(plan: Plan, steps: Floats, places: list[int], gone: Mask, short: Mask) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    if (gone & plan.measured).any() and places:
        at = min(places)
        earlier = steps[:at][~np.isnan(steps[:at])]
        spans = {"from_step": float(earlier[-1]), "to_step": float(steps[at])}
        place = f"{plan.frame.origin[at]} of {plan.path.name}"
        num = int((gone & plan.measured).sum())
        facts.append(fact("superseded", **spans, place=place, times=len(places), num=num))
    if (short & plan.measured).any():
        num = len(np.unique(plan.frame.groups([ATTEMPT])[short]))
        facts.append(fact("short_attempts", num=num, num_rows=int(short.sum()), place=plan.path.name))
    return tuple(facts)


def _settings(frame: Frame, attempt: Rows) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and another in each: settings, most likely."""
    pairs = {name: set(zip(attempt.tolist(), frame.words(name), strict=True)) for name in frame.columns}
    num = len(set(attempt.tolist()))
    return tuple(name for name, own in pairs.items() if len(own) == num == len({word for _, word in own} - {""}))


# Compute


def total(*roles: str) -> Rule:
    """A column of totals that has a role by its name; amounts of each step are added up."""

    def named(plan: Plan) -> Choice | None:
        for name in plan.named(*roles):
            values = plan.frame.numbers(name)
            if np.isfinite(values).any():
                return _totalled(plan, name, values)
        return None

    return named


def _totalled(plan: Plan, name: str, values: Floats) -> Choice:
    """Return totals by step: amounts of each step are added up, and a counter that began anew goes on."""
    steps, result, facts = plan.numbers("step"), values.copy(), dict[str, Fact]()
    is_counted = plan.counts & np.isfinite(values) & np.isfinite(steps)
    for rows in members(plan.runs):
        counted = rows[is_counted[rows]]
        ordered = counted[np.argsort(steps[counted], kind="stable")]
        if (np.diff(steps[ordered]) <= 0).any():
            continue  # two amounts of one step, as of runs side by side, prove nothing
        if not amounts.is_total(values[ordered]):
            result[rows] = amounts.totals(steps[rows], values[rows])
            facts["summed"] = fact("summed", column=name)
        elif len(falls := amounts.began_anew(values[ordered])):
            result[ordered] = amounts.continued(values[ordered])
            place = f"{plan.frame.origin[ordered[falls[0]]]} of {plan.path.name}"
            facts["began"] = fact("counter_restarted", column=name, place=place, num=len(falls))
    return Choice(columns=(name,), values={name: _filled(plan, result)}, facts=tuple(facts.values()))


def tokens_of_steps(plan: Plan) -> Choice | None:
    """The sum of the tokens of each step."""
    return _summed(plan, "tokens", *(plan.frame.numbers(name) for name in plan.named("tokens_per_step")[:1]))


def hours_of_steps(plan: Plan) -> Choice | None:
    """The sum of the seconds of each step."""
    return _summed(plan, "hours", *(_seconds(plan, name) / 3600 for name in plan.named("seconds_per_step")[:1]))


def hours_of_parts(plan: Plan) -> Choice | None:
    """The sum of the seconds of rollout and training of each step."""
    parts = [plan.named(role)[:1] for role in ("rollout_seconds", "train_seconds")]
    if not all(parts):
        return None
    return _summed(plan, "hours", sum(np.nan_to_num(_seconds(plan, name)) for (name,) in parts) / 3600)


def _summed(plan: Plan, column: str, *of_steps: Floats) -> Choice | None:
    """Return a column of totals from the amounts of each step; None without amounts."""
    known = [np.where(np.isfinite(values), values, np.nan) for values in of_steps]
    if not known or np.isnan(known[0]).all():
        return None
    steps, spent = plan.numbers("step"), np.full(len(plan.frame), np.nan)
    for rows in members(plan.runs):
        counted = steps[rows] if plan.column("step") else np.arange(1.0, len(rows) + 1)
        spent[rows] = amounts.totals(counted, known[0][rows])
    return Choice(columns=(column,), values={column: spent})


def hours_elapsed(plan: Plan) -> Choice | None:
    """Seconds since the beginning; what a console calls 'time' are those, or the seconds of each step."""
    is_printed = plan.kind == "console" and np.isnan(wall_times(plan.frame)).all()
    clocks = plan.named("wall_clock") if is_printed else []
    for name in (*plan.named("elapsed"), *clocks):
        seconds = _seconds(plan, name)
        if name in clocks and not amounts.is_total(seconds[~np.isnan(seconds)]):
            return _summed(plan, "hours", seconds / 3600)
        if np.isfinite(seconds).any():
            return _on_clock(plan, seconds)
    return None


def hours_by_the_clock(plan: Plan) -> Choice | None:
    """Hours since the first row, by the time of day."""
    times = wall_times(plan.frame)
    for rows in members(plan.runs):
        times[rows] -= np.nanmin(times[rows], initial=np.inf)
    return _on_clock(plan, times) if np.isfinite(times).any() else None


def _seconds(plan: Plan, name: str) -> Floats:
    values = plan.frame.numbers(name)
    return values if np.isfinite(values).any() else np.array([*map(amounts.duration, plan.frame.words(name))], dtype=float)


def _on_clock(plan: Plan, seconds: Floats) -> Choice | None:
    """Return hours on a clock, counted in each run; None for a clock that stands still."""
    steps, spent, pauses = plan.numbers("step"), np.full(len(seconds), np.nan), np.zeros(len(seconds))
    for rows in members(plan.runs):
        running, pauses[rows] = amounts.without_pauses(amounts.continued(seconds[rows]))
        counted = steps[rows] if plan.column("step") else np.arange(1.0, len(rows) + 1)
        spent[rows] = amounts.from_the_start(counted, running) / 3600
    known = spent[np.isfinite(spent)]
    if len(np.unique(known)) < min(len(plan.frame), 2):
        return None
    at = np.flatnonzero(pauses)
    gaps = {"num": len(at), "hours": float(pauses.sum()) / 3600, "place": plan.frame.origin[at[0]]} if len(at) else {}
    facts = (fact("clock_gaps", **gaps),) if gaps else ()
    return Choice(columns=("hours",), values={"hours": _filled(plan, spent)}, facts=facts)


def hours_times_gpus(plan: Plan) -> Choice | None:
    """GPU-hours from the log's clock, with --gpus."""
    if plan.asked.gpus is None or plan.column("hours") is None:
        return None
    return Choice(columns=("gpu_hours",), values={"gpu_hours": plan.numbers("hours") * plan.asked.gpus})


def _filled(plan: Plan, values: Floats) -> Floats:
    """Return amounts; one that is missing is that of another row of the same step and run, and 0 at step 0."""
    steps, filled = plan.numbers("step"), values
    if plan.column("step") is None or not np.isnan(values).any():
        return values
    # What a filter drops may hold the compute of what it keeps.
    for runs in (plan.runs, plan.frame.groups(plan.columns("curve", "label", "run", "attempt"))):
        place, missing = numbered(zip(runs.tolist(), steps.tolist(), strict=True)), np.isnan(filled)
        known = np.full(len(values), np.nan)
        known[place[~missing]] = filled[~missing]
        filled = np.where(missing & ~np.isnan(steps), known[place], filled)
    return np.where(np.isnan(filled) & (steps == 0), 0.0, filled)


def axis_of_most_rewards(plan: Plan) -> Choice | None:
    """The first axis on which most rewards have a number; what --gpus asks for comes first."""
    measured = plan.measured & plan.counts
    for axis in AXES:
        column = plan.column(axis)
        is_total = axis != "tokens" or plan.roles.get(axis, Decision(columns=(), rule="")).rule == "named"
        if column and is_total and 2 * np.isfinite(plan.frame.numbers(column)[measured]).sum() >= measured.sum():
            return Choice(columns=(column,), rule=axis)
    return None


def axis_without_numbers(plan: Plan) -> Choice | None:
    """A column that is named as compute, so that the message about it can name it."""
    columns = [name for name in plan.named(*AXES) if plan.frame.has(name).any() and not np.isfinite(plan.frame.numbers(name)).any()]
    return Choice(columns=(columns[0],)) if columns else None


def filled_compute(plan: Plan) -> Choice | None:
    """The column of --x, with what stands in another row of the same step."""
    if plan.asked.x is None or plan.asked.x not in plan.frame:
        return asked_for("x")(plan)
    values = _filled(plan, plan.frame.numbers(plan.asked.x))
    return Choice(columns=(plan.asked.x,), values={plan.asked.x: values}, rule="option")


RULES: dict[str, tuple[Rule, ...]] = {
    "step": (named_step, coarse_counter, rising_integers),
    "y": (asked_for("y"), of_the_export, like_a_reward, only_numbers),
    "curve": (asked_for("by"), arms, named_runs),
    "run": (asked_for("seed"), named_seed, run_of_an_arm),
    "label": (labels_that_explain,),
    "joined": (joined_runs,),
    "attempt": (attempts,),
    "hours": (total("hours"), hours_of_steps, hours_of_parts, hours_elapsed, hours_by_the_clock),
    "gpu_hours": (total("gpu_hours"), hours_times_gpus),
    "flops": (total("flops"),),
    "tokens": (total("tokens"), tokens_of_steps),
    "cost": (total("cost"),),
    "num_samples": (named_column("num_samples"),),
    "x": (filled_compute, axis_of_most_rewards, axis_without_numbers),
}


# Our own run folders: the store knows what a row is, and nothing is guessed


def flops_where_time_is_uneven(plan: Plan) -> Choice | None:
    """FLOPs, where the time per FLOP changed during a run that is looked at alone."""
    spent = zip(plan.frame.numbers("gpu_hours"), plan.frame.numbers("flops"), strict=True)
    share = disagreement({"gpu_hours": hours, "flops": flops} for hours, flops in spent)
    if "arm" in plan.frame or share <= UNEVEN_TIME:
        return None
    if plan.num_logs > 1:
        return Choice(columns=("gpu_hours",), facts=(fact("uneven_time", share=share),))
    return Choice(columns=("flops",), facts=(fact("counted_in_flops", share=share),))


OUR_RULES: dict[str, tuple[Rule, ...]] = {
    "step": (present("step"),),
    "y": (asked_for("y"), present("reward"), like_a_reward),
    "curve": (asked_for("by"), present("arm")),
    "label": (present("set"),),
    "run": (asked_for("seed"), present("seed")),
    "gpu_hours": (present("gpu_hours"),),
    "flops": (present("flops"),),
    "tokens": (present("tokens"),),
    "num_samples": (present("num_samples"),),
    "x": (asked_for("x"), flops_where_time_is_uneven, axis_of_most_rewards),
}
