"""From rows to a table: shapes unified, attempts joined, hours built from the clock, compute and reward chosen."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.clock import wall_times, with_hours
from scalerl.logs.columns import Reward
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT
from scalerl.logs.runs import count_through_epochs, join_attempts, join_named_runs
from scalerl.logs.shapes import one_row_per_run, one_row_per_step, run_columns, with_evaluations
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, Table, tabled


def make_table(
    source: Source,
    kind: str,
    rows: Iterable[Placed],
    *,
    y: str | None = None,
    seed: str | None = None,
    apart: tuple[str, ...] = (),
) -> Table:
    """Build a table from rows of any shape, and recognise its columns."""
    cells, places = tabled(rows, source)
    table = Table(path=source.path, kind=kind, cells=cells, places=places, apart=apart, facts=tuple(source.facts))
    if kind != "run":
        table = _one_row_per_run_and_step(with_evaluations(table), source)
    reward = Reward(column=y, kind="evaluation") if y else table.reward
    # The name of an only run says nothing.
    known = tuple(name for name in table.apart if name != "run" or len(set(table[name])) > 1)
    table = replace(table, reward=reward, seed=seed or table.find(names.SEED), apart=known)
    return with_runs(replace(table, step=table.find(names.STEP), num_samples=table.find(names.NUM_SAMPLES)))


def _one_row_per_run_and_step(table: Table, source: Source) -> Table:
    if series := run_columns(table):
        metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
        runs = tuple(dict.fromkeys(run for run, _ in series.values()))
        table = replace(
            table,
            kind="wandb" if table.kind == "csv" else table.kind,
            reward=Reward(column=metrics.pop(), kind="evaluation") if len(metrics) == 1 else None,
            apart=("run",),
        ).noting(Fact(kind="one_column_per_run", values={"columns": runs}))
    rows = one_row_per_run(table, series) if series else one_row_per_step(table)
    cells, places = tabled(rows, source, is_counted=True) if rows else (table.cells, table.places)
    return replace(table, cells=cells, places=places)


def with_runs(table: Table, labels: Sequence[str] = ()) -> Table:
    """Join the attempts of a log and build its hours, with `labels` as further columns that name runs."""
    [raw] = table.raw or (table,)
    step = raw.find(names.TRAINER_STEP)
    if raw.kind == "run":
        return with_gpus(raw, None)
    if step is None or ATTEMPT in raw.cells:
        return with_gpus(with_hours(raw), None)
    table = _in_order(raw, step)
    runs = list(dict.fromkeys((*names.run_labels(table.cells, step), *labels)))
    if not runs and (np.diff(table.numbers(step)) > 0).all():
        return with_gpus(with_hours(table), None)  # one run, never interrupted
    table = count_through_epochs(table, step, table.find(names.COARSE))
    table = join_named_runs(table, step, [run for run in runs if run not in labels])
    table, counts = join_attempts(table, step, runs)
    table = replace(table, raw=(raw,) * (table.facts != raw.facts))
    # Work that a restart lost was done, and its time counts.
    return with_gpus(with_hours(table).take(counts), None)


def with_gpus(table: Table, gpus: float | None) -> Table:
    """Add `gpu_hours`, where `gpus` are given, from the hours; then choose the columns of compute and reward."""
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    if gpus is not None and "hours" in table.cells and table.find(names.GPU_HOURS) is None:
        hours = table["hours"]
        table = table.with_column("gpu_hours", (None if hour is None else hour * gpus for hour in hours))
    reward = table.reward or names.choose_y(table.cells)
    x = names.choose_x(table.cells, y=reward.column if reward else None, built=gpus is not None)
    return replace(table, reward=reward, x=x)


def _in_order(table: Table, step: str) -> Table:
    """Return the rows by their time of day, if every row has one; rows with the newest first are turned."""
    clock, steps = table.find(names.WALL_CLOCK), table.numbers(step)
    if clock and not np.isnan(times := wall_times(table[clock])).any():
        return table.take(np.argsort(times, kind="stable"))
    steps = steps[~np.isnan(steps)]
    is_turned = len(np.unique(steps)) > 3 and (np.diff(steps) <= 0).all()
    return table.take(slice(None, None, -1)) if is_turned else table
