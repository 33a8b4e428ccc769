"""Pooling: arms share what they know, a different one stays different, and nothing counts twice."""

import json

import numpy as np
import pytest
from scalerl.curves.priors.pooled import with_prior
from scalerl.curves.priors.prior import Density, Prior, share_coordinate, share_of

from scalerl.curves import Fit, fit
from scalerl.errors import InputError
from scalerl.joint.pool import learn_prior, member, pool
from scalerl.joint.prior_file import prior_content, read_prior

START = 0.4


def arm(ceiling: float, seed: int, *, exponent: float = 1.8, end: float = 3.0, num: int = 30) -> Fit:
    rng = np.random.default_rng(seed)
    compute = np.linspace(end / num, end, num)
    reward = START + (ceiling - START) / (1 + (1 / compute) ** exponent)
    return fit(compute, reward + rng.normal(0, 0.005, num), start=START)


@pytest.fixture(scope="module")
def close() -> dict[str, Fit]:
    return {f"arm{seed}": arm(0.6 + 0.003 * (seed % 3), seed, end=2.0 + 0.3 * seed) for seed in range(6)}


def width(curve: Fit) -> float:
    low, high = curve.interval("ceiling")
    return high - low


def test_close_arms_narrow_each_other(close):
    pooled = pool(close)
    assert np.mean([width(curve) for curve in pooled.values()]) < 0.8 * np.mean([width(c) for c in close.values()])
    for name, curve in pooled.items():
        assert curve.unpooled is close[name]
        assert curve.prior is not None
        assert name not in curve.prior.sources


def test_a_different_arm_stays_different(close):
    odd = arm(0.75, 12)
    pooled = pool({**close, "odd": odd})["odd"]
    low, high = pooled.interval("ceiling")
    assert low <= 0.75 <= high
    assert abs(pooled.params["ceiling"] - odd.params["ceiling"]) < 0.01


def test_two_arms_are_left_as_they_are(close):
    two = {name: close[name] for name in ("arm0", "arm1")}
    assert pool(two) == two


def test_the_order_of_arms_does_not_matter(close):
    backwards = pool(dict(reversed(close.items())))
    for name, curve in pool(close).items():
        assert curve.params["ceiling"] == pytest.approx(backwards[name].params["ceiling"], abs=1e-9)


def test_weighted_draws_agree_with_a_separate_grid(close, monkeypatch):
    prior = learn_prior([member(name, curve) for name, curve in close.items()])
    curve = arm(0.6, 20)
    quick = with_prior(curve, prior)
    monkeypatch.setattr("scalerl.curves.priors.pooled.LEAST_DRAWS", 1e9)
    exact = with_prior(curve, prior)
    assert quick.params["ceiling"] == pytest.approx(exact.params["ceiling"], abs=1e-3)
    assert width(quick) == pytest.approx(width(exact), rel=0.1)


def test_unstable_arms_neither_inform_nor_are_informed(close):
    rng = np.random.default_rng(3)
    compute = np.linspace(0.1, 3, 30)
    reward = START + 0.2 / (1 + compute**-1.8) - np.where(compute > 2, 0.15 * (compute - 2), 0.0)
    broken = fit(compute, reward + rng.normal(0, 0.005, 30), start=START)
    assert broken.verdict == "unstable"
    pooled = pool({**close, "broken": broken})
    assert pooled["broken"] is broken
    prior = pooled["arm0"].prior
    assert prior is not None
    assert "broken" not in prior.sources


def test_fit_takes_a_prior(close):
    prior = learn_prior([member(name, curve) for name, curve in close.items()])
    rng = np.random.default_rng(5)
    compute = np.linspace(0.1, 1.2, 14)
    reward = START + 0.2 / (1 + compute**-1.8) + rng.normal(0, 0.005, 14)
    plain, informed = fit(compute, reward, start=START), fit(compute, reward, start=START, pool=prior)
    assert width(informed) < width(plain)
    assert informed.unpooled is not None
    assert informed.unpooled.params == plain.params


def test_shares_and_their_coordinates_are_inverse():
    share = np.linspace(0, 1, 11)
    assert share_of(share_coordinate(share)) == pytest.approx(share, abs=1e-12)


def test_a_density_is_flat_beyond_its_ends():
    density = Density(low=0.0, high=1.0, log_density=np.array([0.0, 1.0, 3.0]))
    assert density.at(np.array([-5.0, 0.25, 0.5, 9.0])) == pytest.approx([0.0, 0.5, 1.0, 3.0], abs=1e-5)


# Files ----------------------------------------------------------------------------------------------------------------


def test_prior_file_is_read_as_it_was_written(close, tmp_path):
    file = tmp_path / "prior.json"
    file.write_text(json.dumps(prior_content(close, "gpu_hours")))
    read = read_prior(str(file))
    assert [own.name for own in read.members] == list(close)
    assert "midpoint" in read.on_axis("gpu_hours")[0].draws
    assert "midpoint" not in read.on_axis("flops")[0].draws
    own, again = (learn_prior(members) for members in ([member(n, c) for n, c in close.items()], read.members))
    for param in ("share", "exponent"):
        assert again.densities[param].quantiles(0.5) == pytest.approx(own.densities[param].quantiles(0.5), abs=0.02)


def test_shipped_prior_has_sources_and_plausible_values():
    prior = learn_prior(read_prior("published").members)
    low, middle, high = np.exp(prior.densities["exponent"].quantiles([0.05, 0.5, 0.95]))
    assert 0.7 < low < 1.7 < middle < 2.6 < high < 6.5
    low, middle, high = share_of(prior.densities["share"].quantiles([0.05, 0.5, 0.95]))
    assert 0.05 < low < 0.28 < middle < 0.36 < high < 0.6


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', '{"format": "scalerl-prior-1", "members": [{}]}'])
def test_what_is_not_a_prior_is_refused(tmp_path, text):
    file = tmp_path / "prior.json"
    file.write_text(text)
    with pytest.raises(InputError, match="is not a prior"):
        read_prior(str(file))


def test_missing_prior_names_the_command():
    with pytest.raises(InputError, match=r"cannot be read.*scalerl prior"):
        read_prior("nowhere.json")


def test_prior_of_too_few_runs_is_refused(close):
    with pytest.raises(InputError, match="3 or more are needed"):
        prior_content({"arm0": close["arm0"]}, "step")


def test_prior_without_densities_changes_nothing(close):
    curve = close["arm0"]
    assert with_prior(curve, Prior(densities={})).params == pytest.approx(curve.params, rel=1e-9)
