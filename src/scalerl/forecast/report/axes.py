"""What compute is counted in: the names of its axes, and amounts of one axis on another."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.columns import has_role
from scalerl.forecast.logs.series import Series

AXIS_LABELS = {
    "gpu_hours": "GPU-hours", "flops": "FLOPs", "tokens": "tokens", "step": "steps", "hours": "hours", "cost": "cost",
}  # fmt: skip


def axis_label(column: str) -> str:
    """Return the name of an axis of compute for people."""
    for role, label in AXIS_LABELS.items():
        if column == role or has_role(column, role):
            return label
    return column


def unit_of(series: Series, axis: str = "") -> str:
    """Return what compute is counted in on an axis of a curve, unless named its own: hours may be those of CPUs."""
    label = axis_label(axis or series.x_label)
    is_cpu = any(each.kind == "cpu_time" for each in series.facts)
    if is_cpu and label == AXIS_LABELS["gpu_hours"]:
        return "CPU-hours"
    return label


def check_one_axis(series: Sequence[Series], need: str) -> None:
    """Raise InputError unless all series count compute in one column and one unit; `need` begins its sentence."""
    columns = {data.x_label for data in series}
    units = {unit_of(data) for data in series}
    axes = max(columns, units, key=len)
    if len(axes) > 1:
        raise InputError(f"{need}, and these are on {' and '.join(sorted(axes))}: name one with {option:x COLUMN}")


def on_own_axis(data: Series, amount: float, axis: str | None, which: Literal["last", "first"] = "last") -> float:
    """Return an amount of another axis on the curve's own: the compute of its last evaluation up to there.

    With "first" it is that of its first evaluation from there on. `axis` is None for the curve's own.
    """
    own = data.axes.get(axis or "")
    if own is None or axis_label(axis or "") == axis_label(data.x_label):
        return amount
    if which == "first":
        return float(data.compute[own >= amount * (1 - 1e-9)].min(initial=np.inf))
    return float(data.compute[own <= amount * (1 + 1e-9)].max(initial=0.0))
