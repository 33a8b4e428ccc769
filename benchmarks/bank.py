"""The bank: public curves of other people's runs and of ours that may be passed on, in one schema.

    python benchmarks/bank.py      write src/scalerl/assets/example_runs.csv: what `scalerl example` shows

docs/results/bank has `curves.csv`, a row per curve with its source and licence, and SOURCE.csv.gz with the points as
`curve, compute, reward, num_samples`. Two sets of curves that no page shows and no constant was chosen on are in
`reserved.csv.gz` (benchmarks/release.py scores them, once per release). The model reads none of
it; docs/accuracy.md says which of the curves were looked at while it was made.
"""

import csv
import gzip
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.forecast.curves import Fit, fit

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
BANK = RESULTS / "bank"
EXAMPLE_RUNS = ROOT / "src" / "scalerl" / "assets" / "example_runs.csv"
SEED = "scalerl-bank-1"
NUM_RESERVED = {"agentgym": 3, "scalerl": 16}
"""Curves kept apart: of other people's runs and of our own."""
TOLD = ("agentgym/alfworld/grpo", "agentgym/textcraft/main-fixed-gp1-cons")
"""Curves whose end the notes on the data give away."""
SEEN = (
    *("first-curves", "model-size", "loo", "loss", "precision", "math-code", "truncated"),
    *("interactions", "algorithms", "distillation", "critic", "seeds", "batch-rate", "batch-rate-tiny", "reuse"),
    *("reuse-tiny", "mismatch", "smollm2-tools"),
)
"""Our studies of which no curve can be reserved: those that the gate reads, and those that came after the drawing."""
LEAST = 12
"""Evaluations that a curve needs."""
TEXTS = ("curve", "kind", "source", "licence", "model", "task", "algorithm", "axis", "measured")
NUMBERS = ("low", "high", "start", "start_sd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run: where it comes from, what it is, and its points."""

    curve: str
    kind: str
    """agent (many turns), math (one answer to a problem), small (our models of up to 135M parameters), or other."""
    source: str
    licence: str
    model: str
    """Empty where the log does not say."""
    task: str
    algorithm: str
    axis: str
    """What compute is counted in."""
    measured: str
    """The column of the reward, and whether it is of training or of evaluations."""
    low: float | None
    high: float | None
    """The least and the largest reward there is; None: no limits."""
    start: float | None
    """Reward before training, where it was measured ..."""
    start_sd: float | None
    """... and its noise."""
    reserved: bool = False
    compute: tuple[float, ...] = ()
    reward: tuple[float, ...] = ()
    num_samples: tuple[int, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def family(self) -> str:
        return self.curve.split("/")[0]

    def fitted(self, until: float | None = None) -> Fit:
        return fit(
            self.compute,
            self.reward,
            start=self.start,
            start_sd=self.start_sd,
            num_samples=self.num_samples or None,
            bounds=self.bounds,
            fit_until=until,
        )


def drawn(curves: Sequence[Curve], family: str, num: int) -> list[str]:
    """Return the names of curves drawn by the seed, of those that nothing was chosen on."""
    mine = [each.curve for each in curves if each.family == family]
    unseen = [name for name in mine if name.split("/")[1] not in SEEN and name not in TOLD]
    return sorted(unseen, key=lambda name: hashlib.sha256(f"{SEED}/{name}".encode()).hexdigest())[:num]


@cache
def load(reserved: bool = False) -> tuple[Curve, ...]:
    """Return the curves of the bank; with `reserved` those kept apart, and only these."""
    points = _points(reserved)
    with (BANK / "curves.csv").open(newline="") as file:
        described = [row for row in csv.DictReader(file) if row["curve"] in points]
    return tuple(_curve(row, points[row["curve"]], reserved) for row in described)


def _points(reserved: bool) -> dict[str, list[list[str]]]:
    """Return the rows of each curve: compute, reward and number of samples."""
    points: dict[str, list[list[str]]] = defaultdict(list)
    for path in sorted(BANK.glob("*.csv.gz")):
        if (path.name == "reserved.csv.gz") != reserved:
            continue
        with gzip.open(path, "rt", newline="") as file:
            for name, *row in list(csv.reader(file))[1:]:
                points[name].append(row)
    return points


def _curve(row: dict[str, Any], points: list[list[str]], reserved: bool) -> Curve:
    compute, reward, counts = zip(*points, strict=True)
    known: dict[str, Any] = {name: row[name] for name in TEXTS}
    known |= {name: float(row[name]) if row[name] else None for name in NUMBERS}
    return Curve(
        **known,
        reserved=reserved,
        compute=tuple(map(float, compute)),
        reward=tuple(map(float, reward)),
        num_samples=tuple(map(int, counts)) if counts[0] else (),
    )


EXAMPLE = {"joint": "agentgym/textcraft/main-joint-gp1", "fixed": "agentgym/textcraft/main-fixed-gp1-cons"}
STEPS = 20
"""Steps whose mean is a row of the example."""


def example() -> Iterator[str]:
    """Yield the rows of the example: two arms of which the one that is ahead at first levels off lower."""
    yield "recipe,step,hours,score"
    curves = {curve.curve: curve for curve in load()}
    for recipe, name in EXAMPLE.items():
        compute, reward = curves[name].compute, curves[name].reward
        for end in range(STEPS, len(reward) + 1, STEPS):
            yield f"{recipe},{end},{compute[end - 1]:.3f},{np.mean(reward[end - STEPS : end]):.4f}"


if __name__ == "__main__":
    EXAMPLE_RUNS.write_text("\n".join(example()) + "\n")
