"""`Table`: the rows of one log, whatever its format, with its columns recognised and its attempts joined."""

import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.clock import hours_of_training, wall_times
from scalerl.logs.columns import Reward
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, clean
from scalerl.logs.runs import count_through_epochs, join_attempts, join_named_runs
from scalerl.logs.units import ABSENT, as_numbers, number, numbers

Placed = tuple[str, Mapping[str, Any]]
"""A row and its place in the log, such as 'line 12'."""

_MAX_CELLS = 3_000_000
_MAX_SECONDS = 60.0
_MAX_DEPTH = 8
# Larger integers are beyond floats, and become infinite.
_MAX_BITS = 1000
# A step as ms-swift writes it, '5/400', and as folders are named, 'checkpoint-5'.
_STEP_OF = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*)?(\d+)(?:\s*/\s*\d+)?")


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
    """Columns that are not in the log: hours from its clock, evaluations that share a column with training."""
    facts: tuple[Fact, ...] = ()
    """What the reader decided that the user did not ask for."""
    raw: tuple["Table", ...] = ()
    """The table before its attempts were joined, where that changed anything."""

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
    decimal_comma: bool = False,
    built: tuple[str, ...] = (),
) -> Table:
    """Build a table from rows and recognise its columns. Names and words are cleaned here, where they enter."""
    budget = budget or Budget(path)
    placed: list[tuple[str, dict[str, Any]]] = []
    cleaned: dict[str, str] = {}
    for place, row in rows:
        budget.spend(len(row) + 1)
        for column in row.keys() - cleaned.keys():
            cleaned[column] = clean(str(column)) or f"column {len(cleaned) + 1}"
        placed.append((place, {cleaned[column]: _clean_value(value) for column, value in row.items()}))
    if not placed:
        raise InputError(f"{path} holds no rows: wait until the run has logged something, or give another file.")
    own = [row for _, row in placed]
    _read_numbers(own, decimal_comma=decimal_comma)
    columns = list(dict.fromkeys(itertools.chain.from_iterable(own)))
    table = Table(
        path=path,
        kind=kind,
        columns=columns,
        rows=own,
        places=[place for place, _ in placed],
        reward=Reward(column=y, kind="evaluation") if y else None,
        step=names.find(names.STEP, columns),
        num_samples=names.find(names.NUM_SAMPLES, columns),
        seed=seed or names.find(names.SEED, columns),
        apart=apart,
        built=built,
        facts=tuple(facts),
    )
    return with_runs(table)


def with_runs(table: Table, labels: Sequence[str] = ()) -> Table:
    """Join the attempts of a log and build its hours, with `labels` as further columns that name runs."""
    [raw] = table.raw or (table,)
    step = names.find(names.TRAINER_STEP, raw.columns)
    if raw.kind == "run":
        return with_gpus(raw, None)
    if step is None or ATTEMPT in raw.columns:
        return with_gpus(_with_hours(raw), None)
    places, rows = _in_order(raw, step)
    runs = list(dict.fromkeys((*names.run_labels(rows, step), *labels)))
    if not runs and (np.diff(numbers(rows, step)) > 0).all():
        return with_gpus(_with_hours(replace(raw, rows=rows, places=places)), None)  # one run, never interrupted
    rows, counted = count_through_epochs(rows, step, names.find(names.COARSE, raw.columns))
    rows, facts = join_named_runs(rows, step, [run for run in runs if run not in labels])
    joined = join_attempts(rows, step, runs, places, raw.path.name)
    facts = (*facts, *counted, *joined.facts)
    table = replace(raw, rows=joined.rows, places=joined.places, facts=(*raw.facts, *facts), raw=(raw,) * bool(facts))
    if max(joined.attempt, default=1) > 1:
        table = replace(with_column(table, ATTEMPT, joined.attempt), apart=(*table.apart, ATTEMPT))
    # Work that a restart lost was done, and its time counts.
    table = _with_hours(table)
    counts = [not gone for gone in joined.superseded]
    kept = {name: list(itertools.compress(getattr(table, name), counts)) for name in ("rows", "places")}
    return with_gpus(replace(table, **kept), None)


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
        if not isinstance(value, dict):
            flat[f"{prefix}{key}"] = value
        elif depth < _MAX_DEPTH:
            flat |= flatten(value, f"{prefix}{key}/", depth + 1)
    return flat


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return number(value) if isinstance(value, int) and value.bit_length() > _MAX_BITS else value


def _read_numbers(rows: Sequence[dict[str, Any]], *, decimal_comma: bool) -> None:
    """Turn numbers written as text into numbers, in columns that hold little else; drop cells that say 'none'."""
    for column in {column for row in rows for column, value in row.items() if isinstance(value, str)}:
        for row in rows:
            if isinstance(row.get(column), str) and row[column].strip().lower() in ABSENT:
                del row[column]
        present = [row for row in rows if row.get(column) is not None]
        texts = [str(row[column]).strip() for row in present]
        steps = [_STEP_OF.fullmatch(text) for text in texts] if names.plain(column) in names.STEP else [None]
        texts = [step[1] for step in steps if step] if all(steps) else texts
        values = as_numbers(texts, decimal_comma=decimal_comma)
        # 3e7 may be a label beside 'base'.
        if 2 * values.count(None) < len(values) and not any(isinstance(row[column], list | bool) for row in present):
            for row, value in zip(present, values, strict=True):
                row[column] = row[column] if value is None else value


def _in_order(table: Table, step: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return places and rows by their time of day, if every row has one; rows with the newest first are turned."""
    clock, steps = names.find(names.WALL_CLOCK, table.columns), numbers(table.rows, step)
    steps, order = steps[~np.isnan(steps)], np.arange(len(table.rows))
    if clock and not np.isnan(times := wall_times(table.rows, clock)).any():
        order = np.argsort(times, kind="stable")
    elif len(np.unique(steps)) > 3 and (np.diff(steps) <= 0).all():
        order = order[::-1]
    return [table.places[at] for at in order], [table.rows[at] for at in order]


def _with_hours(table: Table) -> Table:
    if "hours" in table.columns:
        return table
    hours, facts = hours_of_training(table.rows, table.columns, table.places)
    return table if hours is None else replace(with_column(table, "hours", hours), facts=(*table.facts, *facts))
