"""What a fit is good for: its verdict, and notes that a person can act on."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.intervals import Draws, posterior
from scalerl.curves.least_squares import Solution, least_squares, shapes
from scalerl.curves.notes import Fall, FitNote, SkippedEarly, StartAboveData, WideCeiling
from scalerl.curves.points import Known, Points, noise_guess, scatter
from scalerl.curves.special import ndtri

Verdict = Literal["ok", "ceiling not identifiable yet", "unstable", "at a bound", "too few points"]

SKIP_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
EXTENSIONS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
FALL_Z = 4.0  # standard errors a fall must measure before it is called one
FALL_SHARE = 0.1  # and this share of the rise so far
LEAST_NOISE = 0.5  # of binomial noise: evaluations of the same prompts vary by less than it
NOTHING = 1e-9  # of the reward's range: a difference between equal numbers
LITTLE_KNOWN = 3.0  # variances of independent noise, as for an autocorrelation of 0.5


def judge(
    points: Points,
    form: Form,
    known: Known,
    best: Solution,
    draws: Draws | None,
    *,
    level: float,
    margin: float,
) -> tuple[Verdict, tuple[FitNote, ...]]:
    """The first verdict that holds, in the order: unstable, not identifiable, at a bound, ok; with the reasons."""
    notes: tuple[FitNote, ...] = best.at_bound
    if known.start is not None and known.start > np.quantile(points.reward, 0.9):
        notes = (*notes, StartAboveData(start=known.start))
    fallen = find_fall(points, form, replace(known, start_sd=0.0))
    if fallen is not None:
        return "unstable", (fallen, *notes)
    if known.ceiling is None:
        width = _ceiling_width(points, form, known, best, draws, level)
        target = margin * (points.bounds[1] - points.bounds[0])
        if width > target:
            wide = what_settles(points, form, known, best, draws, level, width, target)
            return "ceiling not identifiable yet", (wide, *notes)
    return ("at a bound", notes) if best.at_bound else ("ok", notes)


def _ceiling_width(
    points: Points, form: Form, known: Known, best: Solution, draws: Draws | None, level: float
) -> float:
    """Width of the ceiling's interval: from the posterior, or linearised at the least squares without draws."""
    if draws is not None:
        low, high = np.quantile(draws.params["ceiling"], (0.5 - level / 2, 0.5 + level / 2))
        return float(high - low)
    seen = information(form, known, best.log_shape[None], np.array([best.gain]), points.log_compute, points.noise)
    sd = linear_sd(seen, points, form, known, _noise_sd(points, form, known, best))
    return float(2 * normal_quantile(level) * sd[0])


def _noise_sd(points: Points, form: Form, known: Known, best: Solution) -> Array:
    return np.array([np.sqrt(best.squares / max(points.num - known.num_free(form), 1))])


def normal_quantile(level: float) -> float:
    return float(ndtri(np.array(0.5 + level / 2)))


def information(
    form: Form, known: Known, log_shape: Array, gain: Array, log_compute: Array, noise: Array | float
) -> Array:
    """What evaluations say of the ceiling (first), the other linear number and the shape parameters, for each row of
    these: a matrix in units of the noise that adds up over evaluations."""
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
    """Standard error of the ceiling to first order, given the information in what was seen.

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
    """How much further the run should go, evaluated as often as now, for the ceiling's interval to fit the margin."""

    def wide(remedy, times: float | None = None, compute: float | None = None) -> WideCeiling:
        return WideCeiling(level=level, width=now, margin=target, remedy=remedy, times=times, compute=compute)

    between = 0.0
    if draws is None:
        log_shape, gain, noise_sd = best.log_shape[None], np.array([best.gain]), _noise_sd(points, form, known, best)
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
    """Log-shapes, gains and noises of a few draws."""
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


def find_fall(points: Points, form: Form, known: Known) -> Fall | None:
    """The first run that falls below its own curve; None if none does.

    A fall: the last points lie below what was reached before, and below the curve of the points up to there, by more
    than noise explains.
    """
    for number in np.unique(points.run):
        mine = points.take(points.run == number)
        if mine.num >= 8:
            for size in sorted({3, 4, mine.num // 6, mine.num // 4, mine.num // 3}):
                if size >= 3 and (fall := _fall_of_run(mine, form, known, size)) is not None:
                    return fall
    return None


def _fall_of_run(points: Points, form: Form, known: Known, size: int) -> Fall | None:
    """Whether the last `size` points of a run fall below its curve."""
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
    noise_sd = max(noise_sd, LEAST_NOISE * (noise_guess(points.reward, points.num_samples) or 0.0))
    error = noise_sd * np.sqrt((best_noise + tail_noise) / size)
    if drop <= NOTHING * (points.bounds[1] - points.bounds[0]) + max(FALL_SHARE * rise, FALL_Z * error, 0.0):
        return None
    together = LITTLE_KNOWN  # of how noise hangs together, where too few points lie before the fall to tell
    if head.num >= max(8, known.num_free(form) + 3):
        curve = least_squares(head, form, known)
        expected = curve.level + curve.gain * shapes(form, curve.log_shape[:, None], points)[0]
        together = _inflation((points.reward - expected)[:end])
        noise_sd = max(noise_sd, float(_noise_sd(head, form, known, curve)[0]))
        error = noise_sd * np.sqrt(tail_noise / size + best_noise / size)
        if (expected[-size:] - tail).mean() < FALL_Z * error * np.sqrt(together):
            return None
    if drop < FALL_Z * error * np.sqrt(together):
        return None
    begins = points.scale * float(np.exp(head.log_compute[-1]))
    return Fall(compute=begins, num_points=size, mean=float(tail.mean()), best=best)


def _inflation(residual: Array) -> float:
    """(1 + rho) / (1 - rho) with rho the lag-one autocorrelation, held between 0 and 0.9."""
    total = float(residual @ residual)
    rho = float(residual[1:] @ residual[:-1]) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), 0.9)
    return (1 + rho) / (1 - rho)


def skip_rule(points: Points, form: Form, known: Known, rule: float | str) -> tuple[float, tuple[SkippedEarly, ...]]:
    """The compute before which points are left out, with a note where "auto" chose it."""
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
    """The smallest share of the run whose removal leaves the rest on one curve.

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
