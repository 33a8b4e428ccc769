"""The forecast while a run trains, and its alarms."""

import pytest

from scalerl.analysis.outlook import ALARM_STEPS, FIRST_FIT, alarms, outlook
from scalerl.cli.train import forecast_words
from scalerl.curves.forecast import FAR


def evaluations(num: int, start: float | None = 0.2, ceiling: float = 0.8) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = [{"gpu_hours": 0.0, "reward": start, "num_samples": 1000}]
    for place in range(1, num + 1):
        reward = 0.2 + (ceiling - 0.2) / (1 + (3.0 / place) ** 1.5)
        rows.append({"gpu_hours": float(place), "reward": reward, "num_samples": 1000})
    return rows


def test_the_curve_is_fitted_from_the_fourth_evaluation_after_the_start():
    assert outlook(evaluations(FIRST_FIT - 1), 100.0) is None
    assert outlook(evaluations(FIRST_FIT), 100.0) is not None


def test_the_forecast_is_that_of_the_curve_at_the_end_of_the_budget():
    found = outlook(evaluations(20), 40.0)
    assert found is not None
    assert found.at_budget is not None
    low, high = found.fit.interval("ceiling")
    assert low < 0.8 < high
    compute, reward, low, high = found.at_budget
    assert compute == 40.0
    assert low <= reward <= high
    assert reward == pytest.approx(0.2 + 0.6 / (1 + (3 / 40) ** 1.5), abs=0.02)
    without_end = outlook(evaluations(20), None)
    assert without_end is not None
    assert without_end.at_budget is None


def test_of_a_far_end_nothing_is_said_before_the_ceiling_is_known():
    early = evaluations(5)
    for end, said in ((FAR * 5, True), (FAR * 5 + 1, False)):
        found = outlook(early, end)
        assert found is not None
        assert found.fit.verdict == "ceiling not identifiable yet"
        assert (found.at_budget is not None) == said
        assert forecast_words(found).startswith("  ceiling not known yet")
    known = outlook(evaluations(40), 40.0 * FAR * 10)
    assert known is not None
    assert known.fit.verdict == "ok"
    assert known.at_budget is not None
    assert forecast_words(known).startswith("  ceiling 0.8")


def test_evaluations_without_a_verdict_are_left_out():
    rows = evaluations(FIRST_FIT, start=None)
    assert outlook(rows, None) is not None
    rows[-1]["reward"] = None
    assert outlook(rows, None) is None


def steps(**values: float) -> list[dict[str, float]]:
    calm = {"rollout/truncated_frac": 0.0, "loss/kl": 0.001, "batch/no_verdict_frac": 0.01}
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return [calm] * 100 + [calm | named] * ALARM_STEPS


def test_alarms_speak_of_the_last_steps_alone():
    assert alarms(steps(), {}) == []
    (truncated,) = alarms(steps(rollout__truncated_frac=0.12), {})
    assert truncated.startswith("12% of completions are truncated")
    (mismatch,) = alarms(steps(loss__kl=0.5), {})
    assert "KL of 0.5" in mismatch
    (ungraded,) = alarms(steps(batch__no_verdict_frac=0.3), {})
    assert ungraded.startswith("the grader has no verdict on 30% of completions")
    assert alarms(steps(loss__kl=0.5) + steps(), {}) == []
    # Too few to tell a trend from noise.
    assert alarms(steps(loss__kl=0.5)[-4:], {}) == []


def test_a_run_that_falls_from_its_own_curve_is_an_alarm():
    rows = evaluations(20)
    for row in rows[-5:]:
        row["reward"] = 0.3
    found = {"main": outlook(evaluations(20), None), "hard": outlook(rows, None), "new": None}
    assert alarms([], found) == ["the run falls away from its own curve on hard"]
