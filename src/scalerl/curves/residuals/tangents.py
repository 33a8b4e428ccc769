"""A fitted curve to first order: its residuals, and the directions in which it can move."""

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.least_squares import Solution, shapes
from scalerl.curves.points import Known, Points

NUDGE = 1e-4  # for central differences, on the log scale


def residuals(points: Points, form: Form, best: Solution) -> Array:
    return points.reward - best.level - best.gain * shapes(form, best.log_shape[:, None], points)[0]


def tangents(points: Points, form: Form, known: Known, best: Solution) -> Array:
    """Directions in which the curve can move (last axis), the own ceilings of several runs among them."""
    value = lambda log_shape: shapes(form, log_shape[:, None], points)[0]  # noqa: E731
    shape = value(best.log_shape)
    gain = best.gain if abs(best.gain) > 0 else 1.0
    columns: list[Array] = []
    if known.ceiling is None or not form.rising:
        columns.append(shape)
    if known.level(form) is None:
        columns.append(1.0 - shape if known.ceiling is not None and form.rising else np.ones_like(shape))
    for axis, param in enumerate(form.shape_params):
        if param.name not in known.log_shape:
            nudge = np.zeros(len(best.log_shape))
            nudge[axis] = NUDGE
            columns.append(gain * (value(best.log_shape + nudge) - value(best.log_shape - nudge)) / (2 * NUDGE))
    if points.num_runs > 1:
        moved = shape if form.rising else np.ones_like(shape)
        # The last run's own ceiling follows from the others' and the common one.
        columns += [np.where(points.run == run, moved, 0.0) for run in np.unique(points.run)[:-1]]
    return np.stack(columns, axis=1) if columns else np.empty((points.num, 0))
