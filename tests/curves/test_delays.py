"""A run that is flat and then rises: its ceiling is not called known because the sigmoid needs a large exponent."""

import numpy as np

from scalerl.curves import Fit, fit, stopping
from scalerl.curves.ways.delays import STEEP

START, CEILING, DELAY = 0.1, 0.5, 0.4


def late(seed: int) -> Fit:
    """A run that begins to rise at 40 % of its compute, with an exponent of 1.2 from there on."""
    compute = np.arange(1, 41) / 40
    since = np.maximum(compute - DELAY, 1e-9)
    noise = 0.008 * np.random.default_rng(seed).standard_normal(40)
    return fit(compute, START + (CEILING - START) / (1 + (0.12 / since) ** 1.2) + noise)


def test_a_late_take_off_is_averaged_over_delays():
    done = [late(seed) for seed in range(1, 6)]
    assert all(one.draws is not None and np.median(one.draws.params["exponent"]) > STEEP for one in done)
    delays = [sum(part.weight for part in one.parts if part.choice.form.delay > 0) for one in done]
    assert min(delays) > 0.5
    # The sigmoid alone ends at what was measured last, 0.435.
    alone = [np.quantile(one.draws.params["ceiling"], 0.95) for one in done if one.draws is not None]
    assert np.mean(np.array(alone) < CEILING - 0.02) > 0.5
    assert np.mean([one.interval("ceiling")[1] > CEILING - 0.02 for one in done]) > 0.8


def test_most_of_the_gain_counts_from_the_delay():
    when = stopping(late(1))
    assert when is not None
    assert when.most_of_gain is not None
    # At 95 % of the gain: 0.4 + 0.12 * 19 ** (1 / 1.2) = 1.8.
    assert when.most_of_gain.low < 1.8 < when.most_of_gain.high


def test_a_usual_exponent_is_fitted_alone():
    compute = np.arange(1, 41) / 40
    noise = 0.008 * np.random.default_rng(0).standard_normal(40)
    assert fit(compute, 0.1 + 0.4 / (1 + (0.3 / compute) ** 2) + noise).parts == ()
