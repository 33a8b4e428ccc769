"""When to stop, and means of noisy rewards."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import bin_rewards, fit, stopping, stopping_text


def test_most_of_the_gain_is_where_the_curve_says():
    compute, reward = run(0, reach=12.0, num=60)
    done = fit(compute, reward, start=0.4)
    when = stopping(done)
    assert when is not None
    assert when.most_of_gain is not None
    true = 19 ** (1 / 1.9)
    assert when.most_of_gain.low <= true <= when.most_of_gain.high
    assert when.reached == (when.most_of_gain.value <= 12.0)
    assert "95 % of the gain was reached" in stopping_text(when)


def test_no_gain_is_measured_on_a_plateau():
    compute = np.linspace(0.2, 40, 100)
    reward = sigmoid(compute, exponent=3.0) + 0.004 * np.random.default_rng(1).standard_normal(100)
    when = stopping(fit(compute, reward, start=0.4))
    assert when is not None
    assert when.no_gain_since is not None
    assert when.no_gain_since < 15
    assert when.num_without_gain == np.sum(compute >= when.no_gain_since * (1 - 1e-9))


def test_a_rising_run_gains_up_to_its_end():
    compute, reward = run(2, reach=1.0, num=60)
    when = stopping(fit(compute, reward, start=0.4))
    assert when is not None
    assert when.num_without_gain < 20
    assert not when.reached


def test_the_best_evaluation_is_mostly_noise():
    leads = 0
    for seed in range(20):
        when = stopping(fit(*run(seed, reach=6.0), start=0.4, intervals=False))
        assert when is not None
        leads += when.best.beyond_noise
    assert leads <= 3


def test_an_outlier_is_better_than_its_neighbours():
    compute, reward = run(3, reach=6.0)
    reward[30] += 0.05
    when = stopping(fit(compute, reward, start=0.4, intervals=False))
    assert when is not None
    assert when.best.compute == compute[30]
    assert when.best.beyond_noise


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_errors_of_bins_hold_the_true_means(rho: float):
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(40):
        noise = rng.standard_normal(600)
        for index in range(1, 600):
            noise[index] = rho * noise[index - 1] + np.sqrt(1 - rho**2) * noise[index]
        bins = bin_rewards(np.arange(1, 601), 0.4 + 0.1 * noise, 20)
        inside.append(np.abs(bins.reward - 0.4) < 1.645 * bins.error)
    assert 0.8 < np.mean(inside) < 0.97


def test_bins_are_means_in_order_of_compute():
    bins = bin_rewards([4, 1, 3, 2], [0.4, 0.1, 0.3, 0.2], 2)
    assert bins.compute.tolist() == [1.5, 3.5]
    assert bins.reward == pytest.approx([0.15, 0.35])
    assert bins.count.tolist() == [2, 2]
    many = bin_rewards(np.arange(1, 4401), np.zeros(4400))
    assert 60 <= len(many.reward) <= 75
    assert many.count[0] < many.count[-1] / 10
    with pytest.raises(ValueError, match="bins must be 1 or more"):
        bin_rewards([1, 2], [0, 1], 0)
