"""The cost of bad answers in a grader pool: math answers with and without some that hang, crash or exhaust memory.

The good answers are graded alone first, then all answers. Every verdict and every count is compared with what is
expected.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from graded import grade_all

from scalerl.training.graders.math import WARM_UP, math
from scalerl.training.graders.pool import GraderPool, GraderSpec

# Most that hang wait for something; one in four computes, which costs its cpu_limit_s.
SHARES = {"sleeps": 0.015, "spins": 0.005, "exits": 0.005, "segfaults": 0.005, "hoards": 0.01}
ENDINGS = {"sleeps": "timeout", "spins": "timeout", "exits": "crash", "segfaults": "crash", "hoards": "memory"}
TARGET = 0.8
LIMITS = {"num_workers": 8, "timeout_s": 1.0, "cpu_limit_s": 0.12, "memory_limit_mb": 64}


def hostile(text: str, answer: str, /) -> bool | None:
    """The math grader, except for answers that tell it to break its process."""
    match text:
        case "sleeps":
            time.sleep(3600)
        case "spins":
            while True:
                pass
        case "exits":
            os._exit(3)
        case "segfaults":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hoards":
            hoard = []
            while True:
                hoard.append(b"x" * 2**20)
    return math(text, answer)


if __name__ != "__main__":
    # The grader's process has imported this: what is warm before it forks workers is warm in all of them.
    for pair in WARM_UP:
        math(*pair)


def answer(stream: random.Random) -> tuple[str, str, bool]:
    """Return a completion, its reference and whether it is correct: half are integers, a few are of harder forms."""
    right = stream.random() < 0.5
    a, b, c = (stream.randint(2, 60) for _ in range(3))
    off = 0 if right else 1
    forms = {
        (rf"{a * b}", rf"{a * b + off}"): 0.5,
        (rf"\frac{{{a * c}}}{{{b * c}}}", rf"\frac{{{a + off}}}{{{b}}}"): 0.2,
        (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b + off}}}"): 0.1,
        (rf"[{a}, {a + b})", rf"[{a}, {a + b + off})"): 0.05,
        (rf"\{{{a}, {a + b}\}}", rf"\{{{a + b}, {a + off}\}}"): 0.05,
        (rf"x^2 + {a + b}x + {a * b}", rf"(x + {a})(x + {b}) + {off}"): 0.1,
    }
    ((given, reference),) = stream.choices(list(forms), weights=list(forms.values()))
    return rf"<think>Let me see.</think>The answer is $\boxed{{{given}}}$.", reference, right


def answers(num: int, seed: int) -> list[tuple[str, str, str]]:
    """Return texts with references, bad ones spread among them, and how each must end."""
    stream = random.Random(seed)
    bad = [kind for kind, share in SHARES.items() for _ in range(round(share * num))]
    rows = [(kind, "1", ENDINGS[kind]) for kind in bad]
    for _ in range(num - len(bad)):
        text, reference, right = answer(stream)
        rows.append((text, reference, "right" if right else "wrong"))
    stream.shuffle(rows)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measurements."""

    good_s: float
    all_s: float
    counts: Counter[str]
    """How the answers of both sets ended."""
    slips: list[str]
    """Endings that were not as expected."""
    num_left: int
    """Processes that outlived the pool."""

    @property
    def ratio(self) -> float:
        """Throughput of good answers with bad ones among them, relative to that without."""
        return self.good_s / self.all_s


def timed(pool: GraderPool, rows: Sequence[tuple[str, str, str]]) -> tuple[float, list[str]]:
    """Return the seconds, and how each ended."""
    pairs = [(text, reference) for text, reference, _ in rows]
    begin = time.perf_counter()
    graded = grade_all(pool, GraderSpec(name=f"{Path(__file__).stem}:hostile"), pairs)
    seconds = time.perf_counter() - begin
    return seconds, [result.reason or ("right" if result.value == 1 else "wrong") for result in graded]


def num_processes(session: int) -> int:
    """Count the processes of a session, including unreaped dead ones (Linux)."""
    num = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while the folder is read.
        with suppress(OSError):
            num += int(path.read_text().rpartition(")")[2].split()[3]) == session
    return num


def measure(num: int, limits: Mapping[str, Any] = LIMITS) -> Result:
    """Grade the good ones of `num` answers, then all of them."""
    rows = answers(num, seed=0)
    good = [row for row in rows if row[2] in ("right", "wrong")]
    with GraderPool(**limits) as pool:
        (good_s, first), (all_s, second) = timed(pool, good), timed(pool, rows)
    ended = zip([*first, *second], [*good, *rows], strict=True)
    slips = [f"{ending}, not {due}" for ending, (_, _, due) in ended if ending != due]
    num_left = num_processes(pool.pids[0])
    return Result(good_s=good_s, all_s=all_s, counts=Counter([*first, *second]), slips=slips, num_left=num_left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=10_000, help="answers, the bad ones among them")
    num = parser.parse_args().num
    result = measure(num)
    num_good = num - round(sum(SHARES.values()) * num)
    console = Console()
    console.print("Limits: " + ", ".join(f"{name} {value}" for name, value in LIMITS.items()))
    table = Table(title="Math answers graded in a pool", title_justify="left", box=None)
    for column in ("set", "answers", "seconds", "good answers a second"):
        table.add_column(column, justify="right")
    for name, size, spent in (("good ones alone", num_good, result.good_s), ("with bad ones", num, result.all_s)):
        table.add_row(name, f"{size:,}", f"{spent:.1f}", f"{num_good / spent:.0f}")
    console.print(table)
    console.print("Both sets ended: " + ", ".join(f"{num} {ending}" for ending, num in result.counts.items()))
    console.print(f"Not as due: {len(result.slips)} {result.slips[:3]}; processes left over: {result.num_left}.")
    console.print(f"Throughput {result.ratio:.2f} of that without bad answers (target {TARGET}).")
    if result.ratio < TARGET or result.slips or result.num_left:
        sys.exit(1)


if __name__ == "__main__":
    main()
