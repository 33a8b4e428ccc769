"""Score the curves that nobody looks at, once per release.

    python benchmarks/release.py score       forecast the reserved curves of docs/results/bank and record the scores
    python benchmarks/release.py table       the scores of all releases

Two sets are kept apart by a seed (benchmarks/bank.py): runs of other people and runs of ours. No constant was chosen
on them, no page shows them, and this prints nothing about a single curve. A version is scored once: scores that
were looked at and then improved would be worth nothing.
"""

import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bank import RESULTS, Curve, load
from gate import interval_score
from gate_fitters import FITTERS
from populations import Run

from scalerl import __version__
from scalerl.forecast.curves import MODEL

RECORD = RESULTS / "releases.jsonl"
CUTS = {"tenth": 0.1, "quarter": 0.25, "half": 0.5}
METHODS = {"scalerl": "new", "least squares": "least-squares", "carried on": "carried-on"}
SETS = {"others": "agentgym", "ours": "scalerl"}
LEAST = 6
"""Evaluations that a part of a run needs."""
MOST_LATER = 40
"""Later evaluations of a run that are scored, evenly chosen."""


def part(curve: Curve, share: float) -> tuple[Run, np.ndarray, np.ndarray] | None:
    """Return the first part of a run, and compute and reward of what came later; None where it is too short."""
    compute, reward = np.array(curve.compute), np.array(curve.reward)
    here = compute <= share * compute.max()
    later = np.flatnonzero(~here)
    if here.sum() < LEAST or not len(later):
        return None
    later = later[np.linspace(0, len(later) - 1, min(len(later), MOST_LATER)).round().astype(int)]
    run = Run(
        compute=compute[here],
        reward=reward[here],
        start=curve.start,
        start_sd=curve.start_sd,
        num_samples=np.array(curve.num_samples)[here] if curve.num_samples else None,
        is_bounded=curve.bounds is not None,
    )
    return run, compute[later], reward[later]


def scores(curves: Sequence[Curve]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each cut and method the share of later evaluations in 90 % intervals, and the mean interval score."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for cut, share in CUTS.items():
        parts = [each for curve in curves if (each := part(curve, share)) is not None]
        results[cut] = {}
        for method, fitter in METHODS.items():
            rows = []
            for run, compute, reward in parts:
                low, high = FITTERS[fitter]().fit(run).new(compute)
                inside = np.mean((reward >= low) & (reward <= high))
                off = np.abs((low + high) / 2 - reward)
                rows.append((inside, interval_score(low, high, reward).mean(), np.median(off)))
            inside, score, off = np.mean(rows, axis=0) if rows else (np.nan,) * 3
            results[cut][method] = {
                "runs": len(rows),
                "inside": round(float(inside), 3),
                "score": round(float(score), 4),
                "error": round(float(off), 4),
            }
    return results


def records(path: Path = RECORD) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def score(path: Path = RECORD, version: str = __version__, reserved: bool = True) -> None:
    """Score this version and add the result to the record; refuse to do so twice."""
    if any(each["version"] == version for each in records(path)):
        raise SystemExit(f"version {version} has been scored: {path.name} has it, and a release is scored once")
    curves = load(reserved=reserved)
    sets = {name: scores([each for each in curves if each.family == family]) for name, family in SETS.items()}
    row = {"version": version, "model": MODEL, "on": datetime.date.today().isoformat(), "sets": sets}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def table(path: Path = RECORD) -> Iterator[str]:
    heads = ("version, model", "set", "from the first", "runs", "inside 90 %", "interval score: scalerl")
    yield f"| {' | '.join(heads)} | least squares | carried on |"
    yield "|---" * 8 + "|"
    for row in records(path):
        for name, cuts in row["sets"].items():
            for cut, methods in cuts.items():
                own, *others = (methods[method] for method in METHODS)
                cells = (f"{own['inside']:.0%}", *(f"{each['score']:.3f}" for each in (own, *others)))
                yield f"| {row['version']}, {row['model']} | {name} | {cut} | {own['runs']} | {' | '.join(cells)} |"


def run(*words: str) -> None:
    match words:
        case ("score",):
            score()
        case ("table",):
            print(*table(), sep="\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    run(*sys.argv[1:])
