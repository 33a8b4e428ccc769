"""Files of trackers: tensorboard's events, wandb, MLflow's database and Parquet."""

import importlib
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tensorboardX
from log_texts import STEPS, rising, verl
from read_logs import column, fault, names, planned, read, rows
from tensorboardX.record_writer import RecordWriter
from wandb_files import write_wandb

from scalerl.forecast.logs import read_log

# Generated modules, whose names no type checker sees.
EVENT: Any = importlib.import_module("tensorboardX.proto.event_pb2")
SUMMARY: Any = importlib.import_module("tensorboardX.proto.summary_pb2")
TENSOR: Any = importlib.import_module("tensorboardX.proto.tensor_pb2")


Scalar = tuple[str, int, float]


def _write(folder: Path, scalars: list[Scalar], start: float = 1.5e9, pace: float = 1.0, suffix: str = "") -> Path:
    """Write with the package of the many; `pace` is the seconds per step."""
    with tensorboardX.SummaryWriter(str(folder), filename_suffix=suffix) as writer:
        for tag, step, value in scalars:
            writer.add_scalar(tag, value, step, walltime=start + pace * step)
        writer.add_histogram("weights", [1.0, 2.0], scalars[0][1])
        writer.add_text("note", "hello", scalars[0][1])
    return max(folder.glob("*tfevents*"), key=lambda path: path.stat().st_mtime_ns)


def test_tensorboard_scalars_are_rows_by_step(tmp_path: Path) -> None:
    scalars = [
        (tag, step, value) for step in range(3) for tag, value in (("val/reward", 0.25 + step / 4), ("loss", 1.0))
    ]
    plan = planned(_write(tmp_path, scalars, 1e9, 3600.0))
    assert (plan.kind, plan["y"]) == ("tensorboard", "val/reward")
    assert (column(plan.frame, "step"), column(plan.frame, "val/reward")) == ([0, 1, 2], [0.25, 0.5, 0.75])
    assert column(plan.frame, "wall_time") == [1e9, 1e9 + 3600, 1e9 + 7200]
    assert not {"weights", "note"} & set(plan.frame.columns)
    assert plan.frame.origin.tolist() == ["step 0", "step 1", "step 2"]
    [series] = read(tmp_path, gpus=8)
    assert (series.start, series.compute.tolist()) == (0.25, [8.0, 16.0])


def test_truncated_event_file_loses_only_its_last_record(tmp_path: Path) -> None:
    path = _write_raw(tmp_path / "events.out.tfevents.1", [("val/reward", step, step / 8) for step in range(5)])
    whole = path.read_bytes()
    for cut in (1, 5, 20):
        path.write_bytes(whole[:-cut])
        assert column(read_log(path).frame, "val/reward") == [0.0, 0.125, 0.25, 0.375]
    path.write_bytes(whole + bytes(40))
    assert len(read_log(path).frame) == 5


def test_damaged_event_file_is_an_error(tmp_path: Path) -> None:
    path = _write_raw(tmp_path / "events.out.tfevents.1", [("val/reward", step, step / 8) for step in range(5)])
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    data[12 + length + 4] ^= 0xFF
    path.write_bytes(data)
    assert f"events.out.tfevents.1: damaged at byte {12 + length + 4} of" in fault(path)


TENSORS: dict[str, Callable[[float], dict[str, Any]]] = {
    "float list": lambda number: {"dtype": "DT_FLOAT", "float_val": [number]},
    "double list": lambda number: {"dtype": "DT_DOUBLE", "double_val": [number]},
    "double bytes": lambda number: {"dtype": "DT_DOUBLE", "tensor_content": struct.pack("<d", number)},
    "several": lambda number: {"dtype": "DT_FLOAT", "float_val": [number, number]},
}


def _write_raw(path: Path, scalars: list[Scalar], kind: str = "simple") -> Path:
    writer = RecordWriter(str(path))
    for tag, step, number in scalars:
        value = SUMMARY.Summary.Value(tag=tag)
        if kind == "simple":
            value.simple_value = number
        else:
            value.tensor.CopyFrom(TENSOR.TensorProto(**TENSORS[kind](number)))
        event = EVENT.Event(wall_time=1.5e9 + step, step=step, summary=SUMMARY.Summary(value=[value]))
        writer.write(event.SerializeToString())
    writer.flush()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["simple", *TENSORS])
def test_scalars_come_as_floats_or_tensors(tmp_path: Path, kind: str) -> None:
    path = _write_raw(tmp_path / "events.out.tfevents.1", [("eval/acc", 3, 0.25), ("eval/acc", -1, 0.5)], kind)
    if kind == "several":
        assert "holds no rows yet" in fault(path)
    else:
        assert [(row["step"], row["eval/acc"]) for row in rows(planned(path).frame)] == [(-1, 0.5), (3, 0.25)]


def test_waiting_for_a_restart_costs_no_compute(tmp_path: Path) -> None:
    first = [("val/reward", 0, 0.0), ("val/reward", 3600, 0.25), ("val/reward", 4000, 0.3)]
    _write_raw(tmp_path / "events.out.tfevents.1", first)
    _write_raw(tmp_path / "events.out.tfevents.2", [("val/reward", 90000, 0.5), ("val/reward", 93600, 0.75)])
    [series] = read(tmp_path, gpus=1)
    assert [series.start, *series.reward] == pytest.approx([0.0, 0.25, 0.3, 0.5, 0.75])
    assert series.compute == pytest.approx([1.0, 1 + 1 / 9, 2 + 1 / 9, 3 + 1 / 9])


# Attempts


def _scalars(steps: range, value: float | None = None) -> list[Scalar]:
    return [("val/reward", step, 0.25 + step / 128 if value is None else value) for step in steps]


def test_event_file_that_continues_supersedes_later_steps(tmp_path: Path) -> None:
    _write_raw(tmp_path / "events.out.tfevents.1", _scalars(range(1, 31)))
    # Its wall times, 1.5e9 + step, follow those of the first file.
    _write_raw(tmp_path / "events.out.tfevents.2", _scalars(range(31, 51)))
    assert len(read(tmp_path)[0].compute) == 50
    _write(tmp_path, _scalars(range(41, 61), 0.875), 1.5e9 + 100, suffix=".3")
    [series] = read(tmp_path)
    assert (len(series.compute), series.reward[40:].tolist()) == (60, [0.875] * 20)
    assert [(fact.kind, fact.values["num"]) for fact in series.facts] == [("superseded", 10)]


def test_event_files_of_different_tags_are_one_run(tmp_path: Path) -> None:
    _write_raw(tmp_path / "events.out.tfevents.1", _scalars(range(1, 11)))
    _write_raw(tmp_path / "events.out.tfevents.2", [("train/loss", step, 0.5) for step in range(1, 11)])
    [series] = read(tmp_path)
    assert (len(series.compute), series.facts) == (10, ())


def test_folders_with_and_without_attempts_together(tmp_path: Path) -> None:
    for name, number in (("a", 0), ("a", 1), ("b", 2)):
        _write(tmp_path / name, _scalars(range(1, 9), 0.5), 1e9 + 1000 * number, suffix=f".{number}")
    assert names(read(tmp_path)) == ["a/attempt 1", "a/attempt 2", "b"]


def test_folders_of_training_and_evaluation_are_one_run(tmp_path: Path) -> None:
    for name, tag, scale in (("train", "reward", 0.5), ("validation", "acc", 1.0)):
        _write(tmp_path / name, [(tag, step, scale * reward) for step, reward in STEPS], pace=60)
    [series] = read(tmp_path)
    assert (series.y_label, series.reward.tolist()) == ("validation/acc", pytest.approx(rising(40)))


# wandb and MLflow


def test_history_is_read_across_blocks(tmp_path: Path) -> None:
    rewards = rising(10)
    path = write_wandb(tmp_path / "offline-run-1-abc123", rewards)
    for given in (path, path.parent):
        plan = planned(given)
        assert (plan.kind, plan["y"], plan.roles["hours"].rule) == ("wandb", "val/acc", "elapsed")
        assert [(row["_step"], row["val/acc"]) for row in rows(plan.frame)] == list(enumerate(rewards, start=1))


def test_cut_wandb_file_loses_its_last_row_only(tmp_path: Path) -> None:
    path = write_wandb(tmp_path / "run", rising(10))
    path.write_bytes(path.read_bytes()[:-50])
    assert len(read_log(path).frame) == 9


def test_runs_of_a_wandb_folder_are_separate_curves(tmp_path: Path) -> None:
    for number, name in enumerate(("cispo", "grpo")):
        write_wandb(tmp_path / "wandb" / f"offline-run-{number}-abc", rising(10), name)
    for folder in (tmp_path, tmp_path / "wandb"):
        assert names(read(folder)) == ["cispo", "grpo"]


def test_console_output_stands_in_for_an_empty_history(tmp_path: Path) -> None:
    path = write_wandb(tmp_path / "wandb/run-1", [])
    assert "holds no rows yet" in fault(path.parent)
    (path.parent / "files").mkdir()
    (path.parent / "files/output.log").write_text(verl(rising(8)))
    assert (read_log(path.parent).kind, len(read_log(path.parent).frame)) == ("console", 8)
    path.unlink()
    assert len(read_log(path.parent).frame) == 8


def mlflow_database(folder: Path) -> Path:
    with sqlite3.connect(folder / "mlflow.db") as database:
        database.execute("CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER)")
        for run in ("a", "b"):
            rows = [("eval/acc", reward, 1_700_000_000_000 + 60_000 * step, run, step) for step, reward in STEPS]
            rows += [("loss", 0.1, 1_700_000_000_000 + 60_000 * step, run, step) for step, _ in STEPS]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
    return folder / "mlflow.db"


def test_mlflow_database_is_read(tmp_path: Path) -> None:
    found = [(series.y_label, series.x_label, series.reward.tolist()) for series in read(mlflow_database(tmp_path))]
    assert found == [("eval/acc", "hours", rising(40))] * 2


def test_database_that_a_program_keeps_for_itself_is_read_later(tmp_path: Path) -> None:
    path = mlflow_database(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        database.execute("INSERT INTO metrics VALUES ('eval/acc', 0.5, 0, 'a', 99)")
        assert "is locked by a program that writes to it" in fault(path)


@pytest.mark.parametrize(
    ("computed", "sentence"),
    [("hex(zeroblob(400000000))", "too big"), ("hex(zeroblob(500000))", "characters, which is the limit")],
)
def test_table_that_computes_its_values_is_bounded(tmp_path: Path, computed: str, sentence: str) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE metrics (step INTEGER)")
        database.executemany("INSERT INTO metrics VALUES (?)", [(step,) for step in range(400)])
        database.execute(f"ALTER TABLE metrics ADD COLUMN value TEXT GENERATED ALWAYS AS ({computed}) VIRTUAL")
        database.commit()
    assert path.stat().st_size < 2**16
    assert sentence in fault(path)


def piped(path: Path) -> Path:
    """Return a pipe through which the content of a file comes."""
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(path.read_bytes(),), daemon=True).start()
    # One that nobody writes to yet would be empty.
    time.sleep(0.2)
    return pipe


def test_files_of_trackers_come_through_pipes(tmp_path: Path) -> None:
    path = write_wandb(tmp_path / "run", rising(10))
    assert len(read_log(piped(path)).frame) == 10
    (tmp_path / "events").mkdir()
    scalars = [("val/reward", step, step / 8) for step in range(5)]
    assert len(read_log(piped(_write_raw(tmp_path / "events" / "events.out.tfevents.1", scalars))).frame) == 5
    (tmp_path / "database").mkdir()
    assert "pipe, from which no SQLite" in fault(piped(mlflow_database(tmp_path / "database")))
