"""Where a run lies among public runs of its kind, offline: "steeper than 80 % of 60 agent runs".

The package ships the sorted values of the runs in docs/results/bank for each kind of task. They only describe fitted
runs; no fit, prior or decision uses them.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np

from scalerl.forecast.curves.decide import LIKELIER
from scalerl.forecast.curves.draws import Value, summary
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array

FORMAT = "scalerl-bank-1"
Measure = Literal["exponent", "gain", "midpoint", "reached"]
MEASURES: tuple[Measure, ...] = ("exponent", "gain", "midpoint", "reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run lies among others by one measure."""

    measure: Measure
    """`exponent`: the steepness; `gain`: the total gain of reward; `midpoint`: the share of the run's compute at which
    half of the gain was reached; `reached`: the share of the gain reached."""
    kind: str
    own: Value
    below: Value
    """Share of the other runs with a smaller value, from 0 to 1."""
    num: int
    """Number of other runs."""


def kinds() -> tuple[str, ...]:
    """Return the kinds of tasks in the bank."""
    return tuple(_reference())


def place(curve: Fit, kind: str) -> tuple[Place, ...]:
    """Return where a run lies among those of a kind; empty if no rise is seen in it.

    Gains are compared only for bounded rewards.
    """
    if kind not in _reference():
        raise ValueError(f"the bank has no runs of kind {kind!r}; it has {', '.join(_reference())}")
    places = []
    for measure, draws in measured(curve).items():
        others = _reference()[kind][measure]
        below = np.searchsorted(others, draws) / len(others)
        places.append(
            Place(
                measure=measure,
                kind=kind,
                own=summary(draws, curve.level),
                below=summary(below, curve.level),
                num=len(others),
            )
        )
    return tuple(places)


def measured(curve: Fit) -> dict[Measure, Array]:
    """Return draws of each measure of a run; empty if no rise is seen."""
    if curve.posterior is None or curve.form != "sigmoid" or np.mean(curve.drawn.draws.seen) < LIKELIER:
        return {}
    start, ceiling = curve.param_draws("start"), curve.param_draws("ceiling")
    gain = np.maximum(ceiling - start, 1e-12)
    values: dict[Measure, Array] = {"exponent": curve.param_draws("exponent")}
    if curve.bounds is not None:
        values["gain"] = gain / (curve.bounds[1] - curve.bounds[0])
    values["midpoint"] = curve.param_draws("midpoint") / curve.scale
    values["reached"] = np.clip((curve.curve_draws([curve.scale])[:, 0] - start) / gain, 0.0, 1.0)
    return values


@cache
def _reference() -> dict[str, dict[str, Array]]:
    content = json.loads((files("scalerl") / "assets" / "bank.json").read_text(encoding="utf-8"))
    assert content["format"] == FORMAT
    return {
        kind: {measure: np.array(values) for measure, values in measures.items()}
        for kind, measures in content["kinds"].items()
    }
