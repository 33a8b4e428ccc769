"""What a fit is good for, in words a person can act on."""

from itertools import pairwise
from typing import Literal

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.intervals import Draws, posterior
from scalerl.curves.least_squares import Solution, least_squares, shapes
from scalerl.curves.points import Known, Points

Verdict = Literal["ok", "ceiling not identifiable yet", "unstable", "at a bound", "too few points"]

SKIP_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
EXTENSIONS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
FALL_Z = 4.0  # standard errors a fall must measure before it is called one
FALL_SHARE = 0.1  # and this share of the rise so far


def judge(
    points: Points,
    form: Form,
    known: Known,
    best: Solution,
    draws: Draws | None,
    *,
    level: float,
    margin: float,
) -> tuple[Verdict, tuple[str, ...]]:
    """The first verdict that holds, in the order: unstable, not identifiable, at a bound, ok."""
    at_bound = tuple(f"Least squares puts the {text}." for text in best.at_bound)
    fallen = fall(points, form, known)
    if fallen:
        return "unstable", (fallen, *at_bound)
    if known.ceiling is None:
        width = _ceiling_width(points, form, known, best, draws, level)
        if width > margin * (points.bounds[1] - points.bounds[0]):
            said = (
                f"The {level:.0%} interval of the ceiling is {_width(width)} wide, more than the margin {margin:g}: "
                f"{settles(points, form, known, best, draws, level, margin)}"
            )
            return "ceiling not identifiable yet", (said, *at_bound)
    return ("at a bound", at_bound) if at_bound else ("ok", ())


def _width(width: float) -> str:
    return f"{width:.3f}" if np.isfinite(width) and width < 1e3 else "unboundedly"


def _ceiling_width(
    points: Points, form: Form, known: Known, best: Solution, draws: Draws | None, level: float
) -> float:
    """Of the posterior, or linearised at the least squares where there are no draws."""
    if draws is not None:
        low, high = np.quantile(draws.params["ceiling"], (0.5 - level / 2, 0.5 + level / 2))
        return float(high - low)
    degrees = max(points.num - known.num_free(form), 1)
    noise_sd = np.sqrt(best.squares / degrees)
    sd = linear_sd(points, form, known, best.log_shape[None], np.array([best.gain]), np.array([noise_sd]))
    return float(2 * normal_quantile(level) * sd[0])


def normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def linear_sd(
    points: Points, form: Form, known: Known, log_shape: Array, gain: Array, noise_sd: Array, extra: Array | None = None
) -> Array:
    """Standard error of the ceiling to first order, for each row of shape parameters.

    `extra` adds evaluations at further log-computes. The weak priors of the shape count as information too, so that
    a parameter the data say nothing of does not make the error infinite.
    """
    log_compute = points.log_compute if extra is None else np.concatenate([points.log_compute, extra])
    noise = np.concatenate([points.noise, np.ones(len(log_compute) - points.num)])
    value = lambda logs: form.shape(log_compute, *[log[:, None] for log in logs.T])  # noqa: E731
    shape = value(log_shape)
    columns = [shape] if form.rising else [np.ones_like(shape)]
    prior = [0.0]
    if known.level(form) is None or not form.rising:
        columns.append(1.0 - shape if form.rising else shape)  # d reward / d start at a fixed ceiling
        prior.append(known.start_sd**-2 if known.start is not None and known.start_sd > 0 else 0.0)
    for axis, param in enumerate(form.shape_params):
        if param.name not in known.log_shape:
            nudge = np.zeros(log_shape.shape[1])
            nudge[axis] = 1e-4
            columns.append(gain[:, None] * (value(log_shape + nudge) - value(log_shape - nudge)) / 2e-4)
            prior.append(param.prior_sd**-2)
    slope = np.stack(columns, axis=-1) / noise[None, :, None]
    floor = 1e-6 * (points.bounds[1] - points.bounds[0])
    information = np.einsum("kni,knj->kij", slope, slope) / np.maximum(noise_sd, floor)[:, None, None] ** 2
    information = information + np.diag(np.array(prior) + 1e-9)
    return np.sqrt(np.maximum(np.linalg.inv(information)[:, 0, 0], 0.0))


def settles(
    points: Points,
    form: Form,
    known: Known,
    best: Solution,
    draws: Draws | None,
    level: float,
    margin: float,
) -> str:
    """How much further the run should go for the ceiling's interval to fit the margin, evaluated as often as now."""
    if draws is None:
        log_shape, gain = best.log_shape[None], np.array([best.gain])
        noise_sd = np.array([np.sqrt(best.squares / max(points.num - known.num_free(form), 1))])
    else:
        pick = np.linspace(0, len(draws.noise_sd) - 1, 48).astype(int)
        log_shape = np.stack(
            [
                np.log(draws.params[param.name][pick] / (points.scale if param.scales_with_compute else 1.0))
                for param in form.shape_params
            ],
            axis=-1,
        )
        if form.rising:
            gain = (draws.params["ceiling"] - draws.params["start"])[pick]
        else:
            gain = -draws.params["shortfall"][pick]
        noise_sd = draws.noise_sd[pick]
    compute = np.sort(np.exp(points.log_compute[points.run == points.run[0]]))
    spacing = max(float(np.median(np.diff(compute))), 1e-3) if len(compute) > 1 else 0.1
    # To first order a skewed posterior looks narrower than it is; what is known of that now holds for later too.
    width = lambda extra: float(  # noqa: E731
        2 * normal_quantile(level) * np.quantile(linear_sd(points, form, known, log_shape, gain, noise_sd, extra), 0.75)
    )
    now = _ceiling_width(points, form, known, best, draws, level)
    target = margin * (points.bounds[1] - points.bounds[0]) * min(width(None) / now, 1.0)
    for times in EXTENSIONS:
        num = min(int((times - 1.0) / spacing), 400)
        if num < 1:
            continue
        extra = np.log(np.linspace(1.0 + spacing, times, num))
        if width(extra) <= target:
            return f"about {times:g} times the compute so far (to {times * points.scale:.4g}) should settle it."
    return f"more than {EXTENSIONS[-1]:g} times the compute so far would be needed to settle it."


def fall(points: Points, form: Form, known: Known) -> str | None:
    """A sentence when a run falls away from its own curve: its last points lie below what was reached before, and
    below the curve of the points before them, by more than noise explains."""
    for number in np.unique(points.run):
        mine = points.take(points.run == number)
        found = _fall_of_one(mine, form, known)
        if found:
            return found
    return None


def _fall_of_one(points: Points, form: Form, known: Known) -> str | None:
    if points.num < 8:
        return None
    for size in sorted({3, 4, points.num // 6, points.num // 4, points.num // 3}):
        if size < 3:
            continue
        head = points.take(np.arange(points.num) < points.num - size)
        if head.num < max(5, known.num_free(form) + 2):
            continue
        tail = points.reward[-size:]
        windows = np.convolve(head.reward, np.ones(size) / size, mode="valid")
        drop = float(windows.max() - tail.mean())
        rise = float(windows.max() - (known.start if known.start is not None else head.reward[: max(size, 2)].mean()))
        scatter = _scatter(head.reward)
        if drop < FALL_SHARE * max(rise, 0.0) or drop < FALL_Z * scatter * np.sqrt(2.0 / size):
            continue
        curve = least_squares(head, form, known)
        expected = curve.level + curve.gain * shapes(form, list(curve.log_shape[:, None]), points)[0]
        residual = head.reward - expected[: head.num]
        noise_sd = max(float(np.sqrt(curve.squares / max(head.num - known.num_free(form), 1))), scatter)
        together = _inflation(residual)  # autocorrelated points say less than their number
        if (expected[-size:] - tail).mean() > FALL_Z * noise_sd * np.sqrt(together / size + 1.0 / head.num):
            place = points.scale * float(np.exp(head.log_compute[-1]))
            return (
                f"The run falls away from its own curve after compute {place:.4g}: its last {size} points average "
                f"{tail.mean():.3f} where {windows.max():.3f} had been reached (end the fit there to leave them out)."
            )
    return None


def _scatter(reward: Array) -> float:
    """Noise of one point from second differences, which a smooth curve hardly touches."""
    if len(reward) < 4:
        return float(np.std(reward))
    second = reward[2:] - 2 * reward[1:-1] + reward[:-2]
    return float(np.sqrt(np.mean(second**2) / 6.0))


def _inflation(residual: Array) -> float:
    """(1 + rho) / (1 - rho) with rho the lag-one autocorrelation, held between 0 and 0.8."""
    total = float(residual @ residual)
    rho = float(residual[1:] @ residual[:-1]) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), 0.8)
    return (1 + rho) / (1 - rho)


def skip_rule(points: Points, form: Form, known: Known, rule: float | str) -> tuple[float, list[str]]:
    """The compute before which points are left out, and a word on it where a rule chose it."""
    if isinstance(rule, str):
        text = rule.strip()
        if text.endswith("%"):
            return _number(text[:-1], rule) / 100.0 * points.scale, []
        if text != "auto":
            return _number(text, rule), []
        return _skip_by_misfit(points, form, known)
    return float(rule), []


def _number(text: str, rule: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'skip_before must be a compute, a share such as "10%" or "auto", not {rule!r}') from None


def _skip_by_misfit(points: Points, form: Form, known: Known) -> tuple[float, list[str]]:
    """The least share of the run whose removal leaves the rest on one curve.

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
        draws = posterior(rest, form, known, least_squares(rest, form, known), None)
        params = {name: values[:, None] for name, values in draws.params.items()}
        expected = form.curve(early.scale * np.exp(early.log_compute), params, rest.scale).mean(axis=1)
        spread = np.sqrt(np.var(expected) + np.mean(draws.noise_sd**2) / early.num)
        if abs(float(early.reward.mean() - np.median(expected))) > 3.0 * spread:
            chosen = beyond
    least = chosen * points.scale
    return least, [f"Skipped what lies before compute {least:.4g}: it is off the later curve."] if chosen else []
