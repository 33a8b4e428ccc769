"""Which recipe to scale: ceilings first, then efficiency at a shared ceiling, and "not separable" as an answer.

The paper's rule (arXiv 2510.13786, 1.1 and A.5): prefer the higher ceiling where ceilings differ by more than 0.02;
otherwise fit both with one ceiling, and the larger exponent is at least as efficient. Here each step is a probability
from the joint draws of both fits, with the spread between runs of one recipe included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from scalerl.curves.fit import fit
from scalerl.curves.fitted import Fit
from scalerl.curves.forecast import Value
from scalerl.curves.forms import Array
from scalerl.curves.pairs import notes
from scalerl.curves.pairs.notes import PairKind, PairNote
from scalerl.curves.pairs.pairing import (
    Evidence,
    crossing_compute,
    gather_evidence,
    normal_numbers,
    paired_correlation,
    spread_sd,
)
from scalerl.curves.words import note_text, pair_verdict

CEILING_MARGIN = 0.02  # what the paper takes for a difference between ceilings
RUN_SD = 0.01  # spread of the ceiling between runs of one recipe, from the paper's three repeats
SURE = 0.985  # probability from which a difference decides: 3 % for both directions together
ALIKE = 0.5  # probability from which two ceilings may be treated as equal
BENT = 0.9  # probability of having passed the midpoint, from which the lower of two ceilings may be called lower
LEANING = 0.2  # an exponent that probably points the other way contradicts the midpoint


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
    p_more_efficient: float
    """Probability that a's exponent is above b's, given one ceiling for both."""
    p_sooner: float
    """Probability that a's midpoint lies before b's, given one ceiling for both."""
    ceiling_difference: float
    """Median of a's ceiling minus b's."""
    correlation: float
    """Correlation of the residuals, where both were evaluated on the same prompts; 0 elsewhere."""
    notes: tuple[PairNote, ...]
    assumed_run_sd: float | None
    """The spread between runs that was assumed, where one side has a single run."""
    shared: bool
    """Whether the efficiencies hold at one ceiling for both; False where the ceilings are too far apart."""
    probably_higher: str | None
    """The curve whose ceiling is probably higher by more than the margin, whether or not that is sure."""
    crossing: float | None
    """Compute at which the curves cross, between the first point and 30 times the last; None if they do not."""

    @property
    def loser(self) -> str | None:
        return None if self.winner is None else self.b if self.winner == self.a else self.a

    @property
    def verdict(self) -> str:
        return pair_verdict(self.kind, self.winner)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(note_text(note) for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    pairs: tuple[Pair, ...]
    ranking: tuple[tuple[str, float], ...]
    """Names with the probability to be the best (by ceiling, or at the target compute), most likely first."""
    shared_ceiling: float | None
    """Mean ceiling of the recipes whose ceiling cannot be distinguished from the best one's."""
    shared_fits: dict[str, Fit]
    """The same recipes refitted with that ceiling."""

    @property
    def shared_exponents(self) -> dict[str, Value]:
        values = {}
        for name, refitted in self.shared_fits.items():
            low, high = refitted.interval("exponent")
            values[name] = Value(value=refitted.params["exponent"], low=low, high=high)
        return values


def compare(
    fits: Mapping[str, Fit], *, at: float | None = None, margin: float = CEILING_MARGIN, run_sd: float = RUN_SD
) -> Comparison:
    """Compare fits two by two, and rank them all by ceiling or, with `at`, by the reward at that compute."""
    usable = {name: curve for name, curve in fits.items() if curve.usable and curve.draws is not None}
    pairs = tuple(
        _pair(a, b, usable[a], usable[b], margin, run_sd) if a in usable and b in usable else no_pair(a, b, fits)
        for a, b in combinations(fits, 2)
    )
    ranking = _rank(usable, at, run_sd)
    shared_ceiling, shared_fits = _share_ceiling(usable, pairs, ranking)
    return Comparison(pairs=pairs, ranking=ranking, shared_ceiling=shared_ceiling, shared_fits=shared_fits)


def no_pair(a: str, b: str, fits: Mapping[str, Fit]) -> Pair:
    """Return a pair without a verdict, with the reason."""
    unusable = [name for name in (a, b) if not fits[name].usable]
    reasons = tuple(notes.NoCurve(name=name, verdict=fits[name].verdict) for name in unusable)
    nan = float("nan")
    return Pair(
        a=a,
        b=b,
        kind="no_curve",
        winner=None,
        p_higher_ceiling=nan,
        p_more_efficient=nan,
        p_sooner=nan,
        ceiling_difference=nan,
        correlation=0.0,
        notes=reasons or (notes.NoIntervals(),),
        assumed_run_sd=None,
        shared=False,
        probably_higher=None,
        crossing=None,
    )


def _pair(name_a: str, name_b: str, a: Fit, b: Fit, margin: float, run_sd: float) -> Pair:
    if name_b < name_a:
        # Compute each pair in one order only, so that swapping a and b gives the same numbers to the last digit.
        return _swapped(_pair(name_b, name_a, b, a, margin, run_sd))
    span = max(a.bounds[1] - a.bounds[0], b.bounds[1] - b.bounds[0])
    correlation = paired_correlation(a, b)
    evidence = gather_evidence(name_a, name_b, a, b, margin * span, run_sd * span, correlation)
    decision = _supported(_decide(evidence), evidence)
    reasons = list(decision.notes)
    for name, curve in ((name_a, a), (name_b, b)):
        if curve.past_peak:
            reasons.append(notes.PastPeak(name=name, best=float(curve.predict(curve.scale)), compute=curve.scale))
    assumed = run_sd * span if min(a.num_runs, b.num_runs) == 1 and run_sd > 0 else None
    if assumed is not None:
        single = tuple(name for name, curve in ((name_a, a), (name_b, b)) if curve.num_runs == 1)
        reasons.append(notes.AssumedRunSpread(names=single, sd=assumed))
    if correlation > 0:
        reasons.append(notes.SamePrompts(correlation=correlation))
    crossing = crossing_compute(a, b, span)
    if crossing is not None:
        reasons.append(notes.Crossing(compute=crossing))
    return Pair(
        a=name_a,
        b=name_b,
        kind=decision.kind,
        winner=decision.winner,
        p_higher_ceiling=evidence.p_higher,
        p_more_efficient=evidence.p_steeper,
        p_sooner=evidence.p_sooner,
        ceiling_difference=evidence.gap,
        correlation=correlation,
        notes=tuple(reasons),
        assumed_run_sd=assumed,
        shared=evidence.shared,
        probably_higher=evidence.probably_higher,
        crossing=crossing,
    )


def _swapped(pair: Pair) -> Pair:
    return replace(
        pair,
        a=pair.b,
        b=pair.a,
        p_higher_ceiling=1 - pair.p_higher_ceiling,
        p_more_efficient=1 - pair.p_more_efficient,
        p_sooner=1 - pair.p_sooner,
        ceiling_difference=-pair.ceiling_difference,
    )


# The verdict on a pair ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    kind: PairKind
    winner: str | None = None
    notes: tuple[PairNote, ...] = ()


def _decide(evidence: Evidence) -> _Decision:
    """Decide by ceiling if that is certain, else by efficiency if the ceilings may be equal, else not separable."""
    sure = max(evidence.p_higher, 1 - evidence.p_higher)
    higher, (lower, lower_fit) = evidence.probably_higher, evidence.lower
    lower_has_bent = _has_bent(lower_fit)
    if higher is not None and sure >= SURE and lower_has_bent:
        difference = notes.CeilingDifference(winner=higher, difference=abs(evidence.gap))
        return _Decision(kind="higher_ceiling", winner=higher, notes=(difference,))
    sides = ((evidence.name_a, evidence.a), (evidence.name_b, evidence.b))
    unstable = tuple(notes.Unstable(name=name) for name, curve in sides if curve.verdict == "unstable")
    if unstable or any(curve.falls for _, curve in sides):
        return _Decision(kind="not_separable", notes=unstable)
    without = tuple(
        notes.NoEfficiency(name=name, verdict=curve.verdict)
        for name, curve in sides
        if curve.verdict in ("no rise seen", "lack of fit")
    )
    if without:
        return _Decision(kind="not_separable", notes=without)
    by_efficiency = _by_efficiency(evidence)
    if higher is None:
        if evidence.p_alike >= ALIKE or by_efficiency.kind == "not_separable":
            return by_efficiency
        if_shared = notes.IfCeilingShared(verdict=by_efficiency.kind, winner=by_efficiency.winner)
        return _Decision(kind="not_separable", notes=(if_shared,))
    probably = notes.ProbablyHigher(
        name=higher,
        difference=abs(evidence.gap),
        probability=sure,
        before_midpoint=None if lower_has_bent else lower,
    )
    # At a ceiling that is probably not shared, efficiency decides only for the curve with the higher ceiling.
    if lower_has_bent and by_efficiency.winner == higher:
        return replace(by_efficiency, notes=(probably,))
    return _Decision(kind="not_separable", notes=(probably,))


def _supported(decision: _Decision, evidence: Evidence) -> _Decision:
    """Return the decision with the measured fact behind it, or none where the measurements do not support it."""
    measured = evidence.measured
    if measured is None:
        if decision.winner is None:
            return decision
        return replace(decision, notes=(*decision.notes, notes.NotMeasuredTogether()))
    if measured.same_run:
        return _Decision(kind="not_separable", notes=(notes.SameRun(),))
    a_is_higher = measured.difference > 0
    fact = notes.MeasuredDifference(
        higher=evidence.name_a if a_is_higher else evidence.name_b,
        lower=evidence.name_b if a_is_higher else evidence.name_a,
        difference=abs(measured.difference),
        error=measured.error,
        num_places=measured.num_places,
        low=measured.low,
        high=measured.high,
    )
    if decision.winner is not None:
        sign = 1 if decision.winner == evidence.name_a else -1
        reason = None
        if measured.lower_everywhere(sign):
            reason = "lower_everywhere"
        elif decision.kind == "more_efficient" and not measured.higher_somewhere(sign):
            reason = "nowhere_higher"
        if reason is not None:
            unsupported = notes.NotMeasured(name=decision.winner, reason=reason)
            return _Decision(kind="not_separable", notes=(unsupported, fact))
    return replace(decision, notes=(*decision.notes, fact))


def _has_bent(curve: Fit) -> bool:
    """Return whether the run has passed its midpoint, or its peak: before that, its ceiling is what the prior makes."""
    if curve.past_peak or curve.draws is None or "midpoint" not in curve.draws.params:
        return True
    return float(np.mean(curve.draws.params["midpoint"] <= curve.scale)) >= BENT


def _by_efficiency(evidence: Evidence) -> _Decision:
    """Return the cheaper curve at a shared ceiling: by the larger exponent, or the earlier midpoint if they tie."""
    is_steeper, is_sooner = (max(p, 1 - p) >= SURE for p in (evidence.p_steeper, evidence.p_sooner))
    if (is_steeper or is_sooner) and not (evidence.exponents_known or evidence.midpoints_known):
        return _Decision(kind="not_separable", notes=(notes.KnownFromPrior(param="midpoint"),))
    is_steeper, is_sooner = is_steeper and evidence.exponents_known, is_sooner and evidence.midpoints_known
    first, second = evidence.ordered(evidence.p_sooner)
    p_first_steeper = evidence.p_steeper if first == evidence.name_a else 1 - evidence.p_steeper
    if is_sooner and p_first_steeper < LEANING:
        mixed = notes.MixedEfficiency(sooner=first, steeper=second)
        if is_steeper:
            return _Decision(kind="more_efficient", winner=second, notes=(mixed,))
        return _Decision(kind="not_separable", notes=(mixed,))
    if is_steeper:
        steeper, _ = evidence.ordered(evidence.p_steeper)
        return _Decision(kind="more_efficient", winner=steeper, notes=(notes.LargerExponent(winner=steeper),))
    if is_sooner:
        ratio = evidence.a.params["midpoint"] / evidence.b.params["midpoint"]
        ratio = ratio if first == evidence.name_a else 1 / ratio
        return _Decision(kind="more_efficient", winner=first, notes=(notes.EarlierMidpoint(winner=first, ratio=ratio),))
    return _Decision(kind="not_separable")


# All curves together --------------------------------------------------------------------------------------------------


def _rank(fits: Mapping[str, Fit], at: float | None, run_sd: float) -> tuple[tuple[str, float], ...]:
    """Return the names with the share of joint draws in which each is the best, best first."""
    if not fits:
        return ()
    columns = []
    for stream, curve in enumerate(fits.values(), start=10):
        assert curve.draws is not None
        spread = spread_sd(curve, run_sd * (curve.bounds[1] - curve.bounds[0]))
        value = curve.best_draws if at is None else curve.curve_draws([at])[:, 0]
        if at is not None and curve.own_form.rising:
            gain = curve.params["ceiling"] - curve.params["start"]
            spread *= (curve.predict(at) - curve.params["start"]) / gain if gain > 0 else 1.0
        value = np.random.default_rng(stream).permutation(value)
        columns.append(value + spread * normal_numbers(len(value), stream + 1000))
    best = np.argmax(np.stack(columns), axis=0)
    shares = np.bincount(best, minlength=len(columns)) / len(best)
    return tuple(sorted(zip(fits, shares.tolist(), strict=True), key=lambda row: -row[1]))


def _share_ceiling(
    fits: Mapping[str, Fit], pairs: tuple[Pair, ...], ranking: tuple[tuple[str, float], ...]
) -> tuple[float | None, dict[str, Fit]]:
    """Refit, with one ceiling, the recipes whose ceiling cannot be distinguished from the best one's."""
    if len(ranking) < 2:
        return None, {}
    best = max(fits, key=lambda name: (fits[name].verdict == "ok", fits[name].params["ceiling"]))
    apart = {name for pair in pairs for name in (pair.a, pair.b) if pair.probably_higher == best}
    members = [name for name in fits if name == best or name not in apart]
    members = [name for name in members if fits[name].form == "sigmoid" and fits[name].verdict == "ok"]
    if len(members) < 2:
        return None, {}
    # Weighted by the inverse square of the interval's width.
    precision = [np.diff(fits[name].interval("ceiling"))[0] ** -2 for name in members]
    ceiling = float(np.average([fits[name].params["ceiling"] for name in members], weights=precision))
    return ceiling, {name: refit(fits[name], ceiling) for name in members}


def refit(curve: Fit, ceiling: float) -> Fit:
    """Fit the same points again with the ceiling held fixed."""
    return fit(
        curve.compute,
        curve.reward,
        start=curve.params["start"] if curve.start_given else None,
        start_sd=curve.start_sd,
        num_samples=curve.num_samples,
        error=curve.error,
        form=curve.form,
        mend=False,
        fixed={"ceiling": ceiling},
        run=curve.run,
        level=curve.level,
        margin=curve.margin,
        bounds=curve.bounds,
    )


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
