"""How far to trust it, from what the gate measured (docs/results/calibration/gate.json).

python benchmarks/gate.py --json docs/results/calibration/gate.json     measure anew
python benchmarks/trust.py measured      real runs: later evaluations inside 90% intervals, and interval scores
python benchmarks/trust.py simulated     later evaluations and true ceilings inside 90% intervals
python benchmarks/trust.py sealed        forecasts that were sealed while runs trained
python benchmarks/trust.py states        how often a word is right
python benchmarks/trust.py picks         what becomes of following `compare`
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from bank import RESULTS
from populations import CUTS, POPULATIONS
from study_table import num_scored, sealed_scores

from scalerl.forecast.several.seal import SealScore

GATE = RESULTS / "calibration" / "gate.json"
MEASURED_GATE = GATE.with_name("measured.json")
"""The rows of measured runs, by the model that ships; the simulated ones take an hour."""
SIMULATED = {
    "one rise": ("sigmoid", "binomial", "other forms", "lag"),
    "one rise, drifting": ("sigmoid, correlated", "binomial, drift"),
    "several seeds": ("seeds",),
    "levelled off long ago": ("levelled",),
    "fast rise, slow growth": ("slow tail",),
    "two rises": ("two phases",),
    "late rise": ("late take-off",),
    "rewards without limits": ("unbounded",),
    "no rise at all": ("flat", "flat, correlated", "flat, drift"),
}
MEASURED = {
    "published 8B runs": ("published",),
    "Qwen2.5 base models": ("tan2025",),
    "others' evaluations": ("logged evaluations",),
    "others' training rewards": ("training rewards",),
    "our own runs": ("our runs",),
}
PEERS = ("least-squares", "carried-on")


@cache
def gate() -> dict[str, list[dict[str, Any]]]:
    return json.loads(GATE.read_text())


def rows_of(names: Sequence[str], cut: str, column: str) -> list[dict[str, Any]]:
    rows = [row for row in gate()["rows"] if row["population"] in names and row["cut"] == cut]
    return [row for row in rows if row[column] is not None]


def share(names: Sequence[str], cut: str, column: str) -> str:
    """Return the mean of a column over populations, weighed by their runs; empty where nothing was measured."""
    rows = rows_of(names, cut, column)
    return f"{np.average([row[column] for row in rows], weights=[row['runs'] for row in rows]):.0%}" if rows else "-"


def measured() -> Iterator[str]:
    """Later evaluations inside 90% intervals with standard errors over runs, and interval scores beside peers."""
    yield "| runs | seen | number | inside 90% | score: scalerl | least squares | last quarter carried on |"
    yield "|---|---|---|---|---|---|---|"
    rows = json.loads(MEASURED_GATE.read_text())["rows"]
    for kind, names in MEASURED.items():
        for row in rows:
            if row["population"] in names:
                inside = f"{row['new_covered']:.0%} ± {row['new_covered_se']:.0%}"
                scores = " | ".join(f"{row[name]:.3f}" for name in ("new_score", *PEERS))
                yield f"| {kind} | {row['cut']} | {row['runs']} | {inside} | {scores} |"


def simulated() -> Iterator[str]:
    """Shares of later evaluations, and of true ceilings, inside 90% intervals, by how much of a run was seen."""
    yield "| runs | number | a tenth seen | a quarter | half | whole |"
    yield "|---|---|---|---|---|---|"
    for kind, names in SIMULATED.items():
        runs = max(row["runs"] for row in gate()["rows"] if row["population"] in names) * len(names)
        cells = [f"{share(names, cut, 'new_covered')}, {share(names, cut, 'ceiling_covered')}" for cut in CUTS]
        yield f"| {kind} | {runs} | {' | '.join(cells)} |"


SEALED = {
    "first curves, sizes": ("principles/sealed.jsonl.gz", "principles/*.csv.gz"),
    "10M, first seeds (curve-3)": ("forward/sealed.jsonl.gz", "forward/runs.csv.gz"),
    "10M, second seeds (curve-4)": (
        "forward/sealed-second.jsonl.gz",
        "forward/runs.csv.gz forward/sizes.csv.gz",
    ),
    "0.9M, a tool (curve-4)": ("tools/sealed.jsonl.gz", "tools/runs.csv.gz"),
    "SmolLM2-135M (curve-5)": ("smollm2/sealed.jsonl.gz", "smollm2/runs.csv.gz"),
}
"""Sealed forecasts with the tables of the runs that they are about, by what ran and the model that forecast."""


def sealed() -> Iterator[str]:
    """Later evaluations inside 90% intervals, over forecasts; the standard error is that of the mean over forecasts."""
    yield "| sealed while these trained | from | forecasts | inside 90% | median bias |\n|---|---|---|---|---|"
    for kind, (path, patterns) in SEALED.items():
        tables = [str(table) for pattern in patterns.split() for table in sorted(RESULTS.glob(pattern))]
        by_start: dict[str, list[SealScore]] = {}
        for start, every in sealed_scores(str(RESULTS / path), *tables).items():
            by_start.setdefault(start.partition("-")[0], []).extend(score for _, score, _ in every)
        for start, scores in sorted(by_start.items()):
            covered = np.array([score.coverage[0.9] for score in scores])
            inside = np.average(covered, weights=[num_scored(score) for score in scores])
            error = covered.std(ddof=1) / np.sqrt(len(covered))
            bias = np.median([score.bias for score in scores])
            yield f"| {kind} | {start} | {len(scores)} | {inside:.0%} ± {error:.0%} | {bias:+.3f} |"


def mean(column: str, rows: Sequence[dict[str, Any]], weight: Callable[[dict[str, Any]], float], digits: int) -> str:
    rows = [row for row in rows if row[column] is not None and weight(row) > 0]
    share = np.average([row[column] for row in rows], weights=[weight(row) for row in rows])
    return f"{share:.{digits}%}"


def states() -> Iterator[str]:
    every = gate()["rows"]
    runs = lambda row: float(row["runs"])  # noqa: E731
    falls = [row for row in every if row["population"].startswith("fall of")]
    large = [row for row in falls if not row["population"].startswith("fall of 4")]
    flat = [row for row in every if row["population"].startswith("flat")]
    others = [row for row in every if row["population"] in POPULATIONS and row not in falls]
    called = mean("ok_covered", every, lambda row: row["runs"] * (row["ok"] or 0.0), 0)
    yield "| what is said | how often |\n|---|---|"
    yield f"| levelling off: the ceiling's interval holds | {called} |"
    yield f"| flat or too early, of runs without a rise | {mean('flat', flat, runs, 0)} |"
    yield f"| past its peak, of falls of 8 standard errors and more | {mean('fallen', large, runs, 0)} |"
    yield f"| past its peak, of runs that did not fall: a false alarm | {mean('fallen', others, runs, 1)} |"


def picks() -> Iterator[str]:
    losses = ("reward lost by following it", "by choosing the one ahead", "by the paper's rule")
    yield f"| pairs | number | right | wrong | inconclusive | {' | '.join(losses)} |\n{'|---' * 8}|"
    rows = [row for row in gate()["pairs"] if row["pairs"] != "all"]
    measured = [row for row in rows if "loss" not in row]
    for kind, held in (("simulated", [row for row in rows if row not in measured]), ("measured", measured)):
        if held:
            number, *counts = (sum(row[name] for row in held) for name in ("num", "right", "wrong", "undecided"))
            names = ("loss", "loss, carried-on", "loss, paper")
            cells = [f"{count / number:.0%}" for count in counts]
            cells += [f"{sum(row[name] for row in held) / number:.4f}" if kind == "simulated" else "" for name in names]
            yield f"| {kind} | {number} | {' | '.join(cells)} |"


TABLES = {each.__name__: each for each in (measured, simulated, sealed, states, picks)}


def run(*words: str) -> None:
    if len(words) != 1 or words[0] not in TABLES:
        raise SystemExit(__doc__)
    print(*TABLES[words[0]](), sep="\n")


if __name__ == "__main__":
    run(*sys.argv[1:])
