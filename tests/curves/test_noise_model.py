import numpy as np
import pytest

from scalerl.curves import fit
from scalerl.curves.noise import Noise, products
from scalerl.curves.points import make_points
from scalerl.curves.residuals.drift import SlowNoise, slow_products


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize(("rho", "spread"), [(0.0, 0.0), (0.6, 0.0), (0.0, 2.0), (0.8, 0.5)])
def test_sums_are_those_of_the_covariance_written_out(rho: float, spread: float, rising: bool):
    rng = np.random.default_rng(0)
    lengths = (5, 1, 7)
    run = np.repeat(np.arange(3), lengths)
    points = make_points(
        rng.uniform(1, 9, 13), rng.uniform(0.2, 0.8, 13), run=run, num_samples=rng.integers(20, 400, 13)
    )
    shapes = rng.uniform(0, 1, (2, 13))
    node = Noise(autocorrelation=np.array([rho]), run_spread=np.array([spread]), log_weight=np.zeros(1))
    sums, log_det = products(shapes, points).sums(node[:, None], rising)

    lags = np.abs(np.subtract.outer(np.arange(13), np.arange(13)))
    same_run = points.run[:, None] == points.run
    for index, shape in enumerate(shapes):
        moved = shape if rising else np.ones(13)
        covariance = same_run * (
            np.outer(points.noise, points.noise) * np.where(lags == 0, 1.0, rho**lags)
            + spread**2 * np.outer(moved, moved)
        )
        inverse, sides = np.linalg.inv(covariance), {"h": shape, "1": np.ones(13), "y": points.reward}
        for name, (left, right) in {"hh": "hh", "h1": "h1", "hy": "hy", "one": "11", "y1": "1y", "yy": "yy"}.items():
            assert getattr(sums, name)[index] == pytest.approx(sides[left] @ inverse @ sides[right])
        expected = -0.5 * np.linalg.slogdet(covariance)[1] + np.log(points.noise).sum()
        assert log_det[index] == pytest.approx(expected)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_slow_sums_are_those_of_the_covariance_written_out(spread: float):
    """The noise of each evaluation has a size of its own; the drift has the same size everywhere."""
    rng = np.random.default_rng(1)
    run = np.repeat(np.arange(3), (5, 1, 7))
    points = make_points(
        rng.uniform(1, 9, 13), rng.uniform(0.2, 0.8, 13), run=run, num_samples=rng.integers(20, 400, 13)
    )
    shapes = rng.uniform(0, 1, (2, 13))
    slow = SlowNoise(decay=np.array([0.7, 0.95]), share=np.array([0.3, 0.8]))
    node = Noise(autocorrelation=slow.decay, run_spread=np.full(2, spread), log_weight=np.zeros(2))
    sums, log_det = slow_products(shapes, points, slow).sums(node[:, None], rising=True)

    lags = np.abs(np.subtract.outer(np.arange(13), np.arange(13)))
    same_run = points.run[:, None] == points.run
    for place, (decay, share) in enumerate(zip(slow.decay, slow.share, strict=True)):
        noise = share * decay**lags + (1 - share) * np.diag(points.noise**2)
        for index, shape in enumerate(shapes):
            covariance = same_run * (noise + spread**2 * np.outer(shape, shape))
            inverse, at = np.linalg.inv(covariance), place * len(shapes) + index
            assert sums.hh[at] == pytest.approx(shape @ inverse @ shape)
            assert sums.hy[at] == pytest.approx(shape @ inverse @ points.reward)
            assert log_det[at] == pytest.approx(-0.5 * np.linalg.slogdet(covariance)[1])


@pytest.mark.parametrize("seed", [7, 19, 28])
def test_a_curve_with_a_drift_passes_through_late_points(seed: int):
    """Binomial noise is small near a reward of 1, and the drift is not: the curve lay above nearly all late points."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(0.1, 8, 80)
    drift = np.empty(80)
    drift[0] = rng.normal()
    for index in range(1, 80):
        drift[index] = 0.9 * drift[index - 1] + np.sqrt(1 - 0.9**2) * rng.normal()
    reward = rng.binomial(3072, 0.2 + 0.75 / (1 + compute**-1.5) + 0.008 * drift) / 3072
    done = fit(compute, reward, start=0.2, num_samples=3072)
    above = np.mean((done.predict(compute) > reward)[-25:])
    assert 0.25 < above < 0.75
