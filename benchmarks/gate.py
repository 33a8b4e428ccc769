"""The gate for a change of the curve model: one table of coverage, interval scores and error rates of verdicts.

    python benchmarks/gate.py [--fitter new] [--num 60] [--only 'flat+slow tail'] [--cuts half+whole] [--json FILE]

`--fitter` is a name in gate_fitters.py or a module with `fit(run)` and `pair(first, second)`. Figures of the code
before (gate_before.json) stand in front of the new ones. To measure older code:

    git worktree add ../old 8fd67ad && PYTHONPATH=../old/src python benchmarks/gate.py --fitter old --json FILE

Exit status 1: a requirement is not met. `!` marks a figure that misses it by more than two standard errors, `?` one
that misses it by less.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gate_fitters import Fitter, find
from numpy.typing import ArrayLike
from populations import CUTS, POPULATIONS, Array, Case, cases

BEFORE = Path(__file__).with_name("gate_before.json")
MISS = 20.0
"""What a value outside a 90 % interval costs, over what the interval's width does."""
MOST_LATER = 40
"""Later evaluations of a run that are scored, evenly chosen."""


def interval_score(low: ArrayLike, high: ArrayLike, value: ArrayLike) -> Array:
    """Return the width of 90 % intervals plus 20 times what falls outside."""
    low, high, value = (np.asarray(each, dtype=float) for each in (low, high, value))
    return high - low + MISS * (np.maximum(low - value, 0) + np.maximum(value - high, 0))


# One run --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What became of one case; NaN where there is no truth."""

    ceiling_covered: float
    ceiling_score: float
    new_covered: float
    new_score: float
    ok: float
    flat: float
    fallen: float
    ms: float
    raised: float = 0.0


NOTHING = Scored(**dict.fromkeys(set(Scored.__slots__) - {"raised"}, np.nan), raised=1.0)


def score(fitter: Fitter, case: Case) -> Scored:
    begin = time.process_time()
    judged = fitter.fit(case.run)
    ms = 1e3 * (time.process_time() - begin)
    compute, reward = case.scored
    if len(compute) > MOST_LATER:
        pick = np.linspace(0, len(compute) - 1, MOST_LATER).round().astype(int)
        compute, reward = compute[pick], reward[pick]
    low, high = judged.new(compute)
    bottom, top = judged.ceiling_low, judged.ceiling_high
    has_ceiling = np.isfinite(case.ceiling)
    return Scored(
        ceiling_covered=float(bottom <= case.ceiling <= top) if has_ceiling else np.nan,
        ceiling_score=float(interval_score(bottom, top, case.ceiling)) / case.unit,
        new_covered=float(np.mean((low <= reward) & (reward <= high))),
        new_score=float(np.mean(interval_score(low, high, reward))) / case.unit,
        ok=float(judged.is_known),
        flat=float(judged.is_flat),
        fallen=float(judged.is_fallen),
        ms=ms,
    )


def try_score(fitter: Fitter, case: Case, name: str) -> Scored:
    """Return the scores, or nothing where the fitter raises: that is a failure of its own, and is shown."""
    try:
        return score(fitter, case)
    except Exception:
        print(f"{name}: {traceback.format_exc(limit=-2)}", file=sys.stderr, flush=True)
        return NOTHING


# One row of the table -------------------------------------------------------------------------------------------------

MEANS = ("ceiling_covered", "ceiling_score", "new_covered", "new_score", "ok", "flat", "fallen", "raised")


def summarise(population: str, cut: str, scored: Sequence[Scored]) -> dict[str, Any]:
    columns = {name: np.array([getattr(each, name) for each in scored]) for name in Scored.__slots__}
    row: dict[str, Any] = {"population": population, "cut": cut, "runs": len(scored)}
    row |= {name: mean(columns[name]) for name in MEANS}
    is_ok = columns["ok"] == 1
    row["ok_covered"] = mean(columns["ceiling_covered"][is_ok])
    row["ms"] = rounded(np.nanmedian(columns["ms"])) if np.isfinite(columns["ms"]).any() else None
    # Later evaluations of one run miss together: the error of their coverage is that of the mean over runs.
    covered = columns["new_covered"][columns["raised"] == 0]
    row["new_covered_se"] = rounded(covered.std() / np.sqrt(len(covered))) if len(covered) else None
    return row


def mean(values: Array) -> float | None:
    values = values[np.isfinite(values)]
    return rounded(values.mean()) if len(values) else None


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def measure(task: tuple[str, str, str, int]) -> dict[str, Any]:
    name, population, cut, num = task
    fitter = find(name)
    scored = [try_score(fitter, case, f"{population}, {cut}") for case in cases(population, cut, num)]
    return summarise(population, cut, scored)


def tasks(given: argparse.Namespace) -> Iterable[tuple[str, str, str, int]]:
    for population in given.only or POPULATIONS:
        # A cut may lie before the fall.
        for cut in given.cuts:
            if not population.startswith("fall") or cut == "whole":
                yield given.fitter, population, cut, given.num


# What must hold -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a share must lie between."""

    low: float = 0.0
    high: float = 1.0

    def mark(self, value: float | None, error: float) -> str:
        if value is None or self.low <= value <= self.high:
            return ""
        miss = max(self.low - value, value - self.high)
        return "!" if miss > 2 * error else "?"


def limits(population: str) -> dict[str, Limit]:
    """Return what must hold in each row of a population."""
    must = {
        "ceiling_covered": Limit(low=0.85, high=0.95),
        "new_covered": Limit(low=0.85, high=0.95),
        "ok_covered": Limit(low=0.88),
        "raised": Limit(high=0.0),
    }
    if population.startswith("flat"):
        must["flat"] = Limit(low=0.95)
    if not population.startswith("fall"):
        must["fallen"] = Limit(high=0.01)
    elif not population.startswith("fall of 4"):
        must["fallen"] = Limit(low=0.97)
    return must


WORSE = 1.1
"""A score may be so many times that of the code before."""


def error_of(row: dict[str, Any], column: str) -> float:
    if column == "new_covered":
        return row["new_covered_se"]
    num = row["runs"] * (row["ok"] or 0.0) if column == "ok_covered" else row["runs"]
    value = float(np.clip(row[column], 0.02, 0.98))
    return float(np.sqrt(value * (1 - value) / max(num, 1)))


# The table ------------------------------------------------------------------------------------------------------------

COLUMNS = {
    "ceiling_covered": "ceiling covered",
    "ceiling_score": "ceiling score",
    "ok": "ok",
    "ok_covered": "covered of ok",
    "new_covered": "new covered",
    "new_score": "new score",
    "flat": "flat",
    "fallen": "fallen",
    "ms": "ms",
}


def cell(row: dict[str, Any], before: dict[str, Any] | None, column: str) -> tuple[str, str]:
    """Return the text of a cell, and its mark."""
    value = row[column]
    if value is None:
        return "", ""
    was = None if before is None else before[column]
    number = "{:.0f}" if column == "ms" else "{:.3f}" if column.endswith("score") else "{:.2f}"
    text = number.format(value)
    mark = ""
    if column in (must := limits(row["population"])):
        mark = must[column].mark(value, error_of(row, column))
    if was is not None:
        text = f"{number.format(was)} {text}"
        if column.endswith("score"):
            text += f" x{value / was:.2f}"
            mark = "!" if value > WORSE * was else ""
    return f"{text}{mark}", mark


def show(rows: Sequence[dict[str, Any]], before: dict[tuple[str, str], dict[str, Any]]) -> int:
    """Print the table; return how many figures miss what is required by more than noise."""
    print(f"| population | cut | runs | {' | '.join(COLUMNS.values())} |\n|{'---|' * (3 + len(COLUMNS))}")
    num_missed = 0
    for row in rows:
        was = before.get((row["population"], row["cut"]))
        done = [cell(row, was, column) for column in COLUMNS]
        num_missed += sum(mark == "!" for _, mark in done) + bool(row["raised"])
        raised = f" ({row['raised']:.0%} raised)" if row["raised"] else ""
        print(f"| {row['population']} | {row['cut']} | {row['runs']}{raised} | {' | '.join(t for t, _ in done)} |")
    print("\nMeans over populations:")
    for cut in dict.fromkeys(row["cut"] for row in rows):
        here = [row for row in rows if row["cut"] == cut]
        was = [before.get((row["population"], cut), {}) for row in here]
        texts = []
        for column in COLUMNS:
            pairs = [(o.get(column), r[column]) for o, r in zip(was, here, strict=True) if r[column] is not None]
            if pairs and column in ("ceiling_covered", "ceiling_score", "new_covered", "new_score", "ms"):
                olds = [o for o, _ in pairs if o is not None]
                text = f"{np.mean([n for _, n in pairs]):.3f}"
                texts.append(f"{COLUMNS[column]} {f'{np.mean(olds):.3f} ' if olds else ''}{text}")
        print(f"  {cut}: {', '.join(texts)}")
    print(f"\n{num_missed} figures miss what is required by more than noise (!).")
    return num_missed


def read_before(num: int) -> dict[tuple[str, str], dict[str, Any]]:
    if not BEFORE.exists():
        return {}
    recorded = json.loads(BEFORE.read_text())
    if recorded["num"] != num:
        print(f"(the figures before are of {recorded['num']} runs a population, these of {num})")
    return {(row["population"], row["cut"]): row for row in recorded["rows"]}


def parse() -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return [part.strip() for part in text.split("+")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fitter", default="new", help="a name in gate_fitters.py, or a module")
    parser.add_argument("--num", type=int, default=60, help="runs of a population at a cut")
    parser.add_argument("--only", type=listed, help="populations, with + between them: 'flat+slow tail'")
    parser.add_argument("--cuts", type=listed, default=list(CUTS), help="with + between them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args()
    for name in given.only or ():
        if name not in POPULATIONS:
            parser.error(f"no population {name!r}; there are {', '.join(POPULATIONS)}")
    return given


def main() -> int:
    given = parse()
    begin = time.monotonic()
    # Each process has one thread: numpy reads this when it is loaded.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(measure, tasks(given)))
    if given.json:
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.json.write_text(f'{{"num": {given.num}, "fitter": "{given.fitter}", "rows": [\n{lines}\n]}}\n')
    num_missed = show(rows, {} if given.fitter == "old" else read_before(given.num))
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
