"""`Table`: the rows of one log, whatever its format, with the columns that were recognised."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.facts import Fact

ATTEMPT = "attempt"
"""Column that numbers the attempts of a log that holds several."""

_MAX_NAMES = 12
# ms-swift logs its step as text, '5/400'.
_SWIFT_STEP = "global_step/max_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one log. A missing key or None is an absent value, which is not NaN."""

    path: Path
    kind: str
    """csv | wandb | trackio | jsonl | run | trainer_state | tensorboard | console"""
    columns: list[str]
    rows: list[dict[str, Any]]
    places: list[str]
    """Position of each row, for messages: 'line 12'."""
    x: str | None = None
    y: str | None = None
    step: str | None = None
    num_samples: str | None = None
    seed: str | None = None
    """Its values are runs of one curve unless --seed names another column."""
    apart: tuple[str, ...] = ()
    """Columns whose values are separate curves unless an option names them: a run folder's sets, wandb's runs."""
    built: tuple[str, ...] = ()
    """Columns that are not in the log but built from its times."""
    preferred_x: str | None = None
    """Column of compute to take instead of `x`, unless --x names one."""
    facts: tuple[Fact, ...] = ()
    """What the reader decided that the user did not ask for."""


def make_table(path: Path, kind: str, rows: Iterable[tuple[str, Mapping[str, Any]]], **fields: Any) -> Table:
    """Build a table from (place, row) pairs and recognise the columns that do not depend on the reward."""
    placed = [(place, dict(row)) for place, row in rows]
    if not placed:
        raise InputError(f"{path} holds no rows: wait until the run has logged something, or give another file.")
    columns = list(dict.fromkeys(column for _, row in placed for column in row))
    fields.setdefault("seed", names.find(names.SEED, columns))
    return Table(
        path=path,
        kind=kind,
        columns=columns,
        rows=[row for _, row in placed],
        places=[place for place, _ in placed],
        step=names.find(names.STEP, columns),
        num_samples=names.find(names.NUM_SAMPLES, columns),
        **fields,
    )


def with_gpus(table: Table, gpus: float | None) -> Table:
    """Add `hours`, and with `gpus` also `gpu_hours`, built from step time or clock; then choose x and y."""
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    hours = (
        None if "hours" in table.columns else per_attempt(table, lambda rows: names.elapsed_hours(rows, table.columns))
    )
    if hours is not None:
        table = _with_column(table, "hours", hours)
    if gpus is not None and "hours" in table.columns and names.find(names.GPU_HOURS, table.columns) is None:
        spent = [row.get("hours") for row in table.rows]
        table = _with_column(table, "gpu_hours", [None if value is None else value * gpus for value in spent])
    y = table.y or names.choose_y(table.columns, table.rows)
    x = names.choose_x(table.columns, table.rows, y=y, built=gpus is not None)
    return replace(table, y=y, x=x)


def per_attempt(table: Table, values: Callable[[Sequence[dict[str, Any]]], Sequence[Any] | None]) -> list[Any] | None:
    """Apply a function of rows, which returns one value per row or None, to the rows of each attempt."""
    if ATTEMPT not in table.apart:
        result = values(table.rows)
        return None if result is None else list(result)
    out: list[Any] = [None] * len(table.rows)
    for number in {row.get(ATTEMPT) for row in table.rows}:
        members = [at for at, row in enumerate(table.rows) if row.get(ATTEMPT) == number]
        part = values([table.rows[at] for at in members])
        if part is None:
            return None
        for member, value in zip(members, part, strict=True):
            out[member] = value
    return out


def listed(items: Sequence[str]) -> str:
    """Join names for a message: 'a, b, c', at most twelve of them."""
    shown = ", ".join(items[:_MAX_NAMES])
    return shown if len(items) <= _MAX_NAMES else f"{shown} and {len(items) - _MAX_NAMES} more"


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}/")
        elif key == _SWIFT_STEP and isinstance(value, str) and value.partition("/")[0].strip().isdecimal():
            flat[f"{prefix}global_step"] = int(value.partition("/")[0])
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _with_column(table: Table, name: str, values: Sequence[float | None]) -> Table:
    rows = [{**row, name: value} for row, value in zip(table.rows, values, strict=True)]
    return replace(table, columns=[*table.columns, name], rows=rows, built=(*table.built, name))
