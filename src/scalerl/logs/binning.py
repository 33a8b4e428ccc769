"""Noisy rewards as means along compute, with their standard errors (`--bin`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import bin_rewards
from scalerl.logs.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class BinnedRuns:
    """Means of neighbouring rewards of each run."""

    compute: NDArray[np.float64]
    reward: NDArray[np.float64]
    run: NDArray[np.str_] | None
    error: NDArray[np.float64]
    fact: Fact


def bin_runs(
    compute: NDArray[np.float64], reward: NDArray[np.float64], run: NDArray[np.str_] | None, rule: int | str
) -> BinnedRuns | None:
    """Average the rewards of each run in bins (`rule`: their number, or "auto"); None where nothing is averaged."""
    labels = run if run is not None else np.full(len(reward), "")
    parts = {name: bin_rewards(compute[labels == name], reward[labels == name], rule) for name in np.unique(labels)}
    means, errors, computes = (
        np.concatenate([getattr(bins, field) for bins in parts.values()]) for field in ("reward", "error", "compute")
    )
    if len(means) == len(reward):
        return None
    values = {
        "num_points": len(reward),
        "num_bins": len(means),
        "autocorrelation": float(np.mean([bins.autocorrelation for bins in parts.values()])),
        "error": float(np.median(errors)),
    }
    # Rewards without any scatter have means without any error, by which points cannot be weighed.
    least = 1e-6 * max(float(np.ptp(reward)), float(np.abs(reward).max()), 1e-9)
    names = np.concatenate([np.full(len(bins.reward), name) for name, bins in parts.items()])
    return BinnedRuns(
        compute=computes,
        reward=means,
        run=names if run is not None else None,
        error=np.maximum(errors, least),
        fact=Fact(kind="binned", values=values),
    )
