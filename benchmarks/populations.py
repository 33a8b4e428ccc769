"""Simulated runs whose truth is known: each population is a function from a seed to a case.

A case is a run, the evaluations that came later, and the truth. Compute is in midpoints of the (main) rise.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import expit, ndtr

Array = np.ndarray
CUTS = {"tenth": 0.1, "quarter": 0.25, "half": 0.5, "whole": 1.0}
LEAST = 6
"""Amounts of compute that a cut must keep."""
NUM_BEYOND = 8
"""Evaluations simulated beyond the end, evenly spaced up to twice the compute."""
MOST_TRIES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a fitter is given."""

    compute: Array
    reward: Array
    start: float | None = None
    start_sd: float | None = None
    """Noise of the start; None: as noisy as an evaluation."""
    num_samples: Array | None = None
    label: Array | None = None
    """Which seed of the recipe each evaluation belongs to; None: one run."""
    is_bounded: bool = True
    """Whether rewards lie between 0 and 1."""
    worth: float | None = None
    """The smallest difference that matters to whoever looks; None: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, later evaluations and the truth."""

    run: Run
    later_compute: Array
    later_reward: Array
    ceiling: float = np.nan
    """NaN where no ceiling is defined (flat, fallen or measured runs)."""
    is_flat: bool = False
    falls_at: float = np.inf
    reached: float = np.nan
    """Where the ceiling is not known: the mean of the last tenth of a measured run, and its standard error."""
    reached_error: float = 0.0
    unit: float = 1.0
    """What errors are divided by."""

    def cut(self, share: float) -> "Case | None":
        """Return the case as it was at a share of its compute; None where too few evaluations lie before or after."""
        if share >= 1.0:
            return self
        run, end = self.run, self.run.compute.max()
        here = run.compute <= share * end * (1 + 1e-9)
        later = (self.later_compute > share * end * (1 + 1e-9)) & (self.later_compute <= end * (1 + 1e-9))
        if len(np.unique(run.compute[here])) < LEAST or later.sum() < 2:
            return None
        kept = replace(run, **{name: getattr(run, name)[here] for name in ("compute", "reward")})
        if run.num_samples is not None:
            kept = replace(kept, num_samples=run.num_samples[here])
        if run.label is not None:
            kept = replace(kept, label=run.label[here])
        return replace(self, run=kept, later_compute=self.later_compute[later], later_reward=self.later_reward[later])

    @property
    def scored(self) -> tuple[Array, Array]:
        """The later evaluations that are scored: those beyond the run's last one."""
        later = self.later_compute > self.run.compute.max() * (1 + 1e-9)
        return self.later_compute[later], self.later_reward[later]


Population = Callable[[np.random.Generator], Case]


# Parts of a simulation ------------------------------------------------------------------------------------------------


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def correlated(num: int, rho: float, rng: np.random.Generator) -> Array:
    """Noise of variance 1 with e_i = rho e_(i-1) + innovation."""
    values = rng.standard_normal(num)
    for index in range(1, num):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return values


def sigmoid(compute: Array, exponent: float, midpoint: float = 1.0) -> Array:
    return expit(exponent * np.log(np.maximum(compute, 1e-12) / midpoint))


def places(rng: np.random.Generator, reach: float, least: int = 8, most: int = 200) -> Array:
    """Compute of the evaluations up to `reach`, evenly spaced or (in one of four runs) in log compute, and beyond."""
    num = int(log_uniform(rng, least, most + 1))
    inside = np.linspace(reach / num, reach, num)
    if rng.uniform() < 0.25:
        inside = np.geomspace(reach / rng.uniform(20, 200), reach, num)
    return np.concatenate([inside, reach * (1 + np.arange(1, NUM_BEYOND + 1) / NUM_BEYOND)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How evaluations scatter about the curve."""

    rho: float = 0.0
    counts: bool = False
    """Binomial, with a known number of answers."""
    drift: bool = False
    sds: tuple[float, float] = (0.002, 0.03)
    """Range of the standard deviation, where there are no counts."""

    def draw(self, curve: Array, rng: np.random.Generator) -> tuple[Array, int | None]:
        """Return rewards and the number of answers behind each."""
        if self.drift:
            curve = curve + rng.uniform(0.004, 0.015) * correlated(len(curve), rng.choice([0.8, 0.9, 0.97]), rng)
        if self.counts:
            answers = int(rng.choice([64, 256, 1024, 3072]))
            return rng.binomial(answers, np.clip(curve, 0, 1)) / answers, answers
        return curve + log_uniform(rng, *self.sds) * correlated(len(curve), self.rho, rng), None


def make(
    rng: np.random.Generator,
    compute: Array,
    curve: Array,
    start: float,
    noise: Noise,
    *,
    is_bounded: bool = True,
    **truth,
) -> Case:
    """Return evaluations of a curve; the last `NUM_BEYOND` of them are beyond the run's end.

    The start is known exactly in a half of the runs, measured in a quarter and not known in a quarter; with counts it
    is measured in three quarters.
    """
    reward, answers = noise.draw(np.append(curve, start), rng)
    if is_bounded:
        reward = np.clip(reward, 0, 1)
    reward, measured = reward[:-1], float(reward[-1])
    luck = rng.uniform()
    known, start_sd = None, None
    if luck < 0.75:
        known = measured
    if luck < 0.5 and not noise.counts:
        known, start_sd = start, 0.0
    num = len(compute) - NUM_BEYOND
    run = Run(
        compute=compute[:num],
        reward=reward[:num],
        start=known,
        start_sd=start_sd,
        num_samples=None if answers is None else np.full(num, answers),
        is_bounded=is_bounded,
    )
    return Case(run=run, later_compute=compute, later_reward=reward, **truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Parameters of a rising run, drawn from wide ranges."""

    start: float
    gain: float
    exponent: float
    compute: Array

    @property
    def reach(self) -> float:
        return float(self.compute[-1]) / 2

    @property
    def ceiling(self) -> float:
        return self.start + self.gain


def draw_rise(rng: np.random.Generator, *, reach: tuple[float, float] = (0.8, 12.0), least_gain: float = 0.03) -> Rise:
    start = rng.uniform(0.02, 0.5)
    gain = log_uniform(rng, least_gain, 0.985 - start)
    return Rise(
        start=start, gain=gain, exponent=log_uniform(rng, 0.8, 5.0), compute=places(rng, log_uniform(rng, *reach))
    )


def rising(rng: np.random.Generator, rise: Rise, share: Array, noise: Noise) -> Case:
    """Return a run of which `share` is how much of its gain it has at each compute."""
    return make(rng, rise.compute, rise.start + rise.gain * share, rise.start, noise, ceiling=rise.ceiling)


# Populations ----------------------------------------------------------------------------------------------------------


def sigmoids(rng: np.random.Generator, noise: Noise) -> Case:
    rise = draw_rise(rng)
    return rising(rng, rise, sigmoid(rise.compute, rise.exponent), noise)


def two_phases(rng: np.random.Generator) -> Case:
    """An early rise of a tenth to two fifths of the gain, 5 to 60 times earlier."""
    rise, part, earlier = draw_rise(rng, least_gain=0.1), rng.uniform(0.1, 0.4), log_uniform(rng, 5, 60)
    early = sigmoid(rise.compute, log_uniform(rng, 0.8, 3.0), 1 / earlier)
    share = part * early + (1 - part) * sigmoid(rise.compute, rise.exponent)
    return rising(rng, rise, share, Noise(rho=rng.choice([0.0, 0.5])))


def late(rng: np.random.Generator) -> Case:
    """Nothing happens up to a twentieth or a half of the run; then it rises."""
    rise = draw_rise(rng, reach=(1.0, 6.0), least_gain=0.1)
    begins = rng.uniform(0.05, 0.5)
    since = np.maximum(rise.compute - begins * rise.reach, 0.0) / (1 - begins)
    return rising(rng, rise, sigmoid(since, rise.exponent), Noise(counts=bool(rng.integers(2))))


def other_form(rng: np.random.Generator) -> Case:
    """Exponential saturation; probit, Weibull and Frechet curves in log compute."""
    rise, kind, half = draw_rise(rng), int(rng.integers(4)), np.log(2)
    slope = rise.exponent * np.log(rise.compute)
    steep = slope / (2 * half)
    shares = (
        lambda: -np.expm1(-half * rise.compute),
        lambda: ndtr(slope * np.sqrt(2 * np.pi) / 4),
        lambda: -np.expm1(-half * np.exp(np.minimum(steep, 50))),
        lambda: np.exp(-half * np.exp(np.minimum(-steep, 50))),
    )
    return rising(rng, rise, shares[kind](), Noise(rho=rng.choice([0.0, 0.3])))


def lag(rng: np.random.Generator) -> Case:
    """Sigmoids that begin 0.03 to 0.25 of the reach (at most of a midpoint) late."""
    rise = draw_rise(rng)
    late_by = rng.uniform(0.03, 0.25) * min(rise.reach, 1.0)
    return rising(rng, rise, sigmoid(rise.compute - late_by, rise.exponent), Noise(rho=rng.choice([0.0, 0.3])))


def slow_tail(rng: np.random.Generator) -> Case:
    """A fast rise, then slow growth: 15 to 40 % of the gain comes with a midpoint at half to four times the end."""
    rise, part = draw_rise(rng, reach=(4.0, 30.0), least_gain=0.1), rng.uniform(0.15, 0.4)
    tail = sigmoid(rise.compute, rng.uniform(0.7, 1.3), rise.reach * log_uniform(rng, 0.5, 4.0))
    share = (1 - part) * sigmoid(rise.compute, rise.exponent) + part * tail
    return rising(rng, rise, share, Noise(counts=bool(rng.integers(2)), rho=rng.choice([0.0, 0.3])))


def unbounded(rng: np.random.Generator) -> Case:
    """Sigmoids in any unit, from any offset."""
    rise, noise = draw_rise(rng), Noise(rho=rng.choice([0.0, 0.5]), sds=(0.01, 0.15))
    case = make(rng, rise.compute, sigmoid(rise.compute, rise.exponent), 0.0, noise, is_bounded=False)
    unit = log_uniform(rng, 0.01, 1000.0)
    zero = unit * rng.normal(0.0, 3.0)
    start = None if case.run.start is None else zero + unit * case.run.start
    run = replace(case.run, reward=zero + unit * case.run.reward, start=start)
    return replace(case, run=run, later_reward=zero + unit * case.later_reward, ceiling=zero + unit, unit=unit)


def seeds(rng: np.random.Generator) -> Case:
    """Three runs of a recipe whose ceilings have an sd of 0.01 to 0.02; the later evaluations are those of a fourth."""
    num_runs, spread = 3, rng.uniform(0.01, 0.02)
    rise = draw_rise(rng, least_gain=0.08)
    rise = replace(rise, gain=min(rise.gain, 0.94 - rise.start))
    shape, sd = sigmoid(rise.compute, rise.exponent), log_uniform(rng, 0.002, 0.02)
    curves = [rise.start + (rise.gain + spread * rng.normal()) * shape for _ in range(num_runs + 1)]
    rewards = [np.clip(curve + sd * rng.standard_normal(len(shape)), 0, 1) for curve in curves]
    num = len(shape) - NUM_BEYOND
    is_known = rng.uniform() < 0.75
    run = Run(
        compute=np.tile(rise.compute[:num], num_runs),
        reward=np.concatenate([reward[:num] for reward in rewards[:num_runs]]),
        start=rise.start if is_known else None,
        start_sd=0.0,
        label=np.repeat(np.arange(num_runs), num),
    )
    return Case(run=run, later_compute=rise.compute, later_reward=rewards[-1], ceiling=rise.ceiling)


def flat(rng: np.random.Generator, noise: Noise) -> Case:
    level, compute = rng.uniform(0.05, 0.9), places(rng, 1.0)
    return make(rng, compute, np.full(len(compute), level), level, noise, is_flat=True)


def levelled(rng: np.random.Generator, drop: float = 0.0, is_sudden: bool = False) -> Case:
    """A run that has levelled off and, unless `drop` is 0, falls after 40 to 75 % of its evaluations.

    `drop` is what it falls by up to its end, in standard errors: those of generalised least squares under the true
    noise, with all parameters of the curve fitted beside it. Half of the slow falls go on beyond the end.
    """
    reach, exponent = log_uniform(rng, 5.0, 30.0), rng.uniform(1.5, 4.0)
    start, gain = rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.4)
    compute = places(rng, reach, least=12)
    num = len(compute) - NUM_BEYOND
    begins = float(compute[int(rng.uniform(0.4, 0.75) * num)]) / reach
    rho, answers = rng.choice([0.0, 0.5]), int(rng.choice([256, 1024, 3072]))
    has_counts, stops = bool(rng.integers(2)), bool(rng.integers(2))
    spent, error = np.minimum(compute, begins * reach) if drop else compute, 0.0
    shape = sigmoid(spent, exponent)
    curve = start + gain * shape
    if has_counts:
        rho, sds = 0.0, np.sqrt(curve * (1 - curve) / answers)
    else:
        sds = np.full(len(curve), log_uniform(rng, 0.002, 0.02))
    if drop:
        ramp = np.maximum(compute / reach - begins, 0) / (1 - begins)
        fall = (ramp > 0) * 1.0 if is_sudden else np.minimum(ramp, 1.0) if stops else ramp
        directions = [
            fall,
            shape,
            sigmoid(spent, exponent + 0.01) - shape,
            sigmoid(1.01 * spent, exponent) - shape,
            np.ones(len(shape)),
        ]
        design = np.stack(directions, axis=1)[:num]
        covariance = rho ** np.abs(np.subtract.outer(np.arange(num), np.arange(num))) * np.outer(sds[:num], sds[:num])
        error = np.sqrt(np.linalg.pinv(design.T @ np.linalg.solve(covariance, design))[0, 0])
        curve = np.maximum(curve - drop * error * fall, 0.01)
    if has_counts:
        reward = rng.binomial(answers, curve) / answers
    else:
        reward = np.clip(curve + sds * correlated(len(curve), rho, rng), 0, 1)
    run = Run(
        compute=compute[:num],
        reward=reward[:num],
        start=start if rng.integers(2) else None,
        start_sd=0.0,
        num_samples=np.full(num, answers) if has_counts else None,
        # A quarter of the fall matters.
        worth=min(0.01, drop * error / 4) if drop else None,
    )
    if not drop:
        return Case(run=run, later_compute=compute, later_reward=reward, ceiling=start + gain)
    return Case(run=run, later_compute=compute, later_reward=reward, falls_at=begins * reach)


POPULATIONS: dict[str, Population] = {
    "sigmoid": partial(sigmoids, noise=Noise()),
    "sigmoid, correlated": partial(sigmoids, noise=Noise(rho=0.5)),
    "binomial": partial(sigmoids, noise=Noise(counts=True)),
    "binomial, drift": partial(sigmoids, noise=Noise(counts=True, drift=True)),
    "two phases": two_phases,
    "late take-off": late,
    "other forms": other_form,
    "lag": lag,
    "slow tail": slow_tail,
    "seeds": seeds,
    "unbounded": unbounded,
    "levelled": levelled,
    "flat": partial(flat, noise=Noise()),
    "flat, correlated": partial(flat, noise=Noise(rho=0.5)),
    "flat, drift": partial(flat, noise=Noise(counts=True, drift=True)),
    **{
        f"fall of {drop} se, {kind}": partial(levelled, drop=drop, is_sudden=kind == "sudden")
        for drop in (4, 8, 16)
        for kind in ("sudden", "slow")
    },
}


def generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def cases(name: str, cut: str, num: int) -> Iterator[Case]:
    """Yield the first `num` cases of a population that have enough evaluations at a cut."""
    found = 0
    for seed in range(MOST_TRIES * num):
        case = POPULATIONS[name](generator(name, seed)).cut(CUTS[cut])
        if case is not None:
            yield case
            found += 1
        if found == num:
            return


# Pairs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two recipes, and how much better the first is."""

    first: Run
    second: Run
    lead: float
    """At the budget, four times the larger compute; of measured runs, late in the run. 0: they are alike."""
    efficiency: int | None
    """1: the first needs less compute, -1: the second, 0: neither; None: not judged."""

    def swapped(self) -> "Pair":
        efficiency = None if self.efficiency is None else -self.efficiency
        return Pair(first=self.second, second=self.first, lead=-self.lead, efficiency=efficiency)


MARGIN = 0.02
"""What the paper takes for a difference between ceilings."""
RUN_SD = 0.01
"""Spread of the ceiling between runs of a recipe."""
BUDGET = 4.0
"""Times the larger compute at which recipes are compared. A run that collapsed has its best checkpoint there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one run of a pair differs by."""

    higher: float = 0.0
    """In margins."""
    exponent: float | None = None
    midpoint: float = 1.0
    length: float = 1.0
    is_flat: bool = False
    drop: float = 0.0


def draw_pair(rng: np.random.Generator, sides: tuple[Side, Side], drift: bool, efficiency: int | None) -> Pair:
    """Return two runs measured alike from one start; the better one is the first in every second pair."""
    start, gain, reach = rng.uniform(0.1, 0.4), rng.uniform(0.15, 0.4), rng.uniform(3, 8)
    exponent, num = log_uniform(rng, 1.3, 3.0), int(log_uniform(rng, 20, 80))
    answers, sd = int(rng.choice([0, 1024])), log_uniform(rng, 0.004, 0.015)
    runs, values = [], []
    for side in sides:
        true_gain = 0.0 if side.is_flat else gain + MARGIN * side.higher
        best = 0.5 if side.drop else BUDGET
        values.append(
            start + true_gain * float(sigmoid(np.array(best * reach), side.exponent or exponent, side.midpoint))
        )
        compute = np.linspace(reach / num, reach, num)[: int(side.length * num)]
        risen = 0.0 if side.is_flat else true_gain + RUN_SD * rng.normal()
        curve = start + risen * sigmoid(compute, side.exponent or exponent, side.midpoint)
        curve = curve - side.drop * np.clip(compute / reach - 0.5, 0, 0.2) / 0.2
        if drift:
            curve = curve + 0.008 * correlated(len(curve), 0.9, rng)
        curve = np.clip(curve, 0.005, 0.995)
        reward = rng.binomial(answers, curve) / answers if answers else curve + sd * rng.standard_normal(len(curve))
        counts = np.full(len(compute), answers) if answers else None
        runs.append(Run(compute=compute, reward=np.clip(reward, 0, 1), start=start, start_sd=0.0, num_samples=counts))
    pair = Pair(first=runs[0], second=runs[1], lead=values[0] - values[1], efficiency=efficiency)
    return pair.swapped() if rng.integers(2) else pair


EQUAL = Side()
PAIRS: dict[str, tuple[Side, Side, int | None]] = {
    "equal": (EQUAL, EQUAL, 0),
    "higher by 1.5 margins": (Side(higher=1.5), EQUAL, 1),
    "higher by 3 margins": (Side(higher=3), EQUAL, 1),
    "higher by 6 margins": (Side(higher=6), EQUAL, 1),
    "exponent 2.6 against 1.5": (Side(exponent=2.6), Side(exponent=1.5), 1),
    "midpoint twice as early": (EQUAL, Side(midpoint=2.0), 1),
    "equal, one half as long": (EQUAL, Side(length=0.5), 0),
    "higher by 6 margins, four times as late": (Side(higher=6, midpoint=4.0), EQUAL, None),
    "higher by 6 margins, half as long": (Side(higher=6, length=0.5), EQUAL, 1),
    "rising against flat": (EQUAL, Side(is_flat=True), 1),
    "rising against collapsed": (EQUAL, Side(drop=0.15), 1),
}
"""The first of each is the better one at the budget: sides, and whether it needs less compute (None: at first more)."""


def pairs(name: str, drift: bool, num: int) -> Iterator[Pair]:
    first, second, efficiency = PAIRS[name]
    for seed in range(num):
        yield draw_pair(generator(f"{name}, {drift}", seed), (first, second), drift, efficiency)
