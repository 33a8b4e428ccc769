"""The page on other trainers' logs while they are written, and on a real run of ours while it trains."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from boards import ServedBoard, wait_until


def reward_at(step: int) -> float:
    return 0.2 + 0.4 / (1 + (20 / step) ** 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def board(folder: Path) -> Iterator[ServedBoard]:
    with ServedBoard(folder) as served:
        yield served


def num_points(board: ServedBoard, name: str) -> int:
    rows = {row["name"]: row for row in board.json("/api/runs")["runs"]}
    points = rows[name]["points"] if name in rows else None
    return 0 if points is None else len(points["compute"])


def test_verl_console_log_line_by_line(board: ServedBoard, folder: Path):
    path = folder / "verl.log"
    path.write_text("(TaskRunner pid=1) starting\n")
    for step in range(5, 45, 5):
        with path.open("a") as file:
            line = (
                f"step:{step} - val-core/math/acc/mean@8:{reward_at(step):.4f} - actor/entropy:0.4 - timing_s/step:30"
            )
            file.write(f"(TaskRunner pid=1) {line} - timing_s/step:30 - timing_s/gen:20 - response_length/mean:300\n")
        wait_until(lambda step=step: num_points(board, "verl") >= step // 5 or step < 10)
    detail = wait_until(lambda: _with_fit(board, "verl"))
    assert detail["kind"] == "console"
    assert {"loss/entropy", "rollout/length_mean"} <= {line["key"] for line in detail["run"]["signals"]["lines"]}
    assert {part["label"] for part in detail["run"]["times"]["step"]} == {
        "sampling and waiting for answers",
        "everything else",
    }


def _with_fit(board: ServedBoard, name: str) -> Any:
    detail = board.run(name)
    return detail if detail["verdict"] not in ("", "no curve") else None


def test_trainer_state_that_is_rewritten(board: ServedBoard, folder: Path):
    history: list[dict[str, Any]] = []
    for step in range(10, 60, 10):
        history.append({"step": step, "reward": reward_at(step), "entropy": 0.3, "completions/mean_length": 50.0})
        checkpoint = folder / "trl" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        state = {"global_step": step, "log_history": history, "max_steps": 100}
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
        wait_until(lambda step=step: num_points(board, "trl") >= step // 10 or step < 30)
    assert board.run("trl")["kind"] == "json"


def test_tensorboard_events_that_grow(board: ServedBoard, folder: Path):
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(folder / "tb"), flush_secs=1) as writer:
        for step in range(10, 70, 10):
            writer.add_scalar("eval/reward", reward_at(step), global_step=step)
            writer.flush()
            wait_until(lambda step=step: num_points(board, "tb") >= step // 10 or step < 30)
    assert num_points(board, "tb") == 6


def test_long_file_is_refused_and_the_rest_goes_on(board: ServedBoard, folder: Path):
    with (folder / "huge.log").open("wb") as file:
        file.write(b"step:1 - reward:0.5 ")
        file.truncate(1 << 30)  # a line of 1 GB, most of it a hole
    (folder / "small.csv").write_text("step,reward\n" + "".join(f"{n},{reward_at(n)}\n" for n in range(5, 50, 5)))
    wait_until(lambda: num_points(board, "small") == 9)
    assert all(row["name"] != "huge" for row in board.json("/api/runs")["runs"])
    with ServedBoard(folder / "huge.log") as named:
        row = wait_until(lambda: [row for row in named.json("/api/runs")["runs"] if "MB" in row["problem"]])[0]
        assert "is not followed" in row["problem"]
        assert named.process is not None
        memory = Path(f"/proc/{named.process.pid}/status").read_text()
        assert int(memory.partition("VmHWM:")[2].split()[0]) < 300_000


@pytest.mark.slow
def test_real_run_while_it_trains(tmp_path: Path, browser: Any):
    """What make demo trains, shorter: the curve grows in the browser while it trains, and samples are searched."""
    out = tmp_path / "demo"
    changes = ("budget.steps=24", "evaluation.every=2", "evaluation.num_prompts=32", "evaluation.samples_per_prompt=1")
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--out", str(out), "--no-plots", *words]
    with (
        ServedBoard(out, options=("--port", "0", "--wait")) as board,
        (tmp_path / "train.log").open("w") as log,
        ExitStack() as stack,
    ):
        run = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(run.kill)
        tab = browser.new_page()
        tab.goto(board.link)
        counts = []
        while run.poll() is None:
            counts.append(tab.locator("#curves svg circle").count())
            tab.wait_for_timeout(500)
        assert run.returncode == 0
        wait_until(lambda: tab.locator("#curves svg circle").count() >= 10, seconds=60)
        assert len({count for count in counts if count}) >= 3, counts
        wait_until(lambda: tab.locator("#history svg circle").count() >= 3, seconds=60)
        tab.locator("#sample-search").fill("+")
        tab.wait_for_selector(".sample")
        tab.close()
