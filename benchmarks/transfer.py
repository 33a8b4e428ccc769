"""How well is the curve of a larger model forecast from its smaller siblings?

    python benchmarks/transfer.py tan2025_qwen_base.csv     each size from three or more smaller ones

The naive law is a straight line of the logit of the ceiling, and of the logarithms of midpoint and exponent, against
the logarithm of the size.
"""

import csv
import sys
from pathlib import Path

import numpy as np

from scalerl.forecast.curves import fit
from scalerl.forecast.several.transfer import Sibling, expit, first_reward, logit, sibling, transfer


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


if __name__ == "__main__":
    published(Path(sys.argv[1]))
