"""Tables with one metric per row (run, tag, step, value), as tensorboard's data frames and MLflow's exports are."""

from collections.abc import Sequence
from typing import Any

from scalerl.logs.columns import RUN, RUN_NAME, STEP, choose_y, find, plain

_METRIC = ("tag", "metric", "metric_name", "metric_key", "key", "name", "variable")
_VALUE = "value"

Placed = tuple[str, dict[str, Any]]


def widen(placed: Sequence[Placed]) -> list[Placed] | None:
    """Return one row per step and run, with a column per metric; None for a table that has no metric per row."""
    columns = list(dict.fromkeys(column for _, row in placed for column in row))
    step, value = find(STEP, columns), find((_VALUE,), columns)
    metric = find(_METRIC, columns)
    if step is None or value is None or metric is None:
        return None
    words = {row.get(metric) for _, row in placed}
    names = [word for word in words if isinstance(word, str)]
    if len(words) < 2 or 2 * len(words) > len(placed) or len(names) < len(words):
        return None
    # A "name" may be that of a run.
    if plain(metric) == "name" and not choose_y(names, [{row[metric]: row.get(value)} for _, row in placed]):
        return None
    labels = [column for column in columns if column not in (metric, value) and _is_label(column, placed)]
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    wide: list[Placed] = []
    for place, row in placed:
        key = (row.get(step), *(row.get(label) for label in labels))
        # A metric that a step already has was logged again, by a resumed run: its row comes later.
        if key not in rows or row[metric] in rows[key]:
            rows[key] = {name: cell for name, cell in row.items() if name not in (metric, value)}
            wide.append((place, rows[key]))
        if row.get(value) is not None:
            rows[key][row[metric]] = row[value]
    return wide


def _is_label(column: str, placed: Sequence[Placed]) -> bool:
    """Return whether a column tells runs apart: by its name, or by words that repeat, as those of a date do not."""
    if plain(column) in (*RUN, *RUN_NAME):
        return True
    values = [row.get(column) for _, row in placed]
    words = {value for value in values if isinstance(value, str)}
    return bool(words) and len(words) * 2 <= len(values) and plain(column) not in STEP
