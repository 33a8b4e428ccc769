"""Fit the runs in a CSV, forecast the better recipe and compare the two: the predictive half in one page.

python examples/fit_a_csv.py [runs.csv]       columns: recipe, seed, gpu_hours, pass_rate
"""

import csv
import sys
from collections import defaultdict
from importlib.resources import files

import numpy as np

from scalerl.curves import compare, compute_for, fit, reward_at


def read(path: str) -> dict[str, np.ndarray]:
    """Rows of each recipe: seed, compute, reward."""
    rows = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            rows[row["recipe"]].append((float(row["seed"]), float(row["gpu_hours"]), float(row["pass_rate"])))
    return {recipe: np.array(points) for recipe, points in rows.items()}


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else str(files("scalerl") / "assets" / "example_runs.csv")
    fits = {}
    for recipe, rows in read(path).items():
        seed, compute, reward = rows.T
        trained = compute > 0  # the rows at compute 0 are the model before training
        fits[recipe] = fit(compute[trained], reward[trained], run=seed[trained], start=float(reward[~trained].mean()))
        low, high = fits[recipe].interval("ceiling")
        print(f"{recipe}: ceiling {fits[recipe].params['ceiling']:.3f} [{low:.3f}, {high:.3f}], {fits[recipe].verdict}")

    result = compare(fits)
    print(result.pairs[0].verdict)
    best = fits[result.ranking[0][0]]
    (later,) = reward_at(best, [4 * best.scale])
    print(f"at four times the compute: {later.reward.value:.3f} [{later.reward.low:.3f}, {later.reward.high:.3f}]")
    (needed,) = compute_for(best, [best.params["ceiling"] - 0.01])
    assert needed.compute is not None
    print(f"within 0.01 of the ceiling at compute {needed.compute.value:,.0f}")


if __name__ == "__main__":
    main()
