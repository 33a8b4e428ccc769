"""`document(result)`: what there is to say about a result, as sections. Each is a function that returns one or None.

A section takes the values that `decide.py` and `compare.py` have made; it decides nothing and words nothing.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalerl import store
from scalerl.curves import FORMS, Action, Answer, Comparison, PaperComparison, State, tails
from scalerl.joint.bank import place
from scalerl.logs.facts import Fact
from scalerl.logs.frame import listed
from scalerl.logs.series import uneven_steps
from scalerl.report.alarms import SIGNALS, fall_alarms, shown
from scalerl.report.document import (
    Block,
    Document,
    Grid,
    Json,
    Level,
    Lines,
    Samples,
    Say,
    Section,
    grid,
    picked,
    plain,
    rounded,
    say,
    section,
    table,
    to_json,
)
from scalerl.report.figures import chart, straight_chart
from scalerl.report.metrics import CHARTS, number, thinned, with_pace
from scalerl.report.numbers import (
    compute_text,
    duration,
    fixed,
    interval_text,
    money_text,
    probability_text,
    short_compute_text,
    two_decimals,
)
from scalerl.report.results import (
    AXES,
    HALF,
    CurveResult,
    Result,
    axis_label,
    missing_says,
    param_value,
)
from scalerl.report.runs import Run, differences, environments, hours_name
from scalerl.report.samples import Query, search

ANSWER, WHY, WARNING, DETAIL = Level.ANSWER, Level.WHY, Level.WARNING, Level.DETAIL
MOST_PAIRS = 15
"""Of more pairs only those with the leader are listed."""
FAR = 30.0
"""Times the data from which a forecast is called far."""
SAMPLES_OF_A_RUN = 6
QUIET_FACTS = (
    "lines_taken", "rows_counted", "longest_history", "one_column_per_run", "short_attempts", "superseded",
    "files_joined", "runs_apart", "runs_by_column", "repeated_rows", "held_values", "start_at_zero",
    "start_from_evaluation",
)  # fmt: skip
"""What was decided about a log and hardly changes the answer."""


def document(result: Result, origins: Mapping[str, str] | None = None) -> Document:
    """Return everything there is to say. `origins`: why columns were taken that the user did not name."""
    made: list[Section | None] = []
    for name in result.sets:
        made += [make(result, name) for make in OF_A_SET]
    made += [make(result) for make in OF_ALL]
    made.append(log_section(result, origins or {}))
    return tuple(each for each in made if each is not None)


def titled(title: str, name: str) -> str:
    return f"{title}: {name}" if name else title


# The answer -----------------------------------------------------------------------------------------------------------


def answer(result: Result, name: str) -> Section | None:
    """Say which recipe to take; of a single curve, where it stands and whether to go on."""
    comparison, members = result.comparison(name), result.members(name)
    blocks: list[Say] = [say("in_set", set=name)] if name and len(result.sets) > 1 else []
    if isinstance(comparison, PaperComparison):
        blocks += paper_says(comparison, members)
    elif comparison is not None:
        blocks += comparison_says(comparison, members)
    elif result.command == "compare":
        blocks.append(say("nothing_to_compare", ANSWER))
        blocks += [say("without_curve", names=tuple(curve.name for curve in members if not curve.usable))]
    if len(members) == 1:
        blocks += curve_says(members[0], result)
    elif result.command != "backtest":
        for curve in members:
            blocks += [each for each in curve_says(curve, result) if each.kind in ALWAYS]
    return section(f"answer/{name}", titled("Answer", name), *blocks)


ALWAYS = ("weak_backtest_half", "weak_backtest_held_out", "checkpoint_step", "checkpoint_compute", "checkpoint_saved")
"""What is said about each of several curves too; the rest is in their table."""


def curve_says(curve: CurveResult, result: Result) -> list[Say]:
    """Return what there is to say about one curve, the most important first."""
    decision = curve.decision
    if missing := missing_says(curve):
        return missing
    if decision is None:
        return paper_curve_says(curve)
    found = [say(STATES[decision.state], ANSWER, curve, decision, decision.fall)]
    found += [] if curve.ceiling is None else [say("ceiling", ANSWER, curve)]
    if decision.fall is not None:
        found += checkpoint_says(curve, result)
    elif decision.state == State.FLAT:
        found.append(say("flat_doubling"))
    else:
        found.append(say("doubling", ANSWER, decision, curve, price=curve.money(curve.fit.scale)))
        if decision.action == Action.OPEN:
            found.append(say("open_unsettled" if decision.settled_at is None else "open_settled", WHY, decision))
    found += [say("forecast_at", ANSWER, each, curve) for each in curve.at]
    found += [] if decision.dip is None else [say("dip", WHY, decision.dip, curve)]
    if curve.is_weak:
        kind = "weak_backtest_held_out" if len(curve.series.holdout_compute) else "weak_backtest_half"
        found.append(say(kind, WARNING, curve, curve.backtest))
    if curve.series.start is not None and not curve.fit.own_form.has_start:
        found.append(say("unused_start", WHY, curve, curve.series, curve.fit))
    return found


STATES = {
    State.FLAT: "flat",
    State.RISING: "rising",
    State.LEVELLING_OFF: "levelling_off",
    State.PAST_PEAK: "past_peak",
}


def checkpoint_says(curve: CurveResult, result: Result) -> list[Say]:
    """Say which checkpoint to take of a run that fell: that of an evaluation that exists."""
    assert curve.decision is not None
    fall, step = curve.decision.fall, curve.checkpoint
    found = [say("checkpoint_compute" if step is None else "checkpoint_step", ANSWER, fall, curve)]
    runs = [] if result.material is None else [run for run in result.material.runs if run.arm == curve.name]
    saved = [each for run in runs for each in run.checkpoints() if step is not None and each <= step]
    return [*found, *([say("checkpoint_saved", step=max(saved))] if saved else [])]


def comparison_says(comparison: Comparison, members: Sequence[CurveResult]) -> list[Say]:
    """Return which of several recipes to take at the budget, and what would settle an open choice."""
    pick, standings = comparison.pick, comparison.standings
    if pick is None:
        return [say("no_curve_yet", ANSWER)]
    finest = max(curve.decimals for curve in members)
    first = next(each for each in standings if each.name == comparison.chosen[0])
    given = {"unit": members[0].unit, "names": comparison.chosen, "decimals": finest}
    found = [say(ANSWERS[pick.answer], ANSWER, first, comparison, pick, **given)]
    if pick.answer == Answer.OPEN:
        rival = next(each.name for each in standings if each.name != first.name)
        pair = next(pair for pair in comparison.pairs if {pair.a, pair.b} == {first.name, rival})
        found += [] if pair.settling is None else [say("settle", WHY, pair.settling, a=first.name, b=rival)]
    found += [say("default_budget")] if comparison.is_default_budget else []
    fallen = tuple(each.name for each in standings if each.uses_best_checkpoint)
    found += [say("best_checkpoint", names=fallen)] if fallen else []
    assumed = {each.name: each.assumed_spread for each in standings if each.assumed_spread is not None}
    if assumed:
        found.append(say("assumed_spread", DETAIL, names=tuple(assumed), sd=max(assumed.values()), decimals=finest))
    found += [say("same_run", WARNING, pair) for pair in comparison.pairs if pair.is_same_run]
    without = tuple(curve.name for curve in members if curve.name not in comparison.names)
    return [*found, *([say("without_curve", names=without)] if without else [])]


ANSWERS = {Answer.TAKE: "take", Answer.EITHER: "either", Answer.OPEN: "open"}


def paper_curve_says(curve: CurveResult) -> list[Say]:
    """Return the paper's numbers, and no word on how sure they are."""
    found = [say("paper", ANSWER, curve, **curve.fit.params)]
    return [*found, *([say("paper_edge", WARNING, curve, names=curve.fit.edges)] if curve.fit.edges else [])]


def paper_says(comparison: PaperComparison, members: Sequence[CurveResult]) -> list[Say]:
    finest, found = max(curve.decimals for curve in members), []
    for pair in comparison.pairs:
        kind = "paper_equal" if pair.winner is None else "paper_ceiling" if pair.by_ceiling else "paper_exponent"
        smaller, larger = sorted(pair.exponents or (math.nan, math.nan))
        given = {"difference": abs(pair.ceiling_difference), "smaller": smaller, "larger": larger, "decimals": finest}
        found.append(say(kind, ANSWER, pair, **given))
    return found


# Curves ---------------------------------------------------------------------------------------------------------------


def curves(result: Result, name: str) -> Section | None:
    """Show the chart, a line for each curve, and the forecasts that were asked for."""
    members, comparison = result.members(name), result.comparison(name)
    at = comparison.at if isinstance(comparison, Comparison) else None
    is_paper, blocks = result.options.method == "paper", list[Block | None]()
    if result.command == "report" and any(len(curve.series.compute) for curve in members):
        blocks.append(chart(members, f"curves/{name}", at=at))
    if result.command != "backtest" and (len(members) > 1 or (is_paper and members[0].at)):
        blocks.append(curve_grid(members, result))
    blocks.append(reach_grid(members))
    for curve in members:
        far = [each.compute for each in curve.at if each.compute > FAR * curve.fit.scale]
        blocks += [say("far", WARNING, compute=each, times=each / curve.fit.scale, unit=curve.unit) for each in far[:1]]
    return section(f"curves/{name}", titled("Curves", name), *blocks)


def _hours(result: Result) -> str:
    return hours_name(result.material.runs) if result.material is not None else AXES["gpu_hours"]


def curve_grid(members: Sequence[CurveResult], result: Result) -> Grid | None:
    """Return a line for each curve: where it stands, its ceiling, what doubling brings, and what to do."""
    at = [each.compute for each in next((curve.at for curve in members if curve.at), ())]
    has_price = any(curve.price is not None for curve in members)
    colours, rows = tuple(range(len(members))), []
    for curve in members:
        forecasts = {f"at_{place}": each.reward for place, each in enumerate(curve.at)}
        given = {**dict.fromkeys(f"at_{place}" for place in range(len(at))), **forecasts}
        cells = SimpleNamespace(**given, peak=_peak(curve), cost=curve.money(curve.fit.scale), do=do_text(curve))
        rows.append((cells, curve, curve.decision, SimpleNamespace(**curve.fit.params)))
    unit = members[0].unit
    forecast_heads = {f"at {compute_text(compute)} {unit}": f"{{at_{place}:r}}" for place, compute in enumerate(at)}
    if result.options.method == "paper":
        return table("curves", {**PAPER_COLUMNS, **forecast_heads}, rows, colours=colours)
    price = {"doubling costs": "{cost:$}"} if has_price else {}
    columns = {**CURVE_COLUMNS, **forecast_heads, **price, "what to do": "{do}"}
    return table("curves", columns, rows, left=2, right=1, colours=colours)


CURVE_COLUMNS = {
    "curve": "{name}",
    "state": "{state}",
    "share reached": "{share:%}",
    "ceiling": "{peak}",
    "one doubling brings": "{doubling:+r}",
    "P(worth it)": "{p_worth:p}",
}
PAPER_COLUMNS = {"curve": "{name}", "A": "{ceiling:r}", "B": "{exponent:.2f}", "C_mid": "{midpoint:c}"}


def _peak(curve: CurveResult) -> str:
    """Return the ceiling with its interval, or the peak of a run that fell after it."""
    fall, show = None if curve.decision is None else curve.decision.fall, fixed(curve.decimals)
    return interval_text(curve.ceiling, show) if fall is None else f"peak {show(fall.peak)}"


def do_text(curve: CurveResult) -> str:
    """Return what to do with a run, in a few words."""
    decision = curve.decision
    if decision is None:
        return ""
    if decision.fall is not None:
        step = curve.checkpoint
        where = {"compute": decision.fall.last_good, "unit": curve.unit} if step is None else {"step": step}
        return Say("do_checkpoint_compute" if step is None else "do_checkpoint_step", where).text
    kinds = {State.TOO_EARLY: "do_wait", State.FLAT: "do_look"}
    kind = kinds.get(decision.state, f"do_{decision.action.name.lower()}")
    if kind == "do_open" and decision.settled_at is not None:
        return say("do_open_settled", times=decision.settled_at).text
    return say(kind).text


def reach_grid(members: Sequence[CurveResult]) -> Grid | None:
    """Return the compute that reaches each reward: "never" only if that is as sure as an end of the interval."""
    rows = []
    for curve in members:
        for reach in curve.reach:
            if reach.compute is not None:
                cell = interval_text(reach.compute, compute_text)
            elif reach.p_never is None or reach.p_never >= tails(curve.fit.level)[1]:
                cell = "never"
            else:
                cell = f"not known: P(never) {reach.p_never:.2f}"
            rows.append((curve.name, f"{reach.reward:g}", cell))
    return grid("reach", ("curve", "reward", f"{members[0].unit} needed"), rows)


# Pairs ----------------------------------------------------------------------------------------------------------------


def pairs(result: Result, name: str) -> Section | None:
    """Show how recipes stand at the budget, and the paper's axes beside every answer."""
    comparison, members = result.comparison(name), result.members(name)
    if isinstance(comparison, PaperComparison):
        return paper_section(comparison, members, name)
    if comparison is None or comparison.pick is None:
        return None
    finest, unit = max(curve.decimals for curve in members), members[0].unit
    colours = {curve.name: place for place, curve in enumerate(members)}
    columns = {"curve": "{name}", "P(best)": "{p_best:p}", "expected loss": "{loss:r}",
               f"reward at {compute_text(comparison.at)} {unit}": "{reward:r}"}  # fmt: skip
    shade = tuple(colours[each.name] for each in comparison.standings)
    items = [(each, SimpleNamespace(decimals=finest)) for each in comparison.standings]
    blocks: list[Block | None] = [
        table("standings", columns, items, colours=shade),
        *pair_grids(comparison, finest, unit),
    ]
    shared = comparison.shared_exponents
    if comparison.shared_ceiling is not None and len(shared) > 1:
        exponents = [f"{each} {interval_text(value, two_decimals)}" for each, value in shared.items()]
        values = {"ceiling": comparison.shared_ceiling, "exponents": tuple(exponents), "decimals": finest}
        blocks.append(Say("shared_exponents", values, DETAIL))
        if result.command == "report":
            blocks.append(straight_chart(comparison.shared_fits, colours, unit, comparison.shared_ceiling))
    return section(f"pairs/{name}", titled("Which recipe", name), *blocks)


def pair_grids(comparison: Comparison, finest: int, unit: str) -> list[Grid | None]:
    """Return each pair at the budget; and on the paper's axes: ceilings, compute to a target, B at one ceiling."""
    first = comparison.standings[0].name
    every = [pair for pair in comparison.pairs if pair.answer is not None]
    exponents, rows = comparison.shared_exponents, []
    for pair in [pair for pair in every if len(every) <= MOST_PAIRS or first in (pair.a, pair.b)]:
        both = [exponents.get(each) for each in (pair.a, pair.b)]
        names = ("take", pair.winner) if pair.winner is not None else (str(pair.answer),)
        exponent = "-" if both == [None, None] else " / ".join(interval_text(each, two_decimals) for each in both)
        cells = SimpleNamespace(decimals=finest, does=" ".join(names), exponent=exponent)
        rows.append((cells, pair, pair.target))
    crossing, level = {f"curves cross at ({unit})": "{crossing:c}"}, WHY if len(every) > 1 else DETAIL
    title = "On the axes of the paper, which decide nothing by themselves"
    return [
        table("pairs", {**PAIR_COLUMNS, **crossing}, rows, left=2, level=level),
        table("paper_axes", AXES_COLUMNS, rows, title=title),
    ]


PAIR_COLUMNS = {
    "a / b": "{a} / {b}",
    "answer": "{does}",
    "a less b at the budget": "{lead:+r}",
    "P(a ahead)": "{p_ahead:p}",
    "P(alike)": "{p_close:p}",
}
AXES_COLUMNS = {
    "a / b": "{a} / {b}",
    "A of a less b": "{ceiling_difference:+r}",
    "P(a higher)": "{p_higher_ceiling:p}",
    "compute a / b": "{ratio:x}",
    "to reach": "{reward:r}",
    "B at one A": "{exponent}",
    "P(a larger)": "{p_larger_exponent:p}",
}


def paper_section(comparison: PaperComparison, members: Sequence[CurveResult], name: str) -> Section | None:
    finest = max(curve.decimals for curve in members)
    rows = [
        (
            pair.a,
            pair.b,
            fixed(finest, "+")(pair.ceiling_difference),
            "-" if pair.exponents is None else " / ".join(map(two_decimals, pair.exponents)),
            pair.winner or "equal",
        )
        for pair in comparison.pairs
    ]
    heads = ("a", "b", "A of a less b", "B at one A", "the paper's rule")
    edges = [each for curve in members for each in paper_curve_says(curve) if each.kind == "paper_edge"]
    return section(f"pairs/{name}", titled("Which recipe", name), grid("pairs", heads, rows, left=2, right=1), *edges)


def axes(result: Result, name: str) -> Section | None:
    """Show the answer on each axis of compute, and say where they disagree."""
    answers, members = result.by_axis.get(name, ()), result.members(name)
    steps = [axis_label(each.axis) == AXES["step"] for each in answers]
    uneven = uneven_steps(curve.series for curve in members) if any(steps[:1]) else {}
    warnings = [say("uneven_steps", WARNING, axis=axis_label(axis), ratio=ratio) for axis, ratio in uneven.items()]
    if len(answers) < 2:
        return section(f"axes/{name}", titled("By each axis", name), *warnings)
    rows, by_answer = [], {}
    hours, finest = _hours(result), max(curve.decimals for curve in members)
    for each in answers:
        comparison, label = each.comparison, axis_label(each.axis, hours)
        first = comparison.standings[0]
        kind = comparison.pick.answer if comparison.pick is not None else Answer.OPEN
        by_answer.setdefault((kind, tuple(sorted(comparison.chosen))), []).append(label)
        cells = (probability_text(first.p_best), fixed(finest)(first.loss))
        rows.append((label, _axis_answer(comparison), *cells, compute_text(each.at)))
    table = grid("axes", ("compute in", "answer", "P(best) of the first", "its expected loss", "budget"), rows, left=2)
    if len(by_answer) > 1:
        parts = tuple(f"by {listed(labels)}: {kind} {listed(names)}" for (kind, names), labels in by_answer.items())
        return section(
            f"axes/{name}", titled("By each axis", name), say("axes_disagree", WARNING, answers=parts), table, *warnings
        )
    labels = tuple(axis_label(each.axis, hours) for each in answers)
    agree = say("axes_agree", DETAIL, axes=labels)
    return section(f"axes/{name}", titled("By each axis", name), agree, table, *warnings)


def _axis_answer(comparison: Comparison) -> str:
    kind = Answer.OPEN if comparison.pick is None else comparison.pick.answer
    return f"{kind}: {listed(comparison.chosen)}"


# Scores and details ---------------------------------------------------------------------------------------------------


def scores(result: Result, name: str) -> Section | None:
    """Show how forecasts did on evaluations that they had not seen."""
    rows, missing = [], []
    for curve in result.members(name):
        whole = "all but held-out rows" if len(curve.series.holdout_compute) else f"first {HALF:.0%}"
        parts = [(whole, curve.backtest, curve)] if curve.backtest is not None else []
        for part, score, own in [*parts, *((f"first {share:.0%}", each.backtest, each) for share, each in curve.early)]:
            if score is not None:
                rows.append((SimpleNamespace(name=curve.name, part=part), score))
            elif not len(own.series.holdout_compute):
                missing.append(say("nothing_after", name=curve.name, part=part))
            else:
                missing.append(say("not_scored", name=curve.name, part=part, num=own.fit.num_points))
    level = WHY if result.command in ("backtest", "report") else DETAIL
    scored = table("scores", SCORE_COLUMNS, rows, left=2, level=level)
    return section(f"scores/{name}", titled("Forecasts against what happened", name), scored, *missing)


SCORE_COLUMNS = {
    "curve": "{name}",
    "fitted on": "{part}",
    "later points": "{num_points}",
    "RMSE": "{rmse:.3g}",
    "bias": "{bias:+.3g}",
    "inside": "{coverage:%}",
    "expected": "{level:%}",
}


def details(result: Result, name: str) -> Section | None:
    """Show the parameters, the noise, and the smallest change that means something."""
    members, blocks = result.members(name), []
    if len(members) > 1:
        for curve in members:
            blocks += [Say(each.kind, each.values, DETAIL) for each in curve_says(curve, result)
                       if each.kind not in ALWAYS]  # fmt: skip
    for curve in members:
        decision = curve.decision
        if decision is not None and math.isfinite(decision.smallest_change):
            given = {"change": decision.smallest_change, "decimals": curve.decimals + 1}
            blocks.append(say("smallest_change", DETAIL, curve, **given))
        if result.command == "fit":
            blocks += among_public(curve)
    if result.options.method != "paper":
        blocks.append(say("worth", DETAIL, worth=result.worth))
    return section(f"details/{name}", titled("Details", name), *blocks, parameter_grid(members))


def among_public(curve: CurveResult) -> list[Say]:
    """Say where a run lies among public ones: how steep it is, and how much it gains."""
    places = {each.measure: each for each in place(curve.fit, "public")}
    return [
        say(f"among_public_{measure}", DETAIL, name=curve.name, below=places[measure].below, num=places[measure].num)
        for measure in ("exponent", "gain")
        if measure in places
    ]


def parameter_grid(members: Sequence[CurveResult]) -> Grid | None:
    """Return the parameters of each fit."""
    is_pooled = any(curve.fit.alone is not None for curve in members)
    rows = []
    for curve in members:
        fit, params = curve.fit, {name: param_value(curve.fit, name) for name in ("exponent", "midpoint", "start")}
        cells = SimpleNamespace(**params, alone=param_value(fit.alone, "ceiling"))
        rows.append((cells, curve, fit))
    columns = {**PARAMETER_COLUMNS, "A alone": "{alone:r}" if is_pooled else ""}
    title = f"{FORMS[members[0].fit.form].formula}, C in {members[0].unit}"
    return table("parameters", columns, rows, title=title, level=DETAIL)


PARAMETER_COLUMNS = {
    "curve": "{name}",
    "points": "{num_points}",
    "runs": "{num_runs}",
    "ceiling A": "{ceiling:r}",
    "A alone": "",
    "exponent B": "{exponent:2}",
    "midpoint C_mid": "{midpoint:c}",
    "start R0": "{start:r}",
    "noise": "{noise_sd:.4g}",
}


# Runs -----------------------------------------------------------------------------------------------------------------


def health(result: Result) -> Section | None:
    """Show the alarms of runs, and what shows whether they are healthy."""
    runs: list[Run] = [] if result.material is None else list(result.material.every)
    arms = list(dict.fromkeys(run.arm for run in runs))
    blocks: list[Block | None] = list(run_says(_runs(result)))
    for run in runs:
        for alarm in shown(run.alarms):
            blocks += alarm_says(alarm, run.name if len(runs) > 1 else "")
    for curve in result.curves if runs else ():
        columns = next((run.columns for run in runs if run.arm == curve.name), runs[0].columns)
        for alarm in fall_alarms(curve.evaluation_set or curve.name, curve, columns):
            blocks += alarm_says(alarm, curve.name if len(result.curves) > 1 else "", curve.unit)
    return section("health", "Health", *blocks, *lines_of(runs, arms), *pass_lines(runs))


def alarm_says(alarm: Any, run: str, unit: str = "") -> list[Say]:
    """Return an alarm and when it was, with the name of its run where there are several."""
    said, values = alarm.say(), {"run": run, "unit": unit}
    when = {name: getattr(alarm, name) for name in ("began", "ended", "began_compute")}
    return [said, Say("alarm_when", {**values, **when}, said.level if run else WHY)]


def run_says(runs: Sequence[Run]) -> Iterator[Say]:
    """Yield what a reader must know: runs cut short, work done twice, time that stood still, other environments."""
    for run in runs:
        # An unreadable status.json is among the faults already.
        if run.is_cut and (run.status != "unknown" or not run.faults()):
            yield say("not_finished", WARNING, run=run.name, status=": ".join(filter(None, (run.status, run.reason))))
        if again := run.repeated:
            share = again["flops"] / run.cost["flops"] if run.cost.get("flops") else 0.0
            yield say("repeated", run=run.name, hours=run.hours, share=share, **again)
        if stalled_s := run.seconds.get("stalled"):
            yield say("stood_still", run=run.name, hours=run.hours, seconds=stalled_s)
    differing = tuple(key for key, values in environments(runs).items() if len(values) > 1)
    if differing:
        yield say("different_environments", WARNING, keys=differing)


def _runs(result: Result) -> tuple[Run, ...]:
    return () if result.material is None else result.material.runs


def lines_of(runs: Sequence[Run], arms: Sequence[str]) -> list[Lines]:
    """Return a small chart for each usual column, a line for each run in the colour of its arm."""
    counted = "row" if runs and all(run.counted == "row" for run in runs) else "step"
    limits = {signal.key: signal.limit for signal in SIGNALS}
    found: dict[str, list[Any]] = {}
    for run in runs:
        columns = with_pace(run.columns)
        steps = thinned("step", columns.get("step", np.empty(0)))
        for key in CHARTS:
            values = columns.get(key)
            if values is not None and np.isfinite(values).any():
                line = (run.name, arms.index(run.arm) if run.arm in arms else 0, steps, thinned(key, values))
                found.setdefault(key, []).append(line)
    return [
        Lines(key=key, title=CHARTS[key], lines=tuple(lines), limit=limits.get(key), counted=counted)
        for key, lines in found.items()
    ]


def pass_lines(runs: Sequence[Run]) -> list[Lines]:
    """Return pass@k over the steps, a chart for each run and evaluation set."""
    found = []
    for run in runs:
        for name, (steps, by_k) in run.passes().items():
            lines = tuple((f"pass@{k}", place, steps, rounded(np.array(values), 5))
                          for place, (k, values) in enumerate(by_k.items()))  # fmt: skip
            title = ", ".join(filter(None, ("pass@k", run.name if len(runs) > 1 else "", name)))
            found.append(Lines(key=f"pass/{run.name}/{name}", title=title, lines=lines))
    return found


def cost(result: Result) -> Section | None:
    """Show what runs have spent, in compute, time and money."""
    runs, keys, price = _runs(result), ("gpu_hours", "flops", "tokens"), result.options.price
    amount = lambda value: "-" if value is None else short_compute_text(value)  # noqa: E731
    rows = []
    for run in runs:
        spent, total = run.cost, sum(run.seconds.values())
        parts = [f"{part.replace('_', '-')} {seconds / total:.0%}" for part, seconds in run.seconds.items()
                 if total > 0 and seconds / total >= 0.005]  # fmt: skip
        status = f"{run.status}: {run.reason}" if run.reason else run.status
        money = [money_text(price * spent.get("gpu_hours", 0.0))] if price is not None else []
        cells = (f"{run.num_steps:,}", *(amount(spent.get(key)) for key in keys), duration(total) if total else "-")
        rows.append((run.name, status, ", ".join(parts) or "-", *cells, *money))
    if len(runs) > 1:
        total = [sum(run.cost.get(key, 0.0) for run in runs) for key in keys]
        seconds = sum(sum(run.seconds.values()) for run in runs)
        money = [money_text(price * total[0])] if price is not None else []
        rows.append(("together", "", "", "", *map(amount, total), duration(seconds), *money))
    heads = ("run", "status", "where the time went", "steps", _hours(result), "FLOPs", "tokens", "wall time")
    table = grid("cost", (*heads, *(["cost"] if price is not None else [])), rows, left=3)
    units = {curve.unit for curve in result.curves}
    needs = price is not None and all(curve.price is None for curve in result.curves)
    warning = say("price_needs_hours", WARNING, unit=listed(sorted(units))) if needs else None
    return section("cost", "Runs and cost", warning, table)


def settings(result: Result) -> Section | None:
    """Show what arms change, what a policy decided, and the environments."""
    material = result.material
    if material is None:
        return None
    text = lambda value: "-" if value is None else json.dumps(value)  # noqa: E731
    changes = [(row["arm"], row["key"], text(row["base"]), text(row["value"]))
               for row in differences(material.runs, material.base)]  # fmt: skip
    base = material.base or next((run.arm for run in material.runs), "")
    machines = []
    for key, values in environments(material.runs).items():
        of = [f"{value} ({', '.join(runs)})" if len(values) > 1 else value for value, runs in values.items()]
        machines.append((key, "; ".join(of)))
    return section(
        "settings",
        "Settings",
        grid("decisions", DECISION_HEADS, decision_rows(material.folder), left=5, title="Decisions"),
        grid("differences", ("arm", "setting", base, "this arm"), changes, left=4, title="What differs"),
        grid("environment", ("", "value"), machines, left=2, title="Environment", level=DETAIL),
    )


def samples(result: Result) -> Section | None:
    """Show the last answers that each run was trained on."""
    query = Query(num=SAMPLES_OF_A_RUN)
    rows = [
        {"run": run.name, **sample}
        for run in _runs(result)
        for sample in search(run.source.path / store.SAMPLES, run.source.root, query)["samples"]
    ]
    return section("samples", "Samples", Samples(rows=tuple(rows))) if rows else None


# What the policy of a study decided

DECISION_HEADS = ("decision", "time", "compute goes to", "because of", "favourite then", "expected loss")


def decision_rows(folder: Path | None) -> list[tuple[str, ...]]:
    """Return the decisions of the study's policy; others may have written the file."""
    rows = []
    for row in [] if folder is None else store.read_decisions(folder):
        known, share = row.get("known") or {}, number(row.get("until"))
        until = "" if math.isnan(share) else f" to {share:.0%} of its budget"
        loss = number(known.get("loss"))
        rows.append(
            (
                str(row.get("decision")),
                str(row.get("time")),
                "end" if row.get("arm") is None else f"{row['arm']}{until}",
                str(row.get("kind")).replace("_", " "),
                str(known.get("favourite") or ""),
                "" if math.isnan(loss) else f"{loss:.4f}",
            )
        )
    return rows


def last_choice(out: Path) -> Json | None:
    """Return the decision that ended a study; None if its policy has not ended it yet."""
    rows = store.read_decisions(out)
    return rows[-1] if rows and rows[-1]["arm"] is None else None


def choice_say(row: Json) -> Say:
    """Return the choice of a policy, to be said."""
    known = row["known"]
    if known.get("favourite") is None:
        return say("choice_none", ANSWER)
    spent = sum(arm["spent"] for arm in known["arms"]) / len(known["arms"])
    values = {"favourite": known["favourite"], "spent": spent, "loss": known.get("loss") or 0.0}
    return Say("choice_decided" if row["kind"] == "decided" else "choice_open", values, ANSWER)


def choice_json(row: Json | None) -> Json | None:
    if row is None:
        return None
    return {"kind": row["kind"], "favourite": row["known"].get("favourite"), "loss": row["known"].get("loss")}


# What was read --------------------------------------------------------------------------------------------------------


def log_section(result: Result, origins: Mapping[str, str]) -> Section | None:
    """Say which columns were read, what was decided about the logs, and what could not be used."""
    blocks = [say("problem", WARNING, name=data.name, problem=data.problem) for data in result.left_out]
    blocks += result.notes if result.material is None else [*result.material.notes, *result.notes]
    blocks += equal_curves(result)
    compute, reward = ({getattr(curve, role): origins.get(getattr(curve, role)) for curve in result.curves}
                       for role in ("axis", "y"))  # fmt: skip
    if result.command != "report":
        columns = {name: tuple(f"{column} ({origin})" if origin else column for column, origin in own.items())
                   for name, own in (("compute", compute), ("reward", reward))}  # fmt: skip
        blocks.append(say("columns" if not origins else "columns_recognised", **columns))
    holders: dict[str, tuple[Fact, list[str]]] = {}
    for curve in result.curves:
        for fact in curve.series.facts:
            holders.setdefault(repr(fact), (fact, []))[1].append(curve.name)
    for fact, names in holders.values():
        level = DETAIL if fact.kind in QUIET_FACTS else WHY
        if len(names) < len(result.curves):
            blocks.append(say("holds_for", level, names=tuple(names)))
        blocks.append(Say(fact.kind, fact.values, level))
    return section("log", "What was read", *blocks)


def equal_curves(result: Result) -> list[Say]:
    """Return the curves with the same reward everywhere: their settings had no effect, or a log was given twice."""
    alike: dict[tuple[str, bytes], list[str]] = {}
    for curve in result.curves:
        if len(set(curve.series.reward)) > 2:
            alike.setdefault((curve.evaluation_set, curve.series.reward.tobytes()), []).append(curve.name)
    return [say("equal_curves", WARNING, names=tuple(names)) for names in alike.values() if len(names) > 1]


OF_A_SET: tuple[Callable[[Result, str], Section | None], ...] = (answer, curves, pairs, axes, scores, details)
OF_ALL: tuple[Callable[[Result], Section | None], ...] = (health, cost, settings, samples)


# Numbers --------------------------------------------------------------------------------------------------------------

PARAMS = ("ceiling", "exponent", "midpoint", "start")


def result_json(result: Result, origins: Mapping[str, str] | None = None) -> Json:
    """Return what `--json` prints: numbers under their old names, and the sections with their sentences."""
    rankings = [{"set": name, **plain_comparison(each)} for name, each in result.comparisons.items()]
    return {
        "curves": [*map(curve_json, result.curves), *map(left_out_json, result.left_out)],
        "pairs": plain(result.pairs),
        "rankings": rankings,
        "axes": [
            {"set": name, "axis": each.axis, "at": each.at, **plain_comparison(each.comparison)}
            for name, answers in result.by_axis.items()
            for each in answers
        ],
        "worth": plain(result.worth),
        "sections": to_json(document(result, origins)),
    }


def plain_comparison(comparison: Any) -> Json:
    if isinstance(comparison, PaperComparison):
        return {"answer": None, "winner": None, "standings": [], **picked(comparison, "shared_ceiling")}
    answer = None if comparison.pick is None else plain(comparison.pick.answer)
    names = ("at", "worth", "winner", "chosen", "standings", "correlation", "shared_ceiling", "shared_exponents")
    return {"answer": answer, **picked(comparison, *names)}


def curve_json(curve: CurveResult) -> Json:
    """Return one curve; what is not known, or not finite, is null."""
    fit, series, decision = curve.fit, curve.series, curve.decision
    names = ("state", "action", "share", "p_nearly_all", "p_worth", "p_seen", "settled_at", "noticed",
             "smallest_change", "missing", "fall", "dip", "worth")  # fmt: skip
    decided: Json = dict.fromkeys(names) if decision is None else picked(decision, *names)
    params = {name: plain(param_value(fit, name)) for name in PARAMS}
    return {
        "name": curve.name,
        "set": curve.evaluation_set,
        "units": {"compute": series.x_label, "reward": series.y_label, "reward_scale": series.y_scale},
        **picked(fit, "form", "num_points", "num_runs", "noise_sd", "run_sd"),
        **params,
        "ceiling": plain(curve.ceiling),
        **decided,
        "doubling": plain(curve.doubling),
        "checkpoint": plain(curve.checkpoint),
        "problem": None,
        "facts": [each.as_json() for each in series.facts],
        "alone": None if fit.alone is None else {name: plain(param_value(fit.alone, name)) for name in PARAMS},
        "pooled_with": list(fit.prior.sources) if fit.alone is not None and fit.prior is not None else [],
        "at": plain(curve.at),
        "reach": plain(curve.reach),
        "holdout": plain(curve.backtest),
        "fractions": [{"fraction": share, **(plain(early.backtest) or {})} for share, early in curve.early],
    }


def left_out_json(series: Any) -> Json:
    units = {"compute": series.x_label, "reward": series.y_label, "reward_scale": series.y_scale}
    return {"name": series.name, "set": series.evaluation_set or "", "units": units, "problem": series.problem}
