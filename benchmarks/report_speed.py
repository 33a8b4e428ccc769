"""Time and page size of `scalerl report` for 30 runs x 200 evaluations, against limits of 8 seconds and 6 MB."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

NUM_ARMS, NUM_SEEDS, NUM_EVALS = 15, 2, 200
MOST_SECONDS, MOST_MB = 8.0, 6.0


def write_run(folder: Path, arm: int, seed: int) -> None:
    """Write a run with evaluations every ten steps, on four axes that are not proportional to each other."""
    noise = np.random.default_rng([arm, seed])
    ceiling, exponent, midpoint = 0.5 + 0.01 * arm + 0.005 * noise.normal(), 1.5 + 0.05 * arm, 500 + 20 * arm
    folder.mkdir(parents=True)
    recipe = {"seed": seed, "loss": {"name": "cispo", "cap": 2.0 + arm}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "status.json").write_text('{"status": "done", "reason": "budget spent"}')
    evals, metrics = [], []
    hours = flops = tokens = 0.0
    for step in range(NUM_EVALS + 1):
        if step:
            length = 1 + step / NUM_EVALS
            hours += 0.1 * (0.5 + 0.5 * length) * (1 + 0.1 * abs(noise.normal()))
            flops, tokens = flops + 1e16 * length**1.1, tokens + 1e5 * length
        spent = {"step": 10 * step, "attempt": 1, "gpu_hours": hours, "flops": flops, "tokens": tokens}
        rate = 0.3 + ((ceiling - 0.3) / (1 + (midpoint / (10 * step)) ** exponent) if step else 0.0)
        reward = float(np.clip(rate + 0.006 * noise.normal(), 0, 1))
        evals.append({**spent, "set": "main", "reward": reward, "num_samples": 4000, "prompts_hash": "p"})
        metrics.append({**spent, "loss/entropy": 1.0, "loss/kl": 0.01, "rollout/truncated_frac": 0.02})
    for name, rows in (("evals.jsonl", evals), ("metrics.jsonl", metrics)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs = []
        for arm in range(NUM_ARMS):
            for seed in range(NUM_SEEDS):
                name = f"runs/arm{arm:02d}-seed{seed}"
                write_run(folder / name, arm, seed)
                runs.append({"arm": f"arm{arm:02d}", "seed": seed, "folder": name})
        (folder / "study.json").write_text(json.dumps({"name": "speed", "runs": runs}))
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "scalerl", "report", str(folder)], check=True, capture_output=True)
        seconds = time.perf_counter() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = (folder / "report.html").stat().st_size / 1e6
    table = Table(title=f"{len(runs)} runs x {NUM_EVALS} evaluations", title_justify="left", box=None)
    for column in ("", "measured", "limit", ""):
        table.add_column(column, justify="right")
    table.add_row("seconds", f"{seconds:.1f}", f"{MOST_SECONDS:g}", "ok" if seconds < MOST_SECONDS else "over")
    table.add_row("MB of the page", f"{size:.2f}", f"{MOST_MB:g}", "ok" if size < MOST_MB else "over")
    console = Console()
    console.print(table)
    cpu = used.ru_utime + used.ru_stime
    console.print(f"{cpu:.1f} s of CPU time on {os.cpu_count()} cores, with a load of {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
