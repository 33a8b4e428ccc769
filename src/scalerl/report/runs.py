"""`Run`: one of our run folders, or another trainer's log, read into one value; and what several runs have together.

read_source    reads either; of a run folder that grows, only what was added
Run            its columns over the steps, its evaluations, settings, cost, faults and alarms
differences, environments, uneven_pace, incomparable    compare runs with each other
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs.axes import preferred_axis
from scalerl.logs.columns import with_role
from scalerl.logs.formats import Log, log_of_rows, read_log
from scalerl.logs.objects import flatten
from scalerl.report.alarms import Alarm, alarms
from scalerl.report.evaluations import pass_curves
from scalerl.report.inside import Lines, read_object
from scalerl.report.metrics import (
    COLUMNS,
    MOST_COLUMNS,
    Array,
    NumberColumns,
    number,
    number_columns,
    renamed,
    replaced,
)
from scalerl.report.places import Source

WAITING = "waiting"
"""Status of a run that has not started."""
PER_RUN = ("description", "seed")  # settings in which runs of one arm may differ
COST = ("gpu_hours", "flops", "tokens")
AXES = (*COST, "step")
PARTS = ("training", "evaluation", "checkpoint", "compilation", "stalled", "start_up")
_MOST_PROMPTS = 5000
_MOST_SPENT = 500


@dataclass(kw_only=True)
class Run:
    """Everything that the files of a run say."""

    source: Source
    kind: str = "run"
    """`run` for a run folder, else the format of the log."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """The numbers over the steps, of the rows that count."""
    evals: Sequence[tuple[int, store.Row]] = ()
    """The evaluations that count, with their line numbers."""
    log: Log | None = None
    problem: str = ""
    """Why it has no curve; empty where it has."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    written_status: Mapping[str, Any] = field(default_factory=dict)
    damage: Sequence[str] = ()
    """What is wrong with its files."""
    repeated: Mapping[str, float] = field(default_factory=dict)
    """Steps that a later attempt took again after an interruption, and what they cost; empty if there are none."""

    @property
    def is_folder(self) -> bool:
        return self.kind == "run"

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def arm(self) -> str:
        return self.source.arm

    @property
    def seed(self) -> int | None:
        return self.source.seed if self.source.seed is not None else self.recipe.get("seed")

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe by dotted keys."""
        return {key.replace("/", "."): value for key, value in flatten(self.recipe).items()}

    @property
    def hours(self) -> str:
        """The name of its device hours: CPU-hours or GPU-hours."""
        return "CPU-hours" if self.environment.get("device") == "cpu" else "GPU-hours"

    @property
    def status(self) -> str:
        usual = "log" if not self.is_folder else "unknown" if self.recipe or self.evals else WAITING
        return str(self.written_status.get("status", usual))

    @property
    def reason(self) -> str:
        return str(self.written_status.get("reason", ""))

    @property
    def counted(self) -> str:
        """`step`, or `row` for a log without a column of steps."""
        return "row" if self.log is not None and step_column(self.log) is None else "step"

    @property
    def is_cut(self) -> bool:
        """Whether it ended before it was done."""
        return self.status not in ("done", "running", WAITING)

    @property
    def num_steps(self) -> int:
        steps = [row["step"] for _, row in self.evals] + self.columns.get("step", np.empty(0)).tolist()[-1:]
        return int(max(steps, default=0))

    @property
    def cost(self) -> dict[str, float]:
        """Compute spent by the last row of metrics or evaluations, whichever is later."""
        rows = [self._last_row, *(row for _, row in self.evals[-1:])]
        spent = max(rows, key=lambda row: number(row.get("gpu_hours", 0.0)))
        return {key: float(spent[key]) for key in COST if np.isfinite(number(spent.get(key)))}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by what it was spent on."""
        values = {part: self._last_row.get(f"time/{part}_s", np.nan) for part in PARTS}
        return {part: value for part, value in values.items() if np.isfinite(value)}

    @property
    def _last_row(self) -> dict[str, float]:
        return {key: float(values[-1]) for key, values in self.columns.items() if len(values)}

    @property
    def prompts(self) -> dict[str, frozenset[str]]:
        """The hashes of the prompts it was evaluated on, by evaluation set."""
        hashes: dict[str, set[str]] = {}
        for _, row in self.evals:
            if row.get("prompts_hash") is not None:
                hashes.setdefault(str(row.get("set", "")), set()).add(str(row["prompts_hash"]))
        return {name: frozenset(own) for name, own in hashes.items()}

    def faults(self) -> list[str]:
        """Return what cannot be read or is missing."""
        if self.status == WAITING:
            return []
        if not self.is_folder:
            return [self.problem] if self.problem else []
        folder, faults = self.source.path, list(self.damage)
        if not self.recipe and not any(fault.startswith(str(folder / store.RECIPE)) for fault in faults):
            faults.insert(0, f"{folder} has no {store.RECIPE}: what the run was set to is not known.")
        evaluated, trained = (self.evals[-1][1]["step"] if self.evals else 0), self._last_row.get("step", 0)
        if evaluated and not trained:
            faults.append(f"{folder} has no rows in {store.METRICS}: whether it stayed stable is not known.")
        elif self.status == "done" and 0 < evaluated < trained:
            faults.append(
                f"{folder / store.EVALS} ends at step {evaluated:g} of a run of {trained:g}: the evaluations after "
                "that are lost, and its curve ends there."
            )
        return faults + ([self.problem] if self.problem else [])

    def checkpoints(self) -> list[int]:
        """Return the steps of the checkpoints that are on disk."""
        folder = self.source.path / store.CHECKPOINTS
        if not self.is_folder or not folder.is_dir() or not self.source.root.holds(folder):
            return []
        names = [path.name.removeprefix("step-") for path in folder.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    # Its evaluations

    def table(self) -> Log:
        """Return the evaluations that count, or the log; InputError where there are none or they cannot be read."""
        if self.problem:
            raise InputError(self.problem)
        if self.log is not None:
            return self.log
        seed = {} if self.seed is None else {"seed": self.seed}
        rows = []
        for line, row in self.evals:
            rows.append((f"{store.EVALS} line {line}", {**seed, **flatten(row)}))
        return log_of_rows(self.source.path, rows)

    def _counted(self) -> dict[str, list[store.Row]]:
        """Return the evaluations with right answers per problem, by set."""
        sets: dict[str, list[store.Row]] = {}
        for _, row in self.evals:
            if "num_correct" in row:
                sets.setdefault(str(row.get("set", "")), []).append(row)
        return sets

    def passes(self) -> dict[str, tuple[list[float], dict[int, list[float]]]]:
        """Return steps and pass@k by k, of each set that was sampled more than once."""
        found = {name: pass_curves(rows) for name, rows in self._counted().items()}
        return {name: (steps, curves) for name, (steps, curves) in found.items() if curves}

    # Compute

    def axis(self) -> str:
        """Return the column of compute: as the recipe says, else GPU-hours, or FLOPs where time per FLOP changed."""
        chosen = self.settings.get("forecast.compute")
        return str(chosen) if chosen in AXES else preferred_axis(self._spent())

    def _spent(self) -> list[dict[str, float]]:
        hours, flops = self.columns.get("gpu_hours"), self.columns.get("flops")
        if hours is None or flops is None:
            return []
        # Of a long run only some rows: the two change slowly.
        every = max(len(hours) // _MOST_SPENT, 1)
        pairs = zip(hours[::-every].tolist(), flops[::-every].tolist(), strict=True)
        return [{"gpu_hours": spent, "flops": done} for spent, done in pairs]

    def end_compute(self) -> float | None:
        """Return the compute at the end of the budget, at the pace so far; None where it is not known."""
        settings, last = self.settings, self._last_row
        limits = {column: number(settings.get(f"budget.{name}")) for name, column in store.BUDGET_COLUMNS.items()}
        shares = [last[column] / limit for column, limit in limits.items() if limit > 0 and column in last]
        share, spent = max(shares, default=0.0), last.get(self.axis(), 0.0)
        return spent / share if share > 0 and spent > 0 else None

    # Its health

    @property
    def max_lag(self) -> float | None:
        """The largest lag that the recipe allows for a group, infinite where it bounds the mean; None if unknown."""
        allowed = number(self.settings.get("pipeline.max_lag"))
        if not allowed >= 0:
            return None
        return allowed if self.settings.get("pipeline.waits_for", "groups") == "groups" else math.inf

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms from its metrics and evaluations, including those that are over; curves have their own."""
        given = {"evals": self._counted(), "spent": self._spent(), "remedies": self._remedies()}
        return alarms(self.columns, max_lag=self.max_lag, **given)

    def _remedies(self) -> Mapping[str, tuple[str, ...]]:
        """Return the settings of its recipe that can help against alarms."""
        from scalerl.config import Recipe, remedies

        try:
            return remedies(Recipe.model_validate_json(json.dumps(self.recipe))) if self.recipe else {}
        except (UserError, ValueError):
            return {}


# Reading


Rows = store.RunReader[NumberColumns]


def new_rows(source: Source) -> Rows:
    """Return the reader of a run folder that has read nothing yet."""
    files = {name: Lines(source.path / name, source.root) for name in (store.METRICS, store.EVALS)}
    return store.RunReader(files, NumberColumns)


def num_values(rows: Rows) -> int:
    """Return how many numbers a reader keeps."""
    return rows.metrics.num_rows * len(rows.metrics) + sum(len(row.get("num_correct") or ()) for _, row in rows.evals)


def _checked(row: store.Row) -> store.Row:
    """Return an evaluation without right answers per problem, where these are not counts."""
    counts = row.get("num_correct")
    is_valid = isinstance(counts, list) and len(counts) <= _MOST_PROMPTS and all(number(each) >= 0 for each in counts)
    return row if is_valid else {key: value for key, value in row.items() if key != "num_correct"}


def read_folder(source: Source, rows: Rows | None = None) -> Run:
    """Read a run folder; with the `rows` of an earlier time, only what was added."""
    rows, folder = rows or new_rows(source), source.path
    objects = {name: read_object(folder / name, source.root) for name in (store.RECIPE, store.STATUS, store.ENV)}
    (recipe, _), (status, _), (environment, _) = objects.values()
    damage = [fault for _, fault in objects.values() if fault]
    rows.read()
    for name, (first, *others) in [(name, lines) for name, lines in rows.skipped.items() if lines]:
        more = f" and {len(others)} more" if others else ""
        damage.append(f"{folder / name}, line {first}{more}: not a JSON object, and left out.")
    logged = rows.metrics.arrays()
    kept = np.array(rows.counting_metrics(), dtype=np.intp)
    evals = [(line, _checked(row)) for line, row in rows.counting_evals()]
    problem = f"the run folder {folder} has no rows in {store.EVALS} yet: wait for its first evaluation."
    try:
        store.check_format(folder)
    except RunFolderError as fault:
        problem, evals = str(fault), []
    return Run(
        source=source,
        columns={key: values[kept] for key, values in logged.items()},
        evals=evals,
        problem="" if evals else problem,
        recipe=recipe,
        environment=environment,
        written_status=store.current_status(status),
        damage=damage,
        repeated=replaced(logged, kept),
    )


def read_source(source: Source, rows: Rows | None = None) -> Run:
    """Read a run folder, or another trainer's log; whatever is wrong with a log is its problem."""
    if source.kind == "run":
        return read_folder(source, rows)
    try:
        log = read_log(source.path)
    except InputError as fault:
        return Run(source=source, kind="log", problem=str(fault))
    return Run(source=source, kind=log.kind, log=log, columns=log_columns(log))


def step_column(log: Log) -> str | None:
    columns = list(log.frame.columns)
    return renamed(columns).get("step", next(iter(with_role(columns, "step")), None))


def log_columns(log: Log) -> dict[str, Array]:
    """Return the numbers of a log, the usual ones under our names, one entry per training step, in order of steps.

    The number of the row is the step in a log without a column of steps; rows whose step is missing are skipped.
    """
    frame = log.frame
    names, steps = renamed(list(frame.columns)), step_column(log)
    names.pop("step", None)
    taken = {*names.values(), steps, *COLUMNS}
    shown = {**names, **{name: name for name in [each for each in frame.columns if each not in taken][:MOST_COLUMNS]}}
    shown.pop("attempt", None)
    by_step: dict[float, dict[str, float]] = {}
    columns = {key: frame.numbers(name).tolist() for key, name in shown.items()}
    counted = np.arange(1.0, len(frame) + 1) if steps is None else frame.numbers(steps)
    for place, step in enumerate(counted.tolist()):
        known = {key: values[place] for key, values in columns.items() if math.isfinite(values[place])}
        if known and math.isfinite(step):
            # A trainer may write several rows for one step, such as one of the losses and one of the times.
            by_step.setdefault(step, {}).update(known)
    return number_columns({"step": step, **by_step[step]} for step in sorted(by_step))


# Several runs


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all recipes, by dotted key: the value in each, None without one."""
    rows = {key: [own.get(key) for own in settings] for key in dict.fromkeys(key for own in settings for key in own)}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def hours_name(runs: Sequence[Run]) -> str:
    """Return the name of the device hours: CPU-hours if all runs used CPUs, otherwise GPU-hours."""
    return "CPU-hours" if {run.hours for run in runs} == {"CPU-hours"} else "GPU-hours"


def differences(runs: Sequence[Run], base: str | None) -> list[dict[str, Any]]:
    """Return what each arm changes against `base` or the first arm, but for seeds and descriptions."""
    of_arm: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        if run.recipe:
            of_arm.setdefault(run.arm, run.settings)
    before = of_arm.get(base or "", next(iter(of_arm.values()), {}))
    return [
        {"arm": arm, "key": key, "base": old, "value": new}
        for arm, settings in of_arm.items()
        for key, (old, new) in settings_that_differ([before, settings]).items()
        if key not in PER_RUN
    ]


def environments(runs: Sequence[Run]) -> dict[str, dict[str, list[str]]]:
    """Return, for each key of the environment, its values and the runs that have each."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in flatten(run.environment).items():
            # The version of the file; and slots, which the run chose for its arm: neither describes the machine.
            if key not in ("format", "slots"):
                by_key.setdefault(key.replace("/", "."), {}).setdefault(str(value), []).append(run.name)
    return by_key


def uneven_pace(runs: Sequence[Run]) -> float:
    """Return the largest ratio of time per FLOP between two runs of one arm; about 1 unless they shared a machine."""
    paces: dict[str, list[float]] = {}
    for run in runs:
        if (spent := run.cost).get("gpu_hours") and spent.get("flops"):
            paces.setdefault(run.arm, []).append(spent["gpu_hours"] / spent["flops"])
    return max((max(of_arm) / min(of_arm) for of_arm in paces.values()), default=1.0)


def incomparable(runs: Sequence[Run]) -> dict[str, dict[str, frozenset[str]]]:
    """Return, for each evaluation set on which prompts differed between runs, the prompt hashes of each arm."""
    by_set: dict[str, dict[str, frozenset[str]]] = {}
    for run in runs:
        for name, hashes in run.prompts.items():
            arms = by_set.setdefault(name, {})
            arms[run.arm] = arms.get(run.arm, frozenset()) | hashes
    return {name: arms for name, arms in by_set.items() if len(frozenset().union(*arms.values())) > 1}
