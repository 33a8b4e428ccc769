"""A real model on real problems, from one command: where the time of a whole run goes, on one GPU.

    python benchmarks/real_model.py MODEL --train gsm8k-train.jsonl.gz --test gsm8k-test.jsonl.gz --out DIR
    ... --kill 20         kill -9 while the checkpoint of step 20 is written, resume, and train on to --steps
    ... --limit 24        the settings of a GPU of 24 GB, of which torch may allocate no more
    ... --set KEY=VALUE   other settings, such as rollout.engine=vllm

MODEL is a folder or a .gguf file. It is the recipe gsm8k with the settings of PILOT: 32 problems x 16 answers of up to
384 tokens per step, and 250 test problems x 4 every ten steps. Each part is a process of its own. Printed, and written
to DIR/summary.json: the table of the start, seconds of training, evaluations and checkpoints, the parts of a step,
rewards, answers per hour and peak memory. real_model_trl.py does the same with TRL.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PILOT = (
    "length.max_length=384",
    "optimizer.lr=3e-6",
    "checkpoint.every=25",
)
KINDS = ("start_up", "training", "compilation", "evaluation", "checkpoint", "stalled")
PARTS = ("step", "wait", "push", "prefill", "decode")
PEAKS = "peaks.json"
BATCH = 32 * 16


def settings_of(args: argparse.Namespace) -> list[str]:
    return [
        *PILOT,
        f"model.path={args.model}",
        f"task.path={args.train}",
        f"task.evaluation_path={args.test}",
        f"budget.steps={args.steps}",
        *args.set,
    ]


def train(settings: Sequence[str], folder: Path, *, limit_gb: float | None, resume: bool) -> None:
    """Train in this process."""
    import torch

    from scalerl.cli.train import Terminal, setting_up
    from scalerl.recipe.load import load_recipe
    from scalerl.training.run.derive import derive
    from scalerl.training.run.memory import Gpus
    from scalerl.training.run.run import TrainingRun
    from scalerl.training.run.start_up import StartUp

    start_up = StartUp()
    gpus, on_gpu = None, torch.cuda.is_available()
    if limit_gb is not None:
        gpus = Gpus(1, 1e9 * limit_gb)
        if on_gpu:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1e9 * limit_gb / total, 1.0))
    recipe = load_recipe("gsm8k", settings)
    with setting_up():
        if not resume:
            recipe, derived = derive(recipe, gpus)
            for each in derived:
                print(f"{each.key} = {each.value}: {each.reason}", flush=True)
        start_up.done("settings")
        run = TrainingRun(recipe, folder, observer=Terminal(), resume=resume, start_up=start_up)
    end = run.train()
    print(f"ended: {end.reason}", flush=True)
    peaks = {"host_gb": host_peak_gb()}
    if on_gpu:
        peaks["allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
        peaks["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    (folder / PEAKS).write_text(json.dumps(peaks))


def host_peak_gb() -> float:
    """Return the most memory that this process had."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmHWM:")) / 1e6


def start(args: argparse.Namespace, folder: Path, *, resume: bool = False) -> "subprocess.Popen[bytes]":
    """Start this script as a process that trains into a folder."""
    command = [sys.executable, __file__, "--child", json.dumps(settings_of(args)), "--out", str(folder)]
    if args.limit is not None:
        command += ["--limit", str(args.limit)]
    return subprocess.Popen([*command, *["--resume"] * resume])


def kill_during_checkpoint(process: "subprocess.Popen[bytes]", folder: Path, step: int) -> dict[str, Any]:
    """Kill a run while it writes the checkpoint of a step; say what it left."""
    unfinished = folder / "checkpoints" / f"step-{step:08d}.unfinished"
    while process.poll() is None and not any(unfinished.glob("tensors.*")):
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = {path.name: path.stat().st_size for path in unfinished.glob("*")}
    whole = sorted(path.name for path in (folder / "checkpoints").glob("step-????????"))
    return {"unfinished_bytes": left, "whole": whole, "rows": len(rows_of(folder, "metrics.jsonl"))}


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def summarise(folder: Path) -> dict[str, Any]:
    """Return the figures of a run."""
    metrics, evals = rows_of(folder, "metrics.jsonl"), rows_of(folder, "evals.jsonl")
    env = json.loads((folder / "env.json").read_text())
    last, steps = metrics[-1], len(metrics)
    seconds = {kind: last.get(f"time/{kind}_s", 0.0) for kind in KINDS}
    late = metrics[steps // 2 :]
    parts = {}
    for part in PARTS:
        values = [row[f"time/{part}_s"] for row in late if f"time/{part}_s" in row]
        if values:
            parts[part] = statistics.mean(values)
    whole = parts.get("step", 0.0) + parts.get("wait", 0.0) + parts.get("push", 0.0)
    return {
        "device": env.get("device"),
        "start_up": env.get("start_up"),
        "steps": steps,
        "seconds": seconds,
        "seconds_to_last_step": sum(seconds.values()),
        "step_s_of_parts_second_half": parts,
        "waiting_share_second_half": parts.get("wait", 0.0) / whole if whole else None,
        "steps_per_hour_of_training": 3600 * steps / max(seconds["training"], 1e-9),
        "answers_per_hour_of_training": 3600 * steps * BATCH / max(seconds["training"], 1e-9),
        "tokens": last.get("tokens"),
        "rewards": [[row["step"], row["reward"], round(row["gpu_hours"], 5)] for row in evals],
        "eval_s": [row.get("time/eval_s") for row in evals],
        "kl_first": metrics[0].get("loss/kl"),
        "kl_last": last.get("loss/kl"),
        "lag_mean": statistics.mean(row.get("rollout/lag_mean", 0.0) for row in metrics),
        "gpu_memory_gb": max((row.get("gpu/memory_gb", 0.0) for row in metrics), default=None),
        "peaks": json.loads((folder / PEAKS).read_text()) if (folder / PEAKS).exists() else None,
        "checkpoint_stopped_s": [
            row["time/checkpoint_stopped_s"] for row in metrics if "time/checkpoint_stopped_s" in row
        ],
        "checkpoint_written_s": [
            row["time/checkpoint_written_s"] for row in metrics if "time/checkpoint_written_s" in row
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--train")
    parser.add_argument("--test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kill", type=int, metavar="STEP")
    parser.add_argument("--limit", type=float, metavar="GB")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(json.loads(args.child), args.out, limit_gb=args.limit, resume=args.resume)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    folder, summary = args.out / "run", {}
    started = time.monotonic()
    process = start(args, folder)
    if args.kill is not None:
        summary["killed"] = kill_during_checkpoint(process, folder, args.kill)
        again = time.monotonic()
        process = start(args, folder, resume=True)
        process.wait()
        summary["killed"]["resumed_s"] = time.monotonic() - again
    code = process.wait()
    summary |= {"exit": code, "wall_s": time.monotonic() - started, "command": " ".join(sys.argv)}
    if (folder / "metrics.jsonl").exists():
        summary |= summarise(folder)
    text = json.dumps(summary, indent=1)
    (args.out / "summary.json").write_text(text)
    print(text)
    sys.exit(code)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
