"""The start of a curve: the reward of the model before training, with its noise."""

import math
from typing import NamedTuple

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.columns import has_role
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Floats, Frame, Mask
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.selection import Bounds

# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# The same for the step of an evaluation beside training rewards: some trainers log before their first step.
_FIRST_STEPS = 0.02
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4


class Start(NamedTuple):
    """The reward before training, its noise (None: that of any evaluation) and what to say of it."""

    value: float | None = None
    sd: float | None = 0.0
    facts: tuple[Fact, ...] = ()


def start_of(plan: Plan, points: Frame, column: str, bounds: Bounds) -> tuple[Start, Mask]:
    """Return the start that the log has, and which rows are of it: those at compute 0, or below it as some write steps.

    With 'first' they are each run's first row, if it is early. Without such rows an evaluation before training is it,
    and what the user gives replaces it. InputError for any other row at or below 0.
    """
    given = plan.options.start
    compute = points.numbers("compute")
    x = np.where(points.numbers("held") == 1, np.inf, compute)
    if given == "first":
        runs = points.groups(["run"])
        firsts = np.full(len(points), np.inf)
        np.minimum.at(firsts, runs, x)
        is_start = (x >= 0) & (x <= _BEFORE_TRAINING * compute.max()) & (x == firsts[runs])
    else:
        is_start = (x == 0) | ((x < 0) & has_role(column, "step"))
    odd = np.flatnonzero((x <= 0) & ~is_start)
    if len(odd):
        at = odd[0]
        raise InputError(
            f"compute {column!r} is {x[at]:g} at {points.origin[at]}, which is neither training nor the start: remove "
            f"those rows, or name other columns with {option:x}, {option:seed} or {option:by}."
        )
    if given not in (None, "first", "fit"):
        return Start(), is_start
    least = float(compute.min())
    if is_start.any() and given != "fit":
        return _mean(plan, points.take(is_start), least, bounds), is_start
    if given == "first":
        return Start(facts=(fact("start_is_late", compute=least),)), is_start
    reward = plan.roles["y"]
    if given is None and bounds == (0, 1) and reward.rule == "training" and reward.too_few:
        return _evaluated_before(plan, points.numbers("step")), is_start
    return Start(), is_start


def _mean(plan: Plan, starts: Frame, compute: float, bounds: Bounds) -> Start:
    """Return the mean of the rows before training; it goes without saying where it was asked for, one row a run."""
    rewards = starts.numbers("y")
    mean = math.fsum(rewards) / len(rewards)
    noise = start_noise(rewards, starts.numbers("num_samples"), bounds)
    is_one_a_run = plan.options.start == "first" and starts.num_groups(["run"]) == len(starts)
    if is_one_a_run or (plan.options.start is None and plan.is_ours):
        return Start(mean, noise)
    return Start(mean, noise, (fact("start_at_zero", start=mean, num=len(starts), compute=compute),))


def start_noise(rewards: Floats, samples: Floats, bounds: Bounds) -> float | None:
    """Return the noise of the mean of starts: binomial where the number of answers is known, else from their spread.

    None means that it is as noisy as any evaluation: too few starts, or the same number in every run, which is one
    evaluation that was written down several times.
    """
    if bounds is not None and not np.isnan(samples).any():
        # p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        width = bounds[1] - bounds[0]
        rates = np.clip((rewards - bounds[0]) / width, 0.02, 0.98)
        return width * math.sqrt(math.fsum(rates * (1 - rates) / samples)) / len(rewards)
    if len(rewards) < _ENOUGH_STARTS or len({*rewards}) == 1:
        return None
    return float(np.std(rewards, ddof=1)) / math.sqrt(len(rewards))


def _evaluated_before(plan: Plan, steps: Floats) -> Start:
    """Return an evaluation that was made before the first training reward, as verl's of step 0."""
    early = min(np.nanmin(steps, initial=np.inf), _FIRST_STEPS * np.nanmax(steps, initial=0.0) + 1e-9)
    first = plan.frame.take(plan.frame.numbers(plan["step"]) < early)
    for column in plan.roles["y"].too_few:
        rates = first.numbers(column)
        rates = rates[(rates >= 0) & (rates <= 1)].tolist()
        if rates:
            return Start(rates[0], None, (fact("start_from_evaluation", start=rates[0], column=column),))
    return Start()
