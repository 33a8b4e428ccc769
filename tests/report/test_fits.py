"""What the page says about the curve of a run while it grows: points at once, then their fits."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import GrowingRun
from simulate import sigmoid

from scalerl.curves import Verdict
from scalerl.report import files
from scalerl.report.board.looks import Json, conclude, look_at, shown
from scalerl.report.board.state import Board, Item
from scalerl.report.files import Root, json_object
from scalerl.report.sources import Source


def write(path: Path, num_runs: int, num: int) -> Source:
    rows = ({"run": f"r{run}", "step": n, "reward": 0.1 + run / 100 + n / 200} for run in range(num_runs)
            for n in range(1, num))  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path=path, root=Root(path.parent), kind="log", name="a")


def fitted(source: Source, known: Json | None = None, *, end: float | None = None, with_history: bool = False) -> Json:
    done = conclude(source, end, known or {}, with_history=with_history)
    assert done is not None
    return done


def test_a_run_past_its_peak_is_falling_and_not_promised_more(tmp_path: Path):
    compute = np.linspace(0.25, 20, 80)
    reward = sigmoid(np.minimum(compute, 12.0)) - 0.04 * np.maximum(compute - 12.0, 0.0) / 8.0
    reward = reward + 0.003 * np.random.default_rng(0).standard_normal(80)
    lines = [f"{x},{y}" for x, y in zip(compute, reward, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["gpu_hours,reward", *lines]))
    done = fitted(Source(path=tmp_path / "a.csv", root=Root(tmp_path), kind="log", name="a"), end=30.0)
    ((curve,), main) = done["report"]["views"][0]["curves"], done["main"]
    assert (main["verdict"], main["is_ok"], main["advice"]) == (Verdict.FALLEN, False, "falling")
    assert main["end"]["value"] < 0.59
    assert curve["doubling"] is None
    (alarm,) = done["alarms"]
    assert (alarm["kind"], alarm["ended"]) == ("fall", None)
    assert 0.02 < alarm["value"] < 0.06
    assert 8.0 < alarm["began_compute"] < 14.0


def test_what_is_new_is_shown_before_it_is_fitted(tmp_path: Path):
    source = write(tmp_path / "a.jsonl", 2, 12)
    look = look_at(source, None)
    _, page = shown(look, None)
    assert [curve["line"] for curve in page["report"]["views"][0]["curves"]] == [None] * 2
    assert [points["num_points"] for points in page["report"]["sets"][0]["points"]["step"].values()] == [11] * 2
    fits = fitted(source, with_history=True)
    assert [len(rows) for rows in fits["history"].values()] == [6] * 2
    write(source.path, 2, 14)
    look = look_at(source, None)
    row, page = shown(look, fits)
    assert row["points"]["compute"][-1] == 13
    assert [curve["line"]["last"] for curve in page["report"]["views"][0]["curves"]] == [11] * 2
    again = fitted(source, fits["known"], with_history=True)
    assert [[row["num"] for row in rows] for rows in again["history"].values()] == [[5, 6, 7, 8, 10, 12, 13]] * 2
    # The fits of curves that are no longer there are not shown.
    assert shown(look_at(write(source.path, 1, 14), None), fits)[1]["history"] == {}


def test_only_what_was_added_to_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = GrowingRun(tmp_path / "run")
    run.train(50)
    source = Source(path=run.folder, root=Root(tmp_path), kind="run", name="run")
    lines: list[bytes] = []
    monkeypatch.setattr(files, "json_object", lambda data: lines.append(data) or json_object(data))
    for added, expected in ((0, 51), (3, 3), (2, 2)):
        run.train(added)
        lines.clear()
        look = look_at(source, None)
        assert len([line for line in lines if b"step" in line and b"budget" not in line]) == expected
    assert look.summary["step"] == 55
    # A file that was written anew is read from its beginning.
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "attempt": 1}\n')
    assert look_at(source, None).summary["step"] == 1


def test_rows_are_not_called_steps(tmp_path: Path):
    (tmp_path / "a.csv").write_text("\n".join(["gpu_hours,reward", *(f"{n},{n / 50}" for n in range(1, 9))]))
    summary = look_at(Source(path=tmp_path / "a.csv", root=Root(tmp_path), kind="log", name="a"), None).summary
    assert (summary["counted"], look_at(write(tmp_path / "b.jsonl", 1, 9), None).summary["counted"]) == ("row", "step")


def finish(board: Board, item: Item, what: str) -> Any:
    """Wait for a job of an item, and have the board collect it."""
    job = getattr(item, what)
    assert job.future is not None
    job.future.result()
    board.look()
    return job.value


@pytest.fixture
def board(tmp_path: Path) -> Any:
    board = Board([write(tmp_path / "a.jsonl", 1, 20).path])
    board.look()
    yield board
    board.close()


def test_new_rows_do_not_wait_for_fits(board: Board, tmp_path: Path):
    (item,) = board._items.values()
    finish(board, item, "reading")
    item.fitting.future = Future()  # fits that take long
    write(tmp_path / "a.jsonl", 1, 30)
    item.reading.next_at = 0.0
    board.look()
    assert finish(board, item, "reading").summary["points"]["compute"][-1] == 29
