"""The points of a run: its rows in a frame whose columns are roles, with every amount of compute counted.

The columns are `y`, the amounts (`step`, `hours`, `tokens` ..., and `x` for what --x names), `num_samples`,
`evaluation`, `run`, and `held` (1 for rows that are held out). What a log does not have is NaN throughout.
"""

from collections.abc import Callable

import numpy as np

from scalerl.forecast.logs import amounts
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Cells, Floats, Frame, objects
from scalerl.forecast.logs.labels import is_right_or_wrong
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.selection import matching
from scalerl.forecast.logs.shapes import wall_times

AMOUNTS = ("hours", "gpu_hours", "flops", "tokens", "step", "cost", "x")
"""Roles that count what was spent. GPU-hours are built from hours, and `x` may be any of the others."""

# A log with so many rows per step has one for each answer.
_MANY_ROWS = 5
# Fewer changes of a value do not show that it is written again and again.
_ENOUGH_CHANGES = 6
# Share of the changes that bring a new value, where values are written again until there is a new one.
_NEW_VALUES = 0.8


def points_of(plan: Plan, frame: Frame, run: str) -> Frame:
    """Return the points of a run of this name."""
    held = plan.options.holdout
    samples = frame.numbers(plan["num_samples"])
    columns: dict[str, Cells] = {
        "y": frame.numbers(plan["y"]),
        "num_samples": np.where((samples >= 1) & (samples < 2**63), samples, np.nan),
        "held": matching(frame, held).astype(np.float64) if held else np.zeros(len(frame)),
        "run": objects([run] * len(frame)),
        "evaluation": objects([""] * len(frame)),
    }
    if "prompts_hash" in frame:
        pairs = zip(frame.words("prompts_hash"), frame.words(plan["step"]), strict=True)
        columns["evaluation"] = objects("@".join(pair) if all(pair) else "" for pair in pairs)
    for axis in AMOUNTS:
        if axis in plan.roles:
            columns[axis] = _counted(plan, frame, axis)
            frame = frame.having({plan.axis(axis): columns[axis]})
    return Frame(columns, frame.origin)


def _counted(plan: Plan, frame: Frame, axis: str) -> Floats:
    """Return an amount of compute, counted as the rule says that chose its column; else it is the column.

    What a row lacks is taken from another row of its step, and is 0 at step 0.
    """
    rule = plan.roles[axis].rule
    steps = plan.steps(frame)
    if rule == "counted":
        values = steps
    elif rule == "times_gpus":
        values = frame.numbers(plan.axis("hours")) * (plan.options.gpus or 1.0)
    elif rule in COUNTED:
        values = COUNTED[rule](steps, _times(plan, frame, axis)) / (3600 if axis == "hours" else 1)
    else:
        values = frame.numbers(plan[axis])
    is_known = ~np.isnan(values)
    if is_known.all():
        return values
    known = {0.0: 0.0, **dict(zip(steps[is_known].tolist(), values[is_known].tolist(), strict=True))}
    return np.where(is_known, values, [known.get(step, np.nan) for step in steps.tolist()])


def _times(plan: Plan, frame: Frame, axis: str) -> Floats:
    """Return what a log wrote of an amount that has to be counted: seconds, or the amount of each step."""
    columns, rule, *_ = plan.roles[axis]
    if rule == "clock":
        times = wall_times(frame)
        if not np.isnan(times).all():
            return times
    summed = np.zeros(len(frame))
    for column in columns:
        is_text = frame.is_words(column) and not frame.known(column).any()
        summed += np.array([*map(amounts.duration, frame.words(column))]) if is_text else frame.numbers(column)
    return summed


COUNTED: dict[str, Callable[[Floats, Floats], Floats]] = {
    "per_step": amounts.totals,
    "per_row": lambda steps, seconds: np.nancumsum(seconds),
    "elapsed": amounts.on_clock,
    "clock": lambda steps, times: amounts.on_clock(steps, times - np.nanmin(times, initial=np.inf)),
}
"""How amounts are counted, by the rule that chose their columns, from the steps and what is logged."""


# One point for each step ----------------------------------------------------------------------------------------------


def one_per_step(points: Frame, plan: Plan) -> tuple[Frame, list[Fact]]:
    """Return the points without repetitions, and the mean of each step where a log has a row for each answer."""
    points, repeated = _once_each(points)
    if plan.is_ours:
        return points, repeated
    steps = points.groups(["run", "held", "step" if points.known("step").all() else "compute"])
    rewards = points.numbers("y")
    sizes = np.bincount(steps)
    per_step = float(np.median(sizes))
    if per_step < 2 or (per_step < _MANY_ROWS and not is_right_or_wrong(rewards)):
        return points, repeated
    means: dict[str, Cells] = {}
    for name in points.columns:
        if not points.is_words(name):
            means[name] = np.bincount(steps, weights=points.numbers(name)) / sizes
    if {*rewards.tolist()} == {0.0, 1.0}:
        means["num_samples"] = sizes.astype(np.float64)
    _, firsts = np.unique(steps, return_index=True)
    averaged = fact("answers_averaged", num=len(points), per_step=per_step)
    return points.take(firsts).having(means), [*repeated, averaged]


def _once_each(points: Frame) -> tuple[Frame, list[Fact]]:
    """Leave out rows that only repeat the last evaluation, as some trainers write it until there is a new one.

    Values count as repeated if most stand several times in a row, and hardly any comes back later. Independent values
    that are equal by chance, such as counts of right answers, do come back.
    """
    ordered = points.sorted("run", "held", "compute", "y")
    values = ordered.groups(["run", "held", "y"])
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    times_written = np.diff(begins, append=len(values))
    if len(begins) < _ENOUGH_CHANGES or np.median(times_written) < 2:
        return ordered, []
    if len({*values.tolist()}) < _NEW_VALUES * len(begins):
        return ordered, []
    repeated = fact("held_values", num=len(values) - len(begins), num_rows=len(values))
    return ordered.take(begins), [repeated]
