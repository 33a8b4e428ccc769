"""One of our run folders: everything its files say, for a report or the board."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs.axes import disagreement, preferred_axis
from scalerl.logs.build import make_table
from scalerl.logs.source import Source as LogSource
from scalerl.logs.table import Table, flatten
from scalerl.report.alarms import ALARM_STEPS, SIGNALS, Alarm, signal_alarms, uneven_time_alarms
from scalerl.report.columns import counting, number, number_columns, replaced, rounded, thinned
from scalerl.report.evaluations import counted, overtrained, pass_curves
from scalerl.report.files import Root, read_lines, read_object
from scalerl.report.sources import Source

WAITING = "waiting"
"""Status of a run that has not started."""
COST = ("gpu_hours", "flops", "tokens")
AXES = (*COST, "step")
PARTS = ("training", "evaluation", "checkpoint", "compilation", "stalled", "start_up")
REPORTED = SIGNALS[:6]
"""Signals that a report draws."""
MOST_SIGNAL_POINTS = 120
_MOST_PROMPTS = 5000
_MOST_SPENT = 500


class RunFolder:
    """The files of one run folder, as they are when it is made."""

    def __init__(self, source: Source) -> None:
        self.source = source
        folder, root = source.path, source.root
        objects = {name: read_object(folder / name, root) for name in (store.RECIPE, store.STATUS, store.ENV)}
        (self.recipe, _), (status, _), (self.environment, _) = objects.values()
        self._status = store.current_status(status)
        self._faults = [fault for _, fault in objects.values() if fault]
        self.num_skipped = 0
        """Lines of its files that could not be used."""
        self._origins: dict[int, float] = {}
        """The step from which each attempt started."""
        logged = number_columns(row for _, row in self._rows(store.METRICS, steps_before=1))
        rows = [(line, _checked(row)) for line, row in self._rows(store.EVALS, steps_before=0)]
        kept = counting(logged, self._origins)
        self.columns = {key: values[kept] for key, values in logged.items()}
        """The numbers over the steps, of the rows that count."""
        self.evals = store.counting_rows(rows, ("step", "set"), self._origins)
        """The evaluations that count, with their line numbers."""
        self.repeated = replaced(logged, kept)
        """Steps that a later attempt took again after an interruption, and what they cost; empty if there are none."""

    def _rows(self, name: str, steps_before: int) -> Iterator[tuple[int, store.Row]]:
        """Yield the rows that have a step, and note where their attempts started and which lines were skipped."""
        path, skipped = self.source.path / name, []
        for line, row in read_lines(path, self.source.root):
            if row is None:
                skipped.append(line)
                continue
            step, attempt = row.get("step"), row.get("attempt")
            if not isinstance(step, int | float):
                continue
            if isinstance(attempt, int):
                origin = float(step) - steps_before
                self._origins[attempt] = min(self._origins.get(attempt, origin), origin)
            yield line, row
        self.num_skipped += len(skipped)
        if skipped:
            more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
            self._faults.append(f"{path}, line {skipped[0]}{more}: not a JSON object, and left out.")

    # What the folder says

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
        """What to call the hours that its devices were held."""
        return "CPU-hours" if self.environment.get("device") == "cpu" else "GPU-hours"

    @property
    def status(self) -> str:
        usual = "unknown" if self.recipe or self.evals else WAITING
        return str(self._status.get("status", usual))

    @property
    def reason(self) -> str:
        return str(self._status.get("reason", ""))

    @property
    def is_cut(self) -> bool:
        """Whether it has started and did not finish."""
        return self.status not in ("done", WAITING)

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
        pairs = [(str(row.get("set", "")), row.get("prompts_hash")) for _, row in self.evals]
        names = dict.fromkeys(name for name, hashed in pairs if hashed is not None)
        return {name: frozenset(str(hashed) for own, hashed in pairs if own == name and hashed is not None)
                for name in names}  # fmt: skip

    def signals(self) -> dict[str, Any] | None:
        """Return the signals that a report draws, over blocks of steps, and their mean over the last steps."""
        present = [key for key in (signal.key for signal in REPORTED)
                   if np.isfinite(self.columns.get(key, np.empty(0))).any()]  # fmt: skip
        if not present:
            return None
        blank = np.full(len(self.columns["step"]), np.nan)
        values = {key: self.columns.get(key, blank) for key in (*AXES, *present)}
        blocks = {key: thinned(key, each, MOST_SIGNAL_POINTS, 4) for key, each in values.items()}
        last = {key: thinned(key, values[key][-ALARM_STEPS:], 1, 15)[0] for key in present}
        return {
            "compute": {key: blocks[key] for key in AXES},
            "values": {key: blocks[key] for key in present},
            "last": {key: value for key, value in last.items() if value is not None},
        }

    def faults(self) -> list[str]:
        """Return what cannot be read or is missing."""
        if self.status == WAITING:
            return []
        folder, faults = self.source.path, list(self._faults)
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
        return faults + ([problem] if (problem := self._unusable()) else [])

    # Its evaluations

    def _unusable(self) -> str:
        """Return why it has no curve; empty where it has."""
        try:
            store.check_format(self.source.path)
        except RunFolderError as fault:
            return str(fault)
        if self.evals:
            return ""
        return f"the run folder {self.source.path} has no rows in {store.EVALS} yet: wait for its first evaluation."

    def table(self) -> Table:
        """Return the evaluations that count; InputError where there are none or the format is not known."""
        if problem := self._unusable():
            raise InputError(problem)
        seed = {} if self.seed is None else {"seed": self.seed}
        return make_table(
            LogSource(self.source.path), "run", y="reward", apart=("set",),
            rows=[(f"{store.EVALS} line {line}", {**seed, **flatten({key: each for key, each in row.items()
                                                                     if key != "num_correct"})})
                  for line, row in self.evals],
        )  # fmt: skip

    def _counted(self) -> dict[str, list[store.Row]]:
        """Return the evaluations with right answers per problem, by set."""
        sets: dict[str, list[store.Row]] = {}
        for _, row in self.evals:
            if "num_correct" in row:
                sets.setdefault(str(row.get("set", "")), []).append(row)
        return sets

    def passes(self) -> list[dict[str, Any]]:
        """Return pass@k over the steps, one entry for each set that was sampled more than once."""
        out = []
        for name, rows in self._counted().items():
            if curves := pass_curves(rows):
                steps = [row["step"] for row in counted(rows)[0]]
                out.append({"set": name, "step": steps, "pass": {str(k): rounded(each) for k, each in curves.items()}})
        return out

    # Compute

    def axis(self) -> str:
        """Return the column of compute: as the recipe says, else GPU-hours, or FLOPs where time per FLOP changed."""
        forecast = self.recipe.get("forecast")
        chosen = forecast.get("compute", "auto") if isinstance(forecast, dict) else "auto"
        return str(chosen) if chosen in AXES else preferred_axis(self._spent())

    @property
    def uneven_time(self) -> float:
        """How far GPU-hours and FLOPs disagree; see logs/axes.py."""
        return disagreement(self._spent())

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
        budget = self.recipe.get("budget")
        limits = budget if isinstance(budget, dict) else {}
        last = self._last_row
        shares = [last[column] / number(limits[name]) for name, column in store.BUDGET_COLUMNS.items()
                  if number(limits.get(name)) > 0 and column in last]  # fmt: skip
        share, spent = max(shares, default=0.0), last.get(self.axis(), 0.0)
        return spent / share if share > 0 and spent > 0 else None

    # Its health

    @property
    def max_lag(self) -> float | None:
        """The largest lag that the recipe allows for a group, where it has a limit."""
        pipeline = self.recipe.get("pipeline")
        value = number(pipeline.get("max_lag")) if isinstance(pipeline, dict) else float("nan")
        bounds_every_group = isinstance(pipeline, dict) and pipeline.get("waits_for") != "generators"
        return value if value >= 0 and bounds_every_group else None

    def alarms(self) -> list[Alarm]:
        """Return the alarms of its metrics and evaluations, those that are over too."""
        signals = signal_alarms(self.columns, max_lag=self.max_lag)
        remedies = self._remedies() if signals else {}
        shown = [alarm.with_remedies(remedies) for alarm in signals]
        lost = [alarm for name, rows in self._counted().items() for alarm in overtrained(rows, name)]
        return [*shown, *uneven_time_alarms(self.uneven_time), *lost]

    def _remedies(self) -> Mapping[str, tuple[str, ...]]:
        """Return the settings of its recipe that can help against alarms."""
        from scalerl.config import Recipe, remedies

        try:
            return remedies(Recipe.model_validate_json(json.dumps(dict(self.recipe))))
        except (UserError, ValueError):
            return {}


def _checked(row: store.Row) -> store.Row:
    """Return an evaluation without right answers per problem, where these are not counts."""
    counts = row.get("num_correct")
    is_valid = isinstance(counts, list) and len(counts) <= _MOST_PROMPTS and all(number(each) >= 0 for each in counts)
    return row if is_valid else {key: value for key, value in row.items() if key != "num_correct"}


def read_run(folder: Path, *, name: str, arm: str, seed: int | None = None) -> RunFolder:
    """Read all of a run folder."""
    return RunFolder(Source(path=folder, root=Root(), kind="run", name=name, arm=arm, seed=seed))
