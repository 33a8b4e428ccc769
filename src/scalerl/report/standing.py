"""Which curve of a view leads, and how its pairs compare: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scalerl.curves import Pair, PairKind
from scalerl.report.views import Report, View

BEATEN = (PairKind.HIGHER_CEILING, PairKind.AHEAD)
"""Verdicts that leave no choice: the loser ends lower. A more efficient curve ends at the same ceiling."""
OPEN = (PairKind.NOT_SEPARABLE, PairKind.NOT_COMPARABLE)


class LeadKind(StrEnum):
    """How the first curve of a view stands among the others."""

    HIGHEST_CEILING = "highest_ceiling"
    AHEAD = "ahead"
    """Above all others as far as can be forecast."""
    TIED = "tied"
    """No other is above it, and some are not below."""
    ALONE = "alone"
    """Compared with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    kind: LeadKind
    name: str
    tied: tuple[str, ...] = ()
    num: int = 1
    """Curves that it was compared with, and itself."""


def reference(report: Report, evaluation_set: str) -> str | None:
    """Return the curve that the others are compared with: the study's base, else the best."""
    view = report.view(evaluation_set)
    names = [curve.name for curve in view.analysis.curves]
    return report.material.base if report.material.base in names else next(iter(leaders(view)), None)


def leaders(view: View) -> list[str]:
    """Return the curves that no other beats, the most efficient first, then the most likely best.

    The paper's rule: the higher ceiling first, efficiency among equals.
    """
    pairs = view.analysis.pairs
    beaten = {pair.loser for pair in pairs if pair.kind in BEATEN}
    members = [curve.name for curve in view.analysis.curves if curve.usable and curve.name not in beaten]
    wins = dict.fromkeys(members, 0)
    for pair in pairs:
        if pair.kind == PairKind.MORE_EFFICIENT and pair.winner in wins and pair.loser in wins:
            wins[pair.winner] += 1
            wins[pair.loser] -= 1
    p_best = dict(view.analysis.ranking)
    return sorted(members, key=lambda name: (-wins[name], -p_best.get(name, 0.0)))


def lead(report: Report, evaluation_set: str) -> Lead | None:
    """Return which curve leads; the study's base where the best is not known to be better. None without a curve."""
    view = report.view(evaluation_set)
    ordered = leaders(view)
    if not ordered:
        return None
    base = reference(report, evaluation_set)
    pair = pair_of(view, ordered[0], base) if base is not None else None
    best = base if base in ordered and pair is not None and pair.kind in OPEN else ordered[0]
    assert best is not None
    rivals = rivals_of(view, best)
    if not rivals:
        return Lead(kind=LeadKind.ALONE, name=best)
    kinds = {pair.kind for pair in rivals.values()}
    tied = tuple(name for name, pair in rivals.items() if pair.kind not in BEATEN)
    if tied:
        kind = LeadKind.TIED
    else:
        kind = LeadKind.HIGHEST_CEILING if kinds == {PairKind.HIGHER_CEILING} else LeadKind.AHEAD
    return Lead(kind=kind, name=best, tied=tied, num=len(rivals) + 1)


def rivals_of(view: View, name: str) -> Mapping[str, Pair]:
    """Return the pairs of a curve by the name of the other, without those that cannot be compared."""
    pairs = {pair.b if pair.a == name else pair.a: pair for pair in view.analysis.pairs if name in (pair.a, pair.b)}
    never = (PairKind.NO_CURVE, PairKind.NOT_COMPARABLE)
    return {other: pair for other, pair in pairs.items() if pair.kind not in never}


def pair_of(view: View, a: str, b: str) -> Pair | None:
    """Return the comparison of two curves, in whichever order it was made."""
    return next((pair for pair in view.analysis.pairs if {pair.a, pair.b} == {a, b}), None)


def is_confirmed(claim: Pair, later: Pair) -> bool:
    """Return whether a later comparison confirms a claim; a curve that is ahead may turn out to be higher."""
    if claim.winner is None:
        return True
    kinds = [PairKind.MORE_EFFICIENT, PairKind.AHEAD, PairKind.HIGHER_CEILING]
    return later.winner == claim.winner and kinds.index(later.kind) >= kinds.index(claim.kind)
