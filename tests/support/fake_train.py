"""Stands in for `scalerl train`: the same words, the same folder, none of the work. What a run does is in a JSON file.

BEHAVIOUR.json RECIPE --out DIR [--resume | --check] [--pause-at SHARE]
{"ARM-seedN": "fail" | "crash" | "hang" | "die once" | "mute", "ARM": ceiling of its rewards, which are else all 0.5}
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from scalerl.runfolder import store

DIES_AT = 2
START, EXPONENT, NOISE = 0.3, 1.8, 0.004


def main() -> None:
    behaviour_file, recipe_file, _, out, *more = sys.argv[1:]
    folder, behaviour = Path(out), json.loads(Path(behaviour_file).read_text())
    does, ceiling = behaviour.get(folder.name, ""), behaviour.get(folder.name.rpartition("-")[0])
    if "--check" in more:
        sys.exit("error: it cannot be" if does == "crash" else 0)
    assert ("--resume" in more) == (folder / store.RECIPE).exists()
    if "--resume" not in more:
        store.create_run(folder)
    recipe = json.loads(Path(recipe_file).read_text())
    asked = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(1))
    if does == "crash":
        sys.exit("error: it cannot be")
    store.write_json(folder / store.RECIPE, recipe)
    here = {"pid": os.getpid(), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "at": time.time()}
    here |= {"webhook": os.environ.get("SCALERL_NOTIFY")}
    store.append_row(folder / "starts.jsonl", here)
    store.write_status(folder, "running")
    attempt = len((folder / "starts.jsonl").read_text().splitlines())
    steps, until = recipe["budget"]["steps"], float(more[more.index("--pause-at") + 1]) if "--pause-at" in more else 1.0
    done = [row["step"] for row in store.read_metrics(folder)]
    for step in range(done[-1] + 1 if done else 0, round(steps * until) + 1):
        row = {"step": step, "attempt": attempt, "gpu_hours": step / 10, "flops": step * 1e9}
        times = {"time/training_s": step * 2.0, "time/evaluation_s": 3.0}
        if step:
            store.append_row(folder / store.METRICS, {**row, **times})
        measured = {"reward": 0.5, "num_samples": 20} if ceiling is None else on_curve(folder, step / steps, ceiling)
        store.append_row(folder / store.EVALS, {**row, "set": "main", **measured})
        if does == "die once" and attempt == 1 and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    while does == "hang" and attempt == 1 and not asked:
        time.sleep(0.02)
    if does == "fail" or len(asked) > 1:
        store.write_json(folder / store.STATUS, {"status": "failed", "reason": "NanError: the loss is not a number"})
        sys.exit(1)
    if does != "mute":
        status = "stopped" if asked or until < 1 else "done"
        store.write_json(folder / store.STATUS, {"status": status, "reason": ""})


def on_curve(folder: Path, spent: float, ceiling: float) -> dict[str, float]:
    """An evaluation after this share of the budget, on a curve that rises to the ceiling."""
    share = 1 / (1 + (0.2 / spent) ** EXPONENT) if spent else 0.0
    noise = random.Random(f"{folder.name}{spent:.6f}").gauss(0, NOISE)
    return {"reward": START + (ceiling - START) * share + noise, "num_samples": 4000}


main()
