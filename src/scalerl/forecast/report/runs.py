"""`Run`: one of our run folders, or another trainer's log, read into one value.

read_folder    reads a run folder
read_source    reads a run folder or a log
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.forecast.logs.facts import Fact
from scalerl.forecast.logs.formats import Log, read_log
from scalerl.forecast.logs.readers.objects import flatten
from scalerl.forecast.report.alarms import Alarm, alarms, with_remedies
from scalerl.forecast.report.document import Say, say
from scalerl.forecast.report.metrics import Array, NumberColumns, log_columns, number, replaced
from scalerl.forecast.report.run_series import Evaluations
from scalerl.forecast.report.safe_files import json_lines, read_object
from scalerl.forecast.report.sources import Source
from scalerl.runfolder import store

WAITING = "waiting"
"""Status of a run that has not started."""
CUT = ("stopped", "failed")
"""Statuses of a run that ended before it was done."""
ENDED = ("done", *CUT)
PER_RUN = ("description", "seed")  # settings in which runs of one arm may differ
COST = ("gpu_hours", "flops", "tokens")  # columns that say what a run has spent
PARTS = ("training", "evaluation", "checkpoint", "compilation", "stalled", "start_up")
"""What the wall time of a run is spent on."""
_MAX_PROBLEMS = 5000  # an evaluation on more problems is read without its right answers per problem


@dataclass(kw_only=True)
class Run:
    """Everything that the files of a run say."""

    source: Source
    columns: Mapping[str, Array] = field(default_factory=dict)
    """The numbers over the steps, without rows that a later attempt replaced."""
    evals: Sequence[tuple[int, store.Row]] = ()
    """The evaluations with their line numbers, without those that a later attempt replaced."""
    log: Log | None = None
    facts: Sequence[Fact] = ()
    """What was decided about the files around a run folder."""
    problem: str = ""
    """Why it has no curve; empty if it has one."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    status: str = "log"
    """The status in its folder; `unknown` or `waiting` if it has none, and `log` for a log."""
    reason: str = ""
    step_word: str = "step"
    """What `step` counts: `step`, or `row` for a log without a column of steps."""
    damage: Mapping[str, Say] = field(default_factory=dict)
    """What is wrong with its files, by their names."""
    repeated: Mapping[str, float] = field(default_factory=dict)
    """Number of steps that a later attempt took again, and what they cost; empty if there are none."""

    @property
    def is_folder(self) -> bool:
        return self.source.kind == "run"

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def arm(self) -> str:
        """The curve that it belongs to; its own unless a study or its seed says otherwise."""
        return self.source.arm or self.name

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe by dotted keys."""
        return {key.replace("/", "."): value for key, value in flatten(self.recipe).items()}

    @property
    def hours_name(self) -> str:
        """The name of its device hours: CPU-hours or GPU-hours."""
        return store.hours_name(self.environment.get("device"))

    @property
    def is_over(self) -> bool:
        """Whether it has ended; a log does not say."""
        return self.status in ENDED

    @property
    def num_steps(self) -> int:
        evaluated = [row["step"] for _, row in self.evals]
        trained = self._last_row.get("step", 0)
        return int(max([*evaluated, trained]))

    @property
    def cost(self) -> dict[str, float]:
        """Compute spent by the last row of metrics or evaluations, whichever is later."""
        rows = [self._last_row, *(row for _, row in self.evals[-1:])]
        spent = max(rows, key=lambda row: number(row.get("gpu_hours", 0.0)))
        return {key: float(spent[key]) for key in COST if np.isfinite(number(spent.get(key)))}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by what it was spent on."""
        seconds: dict[str, float] = {}
        for part in PARTS:
            value = self._last_row.get(f"time/{part}_s", np.nan)
            if np.isfinite(value):
                seconds[part] = value
        return seconds

    @property
    def _last_row(self) -> dict[str, float]:
        """The last value of each column."""
        return {key: float(values[-1]) for key, values in self.columns.items() if len(values)}

    def faults(self) -> Iterator[Say]:
        """Yield what is wrong: damaged and missing files, and the problem if there is no curve."""
        if self.status == WAITING:
            return
        yield from self.damage.values()
        if self.is_folder:
            folder = self.source.path
            if not self.recipe and store.RECIPE not in self.damage:
                yield say("no_recipe", folder=folder)
            evaluated = 0
            if self.evals:
                evaluated = self.evals[-1][1]["step"]
            trained = self._last_row.get("step", 0)
            if evaluated and not trained:
                yield say("no_metrics", folder=folder)
            elif self.status == "done" and 0 < evaluated < trained:
                yield say("evaluations_lost", folder=folder, evaluated=evaluated, trained=trained)
        if self.problem:
            yield say("fault", problem=self.problem)

    def checkpoints(self) -> list[int]:
        """Return the steps of the checkpoints that are on disk."""
        folder = self.source.path / store.CHECKPOINTS
        if not self.is_folder or not folder.is_dir() or not self.source.root.holds(folder):
            return []
        names = [path.name.removeprefix("step-") for path in folder.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    # Its evaluations

    @property
    def evaluations(self) -> Evaluations:
        """The evaluations of a run folder, as one run of its arm."""
        rows = [row for _, row in self.evals]
        device = self.environment.get("device")
        return Evaluations(rows=rows, device=device, arm=self.arm, run=self.name, facts=tuple(self.facts))

    def counts(self, axis: str) -> bool:
        """Return whether the run logs this column of compute."""
        if self.log is not None:
            return axis in self.log.frame
        return any(axis in row for _, row in self.evals)

    def end_compute(self, axis: str) -> float | None:
        """Return the compute at the end of the budget, at the pace so far; None where it is not known."""
        if not self.recipe:
            return None
        settings = self.settings
        last = self._last_row
        budget = {name: number(settings.get(f"budget.{name}")) for name in store.BUDGET_COLUMNS}
        share = store.share_spent(budget, last)
        if share > 0 and last.get(axis, 0.0) > 0:
            return last[axis] / share
        return None

    # Its health

    @property
    def max_lag(self) -> float | None:
        """The largest lag that the recipe allows for a group; infinite if it limits the mean, None if unknown."""
        allowed = number(self.settings.get("pipeline.max_lag"))
        if math.isnan(allowed) or allowed < 0:
            return None
        if self.settings.get("pipeline.waits_for", "groups") == "groups":
            return allowed
        return math.inf

    @property
    def lag_bound(self) -> str:
        """What the recipe's limit on the lag bounds, in words; "-" if unknown."""
        if self.max_lag is None:
            return "-"
        most = number(self.settings.get("pipeline.max_lag"))
        if most == 0:
            return "synchronous"
        bounds_mean = math.isinf(self.max_lag) and not self.settings.get("pipeline.drain")
        if bounds_mean:
            return f"the mean: {most:g}"
        return f"every group: {most:g}"

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms from its metrics, including those that are over."""
        raised = alarms(self.columns, self.max_lag)
        # What can help is looked up only where there is something to help against: it loads all settings.
        if raised:
            return with_remedies(raised, self._remedies())
        return []

    def _remedies(self) -> Mapping[str, tuple[str, ...]]:
        """Return the settings of its recipe that can help against alarms."""
        from scalerl.recipe.recipe import Recipe, remedies

        try:
            if self.recipe:
                return remedies(Recipe.model_validate_json(json.dumps(self.recipe)))
            return {}
        except (UserError, ValueError):
            return {}


# Reading


def _without_bad_counts(row: store.Row) -> store.Row:
    """Return an evaluation, without `num_correct` if that is not a list of at most _MAX_PROBLEMS counts."""
    counts = row.get("num_correct")
    if isinstance(counts, list) and len(counts) <= _MAX_PROBLEMS and all(number(each) >= 0 for each in counts):
        return row
    return {key: value for key, value in row.items() if key != "num_correct"}


def read_folder(source: Source) -> Run:
    """Read a run folder."""
    folder = source.path
    objects: dict[str, dict[str, Any]] = {}
    damage: dict[str, Say] = {}
    for name in (store.RECIPE, store.STATUS, store.ENV):
        objects[name], fault = read_object(folder / name, source.root)
        if fault:
            damage[name] = say("fault", problem=fault)
    logged = NumberColumns()
    steps: list[tuple[int, store.Row]] = []
    for _, row in _rows_of(source, store.METRICS, damage):
        steps.append((logged.num_rows, {"step": row.get("step"), "attempt": row.get("attempt", 0)}))
        logged.add(row)
    evaluated = list(_rows_of(source, store.EVALS, damage))
    counting = store.rows_that_count({store.METRICS: steps, store.EVALS: evaluated})
    kept = np.array([place for place, _ in counting[store.METRICS]], dtype=np.intp)
    columns = logged.arrays()
    evals = [(line, _without_bad_counts(row)) for line, row in counting[store.EVALS]]
    problem = f"the run folder {folder} has no rows in {store.EVALS}: a run has a curve once it is evaluated."
    try:
        store.check_format(folder)
    except RunFolderError as fault:
        problem = str(fault)
        evals = []
    status = store.current_status(objects[store.STATUS])
    return Run(
        source=source,
        columns={key: values[kept] for key, values in columns.items()},
        evals=evals,
        problem="" if evals else problem,
        recipe=objects[store.RECIPE],
        environment=objects[store.ENV],
        status=str(status.get("status", "unknown" if objects[store.RECIPE] or evals else WAITING)),
        reason=str(status.get("reason", "")),
        damage=damage,
        repeated=replaced(columns, kept),
    )


def _rows_of(source: Source, name: str, damage: dict[str, Say]) -> Iterator[tuple[int, store.Row]]:
    """Yield the rows of a file of a run folder with their lines; at the end, note in `damage` what is no object."""
    path = source.path / name
    skipped: list[int] = []
    for line, row in json_lines(path, source.root):
        if row is None:
            skipped.append(line)
        elif not store.fault_of(row):
            yield line, row
    if skipped:
        kind = "lines_left_out"
        if len(skipped) == 1:
            kind = "line_left_out"
        damage[name] = say(kind, file=path, first=skipped[0], num=len(skipped) - 1)


def read_source(source: Source) -> Run:
    """Read a run folder, or another trainer's log; a log that cannot be read becomes a run with a `problem`."""
    if source.kind == "run":
        return read_folder(source)
    try:
        log = read_log(source.path)
    except InputError as fault:
        return Run(source=source, problem=str(fault))
    return run_of_log(source, log)


def run_of_log(source: Source, log: Log) -> Run:
    columns, has_steps = log_columns(log)
    return Run(source=source, log=log, columns=columns, step_word="step" if has_steps else "row")


def hours_name(hours: Iterable[str]) -> str:
    """Return what the device hours of several are called: CPU-hours if those of each are, otherwise GPU-hours."""
    if {*hours} == {"CPU-hours"}:
        return "CPU-hours"
    return "GPU-hours"
