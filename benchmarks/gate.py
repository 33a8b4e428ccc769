"""The gate for a change of the curve model: one table of coverage, interval scores and error rates of verdicts.

    python benchmarks/gate.py [--fitter new] [--num 60] [--pairs 10] [--only "flat+our runs"] [--cuts half+whole]

`--fitter` is a name in gate_fitters.py or a module with `fit(run)` and `pair(first, second)`. Figures of the code
before (gate_before.json, or `--before FILE`) stand in front of the new ones.

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

import measured
import numpy as np
import populations
from gate_fitters import Decision, Fitter, find
from numpy.typing import ArrayLike
from populations import CUTS, PAIRS, POPULATIONS, Array, Case, Pair

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
    ok_covered: float
    """Whether a ceiling that is called known holds: the true one or, of a measured run, what it reached."""
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
    covered = float(bottom <= case.ceiling <= top) if np.isfinite(case.ceiling) else np.nan
    held = covered
    if np.isfinite(case.reached):
        slack = 2 * case.reached_error
        held = float(bottom - slack <= case.reached <= top + slack)
    return Scored(
        ceiling_covered=covered,
        ok_covered=held if judged.is_known else np.nan,
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

MEANS = ("ceiling_covered", "ok_covered", "ceiling_score", "new_covered", "new_score", "ok", "flat", "fallen", "raised")


def summarise(population: str, cut: str, scored: Sequence[Scored]) -> dict[str, Any]:
    columns = {name: np.array([getattr(each, name) for each in scored]) for name in Scored.__slots__}
    row: dict[str, Any] = {"population": population, "cut": cut, "runs": len(scored)}
    row |= {name: mean(columns[name]) for name in MEANS}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row, for one process."""

    fitter: str
    population: str
    cut: str
    num: int


def measure(task: Task) -> dict[str, Any]:
    if task.population in POPULATIONS:
        found = list(populations.cases(task.population, task.cut, task.num))
    else:
        found = measured.cases(task.population, CUTS[task.cut])
    fitter = find(task.fitter)
    row = summarise(
        task.population, task.cut, [try_score(fitter, case, f"{task.population}, {task.cut}") for case in found]
    )
    if task.population not in POPULATIONS:
        for peer in PEERS:
            row[peer] = mean(np.array([score(find(peer), case).new_score for case in found]))
    return row


def tasks(given: argparse.Namespace) -> Iterable[Task]:
    for population in given.only or (*POPULATIONS, measured.PUBLISHED, *measured.SOURCES):
        for cut in given.cuts:
            # Of falls the whole is judged, as a cut may lie before them; of measured runs what can be seen later.
            is_whole = cut == "whole"
            if population.startswith("fall") or population == measured.PUBLISHED:
                is_judged = is_whole
            else:
                is_judged = not is_whole or population in POPULATIONS
            if is_judged:
                yield Task(fitter=given.fitter, population=population, cut=cut, num=given.num)


# Pairs ----------------------------------------------------------------------------------------------------------------

OUTCOMES = ("right", "wrong", "undecided")
WORTH = 0.01
"""A smaller difference at the budget does not matter."""
FOLLOWED = ("carried-on", "paper")
"""What the loss of following the tool is compared with: taking the one ahead now, and the paper's rule."""


def outcome(decision: Decision, pair: Pair, is_measured: bool) -> str:
    """Return what became of a decision.

    To take the worse one, or either where the difference matters, is wrong; so is to take one of two measured runs that
    are alike, or of two seeds of one recipe.
    """
    if decision.answer == "open":
        return "undecided"
    if decision.answer == "either":
        return "right" if abs(pair.lead) < WORTH else "wrong"
    if is_measured and pair.lead == 0:
        return "wrong"
    return "right" if decision.leader * pair.lead > -WORTH else "wrong"


def lost(decision: Decision, pair: Pair) -> float:
    """Return the reward that is lost by following: the leader is taken, whatever the answer."""
    return max(-decision.leader * pair.lead, 0.0) if decision.leader else abs(pair.lead) / 2


def measure_pair(task: tuple[str, str, Pair]) -> dict[str, Any]:
    fitter, kind, pair = task
    row: dict[str, Any] = {"pairs": kind, "num": 1, "raised": 0, "efficiency_right": 0, "efficiency_wrong": 0}
    row |= dict.fromkeys(OUTCOMES, 0)
    is_measured = kind.startswith(measured.SOURCES)
    try:
        decision = find(fitter).pair(pair.first, pair.second)
    except Exception:
        print(f"{kind}: {traceback.format_exc(limit=-2)}", file=sys.stderr, flush=True)
        return row | {"raised": 1}
    row[outcome(decision, pair, is_measured)] += 1
    if pair.efficiency is not None and decision.efficiency:
        row["efficiency_right" if decision.efficiency == pair.efficiency else "efficiency_wrong"] += 1
    if not is_measured:
        row["loss"] = lost(decision, pair)
        row |= {f"loss, {peer}": lost(find(peer).pair(pair.first, pair.second), pair) for peer in FOLLOWED}
    return row


def pair_tasks(given: argparse.Namespace) -> Iterable[tuple[str, str, Pair]]:
    for name in PAIRS:
        for drift in (False, True):
            kind = f"{name}, drift" if drift else name
            yield from ((given.fitter, kind, pair) for pair in populations.pairs(name, drift, given.pairs))
    yield from ((given.fitter, kind, pair) for kind, pair in measured.pairs())


def total(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sums of each kind of pairs, and of all."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        for kind in (row["pairs"], "all"):
            own = sums.setdefault(kind, {"pairs": kind})
            own |= {name: own.get(name, 0) + value for name, value in row.items() if name != "pairs"}
    return sums


def show_pairs(rows: Sequence[dict[str, Any]], before: dict[str, dict[str, Any]]) -> None:
    sums = total(rows)
    every = sums.pop("all")
    heads = [*OUTCOMES, "efficiency right", "wrong", "mean loss", *(f"mean loss, {peer}" for peer in FOLLOWED)]
    print(f"\n| pairs | number | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}")
    for row in (*sums.values(), every):
        was = before.get(row["pairs"])
        num_simulated = sum(1 for each in rows if "loss" in each and row["pairs"] in (each["pairs"], "all"))
        texts = [f"{row[name]}" if was is None else f"{was[name]} to {row[name]}" for name in OUTCOMES]
        texts += [str(row["efficiency_right"]), str(row["efficiency_wrong"])]
        for name in ("loss", *(f"loss, {peer}" for peer in FOLLOWED)):
            texts.append(f"{row[name] / num_simulated:.4f}" if name in row else "")
        raised = f" ({row['raised']} raised)" if row["raised"] else ""
        print(f"| {row['pairs']} | {row['num']}{raised} | {' | '.join(texts)} |")


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


PEERS = ("least-squares", "carried-on")


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
        # A few runs may happen to be covered alike.
        return max(row["new_covered_se"], 0.1 / np.sqrt(row["runs"]))
    num = row["runs"] * (row["ok"] or 0.0) if column == "ok_covered" else row["runs"]
    value = float(np.clip(row[column], 0.02, 0.98))
    return float(np.sqrt(value * (1 - value) / max(num, 1)))


# The table ------------------------------------------------------------------------------------------------------------

COLUMNS = {
    "ceiling_covered": "ceiling covered",
    "ceiling_score": "ceiling score",
    "ok": "levelling off",
    "ok_covered": "covered of these",
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
            # Other runs have other scores.
            is_same = before is not None and before["runs"] == row["runs"]
            mark = "!" if is_same and value > WORSE * was else ""
    return f"{text}{mark}", mark


def show(
    rows: Iterable[dict[str, Any]], before: dict[tuple[str, str], dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Print each row as it comes, then what holds over all; return the rows and how many figures miss a limit."""
    print(f"| population | cut | runs | {' | '.join(COLUMNS.values())} |\n|{'---|' * (3 + len(COLUMNS))}")
    num_missed, done, matched = 0, [], []
    for row in rows:
        was = before.get((row["population"], row["cut"]))
        cells = [cell(row, was, column) for column in COLUMNS]
        num_missed += sum(mark == "!" for _, mark in cells) + bool(row["raised"])
        raised = f" ({row['raised']:.0%} raised)" if row["raised"] else ""
        texts = " | ".join(text for text, _ in cells)
        print(f"| {row['population']} | {row['cut']} | {row['runs']}{raised} | {texts} |", flush=True)
        done.append(row)
        matched += [] if was is None else [was]
    num_missed += show_peers(done)
    show_overall(overall(done), overall(matched) if len(matched) == len(done) else {})
    print(f"\n{num_missed} figures miss what is required by more than noise (!).", flush=True)
    return done, num_missed


def overall(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return figures over all rows: shares are those of all runs, scores geometric means of the rows."""
    found = {}

    def add(name: str, column: str, of: Sequence[dict[str, Any]]) -> None:
        of = [row for row in of if row[column] is not None]
        weights = [row["runs"] * (row["ok"] if column == "ok_covered" else 1.0) for row in of]
        if of and column.endswith("score"):
            found[name] = float(np.exp(np.mean(np.log([row[column] for row in of]))))
        elif sum(weights):
            found[name] = float(np.average([row[column] for row in of], weights=weights))

    for cut in CUTS:
        here = [row for row in rows if row["cut"] == cut]
        for column in ("ceiling_covered", "ceiling_score", "new_covered", "new_score"):
            add(f"{COLUMNS[column]}, {cut}", column, here)
    falls = [row for row in rows if row["population"].startswith("fall")]
    add("covered of ok", "ok_covered", rows)
    add("flat called flat", "flat", [row for row in rows if row["population"].startswith("flat")])
    add(
        "falls found, of 8 and 16 se", "fallen", [row for row in falls if not row["population"].startswith("fall of 4")]
    )
    add(
        "false alarms of falls",
        "fallen",
        [row for row in rows if row not in falls and row["population"] in POPULATIONS],
    )
    return found


def show_overall(now: dict[str, float], before: dict[str, float]) -> None:
    print("\n| over all rows | before | now | ratio |\n|---|---|---|---|")
    for name, value in now.items():
        was = before.get(name)
        ratio = f"{value / was:.2f}" if was and "score" in name else ""
        print(f"| {name} | {'' if was is None else f'{was:.3f}'} | {value:.3f} | {ratio} |")


def show_peers(rows: Sequence[dict[str, Any]]) -> int:
    """Show measured curves, published and real ones, beside the peers; return how many rows least squares does better.

    Neither clean curves nor noisy ones may pay for the others.
    """
    with_peers = [row for row in rows if PEERS[0] in row]
    if with_peers:
        print(f"\n| measured | cut | new score | {' | '.join(PEERS)} |\n|{'---|' * (3 + len(PEERS))}")
    num_worse = 0
    for row in with_peers:
        is_worse = row["new_score"] > row[PEERS[0]]
        num_worse += is_worse
        texts = [f"{row['new_score']:.3f}{'!' if is_worse else ''}", *(f"{row[name]:.3f}" for name in PEERS)]
        print(f"| {row['population']} | {row['cut']} | {' | '.join(texts)} |")
    return num_worse


def read_before(given: argparse.Namespace) -> dict[str, Any]:
    before = json.loads(given.before.read_text())
    if before["num"] != given.num and given.num:
        print(f"(the figures before are of {before['num']} runs a population, these of {given.num})")
    return before


def parse() -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return [part.strip() for part in text.split("+")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fitter", default="new", help="a name in gate_fitters.py, or a module")
    parser.add_argument("--num", type=int, default=60, help="runs of a population at a cut")
    parser.add_argument("--pairs", type=int, default=10, help="simulated pairs of a kind; 0: no pairs at all")
    parser.add_argument("--only", type=listed, help="populations or sources, with + between them; no pairs then")
    parser.add_argument("--cuts", type=listed, default=list(CUTS), help="with + between them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--before", type=Path, default=BEFORE, help="what an earlier --json wrote; shown in front")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args()
    for name in given.only or ():
        if name not in (known := (*POPULATIONS, measured.PUBLISHED, *measured.SOURCES)):
            parser.error(f"no population {name!r}; there are {', '.join(known)}")
    return given


def main() -> int:
    given = parse()
    begin = time.monotonic()
    before = read_before(given) if given.before.exists() else {"rows": [], "pairs": []}
    # Each process has one thread: numpy reads this when it is loaded.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    rows, pairs, num_missed = [], [], 0
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        if given.num:
            coming = (row for row in pool.map(measure, tasks(given)) if row["runs"])
            rows, num_missed = show(coming, {(row["population"], row["cut"]): row for row in before["rows"]})
        if given.pairs and not given.only:
            pairs = list(pool.map(measure_pair, pair_tasks(given), chunksize=4))
            show_pairs(pairs, {row["pairs"]: row for row in before["pairs"] if "right" in row})
            pairs = list(total(pairs).values())
    if given.json:
        lines, more = (",\n".join(json.dumps(row) for row in each) for each in (rows, pairs))
        given.json.write_text(
            f'{{"num": {given.num}, "fitter": "{given.fitter}", "rows": [\n{lines}\n], "pairs": [\n{more}\n]}}\n'
        )
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
