"""What a run may still do that has not bent: its ceiling is what the prior makes it, so its forecasts use a wider one.

Before the bend a curve looks the same for many ceilings. The weak prior, which prefers small gains, then decides; the
wide one rules out no ceiling.
"""

from dataclasses import replace

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.grid import MIXED
from scalerl.curves.intervals import Draws
from scalerl.curves.points import Known, Points
from scalerl.curves.priors.prior import wide_prior
from scalerl.curves.residuals.drift import SlowNoise
from scalerl.curves.ways.averaging import Part
from scalerl.curves.ways.solving import Choice, pose

WIDE = 0.06  # width of the ceiling's 90 % interval, as a share of the range, from which on it counts as unknown
BENT = 0.9  # probability of having passed the midpoint from which on the data know more of a ceiling than the prior


def has_bent(midpoints: Array, scale: float) -> bool:
    """Return whether a run has passed its midpoint: before that, its ceiling is what the prior makes it."""
    return float(np.mean(midpoints <= scale)) >= BENT


def under_wide_prior(
    points: Points,
    form: Form,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    slow: SlowNoise | None,
    draws: Draws,
) -> tuple[Part, ...]:
    """Return the fit under the wide prior, for forecasts; none where `draws` know the ceiling, or the run has bent.

    `draws` are those of the sigmoid under the weak prior.
    """
    low, high = np.quantile(draws.params["ceiling"], (0.05, 0.95))
    is_known = high - low <= WIDE * (points.bounds[1] - points.bounds[0])
    if is_known or has_bent(draws.params["midpoint"], points.scale):
        return ()
    wide = replace(known, prior=wide_prior(float(np.log(points.scale))))
    # With several runs the grid over their spread is coarse enough.
    resolution = MIXED if points.num_runs == 1 else None
    again = pose(points, form, wide, start_sd).draws(guess, slow, resolution)
    return (Part(choice=Choice(form=form), weight=1.0, draws=again),)
