"""`Table`: the rows of one log, whatever its format, with its columns recognised and its attempts numbered."""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.clock import hours_of_training, pause_fact, wall_times
from scalerl.logs.columns import Reward
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, clean
from scalerl.logs.runs import number_attempts
from scalerl.logs.units import is_number, number

Placed = tuple[str, Mapping[str, Any]]
"""A row and its place in the log, such as 'line 12'."""

_MAX_CELLS = 3_000_000
_MAX_SECONDS = 60.0
# ms-swift logs its step as text, '5/400'.
_SWIFT_STEP = "global_step/max_steps"
_MAX_DEPTH = 8
# Larger integers are beyond floats, and become infinite.
_MAX_BITS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one log. A missing key or None is an absent value, which is not NaN."""

    path: Path
    kind: str
    """The name of the format (formats.py)."""
    columns: list[str]
    rows: list[dict[str, Any]]
    places: list[str]
    """Position of each row, for messages: 'line 12'."""
    x: str | None = None
    reward: Reward | None = None
    step: str | None = None
    num_samples: str | None = None
    seed: str | None = None
    """Its values are runs of one curve unless --seed names another column."""
    apart: tuple[str, ...] = ()
    """Columns whose values are known to be separate curves: a run folder's sets, wandb's runs."""
    built: tuple[str, ...] = ()
    """Columns that are not in the log but built from its clock."""
    superseded: list[int | None] = field(default_factory=list)
    """For each row the row from which a resumed attempt replaced it, None for a row that counts."""
    facts: tuple[Fact, ...] = ()
    """What the reader decided that the user did not ask for."""

    @property
    def y(self) -> str | None:
        return self.reward.column if self.reward else None


class Budget:
    """Limits on reading one log: a damaged or hostile file ends in a sentence, not in a full memory or a hang."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cells = 0
        self._until = time.process_time() + _MAX_SECONDS

    def spend(self, cells: int = 1) -> None:
        """Count what was read; raise InputError beyond the limits."""
        self._cells += cells
        if self._cells > _MAX_CELLS:
            raise InputError(f"{self._path} holds more than {_MAX_CELLS:,} values: keep the columns and rows you need.")
        if time.process_time() > self._until:
            raise InputError(f"{self._path} takes longer than {_MAX_SECONDS:g} s to read: give a shorter file.")


def make_table(
    path: Path,
    kind: str,
    rows: Iterable[Placed],
    *,
    y: str | None = None,
    seed: str | None = None,
    apart: tuple[str, ...] = (),
    facts: Sequence[Fact] = (),
    budget: Budget | None = None,
) -> Table:
    """Build a table from rows and recognise its columns. Names and words are cleaned here, where they enter."""
    budget = budget or Budget(path)
    placed: list[tuple[str, dict[str, Any]]] = []
    cleaned: dict[str, str] = {}
    for place, row in rows:
        budget.spend(len(row) + 1)
        own = {}
        for column, value in row.items():
            if column not in cleaned:
                cleaned[column] = clean(str(column)) or f"column {len(cleaned) + 1}"
            if isinstance(value, int) and value.bit_length() > _MAX_BITS:
                value = number(value)
            own[cleaned[column]] = clean(value) if isinstance(value, str) else value
        placed.append((place, own))
    if not placed:
        raise InputError(f"{path} holds no rows: wait until the run has logged something, or give another file.")
    _read_text_numbers([row for _, row in placed])
    columns = list(dict.fromkeys(itertools.chain.from_iterable(row for _, row in placed)))
    table = Table(
        path=path,
        kind=kind,
        columns=columns,
        rows=[row for _, row in placed],
        places=[place for place, _ in placed],
        reward=Reward(column=y, kind="evaluation") if y else None,
        step=names.find(names.STEP, columns),
        num_samples=names.find(names.NUM_SAMPLES, columns),
        seed=seed or names.find(names.SEED, columns),
        apart=apart,
        superseded=[None] * len(placed),
        facts=tuple(facts),
    )
    return with_gpus(_with_hours(_with_attempts(table)), None)


def with_gpus(table: Table, gpus: float | None) -> Table:
    """Add `gpu_hours`, where `gpus` are given, from the hours; then choose the columns of compute and reward."""
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    if gpus is not None and "hours" in table.columns and names.find(names.GPU_HOURS, table.columns) is None:
        hours = [number(row.get("hours")) for row in table.rows]
        table = with_column(table, "gpu_hours", [None if value is None else value * gpus for value in hours])
    reward = table.reward or names.choose_y(table.columns, table.rows)
    x = names.choose_x(table.columns, table.rows, y=reward.column if reward else None, built=gpus is not None)
    return replace(table, reward=reward, x=x)


def with_column(table: Table, name: str, values: Sequence[Any]) -> Table:
    """Return the table with a column that is not in the log."""
    rows = [{**row, name: value} for row, value in zip(table.rows, values, strict=True)]
    columns = table.columns if name in table.columns else [*table.columns, name]
    return replace(table, columns=columns, rows=rows, built=(*table.built, name))


def flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}/", depth + 1) if depth < _MAX_DEPTH else {}
        elif key == _SWIFT_STEP and isinstance(value, str) and value.partition("/")[0].strip().isdecimal():
            flat[f"{prefix}global_step"] = int(value.partition("/")[0])
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _read_text_numbers(rows: Sequence[dict[str, Any]]) -> None:
    """Turn numbers in quotes into numbers, in columns that hold nothing else."""
    texts = {column for row in rows for column, value in row.items() if isinstance(value, str)}
    for column in texts:
        present = [row for row in rows if row.get(column) is not None]
        values = [number(row[column]) if isinstance(row[column], str | int | float) else None for row in present]
        if None not in values:
            for row, value in zip(present, values, strict=True):
                row[column] = value


def _with_attempts(table: Table) -> Table:
    """Order rows by their time of day, or turn newest-first rows around; then number the attempts."""
    step = names.find(names.TRAINER_STEP, table.columns)
    if step is None or table.kind == "run" or ATTEMPT in table.columns:
        return table
    order = list(range(len(table.rows)))
    if (times := wall_times(table.rows, table.columns)) is not None:
        order.sort(key=lambda at: times[at])
    else:
        steps = [row[step] for row in table.rows if is_number(row.get(step))]
        if len(set(steps)) > 3 and all(a >= b for a, b in itertools.pairwise(steps)):
            order.reverse()  # the newest rows come first
    rows = [table.rows[at] for at in order]
    numbered = number_attempts(rows, step, table.path.name)
    table = replace(
        table,
        rows=[rows[at] for at in numbered.kept],
        places=[table.places[order[at]] for at in numbered.kept],
        superseded=numbered.superseded,
        facts=(*table.facts, *numbered.facts),
    )
    if numbered.attempt is None:
        return table
    return replace(with_column(table, ATTEMPT, numbered.attempt), apart=(*table.apart, ATTEMPT))


def _with_hours(table: Table) -> Table:
    hours = None if "hours" in table.columns or table.kind == "run" else hours_of_training(table.rows, table.columns)
    if hours is None:
        return table
    pauses = pause_fact([(table.places[at], length) for at, length in hours.pauses])
    return replace(with_column(table, "hours", hours.values), facts=(*table.facts, *pauses))
