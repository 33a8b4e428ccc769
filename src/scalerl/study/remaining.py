"""What is still to be paid for of a study that has begun."""

from dataclasses import replace
from pathlib import Path

from scalerl import store
from scalerl.errors import RunFolderError
from scalerl.study.folder import is_done, run_folder
from scalerl.study.plan import Plan, PlannedRun
from scalerl.study.probe import Cost, Pace, cost

NOTHING = Cost(hours=0.0, gpu_hours=0.0, steps=0, longest_run_hours=0.0)
# The columns of metrics.jsonl that a budget is counted in.
_SPENT = {"steps": "step", "gpu_hours": "gpu_hours", "flops": "flops"}


def runs_left(plan: Plan, folder: Path) -> list[PlannedRun]:
    return [run for run in plan.runs if not is_done(folder, run)]


def cost_left(plan: Plan, folder: Path, pace: Pace) -> Cost:
    """Return the cost of the remaining runs, without what they have spent already."""
    left = (_rest(run, run_folder(folder, run)) for run in runs_left(plan, folder))
    return cost(left, plan.base.recipe, pace)


def _rest(run: PlannedRun, folder: Path) -> PlannedRun:
    """Return the run with the budget that is left to it."""
    last = _last_row(folder)
    left = {key: limit - last.get(_SPENT[key], 0) if limit is not None else None for key, limit in run.recipe.budget}
    budget = run.recipe.budget.model_copy(update=left)
    return replace(run, recipe=run.recipe.model_copy(update={"budget": budget}))


def _last_row(folder: Path) -> store.Row:
    """Return the last row of a run; empty if nothing can be read, so that the run is counted in full."""
    try:
        rows = store.read_metrics(folder)
    except RunFolderError:
        return {}
    return rows[-1] if rows else {}
