"""Run folders and study folders as the training half writes them, made up for the tests of the report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CEILINGS = {"base": 0.62, "lower": 0.52}


def write_run(
    folder: Path,
    *,
    ceiling: float = 0.6,
    seed: int = 0,
    num: int = 16,
    settings: Mapping[str, Any] | None = None,
    prompts: str = "p0",
    sets: Sequence[str] = ("main",),
    status: Mapping[str, str] | None = None,
    pace: float = 1.0,
) -> Path:
    """A run of `num` evaluations, ten steps apart, from 0.3 up to its ceiling with the midpoint at step 40."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng([seed, round(1000 * ceiling)])
    recipe = {"seed": seed, "loss": {"name": "cispo"}, **(settings or {})}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "env.json").write_text(json.dumps({"torch": "2.11", "device": "cpu"}))
    (folder / "status.json").write_text(json.dumps(status or {"status": "done", "reason": "budget spent"}))
    evals, metrics = [], []
    for step in range(0, 10 * num + 1, 10):
        spent = {"gpu_hours": 0.01 * step * pace, "flops": 1e15 * step**1.05, "tokens": 5000 * step}
        for set_name in sets:
            gain = (ceiling - 0.3) / (1 + (40 / step) ** 2) if step else 0.0
            reward = float(np.clip(0.3 + gain + 0.003 * noise.normal(), 0, 1))
            row = {"step": step, "attempt": 1, "set": set_name, **spent, "reward": reward}
            evals.append({**row, "num_samples": 4000, "prompts_hash": f"{prompts}-{set_name}"})
        if step:
            signals = {
                "loss/entropy": 1.0 / step,
                "loss/kl": 0.01,
                "rollout/truncated_frac": 0.02,
                "rollout/lag_max": 8,
            }
            seconds = {"time/training_s": 36.0 * step * pace, "time/evaluation_s": 2.0 * step}
            metrics.append({"step": step, "attempt": 1, **spent, **signals, **seconds})
    for name, rows in (("evals.jsonl", evals), ("metrics.jsonl", metrics)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_study(
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    shared_device: bool = False,
    plan: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Two arms, `base` above `lower`, as `scalerl study` leaves them; `plan` is what else study.json says."""
    runs = []
    for arm, ceiling in CEILINGS.items():
        for seed in seeds:
            settings = {} if arm == "base" else {"loss": {"name": "dapo"}}
            place = f"runs/{arm}-seed{seed}"
            write_run(folder / place, ceiling=ceiling, seed=seed, settings=settings, **fields)
            runs.append({"arm": arm, "seed": seed, "folder": place})
    study = {
        "name": "two-arms",
        "description": "Which loss?",
        "base": "base",
        "runs": runs,
        "shared_device": shared_device,
        **(plan or {}),
    }
    (folder / "study.json").write_text(json.dumps(study))
    return folder
