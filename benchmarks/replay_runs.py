"""Read run folders for benchmarks/replay.py: rows by step, evaluations as a curve, lengths of completions.

    lengths.json    {"step": {"length": number of completions}}, for the groups in each checkpoint

`pack` writes that file and copies the rest without the keys of groups: kilobytes instead of gigabytes.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl import store
from scalerl.curves import Fit, fit
from scalerl.run.simulate.schedule import Regime

LENGTHS = "lengths.json"
CHUNKS = {"cpu": 4, "gpu": 16}
"""Tokens per poll of the torch engine, by device."""
LAST = 3
"""Number of last evaluations that are averaged."""
_SET = "main"

Array = NDArray[np.float64]


class ReplayError(ValueError):
    """The runs cannot be replayed; one sentence has the reason."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The runs of one arm, one per seed, up to the last step that all have."""

    name: str
    regime: Regime
    chunk: int
    rows: tuple[tuple[store.Row, ...], ...]
    """Rows of each run, one per step, from step 1 on."""
    evals: tuple[tuple[store.Row, ...], ...]
    lengths: tuple[tuple[int, Array], ...]
    """Lengths by step of a checkpoint; empty without checkpoints."""

    @property
    def steps(self) -> int:
        return min(map(len, self.rows))

    def column(self, name: str) -> Array:
        """Return the mean over the runs, by step; a missing value counts as 0."""
        if name not in self._columns:
            values = [[row.get(name) or 0.0 for row in rows[: self.steps]] for rows in self.rows]
            self._columns[name] = np.mean(values, axis=0)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, Array]:
        return {}

    @property
    def hours(self) -> Array:
        """Return the GPU-hours at the end of each step, from 0 on."""
        return np.concatenate([[0.0], self.column("gpu_hours")])

    @cached_property
    def curve(self) -> Fit:
        """Fit the reward over steps."""
        later = [(row, run) for run, rows in enumerate(self.evals) for row in rows if row["step"]]
        starts = [row["reward"] for rows in self.evals for row in rows if not row["step"]]
        fitted = fit(
            [row["step"] for row, _ in later],
            [row["reward"] for row, _ in later],
            num_samples=[row["num_samples"] for row, _ in later],
            run=[run for _, run in later],
            start=float(np.mean(starts)) if starts else None,
            start_sd=None,
        )
        if not fitted.usable:
            raise ReplayError(f"{self.name} has no curve over steps: {' '.join(fitted.messages) or fitted.verdict}")
        return fitted

    @property
    def last_reward(self) -> float:
        """Return the mean of the last evaluations of every run."""
        return float(np.mean([row["reward"] for rows in self.evals for row in rows[-LAST:]]))

    def draw_length(self, step: int, seed: int) -> int:
        """Draw the length of a completion at a step: one of the nearest checkpoint's, scaled to the step's mean."""
        mean = self.column("rollout/length_mean")[min(step, self.steps - 1)]
        if not self.lengths:
            return max(1, round(mean))
        _, known = min(self.lengths, key=lambda entry: abs(entry[0] - step))
        return max(1, round(known[seed % len(known)] * mean / known.mean()))


def read_arm(folders: Sequence[Path]) -> Arm:
    """Read the runs, which must belong to one arm."""
    recipes = [_recipe(folder) for folder in folders]
    regimes = {(_regime(folder, recipe), _chunk(folder)) for recipe, folder in zip(recipes, folders, strict=True)}
    if len(regimes) > 1:
        raise ReplayError(f"{folders[0]} and {folders[1]} are not of one arm: their pipeline or their device differs")
    ((regime, chunk),) = regimes
    rows = tuple(_rows(folder) for folder in folders)
    evals = tuple(tuple(row for row in store.read_evals(folder) if row["set"] == _SET) for folder in folders)
    lengths = [entry for folder in folders for entry in read_lengths(folder).items()]
    return Arm(
        name=folders[0].name,
        regime=regime,
        chunk=chunk,
        rows=rows,
        evals=evals,
        lengths=tuple((step, _expanded(counts)) for step, counts in sorted(lengths, key=lambda entry: entry[0])),
    )


def _recipe(folder: Path) -> store.Row:
    recipe = store.read_recipe(folder)
    if recipe is None:
        raise ReplayError(f"{folder} is no run folder: it has no {store.RECIPE}")
    return recipe


def _regime(folder: Path, recipe: store.Row) -> Regime:
    pipeline = recipe["pipeline"]
    return Regime(
        groups_per_batch=pipeline["groups_per_batch"],
        completions_per_group=pipeline["completions_per_group"],
        slots=recipe["rollout"]["slots"] or (store.read_env(folder) or {})["slots"],
        max_lag=pipeline["max_lag"],
        push_every=pipeline["push_every"],
        drain=pipeline["drain"],
    )


def _chunk(folder: Path) -> int:
    return CHUNKS["cpu" if (store.read_env(folder) or {}).get("device", "cpu") == "cpu" else "gpu"]


def _rows(folder: Path) -> tuple[store.Row, ...]:
    rows = sorted(store.read_metrics(folder), key=lambda row: row["step"])
    if not rows or [row["step"] for row in rows] != list(range(1, len(rows) + 1)):
        raise ReplayError(f"{folder} has no row for every step from 1 on in its {store.METRICS}")
    return tuple(rows)


def read_lengths(folder: Path) -> dict[int, Counter[int]]:
    """Return, by step, how many completions of each length the checkpoint contains."""
    if (folder / LENGTHS).is_file():
        kept: dict[str, dict[str, int]] = json.loads((folder / LENGTHS).read_text())
        return {int(step): Counter({int(n): num for n, num in counts.items()}) for step, counts in kept.items()}
    lengths = {}
    for path in sorted((folder / store.CHECKPOINTS).glob("step-*/meta.json")):
        groups = json.loads(path.read_text())["groups"]
        counts = Counter(completion["num_tokens"] for group in groups for completion in group["completions"])
        if counts:
            lengths[int(path.parent.name.removeprefix("step-"))] = counts
    return lengths


def _expanded(counts: Counter[int]) -> Array:
    return np.repeat(np.array(list(counts), dtype=float), list(counts.values()))


def pack(folder: Path, target: Path, *, every: int = 1) -> Path:
    """Copy what a replay, a fit and a reader need from a run, without checkpoints and keys of groups.

    With `every` above 1, keep one metrics row in so many and the last, rounded to six digits, and leave out samples and
    the counts per problem: enough for fits and for reading, not for a replay.
    """
    _recipe(folder)
    copied = target / folder.name
    copied.mkdir(parents=True)
    lengths = {str(step): {str(n): num for n, num in counts.items()} for step, counts in read_lengths(folder).items()}
    (copied / LENGTHS).write_text(json.dumps(lengths) + "\n")
    rows = _without(store.read_metrics(folder), "groups")
    whole = [store.EVALS, store.SAMPLES] if every == 1 else []
    if every > 1:
        rows = [_rounded(row) for place, row in enumerate(rows) if place % every == 0 or row is rows[-1]]
        _write(copied / store.EVALS, _without(store.read_evals(folder), "num_correct"))
    _write(copied / store.METRICS, rows)
    for name in (store.RECIPE, store.ENV, store.STATUS, *whole):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, copied / name)
    return copied


def _without(rows: Sequence[store.Row], left_out: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != left_out} for row in rows]


def _rounded(row: store.Row) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def _write(path: Path, rows: Sequence[store.Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
