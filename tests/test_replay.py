"""Schedules on a virtual clock against what can be worked out by hand, and the reading of runs."""

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl import store
from scalerl.run.simulate.schedule import Durations, Regime, simulate
from scalerl.types import derive_seed

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
replay, replay_runs = map(importlib.import_module, ("replay", "replay_runs"))

GROUPS, COMPLETIONS, ROUND = 2, 4, 8
PIPELINE = {"max_lag": 8, "push_every": 1, "drain": False}
DRAINED = {"max_lag": 7, "push_every": ROUND, "drain": True}


def run(pipeline: dict[str, Any], *, slots=GROUPS * COMPLETIONS, poll_s=1.0, step_s=1.0, push_s=0.0, steps=80, **how):
    regime = Regime(groups_per_batch=GROUPS, completions_per_group=COMPLETIONS, slots=slots, **pipeline)
    durations = Durations(chunk_s=lambda _: poll_s, step_s=lambda version, tokens: step_s, push_s=push_s, copy_s=push_s)
    settings: dict[str, Any] = {"num_tokens": lambda version, seed: 1} | how
    return simulate(regime, durations, steps=steps, **settings)


# Constant durations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("slots_share, poll_s, step_s, push_s", [(1, 1.0, 1.0, 0.0), (2, 0.5, 3.0, 0.25), (4, 2, 1, 0)])
def test_drained_schedule_alternates_on_one_or_two_devices(apart, slots_share, poll_s, step_s, push_s):
    slots = GROUPS * COMPLETIONS // slots_share
    found = run(DRAINED, slots=slots, poll_s=poll_s, step_s=step_s, push_s=push_s, apart=apart)
    # A round: all of its eight batches are sampled, then trained on, then pushed. One push comes before the first.
    each_s = ROUND * slots_share * poll_s + ROUND * step_s + push_s
    assert found.ends_s[-1] == pytest.approx(80 / ROUND * each_s + push_s)
    assert set(found.lags) == set(range(ROUND))


@pytest.mark.parametrize("poll_s, step_s", [(1.0, 1.0), (0.2, 1.0), (3.0, 1.0), (1.0, 0.9)])
def test_pipeline_on_two_devices_is_as_fast_as_the_slower(poll_s, step_s):
    found = run(PIPELINE, poll_s=poll_s, step_s=step_s)
    pace = np.diff(found.ends_s)[20:]
    assert pace.mean() == pytest.approx(max(poll_s, step_s), rel=1e-3)
    assert max(found.lags) <= 8


@pytest.mark.parametrize("push_s", [0.0, 0.5])
def test_a_pipeline_on_one_device_takes_the_sum(push_s):
    found = run(PIPELINE, poll_s=2.0, step_s=1.0, push_s=push_s, apart=False)
    assert np.diff(found.ends_s) == pytest.approx(3.0 + push_s)


def test_a_push_holds_up_both_devices():
    assert np.diff(run(PIPELINE, poll_s=1.0, step_s=0.1, push_s=0.5).ends_s)[20:].mean() == pytest.approx(1.5, rel=0.02)
    assert np.diff(run(PIPELINE, poll_s=0.1, step_s=1.0, push_s=0.5).ends_s)[20:].mean() == pytest.approx(1.5, rel=0.02)


def test_two_equal_devices_halve_the_time():
    ratio = np.diff(run(PIPELINE).ends_s)[-40:].sum() / np.diff(run(DRAINED).ends_s)[-40:].sum()
    assert ratio == pytest.approx(0.5)


def test_idle_shares_are_what_the_schedule_leaves():
    drained = run(DRAINED, poll_s=1.0, step_s=3.0)
    assert drained.generator_idle == pytest.approx(0.75)
    assert drained.learner_idle == pytest.approx(0.25)
    pipeline = run(PIPELINE, poll_s=1.0, step_s=3.0)
    assert pipeline.learner_idle == pytest.approx(0.0, abs=0.01)
    assert pipeline.generator_idle == pytest.approx(2 / 3, abs=0.05)


def test_stragglers_hold_up_a_drained_schedule_alone():
    def num_tokens(version: int, seed: int) -> int:
        return 16 if derive_seed("straggler", seed) % 16 == 0 else 1

    # By the sum of polls both need the same; drained, the last of a round run almost alone.
    pipeline, drained = (run(one, num_tokens=num_tokens, step_s=0.0, steps=160) for one in (PIPELINE, DRAINED))
    assert drained.ends_s[-1] > 1.3 * pipeline.ends_s[-1]
    assert max(pipeline.lags) <= 8


# Runs -----------------------------------------------------------------------------------------------------------------


def write_run(folder: Path, pipeline: dict[str, Any], *, steps=96, wait_s=1.0, step_s=1.0, reward_step=20.0) -> Path:
    """A batch is sampled in `wait_s` and trained on in `step_s`; the reward is half-way up at `reward_step`."""
    store.create_run(folder)
    groups = {"groups_per_batch": 8, "completions_per_group": 4}
    store.write_json(folder / store.RECIPE, {"pipeline": pipeline | groups, "rollout": {"slots": 32}})
    store.write_json(folder / store.ENV, {"device": "cpu"})
    seconds = 0.0
    for step in range(steps + 1):
        reward = 0.2 + 0.6 / (1 + (reward_step / step) ** 2) if step else 0.2
        row = {"step": step, "attempt": 1, "gpu_hours": seconds / 3600}
        if step % 4 == 0:
            result = {"set": "main", "reward": reward, "num_samples": 4000}
            store.append_row(folder / store.EVALS, row | result)
        if step == steps:
            break
        every = pipeline["push_every"]
        waited_s = wait_s * every if step % every == 0 else 0.0
        seconds += waited_s + step_s
        times = {"time/wait_s": waited_s, "time/step_s": step_s, "time/push_s": 0.0, "groups": ["0/1", "0/2"]}
        facts = {"rollout/length_mean": 4.0, "batch/trained_tokens": 100.0}
        store.append_row(folder / store.METRICS, row | facts | times | {"step": step + 1, "gpu_hours": seconds / 3600})
    return folder


@pytest.fixture
def runs(tmp_path) -> tuple[Path, Path]:
    return write_run(tmp_path / "pipeline", PIPELINE), write_run(tmp_path / "drained", DRAINED)


def test_equal_rewards_by_step_leave_the_schedules_own_ratio(runs):
    result = replay.compare(*(replay_runs.read_arm([folder]) for folder in runs))
    assert result["costs"] == {"poll_s": 1.0, "push_s": 0.0, "step_s": 1.0, "token_s": 0.0}
    end = result["end"]
    assert end["steps_pipeline"] == pytest.approx(96, rel=0.02)
    assert end["shared"] == pytest.approx(1.0, rel=0.02)
    # One second to sample a batch, one to train on it: two devices need one second a step, not two.
    assert end["apart"] == pytest.approx(0.5, rel=0.03)
    low, high = end["apart_interval"]
    assert low < end["apart"] < high
    for arm in result["arms"].values():
        assert arm["replayed_seconds_a_step"] == pytest.approx(arm["seconds_a_step"], rel=0.01)


def test_a_faster_learning_arm_needs_less(tmp_path):
    fast = write_run(tmp_path / "fast", PIPELINE, reward_step=10.0, step_s=0.25)
    slow = write_run(tmp_path / "slow", DRAINED, reward_step=20.0, step_s=0.25)
    result = replay.compare(replay_runs.read_arm([fast]), replay_runs.read_arm([slow]))
    half = next(row for row in result["shares"] if row["share"] == 0.5)
    assert half["steps_pipeline"] / half["steps_drained"] == pytest.approx(0.5, rel=0.05)
    # Drained, the generation of a whole round is paid for before its first step.
    drained_s = 8 * math.ceil(half["steps_drained"] / 8) + 0.25 * half["steps_drained"]
    assert half["shared"] == pytest.approx(half["steps_pipeline"] * 1.25 / drained_s, rel=0.05)
    assert half["apart"] == pytest.approx(half["steps_pipeline"] * max(1, 0.25) / drained_s, rel=0.05)


def test_reward_that_is_never_reached_is_reported(tmp_path, runs):
    low = write_run(tmp_path / "low", PIPELINE, reward_step=2000.0)
    lines = (low / store.EVALS).read_text().splitlines()
    rows = [json.loads(line) | {"reward": 0.2 + 0.1 * number / (number + 2)} for number, line in enumerate(lines)]
    (low / store.EVALS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = replay.compare(replay_runs.read_arm([low]), replay_runs.read_arm([runs[1]]))
    assert result["end"]["apart"] is None
    assert "never" in replay.shown(result)


def test_seeds_are_pooled_as_far_as_all_of_them_come(tmp_path, runs):
    shorter = write_run(tmp_path / "shorter", PIPELINE, steps=80)
    arm = replay_runs.read_arm([runs[0], shorter])
    assert arm.steps == 80
    assert arm.hours[-1] * 3600 == pytest.approx(160)
    assert arm.curve.num_runs == 2


def test_what_is_packed_is_small_and_reads_the_same(tmp_path, runs):
    counts = [{"num_tokens": length} for length in (3, 5, 5, 7)]
    checkpoint = runs[0] / store.CHECKPOINTS / "step-00000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text(json.dumps({"groups": [{"completions": counts}]}))
    (checkpoint / "tensors.weights.safetensors").write_bytes(bytes(10_000))
    packed = replay_runs.pack(runs[0], tmp_path / "kept")
    assert packed == tmp_path / "kept" / "pipeline"
    assert not (packed / store.CHECKPOINTS).exists()
    assert "groups" not in (packed / store.METRICS).read_text()
    before, after = (replay_runs.read_arm([folder]) for folder in (runs[0], packed))
    assert before.steps == after.steps
    assert [step for step, _ in after.lengths] == [40]
    assert sorted(after.lengths[0][1]) == sorted(before.lengths[0][1]) == [3, 5, 5, 7]


def test_lengths_keep_their_shape_and_take_the_steps_mean(runs):
    (runs[0] / replay_runs.LENGTHS).write_text(json.dumps({"10": {"2": 500, "6": 500}, "90": {"4": 1}}))
    arm = replay_runs.read_arm([runs[0]])
    drawn = [arm.draw_length(5, derive_seed("length", number)) for number in range(400)]
    assert set(drawn) == {2, 6}
    assert np.mean(drawn) == pytest.approx(4, abs=0.3)
    assert {arm.draw_length(80, seed) for seed in range(50)} == {4}


@pytest.mark.parametrize(
    "x, y, line",
    [([1, 2, 3], [3, 5, 7], (1.0, 2.0)), ([1, 2, 3], [9, 8, 7], (8.0, 0.0)), ([2, 2], [3, 5], (4.0, 0.0))],
)
def test_line_has_no_negative_start_or_slope(x, y, line):
    assert replay.line_through(np.array(x, float), np.array(y, float)) == pytest.approx(line)
    start, slope = replay.line_through(np.array([1.0, 2.0]), np.array([0.5, 3.0]))
    assert start == 0
    assert slope == pytest.approx(6.5 / 5)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run benchmarks/replay.py in this process; return exit code, stdout and stderr."""

    def run_command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["replay.py", *map(str, words)])
        code = replay.main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


def test_the_command_prints_a_table_and_judges_by_the_goal(command, runs):
    code, out, err = command("--pipeline", runs[0], "--drained", runs[1])
    assert code == 0, err
    assert "its end, 0.7" in out


@pytest.mark.parametrize(
    "words, expected",
    [
        (lambda one, other: ["--pipeline", one], "give runs of both arms"),
        (lambda one, other: ["--pipeline", other, "--drained", one], "drain = false"),
        (lambda one, other: ["--pipeline", one.parent, "--drained", other], "is no run folder"),
        (lambda one, other: ["--pipeline", one, other, "--drained", other], "not of one arm"),
    ],
)
def test_runs_that_cannot_be_replayed_are_refused(command, runs, words, expected):
    code, _, err = command(*words(*runs))
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_two_runs_of_the_tiny_model_are_replayed(tmp_path):
    folders = {}
    for name, changes in {"pipeline": PIPELINE, "drained": DRAINED}.items():
        settings = {
            "budget.steps": 24,
            "evaluation.every": 2,
            "evaluation.num_prompts": 40,
            "pipeline.groups_per_batch": 4,
            "pipeline.completions_per_group": 4,
            "rollout.slots": 16,
            "checkpoint.every": 5,
            "checkpoint.keep": 9,
            **{f"pipeline.{key}": str(value).lower() for key, value in changes.items()},
        }
        folders[name] = tmp_path / name
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        train = [sys.executable, "-m", "scalerl.cli", "train", "tiny-cpu", "--no-plots", "--out", str(folders[name])]
        subprocess.run([*train, *words], check=True, capture_output=True)
    arms = {name: replay_runs.read_arm([folder]) for name, folder in folders.items()}
    costs = replay.costs_of(arms["drained"])
    assert costs.poll_s > 0
    for arm in arms.values():
        assert arm.lengths
        line = replay.timeline(arm, costs)
        # The model of time is made from the drained run: there it must give back what was measured.
        if arm.regime.drain:
            assert line.replayed_shared[-1] == pytest.approx(line.measured[-1], rel=0.2)
        assert 0.5 * line.apart[-1] < line.replayed_shared[-1] * 1.01
