"""Kill runs at random moments and resume them: is any group lost, or trained twice?

    python benchmarks/kills.py [--kills 40] [--seed 0] [--only critic+tools]

Every layout is a short run of the tiny model. It is ended by SIGKILL at moments drawn between start and end, the
whole process group or the driver alone, and resumed until it is done. Then its rows must hold every step once and every
group once, and one more resume must find nothing to do. Exit status 1: a run had a fault.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerl import store

STEPS = 24
SETTINGS = (
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=4",
    "rollout.slots=32",
    "evaluation={every=6, num_prompts=8, samples_per_prompt=2}",
    "checkpoint.every=3",
    f"budget.steps={STEPS}",
)
MOST_S = 600.0
"""A run that takes longer is stuck."""


@dataclass(frozen=True, slots=True)
class Layout:
    recipe: str
    settings: tuple[str, ...] = ()
    groups_per_step: int | None = 4
    """None where a batch may be smaller."""


LAYOUTS = {
    "lag of 1": Layout("tiny-cpu", ("pipeline.max_lag=1",)),
    "lag of 8": Layout("tiny-cpu", ("pipeline.max_lag=8", "rollout.slots=128")),
    "waits for groups": Layout("tiny-cpu", ("pipeline.waits_for=groups", "pipeline.max_lag=2")),
    "off-policy 4": Layout("tiny-cpu", ("pipeline={max_lag=3, push_every=4, drain=true}",)),
    "refill": Layout("tiny-cpu", ("filter.refill=10",), None),
    "critic": Layout("tiny-ppo"),
    "pools": Layout("tiny-cpu", ('curriculum="pools"', "task.num_problems=40")),
    "imitation and band": Layout("tiny-cpu", ('imitation="correct"', 'correction="band"')),
    "KL to the start": Layout("tiny-cpu", ("kl.coefficient=0.01",)),
    "tools": Layout("tiny-tools"),
    "math and programs": Layout("tiny-math-code"),
    "two ranks": Layout("tiny-cpu", ("learner.ranks=2",)),
    "two generators on Ray": Layout("tiny-cpu", ("rollout.generators=2", "cluster.address=local")),
}


def command(layout: Layout, folder: Path) -> list[str]:
    words = [word for setting in (*SETTINGS, *layout.settings) for word in ("--set", setting)]
    resume = ["--resume"] if (folder / store.RECIPE).is_file() else []
    return [
        sys.executable,
        "-m",
        "scalerl",
        "train",
        layout.recipe,
        "--no-plots",
        "--out",
        str(folder),
        *words,
        *resume,
    ]


def ended_after(layout: Layout, folder: Path, seconds: float, whole_group: bool) -> bool:
    """Start or resume a run and kill it after some seconds; return whether it was still running."""
    with (folder.with_suffix(".log")).open("a") as log:
        process = subprocess.Popen(command(layout, folder), stdout=log, stderr=log, start_new_session=True)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        return True
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: {folder.with_suffix('.log').read_text()[-2000:]}")
    return False


def check(layout: Layout, folder: Path) -> str:
    """Return what is wrong with the rows of a run that has ended; empty if nothing is."""
    rows = store.read_metrics(folder)
    if [row["step"] for row in rows] != list(range(1, STEPS + 1)):
        return f"steps {[row['step'] for row in rows]}"
    groups = [key for row in rows for key in row["groups"]]
    if len(groups) != len(set(groups)):
        return f"{len(groups) - len(set(groups))} groups were trained twice"
    if layout.groups_per_step and len(groups) != layout.groups_per_step * STEPS:
        return f"{len(groups)} groups in {STEPS} steps of {layout.groups_per_step}"
    return ""


def outcome(layout: Layout, folder: Path) -> tuple[str, int]:
    """Resume a run to its end, and once more; return what is wrong with it, and how many groups it trained."""
    ended_after(layout, folder, MOST_S, True)
    before = (folder / store.METRICS).read_bytes()
    ended_after(layout, folder, MOST_S, True)
    fault = check(layout, folder)
    if (folder / store.METRICS).read_bytes() != before:
        fault = fault or "the resume of a run that had ended wrote rows"
    return fault, sum(len(row["groups"]) for row in store.read_metrics(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="layouts, with + between them")
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    names = given.only.split("+") if given.only else list(LAYOUTS)
    print("| layout | kills | runs | seconds | groups | fault |\n|---|---|---|---|---|---|")
    num_faults = 0
    with tempfile.TemporaryDirectory() as where:
        for number, name in enumerate(names):
            layout, began = LAYOUTS[name], time.monotonic()
            faults, num_groups, kills, runs = [], 0, 0, 0
            wanted = given.kills // len(names) + (number < given.kills % len(names))
            ended_after(layout, Path(where, f"{number}"), MOST_S, True)
            whole_s = time.monotonic() - began
            while kills < wanted:
                folder, runs = Path(where, f"{number}-{runs}"), runs + 1
                # A kill may come before the first checkpoint, between two, or while the last one is written.
                while kills < wanted and ended_after(
                    layout, folder, draw.uniform(0.1, 0.9) * whole_s, draw.random() < 0.5
                ):
                    kills += 1
                fault, num = outcome(layout, folder)
                num_groups += num
                faults += [fault] * bool(fault)
            num_faults += len(faults)
            took_s = time.monotonic() - began
            print(f"| {name} | {kills} | {runs} | {took_s:.0f} | {num_groups} | {'; '.join(faults)} |", flush=True)
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
