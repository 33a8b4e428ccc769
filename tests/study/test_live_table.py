"""A study as a person sees it: how far each run is, where it is heading, and how it ended."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_study import plan_of

from scalerl.forecast.curves import Action, Decision, State, Value
from scalerl.forecast.report.numbers import duration
from scalerl.runfolder import store
from scalerl.study.live_table import Screen, event_line, table
from scalerl.study.progress import Progress, RunStatus, read_progress


def evaluate(folder: Path, hours: Sequence[float], noise: float = 0.0, num_samples: int = 4000) -> None:
    """Add evaluations on a curve with the ceiling 0.7."""
    for hour in hours:
        reward = 0.3 + 0.4 / (1 + (2.0 / hour) ** 1.5) if hour else 0.3
        step = len(store.read_evals(folder))
        row = {"step": step, "attempt": 1, "set": "main", "gpu_hours": hour, "flops": hour, "tokens": hour}
        row |= {"reward": reward + noise * (-1) ** step, "num_samples": num_samples}
        store.append_row(folder / store.EVALS, row)


def test_the_forecast_of_a_run_follows_its_evaluations(tmp_path):
    """Noise-free points on a known curve: the ceiling is in its interval, and a new evaluation is taken up."""
    assert read_progress(tmp_path, "gpu_hours", Progress()) == Progress()
    hours = [0.0, *np.geomspace(0.2, 40, 14)]
    evaluate(tmp_path, hours[:3])
    progress = read_progress(tmp_path, "gpu_hours", Progress())
    assert (progress.reward, progress.ceiling) == (store.read_evals(tmp_path)[-1]["reward"], None)
    evaluate(tmp_path, hours[3:])
    store.append_row(tmp_path / store.METRICS, {"step": 14, "attempt": 1})
    with (tmp_path / store.METRICS).open("a") as file:
        file.write('{"step": 15, "att')
    progress = read_progress(tmp_path, "gpu_hours", progress)
    assert progress.step == 14
    assert progress.decision is not None
    assert progress.decision.state == State.LEVELLING_OFF
    assert progress.ceiling is not None
    assert progress.ceiling.low < 0.7 < progress.ceiling.high
    assert progress.ceiling.value == pytest.approx(0.7, abs=0.01)


def test_run_without_a_rise_has_no_ceiling(tmp_path):
    for step in range(16):
        row = {"step": step, "attempt": 1, "set": "main", "gpu_hours": float(step), "reward": 0.3 + 0.02 * (step % 3)}
        store.append_row(tmp_path / store.EVALS, row)
    progress = read_progress(tmp_path, "gpu_hours", Progress())
    assert progress.decision is not None
    assert (progress.decision.state, progress.ceiling) == (State.FLAT, None)


def test_run_cut_before_its_curve_bends_is_rising(tmp_path):
    evaluate(tmp_path, [0.0, *np.geomspace(0.2, 1, 12)], noise=0.01, num_samples=4000)
    progress = read_progress(tmp_path, "gpu_hours", Progress())
    assert progress.decision is not None
    assert progress.decision.state == State.RISING
    assert progress.ceiling is not None
    assert progress.ceiling.high - progress.ceiling.low > 0.2


def test_damaged_run_folder_does_not_stop_the_study(tmp_path):
    (tmp_path / store.EVALS).write_text("not json\nnor this\n")
    assert read_progress(tmp_path, "gpu_hours", Progress()) == Progress()
    (tmp_path / store.EVALS).unlink()
    for step, reward in enumerate([0.1, 0.2, float("nan"), "high"]):
        store.append_row(tmp_path / store.EVALS, {"step": step, "attempt": 1, "set": "main", "reward": reward})
    assert read_progress(tmp_path, "gpu_hours", Progress()) == Progress(reward=0.2)


def status_of(tmp_path: Path, **more: Any) -> RunStatus:
    return RunStatus(run=plan_of(tmp_path).runs[1], folder=tmp_path, **more)


def test_table_and_lines_have_the_ceiling_and_the_state(tmp_path):
    decision = Decision(state=State.LEVELLING_OFF, action=Action.STOP, worth=0.01)
    ceiling = Value(value=0.7, low=0.65, high=0.81)
    progress = Progress(step=3, reward=0.5, ceiling=ceiling, decision=decision)
    status = status_of(tmp_path, state="done", seconds=23, progress=progress)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(table([status]))
    (line,) = [line for line in console.export_text().splitlines() if "dapo" in line]
    cells = ["dapo", "0", "done", "3/4", "23", "s", "0.500", "0.700", "[0.650,", "0.810]", "levelling", "off"]
    assert line.split() == cells
    for word in ("dapo-seed0", "0.500", "0.700 [0.650, 0.810]", "levelling off"):
        assert word in event_line(status)


def test_on_a_terminal_lines_are_above_the_table(tmp_path):
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system=None)
    screen = Screen(console, num_runs=1)
    status = status_of(tmp_path, state="failed", reason="no memory", seconds=3)
    screen.progressed([status])
    screen.finished(status)
    screen.close()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    last = shown[shown.rindex("[1/1] dapo-seed0 failed after 3 s: no memory") :]
    lines = [line for line in last.splitlines() if line.strip().startswith("dapo ")]
    assert [line.split() for line in lines] == [["dapo", "0", "failed", "3", "s"]] * 2


def test_without_a_terminal_every_event_is_a_line(tmp_path):
    console = Console(record=True, width=20, file=io.StringIO())
    screen = Screen(console, num_runs=4)
    screen.already_done(1)
    screen.started(status_of(tmp_path, state="running"))
    screen.finished(status_of(tmp_path, state="failed", reason="[red]no[/red] memory", seconds=3))
    screen.close()
    assert console.export_text().splitlines() == [
        "1 of 4 runs are already done.", "dapo-seed0 started", "[2/4] dapo-seed0 failed after 3 s: [red]no[/red] memory"
    ]  # fmt: skip
    done = status_of(tmp_path, state="done", seconds=7300, progress=Progress(step=4, reward=0.5))
    assert event_line(done) == "dapo-seed0 done after 2.0 h, reward 0.500"
    assert duration(5 * 86400) == "5.0 days"
