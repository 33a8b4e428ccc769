"""Which of several curves leads, and how the others stand to it: one rule for the terminal and the report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scalerl.curves import Comparison, Pair, PairKind

BEATEN = (PairKind.HIGHER_CEILING, PairKind.AHEAD)
"""Verdicts that leave no choice: the loser ends lower. A more efficient curve ends at the same ceiling."""
OPEN = (PairKind.NOT_SEPARABLE, PairKind.NOT_COMPARABLE)
NEVER = (PairKind.NO_CURVE, PairKind.NOT_COMPARABLE)


class LeadKind(StrEnum):
    """How the first curve stands among the others."""

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


def ranked(comparison: Comparison, names: Sequence[str], at: float | None = None) -> list[str]:
    """Return curves, the best first.

    The paper's rule: the higher ceiling first, efficiency among equals; then the most likely best. At a compute that
    was asked for, the last alone.
    """
    p_best, wins = dict(comparison.ranking), Counter()
    beaten = {pair.loser for pair in comparison.pairs if pair.kind in BEATEN}
    for pair in comparison.pairs:
        if pair.kind == PairKind.MORE_EFFICIENT and not beaten & {pair.a, pair.b}:
            wins[pair.winner] += 1
            wins[pair.loser] -= 1
    rule = (lambda name: (name in beaten, -wins[name])) if at is None else lambda name: ()
    return sorted(names, key=lambda name: (*rule(name), -p_best.get(name, 0.0)))


def lead(comparison: Comparison, names: Sequence[str], base: str | None = None) -> Lead | None:
    """Return which of the curves leads; `base` where the best is not known to be better. None without a curve."""
    if not names:
        return None
    best = ranked(comparison, names)[0]
    pair = pair_of(comparison, best, base or "")
    if pair is not None and pair.kind in OPEN and base in names:
        best = pair.a if pair.b == best else pair.b
    rivals = {name: pair for name in names if (pair := pair_of(comparison, best, name)) and pair.kind not in NEVER}
    tied = tuple(name for name, pair in rivals.items() if pair.kind not in BEATEN)
    if not rivals or tied:
        return Lead(kind=LeadKind.TIED if rivals else LeadKind.ALONE, name=best, tied=tied, num=len(rivals) + 1)
    is_higher = {pair.kind for pair in rivals.values()} == {PairKind.HIGHER_CEILING}
    return Lead(kind=LeadKind.HIGHEST_CEILING if is_higher else LeadKind.AHEAD, name=best, num=len(rivals) + 1)


def pair_of(comparison: Comparison, a: str, b: str) -> Pair | None:
    """Return the comparison of two curves, in whichever order it was made."""
    return next((pair for pair in comparison.pairs if {pair.a, pair.b} == {a, b}), None)
