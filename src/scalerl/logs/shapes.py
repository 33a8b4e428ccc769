"""Tables of other shapes as one row per run and step, and evaluations that share a column with training."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.logs.columns import Reward, choose_y, is_evaluation, is_measured, plain, run_labels
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, Table, tabled
from scalerl.logs.units import NOTHING, column_of, known, logged, numeric

_TRAINING = re.compile(r"train\w*", re.IGNORECASE)
_EVALUATION = re.compile(r"(eval|val|valid|test)\w*", re.IGNORECASE)
_VALUE = "value"
_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")
# Columns of one metric have peaks within this factor.
_ALIKE = 10.0


# Training beside its evaluations


def are_splits(names: Iterable[str]) -> bool:
    """Return whether names are those of training and its evaluations, and not of runs."""
    return all(_TRAINING.fullmatch(name) or _EVALUATION.fullmatch(name) for name in names)


def with_evaluations(table: Table) -> Table:
    """Give each evaluation a column of its own, as eval/acc, where rows differ in a word such as split=eval."""
    column = table.find("split")
    split = column_of(map(str, table[column]))
    words = set(split) - {"None"}
    tests = sorted(word for word in words if not _TRAINING.fullmatch(word))
    if not tests or len(words) < 2 or not are_splits(words):
        return table
    kept, new = {}, {}
    for name, cells in table.cells.items():
        seen = set(split[logged(cells)])
        if not is_evaluation(name) and not seen.isdisjoint(tests) and choose_y({name: cells}):
            new |= {f"{word}/{name}": np.where(split == word, cells, NOTHING) for word in tests if word in seen}
            cells = np.where(np.isin(split, tests), NOTHING, cells)
        if name != column and logged(cells).any():
            kept[name] = cells
    if not new:
        return table
    table = replace(table, cells={**kept, **new}, built=(*table.built, *new))
    return table.noting("evaluations_apart", columns=tuple(new))


# Tables of other shapes


def one_row_per_run_and_step(table: Table, source: Source) -> Table:
    """Return a table with one row per run and step; the values in it were counted when they were read."""
    if series := run_columns(table):
        metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
        reward = Reward(column=metrics.pop(), kind="evaluation") if len(metrics) == 1 else None
        table = replace(table, kind="wandb" if table.kind == "csv" else table.kind, reward=reward)
        table = table.noting("one_column_per_run", columns=tuple(dict.fromkeys(run for run, _ in series.values())))
        rows = one_row_per_run(table, series)
    else:
        rows = one_row_per_step(table) if table.find("metric") else []
    if not rows:
        return table
    cells, places = tabled(rows, source, is_counted=True)
    return replace(table, cells=cells, places=places)


def run_columns(table: Table) -> dict[str, tuple[str, str]]:
    """Map columns to (run, metric) in a table with one column per run, empty for any other.

    wandb exports 'run - metric' beside its __MIN and __MAX. Other tables have a step and columns of numbers, none of
    which is named as anything that trainers measure.
    """
    parts = {name: name.rpartition(_SEPARATOR) for name in table.columns if not name.endswith(_COMPANIONS)}
    exported = {column: (run, metric) for column, (run, separator, metric) in parts.items() if separator}
    if any(f"{column}__MIN" in table.cells for column in exported) or len(exported) == len(table.columns) - 1 > 0:
        return exported
    step = table.find("step", "coarse")
    others = [column for column in table.columns if column != step]
    if step is None or len(others) < 2 or any(map(is_measured, others)):
        return {}
    values = [numeric(table[name][logged(table[name])]) for name in others]
    peaks = [np.nanmax(np.abs(own), initial=0.0) for own in values]
    lows = [np.nanmin(own, initial=0.0) for own in values]
    is_rate = min(lows) >= -1 and max(peaks) <= 100
    is_alike = all(map(len, values)) and (is_rate or max(peaks) <= _ALIKE * min(peaks))
    are_numbers = all(np.isnan(table.numbers(name)).sum() == (~known(table[name])).sum() for name in others)
    return {column: (column, _VALUE) for column in others} if is_alike and are_numbers else {}


def one_row_per_run(table: Table, series: Mapping[str, tuple[str, str]]) -> list[Placed]:
    """Return one row per run and row of a table with one column per run."""
    placed: list[Placed] = []
    for place, row in zip(table.places, table.rows, strict=True):
        base = {name: cell for name, cell in row.items() if name not in series and not name.endswith(_COMPANIONS)}
        runs: dict[str, dict[str, Any]] = {}
        for column in series.keys() & row.keys():
            run, metric = series[column]
            runs.setdefault(run, {**base, "run": run})[metric] = row[column]
        placed += [(place, runs[run]) for run in dict.fromkeys(run for run, _ in series.values()) if run in runs]
    return placed


# Tables with one metric per row


def one_row_per_step(table: Table) -> list[Placed]:
    """Return one row per step and run, with a column per metric, of a table with one metric per row; else none."""
    step, value, metric = map(table.find, ("step", "value", "metric"))
    if not (step and value and metric):
        return []
    words = Counter(table[metric])
    # A "name" may be that of a run.
    is_metric = plain(metric) != "name" or any(choose_y({str(word): table[value]}) for word in words)
    if 2 * len(words) > len(table) or {str} != set(map(type, words)) or not is_metric:
        return []
    labels = [column for column in run_labels(table.cells, step) if column not in (metric, value, step)]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    wide: list[Placed] = []
    keys = zip(*(map(str, table[column]) for column in (step, *labels)), strict=True)
    for key, place, row in zip(keys, table.places, table.rows, strict=True):
        # A metric that a step already has was logged again, by a resumed run: its row comes later.
        if key not in rows or row[metric] in rows[key]:
            rows[key] = {name: cell for name, cell in row.items() if name not in (metric, value)}
            wide.append((place, rows[key]))
        rows[key][row[metric]] = row.get(value)
    return wide
