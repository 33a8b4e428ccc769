"""Logs of other people's runs: each is read without an option, or with exactly what the error message says."""

import json
import re
import shlex
from pathlib import Path

import pytest
import tensorboardX
from log_texts import STYLES, rising
from shared_data import FOLDER, needs_shared_data
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.errors import UserError

LOGS = sorted((FOLDER / "foreign_logs").glob("*")) if FOLDER.is_dir() else []


def _advised(message: str) -> list[list[str]]:
    """Return the options that a message names, each on its own: '--y-scale none', '--y COLUMN'."""
    words = " ".join(message.split())
    return [[option, value.rstrip(".,;:")] for option, value in re.findall(r"(--[a-z][a-z-]*) (\S+)", words)]


def _fit(path: Path, *options: str) -> tuple[int, str]:
    """Return the exit code and the output or the message, as the console script gives them."""
    result = CliRunner().invoke(app, ["fit", str(path), "--json", *options])
    if isinstance(result.exception, UserError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def _check(path: Path) -> None:
    code, output = _fit(path)
    if code == 0:
        assert json.loads(output)["curves"]
        return
    assert code == 2, output
    choices = _advised(output)
    assert choices, f"the message names no option: {output}"
    for choice in choices:
        code, after = _fit(path, *choice)
        assert code == 0, f"{shlex.join(choice)} was advised by {output!r} and leads to {after!r}"
        for curve in json.loads(after)["curves"]:
            assert curve["ceiling"]["value"] > 0.05, f"{shlex.join(choice)} gives a ceiling near 0"


@needs_shared_data
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_shared_log_is_read_or_its_advice_works(path: Path) -> None:
    _check(path)


@pytest.mark.parametrize("style", STYLES)
def test_console_output_is_fitted_without_an_option(tmp_path: Path, style: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(STYLES[style](rising(30)))
    code, output = _fit(path)
    assert code == 0, output
    [curve] = json.loads(output)["curves"]
    assert curve["num_points"] >= 29


@pytest.mark.parametrize("style", STYLES)
def test_sums_in_console_output_follow_the_advice(tmp_path: Path, style: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(STYLES[style]([2 * reward for reward in rising(30)]))
    _check(path)


def test_tensorboard_folder_is_fitted_without_an_option(tmp_path: Path) -> None:
    writer = tensorboardX.SummaryWriter(str(tmp_path / "project/run"))
    for step, reward in enumerate(rising(30)):
        writer.add_scalar("val-core/gsm8k/acc/mean@1", reward, step, walltime=1e9 + 60 * step)
    writer.close()
    code, output = _fit(tmp_path)
    assert code == 0, output
    [curve] = json.loads(output)["curves"]
    assert [fact["kind"] for fact in curve["facts"]] == ["start_at_zero"]
