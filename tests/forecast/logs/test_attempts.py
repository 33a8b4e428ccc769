"""Which rows of a run count, from the order of its steps alone."""

import numpy as np
import pytest

from scalerl.forecast.logs.attempts import attempts, chains

UP = list(range(1, 21))


# steps -> attempts of the rows, superseded steps
@pytest.mark.parametrize(
    "steps, numbers, gone",
    [
        (UP, [0] * 20, []),
        ([*UP, *range(11, 31)], [0] * 40, list(range(11, 21))),
        ([*UP, *UP], [0] * 20 + [1] * 20, []),
        ([*UP, *range(20, 31)], [0] * 31, [20]),
        ([*UP, 10], [0] * 21, []),
        ([*range(1, 11), 5, *range(11, 21)], [0] * 21, []),
        ([0, *UP, 0, *range(11, 31)], [0] * 42, [*range(11, 21), 0]),
        ([1, 11, 21, 31, 26, 36, 46], [0] * 7, [31]),
        (np.repeat(UP, 2).tolist(), [0] * 40, []),
        ([*range(6001, 6021), *UP], [0] * 20 + [1] * 20, []),
        ([*range(21, 41), *UP], [0] * 40, []),
    ],
    ids=["one", "resumed", "anew", "equal", "again", "late", "first again", "between", "two each", "far", "first late"],
)
def test_attempts_of_a_run(steps: list[int], numbers: list[int], gone: list[int]) -> None:
    found = attempts(np.array(steps, dtype=float))
    assert (found.number.tolist(), np.array(steps)[found.gone].tolist()) == (numbers, gone)


def test_rows_in_no_order_have_one_attempt() -> None:
    steps = np.random.default_rng(0).permutation(np.tile(np.arange(40.0), 2))
    found = attempts(steps)
    assert not found.number.any()
    assert not found.gone.any()


def test_short_attempts_do_not_count() -> None:
    found = attempts(np.array([1.0, 2, 1, 2, *UP]))
    assert found.short.tolist() == [True] * 4 + [False] * 20
    assert not attempts(np.array([*UP, 1.0, 2])).short.any()


@pytest.mark.parametrize(
    "spans, runs",
    [
        ([(1, 25), (16, 32), (29, 40)], [[0, 1, 2]]),
        ([(1, 40), (1, 40)], []),
        ([(1, 40), (10, 50)], []),
        ([(1, 40), (1, 42), (35, 80)], []),
        ([(201, 300), (1, 200)], [[1, 0]]),
    ],
)
def test_parts_that_continue_each_other_are_one_run(spans: list[tuple[float, float]], runs: list[list[int]]) -> None:
    assert [run for run in chains(spans) if len(run) > 1] == runs
