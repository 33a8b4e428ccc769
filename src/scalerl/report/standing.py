"""Which curves of a view lead, and how its pairs compare: values only."""

from scalerl.curves import Pair
from scalerl.curves.verdicts import FALLEN
from scalerl.report.views import Report, View, label_of

# Curves with these verdicts lead only where no other does, in this order.
DOUBT = {"ceiling not identifiable yet": 1, "lack of fit": 2, "no rise seen": 3}


def labels(view: View) -> dict[str, str]:
    """Return what each curve is called in the report, by name."""
    return {curve.name: label_of(curve.series) for curve in view.analysis.curves}


def reference(report: Report, evaluation_set: str) -> str | None:
    """Return the curve that the others are compared with: the study's base, else the best."""
    view = report.view(evaluation_set)
    base = [name for name, label in labels(view).items() if label == report.material.base]
    return next(iter(base or leaders(view)), None)


def leaders(view: View) -> list[str]:
    """Return the stable curves whose ceiling no other stable curve beats: known ceilings first, most efficient first.

    The paper's rule: the higher ceiling first, efficiency among equals.
    """
    stable = {curve.name: curve for curve in view.analysis.curves if curve.usable and curve.verdict not in FALLEN}
    pairs = view.analysis.pairs
    beaten = {pair.loser for pair in pairs if pair.kind == "higher_ceiling" and pair.winner in stable}
    members = [name for name in stable if name not in beaten]
    wins = dict.fromkeys(members, 0)
    for pair in pairs:
        if pair.kind == "more_efficient" and pair.winner in wins and pair.loser in wins:
            wins[pair.winner] += 1
            wins[pair.loser] -= 1
    p_best = dict(view.analysis.ranking)
    doubt = {name: DOUBT.get(stable[name].verdict, 0) for name in members}
    return sorted(members, key=lambda name: (doubt[name], -wins[name], -p_best.get(name, 0.0)))


def pair_of(view: View, a: str, b: str) -> Pair | None:
    """Return the comparison of two curves, in whichever order it was made."""
    return next((pair for pair in view.analysis.pairs if {pair.a, pair.b} == {a, b}), None)


def is_confirmed(claim: Pair, later: Pair) -> bool:
    """Return whether a later comparison confirms a claim; a more efficient curve may also have a higher ceiling."""
    if claim.kind == "more_efficient":
        return later.winner == claim.winner and later.kind in ("more_efficient", "higher_ceiling")
    return claim.kind != "higher_ceiling" or (later.kind, later.winner) == (claim.kind, claim.winner)
