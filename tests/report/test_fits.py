"""What the page says about the curve of a run."""

import json
from pathlib import Path

import numpy as np
from simulate import sigmoid

from scalerl.curves import Verdict
from scalerl.logs.series import Series
from scalerl.report.board.looks import FITS_AT_ONCE, Look, fit_curve, look_at
from scalerl.report.board.state import Board
from scalerl.report.files import Root
from scalerl.report.sources import Source


def test_a_run_past_its_peak_is_falling_and_not_promised_more():
    compute = np.linspace(0.25, 20, 80)
    reward = sigmoid(np.minimum(compute, 12.0)) - 0.04 * np.maximum(compute - 12.0, 0.0) / 8.0
    reward = reward + 0.003 * np.random.default_rng(0).standard_normal(80)
    nothing = np.empty(0)
    series = Series(
        name="main", compute=compute, reward=reward, run=None, num_samples=None, start=0.4, start_sd=0.0,
        holdout_compute=nothing, holdout_reward=nothing, evaluation=None, x_label="gpu_hours", y_label="reward",
        problem=None,
    )  # fmt: skip
    row = fit_curve(series, 30.0, "GPU-hours")
    assert (row["verdict"], row["is_ok"], row["advice"]) == (Verdict.FALLEN, False, "falling")
    assert 0.02 < row["fall"].drop < 0.06
    assert 8.0 < row["fall"].compute < 14.0
    assert row["doubling"] is None
    assert "GPU-hours" in row["text"]
    assert row["end"]["value"] < 0.59


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


def test_a_look_makes_few_fits_and_the_next_one_goes_on(tmp_path: Path):
    source = Source(path=_write(tmp_path / "a.jsonl", 6, 12), root=Root(tmp_path), kind="log", name="a")
    look = look_at(source, None, False, {})
    assert (_num_fits(look), look.more) == ([1] * FITS_AT_ONCE + [0, 0], True)
    look = look_at(source, None, True, look.memory)
    assert (_num_fits(look), look.more) == ([5, 1, 1, 1, 1, 1], True)
    assert [row["num"] for row in look.detail["curves"][0]["history"]] == [6, 7, 8, 10, 11]
    _write(source.path, 1, 8)
    look = look_at(source, None, True, look.memory)
    assert (_num_fits(look), look.more) == ([3], False)


def test_an_open_page_gets_its_history_without_a_pause(tmp_path: Path):
    board = Board([_write(tmp_path / "a.jsonl", 1, 20)])
    try:
        board.look()
        (item,) = board._items.values()
        assert item.asked is not None
        item.asked.result()
        board.look()
        item.next_at += 1000.0
        assert board.detail(item.source.key) is not None
        for _ in range(2):  # two looks make the 8 early forecasts
            board.look()
            assert item.asked is not None
            item.asked.result()
        board.look()
        assert item.look is not None
        assert (_num_fits(item.look), item.asked) == ([9], None)
    finally:
        board.close()
