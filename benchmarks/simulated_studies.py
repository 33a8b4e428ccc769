"""The command line that plan_replay.py and pooling.py share: simulate studies one by one, or summarise stored rows."""

import argparse
import gzip
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def main(
    description: str | None,
    spread: str,
    study: Callable[[np.random.Generator, str], Row],
    summary: Callable[[Sequence[Row]], None],
    published: Callable[[Path], None],
) -> None:
    """Run `study` for each seed and print the summary; `--summary` and `--published` take the place of that."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first study, to share them among processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", default=spread)
    parser.add_argument("--out", type=Path, help="append the row of each study to this file")
    parser.add_argument("--summary", type=Path, nargs="+", help="summarise rows that --out wrote")
    parser.add_argument("--published", type=Path, help="CSV of the published curves")
    options = parser.parse_args()
    if options.summary:
        texts = [
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for path in options.summary
        ]
        summary([json.loads(line) for text in texts for line in text.splitlines()])
        return
    if options.published:
        published(options.published)
        return
    began, rows = time.process_time(), []
    for index in range(options.first, options.first + options.studies):
        rows.append(study(np.random.default_rng([options.seed, index]), options.spread))
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    summary(rows)
    print(f"\n{options.studies} studies, {time.process_time() - began:.0f} s of CPU")
