"""Rows of an evaluation."""

import pytest

from scalerl.run.evaluate import wilson


def test_wilson_interval_stays_within_0_and_1():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1
    low, high = wilson(50, 100)
    assert low == pytest.approx(0.419, abs=1e-3)
    assert high == pytest.approx(0.581, abs=1e-3)
