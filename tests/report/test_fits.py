"""What the page says about the curve of a run."""

import numpy as np
from simulate import sigmoid

from scalerl.curves import Verdict
from scalerl.logs.series import Series
from scalerl.report.board.looks import fit_curve


def test_a_run_past_its_peak_is_falling_and_not_promised_more():
    compute = np.linspace(0.25, 20, 80)
    reward = sigmoid(np.minimum(compute, 12.0)) - 0.04 * np.maximum(compute - 12.0, 0.0) / 8.0
    reward = reward + 0.003 * np.random.default_rng(0).standard_normal(80)
    nothing = np.empty(0)
    series = Series(
        name="main", compute=compute, reward=reward, run=None, num_samples=None, start=0.4, start_sd=0.0,
        holdout_compute=nothing, holdout_reward=nothing, evaluation=None, x_label="gpu_hours", y_label="reward",
        problem=None,
    )  # fmt: skip
    row = fit_curve(series, 30.0, "GPU-hours")
    assert (row["verdict"], row["is_ok"], row["advice"]) == (Verdict.FALLEN, False, "falling")
    assert 0.02 < row["fall"].drop < 0.06
    assert 8.0 < row["fall"].compute < 14.0
    assert row["doubling"] is None
    assert "GPU-hours" in row["text"]
    assert row["end"]["value"] < 0.59
