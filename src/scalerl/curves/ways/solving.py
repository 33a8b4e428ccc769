"""One way to fit one run: which form, from where on, with or without the given start."""

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.forms import Form
from scalerl.curves.grid import Resolution
from scalerl.curves.intervals import Draws, posterior
from scalerl.curves.least_squares import Solution, least_squares
from scalerl.curves.points import Known, Points, scatter, with_start
from scalerl.curves.residuals.drift import SlowNoise, find_slow_noise
from scalerl.curves.residuals.misfit import Misfit, find_misfit


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A form, the share of the largest compute before which points are left out, and whether a given start is used."""

    form: Form
    skip: float = 0.0
    start_fitted: bool = False

    def of(self, points: Points, known: Known) -> tuple[Points, Known]:
        """Return the points and the knowledge that this choice leaves."""
        if self.skip > 0:
            points = points.take(points.log_compute >= np.log(self.skip) - 1e-12)
        if self.start_fitted or not self.form.rising:
            known = replace(known, start=None, start_sd=0.0)
        if self.form.ceiling is not None:
            known = replace(known, ceiling=self.form.ceiling)
        return points, known


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Points as least squares sees them: a noisy start is one of them."""

    points: Points
    form: Form
    known: Known
    soft: Known
    """What is known, with the noise of the start in numbers."""
    inside: bool
    """Whether the start is one of the points in the posterior too, rather than a prior."""
    given: Points
    """The points without the start."""

    def solve(self) -> Solution:
        return least_squares(self.points, self.form, self.known)

    def misfit(self, best: Solution) -> Misfit | None:
        return find_misfit(self.points, self.form, self.known, best)

    def slow_noise(self, best: Solution) -> SlowNoise | None:
        return find_slow_noise(self.points, self.form, self.known, best)

    def draws(self, guess: float | None, slow: SlowNoise | None, resolution: Resolution | None = None) -> Draws:
        """Return the posterior under `slow` noise, where the residuals show it."""
        if self.inside:
            return posterior(self.points, self.form, self.known, guess, slow, resolution)
        return posterior(self.given, self.form, self.soft, guess, slow, resolution)


def rescale(points: Points, known: Known, form: Form) -> tuple[Points, Known]:
    """Make the largest remaining compute the unit."""
    shift = float(points.log_compute.max()) if points.num else 0.0
    moved = {param.name for param in form.shape_params if param.scales_with_compute}
    log_shape = {name: value - (shift if name in moved else 0.0) for name, value in known.log_shape.items()}
    points = replace(points, log_compute=points.log_compute - shift, scale=points.scale * float(np.exp(shift)))
    return points, replace(known, log_shape=log_shape)


def pose(points: Points, form: Form, known: Known, start_sd: float | None) -> Problem:
    """Return the problem that least squares and the posterior solve; `start_sd` None is the noise of one evaluation."""
    if known.start is None or start_sd == 0:
        return Problem(points=points, form=form, known=known, soft=known, inside=True, given=points)
    size = max(scatter(points), 1e-6 * (points.bounds[1] - points.bounds[0]))
    soft = replace(known, start_sd=size if start_sd is None else start_sd)
    free = replace(known, start=None, start_sd=0.0)
    started = with_start(points, known.start, soft.start_sd / size)
    return Problem(points=started, form=form, known=free, soft=soft, inside=start_sd is None, given=points)
