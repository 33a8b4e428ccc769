"""The problems of the study: GSM8K and MATH together for training, and three sets that no run trains on.

    python problems.py FOLDER --gsm8k TRAIN TEST --math TRAIN TEST

The files are JSON lines, .gz or not: GSM8K with `question` and `answer` (openai/grade-school-math, MIT), MATH with
`problem` and `answer` (Hendrycks et al. 2021, MIT), whose test rows say with `math500` which belong to MATH-500. FOLDER
gets train.jsonl.gz, gsm8k-test.jsonl.gz, math500.jsonl.gz and gsm8k-fresh.jsonl.gz, with `prompt`, `answer` and
`source`. The last one has GSM8K's test problems with other numbers, which no model can have seen
(benchmarks/fresh_numbers.py made it, from the same MIT-licensed file).
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FRESH = Path(__file__).with_name("gsm8k-fresh.jsonl.gz")
Row = Mapping[str, Any]


def read(path: Path) -> list[Row]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def problems(rows: Iterable[Row], source: str, question: str) -> Iterator[Row]:
    for row in rows:
        # GSM8K's own files give the solution first and the number after ####.
        answer = row["answer"].rpartition("####")[2].strip()
        # A few solutions of MATH have an empty last box: nothing could be graded right.
        if answer:
            yield {"prompt": row[question], "answer": answer, "source": source}


def write(path: Path, rows: Iterable[Row]) -> int:
    lines = [json.dumps(row) for row in rows]
    # Without the time, so that the same problems give the same file.
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))
    return len(lines)


def write_all(folder: Path, gsm8k: tuple[Path, Path], math: tuple[Path, Path]) -> dict[str, int]:
    """Write the four files; return their numbers of problems."""
    trained = [
        *problems(read(gsm8k[0]), "gsm8k", "question"),
        *problems(read(math[0]), "math", "problem"),
    ]
    # Mixed once for all runs: they withhold the same problems.
    random.Random(0).shuffle(trained)
    math500 = [row for row in read(math[1]) if row["math500"]]
    files = {
        "train": trained,
        "gsm8k-test": problems(read(gsm8k[1]), "gsm8k", "question"),
        "math500": problems(math500, "math", "problem"),
        "gsm8k-fresh": problems(read(FRESH), "gsm8k-fresh", "question"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return {name: write(folder / f"{name}.jsonl.gz", rows) for name, rows in files.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gsm8k", type=Path, nargs=2, required=True, metavar=("TRAIN", "TEST"))
    parser.add_argument("--math", type=Path, nargs=2, required=True, metavar=("TRAIN", "TEST"))
    given = parser.parse_args()
    for name, number in write_all(given.folder, given.gsm8k, given.math).items():
        print(f"{name}.jsonl.gz: {number} problems")


if __name__ == "__main__":
    main()
