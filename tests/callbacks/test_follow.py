"""Forecasts from logs that are being written: tensorboard, trackio, and one that does not exist yet."""

import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from scalerl.callbacks import follow
from scalerl.errors import InputError
from scalerl.logs.formats import read_table
from scalerl.logs.formats import read_table as read_trackio


def reward_at(step: int) -> float:
    return 0.2 + 0.4 / (1 + (20 / step) ** 2) if step else 0.2


def database(path: Path, runs: tuple[str, ...], num: int) -> None:
    """A project's file as trackio 0.43 writes it."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, "
            "timestamp TEXT NOT NULL, run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        for run in runs:
            for step in range(0, 10 * num, 10):
                values = json.dumps({"eval/main/reward": reward_at(step), "train/loss/entropy": 0.5})
                connection.execute(
                    "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, '', ?, ?, ?)",
                    (run, run, step, values),
                )
    connection.close()


def test_trackio_database_is_a_log(tmp_path: Path):
    database(tmp_path / "project.db", ("a", "b"), num=6)
    table = read_table(tmp_path / "project.db")
    assert (table.kind, set(table["run"]), len(table.rows)) == ("sqlite", {"a", "b"}, 12)
    assert table.y == "eval/main/reward"


def test_other_databases_are_refused(tmp_path: Path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    connection.close()
    with pytest.raises(InputError, match="without a table 'metrics'"):
        read_trackio(tmp_path / "other.db")


def test_log_is_followed_while_it_is_written(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"

    def write() -> None:
        for step in range(10, 110, 10):
            with path.open("a") as file:
                file.write(json.dumps({"step": step, "reward": reward_at(step)}) + "\n")
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    numbers = [forecast.num_points for forecast in follow(path, end_compute=200, every_s=0.05, until_quiet_s=1.0)]
    writer.join()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 10


def test_tensorboard_run_is_followed(tmp_path: Path):
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        for step in range(10, 90, 10):
            writer.add_scalar("eval/reward", reward_at(step), global_step=step)
    (forecast,) = follow(tmp_path, every_s=0.01, until_quiet_s=0.0)
    assert forecast.num_points == 8
