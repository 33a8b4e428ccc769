"""Runs on Ray as commands of their own, which tests can kill."""

import signal
import subprocess
import sys
from pathlib import Path

from until import wait_until

from scalerl.runfolder import store

PATIENCE_S = 600.0
"""For what takes seconds on a machine that does nothing else."""
SETTINGS = {
    "rollout.generators": 2,
    "rollout.silent_s": 8.0,
    "rollout.max_replacements": 100,
    "cluster.address": "local",
    "pipeline.groups_per_batch": 4,
    "pipeline.completions_per_group": 4,
    "pipeline.max_lag": 3,
    "pipeline.waits_for": "groups",
    "evaluation.every": 1000,
    "evaluation.num_prompts": 10,
    "checkpoint.every": 5,
    "budget.steps": 100_000,
}


def start(folder: Path, *, resume: bool = False, **changes: object) -> subprocess.Popen[str]:
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--no-plots", "--out", str(folder), *words]
    return subprocess.Popen(
        command + ["--resume"] * resume, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def num_steps(folder: Path) -> int:
    path = folder / store.METRICS
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for_steps(folder: Path, num: int, driver: subprocess.Popen[str]) -> None:
    def done() -> bool:
        assert driver.poll() is None, driver.communicate()[0]
        return num_steps(folder) >= num

    wait_until(done, PATIENCE_S, f"step {num}")


def check_exactly_once(folder: Path) -> None:
    rows = store.read_metrics(folder)
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == SETTINGS["pipeline.groups_per_batch"] * len(rows)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert max(row["rollout/lag_max"] for row in rows) <= SETTINGS["pipeline.max_lag"]


def kinds_of_loss(folder: Path) -> list[str]:
    return [loss["kind"] for row in store.read_metrics(folder) for loss in row.get("lost", ())]


def stop(driver: subprocess.Popen[str]) -> str:
    driver.send_signal(signal.SIGTERM)
    output, _ = driver.communicate(timeout=PATIENCE_S)
    return output
