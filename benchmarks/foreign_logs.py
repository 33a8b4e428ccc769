"""Forecasts from a quarter and from half of runs that others logged: what was said, and what happened then.

`python benchmarks/foreign_logs.py LOGS [RUNS]`: LOGS is a folder of wandb exports (CSV), RUNS one of run folders.
"""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from scalerl.curves import Fit, fit

SHARES = (0.25, 0.5)
MISS = 20.0  # what a reward outside a 90 % interval costs, over what its width does


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    compute: np.ndarray
    reward: np.ndarray
    num_samples: np.ndarray | None

    def fit(self, share: float) -> Fit:
        """Fit what lies before this share of the compute; the row at compute 0 is the start."""
        here = (self.compute > 0) & (self.compute <= share * self.compute.max())
        before = self.compute == 0
        start = float(self.reward[before][0]) if before.any() else None
        num_samples = None if self.num_samples is None else self.num_samples[here]
        return fit(self.compute[here], self.reward[here], start=start, start_sd=None, num_samples=num_samples)


def exported_runs(folder: Path) -> Iterator[Run]:
    """The evaluation columns of wandb exports, each run once."""
    seen = set()
    for path in sorted(folder.glob("wandb*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for column in rows[0]:
            if column == "Step" or column.endswith(("__MIN", "__MAX")):
                continue
            pairs = [(float(row["Step"]), float(row[column])) for row in rows if row[column]]
            if tuple(pairs[:50]) not in seen:
                seen.add(tuple(pairs[:50]))
                compute, reward = np.array(pairs).T
                yield Run(name=column.split(" - ")[0], compute=compute, reward=reward, num_samples=None)


def run_folders(folder: Path) -> Iterator[Run]:
    for path in sorted(folder.glob("*/evals.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        compute, reward, num = (np.array([row[key] for row in rows]) for key in ("flops", "reward", "num_samples"))
        yield Run(name=path.parent.name, compute=compute, reward=reward, num_samples=num)


def interval_score(low: ArrayLike, high: ArrayLike, reward: ArrayLike) -> np.ndarray:
    """Return the width of 90 % intervals plus 20 times what falls outside."""
    low, high, reward = (np.asarray(values, dtype=float) for values in (low, high, reward))
    return high - low + MISS * (np.maximum(low - reward, 0) + np.maximum(reward - high, 0))


def cells(run: Run, share: float) -> tuple[str, float, float]:
    """One half of a table row, the coverage of later evaluations and their mean interval score."""
    done = run.fit(share)
    later = run.compute > share * run.compute.max()
    low, high = done.new_interval(run.compute[later])
    reward = run.reward[later]
    score = float(np.mean(interval_score(low, high, reward)))
    coverage = float(np.mean((low <= reward) & (reward <= high)))
    bottom, top = done.interval("ceiling")
    text = f"{done.verdict} | {done.params['ceiling']:.3f} [{bottom:.3f}, {top:.3f}] | {coverage:.2f} | {score:.3f}"
    return text, coverage, score


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders or not folders[0].is_dir():
        sys.exit(f"usage: {Path(sys.argv[0]).name} LOGS [RUNS]: LOGS must be a folder")
    runs = [*exported_runs(folders[0]), *(run for folder in folders[1:] for run in run_folders(folder))]
    part = "verdict | ceiling | coverage | score"
    print(f"| run | last tenth | 25 %: {part} | 50 %: {part} | all: verdict |\n|{'---|' * 11}")
    coverages, scores = [], []
    for run in runs:
        whole = run.fit(1.0)
        last = run.reward[run.compute >= 0.9 * run.compute.max()].mean()
        halves = [cells(run, share) for share in SHARES]
        if whole.verdict != "unstable":
            coverages += [coverage for _, coverage, _ in halves]
            scores += [score for _, _, score in halves]
        print(f"| {run.name} | {last:.3f} | {' | '.join(text for text, _, _ in halves)} | {whole.verdict} |")
    print(f"\nRuns that are not unstable: mean coverage {np.mean(coverages):.3f}, mean score {np.mean(scores):.4f}.")


if __name__ == "__main__":
    main()
