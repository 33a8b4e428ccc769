import numpy as np
import pytest

from scalerl.forecast.curves import fit
from scalerl.forecast.curves.forms import FORMS, exponential, power, sigmoid

COMPUTE = np.array([10.0, 250.0, 2542.0, 1e5])


def test_the_sigmoid_is_equation_one_of_the_paper():
    shape = sigmoid(np.log(COMPUTE), np.log(1.92), np.log(2542.0))
    np.testing.assert_allclose(shape, 1 / (1 + (2542.0 / COMPUTE) ** 1.92), rtol=1e-12)


def test_a_steep_sigmoid_far_below_its_midpoint_is_at_its_start():
    # (C_mid / C)^B is beyond a float's range; a warning would fail this test.
    shape = sigmoid(np.log(np.array([1e-20, 1e-9])), np.log(20.0), np.log(1e3))
    assert shape.tolist() == [0.0, pytest.approx(1e-240)]


def test_the_sigmoid_tends_to_the_power_law():
    # paper 1.1: R ~ A - D / C^B with D = (A - R0) C_mid^B
    compute, exponent, midpoint = np.array([1e4, 1e5]), np.log(1.9), np.log(100.0)
    left = 1 - sigmoid(np.log(compute), exponent, midpoint)
    by_power = (1 - power(np.log(compute), exponent, midpoint)) * 100.0**1.9
    np.testing.assert_allclose(left, by_power, rtol=1e-3)


def test_the_exponential_reaches_half_its_gain_at_the_midpoint():
    shape = exponential(np.log(np.array([50.0, 100.0, 1e9])), np.array(0.0), np.log(50.0))
    np.testing.assert_allclose(shape, [0.5, 0.75, 1.0], atol=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_every_shape_rises(name: str):
    shape = FORMS[name].shape(np.log(np.geomspace(0.01, 100, 50)), np.log(1.5), np.log(2.0))
    assert (np.diff(shape) >= 0).all()
    assert "ceiling" in FORMS[name].params


@pytest.mark.parametrize("exponent", [0.05, 0.3])
def test_a_slow_power_law_is_found(exponent: float):
    compute = np.geomspace(1e17, 1e19, 40)
    reward = 1 - 0.7 * (compute / 1e19) ** -exponent + 0.002 * np.random.default_rng(0).standard_normal(40)
    reward = reward[reward > 0]
    result = fit(compute[-len(reward) :], reward, form="log-linear")
    assert result.params["exponent"] == pytest.approx(exponent, rel=0.05)
    assert result.params["shortfall"] == pytest.approx(0.7, abs=0.005)
    assert result.predict([2e19])[0] == pytest.approx(1 - 0.7 * 2**-exponent, abs=0.01)
