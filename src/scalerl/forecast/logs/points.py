"""The points of a run: its rows in a frame whose columns are roles, with every amount of compute counted.

The columns are `y`, the amounts (`step`, `hours`, `tokens` ..., and `x` for what --x names), `num_samples`,
`evaluation`, `run`, and `held` (1 for rows that are held out). What a log does not have is NaN throughout.
"""

from collections.abc import Callable

import numpy as np

from scalerl.forecast.logs import amounts
from scalerl.forecast.logs.frame import Cells, Floats, Frame, objects
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.selection import matching
from scalerl.forecast.logs.tidy import wall_times

AMOUNTS = ("hours", "gpu_hours", "flops", "tokens", "step", "cost", "x")
"""Roles that count what was spent. GPU-hours are built from hours, and `x` may be any of the others."""


def points_of(plan: Plan, frame: Frame, run: str) -> Frame:
    """Return the points of a run of this name."""
    held = plan.options.holdout
    samples = frame.numbers(plan["num_samples"])
    columns: dict[str, Cells] = {
        "y": frame.numbers(plan["y"]),
        "num_samples": np.where((samples >= 1) & (samples < 2**63), samples, np.nan),
        "held": matching(frame, held).astype(np.float64) if held else np.zeros(len(frame)),
        "run": objects([run] * len(frame)),
        "evaluation": _evaluations(frame, plan["step"]),
    }
    return Frame({**columns, **_amounts(plan, frame)}, frame.origin)


def _evaluations(frame: Frame, step: str) -> Cells:
    """Return 'prompts_hash@step' of each row; "" where either is missing."""
    pairs = zip(frame.words("prompts_hash"), frame.words(step), strict=True)
    return objects("@".join(pair) if all(pair) else "" for pair in pairs)


def _amounts(plan: Plan, frame: Frame) -> dict[str, Floats]:
    """Return every amount of compute that the plan has, counted."""
    spent: dict[str, Floats] = {}
    for axis in filter(plan.roles.__contains__, AMOUNTS):
        spent[axis] = _filled(plan.steps(frame), _counted(plan, frame, axis))
        frame = frame.having({plan.axis(axis): spent[axis]})
    return spent


def _counted(plan: Plan, frame: Frame, axis: str) -> Floats:
    """Return an amount of compute, counted as the rule says that chose its column; else it is the column."""
    columns, rule, *_ = plan.roles[axis]
    steps, times = plan.steps(frame), wall_times(frame)
    if rule == "counted":
        return steps
    if rule == "times_gpus":
        return frame.numbers(plan.axis("hours")) * (plan.options.gpus or 1.0)
    if rule not in COUNTED:
        return frame.numbers(plan[axis])
    if rule != "clock" or np.isnan(times).all():
        times = np.sum([_seconds(frame, column) for column in columns], axis=0)
    return COUNTED[rule](steps, times) / (3600 if axis == "hours" else 1)


def _filled(steps: Floats, values: Floats) -> Floats:
    """Return amounts; what a row lacks is taken from another row of its step, and is 0 at step 0."""
    is_known = ~np.isnan(values)
    known = {0.0: 0.0, **dict(zip(steps[is_known].tolist(), values[is_known].tolist(), strict=True))}
    return np.where(is_known, values, [known.get(step, np.nan) for step in steps.tolist()])


def _seconds(frame: Frame, column: str) -> Floats:
    is_text = frame.is_words(column) and not frame.known(column).any()
    return np.array([*map(amounts.duration, frame.words(column))]) if is_text else frame.numbers(column)


COUNTED: dict[str, Callable[[Floats, Floats], Floats]] = {
    "per_step": amounts.totals,
    "per_row": lambda steps, seconds: np.nancumsum(seconds),
    "elapsed": amounts.on_clock,
    "clock": lambda steps, times: amounts.on_clock(steps, times - np.nanmin(times, initial=np.inf)),
}
"""How amounts are counted, by the rule that chose their columns, from the steps and what is logged."""


# The axis to show

# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1
# A speed, as TFLOPS, rises about as often as it falls; an amount may be corrected once.
_MANY_RISES = 0.8


def can_be_main(points: Frame, axis: str) -> bool:
    """Return whether most rewards have this compute and it grows with the step."""
    has_step = points.known("step")
    measured = points.take(points.known("y") & (has_step | ~has_step.any())).sorted("step", axis)
    values = measured.numbers(axis)
    is_one_run = (np.diff(measured.numbers("step")) > 0).all()
    rises, falls = np.diff(values) > 0, values[1:] < (1 - _MIN_FALL) * values[:-1]
    is_total = not is_one_run or (not falls.any() and rises.sum() + 1 >= _MANY_RISES * len(rises))
    known = values[np.isfinite(values)]
    return is_total and 2 * len(known) >= len(values) and len({*known}) >= min(len(values), 2) > 0
