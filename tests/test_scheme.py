"""What benchmarks/scheme.py says, against what can be worked out by hand."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from scalerl import store

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
scheme = importlib.import_module("scheme")


def write_run(folder: Path, *, drain: bool, step_s: float, seed: int) -> Path:
    """Write a run whose reward is a sigmoid of its steps, equal for both arms, with a little noise."""
    rng = np.random.default_rng(seed + 10 * drain)
    store.create_run(folder)
    store.write_json(folder / store.RECIPE, {"pipeline": {"drain": drain}})
    for step in range(1, 161):
        row = {"step": step, "attempt": 1, "gpu_hours": step * step_s / 3600, "time/training_s": step * step_s}
        row |= {"rollout/lag_mean": 4.0, "rollout/lag_max": 8.0, "time/step_s": step_s, "time/wait_s": 0.0}
        store.append_row(folder / store.METRICS, row | {"time/push_s": 0.0, "groups": ["0/1"]})
    for step in range(0, 161, 8):
        reward = 0.3 + 0.5 / (1 + (50 / max(step, 1e-9)) ** 2) + rng.normal(0, 0.004)
        row = {"step": step, "attempt": 1, "set": "main", "gpu_hours": step * step_s / 3600, "reward": reward}
        store.append_row(folder / store.EVALS, row | {"num_samples": 1000, "num_correct": [1]})
    return folder


def test_time_to_the_same_reward_is_the_ratio_of_paces(tmp_path):
    pipeline = [write_run(tmp_path / f"p{seed}", drain=False, step_s=0.6, seed=seed) for seed in (0, 1)]
    drained = [write_run(tmp_path / f"d{seed}", drain=True, step_s=1.0, seed=seed) for seed in (0, 1)]
    first, second = scheme.read_arm(pipeline, drain=False), scheme.read_arm(drained, drain=True)
    assert first.seconds_per_step == pytest.approx(0.6)
    for axis, expected in (("gpu_hours", 0.6), ("step", 1.0)):
        rows = scheme.compare(first, second, axis)
        for row in rows[:3]:
            assert row.ratio.value == pytest.approx(expected, rel=0.1)
            assert row.ratio.low < expected < row.ratio.high
        assert rows[-1].drained == pytest.approx(160 if axis == "step" else 160 / 3600)
    with pytest.raises(scheme.SchemeError, match="not the folder of a run"):
        scheme.read_arm(pipeline, drain=True)
