"""wandb's files, read without wandb."""

from pathlib import Path

import pytest
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
    with pytest.raises(InputError, match="holds no logged values yet"):
        read_table(path.parent)
    (path.parent / "files").mkdir()
    (path.parent / "files/output.log").write_text(verl(rising(8)))
    assert (read_table(path.parent).kind, len(read_table(path.parent).rows)) == ("console", 8)
    path.unlink()
    assert len(read_table(path.parent).rows) == 8
