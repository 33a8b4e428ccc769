"""Facts of a run folder beside its curve: how it ended, its cost, its machine, and whether it stayed stable."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scalerl import store
from scalerl.errors import RunFolderError
from scalerl.logs.axes import disagreement
from scalerl.report.alarms import ALARM_STEPS, SIGNALS, Alarm, columns_of, evaluation_alarms, signal_alarms
from scalerl.report.changes import changed_settings
from scalerl.report.evaluations import overtrained
from scalerl.report.repeated import Repeated, repeated_work

T = TypeVar("T")

COST = ("gpu_hours", "flops", "tokens")
PARTS = ("training", "evaluation", "checkpoint", "compilation", "stalled", "start_up")
AXES = ("gpu_hours", "flops", "tokens", "step")
MOST_SIGNAL_POINTS = 120
NOT_STARTED = "not started"
REPORTED = SIGNALS[:6]
"""Signals that a report draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The stability signals of a run, over neighbouring steps: the mean, of a signal `*_max` the largest."""

    compute: Mapping[str, list[float | None]]
    """By axis."""
    values: Mapping[str, list[float | None]]
    last: Mapping[str, float]
    """The same over the last steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run folder, as far as it can be read."""

    name: str
    arm: str
    folder: Path
    seed: int | None = None
    status: str = "unknown"
    reason: str = ""
    settings: Mapping[str, Any] | None = None
    """By dotted key."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time by what it was spent on."""
    num_steps: int = 0
    repeated: Repeated | None = None
    """Work that was done again after the run was interrupted."""
    uneven_time: float = 0.0
    """How far GPU-hours and FLOPs disagree; see logs/axes.py."""
    prompts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By evaluation set: the hashes of the prompts it was evaluated on."""
    signals: Signals | None = None
    alarms: tuple[Alarm, ...] = ()
    """Those that lasted to its end."""
    faults: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether it has started and did not finish."""
        return self.status not in ("done", NOT_STARTED)

    @property
    def hours(self) -> str:
        """What an hour of its devices is called."""
        return hours_name([self])

    @property
    def ending(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status


def hours_name(runs: "Sequence[RunFacts]") -> str:
    """Return what to call the hours that devices were held: no GPU-hours where all of them are CPUs."""
    devices = {str(run.environment.get("device", "")) for run in runs}
    return "CPU-hours" if devices == {"cpu"} else "GPU-hours"


def read_run(folder: Path, *, name: str, arm: str, evals: Sequence[Mapping[str, Any]]) -> RunFacts:
    """Read everything in a run folder; a file that cannot be read is reported as a fault and the rest is kept.

    `evals` are the rows of its evaluations, which its table has too and are long: they are read once.
    """
    faults: list[str] = []

    def tried(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (RunFolderError, OSError, UnicodeDecodeError) as fault:
            faults.append(str(fault))
            return otherwise

    recipe = tried(lambda: store.read_recipe(folder), None)
    if recipe is None and not faults:
        faults.append(f"{folder} has no {store.RECIPE}: what the run was set to is not known.")
    status = tried(lambda: store.read_status(folder), None) or {}
    environment = tried(lambda: store.read_env(folder), None) or {}
    read_well = len(faults)
    metrics = tried(lambda: store.read_metrics(folder), [])
    if len(faults) == read_well:
        faults += _cut(folder, str(status.get("status")), metrics, evals)
    settings = None if recipe is None else flat(recipe)
    spent = max([*metrics[-1:], *evals[-1:]], key=lambda row: row.get("gpu_hours") or 0.0, default={})
    return RunFacts(
        name=name,
        arm=arm,
        folder=folder,
        seed=(settings or {}).get("seed"),
        status=str(status.get("status", "unknown")),
        reason=str(status.get("reason", "")),
        settings=settings,
        environment=environment,
        cost={key: float(spent[key]) for key in COST if _is_number(spent.get(key))},
        seconds=_seconds(metrics[-1] if metrics else {}),
        num_steps=int(max((row["step"] for row in (*metrics, *evals)), default=0)),
        prompts=_prompts(evals),
        signals=_signals(metrics),
        alarms=tuple(_alarms(metrics, [dict(row) for row in evals if "set" in row])),
        repeated=tried(lambda: repeated_work(folder), None) if metrics else None,
        uneven_time=disagreement(metrics),
        faults=tuple(faults),
    )


def _cut(folder: Path, status: str, metrics: Sequence[store.Row], evals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what readable files lack: every step should have a row, and a run should end with an evaluation."""
    trained, evaluated = (max((row["step"] for row in rows), default=0) for rows in (metrics, evals))
    if evaluated and not metrics:
        return [f"{folder} has no rows in {store.METRICS}: whether it stayed stable is not known."]
    if status == "done" and 0 < evaluated < trained:
        return [
            f"{folder / store.EVALS} ends at step {evaluated:g} of a run of {trained:g}: the evaluations after that "
            f"are lost, and its curve ends there."
        ]
    return []


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys."""
    settings: dict[str, Any] = {}
    for key, value in tree.items():
        settings |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return settings


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(row: Mapping[str, Any]) -> dict[str, float]:
    return {part: float(row[f"time/{part}_s"]) for part in PARTS if _is_number(row.get(f"time/{part}_s"))}


def _prompts(evals: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    by_set: dict[str, set[str]] = {}
    for row in evals:
        if row.get("prompts_hash") is not None:
            by_set.setdefault(str(row.get("set", "")), set()).add(str(row["prompts_hash"]))
    return {name: frozenset(hashes) for name, hashes in by_set.items()}


def _alarms(metrics: Sequence[store.Row], evals: Sequence[store.Row]) -> list[Alarm]:
    """Return the alarms that lasted to the end of a run."""
    sets = dict.fromkeys(row["set"] for row in evals)
    varieties = [overtrained([row for row in evals if row["set"] == name], name) for name in sets]
    found = signal_alarms(columns_of(metrics), remedies={})
    found += evaluation_alarms([each for each in varieties if each is not None])
    return [alarm for alarm in found if alarm.ended is None]


def _signals(metrics: Sequence[Mapping[str, Any]]) -> Signals | None:
    present = [signal.key for signal in REPORTED if any(_is_number(row.get(signal.key)) for row in metrics)]
    if not present:
        return None
    num = min(len(metrics), MOST_SIGNAL_POINTS)
    begins = np.arange(num) * len(metrics) // num
    recent = metrics[-ALARM_STEPS:]
    last = {signal.key: _blocks(recent, signal.key, np.zeros(1, dtype=int))[0] for signal in REPORTED}
    return Signals(
        compute={axis: _blocks(metrics, axis, begins) for axis in AXES},
        values={key: _blocks(metrics, key, begins) for key in present},
        last={key: value for key, value in last.items() if value is not None},
    )


def _blocks(rows: Sequence[Mapping[str, Any]], key: str, begins: np.ndarray) -> list[float | None]:
    """Return the mean of a column over each block of rows, of a column `*_max` the largest; None without a number."""
    values = np.array([row[key] if _is_number(row.get(key)) else np.nan for row in rows], dtype=float)
    return _largest(values, begins) if key.endswith("_max") else _means(values, begins)


def _means(values: np.ndarray, begins: np.ndarray) -> list[float | None]:
    """Return the mean of each block of values, NaN left out; None where a block has no number."""
    known = np.isfinite(values)
    num = np.add.reduceat(known, begins, dtype=int)
    total = np.add.reduceat(np.where(known, values, 0.0), begins)
    return [value / count if count else None for value, count in zip(total.tolist(), num.tolist(), strict=True)]


def _largest(values: np.ndarray, begins: np.ndarray) -> list[float | None]:
    """Return the largest number of each block of values; None where a block has none."""
    return [None if math.isnan(value) else value for value in np.fmax.reduceat(values, begins).tolist()]


# What several runs say together


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting in which an arm differs from the base."""

    arm: str
    key: str
    base: Any
    value: Any


def differences(runs: Sequence[RunFacts], base: str | None) -> tuple[Difference, ...]:
    """Return what each arm changes, against `base` or the first arm; seeds aside."""
    of_arm: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        if run.settings is not None:
            of_arm.setdefault(run.arm, run.settings)
    if len(of_arm) < 2:
        return ()
    first = base if base in of_arm else next(iter(of_arm))
    before = of_arm[first]
    return tuple(
        Difference(arm=arm, key=key, base=old, value=new)
        for arm, settings in of_arm.items()
        for key, (old, new) in changed_settings(before, settings).items()
    )


def environments(runs: Sequence[RunFacts]) -> dict[str, dict[str, list[str]]]:
    """Return, for each key of the environment, its values and the runs that have each."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in flat(run.environment).items():
            # The version of the file; and slots, which the run chose for its arm: neither describes the machine.
            if key in ("format", "slots"):
                continue
            by_key.setdefault(key, {}).setdefault(str(value), []).append(run.name)
    return by_key


def uneven_pace(runs: Sequence[RunFacts]) -> float:
    """Return the largest ratio of time per FLOP between two runs of one arm; about 1 unless they shared a machine."""
    paces: dict[str, list[float]] = {}
    for run in runs:
        if run.cost.get("gpu_hours") and run.cost.get("flops"):
            paces.setdefault(run.arm, []).append(run.cost["gpu_hours"] / run.cost["flops"])
    return max((max(of_arm) / min(of_arm) for of_arm in paces.values()), default=1.0)


def incomparable(runs: Sequence[RunFacts]) -> dict[str, dict[str, frozenset[str]]]:
    """Return, for each evaluation set on which prompts differed between runs, the prompt hashes of each arm."""
    by_set: dict[str, dict[str, frozenset[str]]] = {}
    for run in runs:
        for name, hashes in run.prompts.items():
            arms = by_set.setdefault(name, {})
            arms[run.arm] = arms.get(run.arm, frozenset()) | hashes
    return {name: arms for name, arms in by_set.items() if len(frozenset().union(*arms.values())) > 1}
