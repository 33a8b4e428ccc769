"""Check that every arm can start, and estimate the cost of a study."""

import json
from pathlib import Path

import pytest
from small_study import STUDY, command_of, plan_of

from scalerl import processes
from scalerl.errors import StudyError
from scalerl.runfolder import store
from scalerl.study.failure_reason import failure_reason, last_error
from scalerl.study.folder import run_folder
from scalerl.study.plan import StudyPlan
from scalerl.study.probe import Cost, Pace, arms_to_check, cost, pace_from, probe

PACE = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.01, start_up_s=5.0)
OTHERS = """
[arms.model]
model.path = "models/other"
[arms.task]
task = { name = "programs" }
[arms.own]
loss = { name = "package.module:function" }
[arms.plain]
weights = "token"
"""


def test_arms_that_import_something_are_tried(tmp_path):
    plan = plan_of(tmp_path, STUDY + OTHERS)
    assert [arm.name for arm in arms_to_check(plan, tmp_path / "out")] == ["model", "task", "own"]
    for arm in ("model", "own"):
        spend(plan, tmp_path / "out", f"{arm}-seed1", 1, "failed")
    assert [arm.name for arm in arms_to_check(plan, tmp_path / "out")] == ["task"]


@pytest.mark.parametrize(
    "printed, error",
    [
        ("starting\nerror: the first\nthe second\n\n", "the first; the second"),
        ("error: old\nTraceback (most recent call last):\n  File ...\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("one\ntwo\n", "two"),
        ("", ""),
    ],
)
def test_the_last_error_of_a_command_or_its_last_line(printed, error):
    assert last_error(printed) == error


@pytest.mark.parametrize(
    "printed, code, step, why",
    [
        ("step 4  0.01 GPU-h  0.312\n", -9, 4, "killed by SIGKILL after step 4"),
        ("step 4  0.01 GPU-h  0.312\n", -15, 4, "killed by SIGTERM after step 4"),
        ("a model of 2M parameters\n", -9, None, "killed by SIGKILL"),
        ("terminate called: out of range\n", -6, 4, "terminate called: out of range (killed by SIGABRT after step 4)"),
        ("step 4  0.01 GPU-h\nerror: no room\n", 2, 4, "no room (exit code 2)"),
        ("", 1, None, "exit code 1"),
    ],
)
def test_killed_run_reports_the_signal(printed, code, step, why):
    assert failure_reason(printed, code, step) == why


def test_a_probe_times_the_base_and_leaves_nothing_behind(tmp_path):
    """The stand-in spends 2 s and 0.1 GPU-hours a step, and 3 s on 120 samples before its last step."""
    pace = probe(plan_of(tmp_path).base.recipe, command_of(tmp_path, {}))
    assert pace.step_s == pytest.approx(2)
    assert pace.step_gpu_hours == pytest.approx(0.1)
    assert pace.step_flops == pytest.approx(1e9)
    assert pace.sample_s == pytest.approx(3 / 120)


def test_a_probe_evaluates_few_problems_of_every_set(tmp_path, monkeypatch):
    run, seen = processes.run, []

    def reading(command):
        [recipe] = [word for word in command if word.endswith("recipe.json")]
        seen.append(json.loads(Path(recipe).read_text())["evaluation"])
        return run(command)

    monkeypatch.setattr(processes, "run", reading)
    sets = '[evaluation.sets.large]\nname = "programs"\nnum_prompts = 500\nevery = 2\n'
    (tmp_path / "base.toml").write_text('extends = "tiny-cpu"\n' + sets)
    probe(plan_of(tmp_path, STUDY.replace("tiny-cpu", "base.toml")).base.recipe, command_of(tmp_path, {}))
    assert seen[0]["num_prompts"] == 32
    assert seen[0]["sets"]["large"]["num_prompts"] == 1


def test_base_that_ends_before_its_first_step_gives_no_estimate():
    with pytest.raises(StudyError, match="before its first step"):
        pace_from([], [], 1.0)


def test_cost_counts_steps_evaluations_and_start_up(tmp_path):
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0]").replace("budget.steps = 4", "budget.steps = 20")
    both = "pipeline.groups_per_batch = 32\nevaluation = { every = 5, num_prompts = 10, samples_per_prompt = 3 }\n"
    plan = plan_of(tmp_path, text + both)
    total = cost(plan, tmp_path / "out", PACE)
    # The base: 20 steps, and evaluations of 250 x 4 at 0, 8, 16 and 20. Twice the batch: twice the time a step.
    base, arm = 20 * 2 + 4 * 1000 * 0.01 + 5, 20 * 4 + 5 * 30 * 0.01 + 5
    assert total.hours * 3600 == pytest.approx(base + arm)
    assert total.longest_run_hours * 3600 == pytest.approx(arm)
    assert total.gpu_hours == pytest.approx(20 * 0.1 + 20 * 0.2)
    # A step of 2 s takes 0.1 GPU-hours: 180 devices, which wait during evaluations.
    assert total.device_hours == pytest.approx(180 * total.hours)
    assert total.steps == 40


def test_cost_counts_each_set_as_often_as_it_is_evaluated(tmp_path):
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0]").replace("budget.steps = 4", "budget.steps = 20")
    plan = plan_of(tmp_path, text)
    rare = '[set]\nevaluation.sets.rare = { name = "arithmetic", num_prompts = 100, every = 15 }\n'
    more = plan_of(tmp_path, text + rare)
    # 100 x 4 more answers at 0, 15 and 20, in both arms.
    difference = cost(more, tmp_path / "out", PACE).hours - cost(plan, tmp_path / "out", PACE).hours
    assert difference * 3600 == pytest.approx(2 * 3 * 400 * PACE.sample_s)


def spend(plan: StudyPlan, folder: Path, name: str, steps: int, status: str) -> None:
    (run,) = [run for run in plan.runs if run.name == name]
    place = run_folder(folder, run)
    place.mkdir(parents=True)
    store.write_json(place / store.RECIPE, run.recipe.model_dump(mode="json"))
    store.append_row(
        place / store.METRICS, {"step": steps, "attempt": 1, "gpu_hours": steps / 10, "flops": steps * 1e9}
    )
    store.write_json(place / store.STATUS, {"status": status, "reason": ""})


@pytest.mark.parametrize(
    "budget, steps",
    [("gpu_hours = 3.0", 30), ("flops = 7e9", 7), ("flops = 7e9\nsteps = 2", 2), ("steps = 30", 30)],
)
def test_cost_counts_only_remaining_steps(tmp_path, budget, steps):
    plan, out = plan_of(tmp_path, STUDY.replace("budget.steps = 4\n", "") + f"[budget]\n{budget}\n"), tmp_path / "out"
    assert cost(plan, out, PACE).steps == 4 * steps
    spend(plan, out, "cispo-seed0", steps, "done")
    spend(plan, out, "dapo-seed0", 1, "stopped")
    assert cost(plan, out, PACE).steps == 3 * steps - 1
    assert cost(plan, out, PACE).gpu_hours == pytest.approx((3 * steps - 1) / 10)
    for name in ("cispo-seed1", "dapo-seed1"):
        spend(plan, out, name, steps, "done")
    assert cost(plan, out, PACE).steps == steps - 1
    store.write_json(out / "runs/dapo-seed0" / store.STATUS, {"status": "done", "reason": ""})
    assert cost(plan, out, PACE) == Cost()
