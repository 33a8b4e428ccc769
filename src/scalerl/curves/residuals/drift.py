"""Slow noise: evaluations that scatter independently around a run which itself drifts about its curve.

    e_i = u_i + v_i     u_i independent,  v_i = phi v_(i-1) + innovation,  share = var(v) / (var(u) + var(v))

The noise u_i of an evaluation is as large as `num_samples=` or `error=` imply; the drift v_i is the run's own and
equally large everywhere. `share` is that at a point of average noise. The autocorrelation share * phi^k fades more
slowly than that of e_i = rho e_(i-1) + innovation with the same first value, so that averages of many evaluations are
less certain. Where the residuals show it, the posterior of `intervals` is computed under it; the points are made
independent by the Kalman filter of v.
"""

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.least_squares import Solution
from scalerl.curves.noise import FIELDS, Noise, over_runs
from scalerl.curves.points import Known, Points, Sums
from scalerl.curves.residuals.tangents import residuals, tangents

SINGLE = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])  # a single autocorrelation
DECAYS = np.array([0.7, 0.8, 0.9, 0.95, 0.98])
SHARES = np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.8])
LEAST_POINTS = 24  # with fewer, slow noise cannot be told from a single autocorrelation
LEAST_LAG_ONE = 0.15  # autocorrelation of neighbours below which slow noise is not looked for
WORTH = 1.0  # nats by which slow noise must explain the residuals better: it has one number more (as in AIC)
KEEP = 4.0  # nats below the best within which a decay is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNoise:
    """Values of phi, each with the share that suits it best."""

    decay: Array
    share: Array


def whitened(values: Array, points: Points, decay: Array, share: Array) -> tuple[Array, Array]:
    """Values (points first) made independent under each decay, and minus half the log determinant.

    The result's axes: point, decay, column of the values.
    """
    total, gain = _filter(points, decay, share)
    # What is expected of v at the next point: decay * ((1 - gain) * expected + gain * value).
    keep, learn = (decay * (1 - gain))[..., None], (decay * gain)[..., None]
    expected = np.zeros((len(values), len(decay), values.shape[1]))
    for index in range(1, len(values)):
        if not points.first[index]:
            np.multiply(expected[index - 1], keep[index - 1], out=expected[index])
            expected[index] += learn[index - 1] * values[index - 1]
    white = np.subtract(values[:, None], expected, out=expected)
    white *= (total**-0.5)[..., None]
    return white, -0.5 * np.log(total).sum(axis=0)


def _filter(points: Points, decay: Array, share: Array) -> tuple[Array, Array]:
    """Variance of what is not expected at each point, and the gain of the filter there."""
    drift = share * np.mean(points.noise**2)
    own = np.multiply.outer(points.noise**2, 1 - share)
    variance = np.empty_like(own)
    for index in range(points.num):
        if points.first[index]:
            variance[index] = drift
            continue
        before = variance[index - 1]
        left = before * own[index - 1] / (before + own[index - 1])
        variance[index] = decay**2 * left + drift * (1 - decay**2)
    total = variance + own
    return total, variance / total


def find_slow_noise(points: Points, form: Form, known: Known, best: Solution) -> SlowNoise | None:
    """Return the slow noise in the residuals of `best`; None where one autocorrelation explains them as well."""
    residual, tangent = residuals(points, form, best), tangents(points, form, known, best)
    if points.num - tangent.shape[1] < LEAST_POINTS or not tangent.shape[1]:
        return None
    scaled = residual / points.noise
    linked = ~points.first[1:]
    if (scaled[1:] * scaled[:-1])[linked].sum() < LEAST_LAG_ONE * (scaled @ scaled):
        return None
    values = np.concatenate([tangent, residual[:, None]], axis=1)
    # A single autocorrelation is that of e over the noise of each point, as in `noise`.
    even = replace(points, noise=np.ones(points.num))
    alone = _restricted(*whitened(values / points.noise[:, None], even, SINGLE, np.ones(len(SINGLE))))
    alone = alone - np.log(points.noise).sum()
    slow = _restricted(*whitened(values, points, np.repeat(DECAYS, len(SHARES)), np.tile(SHARES, len(DECAYS))))
    slow = slow.reshape(len(DECAYS), -1)
    if slow.max() < alone.max() + WORTH:
        return None
    kept = slow.max(axis=1) > slow.max() - KEEP
    return SlowNoise(decay=DECAYS[kept], share=SHARES[slow.argmax(axis=1)][kept])


def _restricted(white: Array, log_det: Array) -> Array:
    """Return the log of the restricted likelihood, with the curve's directions and the noise's size integrated out."""
    white = white.swapaxes(0, 1)
    tangent, residual = white[:, :, :-1], white[:, :, -1]
    basis, triangle = np.linalg.qr(tangent)
    rest = residual - np.einsum("knp,kp->kn", basis, np.einsum("knp,kn->kp", basis, residual))
    squares = np.maximum(np.einsum("kn,kn->k", rest, rest), 1e-300)
    diagonal = np.abs(np.einsum("kii->ki", triangle)) + 1e-300
    return log_det - np.log(diagonal).sum(axis=1) - 0.5 * (rest.shape[1] - tangent.shape[2]) * np.log(squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowProducts:
    """Inner products over each run under slow noise; axes: field of Sums, run, node of the noise, shape."""

    part: Array
    log_det: Array
    decay: Array

    def sums(self, noise: Noise, rising: bool) -> tuple[Sums, Array]:
        """Return the same as `Products.sums`, flattened; the noise varies slowest."""
        rho, spread = noise.autocorrelation, noise.run_spread**2
        place = np.abs(rho[..., None] - self.decay).argmin(axis=-1)
        if rho.ndim == 1:  # one entry per shape
            part = np.take_along_axis(self.part, place[None, None, None], axis=2)[:, :, 0]
        else:
            part = self.part[:, :, place.ravel()]
            part = part.reshape(*part.shape[:3], *(1,) * (rho.ndim - 2), -1)
        total, log_det = over_runs(part, self.log_det[place], spread, rising)
        shape = np.broadcast_shapes(np.shape(total[0]), np.shape(log_det))
        flat = [np.broadcast_to(values, shape).ravel() for values in (*total, log_det)]
        return Sums(**dict(zip(FIELDS, flat, strict=False))), flat[-1]


def slow_products(shape: Array, points: Points, slow: SlowNoise) -> SlowProducts:
    """Return the products of each row of shapes with the points."""
    values = np.concatenate([shape, np.stack([np.ones(points.num), points.reward])]).T
    white, log_det = whitened(values, points, slow.decay, slow.share)
    h, sides = white[:, :, :-2], white[:, :, -2:]
    starts = np.flatnonzero(points.first)
    part = np.empty((len(FIELDS), len(starts), len(slow.decay), len(shape)))
    for run, (begin, end) in enumerate(zip(starts, np.append(starts[1:], points.num), strict=True)):
        mine, beside = h[begin:end], sides[begin:end]
        part[0, run] = np.einsum("njk,njk->jk", mine, mine)
        part[1, run] = np.einsum("njk,nj->jk", mine, beside[:, :, 0])
        part[2, run] = np.einsum("njk,nj->jk", mine, beside[:, :, 1])
        for field, (left, right) in enumerate(((0, 0), (0, 1), (1, 1)), start=3):
            part[field, run] = np.einsum("nj,nj->j", beside[:, :, left], beside[:, :, right])[:, None]
    return SlowProducts(part=part, log_det=log_det, decay=slow.decay)
