"""What a reader must know before believing a report (warnings), and what its data leave open."""

from collections.abc import Mapping

from scalerl.curves import NoteKind, PairKind, Verdict, note_text, pair_verdict
from scalerl.logs.axes import UNEVEN_TIME
from scalerl.report.alarms import alarm_text
from scalerl.report.runs import RunFacts, environments, incomparable
from scalerl.report.standing import labels, pair_of, reference
from scalerl.report.views import ALL, Report, View, label_of
from scalerl.report.words import join_names

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
        if run.is_cut and (run.status != "unknown" or not run.faults):
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
        sentences += [f"{run.name}: {alarm_text(alarm)}." for alarm in run.alarms]
    differing = [key for key, values in environments(material.runs).items() if len(values) > 1]
    if differing:
        sentences.append(f"The runs' environments differ in {join_names(differing)}.")
    return sentences


def compute_caveats(run: RunFacts) -> list[str]:
    """Return what is special about the compute of a run: work done twice, time that stood still, uneven time."""
    sentences = []
    if run.repeated is not None:
        share = run.repeated.flops / run.cost["flops"] if run.cost.get("flops") else 0.0
        sentences.append(
            f"{run.name} repeated {run.repeated.num_steps} steps after an interruption ({run.repeated.gpu_hours:.3g} "
            f"{run.hours}, {share:.1%} of its FLOPs): they are counted as compute."
        )
    if stalled_s := run.seconds.get("stalled"):
        sentences.append(f"{run.name} stood still for {stalled_s:.0f} s, which is not counted in its {run.hours}.")
    if run.uneven_time > UNEVEN_TIME:
        sentences.append(
            f"{run.name}: time per FLOP changed during the run ({run.hours} and FLOPs differ by up to "
            f"{run.uneven_time:.0%} of it): its own curve is to be read over FLOPs."
        )
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
    name, shared = view.evaluation_set, report.material.shared_device
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
