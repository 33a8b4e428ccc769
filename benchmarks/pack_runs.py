"""Write the evaluations of run folders as one compressed table: pack_runs.py TABLE.csv.gz RUN [RUN ...]

A row is an evaluation, with the arm and the seed of its run, pass@k where the correct answers of each problem are
known, and a few metrics of the training step at which it was made. Every command reads it:

    scalerl compare TABLE.csv.gz --x flops --by arm --seed seed
"""

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scalerl import store
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


def main(target: str, *folders: str) -> None:
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
        values: dict[str, object] = {"arm": arm, "seed": seed} | {
            key: short(row[key]) for key in EVALUATION if key in row
        }
        if correct := row.get("num_correct"):
            num = row["num_samples"] // len(correct)
            values |= {f"pass@{k}": short(pass_at(correct, num, k)) for k in PASS if k <= num}
        step = steps.get(row["step"], {})
        yield values | {f"training/{name}": short(step[name]) for name in TRAINING if name in step}


def short(value: object) -> object:
    return f"{value:.8g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
