"""Pooling: arms share what they know, a different one stays different, and nothing counts twice."""

import numpy as np
import pytest

from scalerl.forecast.curves import Fit, Prior, State, decide, fit, refit
from scalerl.forecast.curves.sample import even_points
from scalerl.forecast.several import pool
from scalerl.forecast.several.population import DIMS, NUM_DRAWS, POOLED, Member, law, learn_prior, member

START = 0.4


def arm(ceiling: float, seed: int, *, exponent: float = 1.8, end: float = 3.0, num: int = 20) -> Fit:
    rng = np.random.default_rng(seed)
    compute = np.linspace(end / num, end, num)
    reward = START + (ceiling - START) / (1 + (1 / compute) ** exponent)
    return fit(compute, reward + rng.normal(0, 0.005, num), start=START)


@pytest.fixture(scope="module")
def close() -> dict[str, Fit]:
    return {f"arm{seed}": arm(0.6 + 0.003 * (seed % 3), seed, end=2.0 + 0.4 * seed) for seed in range(5)}


def width(curve: Fit) -> float:
    low, high = curve.interval("ceiling")
    return high - low


def told(prior: Prior) -> dict[str, tuple[float, float]]:
    assert prior.log_share is not None
    return {"share": prior.log_share, "exponent": prior.log_exponent, "midpoint": prior.log_midpoint}


def test_close_arms_narrow_each_other_but_not_themselves(close):
    pooled = pool(close)
    assert np.mean([width(curve) for curve in pooled.values()]) < 0.9 * np.mean([width(c) for c in close.values()])
    for name, curve in pooled.items():
        assert curve.alone is close[name]
        assert curve.prior is not None
        assert set(curve.prior.sources) == set(close) - {name}
        low, high = curve.interval("ceiling")
        assert low < 0.603 < high


def test_a_different_arm_stays_different(close):
    odd = arm(0.75, 12)
    pooled = pool({**close, "odd": odd})["odd"]
    low, high = pooled.interval("ceiling")
    assert low <= 0.75 <= high
    assert pooled.params["ceiling"] == pytest.approx(0.75, abs=0.02)


def test_an_early_arm_is_no_surer_than_the_population(close):
    """It knows next to nothing, so what it says is what the others differ by, and no less."""
    early = arm(0.6, 20, end=0.5, num=8)
    pooled = pool({**close, "early": early})["early"]
    assert pooled.prior is not None
    _, scale = told(pooled.prior)["share"]
    shares = np.log((pooled.param_draws("ceiling") - START) / (1 - START))
    assert np.std(shares) > 0.5 * scale
    assert width(pooled) < width(early)


def test_pooling_again_changes_nothing(close):
    once = pool(close)
    again = pool(once)
    assert {name: curve.params for name, curve in again.items()} == {name: curve.params for name, curve in once.items()}


def test_the_order_of_arms_does_not_matter(close):
    members = [member(name, curve) for name, curve in close.items()]
    one, other = learn_prior(members), learn_prior(members[::-1])
    for param, place in told(one).items():
        assert told(other)[param] == pytest.approx(place, abs=1e-9)


def test_two_arms_and_those_that_fell_are_left_as_they_are(close):
    two = {name: close[name] for name in ("arm0", "arm1")}
    assert pool(two) == two
    rng = np.random.default_rng(3)
    compute = np.linspace(0.1, 3, 30)
    reward = START + 0.2 / (1 + compute**-1.8) - np.where(compute > 2, 0.12, 0.0)
    broken = fit(compute, reward + rng.normal(0, 0.005, 30), start=START)
    assert decide(broken).state == State.PAST_PEAK
    pooled = pool({**close, "broken": broken})
    assert pooled["broken"] is broken
    prior = pooled["arm0"].prior
    assert prior is not None
    assert "broken" not in prior.sources
    held = refit(close["arm0"], ceiling=0.6)
    assert pool({**close, "held": held})["held"] is held


def test_a_run_that_knows_nothing_says_next_to_nothing():
    early = arm(0.6, 20, end=0.2, num=8)
    _, error = member("early", early).values.get("midpoint", (0.0, np.inf))
    assert error > 1.0
    known = member("long", arm(0.6, 21, end=8.0)).values
    assert set(known) == set(POOLED)
    value, error = known["midpoint"]
    assert abs(value) < 3 * error < 0.5
    assert known["exponent"][0] == pytest.approx(np.log(1.8), abs=3 * known["exponent"][1])


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.4])
def test_the_scatter_of_a_population_is_learnt(spread: float):
    rng = np.random.default_rng(0)
    values = [(float(value), 0.02) for value in 0.6 + spread * rng.standard_normal(12)]
    draws, scatter = law(values, np.ones((12, 1)), POOLED["exponent"], even_points(NUM_DRAWS, DIMS))
    assert np.median(draws) == pytest.approx(0.6, abs=0.02 + spread)
    assert np.std(draws) > 0.9 * np.std([value for value, _ in values])
    assert np.median(scatter) < max(3 * spread, 0.06)


@pytest.mark.parametrize("errors", [(0.05,) * 3, (0.3, 0.02, 0.5, 0.1)])
def test_draws_of_a_law_are_as_good_as_very_many_random_ones(errors: tuple[float, ...]):
    rng = np.random.default_rng(len(errors))
    values = [(float(rng.normal(0.6, 0.2)), error) for error in errors]
    features = np.ones((len(values), 1))
    levels = (0.05, 0.1, 0.5, 0.9, 0.95)
    even, _ = law(values, features, POOLED["exponent"], even_points(NUM_DRAWS, DIMS))
    random, _ = law(values, features, POOLED["exponent"], np.clip(rng.random((DIMS, 1_000_000)), 1e-9, 1 - 1e-9))
    width = float(np.ptp(np.quantile(random, (0.1, 0.9))))
    assert np.quantile(even, levels) == pytest.approx(np.quantile(random, levels), abs=0.01 * width)


def test_more_members_make_a_narrower_prior():
    members = [Member(name=str(i), values={"exponent": (0.6, 0.05)}) for i in range(12)]
    widths = [told_width(members[:num]) for num in (2, 4, 12)]
    assert widths == sorted(widths, reverse=True)


def told_width(members) -> float:
    return learn_prior(members).log_exponent[1]


def test_unbounded_gains_are_pooled_in_their_own_unit():
    fits = {}
    for seed in range(3):
        compute = np.linspace(0.2, 4.0, 20)
        reward = -260 + 20 / (1 + compute**-1.8) + np.random.default_rng(seed).normal(0, 0.5, 20)
        fits[str(seed)] = fit(compute, reward, start=-260.0, bounds=None)
    pooled = pool(fits)
    assert pooled["0"].prior is not None
    low, high = pooled["0"].interval("ceiling")
    assert low < -240 < high
