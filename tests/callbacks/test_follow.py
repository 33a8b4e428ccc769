"""Forecasts from logs that are being written: tensorboard, trackio, and one that does not exist yet."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scalerl.callbacks import follow
from scalerl.errors import InputError
from scalerl.forecast.logs import read_log


def reward_at(step: int) -> float:
    return 0.2 + 0.4 / (1 + (20 / step) ** 2) if step else 0.2


def test_trackio_database_is_a_log_and_others_are_refused(tmp_path: Path):
    """As trackio 0.43 writes a project's file."""
    values = lambda step: json.dumps({"eval/main/reward": reward_at(step), "train/loss/entropy": 0.5})  # noqa: E731
    rows = [(run, run, step, values(step)) for run in ("a", "b") for step in range(0, 60, 10)]
    project, other = (sqlite3.connect(tmp_path / name) for name in ("project.db", "o.db"))
    with closing(project), closing(other):
        project.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, "
            "timestamp TEXT NOT NULL DEFAULT '', run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        project.executemany("INSERT INTO metrics (run_id, run_name, step, metrics) VALUES (?, ?, ?, ?)", rows)
        project.commit()
        other.execute("CREATE TABLE things (name TEXT)")
    log = read_log(tmp_path / "project.db")
    assert (log.kind, set(log.frame.words("run")), len(log.frame)) == ("sqlite", {"a", "b"}, 12)
    assert log.plan()["y"] == "eval/main/reward"
    with pytest.raises(InputError, match="without a table 'metrics'"):
        read_log(tmp_path / "o.db")


def test_log_is_followed_while_it_is_written(tmp_path: Path):
    path, rows = tmp_path / "metrics.jsonl", [{"step": step, "reward": reward_at(step)} for step in range(10, 110, 10)]
    numbers = []

    def write(num: int) -> None:
        with path.open("a") as file:
            file.writelines(json.dumps(rows.pop(0)) + "\n" for _ in range(min(num, len(rows))))

    write(6)
    for forecast in follow(path, end_compute=200, every_s=0.01, until_quiet_s=0.2):
        numbers.append(forecast.num_points)
        write(2)
    assert numbers == [6, 8, 10]


def test_tensorboard_run_is_followed(tmp_path: Path):
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        for step in range(10, 90, 10):
            writer.add_scalar("eval/reward", reward_at(step), global_step=step)
    (forecast,) = follow(tmp_path, every_s=0.01, until_quiet_s=0.0)
    assert forecast.num_points == 8
