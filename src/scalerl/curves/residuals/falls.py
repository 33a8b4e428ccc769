"""A run that falls below its own curve."""

from dataclasses import replace

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.least_squares import Solution, least_squares, shapes
from scalerl.curves.notes import Fall
from scalerl.curves.points import Known, Points, noise_guess, scatter

FALL_Z = 4.0  # standard errors a fall must measure before it is called one
FALL_SHARE = 0.1  # and this share of the rise so far
LEAST_NOISE = 0.5  # of binomial noise: evaluations of the same prompts vary by less than it
NOTHING = 1e-9  # of the reward's range: a difference between equal numbers
LITTLE_KNOWN = 3.0  # variances of independent noise, as for an autocorrelation of 0.5


def residual_sd(points: Points, form: Form, known: Known, best: Solution) -> Array:
    """Noise of one evaluation about the least squares, as an array of one."""
    return np.array([np.sqrt(best.squares / max(points.num - known.num_free(form), 1))])


def find_fall(points: Points, form: Form, known: Known) -> Fall | None:
    """Return the first run that falls below its own curve; None if none does.

    A fall: the last points lie below what was reached before, and below the curve of the points up to there, by more
    than noise explains.
    """
    for number in np.unique(points.run):
        mine = points.take(points.run == number)
        if mine.num >= 8:
            for size in sorted({3, 4, mine.num // 6, mine.num // 4, mine.num // 3}):
                if size >= 3 and (fall := _fall_of_run(mine, form, known, size)) is not None:
                    return fall if points.num_runs == 1 else replace(fall, run=str(number))
    return None


def _fall_of_run(points: Points, form: Form, known: Known, size: int) -> Fall | None:
    """Return whether the last `size` points of a run fall below its curve."""
    tail, tail_noise = points.reward[-size:], np.mean(points.noise[-size:] ** 2)
    windows = np.convolve(points.reward[:-size], np.ones(size) / size, mode="valid")
    if not len(windows):
        return None
    end = int(np.argmax(windows)) + size  # the best stretch of the run ends here, and what follows is the fall
    best, best_noise = float(windows.max()), np.mean(points.noise[end - size : end] ** 2)
    drop = best - float(tail.mean())
    rise = best - (known.start if known.start is not None else float(points.reward[: max(size, 2)].mean()))
    head = points.take(np.arange(points.num) < end)
    # On both sides of the drop but not across it: the drop itself is not noise.
    noise_sd = max(scatter(head), scatter(points.take(np.arange(points.num) >= points.num - size)))
    # Rewards that hardly vary (nothing solved yet) do not show what an evaluation of so many samples varies by.
    noise_sd = max(noise_sd, LEAST_NOISE * (noise_guess(points) or 0.0))
    error = noise_sd * np.sqrt((best_noise + tail_noise) / size)
    if drop <= NOTHING * (points.bounds[1] - points.bounds[0]) + max(FALL_SHARE * rise, FALL_Z * error, 0.0):
        return None
    together = LITTLE_KNOWN  # of how noise hangs together, where too few points lie before the fall to tell
    if head.num >= max(8, known.num_free(form) + 3):
        curve = least_squares(head, form, known)
        expected = curve.level + curve.gain * shapes(form, curve.log_shape[:, None], points)[0]
        together = _inflation((points.reward - expected)[:end])
        noise_sd = max(noise_sd, float(residual_sd(head, form, known, curve)[0]))
        error = noise_sd * np.sqrt(tail_noise / size + best_noise / size)
        if (expected[-size:] - tail).mean() < FALL_Z * error * np.sqrt(together):
            return None
    if drop < FALL_Z * error * np.sqrt(together):
        return None
    begins = points.scale * float(np.exp(head.log_compute[-1]))
    return Fall(compute=begins, num_points=size, mean=float(tail.mean()), best=best)


def _inflation(residual: Array) -> float:
    """Return (1 + rho) / (1 - rho), with rho the lag-one autocorrelation, clipped to [0, 0.9]."""
    total = float(residual @ residual)
    rho = float(residual[1:] @ residual[:-1]) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), 0.9)
    return (1 + rho) / (1 - rho)
