"""Noisy rewards as means along compute, with their standard errors (`--bin`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import bin_rewards
from scalerl.logs.facts import Fact


def bin_runs(
    compute: NDArray[np.float64], reward: NDArray[np.float64], run: NDArray[np.str_] | None, rule: int | str
) -> tuple[dict[str, Any], Fact] | None:
    """Average the rewards of each run in bins (`rule`: their number, or "auto"); None where nothing is averaged.

    Return compute, reward, error and run of the bins by name, and what was done.
    """
    labels = run if run is not None else np.full(len(reward), "")
    parts = {name: bin_rewards(compute[labels == name], reward[labels == name], rule) for name in np.unique(labels)}
    means: dict[str, Any] = {
        field: np.concatenate([getattr(bins, field) for bins in parts.values()])
        for field in ("compute", "reward", "error")
    }
    if len(means["reward"]) == len(reward):
        return None
    values = {
        "num_points": len(reward),
        "num_bins": len(means["reward"]),
        "autocorrelation": float(np.mean([bins.autocorrelation for bins in parts.values()])),
        "error": float(np.median(means["error"])),
    }
    # Rewards without any scatter have means without any error, by which points cannot be weighed.
    least = 1e-6 * max(float(np.ptp(reward)), float(np.abs(reward).max()), 1e-9)
    means["error"] = np.maximum(means["error"], least)
    names = np.concatenate([np.full(len(bins.reward), name) for name, bins in parts.items()])
    means["run"] = names if run is not None else None
    return means, Fact(kind="binned", values=values)
