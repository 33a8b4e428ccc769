"""Which of several curves to take, and what speaks against it: one rule and one sentence for terminal and report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scalerl.curves import Comparison, Note, NoteKind, Pair, PairKind, find_note, note_text
from scalerl.logs.frame import listed
from scalerl.report.numbers import compute_text, fixed, probability_text

BEATEN = (PairKind.HIGHER_CEILING, PairKind.AHEAD)
"""Verdicts that leave no choice: the loser ends lower. A more efficient curve ends at the same ceiling."""
OPEN = (PairKind.NOT_SEPARABLE, PairKind.NOT_COMPARABLE)
NEVER = (PairKind.NO_CURVE, PairKind.NOT_COMPARABLE)


class LeadKind(StrEnum):
    """How the first curve stands among the others."""

    TAKE = "take"
    """Every other ends lower."""
    EFFICIENT = "efficient"
    """Some may end as high, and need more compute."""
    TIED = "tied"
    """Some are not separable from it."""
    ALONE = "alone"
    """Compared with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    kind: LeadKind
    name: str
    tied: tuple[str, ...] = ()
    """Curves that may end as high."""
    num: int = 1
    """Curves that it was compared with, and itself."""
    p_best: float | None = None
    """None where curves have no intervals."""
    regret: float | None = None
    """Reward that taking it now is expected to lose."""
    decided_by: Note | None = None
    """What would separate it from the first that is tied."""


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


def lead(
    comparison: Comparison, names: Sequence[str], *, at: float | None = None, base: str | None = None
) -> Lead | None:
    """Return which of the curves leads; `base` where none is known to be better. None without a curve."""
    if not names:
        return None
    best, *_ = order = ranked(comparison, names, at)
    pair = pair_of(comparison, best, base or "")
    beaten = {each.loser for each in comparison.pairs if each.kind in BEATEN}
    if pair is not None and pair.kind in OPEN and base is not None and base in names and base not in beaten:
        best = base
    rivals = {name: pair for name in order if (pair := pair_of(comparison, best, name)) and pair.kind not in NEVER}
    tied = tuple(name for name, pair in rivals.items() if pair.winner is None)
    slower = (
        ()
        if at is not None
        else tuple(
            name for name, pair in rivals.items() if pair.kind == PairKind.MORE_EFFICIENT and pair.winner == best
        )
    )
    kind = LeadKind.TIED if tied else LeadKind.EFFICIENT if slower else LeadKind.TAKE
    standing = next((each for each in comparison.standings if each.name == best), None)
    return Lead(
        kind=kind if rivals else LeadKind.ALONE,
        name=best,
        tied=tied or slower,
        num=len(rivals) + 1,
        p_best=None if standing is None else standing.p_best,
        regret=None if standing is None else standing.regret,
        decided_by=find_note(rivals[tied[0]].notes, NoteKind.DECIDED_BY) if tied else None,
    )


def lead_text(lead: Lead, decimals: int, at: float | None = None) -> str:
    """Return which curve to take, or what would decide, without a full stop; costs have `decimals` decimals."""
    if lead.p_best is None or lead.regret is None:
        return f"{lead.name} leads"
    if lead.kind == LeadKind.ALONE:
        return f"There is no curve to compare {lead.name} with"
    if lead.kind == LeadKind.EFFICIENT:
        return f"Take {lead.name}: it needs less compute than {listed(lead.tied)}, and none is clearly higher"
    odds = f"best{'' if at is None else f' at {compute_text(at)}'} with probability {probability_text(lead.p_best)}"
    if lead.kind == LeadKind.TAKE:
        return f"Take {lead.name}: {odds}"
    decide = "" if lead.decided_by is None else f". {note_text(lead.decided_by).removesuffix('.')}"
    cost = f"taking it now should cost {fixed(decimals)(lead.regret)}"
    return f"{lead.name} leads, but is not separable from {listed(lead.tied)}: {odds}; {cost}{decide}"


def pair_of(comparison: Comparison, a: str, b: str) -> Pair | None:
    """Return the comparison of two curves, in whichever order it was made."""
    return next((pair for pair in comparison.pairs if {pair.a, pair.b} == {a, b}), None)
