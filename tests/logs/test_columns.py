"""Which columns are recognised as compute and reward."""

from typing import Any

import pytest

from scalerl.logs.columns import choose_x, choose_y
from scalerl.logs.units import column_of


def _cells(columns: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {column: column_of(row.get(column) for row in rows) for column in columns}


def _chosen(columns: list[str], rows: list[dict[str, Any]]) -> str | None:
    reward = choose_y(_cells(columns, rows))
    return reward.column if reward else None


@pytest.mark.parametrize("value", ["1,000.0", "30.4%", "1 000", "2.5h"])
def test_known_name_is_chosen_despite_unreadable_numbers(value: str) -> None:
    rows = [{"gpu_hours": value, "pass_rate": value}] * 3
    assert _chosen(["gpu_hours", "pass_rate"], rows) == "pass_rate"
    assert choose_x(_cells(["gpu_hours", "pass_rate"], rows), y="pass_rate", built=False) == "gpu_hours"


def test_column_of_words_yields_to_a_column_of_numbers() -> None:
    rows = [{"compute": "8xH100", "step": n, "score": "good", "reward": 0.5} for n in range(3)]
    assert _chosen(list(rows[0]), rows) == "reward"
    assert choose_x(_cells(list(rows[0]), rows), y="reward", built=False) == "step"


def test_compute_in_the_last_row_only_is_not_chosen() -> None:
    rows = [{"reward": 0.5}] * 9 + [{"reward": 0.5, "total_flos": 1e18}]
    assert choose_x(_cells(["reward", "total_flos"], rows), y="reward", built=False) is None


def test_rivals_are_columns_of_the_same_kind() -> None:
    row = {"eval/aime/acc": 0.1, "eval/math/acc": 0.2, "eval/math/score": 0.3, "eval/empty/acc": None, "reward": 0.4}
    columns = list(row)
    assert _chosen(columns, [row]) == "eval/aime/acc"
    reward = choose_y(_cells(columns, [row]))
    assert reward is not None
    assert (reward.kind, reward.rivals) == ("evaluation", ("eval/math/acc", "eval/math/score"))


# How many rows a column has


def _rows(**every: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Rows of 40 steps in which a column has a value every so many steps."""
    names = {name.replace("__", "/"): gap for name, gap in every.items()}
    rows = [{"step": step} | {name: 0.5 for name, gap in names.items() if step % gap == 0} for step in range(1, 41)]
    return ["step", *names], rows


def test_column_with_ten_rows_beats_one_with_a_single_row() -> None:
    columns, rows = _rows(val__a__pass_rate=40, val__b__reward=4)
    assert _chosen(columns, rows) == "val/b/reward"
    columns, rows = _rows(eval__acc=40, reward=1)
    assert _chosen(columns, rows) == "reward"
    reward = choose_y(_cells(columns, rows))
    assert reward is not None
    assert (reward.kind, reward.too_few) == ("training", (("eval/acc", 1),))


def test_evaluations_with_rows_enough_beat_training() -> None:
    columns, rows = _rows(reward=1, accuracy=1, eval__acc=5)
    assert _chosen(columns, rows) == "eval/acc"


def test_young_log_prefers_its_evaluations() -> None:
    columns, rows = _rows(reward=1, eval__acc=2)
    assert _chosen(columns, rows[:4]) == "eval/acc"


def test_evaluation_named_by_its_set_alone_is_recognised() -> None:
    rows = [{"step": step, "eval/aime": 0.1, "eval/aime/response_len": 900.0, "reward": 0.5} for step in range(8)]
    assert _chosen(list(rows[0]), rows) == "eval/aime"
    assert _chosen(list(rows[0]), [{**row, "eval/aime": 12.0} for row in rows]) == "reward"
