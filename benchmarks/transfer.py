"""How well is the curve of a larger model forecast from its smaller siblings?

    python benchmarks/transfer.py --published tan2025_qwen_base.csv     each size from three or more smaller ones
    python benchmarks/transfer.py [--families 500] [--seed 0]           simulated families of 5 sizes

The naive law is a straight line of the logit of the ceiling, and of the logarithms of midpoint and exponent, against
the logarithm of the size. Simulated families: the largest size is forecast from the other four;
logit(ceiling) = logit(start) + 0.9 + 0.1 log(size / 7e9), plus a scatter of 0.02 in the reward; starts rise with size
with a scatter; midpoints grow with size with a lognormal scatter of 0.3 around it.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

from scalerl.forecast.curves import fit
from scalerl.forecast.several.transfer import Sibling, expit, first_reward, logit, sibling, transfer

SIZES = np.array([0.5e9, 1.5e9, 3e9, 7e9, 14e9])
NUM_EVALS, SD, SCATTER = 30, 0.005, 0.02


def naive(siblings: list[Sibling], size: float, start: float, compute: float) -> tuple[float, float]:
    """Ceiling and reward at a compute by straight lines against log size."""
    log_size = np.log([own.size for own in siblings])
    line = lambda values: np.polyval(np.polyfit(log_size, values, 1), np.log(size))  # noqa: E731
    ceiling = float(expit(line(logit(np.array([own.ceiling[0] for own in siblings])))))
    midpoint = np.exp(line([own.log_midpoint[0] for own in siblings]))
    exponent = np.exp(line([own.log_exponent[0] for own in siblings]))
    return ceiling, float(start + (ceiling - start) / (1 + (midpoint / compute) ** exponent))


def published(path: Path) -> None:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    data = {}
    for row in rows:
        data.setdefault(row["size"], []).append((float(row["compute_flops"]), float(row["pass_at_1"])))
    names = sorted(data, key=lambda name: float(name[:-1]))
    points = {name: np.array(sorted(data[name])) for name in names}
    family = [
        sibling(name, 1e9 * float(name[:-1]), fit(*points[name].T), start=first_reward(*points[name].T))
        for name in names
    ]
    print("| size | from | start | end | forecast of the end | inside | error | naive law's error |")
    print("|---|---|---|---|---|---|---|---|")
    inside, errors = [], []
    for index in range(3, len(family)):
        target, smaller = family[index], family[:index]
        compute, end = points[target.name][-1, 0], float(points[target.name][-5:, 1].mean())
        done = transfer(smaller, target.size, target.start, [compute])
        value = done.at[0][1]
        plain = naive(smaller, target.size, target.start, compute)[1]
        inside.append(value.low <= end <= value.high)
        errors.append((abs(value.value - end), abs(plain - end)))
        cells = [target.name, len(smaller), f"{target.start:.3f}", f"{end:.3f}"]
        cells += [f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]", "yes" if inside[-1] else "no"]
        print(f"| {' | '.join(map(str, [*cells, *(f'{error:.3f}' for error in errors[-1])]))} |")
    means = np.mean(errors, axis=0)
    print(f"| mean | | | | | {sum(inside)} of {len(inside)} | {means[0]:.3f} | {means[1]:.3f} |")


def family(rng: np.random.Generator) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Points of each size, starts and true ceilings."""
    start = expit(-1.2 + 0.45 * np.log(SIZES / 7e9) + rng.normal(0, 0.2, len(SIZES)))
    ceiling = expit(logit(start) + 0.9 + 0.1 * np.log(SIZES / 7e9)) + rng.normal(0, SCATTER, len(SIZES))
    ceiling = np.clip(ceiling, start + 0.01, 0.98)
    midpoint = 1e18 * (SIZES / 7e9) * np.exp(rng.normal(0, 0.3, len(SIZES)))
    exponent = np.exp(rng.normal(np.log(1.5), 0.2, len(SIZES)))
    curves = []
    for own in zip(start, ceiling, midpoint, exponent, strict=True):
        compute = np.linspace(1 / NUM_EVALS, 1, NUM_EVALS) * own[2] * rng.uniform(4, 8)
        reward = own[0] + (own[1] - own[0]) / (1 + (own[2] / compute) ** own[3])
        curves.append((compute, np.clip(reward + rng.normal(0, SD, NUM_EVALS), 0, 1)))
    return curves, start, ceiling


def simulated(num: int, seed: int) -> None:
    rows, began = [], time.process_time()
    for index in range(num):
        curves, start, ceiling = family(np.random.default_rng([seed, index]))
        fits = [fit(*points, start=own) for points, own in zip(curves[:-1], start, strict=False)]
        members = [sibling(f"{s:g}", float(s), curve) for s, curve in zip(SIZES, fits, strict=False)]
        compute, end = curves[-1][0][-1], float(curves[-1][1][-1])
        done = transfer(members, float(SIZES[-1]), float(start[-1]), [compute])
        plain = naive(members, float(SIZES[-1]), float(start[-1]), compute)
        value = done.at[0][1]
        rows.append(
            (
                done.ceiling.low <= ceiling[-1] <= done.ceiling.high,
                value.low <= end <= value.high,
                abs(done.ceiling.value - ceiling[-1]),
                abs(plain[0] - ceiling[-1]),
                abs(value.value - end),
                abs(plain[1] - end),
                done.ceiling.high - done.ceiling.low,
            )
        )
    means = np.mean(rows, axis=0)
    print(
        "| families | ceilings inside | ends inside | error of the ceiling | naive | error of the end | naive | width |"
    )
    print("|---|---|---|---|---|---|---|---|")
    numbers = " | ".join(f"{mean:.1%}" if place < 2 else f"{mean:.4f}" for place, mean in enumerate(means))
    print(f"| {num} | {numbers} |")
    print(f"\n{time.process_time() - began:.0f} s of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--published", type=Path)
    given = parser.parse_args()
    if given.published:
        published(given.published)
    else:
        simulated(given.families, given.seed)


if __name__ == "__main__":
    main()
