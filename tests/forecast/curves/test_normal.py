"""The normal distribution and the Student-t against scipy.special, and against their own inverses."""

import numpy as np
from scipy import special

from scalerl.forecast.curves.normal import (
    log_normal_between,
    log_normal_cdf,
    normal_cdf,
    normal_quantile,
    student_quantile,
)

PLACES = np.concatenate([np.linspace(-37.0, 37.0, 20_001), np.linspace(-1e-3, 1e-3, 101)])


def test_cdf_is_that_of_scipy():
    np.testing.assert_allclose(normal_cdf(PLACES), special.ndtr(PLACES), rtol=1e-12)
    assert normal_cdf([-np.inf, 0.0, np.inf]).tolist() == [0.0, normal_cdf(0.0), 1.0]


def test_log_cdf_is_that_of_scipy():
    places = np.concatenate([PLACES[PLACES < 30.0], -np.geomspace(37.0, 1e8, 1001)])
    np.testing.assert_allclose(log_normal_cdf(places), special.log_ndtr(places), rtol=1e-12, atol=1e-18)


def test_log_between_is_that_of_two_cdfs():
    low, high = (each.ravel() for each in np.meshgrid(np.linspace(-40.0, 5.0, 181), np.linspace(5.5, 40.0, 139)))
    expected = np.log(special.ndtr(high) - special.ndtr(low))
    np.testing.assert_allclose(log_normal_between(low, high), expected, rtol=1e-9, atol=1e-15)
    assert log_normal_between(np.array([50.0]), np.array([51.0])).item() == np.log(1e-300)


def test_quantile_is_that_of_scipy():
    tails = np.geomspace(1e-300, 0.5, 5001)
    np.testing.assert_allclose(normal_quantile(tails), special.ndtri(tails), rtol=1e-12, atol=1e-15)
    upper = 1.0 - tails[tails > 1e-15]
    np.testing.assert_allclose(normal_quantile(upper), special.ndtri(upper), rtol=1e-12, atol=1e-15)


def test_student_quantile_is_that_of_scipy():
    tails = np.geomspace(1e-13, 0.5, 5001)
    np.testing.assert_allclose(student_quantile(tails), special.stdtrit(3.0, tails), rtol=1e-11, atol=1e-15)


def test_student_quantile_is_odd_and_inverts_its_tail():
    tails = np.linspace(0.01, 0.49, 49)
    value = student_quantile(tails)
    np.testing.assert_allclose(student_quantile(1.0 - tails), -value, rtol=1e-13)
    turn = value / np.sqrt(3.0)
    below = 0.5 + (turn / (1.0 + turn**2) + np.arctan(turn)) / np.pi
    np.testing.assert_allclose(below, tails, rtol=1e-12)
