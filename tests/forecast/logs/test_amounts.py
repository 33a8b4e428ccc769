"""Totals from the amounts of each step, and hours from clocks."""

import numpy as np
import pytest

from scalerl.forecast.logs.amounts import duration, on_clock, seconds_since_1970, totals


def _floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 90),
        ("1h 3m 20s", 3800),
        ("1:03:20", 3800),
        ("2d 1h", 176_400),
        ("0:00:10.5", 10.5),
        ("fast", np.nan),
        ("", np.nan),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds, nan_ok=True)


def test_times_of_day_in_any_unit() -> None:
    moment = 1_700_000_000.0
    given = _floats(moment, 1e3 * moment, 1e6 * moment, 1e9 * moment, 36.0)
    assert seconds_since_1970(given) == pytest.approx([moment] * 4 + [np.nan], nan_ok=True)
    words = np.array(["2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "later"], dtype=object)
    assert seconds_since_1970(words) == pytest.approx([moment, moment, np.nan], nan_ok=True)


def test_amount_of_a_row_stands_for_the_steps_before_it() -> None:
    assert totals(_floats(10, 20, 40), _floats(1, 2, 3)).tolist() == [10, 30, 90]
    assert totals(_floats(0, 1, 2), _floats(5, 5, 5)).tolist() == [5, 10, 15]


def test_amount_of_a_step_that_was_taken_again_counts_once() -> None:
    assert totals(_floats(1, 2, 3, 2, 3), _floats(1, 1, 1, 9, 9)).tolist() == [1, 10, 19, 10, 19]


def test_clock_without_its_pause() -> None:
    hours = [*range(7), *range(54, 60)]
    seconds = on_clock(np.arange(13.0), _floats(*(3600.0 * hour for hour in hours)))
    assert (seconds / 3600).tolist() == pytest.approx(list(range(13)))


def test_clock_that_begins_anew_goes_on() -> None:
    assert on_clock(np.arange(6.0), _floats(0, 10, 20, 0, 10, 20)).tolist() == [0, 10, 20, 20, 30, 40]


def test_clock_that_begins_late_counts_the_steps_before_it() -> None:
    assert on_clock(_floats(10, 20, 30), _floats(0, 100, 200)).tolist() == [100, 200, 300]
