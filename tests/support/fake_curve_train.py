"""Stands in for `scalerl train` with rewards on a curve: pauses, resumes and may die in the middle of a stage.

CURVES.json RECIPE --out DIR [--resume] [--pause-at SHARE]      {"ARM": ceiling, "die": "ARM-seedN", "die_at": step}
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

from scalerl import store

START, EXPONENT, NOISE = 0.3, 1.8, 0.004


def main() -> None:
    curves_file, recipe_file, _, out, *more = sys.argv[1:]
    folder, curves = Path(out), json.loads(Path(curves_file).read_text())
    until = float(more[more.index("--pause-at") + 1]) if "--pause-at" in more else 1.0
    recipe = json.loads(Path(recipe_file).read_text())
    if "--resume" not in more:
        store.create_run(folder)
    store.write_json(folder / store.RECIPE, recipe)
    done = store.read_metrics(folder)[-1]["step"] if "--resume" in more and store.read_metrics(folder) else 0
    attempt = len((folder / "starts.jsonl").read_text().splitlines()) if (folder / "starts.jsonl").exists() else 0
    store.append_row(folder / "starts.jsonl", {"pid": os.getpid(), "until": until, "from": done})
    store.write_json(folder / store.STATUS, {"status": "running", "reason": ""})
    steps = recipe["budget"]["steps"]
    ceiling = curves[folder.name.rpartition("-")[0]]
    for step in range(done + bool(done), round(steps * until) + 1):
        row = {
            "step": step,
            "attempt": attempt + 1,
            "gpu_hours": step / 10,
            "flops": step * 1e9,
            "tokens": step * 100.0,
        }
        if step:
            store.append_row(folder / store.METRICS, row)
        share = 1 / (1 + (0.2 * steps / step) ** EXPONENT) if step else 0.0
        noise = random.Random(f"{folder.name}{step}").gauss(0, NOISE)
        reward = START + (ceiling - START) * share + noise
        store.append_row(folder / store.EVALS, {**row, "set": "main", "reward": reward, "num_samples": 4000})
        if curves.get("die") == folder.name and step == curves["die_at"] and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    status = "done" if until >= 1 else "stopped"
    store.write_json(folder / store.STATUS, {"status": status, "reason": "" if until >= 1 else "paused"})


main()
