"""The points of a run: its rows in a frame whose columns are roles, with every amount of compute counted.

The columns are `y`, the amounts (`step`, `hours`, `tokens` ..., and `x` for what --x names), `num_samples`,
`evaluation`, `run`, and `held` (1 for rows that are held out). What a log does not have is NaN throughout.
"""

from collections.abc import Callable

import numpy as np

from scalerl.logs import amounts
from scalerl.logs.frame import Cells, Floats, Frame, objects
from scalerl.logs.plan import Plan
from scalerl.logs.selection import matching
from scalerl.logs.tidy import wall_times

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
        count = COUNTED.get(plan.roles[axis].rule)
        counted = count(plan, frame, axis) if count else frame.numbers(plan[axis])
        spent[axis] = _filled(plan.steps(frame), counted)
        frame = frame.having({plan.axis(axis): spent[axis]})
    return spent


def _filled(steps: Floats, values: Floats) -> Floats:
    """Return amounts; what a row lacks is taken from another row of its step, and is 0 at step 0."""
    is_known = ~np.isnan(values)
    known = {0.0: 0.0, **dict(zip(steps[is_known].tolist(), values[is_known].tolist(), strict=True))}
    return np.where(is_known, values, [known.get(step, np.nan) for step in steps.tolist()])


def _per_step(plan: Plan, frame: Frame, axis: str) -> Floats:
    spent = np.sum([_seconds(frame, column) for column in plan.roles[axis].columns], axis=0)
    return amounts.totals(plan.steps(frame), spent) / (3600 if axis == "hours" else 1)


def _per_row(plan: Plan, frame: Frame, axis: str) -> Floats:
    return np.nancumsum(_seconds(frame, plan[axis])) / 3600


def _elapsed(plan: Plan, frame: Frame, axis: str) -> Floats:
    return amounts.on_clock(plan.steps(frame), _seconds(frame, plan[axis])) / 3600


def _clock(plan: Plan, frame: Frame, axis: str) -> Floats:
    times = wall_times(frame)
    times = times if np.isfinite(times).any() else _seconds(frame, plan[axis])
    return amounts.on_clock(plan.steps(frame), times - np.nanmin(times, initial=np.inf)) / 3600


def _times_gpus(plan: Plan, frame: Frame, axis: str) -> Floats:
    return frame.numbers(plan.axis("hours")) * (plan.options.gpus or 1.0)


def _seconds(frame: Frame, column: str) -> Floats:
    is_text = frame.is_words(column) and not frame.known(column).any()
    return np.array([*map(amounts.duration, frame.words(column))]) if is_text else frame.numbers(column)


COUNTED: dict[str, Callable[[Plan, Frame, str], Floats]] = {
    "per_step": _per_step,
    "per_row": _per_row,
    "elapsed": _elapsed,
    "clock": _clock,
    "times_gpus": _times_gpus,
    "counted": lambda plan, frame, axis: plan.steps(frame),
}
"""How an amount of compute is counted, by the rule that chose its column; else it is the column."""


# The axis to show

# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1
# A speed, as TFLOPS, rises about as often as it falls; an amount may be corrected once.
_MANY_RISES = 0.8


def can_be_main(points: Frame, axis: str) -> bool:
    """Return whether most rewards have this compute and it grows with the step."""
    has_step = points.known("step")
    measured = points.take(points.known("y") & (has_step | ~has_step.any()))
    order = np.argsort(measured.numbers("step"), kind="stable")
    steps, values = measured.numbers("step")[order], measured.numbers(axis)[order]
    are_later, rises = np.diff(steps) > 0, np.diff(values) > 0
    falls = values[1:] < (1 - _MIN_FALL) * values[:-1]
    is_total = (not falls.any() and rises.sum() + 1 >= _MANY_RISES * are_later.sum()) or not are_later.all()
    known = values[np.isfinite(values)]
    return is_total and 2 * len(known) >= len(values) and len({*known}) >= min(len(values), 2) > 0
