"""The forecast while a run trains."""

from typing import Any

import numpy as np
import pytest

from scalerl.cli.train import forecast_words
from scalerl.curves import At, Verdict, fit
from scalerl.report.outlook import FIRST_FIT, LiveForecast
from scalerl.report.results import CurveResult


def evaluations(num: int, start: float | None = 0.2, ceiling: float = 0.8) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = [{"gpu_hours": 0.0, "reward": start, "num_samples": 1000}]
    for place in range(1, num + 1):
        reward = 0.2 + (ceiling - 0.2) / (1 + (3.0 / place) ** 1.5)
        rows.append({"gpu_hours": float(place), "reward": reward, "num_samples": 1000})
    return rows


def outlook(rows: list[dict[str, float | None]], end: float | None = None) -> CurveResult | None:
    return LiveForecast.from_rows(rows, end).outlook()


def at_end_of(result: CurveResult | None) -> At:
    assert result is not None
    assert result.at_end is not None
    return result.at_end


def test_the_forecast_is_the_curve_at_the_end_of_the_budget():
    at_end = at_end_of(outlook(evaluations(20), 40.0))
    assert at_end.compute == 40.0
    assert at_end.reward.low <= at_end.reward.value <= at_end.reward.high
    assert at_end.reward.value == pytest.approx(0.2 + 0.6 / (1 + (3 / 40) ** 1.5), abs=0.02)
    without_end = outlook(evaluations(FIRST_FIT))
    assert without_end is not None
    assert without_end.at_end is None
    assert outlook(evaluations(FIRST_FIT - 1), 100.0) is None


@pytest.mark.parametrize("num, verdict, words", [(6, Verdict.WIDE, "not known yet"), (60, Verdict.KNOWN, "0.")])
def test_far_end_is_forecast_whatever_is_known_of_the_ceiling(num: int, verdict: Verdict, words: str):
    result = outlook(evaluations(num), 100.0 * num)
    assert at_end_of(result).reward.low < 0.8 < at_end_of(result).reward.high
    assert result is not None
    assert result.verdict == verdict
    assert forecast_words(result).startswith(f"  ceiling {words}")


ODD: list[tuple[dict[str, Any], bool]] = [
    *((row, False) for row in ({"reward": "high"}, {"reward": float("nan")}, {"gpu_hours": None}, {"gpu_hours": -1})),
    *((row, True) for row in ({"num_samples": None}, {"num_samples": "all"}, {"num_samples": 0}, {"reward": 1.5})),
]


@pytest.mark.parametrize(("odd", "counts"), ODD)
def test_rows_without_compute_and_reward_are_left_out(odd: dict[str, Any], counts: bool):
    rows = evaluations(FIRST_FIT, start=None)
    assert outlook(rows) is not None
    rows[3] |= odd
    assert (outlook(rows) is not None) == counts


def test_a_plain_loop_gets_the_fit_of_its_evaluations():
    forecast = LiveForecast(end_compute=500)
    compute, reward = np.arange(10, 210, 10.0), []
    forecast.add(0, 0.2)
    for place, steps in enumerate(compute):
        reward.append(0.2 + 0.5 / (1 + (40.0 / steps) ** 1.5) + 0.003 * (-1) ** place)
        forecast.add(steps, reward[-1])
    result = forecast.outlook()
    assert result is not None
    assert result.fit.params == fit(compute, reward, start=0.2, start_sd=None).params
    assert at_end_of(result).compute == 500


@pytest.mark.parametrize(("compute", "reward"), [(-1.0, 0.5), (float("nan"), 0.5), (1.0, float("inf"))])
def test_an_evaluation_must_be_finite(compute: float, reward: float):
    with pytest.raises(ValueError, match="finite"):
        LiveForecast().add(compute, reward)
