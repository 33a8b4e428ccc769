"""A cell far outside all others is left out, and said."""

from pathlib import Path

import numpy as np
import pytest

from scalerl.forecast.curves import State
from scalerl.forecast.logs import read
from scalerl.forecast.logs.outliers import far_outside
from scalerl.forecast.report.analyse import analyse_fit
from scalerl.forecast.report.options import FitOptions


def test_one_cell_of_per_cent_among_shares_is_left_out(tmp_path: Path):
    rewards = [*np.linspace(0.30, 0.52, 11), 53.2, *np.linspace(0.53, 0.6, 8)]
    rows = [f"{10 * (place + 1)},{reward:.4f}" for place, reward in enumerate(rewards)]
    (tmp_path / "log.csv").write_text("\n".join(["hours,pass_rate", *rows]))
    (series,) = read([tmp_path / "log.csv"])
    assert (series.y_scale, len(series.reward)) == ("1", 19)
    (far,) = [fact for fact in series.facts if fact.kind == "far_cells"]
    assert (far.values["num"], far.values["value"]) == (1, 53.2)
    assert analyse_fit([series], FitOptions()).curves[0].state != State.FLAT


@pytest.mark.parametrize("values", [
    np.linspace(0, 1, 40), np.array([0.1] * 20 + [0.9]), np.geomspace(1, 1e6, 30),
    np.array([0.2, 0.3, 53.2]), np.array([*np.linspace(0, 1, 20), *np.linspace(60, 70, 5)]),
])  # fmt: skip
def test_usual_values_stay(values: np.ndarray):
    assert not far_outside(values).any()


def test_gaps_are_not_far():
    values = np.array([np.nan, *np.linspace(0.2, 0.4, 30), np.inf, -40.0])
    assert np.flatnonzero(far_outside(values)).tolist() == [32]


STEPS = np.arange(40)
JUMP = np.where(STEPS == 0, -500.0, 0.3 + STEPS / 200)


@pytest.mark.parametrize("rewards", [JUMP, JUMP[::-1], np.tile(JUMP, 2)])
def test_a_run_may_begin_or_end_far_from_all_others(tmp_path: Path, rewards: np.ndarray):
    rows = [f"{step % 40},{reward}" for step, reward in enumerate(rewards)]
    (tmp_path / "log.csv").write_text("\n".join(["step,reward", *rows]))
    for series in read([tmp_path / "log.csv"]):
        assert "far_cells" not in [fact.kind for fact in series.facts]
        assert -500 in [series.start, *series.reward.tolist()]


def test_each_run_of_a_table_may_begin_far_below(tmp_path: Path):
    rows = [f"{run},{step},{reward}" for run in "ab" for step, reward in zip(STEPS, JUMP, strict=True)]
    rows[20] = "a,20,-500"
    (tmp_path / "log.csv").write_text("\n".join(["run,step,reward", *rows]))
    first, second = read([tmp_path / "log.csv"])
    assert (first.start, second.start) == (-500, -500)
    assert (len(first.reward), len(second.reward)) == (38, 39)
