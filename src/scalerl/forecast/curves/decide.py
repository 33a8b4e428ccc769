"""Every decision that follows from a posterior, in one place.

    decide   where a run stands, whether to go on with it, and the smallest change that means something
    pick     which of several recipes to take, by draws of the reward that each offers at a budget (`value_draws`)
    settle   how much more compute, or how many seeds, would settle an open choice

Decisions are functions of draws and of one number, the worth: the smallest difference of reward that matters. The
interval level changes none of them. docs/math.md has the rules on one page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.draws import Value, explained_share, share_below, summary
from scalerl.forecast.curves.fit import Fit, Lack
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.model import EVEN_NORMALS, Kind
from scalerl.forecast.curves.normal import normal_cdf, normal_quantile

SURE = 0.9
"""A statement with at least this probability counts as true."""
UNLIKELY = 0.1
"""A statement with less than this probability counts as false."""
LIKELIER = 0.5
"""A statement with more than this probability is likelier than not."""
LEAST_FALL = 0.2
"""Least probability of a fall, rather than drift, for a run below its peak to count as fallen. It is low because falls
are rare in the prior: they must explain the rewards several times better than drift does to reach it."""
NEARLY_ALL = 0.9
"""A run that has reached this share of its whole gain is levelling off."""
WORTH = 0.01
"""Default worth of a bounded reward, as a share of its scale."""
WORTH_OF_RANGE = 0.03
"""Default worth of an unbounded reward, as a share of the observed range without noise."""
EARLY_POINTS = 12
"""With fewer points than these, a run in which no rise is seen is too early to judge, not flat."""
LATE_BEGINNING = 0.3
"""A run without a visible rise whose first evaluation comes after this share of its compute is too early to judge."""
ONCE_IN_TEN = 1.645
"""A normal number exceeds this many standard errors, up or down, once in ten times."""
TIMES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Multiples of the present compute to try for settling an open question."""
MOST_SEEDS = 32
"""Largest number of seeds per recipe to propose for settling a choice."""
ABOUT = 0.05
"""Two probabilities that differ by less are about equal."""
NUM_MEANS = 101
"""Number of mean leads at which it is tried whether two recipes are close."""
NUM_LATER = 8
"""Number of means of later evaluations used to estimate how much a longer run would tell."""


def default_worth(curves: Sequence[Fit]) -> float:
    """Return the smallest difference that matters: 1 % of a bounded scale; otherwise 3 % of the range seen."""
    scales = [curve.bounds[1] - curve.bounds[0] for curve in curves if curve.bounds is not None]
    if scales:
        return WORTH * max(scales)
    ranges = [
        curve.posterior.blocks.span if curve.posterior else float(np.ptp(curve.reward))
        for curve in curves
        if len(curve.reward)
    ]
    return WORTH_OF_RANGE * max(ranges, default=0.0)


# One run --------------------------------------------------------------------------------------------------------------


class State(StrEnum):
    """Where a run stands."""

    TOO_EARLY = "too early"
    FLAT = "flat"
    RISING = "rising"
    LEVELLING_OFF = "levelling off"
    PAST_PEAK = "past its peak"


class Action(StrEnum):
    """What to do with a run."""

    GO_ON = "go on"
    STOP = "stop"
    OPEN = "open"
    """The data do not tell yet whether more compute is worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A fall after the run's peak that drift does not explain and that is not about to be regained."""

    probability: float
    """Probability that the drop is larger than the worth."""
    drop: Value
    peak: float
    now: float
    last_good: float
    """Compute of the last measured evaluation before the fall."""
    num_after: int
    """Number of evaluations after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dip:
    """A fall that was regained later."""

    compute: float
    """Compute at the lowest point."""
    depth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about one run."""

    state: State
    action: Action
    worth: float
    share: Value | None = None
    """Share of its whole gain that a run has reached; None unless it is rising or levelling off."""
    p_nearly_all: float = float("nan")
    """Probability that this share is at least `NEARLY_ALL`."""
    doubling: Value | None = None
    """Gain of doubling the compute over the best reward so far; None without a curve."""
    p_worth: float = float("nan")
    """Probability that the doubling brings more than the worth."""
    settled_at: float | None = None
    """Multiple of the present compute that may settle an open action; None if none of `TIMES` is likely to."""
    p_settled: float = float("nan")
    """Probability that it does."""
    p_seen: float = float("nan")
    """Probability that a rise, or a fall, has been seen."""
    noticed: float = float("nan")
    """The smallest rise that would have been noticed."""
    smallest_change: float = float("nan")
    """The difference between two evaluations that noise exceeds once in ten times."""
    missing: Lack | None = None
    """What is missing if it is too early to judge the run."""
    fall: Fall | None = None
    dip: Dip | None = None


def decide(curve: Fit, worth: float | None = None) -> Decision:
    """Decide where a run stands and whether to go on with it.

    Raise ValueError for a fit by the paper's procedure, which has no intervals.
    """
    worth = default_worth([curve]) if worth is None else worth
    if curve.lack is not None:
        return Decision(state=State.TOO_EARLY, action=Action.OPEN, worth=worth, missing=curve.lack)
    if not curve.has_intervals:
        raise ValueError("method='paper' does not say how sure its numbers are, so nothing is decided by it")
    path = course(curve)
    doubling, share = doubling_draws(curve, path), share_reached(curve, path)
    p_worth, p_seen = float(np.mean(doubling > worth)), float(np.mean(curve.drawn.draws.seen))
    missing = None if p_seen >= LIKELIER else missing_of_flat(curve)
    fall = find_fall(curve, path, worth)
    if p_seen < LIKELIER:
        state = State.FLAT if missing is None else State.TOO_EARLY
    elif fall is not None:
        state = State.PAST_PEAK
    else:
        is_level = np.mean((share >= NEARLY_ALL) | (doubling <= worth)) >= LIKELIER
        state = State.LEVELLING_OFF if is_level else State.RISING
    action = action_of(state, p_worth)
    is_open = action == Action.OPEN and state == State.LEVELLING_OFF
    settled_at, p_settled = settling_times(curve, path, worth) if is_open else (None, np.nan)
    return Decision(
        state=state,
        action=action,
        worth=worth,
        share=summary(share, curve.level) if state in (State.RISING, State.LEVELLING_OFF) else None,
        p_nearly_all=float(np.mean(share >= NEARLY_ALL)),
        doubling=summary(doubling, curve.level),
        p_worth=p_worth,
        settled_at=settled_at,
        p_settled=p_settled,
        p_seen=p_seen,
        noticed=priors.NOTICED * curve.noise_sd * 2.0 / np.sqrt(curve.num_points),
        smallest_change=smallest_change(curve),
        missing=missing,
        fall=fall,
        dip=find_dip(curve, path, worth) if fall is None else None,
    )


def action_of(state: State, p_worth: float) -> Action:
    """Return what to do with a run, given its state and the probability that a doubling is worth it.

    A rising run goes on. A run past its peak stops, because its best checkpoint is behind it. A run that is too early
    to judge is open. A flat run is open too, or stops if a doubling is unlikely to be worth it.
    """
    if state == State.PAST_PEAK or (state != State.TOO_EARLY and p_worth < UNLIKELY):
        return Action.STOP
    return Action.GO_ON if state in (State.RISING, State.LEVELLING_OFF) and p_worth > LIKELIER else Action.OPEN


def doubling_draws(curve: Fit, path: Array) -> Array:
    """Return draws (rows) of the gain of doubling the compute over the best reward so far, as `even_values`."""
    return curve.drawn.even_values(2.0 * curve.scale) - path.max(axis=1, keepdims=True)


def share_reached(curve: Fit, path: Array) -> Array:
    """Return draws (rows) of the share of its whole gain that a run has reached, for each of `even_ceilings`.

    It is 1 where there is no gain.
    """
    start, ceiling = curve.drawn.draws.level[:, None], curve.drawn.even_ceilings
    has_gain = ceiling - start > 1e-9 * max(float(np.ptp(curve.reward)), 1e-12)
    share = np.clip((path[:, -1:] - start) / np.where(has_gain, ceiling - start, 1.0), 0.0, 1.0)
    return np.where(has_gain, share, 1.0)


def settling_times(curve: Fit, path: Array, worth: float) -> tuple[float | None, float]:
    """Return which of `TIMES` should show whether a doubling is worth it, and how likely it does."""
    best = path.max(axis=1)
    doubled = 2.0 * curve.scale
    doubling = curve.curve_draws([doubled])[:, 0] - best
    mean, now = float(doubling.mean()), float(doubling.std())
    chances = []
    for times in TIMES:
        later = left_sd(curve, doubled, times, best)
        # The mean will move by what is learned. It will then be above the worth, or below it for sure.
        moves = max(float(np.sqrt(max(now**2 - later**2, 0.0))), 1e-12)
        stops_below = worth - float(normal_quantile(1.0 - UNLIKELY)) * later
        chances.append(float(normal_cdf((mean - worth) / moves) + normal_cdf((stops_below - mean) / moves)))
    return likely_to_settle(TIMES, chances)


def likely_to_settle(ways: Sequence[Any], chances: Sequence[float]) -> tuple[Any | None, float]:
    """Return the first way that is likelier than not to settle a question, and its chance.

    Without one, return the first that is about as likely as any, so that little data more or less change little; None
    if all are unlikely.
    """
    best = max(chances)
    place = next(place for place, chance in enumerate(chances) if chance >= min(LIKELIER, best - ABOUT))
    return (ways[place] if best >= UNLIKELY else None), chances[place]


def missing_of_flat(curve: Fit) -> Lack | None:
    """Return what is missing before a run without a visible rise can be called flat; None if nothing is."""
    if curve.num_points < EARLY_POINTS:
        return Lack(what="points", num=curve.num_points, needed=EARLY_POINTS)
    first = float(curve.compute.min())
    if curve.start is None and first > LATE_BEGINNING * curve.scale:
        return Lack(what="beginning", num=first, needed=LATE_BEGINNING * curve.scale)
    return None


def course(curve: Fit) -> Array:
    """Return draws (rows) of the reward without noise at each block, in order of compute.

    For one run this is its curve with drift and misfit; for several, which drift differently, it is the recipe's curve.
    """
    drawn = curve.drawn
    order = np.argsort(drawn.blocks.x, kind="stable")
    if drawn.blocks.num_runs > 1:
        return curve.curve_draws(drawn.blocks.compute[order])
    return drawn.path()[:, order]


def value_draws(curve: Fit, at: float, worth: float, spread: float = 0.0) -> tuple[Array, bool]:
    """Return sorted draws of the reward that a run offers at a compute, and whether they are of its best checkpoint.

    A run past its peak offers its best checkpoint; any other run offers its curve. `spread` is the standard deviation
    between runs that is assumed for a recipe that was run once.
    """
    path = course(curve)
    is_past_peak = find_fall(curve, path, worth) is not None
    if is_past_peak:
        values = curve.drawn.clip(path.max(axis=1, keepdims=True) + spread * EVEN_NORMALS)
    else:
        values = replace(curve.drawn, assumed_spread=spread).even_values(at)
    return thinned(values, len(path)), is_past_peak


def thinned(draws: Array, num: int) -> Array:
    """Return so many of the draws, at even places in their order."""
    return np.sort(draws, axis=None)[draws.size // num // 2 :: draws.size // num]


def find_fall(curve: Fit, path: Array, worth: float) -> Fall | None:
    """Return the fall from the peak to now; None if there is none. The run's rise or fall must have been seen.

    A fall exceeds the worth with probability `SURE`, is not explained by drift, and is unlikely to be regained.
    """
    drop, drawn = path.max(axis=1) - path[:, -1], curve.drawn
    probability = float(np.mean(drop > worth))
    if probability < SURE or np.mean(drawn.draws.seen) < LIKELIER or curve.probability(Kind.fall) < LEAST_FALL:
        return None
    if np.mean(doubling_draws(curve, path) > worth) > LIKELIER:
        return None
    compute = np.sort(drawn.blocks.compute)
    # The last block at which each draw was as good as at its peak.
    is_good = path >= path.max(axis=1, keepdims=True) - worth
    last = compute[path.shape[1] - 1 - is_good[:, ::-1].argmax(axis=1)]
    measured = np.unique(curve.compute)
    before = measured[measured <= float(np.median(last)) * (1.0 + 1e-9)]
    last_good = float(before[-1] if len(before) else measured[0])
    return Fall(
        probability=probability,
        drop=summary(drop, curve.level),
        peak=float(np.median(path.max(axis=1))),
        now=float(np.median(path[:, -1])),
        last_good=last_good,
        num_after=int(np.sum(curve.compute > last_good)),
    )


def find_dip(curve: Fit, path: Array, worth: float) -> Dip | None:
    """Return the deepest fall inside the run; None unless it is `SURE` to exceed `smallest_change` by the worth."""
    below = np.maximum.accumulate(path, axis=1) - path
    depth = below.max(axis=1)
    if np.mean(depth - smallest_change(curve) > worth) < SURE:
        return None
    place = int(np.median(below.argmax(axis=1)))
    compute = np.sort(curve.drawn.blocks.compute)
    return Dip(compute=float(compute[place]), depth=float(np.median(depth)))


def smallest_change(curve: Fit) -> float:
    """Return the difference between two evaluations that noise and drift exceed once in ten times."""
    return ONCE_IN_TEN * float(np.sqrt(2.0)) * curve.noise_sd


def left_sd(curve: Fit, at: float, times: float, less: Array | float = 0.0) -> float:
    """Return the standard deviation of the curve at `at` that remains after `times` the compute, evaluated as often.

    Later evaluations will tell of its shape. Beyond the last of them there will be an allowance again. `less` are draws
    of what is subtracted.
    """
    drawn = curve.drawn
    evaluations_per_place = max((times - 1.0) * curve.scale / drawn.blocks.spacing / NUM_LATER, 1.0)
    place = drawn.relative_log(at)
    wanted = drawn.shape_curve(place)[:, 0] - less
    later = drawn.shape_curve(np.log(np.linspace(1.0, times, NUM_LATER + 1)[1:]))
    explained = explained_share(wanted, later, curve.noise_sd**2 / evaluations_per_place)
    allowance = drawn.allowance_at(place, end=float(np.log(times)))
    return float(np.sqrt(wanted.var() * max(1.0 - explained, 0.0) + np.mean(allowance**2)))


def left_sds(curve: Fit, at: float) -> list[float]:
    """Return the standard deviation of the curve at a compute that remains after each of `TIMES`."""
    return [left_sd(curve, at, times) for times in TIMES]


# Several recipes ------------------------------------------------------------------------------------------------------


class Answer(StrEnum):
    """Which recipe to take."""

    TAKE = "take"
    EITHER = "either"
    """The best recipes are so close that it does not matter which one is taken."""
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A choice between recipes."""

    answer: Answer
    p_best: tuple[float, ...]
    """Probability of each recipe to be the best, in the given order."""
    losses: tuple[float, ...]
    """Expected loss of reward from taking each."""
    order: tuple[int, ...]
    """Indices of the recipes, sorted by expected loss, smallest first."""
    chosen: tuple[int, ...]
    """The recipe to take, the recipes that are equally good, or the leader of an open choice."""
    probability: float
    """Probability that the chosen recipe is the best; for several, that all lie within the worth of the best."""
    p_close: float
    """Probability that all recipes lie within the worth of the best."""


def shares_below(values: Array, by: float) -> Array:
    """Return, for the draws (last axis) of each recipe (first), the share of each one's (second) below them by `by`."""
    return np.array([[share_below(theirs, mine - by) for theirs in values] for mine in values])


def pick(values: Array, worth: float, same: Sequence[int] | None = None) -> Pick:
    """Choose between recipes, given draws (columns) of the reward of each (row) at the budget.

    They are independent, but those with one number in `same`, as a run and a part of it, are one.

    Any of several will do if all of them lie within the worth of the best with probability `SURE`. Otherwise take the
    one with the smallest expected loss, if it is the best with that probability and loses less than the worth.
    """
    distinct, group = np.unique(range(len(values)) if same is None else same, return_inverse=True)
    every = values[distinct]
    # With each draw of each recipe, the probabilities that the others are lower, and that they are lower by the worth.
    itself = np.eye(len(every))[:, :, None]
    lower = np.maximum(shares_below(every, 0.0), itself)
    far_lower = shares_below(every, worth) * (1.0 - itself)
    is_best = lower.prod(axis=1)
    total = is_best.mean(axis=1).sum()
    p_best = (is_best.mean(axis=1) / total / np.bincount(group))[group]
    loss = np.maximum((is_best * every).mean(axis=1).sum() / total - values.mean(axis=1), 0.0)

    def p_all_close(recipes: Sequence[int]) -> float:
        """Return the probability that all these recipes lie within the worth of the best."""
        close = np.unique(group[list(recipes)])
        near = lower.copy()
        near[:, close] -= far_lower[:, close]
        return float(near.prod(axis=1).mean(axis=1).sum() / total)

    order = np.argsort(loss, kind="stable")
    # The largest number of leading recipes that all lie within the worth of the best.
    close, p_close = [int(order[0])], 0.0
    for candidate in order[1:]:
        together = [*close, int(candidate)]
        probability = p_all_close(together)
        if probability < SURE:
            break
        close, p_close = together, probability
    leader = int(order[0])
    if len(close) > 1:
        answer, chosen, probability = Answer.EITHER, tuple(close), p_close
    else:
        is_sure = p_best[leader] >= SURE and loss[leader] < worth
        answer = Answer.TAKE if is_sure else Answer.OPEN
        chosen, probability = (leader,), float(p_best[leader])
    return Pick(
        answer=answer,
        p_best=tuple(p_best.tolist()),
        losses=tuple(loss.tolist()),
        order=tuple(order.tolist()),
        chosen=chosen,
        probability=float(probability),
        p_close=p_all_close(range(len(values))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What may settle an open choice between two recipes: each way alone, with the probability that it does."""

    times: float | None
    """Multiple of the present compute, for both recipes; None if none of `TIMES` is likely to settle it."""
    p_times: float
    seeds: int | None
    """Number of seeds of each recipe; None if not even `MOST_SEEDS` are likely to."""
    p_seeds: float


def settle(
    curves: tuple[Fit, Fit],
    values: tuple[Array, Array],
    spreads: tuple[Sequence[float], Sequence[float]],
    between: float,
    worth: float,
) -> Settling:
    """Return how much compute, or how many seeds, may show which recipe is better or that it does not matter.

    `values` are draws of both at the budget and `spreads` their `left_sds`. `between` is the standard deviation of the
    difference of the two means due to the spread between runs.
    """
    lead, now = abs(float(values[0].mean() - values[1].mean())), float(np.hypot(values[0].std(), values[1].std()))
    by_times = [
        p_settled(lead, now, float(np.hypot(np.hypot(*sds), between)), worth) for sds in zip(*spreads, strict=True)
    ]
    # More seeds reduce the whole variance in proportion to their number.
    num_runs = min(curve.num_runs for curve in curves)
    whole = float(np.sqrt(max(now**2, between**2)))
    numbers = range(num_runs + 1, max(MOST_SEEDS, num_runs + 1) + 1)
    by_seeds = [p_settled(lead, now, whole * float(np.sqrt(num_runs / number)), worth) for number in numbers]
    times, p_times = likely_to_settle(TIMES, by_times)
    seeds, p_seeds = likely_to_settle(numbers, by_seeds)
    return Settling(times=times, p_times=p_times, seeds=seeds, p_seeds=p_seeds)


def p_settled(lead: float, now: float, later: float, worth: float) -> float:
    """Return the probability that one recipe will be ahead for sure, or that it will not matter which is.

    The lead has the standard deviation `now`, of which `later` will remain: its mean will move by what is learned.
    """
    moves = max(float(np.sqrt(max(now**2 - later**2, 0.0))), 1e-12)
    ahead = float(normal_quantile(SURE)) * later
    # The largest mean lead at which the lead still lies between -worth and worth for sure.
    means = np.linspace(0.0, worth, NUM_MEANS)
    p_close = normal_cdf((worth - means) / later) - normal_cdf((-worth - means) / later)
    close = float(means[p_close >= SURE].max(initial=0.0))
    if close >= ahead:
        return 1.0
    below = normal_cdf((np.array([-ahead, ahead, -close, close]) - lead) / moves)
    return float(below[0] + 1.0 - below[1] + below[3] - below[2])
