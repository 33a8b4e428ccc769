"""What the page says about the curve of a run."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import GrowingRun
from simulate import sigmoid

from scalerl.curves import Verdict
from scalerl.logs.series import Series
from scalerl.report import files
from scalerl.report.board import looks
from scalerl.report.board.looks import Look, fit_curve, look_at
from scalerl.report.board.state import Board
from scalerl.report.files import Root, json_object
from scalerl.report.sources import Source


def test_a_run_past_its_peak_is_falling_and_not_promised_more():
    compute = np.linspace(0.25, 20, 80)
    reward = sigmoid(np.minimum(compute, 12.0)) - 0.04 * np.maximum(compute - 12.0, 0.0) / 8.0
    reward = reward + 0.003 * np.random.default_rng(0).standard_normal(80)
    series = Series(name="main", compute=compute, reward=reward, start=0.4, x_label="gpu_hours", y_label="reward")
    row = fit_curve(series, 30.0, "GPU-hours")
    assert (row["verdict"], row["is_ok"], row["advice"]) == (Verdict.FALLEN, False, "falling")
    assert 0.02 < row["fall"].drop < 0.06
    assert 8.0 < row["fall"].compute < 14.0
    assert row["doubling"] is None
    assert "GPU-hours" in row["text"]
    assert row["end"]["value"] < 0.59


def test_what_is_to_know_of_the_rows_is_said_once(tmp_path: Path):
    path = tmp_path / "verl.log"
    path.write_text("".join(f"step:{n} - critic/rewards/mean:{0.1 + n / 100:.3f}\n" for n in range(1, 30)))
    source = Source(path=path, root=Root(tmp_path), kind="log", name="verl")
    (curve,) = look_at(source, None, {}, has_changed=False, with_history=False).detail["curves"]
    assert len(curve["notes"]) == 1
    assert curve["notes"][0] not in curve["fit"]["text"]


def _write(path: Path, num_runs: int, num: int) -> Path:
    rows = (
        {"run": f"r{run}", "step": n, "reward": 0.1 + run / 100 + n / 200}
        for run in range(num_runs)
        for n in range(1, num)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _num_fits(look: Look) -> list[int]:
    return [len(curve["history"]) for curve in look.detail["curves"]]


def _looked(source: Source, before: Look | None, *, has_changed: bool, with_history: bool = False) -> Look:
    memory = {} if before is None else before.memory
    return look_at(source, None, memory, has_changed=has_changed, with_history=with_history)


def test_new_points_are_shown_before_they_are_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Series] = []
    monkeypatch.setattr(looks, "fit_curve", lambda series, *more: made.append(series) or fit_curve(series, *more))
    monkeypatch.setattr(looks.time, "process_time", lambda: float(len(made)))
    monkeypatch.setattr(looks, "FIT_S", 0.5)  # one fit in a look
    source = Source(path=_write(tmp_path / "a.jsonl", 3, 12), root=Root(tmp_path), kind="log", name="a")
    look = _looked(source, None, has_changed=True)
    assert (_num_fits(look), look.more) == ([0, 0, 0], True)
    assert len(look.summary["points"]["compute"]) == 11
    assert [curve["num_points"] for curve in look.detail["curves"]] == [11] * 3
    for num in range(1, 4):
        look = _looked(source, look, has_changed=False)
        assert (_num_fits(look), look.more) == ([1] * num + [0] * (3 - num), num < 3)
    _write(source.path, 3, 14)
    look = _looked(source, look, has_changed=True)
    assert [(curve["num_points"], curve["fit"]["num"]) for curve in look.detail["curves"]] == [(13, 11)] * 3
    while look.more:
        look = _looked(source, look, has_changed=False, with_history=True)
    assert [curve["fit"]["num"] for curve in look.detail["curves"]] == [13] * 3
    assert [row["num"] for row in look.detail["curves"][0]["history"]] == [5, 6, 7, 8, 10, 12, 13]


def test_only_what_was_added_to_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = GrowingRun(tmp_path / "run")
    run.train(50)
    source = Source(path=run.folder, root=Root(tmp_path), kind="run", name="run")
    lines: list[bytes] = []
    monkeypatch.setattr(files, "json_object", lambda data: lines.append(data) or json_object(data))
    for added, expected in ((0, 51), (3, 3), (2, 2)):
        run.train(added)
        lines.clear()
        look = _looked(source, None, has_changed=True)
        assert len([line for line in lines if b"step" in line and b"budget" not in line]) == expected
    assert look.summary["step"] == 55
    # A file that was written anew is read from its beginning.
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "attempt": 1}\n')
    assert _looked(source, None, has_changed=True).summary["step"] == 1


def _shown(board: Board) -> Any:
    """Return the only item of a board after its first look."""
    board.look()
    (item,) = board._items.values()
    assert item.asked is not None
    item.asked.result()
    board.look()
    return item


def test_an_open_page_gets_its_history_without_a_pause(tmp_path: Path):
    board = Board([_write(tmp_path / "a.jsonl", 1, 20)])
    try:
        item = _shown(board)
        assert board.detail(item.source.key) is not None
        while item.fitting is not None:
            item.fitting.result()
            board.look()
        assert item.look is not None
        assert (_num_fits(item.look), item.look.more) == ([9], False)
    finally:
        board.close()


def test_new_rows_do_not_wait_for_fits(tmp_path: Path):
    board = Board([_write(tmp_path / "a.jsonl", 1, 20)])
    try:
        item = _shown(board)
        assert item.fitting is not None
        item.fitting, fitted = Future(), item.fitting.result()  # fits that take long
        _write(tmp_path / "a.jsonl", 1, 30)
        item.next_at = 0.0
        board.look()
        assert item.asked is not None
        item.asked.result()
        board.look()
        assert item.look is not None
        assert item.look.detail["curves"][0]["num_points"] == 29
        item.fitting.set_result(fitted)
        board.look()
        assert item.look.detail["curves"][0]["num_points"] == 29
        assert fitted.memory.items() <= item.look.memory.items()
    finally:
        board.close()
