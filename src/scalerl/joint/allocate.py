"""How to split a step: the best completions per problem n and problems per batch B at each compute.

The arms differ in n and B, where C = n x B x steps. Each arm has joint draws of its curve. In each draw one arm is the
best at a compute, so the arms' shares are the posterior of the best n and B among those tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.curves.draws import Value, summary
from scalerl.curves.fit import Fit
from scalerl.curves.forms import Array
from scalerl.joint.plan import draws_at, table_of

Spending = tuple[float, ...]
"""The settings of an arm, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The best use of a compute."""

    compute: float
    best: Spending
    """The arm with the highest mean reward."""
    p_best: float
    settings: tuple[Value, ...]
    """The best value of each setting: the median over draws, and an interval."""
    reward: Value
    """Reward of the best arm."""
    lost: Value
    """Reward lost here by the arm that is best at the largest compute."""


def allocate(arms: Mapping[Spending, Fit], computes: Sequence[float], level: float) -> list[Allocation]:
    """Return the best arm at each compute, in rising order."""
    settings = np.array(list(arms))
    tables = [table_of([draws_at(str(arm), fit, compute) for arm, fit in arms.items()]) for compute in computes]
    last = int(tables[-1].mean(axis=1).argmax())
    return [_at(compute, table, settings, last, level) for compute, table in zip(computes, tables, strict=True)]


def _at(compute: float, table: Array, settings: Array, last: int, level: float) -> Allocation:
    won, best = table.argmax(axis=0), int(table.mean(axis=1).argmax())
    return Allocation(
        compute=compute,
        best=tuple(settings[best].tolist()),
        p_best=float(np.mean(won == best)),
        settings=tuple(summary(settings[won, place], level) for place in range(settings.shape[1])),
        reward=summary(table[best], level),
        lost=summary(table[best] - table[last], level),
    )
