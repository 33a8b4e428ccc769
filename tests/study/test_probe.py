"""What a study will cost, from a few steps of its base."""

import pytest
from small_study import STUDY, command_of, plan_of

from scalerl.errors import StudyError
from scalerl.study.probe import Pace, cost, pace_from, probe


def test_a_probe_times_the_base_and_leaves_nothing_behind(tmp_path):
    """The stand-in spends 2 s and 0.1 GPU-hours a step, and 3 s on 120 samples before its last step."""
    pace = probe(plan_of(tmp_path).base.recipe, command_of(tmp_path, {}))
    assert pace.step_s == pytest.approx(2)
    assert pace.step_gpu_hours == pytest.approx(0.1)
    assert pace.step_flops == pytest.approx(1e9)
    assert pace.sample_s == pytest.approx(3 / 120)


def test_a_probe_says_why_there_is_no_estimate(tmp_path):
    with pytest.raises(StudyError, match="the base cannot be run here: it cannot be"):
        probe(plan_of(tmp_path).base.recipe, command_of(tmp_path, {"run": "crash"}))
    with pytest.raises(StudyError, match="before its first step"):
        pace_from([], [], 1.0)


def test_cost_counts_steps_evaluations_and_start_up(tmp_path):
    pace = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.01, start_up_s=5.0)
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0]").replace("budget.steps = 4", "budget.steps = 20")
    both = "pipeline.groups_per_batch = 32\nevaluation = { every = 5, num_prompts = 10, samples_per_prompt = 3 }\n"
    plan = plan_of(tmp_path, text + both)
    total = cost(plan.runs, plan.base.recipe, pace)
    # The base: 20 steps, and evaluations of 250 x 4 at 0, 8, 16 and 20. Twice the batch: twice the time a step.
    base, arm = 20 * 2 + 4 * 1000 * 0.01 + 5, 20 * 4 + 5 * 30 * 0.01 + 5
    assert total.hours * 3600 == pytest.approx(base + arm)
    assert total.longest_run_hours * 3600 == pytest.approx(arm)
    assert total.gpu_hours == pytest.approx(20 * 0.1 + 20 * 0.2)
    assert total.steps == 40


@pytest.mark.parametrize("budget, steps", [("gpu_hours = 3.0", 30), ("flops = 7e9", 7), ("flops = 7e9\nsteps = 2", 2)])
def test_a_budget_in_compute_is_counted_in_steps(tmp_path, budget, steps):
    pace = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.0, start_up_s=0.0)
    text = STUDY.replace("budget.steps = 4\n", "") + f"[budget]\n{budget}\n"
    plan = plan_of(tmp_path, text)
    assert cost(plan.runs, plan.base.recipe, pace).steps == 4 * steps
