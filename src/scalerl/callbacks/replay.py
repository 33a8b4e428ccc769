"""Apply a stop rule to a finished run: find when it would have ended the run, and what that would have cost."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.callbacks.forecast import describe, has_training_rewards, is_due
from scalerl.callbacks.rules import StopRule
from scalerl.forecast.curves import Fit
from scalerl.forecast.curves.decide import course
from scalerl.forecast.logs import Series
from scalerl.forecast.report.analyse import fitted_curve, held_out_after
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.outlook import FIRST_FIT, with_end

PATIENCE = 2
"""Number of consecutive forecasts for which a rule must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a rule would have done to one run."""

    name: str
    axis: str
    num_forecasts: int
    compute: float
    """Compute of the whole run."""
    stopped_at: float | None = None
    """Compute at which the rule would have ended the run; None if it would not have."""
    reason: str | None = None
    num_points: int | None = None
    """Number of evaluations until then."""
    best_then: float | None = None
    """Best reward until then, on the fitted curve of the whole run."""
    best_at_end: float | None = None
    """Best reward until the end of the run, on the same curve."""

    @property
    def lost(self) -> float | None:
        """Reward that the stop would have lost."""
        if self.best_then is None or self.best_at_end is None:
            return None
        return self.best_at_end - self.best_then

    @property
    def saved(self) -> float:
        """Compute that the stop would have saved."""
        return 0.0 if self.stopped_at is None else self.compute - self.stopped_at


def replay(data: Series, rule: StopRule, *, patience: int = PATIENCE, options: FitOptions | None = None) -> Replayed:
    """Forecast the run after each of its evaluations, as a callback does, and apply the rule each time."""
    options, end, is_training = options or FitOptions(), float(data.compute.max()), has_training_rewards(data)
    whole, stop = fitted_curve(data, options), dict[str, Any]()
    num_fitted, num_holding, num_forecasts = 0, 0, 0
    for compute in map(float, np.unique(data.compute)[FIRST_FIT - 1 :]):
        part = held_out_after(data, compute)
        if not is_due(len(part.compute), num_fitted, is_training=is_training):
            continue
        num_fitted, num_forecasts = len(part.compute), num_forecasts + 1
        outlook = with_end(fitted_curve(part, options), end)
        reason = rule.reason(describe(outlook, end, rule.rewards))
        num_holding = 0 if reason is None else num_holding + 1
        if num_holding >= patience:
            best_then = best_by(whole.fit, compute)
            stop = {"stopped_at": compute, "reason": reason, "num_points": num_fitted, "best_then": best_then}
            break
    return Replayed(
        name=data.name,
        axis=data.x_label,
        num_forecasts=num_forecasts,
        compute=end,
        best_at_end=best_by(whole.fit, end) if whole.fit.has_intervals else None,
        **stop,
    )


def best_by(curve: Fit, compute: float) -> float:
    """Return the best reward of the run's own course, without noise, up to a compute."""
    blocks = curve.drawn.blocks
    reached = np.sort(blocks.compute) <= compute * (1 + 1e-9)
    path = np.median(course(curve), axis=0)
    return float(path[reached].max() if reached.any() else path[0])
