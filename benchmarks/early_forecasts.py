"""Forecasts made early in simulated runs: coverage and interval score where the truth is known.

`python benchmarks/early_forecasts.py [--num 200] [--populations NAME,...] [--reaches 0.1,...] [--before SRC]`:
SRC is the `src` folder of an older tree, which forecasts the same runs.

Start 0.02 to 0.4, gain 0.1 to 0.9 (below a ceiling of 0.98), exponent 0.7 to 3, 7 to 60 evenly spaced evaluations up to
the reach, noise sd 0.003 to 0.02, autocorrelation 0, 0.3 or 0.5, the start given (as noisy as an evaluation) in three
quarters of the runs. A reach is the compute fitted, in midpoints. Forecasts are of eight evaluations at 1.25 to 10
times the reach.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from foreign_logs import interval_score
from scipy.special import expit, ndtr

from scalerl.curves import fit

REACHES = (0.1, 0.2, 0.35, 0.6, 1.0, 2.0, 4.0)
TIMES = np.array([1.25, 1.5, 2, 3, 4, 6, 8, 10])
HALF = np.log(2)
POPULATIONS = {
    "sigmoid": "runs that follow the sigmoid",
    "small": "sigmoids with gains of 0.03 to 0.5, each factor as likely",
    "large": "sigmoids with gains of 0.6 to 0.9",
    "links": "probit, Weibull and Frechet curves in log compute, in place of the logistic one",
    "lag": "sigmoids that begin 0.03 to 0.25 of the reach (at most of a midpoint) late",
    "phases": "two sigmoids, the early one 0.1 to 0.4 of the gain and 5 to 50 times earlier",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A simulated run up to its reach, and what came later."""

    compute: np.ndarray
    reward: np.ndarray
    start: float | None
    later_compute: np.ndarray
    later_reward: np.ndarray
    ceiling: float


def noise(num: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal(num)
    for index in range(1, num):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return values


def gain_of(population: str, start: float, rng: np.random.Generator) -> float:
    place, most = rng.uniform(), min(0.9, 0.98 - start)
    if population == "small":
        return float(0.03 * (0.5 / 0.03) ** place)
    least = min(0.6, most) if population == "large" else 0.1
    return float(least + place * (most - least))


def rise(population: str, compute: np.ndarray, exponent: float, reach: float, rng: np.random.Generator) -> np.ndarray:
    """Share of the gain at each compute, which is in midpoints."""
    slope = exponent * np.log(compute)
    if population == "links":
        # Each has its half at the midpoint, and there the slope of the logistic curve.
        kind = rng.integers(3)
        if kind == 0:
            return ndtr(slope * np.sqrt(2 * np.pi) / 4)
        steep = slope / (2 * HALF)
        return -np.expm1(-HALF * np.exp(steep)) if kind == 1 else np.exp(-HALF * np.exp(-steep))
    if population == "lag":
        late = rng.uniform(0.03, 0.25) * min(reach, 1.0)
        return expit(exponent * np.log(np.maximum(compute - late, 1e-9)))
    if population == "phases":
        share, earlier = rng.uniform(0.1, 0.4), np.exp(rng.uniform(np.log(5), np.log(50)))
        other = np.exp(rng.uniform(np.log(0.7), np.log(3.0)))
        return share * expit(other * np.log(compute * earlier)) + (1 - share) * expit(slope)
    return expit(slope)


def simulate(population: str, seed: int, reach: float) -> Run:
    rng = np.random.default_rng([6, seed, int(1000 * reach)])
    start = rng.uniform(0.02, 0.4)
    gain = gain_of(population, start, rng)
    exponent, sd = (np.exp(rng.uniform(*np.log(ends))) for ends in ((0.7, 3.0), (0.003, 0.02)))
    rho, num = rng.choice([0.0, 0.0, 0.3, 0.5]), int(np.exp(rng.uniform(np.log(7), np.log(61))))
    is_given = rng.uniform() < 0.75
    compute = np.concatenate([np.linspace(reach / num, reach, num), reach * TIMES])
    curve = start + gain * rise(population, compute, exponent, reach, rng)
    reward = np.clip(curve + sd * noise(len(compute), rho, rng), 0, 1)
    first = float(np.clip(start + sd * rng.standard_normal(), 0, 1))
    return Run(
        compute=compute[:num],
        reward=reward[:num],
        start=first if is_given else None,
        later_compute=compute[num:],
        later_reward=reward[num:],
        ceiling=start + gain,
    )


def measure(population: str, reach: float, num: int) -> list[float]:
    """Means over runs: coverage, score, RMSE, bias and width of forecasts; coverage, score and width of ceilings."""
    rows = []
    for seed in range(num):
        run = simulate(population, seed, reach)
        done = fit(run.compute, run.reward, start=run.start, start_sd=None)
        low, high = done.new_interval(run.later_compute)
        error = done.predict(run.later_compute) - run.later_reward
        inside = (run.later_reward >= low) & (run.later_reward <= high)
        bottom, top = done.interval("ceiling")
        new = (inside.mean(), interval_score(low, high, run.later_reward).mean())
        errors = (np.sqrt(np.mean(error**2)), error.mean(), (high - low).mean())
        ceiling = (bottom <= run.ceiling <= top, interval_score(bottom, top, run.ceiling), top - bottom)
        rows.append((*new, *errors, *ceiling))
    return np.mean(np.array(rows, dtype=float), axis=0).tolist()


def cells(given: argparse.Namespace) -> Iterator[tuple[str, float, list[float]]]:
    for population in given.populations.split(","):
        if population not in POPULATIONS:
            sys.exit(f"--populations takes {', '.join(POPULATIONS)}, not {population!r}")
        for reach in map(float, given.reaches.split(",")):
            yield population, reach, measure(population, reach, given.num)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="runs per cell")
    parser.add_argument("--populations", default=",".join(POPULATIONS), help="with commas between them")
    parser.add_argument("--reaches", default=",".join(map(str, REACHES)), help="in midpoints")
    parser.add_argument("--before", type=Path, help="src folder of an older tree")
    parser.add_argument("--values", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.values:
        print(json.dumps([values for _, _, values in cells(given)]))
        return
    old: list[list[float]] = []
    if given.before is not None:
        words = [sys.executable, __file__, "--values", *sys.argv[1:]]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(given.before)}, check=True, stdout=-1)
        old = json.loads(done.stdout)
    print("| runs | reach | covered | score | RMSE | bias | width | ceiling covered | score | width |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for index, (population, reach, now) in enumerate(cells(given)):
        pairs = zip(old[index] if old else [None] * len(now), now, strict=True)
        texts = [f"{new:.3f}" if was is None else f"{was:.3f} to {new:.3f}" for was, new in pairs]
        print(f"| {population} | {reach:g} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
