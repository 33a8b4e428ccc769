"""Files of trackers, read without their packages: wandb, MLflow, and tensorboard's folders of a run."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorboardX
from log_texts import rising, verl
from wandb_files import write_wandb

from scalerl.errors import InputError
from scalerl.logs.formats import read_table, read_tables
from scalerl.logs.series import Selection, series_from


def test_history_is_read_across_blocks(tmp_path: Path) -> None:
    rewards = rising(10)
    path = write_wandb(tmp_path / "offline-run-1-abc123", rewards)
    for given in (path, path.parent):
        table = read_table(given)
        assert (table.kind, table.y, table.x) == ("wandb", "val/acc", "hours")
        assert [(row["_step"], row["val/acc"]) for row in table.rows] == list(enumerate(rewards, start=1))


def test_cut_wandb_file_loses_its_last_row_only(tmp_path: Path) -> None:
    path = write_wandb(tmp_path / "run", rising(10))
    path.write_bytes(path.read_bytes()[:-50])
    assert len(read_table(path).rows) == 9


def test_runs_of_a_wandb_folder_are_separate_curves(tmp_path: Path) -> None:
    for number, name in enumerate(("cispo", "grpo")):
        write_wandb(tmp_path / "wandb" / f"offline-run-{number}-abc", rising(10), name)
    for folder in (tmp_path, tmp_path / "wandb"):
        assert [series.name for series in series_from(read_tables([folder]), Selection())] == ["cispo", "grpo"]


def test_console_output_stands_in_for_an_empty_history(tmp_path: Path) -> None:
    path = write_wandb(tmp_path / "wandb/run-1", [])
    with pytest.raises(InputError, match="holds no rows yet"):
        read_table(path.parent)
    (path.parent / "files").mkdir()
    (path.parent / "files/output.log").write_text(verl(rising(8)))
    assert (read_table(path.parent).kind, len(read_table(path.parent).rows)) == ("console", 8)
    path.unlink()
    assert len(read_table(path.parent).rows) == 8


STEPS = list(enumerate(rising(40), start=1))


def mlflow_folder(folder: Path) -> Path:
    for run in ("a", "b"):
        (folder / "mlruns/0" / run / "metrics/eval").mkdir(parents=True)
        (folder / "mlruns/0" / run / "meta.yaml").write_text("artifact_uri: x\n")
        text = "".join(f"{1_700_000_000_000 + 60_000 * step} {reward} {step}\n" for step, reward in STEPS)
        (folder / "mlruns/0" / run / "metrics/eval/acc").write_text(text)
    return folder


def mlflow_database(folder: Path) -> Path:
    with sqlite3.connect(folder / "mlflow.db") as database:
        database.execute("CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER)")
        for run in ("a", "b"):
            rows = [("eval/acc", reward, 1_700_000_000_000 + 60_000 * step, run, step) for step, reward in STEPS]
            rows += [("loss", 0.1, 1_700_000_000_000 + 60_000 * step, run, step) for step, _ in STEPS]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
    return folder / "mlflow.db"


@pytest.mark.parametrize("make", [mlflow_folder, mlflow_database])
def test_mlflow_is_read(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    curves = series_from(read_tables([make(tmp_path)]), Selection())
    assert [(series.y_label, series.x_label, series.reward.tolist()) for series in curves] == [
        ("eval/acc", "hours", rising(40))
    ] * 2


def test_folders_of_training_and_evaluation_are_one_run(tmp_path: Path) -> None:
    for name, tag, scale in (("train", "reward", 0.5), ("validation", "acc", 1.0)):
        writer = tensorboardX.SummaryWriter(str(tmp_path / name))
        for step, reward in STEPS:
            writer.add_scalar(tag, scale * reward, step, walltime=1.7e9 + 60 * step)
        writer.close()
    [series] = series_from(read_tables([tmp_path]), Selection())
    assert (series.y_label, series.reward.tolist()) == ("validation/acc", pytest.approx(rising(40)))
