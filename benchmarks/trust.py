"""How far to trust it, from what the gate measured (docs/results/calibration/gate.json).

python benchmarks/gate.py --json docs/results/calibration/gate.json     measure anew
python benchmarks/trust.py forecasts     later evaluations inside 90 % intervals, by how much was seen
python benchmarks/trust.py ceilings      true ceilings inside 90 % intervals (simulated runs)
python benchmarks/trust.py states        how often a word is right
python benchmarks/trust.py picks         what becomes of following `compare`
python benchmarks/trust.py peers         interval scores on measured runs against simpler forecasts
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from bank import RESULTS
from populations import CUTS, POPULATIONS

GATE = RESULTS / "calibration" / "gate.json"
SIMULATED = {
    "one rise": ("sigmoid", "binomial", "other forms", "lag"),
    "one rise, evaluations that drift": ("sigmoid, correlated", "binomial, drift"),
    "several seeds": ("seeds",),
    "levelled off long ago": ("levelled",),
    "a fast rise, then slow growth": ("slow tail",),
    "two rises": ("two phases",),
    "nothing for long, then a rise": ("late take-off",),
    "rewards without limits": ("unbounded",),
    "no rise at all": ("flat", "flat, correlated", "flat, drift"),
}
MEASURED = {
    "the paper's 8B runs, read off its figures": ("published",),
    "Qwen2.5 base models, 0.5B to 72B": ("tan2025",),
    "evaluations that others logged": ("logged evaluations",),
    "training rewards that others logged": ("training rewards",),
    "our own runs, up to 135M": ("our runs",),
}
PEERS = ("least-squares", "carried-on")


@cache
def gate() -> dict[str, list[dict[str, Any]]]:
    return json.loads(GATE.read_text())


def share(names: Sequence[str], cut: str, column: str) -> str:
    """Return the mean of a column over populations, weighed by their runs; empty where nothing was measured."""
    rows = [row for row in gate()["rows"] if row["population"] in names and row["cut"] == cut]
    rows = [row for row in rows if row[column] is not None]
    return f"{np.average([row[column] for row in rows], weights=[row['runs'] for row in rows]):.0%}" if rows else ""


def by_cut(kinds: dict[str, tuple[str, ...]], column: str) -> Iterator[str]:
    for kind, names in kinds.items():
        runs = max((row["runs"] for row in gate()["rows"] if row["population"] in names), default=0) * len(names)
        yield f"| {kind} | {runs} | {' | '.join(share(names, cut, column) for cut in CUTS)} |"


HEAD = "| runs | number | seen a tenth | a quarter | half | whole |\n|---|---|---|---|---|---|"


def forecasts() -> Iterator[str]:
    yield HEAD
    yield from by_cut({f"measured: {kind}": names for kind, names in MEASURED.items()}, "new_covered")
    yield from by_cut({f"simulated: {kind}": names for kind, names in SIMULATED.items()}, "new_covered")


def ceilings() -> Iterator[str]:
    yield HEAD
    yield from by_cut({kind: names for kind, names in SIMULATED.items() if "no rise" not in kind}, "ceiling_covered")


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
    losses = ("mean loss of following", "of taking the one ahead now", "of the paper's rule")
    yield f"| pairs | number | right | wrong | open | {' | '.join(losses)} |\n{'|---' * 8}|"
    rows = [row for row in gate()["pairs"] if row["pairs"] != "all"]
    measured = [row for row in rows if "loss" not in row]
    for kind, held in (("simulated", [row for row in rows if row not in measured]), ("measured", measured)):
        if held:
            number, *counts = (sum(row[name] for row in held) for name in ("num", "right", "wrong", "undecided"))
            names = ("loss", "loss, carried-on", "loss, paper")
            cells = [f"{count / number:.0%}" for count in counts]
            cells += [f"{sum(row[name] for row in held) / number:.4f}" if kind == "simulated" else "" for name in names]
            yield f"| {kind} | {number} | {' | '.join(cells)} |"


def peers() -> Iterator[str]:
    yield "| runs | seen | number | scalerl | least squares | last quarter carried on |\n|---|---|---|---|---|---|"
    for kind, names in MEASURED.items():
        for row in gate()["rows"]:
            if row["population"] in names:
                scores = " | ".join(f"{row[name]:.3f}" for name in ("new_score", *PEERS))
                yield f"| {kind} | {row['cut']} | {row['runs']} | {scores} |"


def rows() -> Iterator[str]:
    """Every row of the gate: of shares at a tenth, a quarter, half and whole."""
    columns = ("ceiling_covered", "new_covered")
    yield "| runs | ceiling inside | later evaluations inside | called fallen |\n|---|---|---|---|"
    held: dict[str, dict[str, dict[str, Any]]] = {}
    for row in gate()["rows"]:
        held.setdefault(row["population"], {})[row["cut"]] = row
    text = lambda row, column: "-" if row is None or row[column] is None else f"{row[column]:.2f}"  # noqa: E731
    for name, cuts in held.items():
        cells = [" / ".join(text(cuts.get(cut), column) for cut in CUTS) for column in columns]
        yield f"| {name} | {' | '.join(cells)} | {text([*cuts.values()][-1], 'fallen')} |"


TABLES = {each.__name__: each for each in (forecasts, ceilings, states, picks, peers, rows)}


def run(*words: str) -> None:
    if len(words) != 1 or words[0] not in TABLES:
        raise SystemExit(__doc__)
    print(*TABLES[words[0]](), sep="\n")


if __name__ == "__main__":
    run(*sys.argv[1:])
