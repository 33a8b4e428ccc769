"""How fast a curve is fitted, against the paper's own grid procedure on the same curve, measured in the same run.

`python benchmarks/fit_speed.py [--before SRC]`: SRC is the `src` folder of an older tree, whose CPU time on the same
curves is measured in turns with this one's; then only that is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from scalerl.curves import Fit, fit


def run(seed: int, num: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A run like the paper's: 40 evaluations over 8,000 GPU-hours."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(800, 8000, num)
    ceiling, exponent, midpoint = rng.uniform(0.5, 0.7), rng.uniform(1.2, 3.0), rng.uniform(1200, 3500)
    reward = 0.4 + (ceiling - 0.4) / (1 + (midpoint / compute) ** exponent) + 0.004 * rng.standard_normal(num)
    return compute, reward


def best_time(work, repeats: int) -> tuple[float, Fit]:
    """Return the least of several times: what the work costs when nothing else runs."""
    best, result = float("inf"), None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    assert result is not None
    return best, result


NUM_TIMED, TURNS = 60, 3


def cpu_ms(rho: float, offset: int) -> float:
    """CPU time of a full fit of 40 points with noise of this autocorrelation, averaged over curves."""
    curves = []
    for seed in range(offset, offset + NUM_TIMED):
        rng = np.random.default_rng(seed)
        noise, compute = rng.standard_normal(40), np.linspace(0.1, 4, 40)
        for index in range(1, 40):
            noise[index] = rho * noise[index - 1] + np.sqrt(1 - rho**2) * noise[index]
        curves.append((compute, 0.4 + 0.2 / (1 + compute**-1.9) + 0.004 * noise))
    fit(*curves[0], start=0.4)
    begin = time.process_time()
    for compute, reward in curves:
        fit(compute, reward, start=0.4)
    return 1e3 * (time.process_time() - begin) / NUM_TIMED


def against(before: str) -> None:
    """Print the CPU time of fits by this tree and by an older one, each measured in processes of their own."""
    print("| noise | before, ms | now, ms | ratio |\n|---|---|---|---|")
    own = os.environ.get("PYTHONPATH", "")
    for name, rho in (("independent", 0.0), ("autocorrelation 0.5", 0.5)):
        times: dict[str, list[float]] = {before: [], own: []}
        for turn in range(TURNS):
            for path, measured in times.items():
                words = [sys.executable, __file__, "--time", json.dumps([rho, turn * NUM_TIMED])]
                done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True)
                measured.append(float(done.stdout))
        was, now = (float(np.mean(times[path])) for path in (before, own))
        print(f"| {name} | {was:.1f} | {now:.1f} | {now / was:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="src folder of an older tree")
    parser.add_argument("--time", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.time:
        rho, offset = json.loads(given.time)
        print(cpu_ms(rho, offset))
        return
    if given.before:
        against(given.before)
        return
    console = Console()
    table = Table(title="One curve of 40 points", title_justify="left", box=None)
    for column in ("curve", "paper's grid", "full fit", "ratio", "intervals=False", "ratio", "sum of squares / grid's"):
        table.add_column(column, justify="right")
    ratios = []
    for seed in range(3):
        compute, reward = run(seed)
        grid_s, grid = best_time(lambda x=compute, y=reward: fit(x, y, start=0.4, method="paper"), 1)
        full_s, _ = best_time(lambda x=compute, y=reward: fit(x, y, start=0.4), 7)
        fast_s, fast = best_time(lambda x=compute, y=reward: fit(x, y, start=0.4, intervals=False), 15)
        ratios.append((grid_s / full_s, grid_s / fast_s))
        table.add_row(
            str(seed),
            f"{grid_s:.2f} s",
            f"{1e3 * full_s:.1f} ms",
            f"{ratios[-1][0]:.0f}x",
            f"{1e3 * fast_s:.2f} ms",
            f"{ratios[-1][1]:.0f}x",
            f"{fast.sum_squares / grid.sum_squares:.6f}",
        )
    console.print(table)
    full, fast = np.min(ratios, axis=0)
    console.print(f"At least {full:.0f} times (full, target 20) and {fast:.0f} times (fast, target 200).\n")

    table = Table(title="Many curves, many points", title_justify="left", box=None)
    for column in ("curves", "points each", "intervals", "seconds", "ms a curve"):
        table.add_column(column, justify="right")
    for num_curves, num_points, intervals in (
        (1000, 40, False),
        (100, 40, True),
        (100, 400, False),
        (20, 400, True),
        (20, 4000, False),
        (5, 4000, True),
    ):
        data = [run(seed, num_points) for seed in range(num_curves)]
        begin = time.perf_counter()
        for compute, reward in data:
            fit(compute, reward, start=0.4, intervals=intervals)
        seconds = time.perf_counter() - begin
        table.add_row(
            f"{num_curves:,}",
            f"{num_points:,}",
            "yes" if intervals else "no",
            f"{seconds:.2f}",
            f"{1e3 * seconds / num_curves:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
