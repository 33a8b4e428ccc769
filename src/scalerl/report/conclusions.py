"""What a report concludes, warns of and leaves open: kinds and numbers, and one table that makes sentences of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scalerl.curves import Note, NoteKind, PairKind, Verdict, note_text, pair_verdict
from scalerl.logs import facts as log_facts
from scalerl.logs.facts import Fact
from scalerl.report.alarms import alarm_text
from scalerl.report.inputs import ARM
from scalerl.report.numbers import decimals, fixed, join_names
from scalerl.report.results import param_value
from scalerl.report.runs import WAITING, Run, environments, incomparable
from scalerl.report.standing import OPEN, Lead, LeadKind, lead, lead_text, pair_of, ranked
from scalerl.report.views import ALL, Report, View

WHY_OPEN = (NoteKind.SAME_RUN, NoteKind.DIFFERENT_PROMPTS, NoteKind.DECIDED_BY)
"""Notes that say why a pair is not decided, and what would decide it."""
GROUPS = {
    Verdict.FALLEN: "past_peak",
    Verdict.FLAT: "no_rise",
    Verdict.WIDE: "ceiling_unknown",
    Verdict.TOO_FEW: "without_curve",
    Verdict.NO_CURVE: "without_curve",
}
# By the kind of a pair and whether the leading curve wins, in the order of the summary.
RELATIONS = {
    (PairKind.MORE_EFFICIENT, True): "more_efficient",
    (PairKind.MORE_EFFICIENT, False): "less_efficient",
    (PairKind.AHEAD, True): "ahead_of",
    (PairKind.AHEAD, False): "behind",
    (PairKind.HIGHER_CEILING, True): "higher_ceiling",
    (PairKind.HIGHER_CEILING, False): "lower_ceiling",
    (PairKind.NOT_COMPARABLE, False): "not_comparable",
}


def said(kind: str, **values: Any) -> Fact:
    return Fact(kind=kind, values=values)


# The summary


def reference(report: Report, evaluation_set: str) -> str | None:
    """Return the curve that the others are compared with: the study's base, else the best."""
    view, base = report.view(evaluation_set), report.material.base
    best = ranked(view.comparison, view.usable)
    return base if base in view.names else best[0] if best else None


def leader(report: Report, evaluation_set: str) -> Lead | None:
    view = report.view(evaluation_set)
    return lead(view.comparison, view.usable, base=reference(report, evaluation_set))


def summary(report: Report, evaluation_set: str) -> list[Fact]:
    """Return the main conclusions; the first says which curve to take."""
    view = report.view(evaluation_set)
    first = leader(report, evaluation_set)
    facts = [said("no_curve_yet")] if first is None else [*_lead(view, first), *_others(view, first)]
    facts += _by_verdict(report, view)
    failed = tuple(run.name for run in report.material.runs if run.status == "failed")
    facts += [said("failed", names=failed)] if failed else []
    return [*facts, *_forecast_scores(view)]


def _lead(view: View, first: Lead) -> Iterator[Fact]:
    """Yield why the first curve is taken, if there are others, and where it ends."""
    fit = next(curve.fit for curve in view.analysis.curves if curve.name == first.name)
    values = {"decimals": decimals(fit)}
    if first.kind != LeadKind.ALONE:
        yield said("lead", lead=first, **values)
    peak = None if fit.fall is None else fit.fall.best
    values |= {"verdict": fit.verdict, "ceiling": param_value(fit, "ceiling"), "peak": peak, "level": fit.level}
    yield said("state", name=first.name, **values)


def _others(view: View, first: Lead) -> list[Fact]:
    """Return how the other curves compare with the first, by relation, unless that is why it is taken."""
    best = first.name
    groups: dict[str, list[str]] = {kind: [] for kind in RELATIONS.values()}
    for pair in view.analysis.pairs:
        other = pair.b if pair.a == best else pair.a
        is_new = best in (pair.a, pair.b) and other not in first.tied
        if is_new and (kind := RELATIONS.get((pair.kind, pair.winner == best))):
            groups[kind].append(other)
    return [said(kind, best=best, names=tuple(names)) for kind, names in groups.items() if names]


def _by_verdict(report: Report, view: View) -> list[Fact]:
    """Return the curves without a known ceiling by reason; the lead has that of an only one."""
    curves = view.analysis.curves
    groups: dict[str, list[str]] = {kind: [] for kind in GROUPS.values()}
    for curve in curves:
        if curve.verdict in GROUPS and (len(curves) > 1 or not curve.usable):
            groups[GROUPS[curve.verdict]].append(curve.name)
    with_rows = {log.frame.words(ARM)[0] for log in report.material.tables if ARM in log.frame}
    started = dict.fromkeys(run.arm for run in report.material.runs if run.status != WAITING)
    groups["without_curve"] += [arm for arm in started if arm not in with_rows]
    return [said(kind, names=tuple(names)) for kind, names in groups.items() if names]


def _forecast_scores(view: View) -> list[Fact]:
    """Return how good the forecast of the points that were not fitted was; empty if all were."""
    scores = [curve.holdout for curve in view.analysis.curves if curve.holdout is not None]
    if view.window.key == ALL or not scores:
        return []
    num, level = sum(score.num_points for score in scores), scores[0].level
    rmse = math.sqrt(sum(score.num_points * score.rmse**2 for score in scores) / num)
    inside = sum(score.num_points * score.coverage for score in scores) / num
    # By two standard errors, as if evaluations were independent.
    is_short = inside < level - 2 * math.sqrt(level * (1 - level) / num)
    values = {"num": num, "rmse": rmse, "inside": inside, "level": level, "is_short": is_short}
    return [said("forecast_score", window=view.window.label, **values)]


# What a reader must know


def warnings(report: Report) -> list[Fact]:
    """Return faults of the inputs, runs cut short, prompts and environments that differ, and alarms."""
    material = report.material
    facts = [said("fault", problem=fault) for fault in material.faults]
    facts += _equal_curves(report)
    # An unreadable status.json is among the faults already.
    cut = [run for run in material.runs if run.is_cut and (run.status != "unknown" or not run.faults())]
    facts += [said("not_finished", run=run.name, status=run.status, reason=run.reason) for run in cut]
    for name, arms in incomparable(material.runs).items():
        hashes = {arm: "+".join(sorted(each[:8] for each in prompts)) for arm, prompts in arms.items()}
        facts.append(said("different_prompts", set=name, prompts=hashes))
    facts += [fact for run in material.runs for fact in compute_caveats(run)]
    for run in material.runs:
        active = [alarm for alarm in run.alarms if alarm.ended is None]
        facts += [said("alarm", run=run.name, alarm=alarm) for alarm in active]
    differing = tuple(key for key, values in environments(material.runs).items() if len(values) > 1)
    return [*facts, *([said("different_environments", keys=differing)] if differing else [])]


def compute_caveats(run: Run) -> list[Fact]:
    """Return what is special about the compute of a run: work done twice, and time that stood still."""
    facts = []
    if again := run.repeated:
        share = again["flops"] / run.cost["flops"] if run.cost.get("flops") else 0.0
        facts.append(said("repeated", run=run.name, hours=run.hours, share=share, **again))
    if stalled_s := run.seconds.get("stalled"):
        facts.append(said("stood_still", run=run.name, hours=run.hours, seconds=stalled_s))
    return facts


def _equal_curves(report: Report) -> list[Fact]:
    """Return the curves with the same reward everywhere: their settings had no effect yet, or a log was given twice."""
    alike: dict[tuple[str | None, bytes], list[str]] = {}
    for series in report.series[report.axes[0].column]:
        if len(set(series.reward)) > 2:
            alike.setdefault((series.evaluation_set, series.reward.tobytes()), []).append(series.name)
    return [said("equal_curves", names=tuple(names)) for names in alike.values() if len(names) > 1]


# What is not known


def open_questions(report: Report, evaluation_set: str) -> list[Fact]:
    """Return what these data do not decide: unknown ceilings, and pairs with the reference that are not separable."""
    view = report.view(evaluation_set)
    unit, facts = view.axis.label, []
    for curve in view.analysis.curves:
        if curve.verdict != Verdict.KNOWN:
            values = {"verdict": curve.verdict, "problem": curve.series.problem, "facts": curve.series.facts}
            facts.append(said("open_curve", name=curve.name, unit=unit, notes=curve.notes, **values))
    base = reference(report, evaluation_set)
    for pair in view.analysis.pairs:
        if base in (pair.a, pair.b) and pair.kind in OPEN:
            why = tuple(each for each in pair.notes if each.kind in WHY_OPEN)
            facts.append(said("open_pair", a=pair.a, b=pair.b, verdict=pair.kind, unit=unit, notes=why))
    if not view.is_compared and len(view.analysis.curves) > 1:
        facts.append(said("not_compared"))
    return [*facts, *_changed_verdicts(report, view)]


def _changed_verdicts(report: Report, view: View) -> Iterator[Fact]:
    """Yield the pairs with another verdict on other axes of compute, or with all points."""
    name, shared = view.evaluation_set, report.material.plan.get("shared_device")
    others = {
        f"by {axis.label}": report.view(name, axis.column)
        for axis in report.axes[1:]
        if not (shared and axis.column == "gpu_hours")
    }
    others |= {} if view.window.key == ALL else {"with all points": report.view(name, window=ALL)}
    for pair in view.analysis.pairs:
        changed: dict[tuple[PairKind, str | None], list[str]] = {}
        for how, other in others.items():
            twin = pair_of(other.comparison, pair.a, pair.b)
            if twin is not None and (twin.kind, twin.winner) != (pair.kind, pair.winner):
                changed.setdefault((twin.kind, twin.winner), []).append(how)
        for (kind, winner), how in changed.items():
            values = {"a": pair.a, "b": pair.b, "verdict": pair.kind, "winner": pair.winner}
            other = {"other_verdict": kind, "other_winner": winner, "unit": view.axis.label, "how": tuple(how)}
            yield said("verdict_changes", **values, **other)


# In words


def sentence(fact: Fact) -> str:
    """Return a fact in one or two sentences."""
    words = SENTENCES[fact.kind]
    if not isinstance(words, str):
        return words(fact.values)
    return words.format(**{key: join_names(value) if isinstance(value, tuple) and value else value
                           for key, value in fact.values.items()})  # fmt: skip


STATES = {
    Verdict.KNOWN: "{name} levels off at {ceiling}.",
    Verdict.AT_BOUND: "{name} reaches the highest reward there is.",
    Verdict.WIDE: "{name} has a ceiling that is not known closely yet, {ceiling}.",
    Verdict.FLAT: "{name} shows no rise.",
    Verdict.FALLEN: "{name} fell after a peak of {peak}.",
}


def _state_words(values: Mapping[str, Any]) -> str:
    show, ceiling, peak = fixed(values["decimals"]), values["ceiling"], values["peak"]
    ends = f" ({values['level']:.0%} between {show(ceiling.low)} and {show(ceiling.high)})"
    return STATES[values["verdict"]].format(
        name=values["name"],
        ceiling=f"{show(ceiling.value)}{ends if math.isfinite(ceiling.low) else ''}",
        peak="" if peak is None else show(peak),
    )


def _score_words(values: Mapping[str, Any]) -> str:
    within = f", {values['inside']:.0%} of them inside its {values['level']:.0%} interval"
    within += ", fewer than it promises" if values["is_short"] else ""
    return (
        f"Fitted on: {values['window']}. The {values['num']} evaluations held out lie {values['rmse']:.3f} (RMSE) from "
        f"the forecast{within if math.isfinite(values['inside']) else ''}."
    )


def _open_curve_words(values: Mapping[str, Any]) -> str:
    title = f"{values['name']}, {values['verdict']}"
    parts = [values["problem"] or "", *map(log_facts.sentence, values["facts"]), _notes(values)]
    texts = " ".join(filter(None, parts))
    return f"{title}: {texts}" if texts else title


def _changed_words(values: Mapping[str, Any]) -> str:
    now = pair_verdict(values["verdict"], values["winner"])
    other = pair_verdict(values["other_verdict"], values["other_winner"])
    how = join_names(values["how"])
    return f"{values['a']} and {values['b']}: {now} by {values['unit']}, but {other} {how}."


def _notes(values: Mapping[str, Any]) -> str:
    notes: tuple[Note, ...] = values["notes"]
    return " ".join(note_text(each, values["unit"]) for each in notes)


CAUSES = {
    "shared_device": "Jobs shared a device, which distorts the time that each took",
    "uneven_pace": "One run took {size:.1f} times as long as another of its arm for the same FLOPs",
    "uneven_time": "Time per FLOP changed during the run (by up to {size:.0%} of it)",
}
SENTENCES: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    # conclusions
    "no_curve_yet": "There is no curve yet.",
    "lead": lambda values: f"{lead_text(values['lead'], values['decimals'] + 1)}.",
    "state": _state_words,
    "more_efficient": "{best} is more efficient than {names}.",
    "less_efficient": "More efficient than {best}: {names}.",
    "ahead_of": "{best} is ahead of {names}, as far as can be forecast.",
    "behind": "Ahead of {best}, as far as can be forecast: {names}.",
    "higher_ceiling": "The ceiling of {best} is above that of {names}.",
    "lower_ceiling": "Above the ceiling of {best}: {names}.",
    "not_comparable": "Not comparable with {best}, because of other prompts: {names}.",
    "past_peak": "Past the peak: {names}.",
    "no_rise": "No rise seen: {names}.",
    "ceiling_unknown": "Ceiling not identifiable yet: {names}.",
    "without_curve": "Without a curve: {names}.",
    "failed": "Failed: {names}.",
    "forecast_score": _score_words,
    # warnings
    "fault": "{problem}",
    "not_finished": lambda values: (
        f"{values['run']} did not finish ({': '.join(filter(None, (values['status'], values['reason'])))}): its curve "
        "stands as far as it goes, and windows are shares of that."
    ),
    "different_prompts": lambda values: (
        f"Not comparable: the evaluations {'of ' + values['set'] + ' ' if values['set'] else ''}were made on different "
        f"prompts ({', '.join(f'{arm} {short}' for arm, short in values['prompts'].items())})."
    ),
    "repeated": (
        "{run} repeated {num_steps} steps after an interruption ({gpu_hours:.3g} {hours}, {share:.1%} of its FLOPs): "
        "they are counted as compute."
    ),
    "stood_still": "{run} stood still for {seconds:.0f} s, which is not counted in its {hours}.",
    "alarm": lambda values: f"{values['run']}: {alarm_text(values['alarm'])}.",
    "different_environments": "The runs' environments differ in {keys}.",
    "equal_curves": "{names} have the same reward at every evaluation: what differs between them has had no effect.",
    # open questions
    "open_curve": _open_curve_words,
    "open_pair": lambda values: (
        f"{values['a']} and {values['b']}, {pair_verdict(values['verdict'], None)}: {_notes(values)}"
    ),
    "not_compared": "The curves were not compared with each other.",
    "verdict_changes": _changed_words,
    # notes
    "time_distorted": lambda values: (
        f"{CAUSES[values['cause']].format(**values)}: compute is counted in FLOPs first, and {values['hours']} are not "
        "to be trusted."
    ),
    "seeds_pooled": lambda values: (
        f"{', '.join(values['runs'])} differ in their seed alone and are pooled as {values['arm']}."
    ),
    "axis_left_out": "No axis of {axis}: {problem}",
    "window_too_short": "Nothing can be fitted on {window} yet, so all points are.",
}
