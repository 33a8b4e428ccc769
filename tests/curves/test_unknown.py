"""Runs that have not bent: a wider prior."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import compare, fit
from scalerl.curves.forecast import compute_for, reward_at
from scalerl.curves.forms import FORMS
from scalerl.curves.priors.prior import log_slope, share_coordinate, wide_prior
from scalerl.curves.stopping import stopping
from scalerl.curves.ways.unknown import BENT, has_bent


@pytest.mark.parametrize("form", [FORMS["sigmoid"], FORMS["exponential"]], ids=lambda form: form.name)
def test_multiple_undoes_the_shape(form):
    share = np.array([0.01, 0.3, 0.5, 0.9, 0.99])
    assert form.multiple is not None
    place = np.log(form.multiple(share, 1.3))
    logs = [np.log(1.3), 0.0][-len(form.shape_params) :]
    assert form.shape(place, *logs) == pytest.approx(share)


def test_wide_prior_gives_weight_to_every_ceiling():
    share = (np.arange(20_000) + 0.5) / 20_000
    density = np.exp(wide_prior(0.0).densities["share"].at(share_coordinate(share)) + log_slope(share))
    assert density.mean() == pytest.approx(1.0, abs=0.01)
    assert density[share > 0.9].sum() / density.sum() > 0.05


def test_known_ceilings_are_not_averaged():
    done = fit(*run(1, reach=4.0), start=0.4)
    assert done.verdict == "ok"
    assert not done.parts
    assert not done.unsure


def test_unknown_ceiling_is_forecast_under_the_wide_prior():
    done = fit(*run(1, reach=0.5), start=0.4)
    assert done.verdict == "ceiling not identifiable yet"
    assert done.unsure
    (part,) = done.parts
    assert part.weight == 1.0
    assert {len(values) for values in done.param_draws.values()} == {2048}
    assert done.draws is not None
    own = np.quantile(done.draws.params["ceiling"], (0.05, 0.95))
    low, high = done.interval("ceiling")
    assert high - low > own[1] - own[0]


def test_line_within_and_beyond_the_data_is_one_curve():
    done = fit(*run(1, reach=0.5), start=0.4)
    assert done.within is done
    assert fit(*run(1, reach=4.0), start=0.4).within.parts == ()


def test_interval_before_the_bend_reaches_a_large_gain():
    compute = np.linspace(0.02, 0.5, 20)
    reward = sigmoid(compute, 0.95, 2.0, start=0.1) + 0.005 * np.random.default_rng(3).standard_normal(20)
    done = fit(compute, reward, start=0.1)
    low, high = done.interval("ceiling")
    assert low < 0.95 < high
    (far,) = reward_at(done, [5.0])
    assert far.reward.low < sigmoid(np.array([5.0]), 0.95, 2.0, start=0.1)[0] < far.reward.high


def test_compute_for_a_reward_agrees_with_the_curve():
    done = fit(*run(1, reach=0.8), start=0.4)
    assert done.unsure
    reward = float(done.predict(1.2))
    (reach,) = compute_for(done, [reward])
    assert reach.compute is not None
    assert reach.compute.value == pytest.approx(1.2, rel=0.05)
    assert reach.compute.low < 1.2 < reach.compute.high
    advice = stopping(done)
    assert advice is not None
    most = advice.most_of_gain
    assert most is not None
    assert most.low < most.value < most.high


def test_unknown_ceilings_are_not_separable():
    fits = {"short": fit(*run(1, reach=0.5), start=0.4), "long": fit(*run(2, reach=4.0), start=0.4)}
    assert compare(fits).pairs[0].winner is None


def test_a_run_has_bent_with_nine_tenths_of_its_draws():
    assert has_bent(np.full(100, 0.5), 1.0)
    assert not has_bent(np.concatenate([np.full(85, 0.5), np.full(15, 2.0)]), 1.0)
    assert 0.85 < BENT < 1
