"""Try a stop rule on a log that is complete: when it would have ended the run, and what that would have cost."""

from dataclasses import dataclass

import numpy as np

from scalerl.callbacks.forecast import describe, has_training_rewards, is_due
from scalerl.callbacks.rules import StopRule
from scalerl.curves import Fit
from scalerl.curves.decide import course
from scalerl.logs import Series
from scalerl.report.analyse import fitted_curve, held_out_after
from scalerl.report.options import FitOptions
from scalerl.report.outlook import FIRST_FIT, with_end
from scalerl.report.results import CurveResult

PATIENCE = 2
"""Forecasts in a row for which a rule must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a rule would have done to one run."""

    name: str
    axis: str
    num_forecasts: int
    compute: float
    """Of the whole log."""
    stopped_at: float | None
    """Compute at which the rule would have ended the run; None if it would not have."""
    reason: str | None = None
    num_points: int | None = None
    """Evaluations by then."""
    best_then: float | None = None
    """Best reward of the run's course by then, without noise ..."""
    best_at_end: float | None = None
    """... and by the end of the log."""

    @property
    def lost(self) -> float | None:
        """Reward that the stop would have cost."""
        if self.best_then is None or self.best_at_end is None:
            return None
        return self.best_at_end - self.best_then

    @property
    def saved(self) -> float:
        """Compute that the stop would have saved."""
        return 0.0 if self.stopped_at is None else self.compute - self.stopped_at


def replay(data: Series, rule: StopRule, *, patience: int = PATIENCE, options: FitOptions | None = None) -> Replayed:
    """Forecast the run after each of its evaluations, as a callback does, and ask the rule."""
    options, end, is_training = options or FitOptions(), float(data.compute.max()), has_training_rewards(data)
    whole = fitted_curve(data, options)
    computes = np.unique(data.compute)
    num_fitted, num_holding, num_forecasts = 0, 0, 0
    for compute in computes[FIRST_FIT - 1 :]:
        part = held_out_after(data, float(compute))
        if not is_due(len(part.compute), num_fitted, is_training=is_training):
            continue
        num_fitted, num_forecasts = len(part.compute), num_forecasts + 1
        outlook = with_end(fitted_curve(part, options), end)
        reason = rule.reason(describe(outlook, end, rule.rewards))
        num_holding = 0 if reason is None else num_holding + 1
        if num_holding >= patience:
            then, last = best_by(whole.fit, float(compute)), best_by(whole.fit, end)
            return Replayed(
                name=data.name,
                axis=data.x_label,
                num_forecasts=num_forecasts,
                compute=end,
                stopped_at=float(compute),
                reason=reason,
                num_points=num_fitted,
                best_then=then,
                best_at_end=last,
            )
    return _not_stopped(data, whole, num_forecasts, end)


def _not_stopped(data: Series, whole: CurveResult, num_forecasts: int, end: float) -> Replayed:
    best = best_by(whole.fit, end) if whole.fit.has_intervals else None
    return Replayed(
        name=data.name,
        axis=data.x_label,
        num_forecasts=num_forecasts,
        compute=end,
        stopped_at=None,
        best_at_end=best,
    )


def best_by(curve: Fit, compute: float) -> float:
    """Return the best reward of the run's own course, without noise, up to a compute."""
    blocks = curve.drawn.blocks
    reached = np.sort(blocks.compute) <= compute * (1 + 1e-9)
    path = np.median(course(curve), axis=0)
    return float(path[reached].max() if reached.any() else path[0])
