"""The forecast while a run trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl.callbacks.live_forecast import FIRST_FIT, LiveForecast, outlooks_of
from scalerl.cli.train import forecast_words
from scalerl.errors import InputError
from scalerl.forecast.curves import At, State, fit
from scalerl.forecast.logs import read
from scalerl.forecast.report.analyse import analyse_fit, with_end
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import CurveResult
from scalerl.runfolder import store


def evaluations(num: int, start: float | None = 0.2, ceiling: float = 0.8, name: str = "main") -> list[dict[str, Any]]:
    rows = []
    for place in range(num + 1):
        reward = 0.2 + (ceiling - 0.2) / (1 + (3.0 / place) ** 1.5) if place else start
        spent = {"step": place, "gpu_hours": float(place), "flops": 1e12 * place, "tokens": 100 * place}
        rows.append({"set": name, "attempt": 1, **spent, "reward": reward, "num_samples": 1000})
    return rows


def outlook(rows: list[dict[str, Any]], end: float | None = None) -> CurveResult | None:
    curve = outlooks_of(rows, "cuda").get("main")
    return None if curve is None else with_end(curve, end)


def evaluated(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Make the run folder with these evaluations, and no others."""
    store.write_json(folder / store.RECIPE, {})
    (folder / store.EVALS).unlink(missing_ok=True)
    for row in rows:
        store.append_row(folder / store.EVALS, row)
    return folder


def at_end_of(result: CurveResult | None) -> At:
    assert result is not None
    assert result.at_end is not None
    return result.at_end


def test_live_forecast_equals_fit_of_the_folder(tmp_path: Path):
    noise = np.random.default_rng(0).normal(0, 0.01, 30)
    rows = [
        row for pair in zip(evaluations(14), evaluations(14, ceiling=0.6, name="other"), strict=True) for row in pair
    ]
    rows = [row | {"reward": row["reward"] + float(off)} for row, off in zip(rows, noise, strict=True)]
    evaluated(tmp_path, rows)
    offline = {curve.series.evaluation_set: curve for curve in analyse_fit(read([tmp_path]), FitOptions()).curves}
    live = outlooks_of(rows, "cuda")
    assert live.keys() == offline.keys() == {"main", "other"}
    for name, curve in live.items():
        assert curve.fit.params == offline[name].fit.params
        assert curve.decision == offline[name].decision
        assert curve.axis == offline[name].axis


def test_forecast_is_the_curve_at_the_end_of_the_budget(tmp_path: Path):
    at_end = at_end_of(outlook(evaluations(20), 40.0))
    assert at_end.compute == 40.0
    assert at_end.reward.low <= at_end.reward.value <= at_end.reward.high
    assert at_end.reward.value == pytest.approx(0.2 + 0.6 / (1 + (3 / 40) ** 1.5), abs=0.02)
    without_end = outlook(evaluations(FIRST_FIT))
    assert without_end is not None
    assert without_end.at_end is None
    assert outlook(evaluations(FIRST_FIT - 1), 100.0) is None


def test_terminal_line_has_state_and_numbers(tmp_path: Path):
    result = outlook(evaluations(20), 40.0)
    assert result is not None
    assert result.decision is not None
    assert result.decision.state in (State.RISING, State.LEVELLING_OFF)
    words = forecast_words(result)
    assert result.decision.state in words
    assert f"{at_end_of(result).reward.value:.3f}" in words
    assert forecast_words(None) == ""


ODD: list[tuple[dict[str, Any], bool]] = [
    *((row, False) for row in ({"reward": "high"}, {"reward": float("nan")})),
    *((row, True) for row in ({"num_samples": None}, {"num_samples": "all"}, {"num_samples": 0})),
]


@pytest.mark.parametrize(("odd", "counts"), ODD)
def test_rows_without_compute_and_reward_are_left_out(tmp_path: Path, odd: dict[str, Any], counts: bool):
    rows = evaluations(FIRST_FIT, start=None)
    assert outlook(rows) is not None
    rows[3] |= odd
    assert (outlook(rows) is not None) == counts


def test_plain_loop_gets_the_fit_of_its_evaluations():
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
def test_evaluation_must_be_finite(compute: float, reward: float):
    with pytest.raises(InputError):
        LiveForecast().add(compute, reward)
