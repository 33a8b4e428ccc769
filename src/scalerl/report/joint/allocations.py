"""Which settings of a step are best at which compute: from analysed curves, as sentences, a table and JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalerl.curves import Value
from scalerl.errors import InputError
from scalerl.joint.allocate import Allocation, Spending, allocate
from scalerl.logs.names import listed
from scalerl.logs.series import Series
from scalerl.report.joint.transfers import parse_size
from scalerl.report.json import plain
from scalerl.report.numbers import compute_text, interval_text, probability_text
from scalerl.report.results import CurveResult, check_one_axis
from scalerl.report.tables import Table

NUM_COMPUTES = 5
FIRST = 1 / 16
"""Share of the target at which the first answer is given, if the arms were measured there."""


def make_allocations(
    curves: Sequence[CurveResult], names: Sequence[str], target: float, level: float
) -> list[Allocation]:
    """Return the best settings from a sixteenth of the target up to it."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be compared")
    sets = {curve.series.evaluation_set for curve in curves}
    if len(sets) > 1:
        sets = listed(sorted(map(str, sets)))
        raise InputError(f"arms are compared on one evaluation set: keep one of {sets} with --where set=NAME")
    arms = {
        _spending(curve.series, names): curve.fit
        for curve in curves
        if curve.fit is not None and curve.fit.has_intervals
    }
    if len(arms) < 2:
        raise InputError(f"{len(arms)} of {len(curves)} arms have a curve, and two or more are needed to compare")
    first = max(FIRST * target, *(float(curve.series.compute.min()) for curve in curves if len(curve.series.compute)))
    return allocate(arms, np.geomspace(min(first, target / 2), target, NUM_COMPUTES).tolist(), level)


def _spending(series: Series, names: Sequence[str]) -> Spending:
    key = dict(series.key)
    return tuple(parse_size(key[name], f"--allocate {name}") for name in names)


def allocation_table(found: Sequence[Allocation], names: Sequence[str]) -> Any:
    rows = [
        (
            compute_text(row.compute),
            *(interval_text(value, _whole) for value in row.settings),
            " x ".join(map(_whole, row.best)),
            probability_text(row.p_best),
            interval_text(row.reward),
            interval_text(row.lost),
        )
        for row in found
    ]
    heads = ("compute", *names, "best arm", "P(best)", "its reward", "more than the last arm has")
    return Table(heads=heads, rows=rows).rich(allocation_messages(found, names))


def allocation_messages(found: Sequence[Allocation], names: Sequence[str]) -> list[str]:
    """Return what can be said of each setting: whether its best value moves with compute."""
    first, last = found[0], found[-1]
    lines = []
    for name, early, late in zip(names, first.settings, last.settings, strict=True):
        if _apart(early, late):
            grows = "grows" if late.value > early.value else "falls"
            lines.append(f"The best {name} {grows} with compute: {_whole(early.value)} to {_whole(late.value)}.")
        elif late.low == late.high:
            lines.append(f"The best {name} is {_whole(late.value)} at {compute_text(last.compute)}.")
        else:
            values = f"{_whole(late.low)} to {_whole(late.high)}"
            lines.append(f"The best {name} at {compute_text(last.compute)} may be {values}: more seeds or values tell.")
    return lines


def _apart(one: Value, other: Value) -> bool:
    return one.high < other.low or other.high < one.low


def allocation_json(found: Sequence[Allocation], names: Sequence[str]) -> dict[str, Any]:
    return {
        "allocations": [
            {
                "compute": row.compute,
                "best": dict(zip(names, row.best, strict=True)),
                "p_best": row.p_best,
                "settings": {name: plain(value) for name, value in zip(names, row.settings, strict=True)},
                "reward": plain(row.reward),
                "lost_by_last": plain(row.lost),
            }
            for row in found
        ]
    }


def _whole(value: float) -> str:
    return f"{value:g}"
