"""What still needs a GPU, in three calls of less than ten minutes each, on one H200.

    python benchmarks/session.py 1 --out OUT      the GPU tests, in one pass, twice; a base beside the second
    python benchmarks/session.py 2 --out OUT      gpu-reuse and gpu-batch-rate
    python benchmarks/session.py 3 --out OUT      a GPU of 24 GB, 8B beside vLLM, the loop against its parts
    python benchmarks/session.py 1 2 3 --check    each at a size that only shows that it runs, on a CPU

A step is a command with a share of the time. One that takes longer is ended, with all that it started, and the next
begins; what it had written stays. OUT gets a log for each step, and session.json with exit status and seconds. The base
that call 1 makes is in runs/bases, where call 2 looks for it. On another machine call 2 makes it first.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
BASE = "runs/bases/10m-wide"
HUNG = 124
"""Exit status of a step that was ended, as `timeout` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a call; OUT in it is the folder for what it writes."""

    name: str
    seconds: float
    words: tuple[str, ...]
    check: tuple[str, ...]
    """The same at a size for a CPU."""
    is_beside: bool = False
    """Whether the next step begins at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    name: str
    status: int
    seconds: float


def script(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(FOLDER / name), *words)


TESTS = (sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--durations=10")
COLLECT = (*TESTS, "--collect-only")
STUDIES = ("gpu-reuse", "gpu-batch-rate")
CALLS: dict[str, tuple[Step, ...]] = {
    "1": (
        Step(name="tests", seconds=290, words=TESTS, check=COLLECT),
        Step(
            name="base",
            seconds=290,
            words=script("call.py", "--make", BASE),
            check=script("call.py", "--help"),
            is_beside=True,
        ),
        Step(name="tests-again", seconds=280, words=TESTS, check=COLLECT),
    ),
    "2": (
        Step(
            name="studies",
            seconds=580,
            words=script("call.py", *STUDIES, "--seconds", "540", "--jobs", "12", "--out", "OUT/studies"),
            check=script("call.py", *STUDIES, "--check"),
        ),
    ),
    "3": (
        Step(
            name="home-gpu",
            seconds=220,
            words=script("home_gpu.py", "--total", "170", "--seconds", "40", "--json", "OUT/home.json"),
            check=script("home_gpu.py", "--tiny", "--steps", "2", "--json", "OUT/home.json"),
        ),
        Step(
            name="8b",
            seconds=210,
            words=script(
                "gpu.py", "--shapes", "8b", "--parts", "torch,vllm,learn", "--seconds", "8", "--json", "OUT/8b.jsonl"
            ),
            check=script("gpu.py", "--shapes", "8b", "--parts", "torch,learn", "--quick", "--json", "OUT/8b.jsonl"),
        ),
        Step(
            name="gaps",
            seconds=150,
            words=script(
                "gpu.py", "--shapes", "10m,135m,1.5b", "--parts", "gaps", "--seconds", "5", "--json", "OUT/gaps.jsonl"
            ),
            check=script("gpu.py", "--shapes", "tiny", "--parts", "gaps", "--quick", "--json", "OUT/gaps.jsonl"),
        ),
    ),
}


def run_call(steps: Sequence[Step], out: Path, *, checks: bool = False) -> list[Outcome]:
    """Run the steps one after the other, those beside others too; return what became of each."""
    out.mkdir(parents=True, exist_ok=True)
    running: list[tuple[Step, float, subprocess.Popen[bytes]]] = []
    outcomes: list[Outcome] = []
    for place, step in enumerate(steps):
        running.append((step, time.monotonic(), started(step, out, checks=checks)))
        if not step.is_beside or place + 1 == len(steps):
            outcomes += all_ended(running)
            running = []
            write(out, outcomes)
    return outcomes


def all_ended(running: Sequence[tuple[Step, float, "subprocess.Popen[bytes]"]]) -> list[Outcome]:
    """Wait for steps that run side by side; each ends at its own time."""
    with ThreadPoolExecutor(len(running)) as threads:
        return list(threads.map(lambda each: ended(*each), running))


def started(step: Step, out: Path, *, checks: bool) -> "subprocess.Popen[bytes]":
    words = [word.replace("OUT", str(out)) for word in (step.check if checks else step.words)]
    with (out / f"{step.name}.log").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)


def ended(step: Step, began: float, process: "subprocess.Popen[bytes]") -> Outcome:
    """Wait for a step, and end it and all that it started when its time is up."""
    try:
        status = process.wait(max(began + step.seconds - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        status = HUNG
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcome = Outcome(name=step.name, status=status, seconds=round(time.monotonic() - began, 1))
    print(f"{step.name}: exit status {status} after {outcome.seconds:.0f} s", flush=True)
    return outcome


def write(out: Path, outcomes: Sequence[Outcome]) -> None:
    path = out / "session.json"
    before = json.loads(path.read_text()) if path.exists() else []
    names = {outcome.name for outcome in outcomes}
    kept = [row for row in before if row["name"] not in names]
    path.write_text(json.dumps([*kept, *map(asdict, outcomes)], indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="+", choices=tuple(CALLS))
    parser.add_argument("--out", type=Path, default=Path("runs/session"))
    parser.add_argument("--check", action="store_true", help="small sizes, to see that it runs")
    arguments = parser.parse_args()
    steps = [step for call in arguments.calls for step in CALLS[call]]
    outcomes = run_call(steps, arguments.out.absolute(), checks=arguments.check)
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
