"""How well the first part of published runs forecasts the rest, against a sigmoid by least squares.

    python benchmarks/backtests.py table CURVES.csv     errors of points that were held out, median and mean

CURVES.csv has columns figure, series, kind (train, extended), gpu_hours and pass_rate. It was read off the figures
of that paper and is not part of this repository.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bank import load
from gate_fitters import LeastSquares, arguments
from measured import DATA, FIRST_8B, START_8B
from numpy.typing import ArrayLike
from populations import Run

from scalerl.forecast.curves import fit, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    run: Run
    compute: np.ndarray
    reward: np.ndarray


def paper(path: Path) -> Iterator[Case]:
    path = path if path.exists() else DATA / path.name
    points = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = f"{row['figure']}/{row['series']}", row["kind"]
            points[key].append((float(row["gpu_hours"]), float(row["pass_rate"])))
    for name in dict.fromkeys(name for name, _ in points):
        if (name, "extended") in points:
            train, later = (np.array(sorted(points[name, kind])) for kind in ("train", "extended"))
            train = train[train[:, 0] >= FIRST_8B]
            run = Run(compute=train[:, 0], reward=train[:, 1], start=START_8B, start_sd=0.0)
            yield Case(name=name, run=run, compute=later[:, 0], reward=later[:, 1])


def halves(prefix: str) -> Iterator[Case]:
    for curve in load():
        if curve.curve.startswith(prefix):
            compute, reward = np.array(curve.compute), np.array(curve.reward)
            here = compute <= 0.5 * compute.max()
            run = Run(
                compute=compute[here],
                reward=reward[here],
                start=curve.start,
                start_sd=curve.start_sd,
                num_samples=np.array(curve.num_samples)[here] if curve.num_samples else None,
                is_bounded=curve.bounds is not None,
            )
            name = curve.curve.removeprefix(prefix).strip("/")
            yield Case(name=name, run=run, compute=compute[~here], reward=reward[~here])


def table(name: str, cases: Sequence[Case]) -> str:
    """Return one row: errors of the later points, ours and those of least squares, with standard errors over curves."""
    ours, theirs, inside = [], [], []
    for case in cases:
        scored = score(fit(case.run.compute, case.run.reward, **arguments(case.run)), case.compute, case.reward)
        assert scored is not None
        assert scored.coverage is not None
        low, high = LeastSquares().fit(case.run).new(case.compute)
        ours.append(scored.rmse)
        theirs.append(float(np.sqrt(np.mean(((low + high) / 2 - case.reward) ** 2))))
        inside.append((scored.coverage, scored.num_points))
    share, number = np.array(inside).T
    covered = f"{np.average(share, weights=number):.0%} ± {error(share):.0%}"
    cells = (name, len(cases), int(number.sum()), as_error(ours), as_error(theirs), covered)
    return f"| {' | '.join(map(str, cells))} |"


def as_error(errors: Sequence[float]) -> str:
    return f"{np.median(errors):.4f}, {np.mean(errors):.4f} ± {error(errors):.4f}"


def error(values: ArrayLike) -> float:
    """Return the standard error of a mean."""
    values = np.asarray(values)
    return float(values.std(ddof=1) / np.sqrt(len(values)))


HEAD = "| points | curves | number | error: scalerl | error: least squares | inside 90% |\n|---|---|---|---|---|---|"


def run(*words: str) -> None:
    match words:
        case ("table", path):
            print(HEAD)
            print(table("held out by the paper, 8B", [*paper(Path(path))]))
            print(table("second halves of Qwen2.5, 0.5B to 72B", [*halves("qwen2.5-base")]))
            print(table("second halves of our first runs, 10M", [*halves("scalerl/first-curves")]))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    run(*sys.argv[1:])
