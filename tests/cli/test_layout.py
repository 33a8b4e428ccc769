"""What `train --check` says of the time and money that a run takes."""

import pytest

from scalerl.cli.layout import pace_words, rounded
from scalerl.training.run.pace import KINDS, Pace

PACE = Pace(rates=KINDS[3], num_gpus=2, step_s=4.0, evaluation_s=0.5, steps=1000)


def test_price_is_that_of_all_gpu_hours():
    assert PACE.hours is not None
    assert pace_words(PACE, 2.0).endswith(f"costs about {2 * 2 * PACE.hours:,.2f}")
    assert "costs" not in pace_words(PACE, None)


@pytest.mark.parametrize(("number", "words"), [(0.3125, "0.31"), (9.96, "10"), (123.4, "120"), (98_765, "99,000")])
def test_estimates_have_two_digits(number: float, words: str):
    assert rounded(number) == words
