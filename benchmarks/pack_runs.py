"""Keep of run folders what fits, reports and readers need: pack_runs.py FOLDER [--every N] RUN [RUN ...]"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    for folder in arguments.runs:
        print(pack(folder, arguments.target, every=arguments.every))


def pack(folder: Path, target: Path, *, every: int = 1) -> Path:
    """Copy what a fit and a reader need from a run, without checkpoints and keys of groups.

    With `every` above 1, keep one metrics row in so many and the last, rounded to six digits, and leave out samples and
    the counts per problem.
    """
    copied = target / folder.name
    copied.mkdir(parents=True)
    rows = _without(store.read_metrics(folder), "groups")
    whole = [store.EVALS, store.SAMPLES] if every == 1 else []
    if every > 1:
        rows = [_rounded(row) for place, row in enumerate(rows) if place % every == 0 or row is rows[-1]]
        _write(copied / store.EVALS, _without(store.read_evals(folder), "num_correct"))
    _write(copied / store.METRICS, rows)
    for name in (store.RECIPE, store.ENV, store.STATUS, *whole):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, copied / name)
    return copied


def _without(rows: Sequence[store.Row], left_out: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != left_out} for row in rows]


def _rounded(row: store.Row) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def _write(path: Path, rows: Sequence[store.Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
