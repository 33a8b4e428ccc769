"""Verdicts on simulated runs: how often each is given, where the truth is known.

`python benchmarks/simulated_verdicts.py [--num 2000] [--only PART,...] [--before SRC]`:
SRC is the `src` folder of an older tree, whose ceilings of the same sigmoids are measured too.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from foreign_logs import interval_score

from scalerl.curves import compare, fit

NOISES = {"independent": 0.0, "autocorrelation 0.5": 0.5}
LENGTHS = (10, 20, 40, 100)
NUM_PREFIXES = 500
FALL_LENGTHS = (12, 20, 40, 100, 200)


def noise(num: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """Noise of variance 1 with e_i = rho e_(i-1) + innovation."""
    values = rng.standard_normal(num)
    for index in range(1, num):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return values


def sigmoid(compute: np.ndarray, exponent: float, midpoint: float = 1.0) -> np.ndarray:
    return 1 / (1 + (midpoint / compute) ** exponent)


def true_sigmoid(seed: int, rho: float) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Compute and reward of a run that follows the sigmoid, its start and its ceiling."""
    rng = np.random.default_rng([1, seed])
    num, exponent, reach = int(rng.integers(10, 201)), rng.uniform(0.8, 4.0), np.exp(rng.uniform(*np.log((0.8, 6.0))))
    start, gain, sd = rng.uniform(0.1, 0.5), rng.uniform(0.05, 0.4), np.exp(rng.uniform(*np.log((0.002, 0.03))))
    compute = np.linspace(reach / num, reach, num)
    reward = start + gain * sigmoid(compute, exponent) + sd * noise(num, rho, rng)
    return compute, np.clip(reward, 0, 1), start, start + gain


def two_phases(seed: int, rho: float, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sigmoids with midpoints 64 times apart, the early one a third of a gain of 0.2."""
    compute = np.linspace(4 / num, 4, num)
    rise = (0.2 / 3) * sigmoid(compute, 1.5, 1 / 64) + (0.4 / 3) * sigmoid(compute, 1.5)
    return compute, 0.4 + rise + 0.004 * noise(num, rho, np.random.default_rng([2, seed]))


def gain_of(standard_errors: float, seed: int, rho: float, num: int, known: bool) -> tuple[np.ndarray, np.ndarray]:
    """A run from 0.3 whose gain is so many standard errors of the coefficient of its true shape.

    The standard error is that of generalised least squares under the true noise, with the start fitted beside it, or
    known.
    """
    rng = np.random.default_rng([3, seed])
    exponent, reach = rng.uniform(1, 3), np.exp(rng.uniform(*np.log((1.0, 6.0))))
    compute = np.linspace(reach / num, reach, num)
    shape = sigmoid(compute, exponent)
    design = shape[:, None] if known else np.stack([shape, np.ones(num)], axis=1)
    covariance = rho ** np.abs(np.subtract.outer(np.arange(num), np.arange(num)))
    error = 0.01 * np.sqrt(np.linalg.inv(design.T @ np.linalg.solve(covariance, design))[0, 0])
    return compute, 0.3 + standard_errors * error * shape + 0.01 * noise(num, rho, rng)


def share(num: int, is_true: Callable[[int], bool]) -> str:
    return f"{sum(is_true(seed) for seed in range(num)) / num:.3f}"


def claimed(compute: np.ndarray, reward: np.ndarray, start: float | None) -> bool:
    """Whether lack of fit is claimed."""
    misfit = fit(compute, reward, start=start, intervals=False, mend=False).misfit
    return misfit is not None and misfit.claimed


def widths(num: int) -> dict[str, list[float]]:
    """Median width of the ceiling's interval, how often it holds the truth, and the CPU time of a fit."""
    rows = {}
    for name, rho in NOISES.items():
        measured = []
        begin = time.process_time()
        for seed in range(num):
            compute, reward, start, ceiling = true_sigmoid(seed, rho)
            low, high = fit(compute, reward, start=start if seed % 2 else None).interval("ceiling")
            measured.append((high - low, low <= ceiling <= high))
        width, covered = map(np.array, zip(*measured, strict=True))
        spent_ms = 1e3 * (time.process_time() - begin) / num
        rows[name] = [float(v) for v in (np.nanmedian(width), covered.mean(), spent_ms)]
    return rows


def drifting(seed: int, drifts: bool) -> tuple[np.ndarray, np.ndarray, int, float, float]:
    """Compute, rewards, answers behind each, first reward and ceiling of a sigmoid with binomial noise and a drift."""
    rng = np.random.default_rng([6, seed])
    num, answers = int(rng.integers(50, 141)), int(rng.choice([256, 1024, 3072]))
    start, ceiling = rng.uniform(0.05, 0.5), rng.uniform(0.75, 0.985)
    exponent, reach, sd = (np.exp(rng.uniform(*np.log(ends))) for ends in ((0.9, 3.0), (1.2, 12.0), (0.004, 0.015)))
    compute = np.linspace(reach / num, reach, num)
    curve = start + (ceiling - start) * sigmoid(compute, exponent)
    drift = sd * noise(num, rng.choice([0.8, 0.9, 0.97]), rng)
    reward = rng.binomial(answers, np.clip(curve + drift, 0, 1) if drifts else curve) / answers
    return compute, reward, answers, rng.binomial(answers, start) / answers, ceiling


def of_drifts(num: int) -> dict[str, list[float]]:
    """Coverage, mean interval score and width of ceilings, and how often nine tenths of late points lie on one side."""
    rows = {}
    for name, drifts in {"binomial": False, "binomial and a drift": True}.items():
        measured = []
        for seed in range(num):
            compute, reward, answers, start, ceiling = drifting(seed, drifts)
            done = fit(compute, reward, start=start, start_sd=None, num_samples=answers)
            low, high = done.interval("ceiling")
            above = np.mean((done.predict(compute) > reward)[-(len(compute) // 3) :])
            score = interval_score(low, high, ceiling)
            measured.append((low <= ceiling <= high, score, high - low, max(above, 1 - above) >= 0.9))
        rows[name] = np.mean(np.array(measured, dtype=float), axis=0).tolist()
    return rows


def drifts(num: int, before: str | None) -> None:
    print(f"\nRuns with num_samples that follow the sigmoid, with and without a drift, {num:,} per row:\n")
    print(f"| noise | ceiling covered | interval score | width | late points on one side |\n|{'---|' * 5}")
    old = {} if before is None else older("drifts", num, before)
    for name, values in of_drifts(num).items():
        pairs = zip(old.get(name, [None] * len(values)), values, strict=True)
        cells = [f"{new:.3f}" if was is None else f"{was:.3f} to {new:.3f}" for was, new in pairs]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def older(part: str, num: int, before: str) -> dict[str, list[float]]:
    """Return what an older tree measures."""
    words = [sys.executable, __file__, "--num", str(num), "--values", part]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": before}, check=True, capture_output=True)
    return json.loads(done.stdout)


def sigmoids(num: int, before: str | None) -> None:
    """The start is given in every second run, and fitted in the others."""

    def false_alarm(seed: int, rho: float) -> bool:
        compute, reward, start, _truth = true_sigmoid(seed, rho)
        return claimed(compute, reward, start if seed % 2 else None)

    print(f"\nLack of fit claimed in {num:,} runs that follow the sigmoid:\n\n| noise | claimed |\n|---|---|")
    for name, rho in NOISES.items():
        print(f"| {name} | {share(num, lambda seed, rho=rho: false_alarm(seed, rho))} |", flush=True)
    few = max(num // 5, 1)
    print(f"\nCeilings of the first {few:,} of them:\n")
    print(f"| noise | covered | median width | before | ratio | ms of CPU | before | ratio |\n|{'---|' * 8}")
    now, old = widths(few), {} if before is None else older("sigmoids", few, before)
    for cell, (width, covered, spent_ms) in now.items():
        was, _, was_ms = old.get(cell, [np.nan] * 3)
        cells = f"{covered:.3f} | {width:.4f} | {was:.4f} | {width / was:.3f} | {spent_ms:.1f} | {was_ms:.1f}"
        print(f"| {cell} | {cells} | {spent_ms / was_ms:.2f} |", flush=True)


def phases(num: int, _: str | None) -> None:
    print(f"\nLack of fit claimed in runs with two phases, start given, {num:,} runs per cell:\n")
    print("| noise | 60 points | 30 points | 15 points |\n|---|---|---|---|")

    for name, rho in NOISES.items():
        cells = [
            share(num, lambda seed, rho=rho, n=length: claimed(*two_phases(seed, rho, n), 0.4))
            for length in (60, 30, 15)
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def no_rise(num: int, standard_errors: float, title: str) -> None:
    print(f'\n"no rise seen" {title}, {num:,} runs per cell:\n')
    print(f"| noise | {' | '.join(f'{length} points' for length in LENGTHS)} |\n|---|{'---|' * len(LENGTHS)}")

    def flat(seed: int, rho: float, length: int, known: bool) -> bool:
        compute, reward = gain_of(standard_errors, seed, rho, length, known)
        done = fit(compute, reward, start=0.3 if known else None, intervals=False, mend=False)
        return done.verdict == "no rise seen"

    for name, rho in NOISES.items():
        for known in (True, False):
            cells = [
                share(num, lambda seed, rho=rho, n=length, known=known: flat(seed, rho, n, known)) for length in LENGTHS
            ]
            print(f"| {name}, start {'given' if known else 'fitted'} | {' | '.join(cells)} |", flush=True)


def flat(num: int, _: str | None) -> None:
    no_rise(num, 0.0, "on flat runs")


def gains(num: int, _: str | None) -> None:
    no_rise(num, 5.0, "on runs whose gain is five standard errors")


def prefixes(_: int, __: str | None) -> None:
    """A run against a part of itself: the part must not win, nor the whole."""
    kinds: dict[str, int] = {}
    wins = 0
    for seed in range(NUM_PREFIXES):
        rho = (0.0, 0.5)[seed % 2]
        compute, reward, start, _truth = true_sigmoid(10_000 + seed, rho)
        num = int(np.random.default_rng([4, seed]).uniform(0.15, 0.95) * len(compute)) + 5
        known = start if seed % 4 < 2 else None
        pair = compare(
            {"run": fit(compute, reward, start=known), "part": fit(compute[:num], reward[:num], start=known)}
        )
        kinds[pair.pairs[0].kind] = kinds.get(pair.pairs[0].kind, 0) + 1
        wins += pair.pairs[0].winner is not None
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    print(f'\nA run against a prefix of itself: "better" in {wins} of {NUM_PREFIXES} ({listed}).')


def levelled_run(seed: int, rho: float, num: int, drop: float, known: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Compute, reward and start of a run that has levelled off, then falls along a straight line.

    `drop` is what it falls by up to its end, in standard errors: those of generalised least squares under the true
    noise, with all parameters of the curve fitted beside it. A run that falls stops rising where it begins to.
    """
    rng = np.random.default_rng([5, seed, num])
    exponent, reach = rng.uniform(1.5, 4.0), np.exp(rng.uniform(*np.log((5.0, 30.0))))
    start, gain, sd = rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.4), np.exp(rng.uniform(*np.log((0.002, 0.02))))
    compute, begins = np.linspace(reach / num, reach, num), rng.uniform(0.4, 0.75)
    spent = np.minimum(compute, begins * reach) if drop else compute
    shape = sigmoid(spent, exponent)
    reward = start + gain * shape
    if drop:
        fall = np.maximum(compute / reach - begins, 0) / (1 - begins)
        directions = [fall, shape, sigmoid(spent, exponent + 0.01) - shape, sigmoid(1.01 * spent, exponent) - shape]
        design = np.stack(directions + ([] if known else [np.ones(num)]), axis=1)
        covariance = rho ** np.abs(np.subtract.outer(np.arange(num), np.arange(num)))
        error = np.sqrt(np.linalg.pinv(design.T @ np.linalg.solve(covariance, design))[0, 0])
        reward = reward - drop * sd * error * fall
    return compute, np.clip(reward + sd * noise(num, rho, rng), 0, 1), start


def falls_seen(num: int, drop: float, title: str) -> None:
    print(f"\nA fall claimed {title}, {num:,} runs per cell, start given in every second:\n")
    heads = " | ".join(f"{length} points" for length in FALL_LENGTHS)
    print(f"| noise | {heads} |\n|---|{'---|' * len(FALL_LENGTHS)}")

    def falls(seed: int, rho: float, length: int) -> bool:
        known = bool(seed % 2)
        compute, reward, start = levelled_run(seed, rho, length, drop, known)
        return bool(fit(compute, reward, start=start if known else None, intervals=False, mend=False).falls)

    for name, rho in NOISES.items():
        cells = [share(num, lambda seed, rho=rho, n=length: falls(seed, rho, n)) for length in FALL_LENGTHS]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def levelled(num: int, _: str | None) -> None:
    falls_seen(num, 0.0, "on runs that have levelled off")


def falling(num: int, _: str | None) -> None:
    for drop in (5.0, 8.0):
        falls_seen(max(num // 4, 1), drop, f"on runs that fall slowly by {drop:g} standard errors")


PARTS = {
    "sigmoids": sigmoids,
    "phases": phases,
    "flat": flat,
    "gains": gains,
    "prefixes": prefixes,
    "levelled": levelled,
    "falling": falling,
    "drifts": drifts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=2000, help="runs per cell")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--before", type=Path, help="src folder of an older tree")
    parser.add_argument("--values", choices=("sigmoids", "drifts"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.values:
        print(json.dumps({"sigmoids": widths, "drifts": of_drifts}[given.values](given.num)))
        return
    for part in given.only.split(","):
        if part not in PARTS:
            sys.exit(f"--only takes {', '.join(PARTS)}, not {part!r}")
        PARTS[part](given.num, str(given.before) if given.before is not None else None)


if __name__ == "__main__":
    main()
