"""Where a run lies among public runs of its kind."""

import numpy as np
import pytest

from scalerl.forecast.curves import fit
from scalerl.forecast.several.bank import MEASURES, kinds, place

COMPUTE = np.geomspace(10.0, 4000.0, 40)
NOISE = 0.004 * np.sin(17.0 * np.arange(40))


def curve(exponent):
    return fit(COMPUTE, 0.2 + 0.5 / (1 + (300.0 / COMPUTE) ** exponent) + NOISE, start=0.2)


def test_kinds_are_those_of_the_bank():
    assert kinds() == ("agent", "math", "public", "small")


def test_steeper_runs_lie_higher():
    slow, fast = ({each.measure: each for each in place(curve(exponent), "public")} for exponent in (0.8, 4.0))
    assert set(slow) == set(MEASURES)
    assert slow["exponent"].below.value < fast["exponent"].below.value
    assert fast["exponent"].own.value == pytest.approx(4.0, rel=0.2)
    assert all(0.0 <= each.below.low <= each.below.value <= each.below.high <= 1.0 for each in slow.values())
    assert slow["gain"].own.value == pytest.approx(0.5, abs=0.1)


def test_rewards_without_limits_have_no_gain():
    unlimited = fit(COMPUTE, 20.0 / (1 + (300.0 / COMPUTE) ** 1.6) + 40 * NOISE, bounds=None)
    assert "gain" not in {each.measure for each in place(unlimited, "agent")}


def test_flat_run_has_no_place():
    assert place(fit(COMPUTE, 0.3 + 5 * NOISE), "agent") == ()


def test_unknown_kind_is_named():
    with pytest.raises(ValueError, match=r"'chess'.*agent, math"):
        place(curve(2.0), "chess")
