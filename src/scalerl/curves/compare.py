"""Which recipe to scale: ceilings first, then efficiency, and "not separable" as an answer, with what would decide it.

The paper's rule (arXiv 2510.13786, 1.1 and A.5): prefer the higher ceiling where ceilings differ by more than what runs
differ by; otherwise the recipe that needs less compute, by the exponent at one shared ceiling. Here each step is a
probability from the draws of both posteriors. All evaluations count, also those after the other run ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from scalerl.curves.draws import Value, summary, who_is_best
from scalerl.curves.fit import Fit, compute_to_know, fit, refit
from scalerl.curves.forecast import reach_draws, wide_curve
from scalerl.curves.forms import Array
from scalerl.curves.notes import Note, NoteKind, PairKind, Verdict, find_note, note
from scalerl.curves.paper import Grid
from scalerl.curves.words import note_text, pair_verdict

SURE = 0.95
"""Probability from which a difference decides."""
SAME = 0.05
"""Ceilings closer than this share of the gain are the same for every purpose."""
RUN_SD = 0.03
"""Spread of the ceiling between runs of a recipe where only one was run, as a share of the gain. It lies between
that of the paper's three repeats (0.01 at a gain of 0.2) and of our own seeds (0.01 at 0.6)."""
HORIZON = 4.0
"""Times the larger compute: how far curves are compared where their ceilings are not known."""
SHARES = (0.5, 0.8, 0.95)
"""Targets at which the compute of two recipes is compared, as shares of the way to the lower ceiling."""
DECIDING = 1
"""The target that decides: past the midpoint, and not so near the ceiling that noise decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Compute that a needs for a reward, over that of b."""

    reward: float
    ratio: Value
    p_less: float
    """Probability that a needs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two curves compared: `kind` and `winner` are the verdict, `notes` its reasons."""

    a: str
    b: str
    kind: PairKind
    winner: str | None
    """The curve with the higher ceiling, or the more efficient one; None for every other kind."""
    p_higher_ceiling: float
    """Probability that a's ceiling is above b's."""
    p_higher_by_margin: float
    """Probability that it is above by more than the margin."""
    ceiling_difference: Value
    margin: float
    p_ahead: float
    """Probability that a is higher at four times the larger compute ..."""
    lead: float
    """... and by how much, at the median."""
    targets: tuple[Target, ...]
    p_larger_exponent: float
    """Probability that a's exponent is larger, at one ceiling for both."""
    correlation: float
    """Correlation of the residuals, where both were evaluated on the same prompts; 0 elsewhere."""
    notes: tuple[Note, ...]

    @property
    def loser(self) -> str | None:
        return None if self.winner is None else self.b if self.winner == self.a else self.a

    @property
    def target(self) -> Target | None:
        """The target that decides which one is more efficient."""
        return self.targets[DECIDING] if self.targets else None

    @property
    def crossing(self) -> float | None:
        """The compute at which the two curves cross; None where they do not."""
        crossing = find_note(self.notes, NoteKind.CROSSING)
        return None if crossing is None else crossing.compute

    @property
    def verdict(self) -> str:
        return pair_verdict(self.kind, self.winner)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(note_text(each) for each in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of several recipes."""

    name: str
    p_best: float
    regret: float
    """Expected loss of reward if this one is chosen now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    pairs: tuple[Pair, ...]
    standings: tuple[Standing, ...]
    """By ceiling, or by the reward at the target compute, most likely the best first."""
    shared_ceiling: float | None
    """Mean ceiling of the recipes whose ceiling may be the best one's."""
    shared_fits: dict[str, Fit]
    """The same recipes fitted with that ceiling."""

    @property
    def ranking(self) -> tuple[tuple[str, float], ...]:
        return tuple((each.name, each.p_best) for each in self.standings)

    @property
    def shared_exponents(self) -> dict[str, Value]:
        """The paper's efficiency: each exponent at the shared ceiling."""
        values = {}
        for name, refitted in self.shared_fits.items():
            low, high = refitted.interval("exponent")
            values[name] = Value(value=refitted.params["exponent"], low=low, high=high)
        return values


def compare(
    fits: Mapping[str, Fit], *, at: float | None = None, margin: float | None = None, run_sd: float | None = None
) -> Comparison:
    """Compare fits two by two, and rank them all by ceiling or, with `at`, by the reward at that compute.

    `margin` is the difference below which ceilings count as the same, `run_sd` the spread between runs of a recipe that
    was run once; both in units of the reward, by default shares of the gain.
    """
    usable = {name: curve for name, curve in fits.items() if curve.usable and curve.has_intervals}
    recipes = {name: _recipe(name, curve, run_sd, stream) for stream, (name, curve) in enumerate(usable.items())}
    shared_ceiling, shared = _shared([*recipes.values()])
    pairs = tuple(
        _pair(recipes[a], recipes[b], shared, margin) if a in usable and b in usable else no_pair(a, b, fits)
        for a, b in combinations(fits, 2)
    )
    standings = _standings([*recipes.values()], at)
    return Comparison(pairs=pairs, standings=standings, shared_ceiling=shared_ceiling, shared_fits=shared)


def no_pair(a: str, b: str, fits: Mapping[str, Fit]) -> Pair:
    """Return a pair without a verdict, with the reason."""
    missing = [name for name in (a, b) if not (fits[name].usable and fits[name].has_intervals)]
    nan = float("nan")
    return Pair(
        a=a,
        b=b,
        kind=PairKind.NO_CURVE,
        winner=None,
        p_higher_ceiling=nan,
        p_higher_by_margin=nan,
        ceiling_difference=Value(value=nan, low=nan, high=nan),
        margin=nan,
        p_ahead=nan,
        lead=nan,
        targets=(),
        p_larger_exponent=nan,
        correlation=0.0,
        notes=tuple(note(NoteKind.NO_CURVE, name=name, verdict=str(fits[name].verdict)) for name in missing),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One of the recipes that are compared, with all that its pairs ask of its curve: it is in many of them."""

    name: str
    fit: Fit
    first: float
    """Reward before training, or at its first evaluation."""
    spread: float
    """How far the mean of its runs lies from the recipe itself: assumed where there is one run."""
    standing: Array
    """Draws of where its runs end up ..."""
    top: Array
    """... and of where the recipe does, in an order of its own."""
    evaluations: frozenset[tuple[float, float]]
    """(Compute, reward) of each ..."""
    residual: Array
    """... and how far it lies from the curve."""
    places: Array
    draws: Array
    """Its `wide_curve` ..."""
    middle: Array
    """... and the median of that."""


def _recipe(name: str, curve: Fit, run_sd: float | None, stream: int) -> Recipe:
    rng = np.random.default_rng(stream + 10)
    if curve.run_sd is not None:
        spread = curve.run_sd / np.sqrt(curve.num_runs)
    else:
        spread = RUN_SD * max(curve.gain, 0.0) if run_sd is None else run_sd
    standing, on_curve = curve.standing_draws, curve.predict(curve.compute)
    top = rng.permutation(standing)
    places, draws = wide_curve(curve)
    return Recipe(
        name=name,
        fit=curve,
        first=float(on_curve[np.argmin(curve.compute)]) if curve.start is None else curve.start,
        spread=spread,
        standing=standing,
        top=top + spread * rng.standard_normal(len(top)),
        evaluations=frozenset(zip(curve.compute.tolist(), curve.reward.tolist(), strict=True)),
        residual=curve.reward - on_curve,
        places=places,
        draws=draws,
        middle=np.median(draws, axis=0),
    )


def _standings(recipes: Sequence[Recipe], at: float | None) -> tuple[Standing, ...]:
    if not recipes:
        return ()
    if at is None:
        table = [each.top for each in recipes]
    else:
        table = [
            np.random.default_rng(stream + 500).permutation(each.fit.curve_draws([at])[:, 0])
            for stream, each in enumerate(recipes)
        ]
    shares, losses = who_is_best(np.stack(table))
    rows = [
        Standing(name=each.name, p_best=float(share), regret=float(loss.mean()))
        for each, share, loss in zip(recipes, shares, losses, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.p_best))


def _shared(recipes: Sequence[Recipe]) -> tuple[float | None, dict[str, Fit]]:
    """Fit the recipes whose ceiling may be the best one's again, with one ceiling for all."""
    rising = [
        each
        for each in recipes
        if each.fit.form == "sigmoid" and each.fit.verdict not in (Verdict.FLAT, Verdict.FALLEN)
    ]
    best = max(rising, key=lambda each: float(np.median(each.top)), default=None)
    members = [each for each in rising if best is each or (best and np.mean(each.top > best.top) > 1 - SURE)]
    if len(members) < 2:
        return None, {}
    precision = [1.0 / max(float(np.var(each.top)), 1e-12) for each in members]
    ceiling = float(np.average([each.fit.params["ceiling"] for each in members], weights=precision))
    return ceiling, {each.name: refit(each.fit, ceiling=ceiling) for each in members}


def _pair(one: Recipe, other: Recipe, shared: Mapping[str, Fit], margin: float | None) -> Pair:
    a, b = one.fit, other.fit
    correlation = paired_correlation(one, other)
    difference = _paired(one.top - other.top, correlation)
    margin = SAME * max(min(a.gain, b.gain), 0.0) if margin is None else margin
    p_higher = float(np.mean(difference > 0))
    horizon = HORIZON * max(a.scale, b.scale)
    ahead = np.random.default_rng(1).permutation(a.curve_draws([horizon])[:, 0]) - b.curve_draws([horizon])[:, 0]
    ahead = _paired(ahead, correlation)
    ahead = ahead + np.hypot(one.spread, other.spread) * np.random.default_rng(2).standard_normal(len(ahead))
    targets = _targets(one, other)
    p_larger = float("nan")
    if one.name in shared and other.name in shared:
        mine = np.random.default_rng(3).permutation(shared[one.name].param_draws("exponent"))
        p_larger = float(np.mean(mine > shared[other.name].param_draws("exponent")))
    pair = Pair(
        a=one.name,
        b=other.name,
        kind=PairKind.NOT_SEPARABLE,
        winner=None,
        p_higher_ceiling=p_higher,
        p_higher_by_margin=float(np.mean(difference > margin)),
        ceiling_difference=summary(difference, a.level),
        margin=margin,
        p_ahead=float(np.mean(ahead > 0)),
        lead=float(np.median(ahead)),
        targets=targets,
        p_larger_exponent=p_larger,
        correlation=correlation,
        notes=(),
    )
    if one.evaluations <= other.evaluations or other.evaluations <= one.evaluations:
        return replace(pair, notes=(note(NoteKind.SAME_RUN),))
    kind, sign = _decide(pair, a, b)
    winner = {1: one.name, -1: other.name, 0: None}[sign]
    pair = replace(pair, kind=kind, winner=winner)
    return replace(pair, notes=_reasons(pair, one, other))


def _sign(probability: float) -> int:
    """Return 1 or -1 where a probability is sure, else 0."""
    return 1 if probability >= SURE else -1 if probability <= 1 - SURE else 0


def _decide(pair: Pair, a: Fit, b: Fit) -> tuple[PairKind, int]:
    """Ceilings first, or who is ahead as far as can be forecast; then efficiency."""
    for kind, probability, lead in (
        (PairKind.HIGHER_CEILING, pair.p_higher_ceiling, pair.ceiling_difference.value),
        (PairKind.AHEAD, pair.p_ahead, pair.lead),
    ):
        if _sign(probability) and abs(lead) > pair.margin:
            return kind, _sign(probability)
    if Verdict.FALLEN not in (a.verdict, b.verdict) and Verdict.FLAT not in (a.verdict, b.verdict):
        cheaper = 0 if pair.target is None else _sign(pair.target.p_less)
        if cheaper:
            return PairKind.MORE_EFFICIENT, cheaper
    return PairKind.NOT_SEPARABLE, 0


def _targets(one: Recipe, other: Recipe) -> tuple[Target, ...]:
    """Return the compute ratio at targets on the way from the higher start to the lower ceiling.

    Another run of the recipe would be higher or lower by a share of the spread, and so reach it sooner or later.
    """
    low = max(each.first for each in (one, other))
    high = min(float(np.median(each.standing)) for each in (one, other))
    if high <= low:
        return ()
    rewards = [low + share * (high - low) for share in SHARES]
    mine, theirs = (
        reach_draws(
            each.places,
            each.draws,
            np.array(rewards)
            - np.outer(np.random.default_rng(stream).standard_normal(len(each.top)) * each.spread, SHARES),
        )
        for stream, each in ((4, one), (5, other))
    )
    mine = np.random.default_rng(6).permutation(mine)
    rows = []
    for index, reward in enumerate(rewards):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = mine[:, index] / theirs[:, index]
        # Where neither ever reaches it, or both had it before training, nothing is said for either.
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        p_less = float(np.mean(ratio < 1.0) + 0.5 * np.mean(ratio == 1.0))
        rows.append(Target(reward=reward, ratio=summary(ratio, one.fit.level), p_less=p_less))
    return tuple(rows)


def _paired(difference: Array, correlation: float) -> Array:
    """Return draws of a difference, narrower by the noise that both share."""
    middle = np.median(difference)
    return middle + (difference - middle) * np.sqrt(1.0 - correlation)


def paired_correlation(one: Recipe, other: Recipe) -> float:
    """Return the correlation of the residuals at evaluations on the same prompts; 0 with fewer than eight."""
    a, b = one.fit.evaluation, other.fit.evaluation
    if a is None or b is None:
        return 0.0
    # Each label once.
    _, mine, theirs = np.intersect1d(a, b, return_indices=True)
    left, right = one.residual[mine], other.residual[theirs]
    if len(mine) < 8 or min(np.std(left), np.std(right)) <= 0:
        return 0.0
    return float(np.clip(np.corrcoef(left, right)[0, 1], 0.0, 0.95))


def measured(one: Recipe, other: Recipe) -> Note | None:
    """Return how far one was measured above the other, over the last half of the compute that both have."""
    low = max(each.fit.compute.min() for each in (one, other))
    high = min(each.fit.compute.max() for each in (one, other))
    low = max(low, 0.5 * high)
    here = [(each, (each.fit.compute >= low) & (each.fit.compute <= high)) for each in (one, other)]
    num = min(int(mine.sum()) for _, mine in here)
    if num < 2:
        return None
    # Each about its own curve, so that evaluations at other places compare too.
    middle = np.array([np.sqrt(low * high)])
    means = [each.fit.predict(middle)[0] + np.mean(each.residual[mine]) for each, mine in here]
    error = float(np.sqrt(sum(each.fit.noise_sd**2 / mine.sum() for each, mine in here)))
    difference = float(means[0] - means[1])
    ends = {"low": float(low), "high": float(high)}
    return note(NoteKind.MEASURED, a=one.name, b=other.name, difference=difference, error=error, num=num, **ends)


def _reasons(pair: Pair, one: Recipe, other: Recipe) -> tuple[Note, ...]:
    d = pair.ceiling_difference
    notes = [
        note(
            NoteKind.CEILING_DIFFERENCE,
            a=pair.a,
            b=pair.b,
            difference=d.value,
            low=d.low,
            high=d.high,
            p_higher=pair.p_higher_ceiling,
        )
    ]
    target = pair.target
    if target is not None:
        notes.append(
            note(
                NoteKind.COMPUTE_RATIO,
                a=pair.a,
                b=pair.b,
                reward=target.reward,
                ratio=target.ratio.value,
                low=target.ratio.low,
                high=target.ratio.high,
                p_less=target.p_less,
            )
        )
    if not np.isnan(pair.p_larger_exponent):
        notes.append(note(NoteKind.EXPONENT, a=pair.a, b=pair.b, p_larger=pair.p_larger_exponent))
    found = measured(one, other)
    if found is not None:
        notes.append(found)
    if pair.kind == PairKind.NOT_SEPARABLE:
        notes.append(_decided_by(pair, one, other))
    single = tuple(each.name for each in (one, other) if each.fit.run_sd is None)
    if single:
        notes.append(note(NoteKind.RUN_SPREAD, names=single, sd=max(one.spread, other.spread)))
    if pair.correlation > 0:
        notes.append(note(NoteKind.SAME_PROMPTS, correlation=pair.correlation))
    crossing = crossing_compute(one, other)
    if crossing is not None:
        notes.append(note(NoteKind.CROSSING, compute=crossing))
    return tuple(notes)


def _decided_by(pair: Pair, one: Recipe, other: Recipe) -> Note:
    """Return what would decide: so many seeds each, if the spread between runs is in the way, else more compute.

    Both are None where the ceilings are too alike for either.
    """
    wanted = max(abs(pair.ceiling_difference.value), pair.margin) / 1.6449
    between = float(np.linalg.norm([each.spread * np.sqrt(each.fit.num_runs) for each in (one, other)]))
    inside = float(np.linalg.norm([np.std(each.standing) for each in (one, other)]))
    seeds = None
    if wanted > 0 and between > 0.5 * wanted:
        seeds = max(int(np.ceil((between / wanted) ** 2 * 2)), min(one.fit.num_runs, other.fit.num_runs) + 1)
    times = None
    if inside > 0.5 * wanted:
        needed = [compute_to_know(replace(curve, margin=max(wanted, 1e-9))) for curve in (one.fit, other.fit)]
        times = None if None in needed else max(each for each in needed if each is not None)
    return note(NoteKind.DECIDED_BY, seeds=seeds if seeds is not None and seeds <= 32 else None, times=times)


def crossing_compute(one: Recipe, other: Recipe) -> float | None:
    """Return the last compute at which the curves cross, between the first point and the horizon; None if not."""
    a, b = one.fit, other.fit
    places = np.geomspace(max(a.compute.min(), b.compute.min()), HORIZON * max(a.scale, b.scale), 80)
    mine, theirs = (np.interp(np.log(places), np.log(each.places), each.middle) for each in (one, other))
    gap = mine - theirs
    size = 0.02 * max(a.gain, b.gain, 1e-12)
    clear = np.flatnonzero(np.abs(gap) > size)
    turns = [(i, j) for i, j in pairwise(clear) if np.sign(gap[i]) != np.sign(gap[j])]
    return float(np.sqrt(places[turns[-1][0]] * places[turns[-1][1]])) if turns else None


def linearise(curve: Fit) -> tuple[Array, Array]:
    """log C and log F, a straight line of slope B where the sigmoid holds (arXiv 2510.13786, fig. 5).

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B

    Points at or beyond the start or the ceiling have no F and are left out.
    """
    if curve.form != "sigmoid":
        raise ValueError(f"only a sigmoid can be linearised, not {curve.form}")
    ceiling, start = curve.params["ceiling"], curve.params["start"]
    inside = (curve.reward > start) & (curve.reward < ceiling)
    odds = (ceiling - start) / (curve.reward[inside] - start) - 1.0
    return np.log(curve.compute[inside]), curve.params["exponent"] * np.log(curve.params["midpoint"]) - np.log(odds)


# The paper's own comparison, by point estimates -----------------------------------------------------------------------

PAPER_MARGIN = 0.02


def compare_by_paper(fits: Mapping[str, Fit], *, margin: float = PAPER_MARGIN) -> Comparison:
    """Compare fits of method="paper" two by two; share a ceiling among those within the margin of the best."""
    usable = {name: curve for name, curve in fits.items() if curve.usable}
    pairs = tuple(
        _paper_pair(a, b, fits, margin) if a in usable and b in usable else no_pair(a, b, fits)
        for a, b in combinations(fits, 2)
    )
    ceilings = {name: curve.params["ceiling"] for name, curve in usable.items()}
    near = [name for name, ceiling in ceilings.items() if ceiling >= max(ceilings.values()) - margin - 1e-9]
    if len(near) < 2:
        return Comparison(pairs=pairs, standings=(), shared_ceiling=None, shared_fits={})
    shared = float(np.mean([ceilings[name] for name in near]))
    refits = {name: _paper_refit(usable[name], shared) for name in near}
    return Comparison(pairs=pairs, standings=(), shared_ceiling=shared, shared_fits=refits)


def _paper_pair(name_a: str, name_b: str, fits: Mapping[str, Fit], margin: float) -> Pair:
    a, b = fits[name_a], fits[name_b]
    lead = a.params["ceiling"] - b.params["ceiling"]
    difference, kind = lead, PairKind.HIGHER_CEILING
    if abs(difference) <= margin + 1e-9:
        ceiling = (a.params["ceiling"] + b.params["ceiling"]) / 2
        lead = _paper_refit(a, ceiling).params["exponent"] - _paper_refit(b, ceiling).params["exponent"]
        kind = PairKind.MORE_EFFICIENT if lead else PairKind.NOT_SEPARABLE
    nan = float("nan")
    return replace(
        no_pair(name_a, name_b, fits),
        kind=kind,
        winner=None if not lead else name_a if lead > 0 else name_b,
        ceiling_difference=Value(value=difference, low=nan, high=nan),
        margin=margin,
        notes=(),
    )


def _paper_refit(curve: Fit, ceiling: float) -> Fit:
    """Fit exponent and midpoint again with this ceiling, by the paper's grid."""
    grid = Grid(ceilings=np.array([ceiling]))
    return fit(curve.compute, curve.reward, start=curve.start, bounds=curve.bounds, method="paper", grid=grid)
