"""The evaluations of a study's runs as one compressed table, and sealed forecasts scored on such tables.

    python benchmarks/study_table.py write TABLE.csv.gz RUN [RUN ...]
    python benchmarks/study_table.py reach TABLE.csv.gz BASE 0.8 0.9     FLOPs to these rewards, by run
    python benchmarks/study_table.py score SEALED-FOLDER TABLE.csv.gz [TABLE.csv.gz ...]
    scalerl compare TABLE.csv.gz --x flops

A row is an evaluation, with the arm and the seed of its run, pass@k where the correct answers of each problem are
known, and a few metrics of the training step at which it was made.
"""

import csv
import gzip
import io
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalerl import store
from scalerl.joint.seal import opened, score_sealed
from scalerl.loop.evaluate import pass_at

EVALUATION = ("step", "set", "gpu_hours", "flops", "tokens", "reward", "num_samples", "truncated_frac", "length_mean")
PASS = (2, 4, 8, 16)
TRAINING = (
    "reward/mean",
    "rollout/truncated_frac",
    "rollout/interrupted_frac",
    "rollout/lag_mean",
    "rollout/lag_max",
    "batch/zero_variance_frac",
    "batch/effective",
    "loss/kl",
    "loss/entropy",
)
COLUMNS = ("arm", "seed", *EVALUATION, *(f"pass@{k}" for k in PASS), *(f"training/{name}" for name in TRAINING))


def write(target: str, *folders: str) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS)
    table.writeheader()
    for folder in sorted(map(Path, folders)):
        table.writerows(rows_of(folder))
    # Without the time, so that the same runs give the same file.
    Path(target).write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    named = re.fullmatch(r"(.+)-seed(\d+)", folder.name)
    arm, seed = named.groups() if named else (folder.name, "0")
    steps = {row["step"]: row for row in store.read_metrics(folder)}
    for row in store.read_evals(folder):
        values: dict[str, object] = {"arm": arm, "seed": seed} | {key: row[key] for key in EVALUATION if key in row}
        if correct := row.get("num_correct"):
            num = row["num_samples"] // len(correct)
            values |= {f"pass@{k}": short(pass_at(correct, num, k)) for k in PASS if k <= num}
        step = steps.get(row["step"], {})
        yield values | {f"training/{name}": short(step[name]) for name in TRAINING if name in step}


def short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def runs_of(path: str) -> dict[str, list[dict[str, str]]]:
    runs: dict[str, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            runs[f"{row['arm']}-seed{row['seed']}"].append(row)
    return runs


def reach(path: str, base: str, *targets: str) -> None:
    """Print the FLOPs at which the mean of three evaluations of a run reaches a reward, over those of the base."""
    runs = runs_of(path)

    def flops(rows: list[dict[str, str]], target: float) -> float:
        for three in zip(rows, rows[1:], rows[2:], strict=False):
            if statistics.mean(float(row["reward"]) for row in three) >= target:
                return float(three[1]["flops"])
        return math.nan

    of_base = [rows for rows in runs.values() if rows[0]["arm"] == base]
    needed = {target: statistics.mean(flops(rows, float(target)) for rows in of_base) for target in targets}
    print(f"{'run':<24}{'steps':>6}{'FLOPs':>10}", *(f"{'to ' + target:>9}" for target in targets), end="")
    print(f"{'best':>8}{'end':>7}{'pass@16':>9}")
    for name, rows in sorted(runs.items()):
        ratios = (f"{flops(rows, float(target)) / needed[target]:9.2f}" for target in targets)
        means = [
            statistics.mean(float(row["reward"]) for row in three)
            for three in zip(rows, rows[1:], rows[2:], strict=False)
        ]
        print(f"{name:<24}{rows[-1]['step']:>6}{float(rows[-1]['flops']):>10.2e}", *ratios, end="")
        print(f"{max(means):>8.3f}{means[-1]:>7.3f}{float(rows[-1]['pass@16'] or 'nan'):>9.3f}")
    print(f"{base}: ", *(f"{value:.3g} FLOPs to {target}" for target, value in needed.items()), sep=" ")


def score(sealed: str, *tables: str) -> None:
    """Print how each sealed forecast did on the evaluations after it, and the coverage of all."""
    points = {
        name: [(float(row["flops"]), float(row["reward"])) for row in rows]
        for path in tables
        for name, rows in runs_of(path).items()
    }
    print(f"{'sealed':<40}{'new':>5}{'RMSE':>8}{'bias':>9}{'in 90 %':>9}{'width':>8}")
    inside: dict[float, list[float]] = defaultdict(list)
    for path in sorted(Path(sealed).glob("*.json")):
        for curve in opened(path.read_text(), path.name)["curves"]:
            compute, reward = np.array(points[curve["name"]]).T
            # Rewards at compute 0 have no logarithm, and are fitted as the start.
            scored = score_sealed(curve, compute[compute > 0], reward[compute > 0])
            if not (num := scored.num_new - scored.beyond):
                continue
            ends = curve["path"]["intervals"]["0.9"]
            width = statistics.median(high - low for low, high in zip(ends["low"], ends["high"], strict=True))
            share = scored.coverage[0.9]
            print(f"{path.stem:<40}{num:>5}{scored.rmse:>8.3f}{scored.bias:>+9.3f}{share:>9.0%}{width:>8.3f}")
            for level, held in scored.coverage.items():
                inside[level] += [held] * num
    for level, held in sorted(inside.items()):
        print(f"{level:.0%} intervals held {statistics.mean(held):.0%} of {len(held)} evaluations")


if __name__ == "__main__":
    {"write": write, "reach": reach, "score": score}[sys.argv[1]](*sys.argv[2:])
