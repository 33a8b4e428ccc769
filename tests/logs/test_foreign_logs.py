"""Logs of other people's runs and of every console style are fitted without an option."""

import json
from pathlib import Path

import pytest
import tensorboardX
from log_texts import STYLES, rising
from shared_data import FOLDER, needs_shared_data
from typer.testing import CliRunner

from scalerl.cli import app

LOGS = sorted((FOLDER / "foreign_logs").glob("*")) if FOLDER.is_dir() else []


def _curves(path: Path) -> list[dict]:
    result = CliRunner().invoke(app, ["fit", str(path), "--json"])
    assert result.exit_code == 0, result.output or result.exception
    return json.loads(result.output)["curves"]


@needs_shared_data
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_shared_log_is_fitted(path: Path) -> None:
    assert _curves(path)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("style", ["verl"])  # all styles give the same numbers: formats/test_console.py
def test_console_output_is_fitted(tmp_path: Path, style: str, scale: int) -> None:
    (tmp_path / "train.log").write_text(STYLES[style]([scale * reward for reward in rising(30)]))
    [curve] = _curves(tmp_path / "train.log")
    assert curve["num_points"] >= 29
    assert curve["ceiling"]["value"] == pytest.approx(scale * 0.7, rel=0.1)


def test_tensorboard_folder_is_fitted(tmp_path: Path) -> None:
    writer = tensorboardX.SummaryWriter(str(tmp_path / "project/run"))
    for step, reward in enumerate(rising(30)):
        writer.add_scalar("val-core/gsm8k/acc/mean@1", reward, step, walltime=1.5e9 + 60 * step)
    writer.close()
    [curve] = _curves(tmp_path)
    assert [fact["kind"] for fact in curve["facts"]] == ["start_at_zero"]
