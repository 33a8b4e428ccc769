import numpy as np
import pytest

from scalerl.curves.forms import FORMS

COMPUTE = np.array([10.0, 250.0, 2542.0, 1e5])


def test_sigmoid_is_equation_one_of_the_paper():
    ceiling, exponent, midpoint, start = 0.61, 1.92, 2542.0, 0.399
    params = {"ceiling": ceiling, "exponent": exponent, "midpoint": midpoint, "start": start}
    by_hand = start + (ceiling - start) / (1 + (midpoint / COMPUTE) ** exponent)
    np.testing.assert_allclose(FORMS["sigmoid"].curve(COMPUTE, params, scale=777.0), by_hand, rtol=1e-12)


def test_sigmoid_at_midpoint_and_at_zero_compute():
    params = {"ceiling": 0.6, "exponent": 3.0, "midpoint": 50.0, "start": 0.2}
    assert FORMS["sigmoid"].curve(np.array([50.0]), params, scale=1.0)[0] == pytest.approx(0.4)
    assert FORMS["sigmoid"].curve(np.array([0.0]), params, scale=1.0)[0] == pytest.approx(0.2)


@pytest.mark.parametrize("name", FORMS)
def test_place_is_the_inverse_of_the_shape(name: str):
    form, scale = FORMS[name], 777.0
    params = {"exponent": np.array([0.4, 1.9]), "midpoint": np.array([50.0, 2542.0])}
    units = {param.name: scale if param.scales_with_compute else 1.0 for param in form.shape_params}
    logs = [np.log(params[param] / unit) for param, unit in units.items()]
    for value in (0.05, 0.5, 0.9):
        relative = form.place(value, params) / max(units.values())
        np.testing.assert_allclose(form.shape(np.log(relative), *logs), value, rtol=1e-12)


def test_steep_sigmoid_far_below_its_midpoint_is_at_its_start():
    # (C_mid / C)^B is beyond a float's range; a warning would fail this test.
    params = {"ceiling": 0.6, "exponent": 20.0, "midpoint": 1e3, "start": 0.2}
    shape = FORMS["sigmoid"].shape(np.log(np.array([1e-20, 1e-9])), np.log(20.0), np.log(1e3))
    assert shape.tolist() == [0.0, pytest.approx(1e-240)]
    assert FORMS["sigmoid"].curve(np.array([1e-20]), params, scale=1.0)[0] == 0.2


def test_sigmoid_tends_to_the_power_law():
    # paper 1.1: R ~ A - D / C^B with D = (A - R0) C_mid^B
    ceiling, exponent, midpoint, start = 0.61, 1.9, 100.0, 0.4
    compute = np.array([1e4, 1e5])
    sigmoid = {"ceiling": ceiling, "exponent": exponent, "midpoint": midpoint, "start": start}
    scale = 1e5
    power = {
        "ceiling": ceiling,
        "exponent": exponent,
        "shortfall": (ceiling - start) * midpoint**exponent / scale**exponent,
    }
    gap = FORMS["sigmoid"].curve(compute, sigmoid, scale) - FORMS["power"].curve(compute, power, scale)
    assert np.abs(gap).max() < 1e-5


def test_exponential_reaches_half_its_gain_at_the_midpoint():
    params = {"ceiling": 0.6, "midpoint": 50.0, "start": 0.2}
    curve = FORMS["exponential"].curve(np.array([50.0, 100.0, 1e9]), params, scale=3.0)
    np.testing.assert_allclose(curve, [0.4, 0.5, 0.6], atol=1e-12)


def test_log_linear_is_the_law_of_tan_et_al():
    # ln(1 - R) = E - k ln C
    k, scale, shortfall = 0.13, 1e20, 0.4
    params = {"ceiling": 1.0, "exponent": k, "shortfall": shortfall}
    error = 1 - FORMS["log-linear"].curve(np.array([1e18, 1e19, 1e20]), params, scale)
    slopes = np.diff(np.log(error)) / np.diff(np.log([1e18, 1e19, 1e20]))
    np.testing.assert_allclose(slopes, -k, rtol=1e-9)
    assert error[-1] == pytest.approx(shortfall)


@pytest.mark.parametrize("name", FORMS)
def test_priors_of_every_form_lie_within_bounds(name: str):
    form = FORMS[name]
    assert form.params[0] == "ceiling"
    assert form.formula
    assert form.source
    for param in form.shape_params:
        assert param.low < param.prior_mean < param.high
        assert param.prior_sd > 0


def test_priors_hold_nine_tenths_where_documented():
    # 1.645 standard deviations on either side.
    def range_of(param):
        return np.exp([param.prior_mean - 1.645 * param.prior_sd, param.prior_mean + 1.645 * param.prior_sd])

    exponent, midpoint = FORMS["sigmoid"].shape_params
    np.testing.assert_allclose(range_of(exponent), [0.9, 4.6], rtol=0.05)
    np.testing.assert_allclose(range_of(midpoint), [1 / 5, 5], rtol=0.05)
