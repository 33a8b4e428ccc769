import numpy as np
import pytest

from scalerl.curves.noise import Noise, products
from scalerl.curves.points import make_points


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
