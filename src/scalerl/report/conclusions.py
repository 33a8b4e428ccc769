"""A report in words: which curve leads, how the others compare, how forecasts did, and what is not known."""

import math
from collections.abc import Mapping, Sequence

from scalerl.curves import NoteKind, PairKind, Verdict, note_text, pair_verdict
from scalerl.report.alarms import alarm_text
from scalerl.report.inputs import ARM
from scalerl.report.numbers import decimals, fixed, join_names, probability_text
from scalerl.report.results import CurveResult, param_value
from scalerl.report.run_folder import WAITING, RunFolder
from scalerl.report.runs import environments, incomparable
from scalerl.report.standing import Lead, LeadKind, is_confirmed, labels, lead, pair_of, reference
from scalerl.report.views import ALL, Report, View, label_of

Labels = Mapping[str, str]


STATES = {
    Verdict.KNOWN: "levels off at {ceiling}",
    Verdict.AT_BOUND: "reaches the highest reward there is",
    Verdict.WIDE: "has a ceiling that is not known closely yet, {ceiling}",
    Verdict.FLAT: "shows no rise",
    Verdict.FALLEN: "fell after a peak of {peak}",
}
LEADS = {
    LeadKind.HIGHEST_CEILING: "{name} has the highest ceiling of {num} curves with probability {p_best}: it {state}.",
    LeadKind.AHEAD: "{name} is ahead of the other {others} as far as can be forecast: it {state}.",
    LeadKind.TIED: "No curve stands out among {num}: {name} {state}, and {tied} may end as high.",
    LeadKind.ALONE: "{name} {state}.",
}
# By the kind of the pair and whether the first curve wins, in the order of the summary.
RELATIONS = {
    (PairKind.MORE_EFFICIENT, True): "{best} is more efficient than {names}.",
    (PairKind.MORE_EFFICIENT, False): "More efficient than {best}: {names}.",
    (PairKind.AHEAD, True): "{best} is ahead of {names}, as far as can be forecast.",
    (PairKind.AHEAD, False): "Ahead of {best}, as far as can be forecast: {names}.",
    (PairKind.NOT_SEPARABLE, False): "Not separable from {best} by ceiling or efficiency: {names}.",
    (PairKind.HIGHER_CEILING, True): "The ceiling of {best} is above that of {names}.",
    (PairKind.HIGHER_CEILING, False): "Above the ceiling of {best}: {names}.",
    (PairKind.NOT_COMPARABLE, False): "Not comparable with {best}, because of other prompts: {names}.",
}
GROUPS = {
    Verdict.FALLEN: "Past the peak",
    Verdict.FLAT: "No rise seen",
    Verdict.WIDE: "Ceiling not identifiable yet",
    Verdict.TOO_FEW: "Without a curve",
    Verdict.NO_CURVE: "Without a curve",
}


def summary(report: Report, evaluation_set: str) -> list[str]:
    """Return the main conclusions as sentences; the first says which curve leads."""
    view = report.view(evaluation_set)
    label = labels(view)
    first = lead(report, evaluation_set)
    sentences = ["There is no curve yet."]
    if first is not None:
        sentences = [_lead(view, first, label), *_others(view, first.name, label)]
    sentences += _by_verdict(view.analysis.curves, label, _arms_without_rows(report))
    failed = [run.name for run in report.material.runs if run.status == "failed"]
    sentences += [f"Failed: {join_names(failed)}."] if failed else []
    return sentences + _forecast_scores(view) + _unconfirmed(report, view, label)


def _lead(view: View, first: Lead, label: Labels) -> str:
    curve = next(curve for curve in view.analysis.curves if curve.name == first.name)
    return LEADS[first.kind].format(
        name=label[first.name],
        num=first.num,
        others="curve" if first.num == 2 else f"{first.num - 1} curves",
        p_best=probability_text(dict(view.analysis.ranking).get(first.name, math.nan)),
        state=_state(curve),
        tied=join_names([label[name] for name in first.tied]) if first.tied else "",
    )


def _state(curve: CurveResult) -> str:
    fit, ceiling = curve.fit, param_value(curve.fit, "ceiling")
    assert fit is not None
    assert ceiling is not None
    show = fixed(decimals(fit))
    ends = f" ({fit.level:.0%} between {show(ceiling.low)} and {show(ceiling.high)})"
    peak = show(fit.fall.best) if fit.fall is not None else ""
    return STATES[fit.verdict].format(
        ceiling=f"{show(ceiling.value)}{ends if math.isfinite(ceiling.low) else ''}", peak=peak
    )


def _others(view: View, best: str, label: Labels) -> list[str]:
    """Return how the other curves compare with the first, one sentence for each relation."""
    groups: dict[tuple[PairKind, bool], list[str]] = {}
    for name in label:
        pair = pair_of(view, best, name) if name != best else None
        if pair is not None:
            groups.setdefault((pair.kind, pair.winner == best), []).append(label[name])
    return [
        words.format(best=label[best], names=join_names(groups[relation]))
        for relation, words in RELATIONS.items()
        if relation in groups
    ]


def _arms_without_rows(report: Report) -> list[str]:
    """Return the arms that have started and have no readable evaluation."""
    with_rows = {table.rows[0].get(ARM) for table in report.material.tables}
    started = [run.arm for run in report.material.runs if run.status != WAITING]
    return [arm for arm in dict.fromkeys(started) if arm not in with_rows]


def _by_verdict(curves: Sequence[CurveResult], label: Labels, arms_without_rows: Sequence[str]) -> list[str]:
    """Return the curves without a known ceiling, a sentence per reason; the lead sentence has that of an only one."""
    groups: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for curve in curves:
        if curve.verdict in GROUPS and (len(curves) > 1 or not curve.usable):
            groups[GROUPS[curve.verdict]].append(label[curve.name])
    groups["Without a curve"] += arms_without_rows
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


# What a reader must know

WHY_OPEN = (NoteKind.SAME_RUN, NoteKind.DIFFERENT_PROMPTS, NoteKind.SETTLED_BY)
"""Notes that say why a pair is not decided, and what would decide it."""


def warnings(report: Report) -> list[str]:
    """Return warnings: faults of the inputs, runs cut short, prompts and environments that differ, alarms."""
    material = report.material
    sentences = [*material.faults]
    sentences += _equal_curves(report)
    first_axis = report.series[report.axes[0].column]
    sentences += [f"{label_of(series)}: {series.mixed}" for series in first_axis if series.mixed]
    for run in material.runs:
        # An unreadable status.json is among the faults already.
        if run.is_cut and (run.status != "unknown" or not run.faults()):
            sentences.append(
                f"{run.name} did not finish ({run.ending}): its curve stands as far as it goes, and windows are shares "
                f"of that."
            )
    for name, arms in incomparable(material.runs).items():
        hashes = {arm: "+".join(sorted(prompts_hash[:8] for prompts_hash in prompts)) for arm, prompts in arms.items()}
        shown = ", ".join(f"{arm} {short}" for arm, short in hashes.items())
        where = f"of {name} " if name else ""
        sentences.append(f"Not comparable: the evaluations {where}were made on different prompts ({shown}).")
    for run in material.runs:
        sentences += compute_caveats(run)
    for run in material.runs:
        sentences += [f"{run.name}: {alarm_text(alarm)}." for alarm in run.alarms() if alarm.ended is None]
    differing = [key for key, values in environments(material.runs).items() if len(values) > 1]
    if differing:
        sentences.append(f"The runs' environments differ in {join_names(differing)}.")
    return sentences


def compute_caveats(run: RunFolder) -> list[str]:
    """Return what is special about the compute of a run: work done twice, and time that stood still."""
    sentences = []
    if again := run.repeated:
        share = again["flops"] / run.cost["flops"] if run.cost.get("flops") else 0.0
        sentences.append(
            f"{run.name} repeated {again['num_steps']} steps after an interruption ({again['gpu_hours']:.3g} "
            f"{run.hours}, {share:.1%} of its FLOPs): they are counted as compute."
        )
    if stalled_s := run.seconds.get("stalled"):
        sentences.append(f"{run.name} stood still for {stalled_s:.0f} s, which is not counted in its {run.hours}.")
    return sentences


def _equal_curves(report: Report) -> list[str]:
    """Return the curves with the same reward everywhere: their settings had no effect yet, or a log was given twice."""
    alike: dict[tuple[str | None, bytes], list[str]] = {}
    for series in report.series[report.axes[0].column]:
        if len(set(series.reward)) > 2:
            alike.setdefault((series.evaluation_set, series.reward.tobytes()), []).append(label_of(series))
    return [
        f"{join_names(names)} have the same reward at every evaluation: what differs between them has had no effect."
        for names in alike.values()
        if len(names) > 1
    ]


def open_questions(report: Report, evaluation_set: str) -> list[str]:
    """Return what these data do not settle: unknown ceilings, and pairs with the reference that are not separable."""
    view = report.view(evaluation_set)
    label = labels(view)
    sentences = []
    for curve in view.analysis.curves:
        if curve.verdict != Verdict.KNOWN:
            messages = " ".join(curve.messages_in(view.axis.label))
            title = f"{label[curve.name]}, {curve.verdict}"
            sentences.append(f"{title}: {messages}" if messages else title)
    base = reference(report, evaluation_set)
    for pair in view.analysis.pairs:
        if base in (pair.a, pair.b) and pair.kind in (PairKind.NOT_SEPARABLE, PairKind.NOT_COMPARABLE):
            verdict = pair_verdict(pair.kind, pair.winner, label)
            why = " ".join(note_text(each, view.axis.label) for each in pair.notes if each.kind in WHY_OPEN)
            sentences.append(f"{label[pair.a]} and {label[pair.b]}, {verdict}: {why}")
    if not view.is_compared and len(label) > 1:
        sentences.append("The curves were not compared with each other.")
    return [*sentences, *_changed_verdicts(report, view, label)]


def _changed_verdicts(report: Report, view: View, label: Mapping[str, str]) -> list[str]:
    """Return the pairs with another verdict on other axes of compute, or with all points."""
    name, shared = view.evaluation_set, report.material.plan.get("shared_device")
    others = [
        (f"by {axis.label}", report.view(name, axis.column))
        for axis in report.axes[1:]
        if not (shared and axis.column == "gpu_hours")
    ]
    others += [] if view.window.key == ALL else [("with all points", report.view(name, window=ALL))]
    sentences = []
    for pair in view.analysis.pairs:
        changed: dict[tuple[PairKind, str | None], list[str]] = {}
        for how, other in others:
            twin = pair_of(other, pair.a, pair.b)
            if twin is not None and (twin.kind, twin.winner) != (pair.kind, pair.winner):
                changed.setdefault((twin.kind, twin.winner), []).append(how)
        verdict = pair_verdict(pair.kind, pair.winner, label)
        sentences += [
            f"{label[pair.a]} and {label[pair.b]}: {verdict} by {view.axis.label}, but "
            f"{pair_verdict(kind, winner, label)} {join_names(how)}."
            for (kind, winner), how in changed.items()
        ]
    return sentences
