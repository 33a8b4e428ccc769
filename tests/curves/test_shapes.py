"""Runs whose ceiling is unknown: shapes beside the sigmoid, and a wider prior before the bend."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import compare, fit
from scalerl.curves.forecast import compute_for, reward_at
from scalerl.curves.forms import FORMS, SKEW, SKEWED
from scalerl.curves.grid import MIXED
from scalerl.curves.points import Known, make_points
from scalerl.curves.priors.prior import log_slope, share_coordinate, wide_prior
from scalerl.curves.stopping import stopping
from scalerl.curves.ways.shapes import BENT, SHAPES, has_bent
from scalerl.curves.ways.solving import pose


@pytest.mark.parametrize("form", SKEWED, ids=lambda form: form.name)
def test_skewed_sigmoids_share_midpoint_and_slope(form):
    exponent, midpoint, step = 1.7, 0.3, 1e-4
    share = form.shape(np.array([midpoint - step, midpoint, midpoint + step]), np.log(exponent), midpoint)
    odds = np.log(share / (1 - share))
    assert share[1] == pytest.approx(0.5)
    assert (odds[2] - odds[0]) / (2 * step) == pytest.approx(exponent, rel=1e-5)


def test_skewed_exponents_differ_by_the_stated_factor():
    step = 1e-3
    for form, ratio in zip(SKEWED, (SKEW, 1 / SKEW), strict=True):
        early = np.log(form.shape(np.array([-12.0, -12.0 + step]), 0.0, 0.0))
        late = np.log(1 - form.shape(np.array([6.0, 6.0 + step]), 0.0, 0.0))
        assert np.diff(early)[0] / -np.diff(late)[0] == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("form", [FORMS["sigmoid"], FORMS["exponential"], *SKEWED], ids=lambda form: form.name)
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


def test_unknown_ceiling_is_averaged_over_shapes():
    done = fit(*run(1, reach=0.5), start=0.4)
    assert done.verdict == "ceiling not identifiable yet"
    assert done.unsure
    assert [part.choice.form.name for part in done.parts] == ["sigmoid", "early steep", "late steep"]
    assert sum(part.weight for part in done.parts) == pytest.approx(1.0)
    assert {len(values) for values in done.param_draws.values()} == {2048}
    assert done.draws is not None
    own = np.quantile(done.draws.params["ceiling"], (0.05, 0.95))
    low, high = done.interval("ceiling")
    assert high - low > own[1] - own[0]


def test_evidence_finds_the_shape_of_a_run():
    compute = np.linspace(0.05, 4, 80)
    for form in SHAPES:
        reward = 0.1 + 0.7 * form.shape(np.log(compute), np.log(1.2), 0.0)
        points = make_points(compute, reward + 0.004 * np.random.default_rng(0).standard_normal(80))
        known = Known(start=0.1, log_shape={})
        evidence = [pose(points, each, known, 0.0).draws(None, None, MIXED).log_evidence for each in SHAPES]
        assert SHAPES[int(np.argmax(evidence))] is form


def test_interval_before_the_bend_reaches_a_large_gain():
    compute = np.linspace(0.02, 0.5, 20)
    reward = sigmoid(compute, 0.95, 2.0, start=0.1) + 0.005 * np.random.default_rng(3).standard_normal(20)
    done = fit(compute, reward, start=0.1)
    low, high = done.interval("ceiling")
    assert low < 0.95 < high
    (far,) = reward_at(done, [5.0])
    assert far.reward.low < sigmoid(np.array([5.0]), 0.95, 2.0, start=0.1)[0] < far.reward.high


def test_compute_for_a_reward_agrees_with_the_averaged_curve():
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
