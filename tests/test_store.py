"""The run folder, read back: which rows count, what a killed run may leave behind."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl import store


def _write_lines(path: Path, rows: list[dict[str, object]], tail: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


def test_a_folder_is_a_run_by_its_recipe_or_its_evaluations(tmp_path: Path) -> None:
    assert not store.is_run_folder(tmp_path)
    assert not store.is_run_folder(tmp_path / "absent")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert not store.is_run_folder(tmp_path)
    (tmp_path / "evals.jsonl").write_text("")
    assert store.is_run_folder(tmp_path)
    assert not store.is_run_folder(tmp_path / "evals.jsonl")


def test_the_highest_attempt_counts_and_of_equal_attempts_the_later_row(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"step": 20, "attempt": 1, "set": "val", "reward": 0.1},
        {"step": 0, "attempt": 1, "set": "val", "reward": 0.2},
        {"step": 10, "attempt": 2, "set": "val", "reward": 0.3},
        {"step": 10, "attempt": 1, "set": "val", "reward": 0.4},
        {"step": 10, "attempt": 1, "set": "test", "reward": 0.5},
        {"step": 0, "attempt": 1, "set": "val", "reward": 0.6},
        {"step": 30, "set": "val", "reward": 0.7},
    ]
    _write_lines(tmp_path / "evals.jsonl", rows)
    kept = [(row["step"], row["set"], row["reward"]) for row in store.read_evals(tmp_path)]
    # Step 20 was not reached again by attempt 2: its row still counts.
    assert kept == [(0, "val", 0.6), (10, "val", 0.3), (10, "test", 0.5), (20, "val", 0.1), (30, "val", 0.7)]


def test_metrics_are_one_row_a_step(tmp_path: Path) -> None:
    _write_lines(
        tmp_path / "metrics.jsonl", [{"step": 2, "attempt": 1}, {"step": 1, "attempt": 1}, {"step": 2, "attempt": 2}]
    )
    assert store.read_metrics(tmp_path) == [{"step": 1, "attempt": 1}, {"step": 2, "attempt": 2}]


def test_files_a_run_has_not_written_yet_are_empty(tmp_path: Path) -> None:
    assert store.read_evals(tmp_path) == []
    assert store.read_metrics(tmp_path) == []
    assert store.read_recipe(tmp_path) is None
    assert store.read_status(tmp_path) is None


def test_recipe_and_status_are_objects(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 3}')
    (tmp_path / "status.json").write_text("[1]")
    assert store.read_recipe(tmp_path) == {"seed": 3}
    with pytest.raises(ValueError, match=r"status\.json: a JSON object is needed, not list"):
        store.read_status(tmp_path)
    (tmp_path / "recipe.json").write_text('{\n"seed": ')
    with pytest.raises(ValueError, match=r"recipe\.json, line 2: not JSON"):
        store.read_recipe(tmp_path)


@given(cut=st.integers(min_value=0, max_value=60))
def test_a_line_cut_anywhere_loses_only_itself(cut: int) -> None:
    whole = [json.dumps({"step": step, "attempt": 1, "reward": 0.25}) for step in range(3)]
    text = "\n".join(whole) + "\n" + json.dumps({"step": 3, "attempt": 1, "reward": 0.125})[:cut]
    rows = [row for _, row in store.parse_lines(text, Path("evals.jsonl"))]
    assert [row["step"] for row in rows[:3]] == [0, 1, 2]
    assert len(rows) == 3 or rows[3] == {"step": 3, "attempt": 1, "reward": 0.125}


@pytest.mark.parametrize(
    "text, fault",
    [
        ('{"step": 1}\n{"step": \n{"step": 3}\n', r"evals\.jsonl, line 2: not JSON"),
        ('{"step": 1}\n[1, 2]\n', r"evals\.jsonl, line 2: a JSON object is needed, not '\[1, 2\]'"),
        ('{"step": 1}\nTraceback\n', r"evals\.jsonl, line 2: not JSON"),
        ('{"step": 1}\n{"reward": 1}\n', r"evals\.jsonl, line 2: the row has no numeric 'step'"),
        ('{"step": ', r"evals\.jsonl, line 1: not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "evals.jsonl").write_text(text)
    with pytest.raises(ValueError, match=fault):
        store.read_evals(tmp_path)
