"""What a fit is good for: its verdict, and notes that a person can act on."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.intervals import Draws, posterior
from scalerl.curves.least_squares import Solution
from scalerl.curves.notes import (
    Fall,
    FitNote,
    LackOfFit,
    MendedFit,
    NoRiseSeen,
    SkippedEarly,
    StartAboveData,
    WideCeiling,
)
from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.falls import is_large, residual_sd
from scalerl.curves.residuals.misfit import Misfit
from scalerl.curves.residuals.rise import POWER
from scalerl.curves.special import ndtri
from scalerl.curves.ways.mending import Settled

Verdict = Literal[
    "ok", "ceiling not identifiable yet", "lack of fit", "no rise seen", "unstable", "past its peak", "at a bound",
    "too few points"
]  # fmt: skip
FALLEN: tuple[Verdict, ...] = ("unstable", "past its peak")
"""Verdicts on runs that fell after their peak, by a large and by a small share of what they had gained."""

SKIP_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
EXTENSIONS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


def judge(
    settled: Settled, falls: Sequence[Fall], *, level: float, margin: float
) -> tuple[Verdict, tuple[FitNote, ...]]:
    """Return the first verdict that holds, in the order of `docs/math.md`, with the reasons."""
    verdict, notes = _judge_curve(settled, level, margin)
    if not falls:
        return verdict, notes
    # What a wide ceiling, or one that is not known, would need is more of a run that has passed its peak.
    kept = tuple(note for note in notes if not isinstance(note, WideCeiling | NoRiseSeen))
    return "unstable" if any(map(is_large, falls)) else "past its peak", (*falls, *kept)


def _judge_curve(settled: Settled, level: float, margin: float) -> tuple[Verdict, tuple[FitNote, ...]]:
    """Return the verdict on the curve, without regard to what came after its peak."""
    points, form, known, best = settled.points, settled.choice.form, settled.known, settled.best
    above: tuple[FitNote, ...] = ()
    if known.start is not None and known.start > np.quantile(points.reward, 0.9):
        above = (StartAboveData(start=known.start),)
    if settled.rise is not None and not settled.rise.seen:
        # Where least squares ends on a curve that is flat says nothing.
        is_constant = not np.ptp(points.reward)
        flat = NoRiseSeen(noticeable=settled.rise.noticeable, power=POWER, is_constant=is_constant)
        return "no rise seen", (flat, *above)
    notes: tuple[FitNote, ...] = (*best.at_bound, *above)
    if settled.misfit is not None and settled.misfit.claimed:
        notes = (_misfit_note(settled, settled.misfit), *notes)
        if not settled.mended:
            return "lack of fit", notes
    if known.ceiling is None:
        width = _ceiling_width(settled, level)
        target = margin * (points.bounds[1] - points.bounds[0])
        if width > target:
            wide = what_settles(points, form, known, best, settled.draws, level, width, target)
            return "ceiling not identifiable yet", (wide, *notes)
    return ("at a bound", notes) if best.at_bound else ("ok", notes)


def _misfit_note(settled: Settled, misfit: Misfit) -> LackOfFit | MendedFit:
    compute = settled.points.scale * float(np.exp(misfit.log_place))
    if not settled.mended:
        return LackOfFit(statistic=misfit.statistic, limit=misfit.limit, size=misfit.size, compute=compute)
    choice = settled.choice
    return MendedFit(
        statistic=misfit.statistic,
        limit=misfit.limit,
        size=misfit.size,
        compute=compute,
        skip_before=choice.skip * settled.points.scale if choice.skip > 0 else None,
        start_fitted=choice.start_fitted,
        form=choice.form.name,
    )


def _ceiling_width(settled: Settled, level: float) -> float:
    """Return the width of the ceiling's interval: from draws, or else linearised at the least-squares fit."""
    points, form, known, best = settled.points, settled.choice.form, settled.known, settled.best
    if settled.draws is not None:
        low, high = np.quantile(settled.ceilings, (0.5 - level / 2, 0.5 + level / 2))
        return float(high - low)
    seen = information(form, known, best.log_shape[None], np.array([best.gain]), points.log_compute, points.noise)
    sd = linear_sd(seen, points, form, known, residual_sd(points, form, known, best))
    return float(2 * normal_quantile(level) * sd[0])


def normal_quantile(level: float) -> float:
    return float(ndtri(np.array(0.5 + level / 2)))


def information(
    form: Form, known: Known, log_shape: Array, gain: Array, log_compute: Array, noise: Array | float
) -> Array:
    """Return the Fisher information of evaluations at `log_compute` for each row of `log_shape` and `gain`.

    The parameters are the ceiling, the other linear parameter if it is free, and the free shape parameters.
    """
    value = lambda logs: form.shape(log_compute, *[log[:, None] for log in logs.T])  # noqa: E731
    shape = value(log_shape)
    columns = [shape] if form.rising else [np.ones_like(shape)]
    if known.level(form) is None or not form.rising:
        columns.append(1.0 - shape if form.rising else shape)  # d reward / d start at a fixed ceiling
    for axis, param in enumerate(form.shape_params):
        if param.name not in known.log_shape:
            nudge = np.zeros(log_shape.shape[1])
            nudge[axis] = 1e-4
            columns.append(gain[:, None] * (value(log_shape + nudge) - value(log_shape - nudge)) / 2e-4)
    slope = np.stack(columns, axis=1) / noise
    return slope @ slope.swapaxes(1, 2)


def linear_sd(seen: Array, points: Points, form: Form, known: Known, noise_sd: Array) -> Array:
    """Return the standard error of the ceiling to first order, given the information in what was seen.

    The weak priors of the shape count as information too, so that a parameter the data say nothing of does not make the
    error infinite.
    """
    prior = [0.0]
    if known.level(form) is None or not form.rising:
        prior.append(known.start_sd**-2 if known.start is not None and known.start_sd > 0 else 0.0)
    prior += [param.prior_sd**-2 for param in form.shape_params if param.name not in known.log_shape]
    floor = 1e-6 * (points.bounds[1] - points.bounds[0])
    seen = seen / np.maximum(noise_sd, floor)[:, None, None] ** 2
    largest = np.einsum("kii->ki", seen).max(axis=1)
    # A ridge far below anything that matters keeps a degenerate design (all points at one compute) solvable.
    total = seen + np.diag(prior) + (1e-12 * largest + 1e-9)[:, None, None] * np.eye(len(prior))
    return np.sqrt(np.maximum(np.linalg.inv(total)[:, 0, 0], 0.0))


def what_settles(
    points: Points,
    form: Form,
    known: Known,
    best: Solution,
    draws: Draws | None,
    level: float,
    now: float,
    target: float,
) -> WideCeiling:
    """Return how much further the run should go, evaluated as often as now, until the ceiling is known well enough."""

    def wide(remedy, times: float | None = None, compute: float | None = None) -> WideCeiling:
        return WideCeiling(level=level, width=now, margin=target, remedy=remedy, times=times, compute=compute)

    between = 0.0
    if draws is None:
        log_shape, gain, noise_sd = best.log_shape[None], np.array([best.gain]), residual_sd(points, form, known, best)
    else:
        log_shape, gain, noise_sd = _some_draws(points, form, draws)
        between = float(np.median(draws.run_sd)) / np.sqrt(points.num_runs)
    reach = 2 * normal_quantile(level)
    if reach * between > target:
        return wide("more_seeds")

    def width(seen: Array) -> float:
        sd = float(np.quantile(linear_sd(seen, points, form, known, noise_sd), 0.75))
        return reach * float(np.hypot(sd, between))

    seen = information(form, known, log_shape, gain, points.log_compute, points.noise)
    compute = np.sort(np.exp(points.log_compute[points.run == points.run[0]]))
    spacing = max(float(np.median(np.diff(compute))), 1e-3) if len(compute) > 1 else 0.1
    # To first order a skewed posterior looks narrower than it is; what is known of that now holds for later too.
    scaled = target * min(width(seen) / now, 1.0)
    for times in EXTENSIONS:
        num = min(int((times - 1.0) / spacing), 400)
        if num < 1:
            continue
        further = np.log(np.linspace(1.0 + spacing, times, num))
        more = information(form, known, log_shape, gain, further, float(np.median(points.noise)))
        if width(seen + more) <= scaled:
            return wide("more_compute", times, float(f"{times * points.scale:.2g}"))
    return wide("much_more_compute", EXTENSIONS[-1])


def _some_draws(points: Points, form: Form, draws: Draws) -> tuple[Array, Array, Array]:
    """Return log-shapes, gains and noises of a few draws."""
    pick = np.linspace(0, len(draws.noise_sd) - 1, 48).astype(int)
    logs = [
        np.log(draws.params[param.name][pick] / (points.scale if param.scales_with_compute else 1.0))
        for param in form.shape_params
    ]
    if form.rising:
        gain = (draws.params["ceiling"] - draws.params["start"])[pick]
    else:
        gain = -draws.params["shortfall"][pick]
    return np.stack(logs, axis=-1), gain, draws.noise_sd[pick]


def skip_rule(points: Points, form: Form, known: Known, rule: float | str) -> tuple[float, tuple[SkippedEarly, ...]]:
    """Return the compute before which points are left out, with a note where "auto" chose it."""
    if isinstance(rule, str):
        text = rule.strip()
        if text.endswith("%"):
            return _number(text[:-1], rule) / 100.0 * points.scale, ()
        if text != "auto":
            return _number(text, rule), ()
        return _skip_by_misfit(points, form, known)
    return _number(str(rule), str(rule)), ()


def _number(text: str, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if np.isfinite(value):
        return value
    raise ValueError(f'skip_before must be a compute, a share such as "10%" or "auto", not {rule!r}')


def _skip_by_misfit(points: Points, form: Form, known: Known) -> tuple[float, tuple[SkippedEarly, ...]]:
    """Return the smallest share of the run whose removal leaves the rest on one curve.

    Early training (warm-up, format learning) often lies off the curve the rest follows. A share is enough when the
    points between it and the next larger share lie on the curve fitted beyond them.
    """
    need = known.num_free(form) + 4
    chosen = 0.0
    for share, beyond in pairwise(SKIP_SHARES):
        rest = points.take(points.log_compute >= np.log(beyond))
        early = points.take((points.log_compute < np.log(beyond)) & (np.exp(points.log_compute) >= share))
        if rest.num < need:
            break
        if early.num == 0:
            continue
        draws = posterior(rest, form, known, None)
        params = {name: values[:, None] for name, values in draws.params.items()}
        expected = form.curve(early.scale * np.exp(early.log_compute), params, rest.scale).mean(axis=1)
        spread = np.sqrt(np.var(expected) + np.mean(draws.noise_sd**2) / early.num)
        if abs(float(early.reward.mean() - np.median(expected))) > 3.0 * spread:
            chosen = beyond
    least = chosen * points.scale
    return least, (SkippedEarly(compute=least),) if chosen else ()
