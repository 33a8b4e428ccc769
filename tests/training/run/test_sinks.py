"""Rows of a run in other places, and what happens when such a place fails."""

import functools
import importlib.util
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import SinkError
from scalerl.forecast.logs import Selection, read
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.training.run import sinks
from scalerl.training.run.rows import Rows
from scalerl.training.run.sinks import SINKS, Sinks, SinkWarning, check_sinks, scalars

TRAIN = {"step": 3, "attempt": 2, "reward/mean": 0.25, "tokens": 12, "loss/value": None, "groups": [1, 2], "odd": True}
EVAL = {"step": 3, "attempt": 2, "set": "main", "reward": 0.5, "num_correct": [1, 0], "prompts_hash": "ab"}


def fill(name: str, folder: Path, attempt: int = 1, steps: range = range(1, 5), scale: float = 1.0) -> None:
    folder.mkdir(exist_ok=True)
    recipe = {"seed": 0, "loss": {"name": "cispo"}}
    # Rows of an earlier attempt are not sent again.
    rows = Rows(folder, metrics=[{"step": 0, "reward/mean": 9.0}])
    opened = Sinks([name], rows, folder=folder, recipe=recipe, attempt=attempt)
    for step in steps:
        row = {"step": step, "attempt": attempt, "reward/mean": scale * step / 7, "gpu_hours": step / 3}
        rows.metrics.append(row)
        if step % 2 == 0:
            for name in ("main", "hard"):
                row = {"step": step, "attempt": attempt, "set": name, "reward": scale * step / 9, "num_correct": [1]}
                rows.evals.append(row)
        if step % 3:
            opened.after_step(None, None)
    opened.close()


class Recorder:
    """A sink that fails in the given calls."""

    def __init__(self, *fails_in: str) -> None:
        self.calls: list[Any] = []
        self.fails_in = fails_in
        self.open()

    def _called(self, name: str, *arguments: Any) -> None:
        if name in self.fails_in:
            raise ConnectionError("the network is gone")
        self.calls.append((name, *arguments))

    open = functools.partialmethod(_called, "open")
    log = functools.partialmethod(_called, "log")
    close = functools.partialmethod(_called, "close")


def send_all(folder: Path) -> None:
    rows = Rows(folder)
    opened = Sinks(["tensorboard", "wandb"], rows, folder=folder, recipe={}, attempt=1)
    rows.metrics.append(TRAIN)
    rows.evals.append(EVAL)
    opened.after_step(None, None)
    opened.close()


@pytest.mark.parametrize("fails_in", ["open", "log", "close"])
def test_failing_sink_is_dropped_with_one_warning(monkeypatch, tmp_path, fails_in):
    good = Recorder()
    monkeypatch.setitem(SINKS, "wandb", lambda *_: good)
    monkeypatch.setitem(SINKS, "tensorboard", lambda *_: Recorder(fails_in))
    with pytest.warns(SinkWarning) as warned:
        send_all(tmp_path)
    (warning,) = warned
    assert re.match(r"the sink tensorboard failed .* \(ConnectionError: the network is gone\)", str(warning.message))
    rows = [("log", scalars(TRAIN, "train"), 3), ("log", scalars(EVAL, "eval"), 3)]
    assert good.calls == [("open",), *rows, ("close",)]


def test_every_sink_of_the_recipe_has_a_function_and_a_package():
    names = set(Recipe.model_fields["sinks"].annotation.__args__[0].__args__)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert names == set(SINKS) == set(sinks.PACKAGES)
    assert load_recipe("tiny-cpu").sinks == ()
    assert load_recipe("tiny-cpu", ['sinks=["wandb", "tensorboard"]']).sinks == ("wandb", "tensorboard")


def test_only_finite_numbers_are_sent():
    assert scalars(TRAIN, "train") == {"train/reward/mean": 0.25, "train/tokens": 12}
    assert scalars(EVAL, "eval") == {"eval/main/reward": 0.5}
    assert scalars({"step": 1, "a": float("nan"), "b": float("inf")}, "train") == {}


def test_missing_sink_package_is_found_before_training(monkeypatch):
    check_sinks(["tensorboard"])
    monkeypatch.setattr(sinks, "find_spec", lambda name: None if name == "tensorboardX" else object())
    check_sinks(["wandb", "trackio"])
    with pytest.raises(
        SinkError, match=r'^sinks names "tensorboard", whose package is not installed: pip install tensorboardX$'
    ):
        check_sinks(["wandb", "tensorboard"])


def test_tensorboard_holds_the_numbers_of_the_latest_attempt(tmp_path):
    fill("tensorboard", tmp_path / "run", attempt=1, steps=range(1, 4))
    fill("tensorboard", tmp_path / "run", attempt=2, steps=range(3, 5), scale=2.0)
    expected = {"train/reward/mean": {1: 1 / 7, 2: 2 / 7, 3: 6 / 7, 4: 8 / 7}}
    expected |= {f"eval/{name}/reward": {2: 2 / 9, 4: 8 / 9} for name in ("main", "hard")}
    for name, points in expected.items():
        (curve,) = read([tmp_path / "run" / "tensorboard"], Selection(x="step", y=name))
        assert dict(zip(curve.compute, curve.reward, strict=True)) == pytest.approx(points)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the package wandb is not installed")
@pytest.mark.slow
def test_wandb_works_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    fill("wandb", tmp_path / "run")
    fill("wandb", tmp_path / "run", attempt=2, steps=range(3, 5))
    written = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(written) == 2
    content = written[0].read_bytes()
    for name in (b"train/reward/mean", b"eval/main/reward", b"eval/hard/reward", b"cispo"):
        assert name in content


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="the package trackio is not installed")
@pytest.mark.slow
def test_trackio_holds_the_numbers_of_the_rows(trackio_folder, tmp_path):
    fill("trackio", tmp_path / "run")
    with closing(sqlite3.connect(trackio_folder / "scalerl.db")) as data:
        rows = data.execute("SELECT step, CAST(metrics AS TEXT) FROM metrics").fetchall()
    assert [step for step, metrics in rows if "train/reward/mean" in metrics] == [1, 2, 3, 4]
    assert [step for step, metrics in rows if "eval/hard/reward" in metrics] == [2, 4]
