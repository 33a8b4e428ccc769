"""What is still to be paid for of a study that has begun."""

from pathlib import Path

import pytest
from small_study import STUDY, plan_of

from scalerl import store
from scalerl.study.folder import run_folder
from scalerl.study.plan import Plan
from scalerl.study.probe import Pace, cost
from scalerl.study.remaining import NOTHING, cost_left

PACE = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.01, start_up_s=5.0)
TWICE_THE_BATCH = "pipeline.groups_per_batch = 32\n"


def spend(plan: Plan, folder: Path, name: str, steps: int, status: str) -> None:
    (run,) = [run for run in plan.runs if run.name == name]
    place = run_folder(folder, run)
    place.mkdir(parents=True)
    store.write_json(place / store.RECIPE, run.recipe.model_dump(mode="json"))
    store.append_row(
        place / store.METRICS, {"step": steps, "attempt": 1, "gpu_hours": steps / 10, "flops": steps * 1e9}
    )
    store.write_json(place / store.STATUS, {"status": status, "reason": ""})


def test_before_a_run_has_begun_all_of_it_is_left(tmp_path):
    plan = plan_of(tmp_path, STUDY + TWICE_THE_BATCH)
    left, whole = cost_left(plan, tmp_path / "out", PACE), cost(plan.runs, plan.base.recipe, PACE)
    assert left.steps == whole.steps
    for name in ("hours", "gpu_hours", "longest_run_hours"):
        assert getattr(left, name) == pytest.approx(getattr(whole, name)), name


@pytest.mark.parametrize("budget", ["steps = 30", "gpu_hours = 3.0", "flops = 30e9"])
def test_cost_of_the_remaining_runs(tmp_path, budget):
    plan, out = plan_of(tmp_path, STUDY.replace("budget.steps = 4\n", "") + f"[budget]\n{budget}\n"), tmp_path / "out"
    spend(plan, out, "cispo-seed0", 30, "done")
    spend(plan, out, "dapo-seed0", 10, "stopped")
    assert cost_left(plan, out, PACE).steps == (30 - 10) + 2 * 30
    assert cost_left(plan, out, PACE).gpu_hours == pytest.approx(8.0)
    spend(plan, out, "cispo-seed1", 30, "done")
    spend(plan, out, "dapo-seed1", 30, "done")
    assert cost_left(plan, out, PACE).steps == 20


def test_a_study_that_is_done_costs_nothing(tmp_path):
    plan = plan_of(tmp_path)
    for run in plan.runs:
        spend(plan, tmp_path / "out", run.name, 4, "done")
    assert cost_left(plan, tmp_path / "out", PACE) == NOTHING
