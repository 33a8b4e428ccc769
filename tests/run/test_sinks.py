"""Rows of a run in other places, and what happens when such a place fails."""

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scalerl.config import Recipe, load_recipe
from scalerl.errors import SinkError
from scalerl.logs.formats import read_table
from scalerl.logs.table import Table
from scalerl.run import sinks
from scalerl.run.sinks import SINKS, Sinks, SinkWarning, check_sinks, scalars

TRAIN = {"step": 3, "attempt": 2, "reward/mean": 0.25, "tokens": 12, "loss/value": None, "groups": [1, 2], "odd": True}
EVAL = {"step": 3, "attempt": 2, "set": "main", "reward": 0.5, "num_correct": [1, 0], "prompts_hash": "ab"}


def fill(name: str, folder: Path, attempt: int = 1, steps: range = range(1, 5), scale: float = 1.0) -> None:
    folder.mkdir(exist_ok=True)
    opened = Sinks([name], folder, {"seed": 0, "loss": {"name": "cispo"}}, attempt)
    for step in steps:
        opened.log({"step": step, "attempt": attempt, "reward/mean": scale * step / 7, "gpu_hours": step / 3}, "train")
        if step % 2 == 0:
            for one in ("main", "hard"):
                row = {"step": step, "attempt": attempt, "set": one, "reward": scale * step / 9, "num_correct": [1]}
                opened.log(row, "eval")
    opened.close()


def column(table: Table, name: str) -> list[float]:
    return [row[name] for row in table.rows if row.get(name) is not None]


class Recorder:
    """A sink that fails when it is told to."""

    def __init__(self, fails_in: str = "") -> None:
        self.rows: list[tuple[dict[str, float], int]] = []
        self.fails_in, self.closed = fails_in, False

    def log(self, values: dict[str, float], step: int) -> None:
        if self.fails_in == "log":
            raise ConnectionError("the network is gone")
        self.rows.append((values, step))

    def close(self) -> None:
        self.closed = True
        if self.fails_in == "close":
            raise ConnectionError("the network is gone")


def use(monkeypatch: pytest.MonkeyPatch, **recorders: Recorder) -> None:
    for name, recorder in recorders.items():
        monkeypatch.setitem(SINKS, name, lambda *_, recorder=recorder: recorder)


def test_every_sink_of_the_recipe_has_a_function_and_a_package():
    names = set(Recipe.model_fields["sinks"].annotation.__args__[0].__args__)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert names == set(SINKS) == set(sinks._PACKAGES)
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


def test_failing_sink_is_dropped_with_one_warning(monkeypatch, tmp_path):
    good, bad = Recorder(), Recorder("log")
    use(monkeypatch, tensorboard=bad, wandb=good)
    opened = Sinks(["tensorboard", "wandb"], tmp_path, {}, 1)
    with pytest.warns(SinkWarning, match=r"the sink tensorboard failed .* \(ConnectionError: the network is gone\)"):
        opened.log(TRAIN, "train")
    # Warnings are errors here: a second one would fail the test.
    opened.log(EVAL, "eval")
    opened.close()
    assert good.rows == [(scalars(TRAIN, "train"), 3), (scalars(EVAL, "eval"), 3)]
    assert good.closed
    assert not bad.closed


def test_sink_that_fails_to_open_or_close_is_dropped(monkeypatch, tmp_path):
    def refuses(*_: Any) -> Any:
        raise RuntimeError("no API key")

    monkeypatch.setitem(SINKS, "wandb", refuses)
    other = Recorder("close")
    use(monkeypatch, tensorboard=other)
    with pytest.warns(SinkWarning, match="the sink wandb failed"):
        opened = Sinks(["wandb", "tensorboard"], tmp_path, {}, 1)
    opened.log(TRAIN, "train")
    assert other.rows == [(scalars(TRAIN, "train"), 3)]
    with pytest.warns(SinkWarning, match="the sink tensorboard failed"):
        opened.close()


def test_tensorboard_holds_the_numbers_of_the_rows(tmp_path):
    fill("tensorboard", tmp_path / "run")
    table = read_table(str(tmp_path / "run" / "tensorboard"))
    assert table.kind == "tensorboard"
    assert column(table, "step") == [1, 2, 3, 4]
    assert column(table, "train/reward/mean") == pytest.approx([step / 7 for step in range(1, 5)])
    for one in ("main", "hard"):
        assert column(table, f"eval/{one}/reward") == pytest.approx([2 / 9, 4 / 9])


def test_later_attempt_counts_in_tensorboard(tmp_path):
    fill("tensorboard", tmp_path / "run", attempt=1, steps=range(1, 4))
    fill("tensorboard", tmp_path / "run", attempt=2, steps=range(3, 5), scale=2.0)
    table = read_table(str(tmp_path / "run" / "tensorboard"))
    assert column(table, "step") == [1, 2, 3, 4]
    assert column(table, "train/reward/mean") == pytest.approx([1 / 7, 2 / 7, 6 / 7, 8 / 7])


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
def test_trackio_holds_the_numbers_of_the_rows(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    fill("trackio", tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "trackio" / "scalerl.db")) as data:
        rows = data.execute("SELECT step, CAST(metrics AS TEXT) FROM metrics").fetchall()
    assert [step for step, metrics in rows if "train/reward/mean" in metrics] == [1, 2, 3, 4]
    assert [step for step, metrics in rows if "eval/hard/reward" in metrics] == [2, 4]
