"""The page on other trainers' logs while they are written, and on a real run of ours while it trains."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from boards import ServedBoard
from until import wait_until

from scalerl.forecast.report.board.snapshot import take_snapshot
from scalerl.forecast.report.safe_files import Root
from scalerl.forecast.report.sources import Source


def reward_at(step: int) -> float:
    return 0.2 + 0.4 / (1 + (20 / step) ** 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def board(folder: Path) -> Iterator[ServedBoard]:
    with ServedBoard(folder) as served:
        yield served


def verl(path: Path, step: int) -> None:
    """A line of verl's, as it prints them."""
    with path.with_suffix(".log").open("a") as file:
        values = f"val-core/math/acc/mean@8:{reward_at(step):.4f} - actor/entropy:0.4 - response_length/mean:300"
        file.write(f"(TaskRunner pid=1) step:{step} - {values} - timing_s/step:30 - timing_s/gen:20\n")


def trl(path: Path, step: int) -> None:
    """The states of a transformers trainer, each in a folder of its own with all rows so far."""
    rows = [{"step": at, "reward": reward_at(at), "entropy": 0.3, "completions/mean_length": 50.0}
            for at in range(10, step + 1, 10)]  # fmt: skip
    (path / f"checkpoint-{step}").mkdir(parents=True)
    content = {"global_step": step, "log_history": rows, "max_steps": 100}
    (path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(content))


@cache
def writer_of(path: Path) -> Any:
    return pytest.importorskip("tensorboardX").SummaryWriter(str(path), flush_secs=1)  # a flush misses the last event


def tb(path: Path, step: int) -> None:
    writer_of(path).add_scalar("eval/reward", reward_at(step), global_step=step, walltime=1.8e9 + 60 * step)
    writer_of(path).flush()


@pytest.mark.parametrize(("write", "kind"), [(verl, "console"), (trl, "json"), (tb, "tensorboard")])
def test_log_that_grows_is_followed(board: ServedBoard, folder: Path, write: Callable[..., None], kind: str):
    name = write.__name__

    def num_points() -> int:
        return board.page(board.runs().get(name, "none")).count('class="fitted"')

    for step in range(10, 70, 10):
        write(folder / name, step)
        wait_until(lambda step=step: num_points() >= step // 10 or step < 30)
    wait_until(lambda: num_points() == 6)
    part = board.page(board.runs()[name])
    assert f"<span>{kind}</span><span>step 60</span>" in part
    lines = ("loss/entropy", "rollout/length_mean") if write is not tb else ()
    assert all(f'data-key="{key}"' in part for key in lines)


def test_long_file_is_refused(folder: Path):
    with (folder / "huge.log").open("wb") as file:
        file.write(b"step:1 - reward:0.5 ")
        file.truncate(1 << 30)  # a line of 1 GB, most of it a hole
    seen = take_snapshot(Source(path=folder / "huge.log", root=Root(folder), kind="log", name="huge"))
    assert seen.is_empty
    assert "1,074 MB" in seen.problem


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
            counts.append(tab.locator('figure[data-key^="curves/"] circle').count())
            tab.wait_for_timeout(500)
        assert run.returncode == 0
        wait_until(lambda: tab.locator('figure[data-key^="curves/"] circle').count() >= 10, seconds=60)
        assert len({count for count in counts if count}) >= 3, counts
        tab.locator(".head a").click()
        tab.wait_for_selector(".sample")
        tab.close()
