"""From rows to a table: shapes unified, attempts joined, hours built from the clock, compute and reward chosen."""

from collections.abc import Iterable
from dataclasses import replace

from scalerl.errors import InputError
from scalerl.logs.clock import with_hours
from scalerl.logs.columns import Reward, choose_x, choose_y, has_role
from scalerl.logs.runs import joined
from scalerl.logs.selection import Selection
from scalerl.logs.shapes import one_row_per_run_and_step, with_evaluations
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, Table, tabled


def make_table(source: Source, kind: str, rows: Iterable[Placed]) -> Table:
    """Build a table from rows of any shape, and recognise its columns."""
    cells, places = tabled(rows, source)
    table = Table(path=source.path, kind=kind, cells=cells, places=places, facts=tuple(source.facts))
    if kind != "run":
        table = one_row_per_run_and_step(table, source)
    elif "reward" in cells:
        reward = Reward(column="reward", kind="evaluation")
        table = replace(table, reward=reward, apart=tuple(name for name in ("arm", "set") if name in cells))
    return arranged(table, Selection())


def arranged(table: Table, selection: Selection) -> Table:
    """Join the attempts of a log as it was read, build its hours, and choose the columns of compute and reward."""
    raw, gpus = table.raw or table, selection.gpus
    table = replace(raw, path=table.path, seed=raw.find("seed"))
    if raw.kind != "run":
        # Who names the column that tells evaluations from training means the column that they share.
        is_split = not raw.find("split") or any(has_role(name, "split") for name in selection.mentioned)
        table = replace(table if is_split else with_evaluations(table), raw=raw)
        table, counts = joined(table, selection.mentioned)
        # Work that a restart lost was done, and its time counts.
        table = with_hours(table)
        table = table if counts.all() else table.take(counts)
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    if gpus is not None and "hours" in table.cells and table.find("gpu_hours") is None:
        hours = table["hours"]
        table = table.with_column("gpu_hours", (None if hour is None else hour * gpus for hour in hours))
    reward = table.reward or choose_y(table.cells)
    x = choose_x(table.cells, y=reward.column if reward else None, built=gpus is not None)
    return replace(table, reward=reward, x=x)
