"""Which of the tables in a file is the log, and what the keys above the tables of a document name.

Readers return tables without knowing what they mean. Here the first one with a reward and a step is taken. In a
document keys are labels: `{"results": {"pro": {"1": 58.4}}}` is a row with results=pro and step=1; tables that lie at
the same depth under other labels are read together.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scalerl.forecast.logs.columns import AXES, are_splits, has_role, is_measured, reward_rank, with_role
from scalerl.forecast.logs.frame import Placed
from scalerl.forecast.logs.readers.source import Table

# A reward that has hardly two values is a right or wrong answer.
_MIN_VALUES = 3
# The list of steps that another list of evaluations belongs to: eval_steps.
_STEPS_OF = re.compile(r"(?:train|training|eval|evaluation|val|validation|test)[_/ ]", re.IGNORECASE)

Keys = tuple[str, ...]
Labels = dict[str, str]


class Worth(NamedTuple):
    """How much tables look like a log; the greatest is taken."""

    has_reward: bool
    has_step: bool


class Part(NamedTuple):
    """A table of a document, and what the keys above it say about its rows."""

    labels: Labels
    table: Table


def best_table(found: Iterable[list[Table]]) -> Table | None:
    """Return the first of the tables in a file that has a reward and a step, or else the best one; None for none."""
    best, best_worth = None, Worth(False, False)
    for together in found:
        for table in _united(together) if together[0].kind == "json" else together:
            worth = Worth(has_rewards(table), bool(with_role(names_of(table), "step", "coarse", *AXES)))
            if best is None or worth > best_worth:
                best, best_worth = table, worth
            if best_worth == Worth(True, True):
                return best
    return best


def has_rewards(table: Table) -> bool:
    """Return whether a column of a table is named as a reward, and has several values."""
    for name in filter(reward_rank, names_of(table)):
        values = set[str]()
        for _, row in table.rows:
            values.add(str(row.get(name, "")))
            if len(values - {""}) >= _MIN_VALUES:
                return True
    return False


def names_of(table: Table) -> set[str]:
    names = set[str]()
    for _, row in table.rows:
        names.update(row)
    return names


# Tables of a document


def _united(tables: list[Table]) -> list[Table]:
    """Return the tables of a document as one for each set of labels that they have, the largest first."""
    num_beside = Counter(table.keys for table in tables)
    parts: dict[Keys, list[Part]] = {}
    for table, labels in zip(tables, _labels(tables), strict=True):
        part = Part(labels, _renamed(table, num_beside[table.keys] > 1))
        parts.setdefault(tuple(labels), []).append(part)
    return sorted(map(_as_one, parts.values()), key=lambda table: -len(table.rows))


def _as_one(parts: list[Part]) -> Table:
    """Return the rows of tables with the same labels, and those that tell them apart; count rows without steps."""
    names = set[str]().union(*(names_of(part.table) for part in parts))
    is_counted = not with_role(names, "step", "coarse", *AXES)
    rows: Placed = []
    for part in parts:
        told = {name: label for name, label in part.labels.items() if _tells_apart(name, parts)}
        for at, (_, row) in enumerate(part.table.rows, start=1):
            step = {"step": at} if is_counted else {}
            rows.append((f"row {len(rows) + 1}", {**told, **step, **row}))
    table = Table("json", rows)
    if not is_counted or not rows:
        return table
    return table.with_fact("rows_counted", num=max(len(part.table.rows) for part in parts))


def _tells_apart(name: str, parts: list[Part]) -> bool:
    """Return whether a label differs between tables, or names what was measured: one that they share says nothing."""
    return has_role(name, "metric") or len({part.labels[name] for part in parts}) > 1


def _labels(tables: list[Table]) -> list[Labels]:
    """Return what the keys above each table, and the words beside it, say about its rows."""
    siblings: dict[Keys, dict[str, set[str]]] = {}
    for table in tables:
        names = names_of(table) | {table.name}
        for depth, key in enumerate(table.keys):
            siblings.setdefault(table.keys[:depth], {}).setdefault(key, set()).update(names)
    are_runs = {keys: _are_runs([*inside.values()]) for keys, inside in siblings.items()}
    return [_labels_of(table, siblings, are_runs) for table in tables]


def _are_runs(names: list[set[str]]) -> bool:
    """Return whether keys are runs: what each holds has one reward, also where a key is the name of a quantity."""
    alike = set[str].intersection(*names) if len(names) > 1 else set[str]()
    return any(reward_rank(name) and not has_role(name, "value") for name in alike)


def _labels_of(table: Table, siblings: Mapping[Keys, Iterable[str]], are_runs: Mapping[Keys, bool]) -> Labels:
    labels = dict(table.words)
    column = "run"
    for depth, key in enumerate(table.keys):
        above = table.keys[:depth]
        if are_runs[above] or not is_measured(key):
            labels["split" if are_splits(siblings[above]) else column] = key
        # The parts of a run have one name in all runs, and not that of their run.
        column = "part" if are_runs[above] else key
    name = _name_of(table)
    if name and not is_measured(name) and name not in labels.values():
        labels["run"] = name
    return labels


def _name_of(table: Table) -> str:
    """Return the key of a table whose values have no other name; "" for another table."""
    name = table.name or (table.keys[-1] if table.keys else "")
    return name if any("value" in row for _, row in table.rows) else ""


def _renamed(table: Table, has_others: bool) -> Table:
    """Return a table with the name of what was measured, and where others stand beside it, its steps named alike."""
    columns = names_of(table)
    name = _name_of(table)
    new = {"value": name} if name and is_measured(name) else {}
    steps = [column for column in columns if has_role(_STEPS_OF.sub("", column, count=1), "step")]
    if has_others and len(steps) == 1:
        new[steps[0]] = "step"
    if not new:
        return table
    return table._replace(
        rows=[(place, {new.get(column, column): cell for column, cell in row.items()}) for place, row in table.rows]
    )
