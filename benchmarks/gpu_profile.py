"""Where the time of a part of benchmarks/gpu.py goes: kernels, operations that launch them, and Python functions.

    python benchmarks/gpu_profile.py 10m learn            three tables; --steps N of them, after as many to warm up
    python benchmarks/gpu_profile.py tiny loop --quick    on a CPU too, to see that it runs

Steps are timed without a profiler first, then under torch's profiler, then under cProfile, since both slow them down.
"""

import argparse
import cProfile
import io
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from gpu_cases import CASES, Subject, make_batch, now, quick
from gpu_loop import make_pipeline

MOST_ROWS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=CASES)
    parser.add_argument("part", choices=("learn", "loop", "mixed"))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--plain", action="store_true", help="no profiler: the seconds of each step alone")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    case = CASES[arguments.shape]
    subject = Subject(quick(case) if arguments.quick else case, device)
    step = {"learn": learner_step, "loop": loop_step, "mixed": mixed_round}[arguments.part](subject)
    print(plain_times(step, device, arguments.steps))
    if not arguments.plain:
        print(report(step, device, arguments.steps))


def learner_step(subject: Subject) -> Callable[[], Any]:
    case, learner = subject.case, subject.learner
    num = max(case.step_tokens // case.sequence, 2)
    batch = make_batch(0, subject.vocab, num, case.sequence)
    return lambda: learner.step(replace(batch, version=learner.version))


def loop_step(subject: Subject) -> Callable[[], Any]:
    running = make_pipeline(subject, subject.engine()).steps()
    return lambda: next(running)


def mixed_round(subject: Subject) -> Callable[[], Any]:
    engine = subject.engine()

    def round_() -> None:
        engine.submit(subject.mixed_requests)
        while engine.num_pending:
            engine.poll()

    return round_


def plain_times(step: Callable[[], Any], device: torch.device, num: int) -> str:
    times = [timed(step, device) for _ in range(2 * num)]
    listed = " ".join(f"{seconds:.3f}" for seconds in times)
    return f"median of the last {num}: {statistics.median(times[num:]):.4f} s; all: {listed}"


def report(step: Callable[[], Any], device: torch.device, num: int) -> str:
    """Return the profilers' results as tables."""
    tables = []
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(num):
            timed(step, device)
    averages = profile.key_averages()
    if device.type == "cuda":
        tables.append(averages.table(sort_by="self_cuda_time_total", row_limit=MOST_ROWS, max_name_column_width=60))
    tables.append(averages.table(sort_by="self_cpu_time_total", row_limit=MOST_ROWS, max_name_column_width=60))
    python = cProfile.Profile()
    python.enable()
    for _ in range(num):
        timed(step, device)
    python.disable()
    for order in ("tottime", "cumtime"):
        text = io.StringIO()
        pstats.Stats(python, stream=text).sort_stats(order).print_stats(2 * MOST_ROWS)
        tables.append(text.getvalue())
    return "\n".join(tables)


def timed(step: Callable[[], Any], device: torch.device) -> float:
    start = now(device)
    step()
    return now(device) - start


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s")
