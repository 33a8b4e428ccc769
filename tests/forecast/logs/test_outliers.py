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
