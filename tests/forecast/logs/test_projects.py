"""Projects of trackers by name: wandb's through a fake of its public interface, trackio's from a database."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from log_texts import rising
from read_logs import fault, read

REWARDS = rising(20)


class FakeRun:
    """A run as wandb's public interface shows it."""

    def __init__(self, name: str, key: str, scale: float) -> None:
        self.name, self.id, self.scale = name, key, scale

    def scan_history(self) -> Iterator[dict[str, Any]]:
        for step, reward in enumerate(REWARDS, start=1):
            loss = "NaN" if step == 3 else 0.5
            yield {"_step": step, "eval/acc": self.scale * reward, "loss": loss, "table": {"_type": "table-file"}}


def fake_wandb(runs: list[FakeRun]) -> Any:
    class Api:
        def __init__(self, timeout: int) -> None:
            assert timeout > 0

        def runs(self, path: str) -> list[FakeRun]:
            if path != "me/rl":
                raise ValueError("Could not find project")
            return runs

        def run(self, path: str) -> FakeRun:
            return next(run for run in runs if path == f"me/rl/{run.id}")

    return SimpleNamespace(Api=Api)


@pytest.fixture
def wandb_project(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [FakeRun("base", "a1", 1.0), FakeRun("new", "b2", 0.5), FakeRun("new", "c3", 0.25)]
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(runs))


@pytest.mark.usefixtures("wandb_project")
def test_wandb_project_has_a_curve_for_each_run() -> None:
    curves = read("wandb:me/rl")
    assert [series.name for series in curves] == ["base", "new b2", "new c3"]
    assert [series.reward[-1] for series in curves] == pytest.approx([scale * REWARDS[-1] for scale in (1, 0.5, 0.25)])
    assert {(series.x_label, series.y_label) for series in curves} == {("_step", "eval/acc")}


@pytest.mark.usefixtures("wandb_project")
def test_wandb_run_is_one_curve() -> None:
    (series,) = read("wandb:me/rl/b2")
    assert series.reward.tolist() == pytest.approx([0.5 * reward for reward in REWARDS])


@pytest.mark.usefixtures("wandb_project")
def test_unknown_wandb_project_is_one_sentence() -> None:
    assert "wandb:me/other cannot be read (Could not find project)" in fault("wandb:me/other")


def test_wandb_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert fault("wandb:me/rl") == "wandb:me/rl is read through its package: pip install wandb."


def test_trackio_project_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    with sqlite3.connect(tmp_path / "my-project.db") as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)")
        for run in ("a", "b"):
            rows = [(run, step, json.dumps({"eval/acc": reward})) for step, reward in enumerate(REWARDS, start=1)]
            database.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", rows)
    assert [(series.name, len(series.compute)) for series in read("trackio:my-project")] == [("a", 20), ("b", 20)]
    assert "it has my-project." in fault("trackio:other")


def test_a_file_with_a_colon_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wandb:x").write_text("step,reward\n" + "".join(f"{at},{reward}\n" for at, reward in enumerate(REWARDS)))
    assert len(read("wandb:x")) == 1
