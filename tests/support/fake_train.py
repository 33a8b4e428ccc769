"""Stands in for `scalerl train`: the same words, the same folder, none of the work. What a run does is in a JSON file.

BEHAVIOUR.json RECIPE --out DIR [--resume | --check]
{"ARM-seedN": "fail" | "crash" | "hang" | "die once" | "mute"}; all rewards are 0.5
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from scalerl.runfolder import store

DIES_AT = 2


def main() -> None:
    behaviour_file, recipe_file, _, out, *more = sys.argv[1:]
    folder = Path(out)
    does = json.loads(Path(behaviour_file).read_text()).get(folder.name, "")
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
    steps = recipe["budget"]["steps"]
    done = [row["step"] for row in store.read_metrics(folder)]
    for step in range(done[-1] + 1 if done else 0, steps + 1):
        row = {"step": step, "attempt": attempt, "gpu_hours": step / 10, "flops": step * 1e9}
        times = {"time/training_s": step * 2.0, "time/evaluation_s": 3.0}
        if step:
            store.append_row(folder / store.METRICS, {**row, **times})
        store.append_row(folder / store.EVALS, {**row, "set": "main", "reward": 0.5, "num_samples": 20})
        if does == "die once" and attempt == 1 and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    while does == "hang" and attempt == 1 and not asked:
        time.sleep(0.02)
    if does == "fail" or len(asked) > 1:
        store.write_json(folder / store.STATUS, {"status": "failed", "reason": "NanError: the loss is not a number"})
        sys.exit(1)
    if does != "mute":
        status = "stopped" if asked else "done"
        store.write_json(folder / store.STATUS, {"status": status, "reason": ""})


main()
