"""Policies: who gets the next stage, what is written down, and that a kill changes nothing."""

from pathlib import Path

import pytest
from small_study import plan_of, run, states

from scalerl.errors import StudyError
from scalerl.runfolder import store
from scalerl.study.policy import ArmProgress, Stage, forecast, halving
from scalerl.study.runner import Runner

STUDY = """
base = "tiny-cpu"
[budget]
steps = 48
policy = "{policy}"
stages = {stages}
share = 0.5
"""
ARMS = ("[arms.good]", '[arms.bad]\nloss = "dapo"', '[arms.middle]\nloss = "gspo"', '[arms.poor]\nloss = "tis"')
CURVES = {"good": 0.62, "bad": 0.45, "middle": 0.52, "poor": 0.50}


def run_policy(tmp_path: Path, policy: str, *, num: int = 4, **settings):
    """No run measures tokens, so the table of a study shows no forecasts, which would be fitted beside the policy's."""
    text = "\n".join([STUDY.format(policy=policy, stages=2 * num), *ARMS[:num]])
    behaviour = CURVES | settings.pop("behaviour", {})
    runner, log = run(tmp_path, behaviour, text=text, axis="tokens", is_controlled=True, **settings)
    decisions = store.read_decisions(tmp_path / "out")
    assert log.decisions == decisions[len(decisions) - len(log.decisions) :], "each new one is announced"
    return runner, decisions


def spent(runner: Runner) -> dict[str, int]:
    return {status.run.arm: store.read_metrics(status.folder)[-1]["step"] for status in runner.statuses}


def test_forecast_stops_the_worse_arms_early(tmp_path):
    runner, decisions = run_policy(tmp_path, "forecast")
    steps = spent(runner)
    assert [row["kind"] for row in decisions[:4]] == ["first_stage"] * 4
    assert decisions[-1]["arm"] is None
    assert decisions[-1]["known"]["favourite"] == "good"
    assert steps["bad"] <= 24 < steps["good"]
    assert states(runner)["bad-seed0"] == "paused"
    assert sum(steps.values()) <= 0.5 * 4 * 48
    assert [row["decision"] for row in decisions] == list(range(1, len(decisions) + 1))
    known = decisions[-1]["known"]["arms"]
    assert sum(arm["p_best"] for arm in known) == pytest.approx(1.0, abs=1e-6)


def test_halving_keeps_the_better_half_of_each_round(tmp_path):
    runner, decisions = run_policy(tmp_path, "halving")
    assert decisions[-1]["known"]["favourite"] == "good"
    steps = spent(runner)
    assert steps["good"] > steps["bad"]
    assert sum(steps.values()) <= 0.5 * 4 * 48 + 4
    # Two rounds of equal compute: all four arms, then the better two.
    assert len({row["until"] for row in decisions if row["arm"]}) == 2


def test_kill_in_a_stage_is_resumed_without_a_new_decision(tmp_path):
    run_policy(tmp_path, "forecast", num=2, behaviour={"good-seed0": "die once"})
    decisions = store.read_decisions(tmp_path / "out")
    runner, after = run_policy(tmp_path, "forecast", num=2, resume=True)
    assert after[: len(decisions) - 1] == decisions[: len(decisions) - 1]
    assert after[-1]["known"]["favourite"] is not None
    assert "failed" not in states(runner).values()


def test_several_jobs_decide_while_others_run(tmp_path):
    runner, decisions = run_policy(tmp_path, "forecast", num=2, jobs=2)
    assert decisions[-1]["known"]["favourite"] == "good"
    assert sum(spent(runner).values()) <= 0.5 * 2 * 48 + 2 * 12


def measured(name: str, share: float, reward: float = 0.5, **more) -> ArmProgress:
    return ArmProgress(name=name, share=share, num_runs=1, points=((share, reward, 0, None),), **more)


def test_halving_waits_for_running_arms():
    arms = [measured("a", 0.2), measured("b", 0.1), measured("c", 0.2), measured("d", 0.2)]
    assert halving(arms, 8, 0.4, frozenset({"b"})) is None
    stage = halving(arms, 8, 0.4, frozenset())
    assert stage is not None
    assert stage.arm == "b"


def test_every_arm_gets_a_first_stage():
    arms = [measured("a", 0.2), ArmProgress(name="b", share=0.0, num_runs=1)]
    assert forecast(arms, 8, 0.4, frozenset()) == Stage(kind="first_stage", arm="b", until=0.125)


def test_unknown_policy_names_the_choices(tmp_path):
    with pytest.raises(StudyError, match=r'budget\.policy is .* must be "uniform", "halving" or "forecast"'):
        plan_of(tmp_path, STUDY.format(policy="greedy", stages=8) + ARMS[1])
