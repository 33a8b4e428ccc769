"""How far an answer depends on luck: on the points of a fit's draws, or on its seed.

    python benchmarks/luck.py points              ranges over five places of the points at which draws are taken
    python benchmarks/luck.py verdicts [seeds|points] [STUDY ...]
                                                  every verdict of docs/results, tried ten times (minutes)

What is in units of the reward is divided by the width of the ceiling's interval. Series are those of arXiv 2510.13786,
whole and their first halves (../shared/data, where it is there); arms are those of docs/results with several seeds.
"""

import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
from bank import load
from gate_fitters import arguments
from measured import published_curves, together
from populations import Run

from scalerl.forecast.curves import Fit, Kind, compare, decide, fit, sample

NUM_PLACES = 5
NUM_TRIED = 10
"""How often each verdict is tried."""
GOLDEN = 0.618
"""Points are moved by multiples of this share of the cube: they are evenly spread themselves."""
LEAST = 6
"""Evaluations that a series needs."""
STUDIES = ("loo", "seeds", "smollm2", "model-size", "loss", "precision", "first-curves")
ANSWERS = ("ceiling", "low end", "high end", "P(fall)", "P(flat)")


def series() -> Iterator[Run]:
    for curve in published_curves():
        if curve.is_repeat:
            continue
        half = curve.case.cut(0.5)
        yield curve.run
        if half is not None and len(half.run.reward) >= LEAST:
            yield half.run


def studies() -> dict[str, dict[str, list[Run]]]:
    """Return the runs of each arm, by study: our own, and agents by their task."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for curve in load():
        if curve.family in ("scalerl", "agentgym"):
            run = Run(
                compute=np.array(curve.compute),
                reward=np.array(curve.reward),
                start=curve.start,
                num_samples=np.array(curve.num_samples) if curve.num_samples else None,
                is_bounded=curve.bounds == (0.0, 1.0),
            )
            found[curve.curve.split("/")[1]][re.sub(r"[-/]?seed\d+", "", curve.curve)].append(run)
    return found


def arms() -> Iterator[Run]:
    every = studies()
    for study in STUDIES:
        yield from (together(runs) for runs in every[study].values() if len(runs) > 1)


def fitted(run: Run, seed: int = 0) -> Fit:
    return fit(run.compute, run.reward, **arguments(run), seed=seed)


def moved_points(place: int):
    return patch.object(sample, "ROTATION", GOLDEN * place % 1.0)


def answers(curve: Fit) -> np.ndarray:
    kinds = (curve.probability(kind) for kind in (Kind.fall, Kind.flat))
    return np.array([curve.params["ceiling"], *curve.interval("ceiling"), *kinds])


def in_widths(change: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.concatenate([change[:3] / max(high - low, 1e-9), change[3:]])


def by_points(run: Run) -> np.ndarray:
    rows = []
    for place in range(NUM_PLACES):
        with moved_points(place):
            rows.append(answers(fitted(run)))
    every = np.array(rows)
    return in_widths(np.ptp(every, axis=0), *every[:, 1:3].mean(axis=0))


# Verdicts -------------------------------------------------------------------------------------------------------------

Verdicts = dict[str, tuple[str, float]]
"""What is said, and the probability that decided, of each arm, each pair and each study."""


def verdicts(runs: dict[str, Run], seed: int = 0) -> Verdicts:
    fits = {name: fitted(run, seed) for name, run in runs.items()}
    said: Verdicts = {}
    for name, curve in fits.items():
        decision = decide(curve)
        said[name] = f"{decision.state.value}, {decision.action.value}", decision.p_worth
    if len(fits) > 1:
        result = compare(fits)
        for pair in result.pairs:
            said[f"{pair.a} against {pair.b}"] = str((pair.answer, pair.winner)), pair.p_ahead
        if result.pick is not None:
            said["all"] = str((result.pick.answer, sorted(result.chosen))), result.pick.probability
    return said


def tried(way: str, runs: dict[str, Run]) -> Iterator[Verdicts]:
    """Yield the verdicts once for each seed, or for each place of the points."""
    match way:
        case "seeds":
            yield from (verdicts(runs, seed) for seed in range(NUM_TRIED))
        case "points":
            for place in range(NUM_TRIED):
                with moved_points(place):
                    yield verdicts(runs)


def show_verdicts(way: str = "seeds", *names: str) -> None:
    """Print every verdict that changes, and the largest range of a probability."""
    num, num_changed, ranges = 0, 0, []
    for study, own in studies().items():
        if names and study not in names:
            continue
        every = [*tried(way, {arm: together(runs) for arm, runs in own.items()})]
        for name in every[0]:
            said = [each[name] for each in every]
            ranges.append(np.ptp([probability for _, probability in said]))
            num += 1
            if len({words for words, _ in said}) > 1:
                num_changed += 1
                print(study, name, *(f"{words} {probability:.3f}" for words, probability in said), sep="\n    ")
        print(f"{study}: {num} verdicts so far, {num_changed} changed", flush=True)
    middle, high, most = np.quantile(ranges, [0.5, 0.9, 1.0])
    print(f"Ranges of their probabilities: median {middle:.4f}, 90th percentile {high:.4f}, largest {most:.4f}.")


def show(name: str, runs: list[Run]) -> None:
    begin = time.process_time()
    found = np.quantile([by_points(run) for run in runs], [0.5, 0.9, 1.0], axis=0).T
    cells = (" / ".join(f"{value:.3f}" for value in row) for row in found)
    print(
        f"| {len(runs)} {name} | {' | '.join(cells)} | {1e3 * (time.process_time() - begin) / len(runs):.0f} |",
        flush=True,
    )


def main(*words: str) -> None:
    match words:
        case ("points",):
            print("median / 90th percentile / largest\n")
            print(f"| | {' | '.join(ANSWERS)} | ms of all its fits |\n|{'---|' * 7}")
            show("series", [*series()])
            show("arms", [*arms()])
        case ("verdicts", *others):
            show_verdicts(*others)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
