"""The paragraph at the top of a report: which curve leads, how the others compare, and how forecasts did."""

import math
from collections.abc import Mapping, Sequence

from scalerl.analysis.numbers import decimals, fixed, probability_text
from scalerl.analysis.results import CurveResult, param_value
from scalerl.analysis.words import join_names
from scalerl.curves import Pair, PairKind, pair_verdict
from scalerl.report.inputs import ARM
from scalerl.report.runs import NOT_STARTED
from scalerl.report.standing import is_confirmed, labels, leaders, pair_of, reference
from scalerl.report.views import ALL, Report, View

_OPEN, _MISFIT, _FLAT = "ceiling not identifiable yet", "lack of fit", "no rise seen"
Labels = Mapping[str, str]


def summary(report: Report, evaluation_set: str) -> list[str]:
    """Return the main conclusions as sentences; the first says which curve leads."""
    view = report.view(evaluation_set)
    label = labels(view)
    ordered = _base_before_ties(report, view, evaluation_set)
    if ordered:
        sentences = [_lead(view, ordered, label), *_others(view, ordered[0], label)]
    elif any(curve.usable for curve in view.analysis.curves):
        sentences = ["No curve is steady."]
    else:
        sentences = ["There is no curve yet."]
    sentences += _without_ceiling(view.analysis.curves, label, _arms_without_rows(report))
    failed = [run.name for run in report.material.runs if run.status == "failed"]
    sentences += [f"Failed: {join_names(failed)}."] if failed else []
    return sentences + _forecast_scores(view) + _unconfirmed(report, view, label)


def _base_before_ties(report: Report, view: View, evaluation_set: str) -> list[str]:
    """Return the leaders; the base first where the best is not known to be better.

    Between ceilings that are not known, or were measured on different prompts, there is no leader.
    """
    ordered = leaders(view)
    base = reference(report, evaluation_set)
    if base not in ordered:
        return ordered
    pair = pair_of(view, ordered[0], base)
    verdict = next(curve.verdict for curve in view.analysis.curves if curve.name == ordered[0])
    is_tied = pair is not None and verdict == _OPEN and pair.kind == "not_separable"
    if is_tied or (pair is not None and pair.kind == "not_comparable"):
        return [base, *(name for name in ordered if name != base)]
    return ordered


def _lead(view: View, ordered: Sequence[str], label: Labels) -> str:
    """Return the sentence on the first curve; `ordered` are the curves that no other beats."""
    best, others = ordered[0], ordered[1:]
    curve = next(curve for curve in view.analysis.curves if curve.name == best)
    ceiling = _ceiling_text(curve)
    levels_off = f"levels off at {ceiling}"
    if curve.verdict == _OPEN:
        levels_off = f"has a ceiling that is not known closely yet, {ceiling}"
    elif curve.verdict == _MISFIT:
        levels_off = f"does not follow its curve, and over several ways to fit it has a ceiling of {ceiling}"
    elif curve.verdict == _FLAT:
        return f"{label[best]} shows no rise, and no other curve is better known."
    p_best = {name: share for name, share in view.analysis.ranking if name in _well_known(view) or name == best}
    pairs = {name: pair for name in p_best if name != best and (pair := pair_of(view, best, name)) is not None}
    is_above = {name: pair.kind == "higher_ceiling" and pair.winner == best for name, pair in pairs.items()}
    if pairs and all(is_above.values()):
        probability = probability_text(p_best[best])
        return (
            f"{label[best]} has the highest ceiling of {len(p_best)} curves with probability {probability}: {ceiling}."
        )
    tied = [name for name in others if name in pairs and pairs[name].kind != "not_comparable"]
    if not tied:
        return f"{label[best]} {levels_off}."
    if len(tied) == len(pairs):
        rest = "the other cannot" if len(tied) == 1 else "the others cannot"
        return (
            f"No ceiling stands out among {len(p_best)} curves: {label[best]} {levels_off}, and {rest} be told from it "
            f"by ceiling."
        )
    names = join_names([label[name] for name in (best, *tied)])
    highest = ", the highest here" if all(is_above[name] for name in pairs if name not in tied) else ""
    return f"{names} cannot be told apart by their ceiling{highest}: {label[best]} {levels_off}."


def _well_known(view: View) -> list[str]:
    """Return the curves with a meaningful ceiling: those that rise and follow their form."""
    return [curve.name for curve in view.analysis.curves if curve.usable and curve.verdict not in (_MISFIT, _FLAT)]


def _ceiling_text(curve: CurveResult) -> str:
    ceiling = param_value(curve.fit, "ceiling")
    assert curve.fit is not None
    assert ceiling is not None
    show = fixed(decimals(curve.fit))
    return f"{show(ceiling.value)} ({curve.fit.level:.0%} between {show(ceiling.low)} and {show(ceiling.high)})"


def _others(view: View, best: str, label: Labels) -> list[str]:
    """Return how the other curves compare with the first, one sentence for each way."""
    groups: dict[tuple[PairKind, bool, bool], list[str]] = {}
    for name in _well_known(view):
        pair = pair_of(view, best, name) if name != best else None
        if pair is not None:
            groups.setdefault(_relation(pair, best), []).append(label[name])
    return [
        f"{before}{join_names(groups[relation])}{after}"
        for relation, (before, after) in _relation_words(label[best]).items()
        if relation in groups
    ]


def _relation(pair: Pair, best: str) -> tuple[PairKind, bool, bool]:
    """Return (kind, whether `best` wins, whether the more efficient curve probably has the higher ceiling)."""
    is_probably_higher = pair.kind == "more_efficient" and pair.probably_higher is not None
    return pair.kind, pair.winner == best, is_probably_higher


def _relation_words(best: str) -> dict[tuple[PairKind, bool, bool], tuple[str, str]]:
    """Return the text before and after the names of the other curves, by relation, in the order of the summary."""
    return {
        ("more_efficient", True, False): (f"At a shared ceiling {best} is more efficient than ", "."),
        ("more_efficient", True, True): (f"{best} is more efficient than ", ", and its ceiling is probably higher."),
        ("more_efficient", False, False): (f"More efficient than {best} at a shared ceiling: ", "."),
        ("more_efficient", False, True): (f"More efficient than {best}, with a ceiling that is probably higher: ", "."),
        ("not_separable", False, False): (f"Not separable from {best} by ceiling or efficiency: ", "."),
        ("higher_ceiling", True, False): (f"The ceiling of {best} is above that of ", "."),
        ("higher_ceiling", False, False): (f"Above the ceiling of {best}, but not steady: ", "."),
        ("not_comparable", False, False): (
            f"Not comparable with {best}, because they were evaluated on other prompts: ",
            ".",
        ),
    }


def _arms_without_rows(report: Report) -> list[str]:
    """Return the arms that have started and have no readable evaluation."""
    with_rows = {table.rows[0].get(ARM) for table in report.material.tables}
    started = [run.arm for run in report.material.runs if run.status != NOT_STARTED]
    return [arm for arm in dict.fromkeys(started) if arm not in with_rows]


def _without_ceiling(curves: Sequence[CurveResult], label: Labels, arms_without_rows: Sequence[str]) -> list[str]:
    of = lambda verdict: [label[curve.name] for curve in curves if curve.verdict == verdict]  # noqa: E731
    missing = [*(label[curve.name] for curve in curves if not curve.usable), *arms_without_rows]
    groups = {
        "Unstable": of("unstable"),
        "Past the peak, fitted up to it": of("past its peak"),
        "No rise seen": of(_FLAT),
        "Lack of fit": of(_MISFIT),
        "Ceiling not identifiable yet": of(_OPEN),
        "Without a curve": missing,
    }
    return [f"{title}: {join_names(names)}." for title, names in groups.items() if names]


def _forecast_scores(view: View) -> list[str]:
    """Return sentences on which points were fitted and how good the forecast of the rest was; empty if all were."""
    scores = [curve.holdout for curve in view.analysis.curves if curve.holdout is not None]
    if view.window.key == ALL or not scores:
        return []
    num = sum(score.num_points for score in scores)
    rmse = math.sqrt(sum(score.num_points * score.rmse**2 for score in scores) / num)
    inside = sum(score.num_points * score.coverage for score in scores) / num
    level = scores[0].level
    within = f", {inside:.0%} of them inside its {level:.0%} interval"
    # By two standard errors, as if evaluations were independent.
    within += ", fewer than it promises" if inside < level - 2 * math.sqrt(level * (1 - level) / num) else ""
    return [
        f"Fitted on: {view.window.label}. The {num} evaluations held out lie {rmse:.3f} (RMSE) from the forecast"
        f"{within if math.isfinite(inside) else ''}."
    ]


def _unconfirmed(report: Report, view: View, label: Labels) -> list[str]:
    """Return the differences that the fitted part shows but all points together do not."""
    if view.window.key == ALL:
        return []
    whole = report.view(view.evaluation_set, window=ALL)
    differences = []
    for pair in view.analysis.pairs:
        later = pair_of(whole, pair.a, pair.b)
        if later is not None and not is_confirmed(pair, later):
            verdict = pair_verdict(later.kind, later.winner, label)
            differences.append(f"{label[pair.a]} and {label[pair.b]} ({verdict})")
    return [f"Not borne out by all points: {'; '.join(differences)}."] if differences else []
