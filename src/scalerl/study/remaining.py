"""The cost of the runs that remain of a study that has begun."""

from dataclasses import replace
from pathlib import Path

from scalerl import store
from scalerl.study.folder import is_done, last_row, run_folder
from scalerl.study.plan import Plan, PlannedRun
from scalerl.study.probe import Cost, Pace, cost

NOTHING = Cost(hours=0.0, gpu_hours=0.0, steps=0, longest_run_hours=0.0)


def runs_left(plan: Plan, folder: Path) -> list[PlannedRun]:
    return [run for run in plan.runs if not is_done(folder, run)]


def cost_left(plan: Plan, folder: Path, pace: Pace) -> Cost:
    """Return the cost of the remaining runs, without what they have spent already."""
    left = (_rest(run, run_folder(folder, run)) for run in runs_left(plan, folder))
    return cost(left, plan.base.recipe, pace)


def _rest(run: PlannedRun, folder: Path) -> PlannedRun:
    """Return the run with the budget that is left to it."""
    # Nothing to read counts as nothing spent.
    last = last_row(folder)
    left = {
        key: None if limit is None else limit - last.get(store.BUDGET_COLUMNS[key], 0)
        for key, limit in run.recipe.budget
    }
    budget = run.recipe.budget.model_copy(update=left)
    return replace(run, recipe=run.recipe.model_copy(update={"budget": budget}))
