"""Columns whose names are known and whose values are not, and those that could be taken as well."""

import pytest

from scalerl.logs.columns import choose_x, choose_y, rivals


@pytest.mark.parametrize("value", ["1,000.0", "30.4%", "1 000", "2.5h"])
def test_a_known_name_is_taken_though_its_numbers_cannot_be_read(value: str) -> None:
    rows = [{"gpu_hours": value, "pass_rate": value}] * 3
    assert choose_y(["gpu_hours", "pass_rate"], rows) == "pass_rate"
    assert choose_x(["gpu_hours", "pass_rate"], rows, y="pass_rate", built=False) == "gpu_hours"


def test_words_under_a_known_name_yield_to_numbers_under_another() -> None:
    rows = [{"compute": "8xH100", "step": n, "score": "good", "reward": 0.5} for n in range(3)]
    assert choose_y(list(rows[0]), rows) == "reward"
    assert choose_x(list(rows[0]), rows, y="reward", built=False) == "step"


def test_compute_in_the_last_row_alone_is_none() -> None:
    rows = [{"reward": 0.5}] * 9 + [{"reward": 0.5, "total_flos": 1e18}]
    assert choose_x(["reward", "total_flos"], rows, y="reward", built=False) is None


def test_the_rivals_of_a_reward_are_those_of_its_kind() -> None:
    row = {"eval/aime/acc": 0.1, "eval/math/acc": 0.2, "eval/math/score": 0.3, "eval/empty/acc": None, "reward": 0.4}
    columns = list(row)
    assert choose_y(columns, [row]) == "eval/aime/acc"
    assert rivals(columns, [row], "eval/aime/acc") == ["eval/math/acc", "eval/math/score"]
    assert rivals(columns, [row], "reward") == []
    assert rivals(columns, [row], "something else") == []
