"""`scalerl study` as a user meets it: a real run, and everything it says."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from commands import checked_json
from typer.testing import CliRunner
from webhook import webhook

from scalerl.cli import app
from scalerl.cli import study as study_module
from scalerl.errors import StudyError, UsageError
from scalerl.recipe.import_path import ANNOUNCED
from scalerl.recipe.load import shipped
from scalerl.runfolder import store
from scalerl.study.plan import make_plan
from scalerl.study.spec import load_study

SMALL = """
description = "Two losses"
base = "tiny-cpu"
budget.steps = 3
[set]
task.num_problems = 24
pipeline = { groups_per_batch = 4, completions_per_group = 2, max_lag = 2 }
rollout.slots = 16
evaluation = { num_prompts = 6, samples_per_prompt = 2, every = 3 }
checkpoint.every = 1
length = { thinking_min = 6, thinking_max = 8 }
[arms.cispo]
[arms.dapo]
loss = "dapo"
"""


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(study_module, "gpu_visible", lambda: False)


def study(*arguments: str, exit_code: int = 0):
    result = CliRunner().invoke(app, ["study", *arguments])
    assert result.exit_code == exit_code, result.output
    return result


def fake_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, str]) -> None:
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    fake = Path(__file__).parents[1] / "support" / "fake_train.py"
    monkeypatch.setattr(study_module, "TRAIN", (sys.executable, str(fake), str(tmp_path / "behaviour.json")))
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)


def test_a_killed_run_is_resumed_by_the_trainer_itself(tmp_path, monkeypatch):
    """The first arm is made up and done; the other, made up and killed, is trained anew as an attempt."""
    train, out = study_module.TRAIN, tmp_path / "out"
    fake_training(tmp_path, monkeypatch, {"dapo-seed0": "die once"})
    study("small.toml", "--out", str(out), exit_code=1)
    (out / "runs" / "dapo-seed0" / store.EVALS).unlink()  # made up, of prompts that no trainer knows
    monkeypatch.setattr(study_module, "TRAIN", train)
    second = study("small.toml", "--out", str(out), "--resume", "--json")
    assert "1 of 2 runs are already done." in second.stderr
    assert "2 of 2 runs are done." in second.stderr
    summary = checked_json(second.stdout)
    assert [(run["arm"], run["state"], run["step"]) for run in summary["runs"]] == [
        ("cispo", "done", 3), ("dapo", "done", 3)
    ]  # fmt: skip
    rows = store.read_metrics(out / "runs" / "dapo-seed0")
    assert [(row["step"], row["attempt"]) for row in rows] == [(step, 2) for step in (1, 2, 3)]
    assert summary["report"] is None or Path(summary["report"]).is_file()


def test_code_of_others_is_announced_on_the_terminal(tmp_path, monkeypatch):
    """What the runs print is in files."""
    fake_training(tmp_path, monkeypatch, {})
    monkeypatch.delenv(ANNOUNCED, raising=False)
    (tmp_path / "small.toml").write_text(f'{SMALL}[arms.mine]\ntask.grader = "mi-ne:grade"\n')
    ran = study("small.toml", "--out", "out", "--set", "seeds=[0, 1]")
    assert ran.stderr.count("mi-ne:grade") == 1


def test_a_failing_arm_is_named_and_left_out_of_the_report(tmp_path, monkeypatch):
    fake_training(tmp_path, monkeypatch, {"dapo-seed3": "fail"})
    changed = ("--set", "seeds=[3]", "--set", "budget.steps=2", "--jobs", "2")
    with webhook() as chat:
        monkeypatch.setenv("SCALERL_NOTIFY", chat.url)
        result = study("small.toml", *changed, "--json", exit_code=1)
    assert "SCALERL_NOTIFY" not in os.environ
    reason = "NanError: the loss is not a number"
    assert chat.texts == [
        f"small: 1 of 2 runs are done.\ndapo-seed3 failed: {reason}; its log is runs/small/logs/dapo-seed3.log"
    ]
    starts = [path.read_text() for path in Path("runs/small/runs").glob("*/starts.jsonl")]
    assert [json.loads(text)["webhook"] for text in starts] == [chat.url] * 2
    assert f"dapo-seed3 failed: {reason}; its log is runs/small/logs/dapo-seed3.log" in result.stderr
    assert "To continue: the same command with --resume" in result.stderr
    outcomes = [(run["state"], run["reason"], run["step"]) for run in checked_json(result.stdout)["runs"]]
    assert outcomes == [("done", "", 2), ("failed", reason, 2)]
    fake_training(tmp_path, monkeypatch, {})
    study("small.toml", *changed, "--resume")


def test_without_a_name_the_studies_are_listed():
    lines = study().stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped("study"))
    assert study("list").stdout.splitlines() == lines
    assert checked_json(study("--json").stdout)["studies"].keys() == set(shipped("study"))


def test_study_file_in_the_help_is_valid(tmp_path):
    lines = [line.strip() for line in study("--help").stdout.splitlines()]
    example = lines[lines.index('base = "tiny-cpu"') : lines.index('loss = "dapo"') + 1]
    (tmp_path / "shown.toml").write_text("\n".join(example))
    plan = make_plan(*load_study(tmp_path / "shown.toml"), gpu=False)
    assert [run.name for run in plan.runs] == [f"{arm}-seed{seed}" for seed in (0, 1) for arm in ("tiny-cpu", "dapo")]


def test_a_dry_run_shows_the_plan_and_why_it_cannot_be_run():
    shown = study("loo", "--dry-run", exit_code=2).stdout
    assert "scalerl: the base, scalerl" in shown
    assert 'dapo-loss: loss.name = "dapo", loss.clip_low = 0.2, loss.clip_high = 0.26' in shown
    assert "no-fp32-head is not run: inert on this device: model.fp32_head changes nothing" in shown
    assert "8 arms x 1 seed = 8 runs of 16,000 CPU-hours" in shown
    assert "This study cannot run: study loo: model.path and task.name not set" in shown
    assert "Timing" not in shown
    result = study("loo", "--dry-run", "--json", exit_code=2)
    content = checked_json(result.stdout)["plan"]
    assert (len(content["runs"]), content["cost"]) == (8, None)
    assert "model.path and task.name not set" in content["problems"][0]
    assert content["skipped"][0]["arm"] == "no-fp32-head"


def test_a_reason_that_several_arms_share_is_given_once(tmp_path, monkeypatch):
    fake_training(tmp_path, monkeypatch, {})
    text = 'base = "tiny-cpu"\nbudget.steps = 2\nleave_one_out = ["no-fp32-head", "dapo-loss"]\n'
    (tmp_path / "mine.toml").write_text(f'{text}[arms.half]\nmodel.fp32_head = "learner"\n')
    shown = study(str(tmp_path / "mine.toml"), "--dry-run").stdout
    assert shown.startswith("mine\n")
    assert "half, no-fp32-head are not run: inert on this device" in shown
    assert shown.count("inert on this device") == 1
    assert 'half: model.fp32_head = "learner" (not run)' in shown


def test_arm_that_cannot_be_set_up_is_refused_first(tmp_path, monkeypatch):
    fake_training(tmp_path, monkeypatch, {"run": "crash"})
    changed = ["--set", "arms.dapo.model.path=gone"]
    result = study("small.toml", *changed, exit_code=1)
    assert isinstance(result.exception, StudyError)
    assert str(result.exception) == "the arm dapo cannot be run here: it cannot be"
    assert not (tmp_path / "runs").exists()
    shown = study("small.toml", "--dry-run", *changed, exit_code=2).stdout
    assert "This study cannot run: the arm dapo cannot be run here: it cannot be" in shown
    result = study("small.toml", "--dry-run", "--json", exit_code=2)
    content = checked_json(result.stdout)["plan"]
    assert (content["cost"], content["problems"]) == (None, ["the base cannot be run here: it cannot be"])
    fake_training(tmp_path, monkeypatch, {})
    assert "2 of 2 runs are done." in study("small.toml", *changed).stdout


def test_a_dry_run_gives_the_cost_that_a_probe_measures(tmp_path, monkeypatch):
    fake_training(tmp_path, monkeypatch, {})
    shown = study("small.toml", "--dry-run", "--jobs", "2").stdout
    assert "2 arms x 1 seed = 2 runs of 3 steps" in shown
    # 2 s and 0.1 GPU-hours a step.
    assert "and 0.6 CPU-hours of training (6 steps), at 2 s per step" in shown
    assert "--jobs 2 is not faster than --jobs 1" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["behaviour.json", "small.toml"]
    shown = checked_json(study("small.toml", "--dry-run", "--price", "3", "--json").stdout)["plan"]["cost"]
    assert shown["money"] == pytest.approx(3 * shown["device_hours"])
    assert isinstance(study("small.toml", "--price", "3", exit_code=1).exception, UsageError)


def test_a_dry_run_to_resume_counts_what_is_left(tmp_path, monkeypatch):
    """Two runs of 3 steps: one is done, the other has a step to go, at 0.1 GPU-hours a step."""
    fake_training(tmp_path, monkeypatch, {"dapo-seed0": "fail"})
    study("small.toml", exit_code=1)
    metrics = tmp_path / "runs" / "small" / "runs" / "dapo-seed0" / store.METRICS
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    result = study("small.toml", "--dry-run", "--resume", "--json")
    assert "1 of 2 runs are already done: the cost below is that of the others." in result.stderr
    assert "0.1 CPU-hours of training (1 step)" in result.stderr
    content = checked_json(result.stdout)["plan"]
    assert (content["num_done"], content["cost"]["steps"]) == (1, 1)
    assert content["cost"]["gpu_hours"] == pytest.approx(0.1)

    fake_training(tmp_path, monkeypatch, {})
    study("small.toml", "--resume")
    result = study("small.toml", "--dry-run", "--resume", "--json")
    assert "2 of 2 runs are already done: nothing is left to run." in result.stderr
    assert "Timing" not in result.stderr
    assert set(checked_json(result.stdout)["plan"]["cost"].values()) == {0}
    shown = study("small.toml", "--dry-run", "--resume", "--set", "budget.steps=5").stdout
    assert "0 of 2 runs are already done: the cost below is that of the others." in shown
    assert "0.4 CPU-hours of training (4 steps)" in shown


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["loo", "--dry-run", "--resume"], "runs/loo contains no study to resume"),
        (["loss"], r"not set, so there is nothing to train: add --set model\.path=\.\.\. --set task\.name=\.\.\."),
        (["lo"], r'there is no study "lo"; did you mean "loo"\? \(scalerl study list'),
        (["precision"], "nothing to compare no-fp32 with here\nfp32-\\w+ is not run: inert"),
    ],
)
def test_study_that_cannot_run_is_refused_first(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = study(*arguments, exit_code=1)
    assert isinstance(result.exception, StudyError)
    assert re.search(message, str(result.exception))
    assert list(tmp_path.iterdir()) == []


def test_visible_gpus_follow_cuda_visible_devices(monkeypatch):
    assert study_module.visible_gpus() == []
    monkeypatch.setattr(study_module, "gpu_visible", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert study_module.visible_gpus() == ["2", "5"]
