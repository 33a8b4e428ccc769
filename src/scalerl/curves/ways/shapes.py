"""What a run may do whose ceiling its points do not tell: other shapes than the sigmoid, and a wider prior.

Before the bend a curve looks the same for many ceilings, so that the prior decides, and with few points the test for a
lack of fit has no power, so that nothing speaks against a curve that bends in another way. Forecasts of such runs are
averaged over the sigmoid and two skewed ones by their evidence.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalerl.curves.forms import FORMS, SKEWED, Array, Form
from scalerl.curves.grid import MIXED
from scalerl.curves.intervals import Draws
from scalerl.curves.points import Known, Points
from scalerl.curves.priors.prior import wide_prior
from scalerl.curves.residuals.drift import SlowNoise
from scalerl.curves.ways.averaging import Part, draw_counts, some_draws
from scalerl.curves.ways.solving import Choice, pose

WIDE = 0.06  # width of the ceiling's 90 % interval, as a share of the range, from which on it counts as unknown
SKEWED_WEIGHT = 1 / 6  # prior weight of each skewed sigmoid; the rest is the sigmoid's
SHAPES = (FORMS["sigmoid"], *SKEWED)
BENT = 0.9  # probability of having passed the midpoint from which on the data know more of a ceiling than the prior


def has_bent(midpoints: Array, scale: float) -> bool:
    """Return whether a run has passed its midpoint: before that, its ceiling is what the prior makes it."""
    return float(np.mean(midpoints <= scale)) >= BENT


def shapes_if_unknown(
    points: Points, known: Known, start_sd: float | None, guess: float | None, slow: SlowNoise | None, draws: Draws
) -> tuple[Part, ...]:
    """Return the shapes that a run may have, by their evidence; none where `draws` know the ceiling.

    `draws` are those of the sigmoid under the weak prior. A run that has not bent gets the wide prior instead.
    """
    low, high = np.quantile(draws.params["ceiling"], (0.05, 0.95))
    if high - low <= WIDE * (points.bounds[1] - points.bounds[0]):
        return ()
    # With several runs the grid over their spread is coarse enough.
    resolution = MIXED if points.num_runs == 1 else None

    def drawn(form: Form, known: Known) -> Draws:
        return pose(points, form, known, start_sd).draws(guess, slow, resolution)

    if has_bent(draws.params["midpoint"], points.scale):
        return _weigh([draws, *(drawn(form, known) for form in SKEWED)])
    wide = replace(known, prior=wide_prior(float(np.log(points.scale))))
    return _weigh([drawn(form, wide) for form in SHAPES])


def _weigh(drawn: Sequence[Draws]) -> tuple[Part, ...]:
    """Return a part for each of the shapes, with as many of its draws as its evidence is worth."""
    prior = np.array([1 - SKEWED_WEIGHT * len(SKEWED)] + [SKEWED_WEIGHT] * len(SKEWED))
    log_weight = np.array([draws.log_evidence for draws in drawn]) + np.log(prior)
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    return tuple(
        Part(choice=Choice(form=form), weight=float(weight), draws=some_draws(draws, num))
        for form, draws, weight, num in zip(SHAPES, drawn, weights, draw_counts(weights), strict=True)
        if num > 0
    )
