"""Which axis of compute the curves are shown on, and whether GPU-hours and FLOPs measure the same compute.

A run that has its machine to itself takes about the same time per FLOP throughout. If it shares the machine for a
while, or is suspended, GPU-hours stretch that part of its curve and a fit against them bends; FLOPs do not.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scalerl.forecast.logs.columns import AXES
from scalerl.forecast.logs.frame import Floats, Frame
from scalerl.forecast.logs.runs import LoggedRun

Axis = Literal["gpu_hours", "flops", "tokens", "step"]

UNEVEN_TIME = 0.2
"""Disagreement above which FLOPs are preferred. Runs on a GPU that others used too had 0.03 to 0.16, and runs that
waited for another process for long stretches 0.66 and 0.70 (docs/results)."""
# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1
# A speed, as TFLOPS, rises about as often as it falls; an amount may be corrected once.
_MANY_RISES = 0.8
# An amount of each step, as the tokens of a batch, comes back again and again; a clock may be rounded.
_NEW_VALUES = 0.25


def main_axis(runs: Sequence[LoggedRun]) -> str:
    """Return the first axis that most rewards of every run have, and that grows with the step; "" if there is none.

    Return "x" if --x names the column. Return FLOPs for a single run folder of ours in which the time per FLOP changed,
    and for a study of ours whose runs shared a device.
    """
    if not runs or runs[0].plan.options.x:
        return "x" if runs else ""
    axes = [axis for axis in AXES if all(axis in run.plan.roles and can_be_main(run.points, axis) for run in runs)]
    # Tokens of each step do not count: steps may be missing from a log.
    if "tokens" in axes and any(run.plan.roles["tokens"].rule == "per_step" for run in runs):
        axes.remove("tokens")
    if "flops" in axes and _are_unfair(runs):
        return "flops"
    return axes[0] if axes else ""


def can_be_main(points: Frame, axis: str) -> bool:
    """Return whether most rewards have this compute and it grows with the step."""
    has_step = points.known("step")
    is_measured = points.known("y") & (has_step | ~has_step.any())
    measured = points.take(is_measured).sorted("step", axis)
    values = measured.numbers(axis)
    known = values[np.isfinite(values)]
    if not len(known) or 2 * len(known) < len(values) or len({*known}) < min(len(values), 2):
        return False
    is_one_run = (np.diff(measured.numbers("step")) > 0).all()
    if not is_one_run:
        return True
    if len({*known.tolist()}) < _NEW_VALUES * len(known):
        return False
    num_rises = np.count_nonzero(np.diff(values) > 0)
    is_anew = (values[1:] < (1 - _MIN_FALL) * values[:-1]).any()
    return bool(not is_anew and num_rises + 1 >= _MANY_RISES * (len(values) - 1))


def _are_unfair(runs: Sequence[LoggedRun]) -> bool:
    """Return whether hours cannot be trusted: of runs that shared a device, or of one whose time per FLOP changed."""
    if any(map(has_shared_hours, runs)):
        return True
    plan = runs[0].plan
    is_one_of_ours = plan.is_ours and all(run.plan is plan and "arm" not in run.key for run in runs)
    return is_one_of_ours and disagreement_in(plan.frame) > UNEVEN_TIME


def has_shared_hours(run: LoggedRun) -> bool:
    return any(each.kind == "shared_hours" for each in run.plan.facts)


def disagreement(hours: Floats, flops: Floats) -> float:
    """Return the largest difference, over a run's rows, between the share of GPU-hours and that of FLOPs spent so far.

    0 where time per FLOP is constant, near 1 where nearly all of the time went into a small part of the FLOPs.
    """
    known = np.isfinite(hours) & np.isfinite(flops)
    order = np.argsort(hours[known], kind="stable")
    hours, flops = hours[known][order], flops[known][order]
    if not len(hours) or hours[-1] <= 0 or flops[-1] <= 0:
        return 0.0
    return float(np.abs(hours / hours[-1] - flops / flops[-1]).max())


def disagreement_in(frame: Frame) -> float:
    """Return the disagreement of the rows of a log; 0 where it does not count both."""
    return disagreement(frame.numbers("gpu_hours"), frame.numbers("flops"))
