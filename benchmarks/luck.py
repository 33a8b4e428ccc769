"""How far a fit depends on its seed, and how far it is from a sum over many times as many shapes.

    python benchmarks/luck.py seeds    ranges over five seeds
    python benchmarks/luck.py brute    errors of one seed against brute force (minutes)

What is in units of the reward is divided by the width of the ceiling's interval. Series are those of arXiv 2510.13786,
whole and their first halves (../shared/data, where it is there); arms are those of docs/results with several seeds.
"""

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
from bank import load
from gate_fitters import arguments
from measured import published_curves, together
from populations import Run

from scalerl.forecast.curves import Fit, Kind, fit, grid, model

NUM_SEEDS = 5
LEAST = 6
"""Evaluations that a series needs."""
STUDIES = ("loo", "seeds", "smollm2", "model-size", "loss", "precision", "first-curves")
MORE = {
    "FINE": 1 / 3000,
    "RESOLVED": 1 / 400,
    "AT_ONCE": 150,
    "MOST_ROUNDS": 30,
    "NUM_WEIGHED": 20_000,
    "MOST_COURSES": 100,
}
"""Constants of `grid` for brute force: some thirty times as many boxes, and every course of a fall."""
MORE_DRAWS = 20_000
ANSWERS = ("ceiling", "low end", "high end", "P(fall)", "P(flat)")


def series() -> Iterator[Run]:
    for curve in published_curves():
        if curve.is_repeat:
            continue
        half = curve.case.cut(0.5)
        yield curve.run
        if half is not None and len(half.run.reward) >= LEAST:
            yield half.run


def arms() -> Iterator[Run]:
    groups = defaultdict(list)
    for curve in load():
        study = curve.curve.split("/")[1]
        if curve.family == "scalerl" and study in STUDIES:
            run = Run(
                compute=np.array(curve.compute),
                reward=np.array(curve.reward),
                start=curve.start,
                num_samples=np.array(curve.num_samples),
            )
            groups[re.sub(r"[-/]?seed\d+", "", curve.curve)].append(run)
    yield from (together(runs) for runs in groups.values() if len(runs) > 1)


def fitted(run: Run, seed: int = 0) -> Fit:
    return fit(run.compute, run.reward, **arguments(run), seed=seed)


def answers(curve: Fit) -> np.ndarray:
    kinds = (curve.probability(kind) for kind in (Kind.fall, Kind.flat))
    return np.array([curve.params["ceiling"], *curve.interval("ceiling"), *kinds])


def in_widths(change: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.concatenate([change[:3] / max(high - low, 1e-9), change[3:]])


def by_seed(run: Run) -> np.ndarray:
    every = np.array([answers(fitted(run, seed)) for seed in range(NUM_SEEDS)])
    return in_widths(np.ptp(every, axis=0), *every[:, 1:3].mean(axis=0))


def by_brute_force(run: Run) -> np.ndarray:
    mine = answers(fitted(run))
    with patch.multiple(grid, **MORE), patch.object(model, "NUM_DRAWS", MORE_DRAWS):
        theirs = answers(fitted(run))
    return in_widths(np.abs(mine - theirs), *theirs[1:3])


def show(name: str, runs: list[Run], change: Callable[[Run], np.ndarray]) -> None:
    begin = time.process_time()
    found = np.quantile([change(run) for run in runs], [0.5, 0.9, 1.0], axis=0).T
    cells = (" / ".join(f"{value:.3f}" for value in row) for row in found)
    print(
        f"| {len(runs)} {name} | {' | '.join(cells)} | {1e3 * (time.process_time() - begin) / len(runs):.0f} |",
        flush=True,
    )


def main(*words: str) -> None:
    match words:
        case ("seeds",):
            change = by_seed
        case ("brute",):
            change = by_brute_force
        case _:
            raise SystemExit(__doc__)
    print(f"median / 90th percentile / largest\n\n| | {' | '.join(ANSWERS)} | ms of all its fits |\n|{'---|' * 7}")
    show("series", [*series()], change)
    show("arms", [*arms()], change)


if __name__ == "__main__":
    main(*sys.argv[1:])
