"""What a report says in words: what won and how sure, what went wrong, and what cannot be told yet."""

import math
import re
from collections.abc import Sequence

from scalerl.analysis.results import CurveResult, param_value
from scalerl.analysis.tables import decimals
from scalerl.curves import Pair
from scalerl.report.inputs import ARM
from scalerl.report.runs import NOT_STARTED, alarms, environments, incomparable
from scalerl.report.views import ALL, Report, View, label_of

_HIGHER, _EFFICIENT = " has the higher ceiling", " is more efficient"
_PROBABLY = ", probably higher"
_OPEN = "ceiling not identifiable yet"
# How a fit, which knows no units, speaks of an amount of compute.
_AMOUNT = re.compile(r"\bcompute (\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def reference(report: Report, evaluation_set: str) -> str | None:
    """The curve that the others are held against: the study's base, else the best."""
    view = report.view(evaluation_set)
    based = [curve.name for curve in view.analysis.curves if label_of(curve.series) == report.material.base]
    return next(iter(based or front(view)), None)


def front(view: View) -> list[str]:
    """The steady curves that no other beats by its ceiling: known ceilings first, the most efficient first.

    The paper's rule: the higher ceiling first, efficiency among equals.
    """
    steady = {curve.name: curve for curve in view.analysis.curves if curve.usable and curve.verdict != "unstable"}
    beaten = {
        _loser(pair) for pair in view.analysis.pairs if pair.verdict.endswith(_HIGHER) and _winner(pair) in steady
    }
    members = [name for name in steady if name not in beaten]
    wins = dict.fromkeys(members, 0)
    for pair in view.analysis.pairs:
        if pair.verdict.endswith(_EFFICIENT) and pair.a in wins and pair.b in wins:
            wins[_loser(pair)] -= 1
            wins[_winner(pair)] += 1
    share = dict(view.analysis.ranking)
    return sorted(members, key=lambda name: (steady[name].verdict == _OPEN, -wins[name], -share.get(name, 0.0)))


def _winner(pair: Pair) -> str:
    return pair.a if pair.verdict in (f"{pair.a}{_HIGHER}", f"{pair.a}{_EFFICIENT}") else pair.b


def _loser(pair: Pair) -> str:
    return pair.b if _winner(pair) == pair.a else pair.a


def pair_of(view: View, a: str, b: str) -> Pair | None:
    return next((pair for pair in view.analysis.pairs if {pair.a, pair.b} == {a, b}), None)


def summary(report: Report, evaluation_set: str) -> list[str]:
    """A paragraph for someone who reads nothing else; the first sentence says what won."""
    view = report.view(evaluation_set)
    label = {curve.name: label_of(curve.series) for curve in view.analysis.curves}
    best = front(view)
    if best and (base := reference(report, evaluation_set)) in best:
        pair = pair_of(view, best[0], base)
        verdict = next(curve.verdict for curve in view.analysis.curves if curve.name == best[0])
        is_tied = verdict == _OPEN and pair is not None and pair.verdict == "not separable"
        if is_tied or (pair is not None and pair.verdict == "not comparable"):
            # Of ceilings that are not known, or not of the same prompts, none leads: the base does.
            best = [base, *(name for name in best if name != base)]
    if best:
        said = [_lead(view, best, label), *_standing(view, best[0], label)]
    else:
        said = [
            "No curve is steady." if any(curve.usable for curve in view.analysis.curves) else "There is no curve yet."
        ]
    said += _lacking(view.analysis.curves, label, _arms_without_rows(report))
    broken = [run.name for run in report.material.runs if run.status == "failed"]
    said += [f"Failed: {_listed(broken)}."] if broken else []
    return said + _tested(view) + _not_borne_out(report, view, label)


def _lead(view: View, best: list[str], label: dict[str, str]) -> str:
    curve = next(one for one in view.analysis.curves if one.name == best[0])
    assert curve.fit is not None
    ceiling = param_value(curve.fit, "ceiling")
    assert ceiling is not None
    middle, low, high = (f"{end:.{decimals(curve.fit)}f}" for end in (ceiling.value, ceiling.low, ceiling.high))
    level = f"{middle} ({curve.fit.level:.0%} between {low} and {high})"
    levels_off = f"levels off at {level}"
    if curve.verdict == _OPEN:
        levels_off = f"has a ceiling that is not known closely yet, {level}"
    who, share = label[best[0]], dict(view.analysis.ranking)
    pairs = {name: pair_of(view, best[0], name) for name in share if name != best[0]}
    verdicts = {name: pair.verdict for name, pair in pairs.items() if pair is not None}
    if verdicts and set(verdicts.values()) == {f"{best[0]}{_HIGHER}"}:
        return (
            f"{who} has the highest ceiling of {len(share)} curves with probability {_share(share[best[0]])}: {level}."
        )
    tied = [name for name in best[1:] if verdicts.get(name) not in (None, "not comparable")]
    if not tied:
        return f"{who} {levels_off}."
    if len(tied) == len(verdicts):
        rest = "the other cannot" if len(tied) == 1 else "the others cannot"
        none = f"No ceiling stands out among {len(share)} curves"
        return f"{none}: {who} {levels_off}, and {rest} be told from it by ceiling."
    together = _listed([label[name] for name in (best[0], *tied)])
    below = all(verdicts[name] == f"{best[0]}{_HIGHER}" for name in verdicts if name not in tied)
    highest = ", the highest here" * below
    return f"{together} cannot be told apart by their ceiling{highest}: {who} {levels_off}."


def _standing(view: View, best: str, label: dict[str, str]) -> list[str]:
    """How the others stand to the first: who is more efficient, who lies below, who cannot be told."""
    groups: dict[str, list[str]] = {}
    for name in label:
        pair = pair_of(view, best, name) if name != best else None
        if pair is not None:
            won = pair.verdict.removeprefix(name) in (_HIGHER, _EFFICIENT)
            verdict = pair.verdict.removeprefix(name) if won else pair.verdict
            probably = _PROBABLY if pair.probably_higher is not None and _EFFICIENT in verdict else ""
            groups.setdefault(verdict + probably, []).append(label[name])
    who = label[best]
    words = {
        f"{best}{_EFFICIENT}": f"At a shared ceiling {who} is more efficient than {{}}.",
        f"{best}{_EFFICIENT}{_PROBABLY}": f"{who} is more efficient than {{}}, and its ceiling is probably higher.",
        _EFFICIENT: f"More efficient than {who} at a shared ceiling: {{}}.",
        f"{_EFFICIENT}{_PROBABLY}": f"More efficient than {who}, with a ceiling that is probably higher: {{}}.",
        "not separable": f"Not separable from {who} by ceiling or efficiency: {{}}.",
        f"{best}{_HIGHER}": f"The ceiling of {who} is above that of {{}}.",
        _HIGHER: f"Above the ceiling of {who}, but not steady: {{}}.",
        "not comparable": f"Not comparable with {who}, for they were evaluated on other prompts: {{}}.",
    }
    # Not by format: a name may hold braces of its own.
    return [text.replace("{}", _listed(groups[verdict])) for verdict, text in words.items() if verdict in groups]


def _arms_without_rows(report: Report) -> list[str]:
    """Arms that began and of which no evaluation could be read."""
    found = {table.rows[0].get(ARM) for table in report.material.tables}
    begun = [run.arm for run in report.material.runs if run.status != NOT_STARTED]
    return [arm for arm in dict.fromkeys(begun) if arm not in found]


def _lacking(curves: Sequence[CurveResult], label: dict[str, str], unread: Sequence[str]) -> list[str]:
    unstable = [label[curve.name] for curve in curves if curve.verdict == "unstable"]
    open_ended = [label[curve.name] for curve in curves if curve.verdict == _OPEN]
    missing = [*(label[curve.name] for curve in curves if not curve.usable), *unread]
    words = {"Unstable": unstable, "Ceiling not identifiable yet": open_ended, "Without a curve": missing}
    return [f"{title}: {_listed(names)}." for title, names in words.items() if names]


def _tested(view: View) -> list[str]:
    """Where not all points are fitted: on which, and how the forecast of the rest came out."""
    scores = [curve.holdout for curve in view.analysis.curves if curve.holdout is not None]
    if view.window.key == ALL or not scores:
        return []
    num = sum(one.num_points for one in scores)
    rmse = math.sqrt(sum(one.num_points * one.rmse**2 for one in scores) / num)
    inside = sum(one.num_points * one.coverage for one in scores) / num
    level = scores[0].level
    within = f", {inside:.0%} of them inside its {level:.0%} interval"
    # By two standard errors, as if evaluations were independent.
    within += ", fewer than it promises" if inside < level - 2 * math.sqrt(level * (1 - level) / num) else ""
    return [
        f"Fitted on: {view.window.label}. The {num} evaluations held out lie {rmse:.3f} (RMSE) from the forecast"
        f"{within if math.isfinite(inside) else ''}."
    ]


def _not_borne_out(report: Report, view: View, label: dict[str, str]) -> list[str]:
    """Differences that the fitted part shows and that all points do not show."""
    if view.window.key == ALL:
        return []
    whole = report.view(view.evaluation_set, window=ALL)
    said = []
    for pair in view.analysis.pairs:
        twin = pair_of(whole, pair.a, pair.b)
        if twin is not None and not _bears_out(twin.verdict, pair.verdict):
            said.append(f"{label[pair.a]} and {label[pair.b]} ({spoken(twin.verdict, label)})")
    return [f"Not borne out by all points: {'; '.join(said)}."] if said else []


def _bears_out(verdict: str, claim: str) -> bool:
    """A more efficient curve may turn out to have the higher ceiling as well."""
    if claim.endswith(_EFFICIENT):
        return verdict in (claim, claim.removesuffix(_EFFICIENT) + _HIGHER)
    return verdict == claim or not claim.endswith(_HIGHER)


def warnings(report: Report) -> list[str]:
    """What a reader must know before believing the rest."""
    said = [*report.material.faults]
    said += _equal_curves(report)
    said += [f"{label_of(one)}: {one.mixed}" for one in report.series[report.axes[0].column] if one.mixed]
    for run in report.material.runs:
        # A fault of status.json has been told with the faults.
        if run.is_cut and (run.status != "unknown" or not run.faults):
            said.append(
                f"{run.name} did not finish ({run.ending}): its curve stands as far as it goes, and windows are shares "
                f"of that."
            )
    for name, arms in incomparable(report.material.runs).items():
        shown = ", ".join(f"{arm} {'+'.join(sorted(one[:8] for one in prompts))}" for arm, prompts in arms.items())
        where = f"of {name} " if name else ""
        said.append(f"Not comparable: the evaluations {where}were made on different prompts ({shown}).")
    for run in report.material.runs:
        said += alarms(run)
    differing = [key for key, values in environments(report.material.runs).items() if len(values) > 1]
    if differing:
        said.append(f"The runs' environments differ in {_listed(differing)}.")
    return said


def _equal_curves(report: Report) -> list[str]:
    """Curves of which no evaluation differs: what sets them apart has done nothing yet, or a log was given twice."""
    alike: dict[tuple[str | None, bytes], list[str]] = {}
    for one in report.series[report.axes[0].column]:
        if len(set(one.reward)) > 2:
            alike.setdefault((one.evaluation_set, one.reward.tobytes()), []).append(label_of(one))
    return [
        f"{_listed(names)} have the same reward at every evaluation: what differs between them has had no effect."
        for names in alike.values()
        if len(names) > 1
    ]


def open_questions(report: Report, evaluation_set: str) -> list[str]:
    """What these data do not tell: pairs that are not separable, ceilings not identified, curves that broke."""
    view = report.view(evaluation_set)
    label = {curve.name: label_of(curve.series) for curve in view.analysis.curves}
    said = []
    for curve in view.analysis.curves:
        if curve.verdict != "ok":
            why = _AMOUNT.sub(rf"\1 {view.axis.label}", " ".join(curve.messages))
            said.append(f"{label[curve.name]}, {curve.verdict}: {why}".rstrip(": "))
    for name in label:
        pairs = [pair for pair in view.analysis.pairs if pair.a == name]
        if alike := [pair for pair in pairs if pair.verdict == "not separable"]:
            odds = [f"{label[one.b]} ({one.p_higher_ceiling:.2f}, {one.p_more_efficient:.2f})" for one in alike]
            said.append(
                f"{label[name]} is not separable from {_listed(odds)}; in brackets, the probabilities that its ceiling "
                f"is higher and its exponent larger."
            )
        if strange := [label[pair.b] for pair in pairs if pair.verdict == "not comparable"]:
            said.append(f"{label[name]} is not comparable with {_listed(strange)}: the prompts differ.")
    if not view.is_compared and len(label) > 1:
        said.append("The curves were not compared with each other.")
    changed = _changed_verdicts(report, view, label)
    return [*said, *changed]


def _changed_verdicts(report: Report, view: View, label: dict[str, str]) -> list[str]:
    """Pairs that are judged differently on other axes of compute, or with all points."""
    name, shared = view.evaluation_set, report.material.shared_device
    others = [
        (f"by {axis.label}", report.view(name, axis.column))
        for axis in report.axes[1:]
        if not (shared and axis.column == "gpu_hours")
    ]
    others += [] if view.window.key == ALL else [("with all points", report.view(name, window=ALL))]
    said = []
    for pair in view.analysis.pairs:
        changed: dict[str, list[str]] = {}
        for how, other in others:
            twin = pair_of(other, pair.a, pair.b)
            if twin is not None and twin.verdict != pair.verdict:
                changed.setdefault(twin.verdict, []).append(how)
        said += [
            f"{label[pair.a]} and {label[pair.b]}: {spoken(pair.verdict, label)} by {view.axis.label}, but "
            f"{spoken(verdict, label)} {_listed(how)}."
            for verdict, how in changed.items()
        ]
    return said


def spoken(verdict: str, label: dict[str, str]) -> str:
    """A verdict with the curve's name as it is shown."""
    for name, shown in label.items():
        if verdict.startswith(f"{name} "):
            return f"{shown}{verdict.removeprefix(name)}"
    return verdict


def _share(value: float) -> str:
    return "over 99%" if value > 0.995 else f"{value:.0%}"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
