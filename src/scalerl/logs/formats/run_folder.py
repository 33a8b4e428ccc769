"""Our own run folders, and studies: folders that list several runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, RunFolderError
from scalerl.logs.table import Table, flatten, make_table

# Of rows in which these columns are equal the latest counts.
_KEYS = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}


def read_run(folder: Path, name: str) -> Table:
    """Read evals.jsonl or metrics.jsonl of a run; of a step that was logged twice the latest attempt counts."""
    placed = _run_rows(folder, name)
    if not placed:
        raise InputError(f"the run folder {folder} has no rows in {name} yet: wait for its first evaluation.")
    is_evals = name == store.EVALS
    return make_table(folder, "run", placed, y="reward" if is_evals else None, apart=("set",) if is_evals else ())


def read_study(folder: Path) -> Table:
    """Read the evaluations of all runs of a study so far: arms are separate curves, seeds are runs of one curve."""
    placed = []
    for run in (store.read_study(folder) or {}).get("runs", []):
        labels = {key: run.get(key) for key in ("arm", "seed", "folder")} if isinstance(run, Mapping) else {}
        run_folder = folder / store.portable(str(labels.pop("folder", None)))
        if store.is_run_folder(run_folder):
            rows = _run_rows(run_folder, store.EVALS)
            placed += [(f"{run_folder.name}, {place}", {**row, **labels}) for place, row in rows]
    if not placed:
        raise InputError(f"no run of the study {folder} has been evaluated yet: wait for the first evaluation.")
    return make_table(folder, "run", placed, y="reward", seed="seed", apart=("arm", "set"))


def _run_rows(folder: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (place, row) of the rows that count, each with the run's seed; empty while there are none."""
    try:
        recipe = flatten(store.read_recipe(folder) or {})
    except RunFolderError:
        recipe = {}  # only the seed is taken from it
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    seed = {"seed": recipe[seeds[0]]} if seeds else {}
    rows = store.latest_rows(folder / name, _KEYS[name])
    return [(f"{name} line {line}", {**seed, **flatten(row)}) for line, row in rows]
