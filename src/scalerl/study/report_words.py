"""What a report says in words: what won and how sure, what went wrong, and what cannot be told yet."""

from collections.abc import Sequence

from scalerl.curves import Pair
from scalerl.study.analysis import CurveResult, param_value
from scalerl.study.report_runs import alarms, environments, incomparable
from scalerl.study.report_views import ALL, Report, View, label_of
from scalerl.study.text import decimals


def reference(report: Report, evaluation_set: str) -> str | None:
    """The curve that the others are held against: the study's base, else the best."""
    view = report.view(evaluation_set)
    based = [curve.name for curve in view.analysis.curves if label_of(curve.series) == report.material.base]
    return next(iter(based or front(view)), None)


def front(view: View) -> list[str]:
    """The steady curves that no other beats by its ceiling, the most efficient first.

    The paper's rule: the higher ceiling first, efficiency among equals.
    """
    steady = [curve.name for curve in view.analysis.curves if curve.usable and curve.verdict != "unstable"]
    beaten = {_loser(pair) for pair in view.analysis.pairs if "higher ceiling" in pair.verdict}
    members = [name for name in steady if name not in beaten]
    wins = dict.fromkeys(members, 0)
    for pair in view.analysis.pairs:
        if "more efficient" in pair.verdict and pair.a in wins and pair.b in wins:
            wins[_loser(pair)] -= 1
            wins[_winner(pair)] += 1
    share = dict(view.analysis.ranking)
    return sorted(members, key=lambda name: (-wins[name], -share.get(name, 0.0)))


def _winner(pair: Pair) -> str:
    return pair.a if pair.verdict.startswith(f"{pair.a} ") else pair.b


def _loser(pair: Pair) -> str:
    return pair.b if _winner(pair) == pair.a else pair.a


def pair_of(view: View, a: str, b: str) -> Pair | None:
    return next((pair for pair in view.analysis.pairs if {pair.a, pair.b} == {a, b}), None)


def summary(report: Report, evaluation_set: str) -> list[str]:
    """A paragraph for someone who reads nothing else; the first sentence says what won."""
    view = report.view(evaluation_set)
    label = {curve.name: label_of(curve.series) for curve in view.analysis.curves}
    best = front(view)
    said = [_lead(view, best, label), *_standing(view, best, label)] if best else ["No curve can be told yet."]
    said += _lacking(view.analysis.curves, label)
    broken = [run.name for run in report.material.runs if run.status == "failed"]
    return [*said, f"Failed: {_listed(broken)}."] if broken else said


def _lead(view: View, best: list[str], label: dict[str, str]) -> str:
    curve = next(one for one in view.analysis.curves if one.name == best[0])
    ceiling = param_value(curve.fit, "ceiling")
    assert curve.fit is not None
    assert ceiling is not None
    middle, low, high = (f"{end:.{decimals(curve.fit)}f}" for end in (ceiling.value, ceiling.low, ceiling.high))
    level = f"{middle} ({100 * curve.fit.level:.0f} % between {low} and {high})"
    share = dict(view.analysis.ranking).get(best[0])
    if share is None:
        return f"{label[best[0]]} levels off at {level}."
    if len(best) == 1:
        among = f"of {len(label)} curves with probability {_share(share)}"
        return f"{label[best[0]]} has the highest ceiling {among}: {level}."
    together = _listed([label[name] for name in best])
    return (
        f"{together} cannot be told apart by their ceiling, the highest here: {label[best[0]]} levels off at {level}."
    )


def _standing(view: View, best: list[str], label: dict[str, str]) -> list[str]:
    """Who is more efficient among those at the top, and who lies below."""
    groups: dict[str, list[str]] = {}
    for name in label:
        pair = pair_of(view, best[0], name) if name != best[0] else None
        if pair is not None:
            groups.setdefault(pair.verdict, []).append(label[name])
    who = label[best[0]]
    words = {
        f"{best[0]} is more efficient": f"At a shared ceiling {who} is more efficient than {{}}.",
        "not separable": f"Not separable from {who}: {{}}.",
        f"{best[0]} has the higher ceiling": f"The ceiling of {who} is above that of {{}}.",
        "not comparable": f"Not comparable with {who}, for they were evaluated on other prompts: {{}}.",
        "no curve": "Without a curve: {}.",
    }
    return [text.format(_listed(groups[verdict])) for verdict, text in words.items() if verdict in groups]


def _lacking(curves: Sequence[CurveResult], label: dict[str, str]) -> list[str]:
    unstable = [label[curve.name] for curve in curves if curve.verdict == "unstable"]
    open_ended = [label[curve.name] for curve in curves if curve.verdict == "ceiling not identifiable yet"]
    said = [f"Unstable: {_listed(unstable)}."] if unstable else []
    return said + ([f"Ceiling not identifiable yet: {_listed(open_ended)}."] if open_ended else [])


def warnings(report: Report) -> list[str]:
    """What a reader must know before believing the rest."""
    said = [*report.material.faults]
    for run in report.material.runs:
        if not run.is_finished and not run.faults:
            said.append(f"{run.name} did not finish ({run.ending}): its curve stands as far as it goes.")
    for name, arms in incomparable(report.material.runs).items():
        hashes = {arm: "+".join(sorted(prompts)) for arm, prompts in arms.items()}
        shown = ", ".join(f"{arm} {text[:12]}" for arm, text in hashes.items())
        where = f"of {name} " if name else ""
        said.append(f"Not comparable: the evaluations {where}were made on different prompts ({shown}).")
    for run in report.material.runs:
        said += alarms(run)
    differing = [key for key, values in environments(report.material.runs).items() if len(values) > 1]
    if differing:
        said.append(f"The runs' environments differ in {_listed(differing)}.")
    return said


def open_questions(report: Report, evaluation_set: str) -> list[str]:
    """What these data do not tell: pairs that are not separable, ceilings not identified, curves that broke."""
    view = report.view(evaluation_set)
    label = {curve.name: label_of(curve.series) for curve in view.analysis.curves}
    said = []
    for curve in view.analysis.curves:
        if curve.verdict != "ok":
            said.append(f"{label[curve.name]}, {curve.verdict}: {' '.join(curve.messages)}".rstrip(": "))
    for pair in view.analysis.pairs:
        if pair.verdict in ("not separable", "not comparable"):
            odds = f"P(higher ceiling) {pair.p_higher_ceiling:.2f}, P(larger exponent) {pair.p_more_efficient:.2f}"
            said.append(f"{label[pair.a]} and {label[pair.b]} are {pair.verdict} ({odds}).")
    if not view.is_compared and len(label) > 1:
        said.append("The curves were not compared with each other.")
    changed = _changed_verdicts(report, view, label)
    return [*said, *changed]


def _changed_verdicts(report: Report, view: View, label: dict[str, str]) -> list[str]:
    """Pairs that other axes of compute judge differently."""
    said = []
    for pair in view.analysis.pairs:
        others: dict[str, list[str]] = {}
        for axis in report.axes[1:]:
            twin = pair_of(report.view(view.evaluation_set, axis.column, ALL), pair.a, pair.b)
            if twin is not None and twin.verdict != pair.verdict:
                others.setdefault(twin.verdict, []).append(axis.label)
        for verdict, axes in others.items():
            said.append(
                f"{label[pair.a]} and {label[pair.b]}: {spoken(pair.verdict, label)} by {view.axis.label}, but "
                f"{spoken(verdict, label)} by {_listed(axes)}."
            )
    return said


def spoken(verdict: str, label: dict[str, str]) -> str:
    """A verdict with the curve's name as it is shown."""
    for name, shown in label.items():
        if verdict.startswith(f"{name} "):
            return f"{shown}{verdict.removeprefix(name)}"
    return verdict


def _share(value: float) -> str:
    return "over 99 %" if value > 0.995 else f"{100 * value:.0f} %"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
