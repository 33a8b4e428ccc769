"""Hundreds of simulated runs: do the intervals hold what they say? The tables go into docs/results/calibration.md."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import compare, fit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
SEEDS = 200


def table(reach: float, exponent: float, start: float | None) -> tuple[float, float]:
    """Share of runs whose 90 % interval holds the true ceiling, and share called not identifiable."""
    held = unknown = 0
    for seed in range(SEEDS):
        result = fit(
            *run(seed + int(1000 * exponent + 100 * reach) * SEEDS, reach=reach, exponent=exponent), start=start
        )
        low, high = result.interval("ceiling")
        held += low <= 0.6 <= high
        unknown += result.verdict == "ceiling not identifiable yet"
    return held / SEEDS, unknown / SEEDS


@pytest.mark.parametrize("exponent", [1.5, 1.9, 3.0])
def test_ceilings_are_covered_and_known_when_they_should_be(exponent: float, capsys: pytest.CaptureFixture[str]):
    rows = {reach: table(reach, exponent, 0.4) for reach in (0.8, 2.0, 4.0)}
    with capsys.disabled():
        for reach, (held, unknown) in rows.items():
            print(f"\nexponent {exponent} reach {reach}: covered {held:.3f}, not identifiable {unknown:.3f}", end="")
    for reach in (2.0, 4.0):
        assert 0.85 <= rows[reach][0] <= 0.95
    assert rows[0.8][1] >= 0.8
    assert rows[4.0][1] <= 0.05


@pytest.mark.parametrize("exponent", [1.5, 1.9, 3.0])
def test_with_the_start_fitted(exponent: float, capsys: pytest.CaptureFixture[str]):
    rows = {reach: table(reach, exponent, None) for reach in (0.8, 2.0, 4.0)}
    with capsys.disabled():
        for reach, (held, unknown) in rows.items():
            print(
                f"\nstart fitted, exponent {exponent} reach {reach}: covered {held:.3f}, "
                f"not identifiable {unknown:.3f}",
                end="",
            )
    assert rows[4.0][0] >= 0.8
    assert rows[0.8][1] >= 0.8


def test_a_recipe_is_not_separable_from_its_own_repeat(capsys: pytest.CaptureFixture[str]):
    same = {}
    for exponent in (1.5, 1.9, 3.0):
        for reach in (2.0, 4.0):
            count = 0
            for seed in range(SEEDS):
                rng = np.random.default_rng([seed, int(10 * exponent), int(10 * reach)])
                compute = np.linspace(0.1 * reach, reach, 40)
                fits = {}
                for name in "ab":
                    ceiling = 0.6 + 0.01 * rng.standard_normal()
                    reward = sigmoid(compute, ceiling, exponent) + 0.004 * rng.standard_normal(40)
                    fits[name] = fit(compute, reward, start=0.4)
                count += compare(fits).pairs[0].verdict == "not separable"
            same[exponent, reach] = count / SEEDS
    with capsys.disabled():
        print(f"\nnot separable: {same}", end="")
    assert min(same.values()) >= 0.9


@pytest.mark.parametrize("gain", [(0.1, 0.3), (0.3, 0.6), (0.6, 0.9)])
def test_intervals_hold_before_the_bend(gain, capsys: pytest.CaptureFixture[str]):
    """The prior speaks louder than the data there: the larger the gain, the less it expects."""
    held, farther = {}, {}
    for reach in (0.5, 0.8, 1.2):
        rng = np.random.default_rng([int(10 * reach), int(10 * gain[0])])
        in_ceiling, in_new = [], []
        for _ in range(SEEDS):
            start = rng.uniform(0.02, 0.35)
            truth = {"ceiling": min(start + rng.uniform(*gain), 0.98), "exponent": rng.uniform(1, 3), "start": start}
            compute = np.linspace(reach / 30, reach, 30)
            result = fit(compute, rng.binomial(1000, sigmoid(compute, **truth)) / 1000, start=start)
            low, high = result.interval("ceiling")
            in_ceiling.append(low <= truth["ceiling"] <= high)
            (edge_low,), (edge_high,) = result.new_interval([2 * reach])
            in_new.append(edge_low <= rng.binomial(1000, sigmoid(2 * reach, **truth)) / 1000 <= edge_high)
            assert reach > 1 or result.verdict != "ok"
        held[reach], farther[reach] = np.mean(in_ceiling), np.mean(in_new)
    with capsys.disabled():
        for reach in held:
            print(f"\ngain {gain} reach {reach}: ceiling {held[reach]:.3f}, new at twice {farther[reach]:.3f}", end="")
    assert held[1.2] >= 0.85
    if gain[1] < 0.7:
        assert held[0.5] >= 0.85
