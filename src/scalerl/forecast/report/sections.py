"""`document(result)`: everything there is to say about a result, as the sections of one table.

A section is a function that yields its blocks. It takes the values that `decide.py` and `compare.py` have made; it
decides nothing and words nothing. `run_sections.py` has those on runs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalerl.forecast.curves import FORMS, Action, Answer, Comparison, Fall, PaperComparison, State
from scalerl.forecast.logs.facts import Fact
from scalerl.forecast.logs.frame import grouped, listed
from scalerl.forecast.logs.plan import Choice
from scalerl.forecast.logs.series import uneven_steps
from scalerl.forecast.report import words
from scalerl.forecast.report.analyse import missing_say
from scalerl.forecast.report.axes import AXIS_LABELS, axis_label, unit_of
from scalerl.forecast.report.document import (
    Blocks,
    Document,
    Grid,
    Json,
    Level,
    Say,
    say,
    sections,
    table,
)
from scalerl.forecast.report.results import Command, CurveResult, Result, param_value
from scalerl.forecast.report.terminal import printable
from scalerl.forecast.report.wording import Words, compute_text, interval_text, join_names, two_decimals, worth_text
from scalerl.forecast.report.words import level_of

WHY = Level.WHY
DETAIL = Level.DETAIL
MOST_PAIRS = 15
"""With more pairs, only those with the leader are listed."""
MIN_COVERAGE = 0.5
"""If the interval holds a smaller share of the later evaluations than this, the forecast should not be trusted."""
FAR = 30.0
"""Times the data from which a forecast is called far."""


def document(result: Result, *, explain: bool = True) -> Document:
    """Return everything there is to say; without `explain` only the sections of the command's own answer."""
    if explain:
        keys = tuple(OF_A_SET)
    else:
        keys = ANSWERS[result.command]
    parts: list[tuple[str, str, Blocks]] = []
    for name in result.sets:
        for key in keys:
            title, make = OF_A_SET[key]
            parts.append((f"{key}/{name}", f"{title}: {name}" if name else title, make(result, name)))
    if result.runs:
        parts += of_runs(result)
    parts.append(("log", "What was read", log_says(result, explain)))
    return sections(*parts)


def answer_text(result: Result, explain: bool) -> Any:
    """Return what a command prints; without `explain` only what its answer needs."""
    shown = document(result, explain=explain)
    if not explain:
        shown += sections(("hint", "", [say("explain")]))
    return printable(shown, explain=explain)


def of_runs(result: Result) -> Sequence[tuple[str, str, Blocks]]:
    """Return the sections on runs; what they need is loaded only for a report."""
    from scalerl.forecast.report import run_sections as runs

    health = ("health", "Health", runs.health(result))
    if not result.own_runs:
        return (health,)
    return (
        health,
        ("cost", "Runs and cost", runs.cost(result)),
        ("settings", "Settings", runs.settings(result)),
        ("samples", "Samples", runs.samples(result)),
    )


# The answer -----------------------------------------------------------------------------------------------------------


def answer(result: Result, name: str) -> Blocks:
    """Say which recipe to choose; of a single curve, where it stands and whether to go on."""
    comparison = result.comparisons.get(name)
    members = result.members(name)
    if name and len(result.sets) > 1:
        yield say("in_set", set=name)
    if isinstance(comparison, PaperComparison):
        yield from paper_says(comparison, members)
    elif comparison is not None:
        yield from comparison_says(comparison, members)
    elif result.command == "report" and len(members) > 1:
        # Curves that cannot be compared have answers of their own.
        for curve in members:
            if curve.decision is None:
                yield from paper_curve_says(curve)
            else:
                yield missing_say(curve) or say("stands", curve)
    elif result.command == "compare":
        yield say("nothing_to_compare")
        unusable = tuple(curve.name for curve in members if not curve.usable)
        if unusable:
            yield say("without_curve", names=unusable)
    if len(members) == 1:
        yield from curve_says(members[0], result)
    elif result.command != "backtest":
        # The rest of what is said about one of several is in their table.
        for curve in members:
            if curve.fall is not None:
                yield from checkpoint_says(curve, curve.fall, result)
            yield from weak_says(curve)


def curve_says(curve: CurveResult, result: Result) -> Iterator[Say]:
    """Yield what there is to say about one curve, the most important first."""
    standing = standing_says(curve)
    yield next(standing)
    if curve.fall is not None:
        yield from checkpoint_says(curve, curve.fall, result)
    yield from standing
    yield from weak_says(curve)


def standing_says(curve: CurveResult) -> Iterator[Say]:
    """Yield where a run stands, what more compute should add, and its forecasts."""
    decision = curve.decision
    missing = missing_say(curve)
    if missing is not None:
        yield missing
        return
    if decision is None:
        yield from paper_curve_says(curve)
        return
    yield say(decision.state.name.lower(), curve, decision, decision.fall)
    if curve.ceiling is not None:
        yield say("ceiling", curve)
    if decision.state == State.FLAT:
        yield say("flat_doubling")
    elif decision.fall is None:
        yield say("doubling", decision, curve, price=curve.doubling_price)
        if decision.action == Action.OPEN:
            yield say("open_unsettled" if decision.settled_at is None else "open_settled", decision)
    for each in curve.at:
        yield say("forecast_at", each, curve)
    if decision.dip is not None:
        yield say("dip", decision.dip, curve)
    if curve.series.start is not None and not curve.fit.own_form.has_start:
        yield say("unused_start", curve, curve.series, curve.fit)


def weak_says(curve: CurveResult) -> Iterator[Say]:
    """Warn of a forecast whose own back-test missed most of what came later."""
    inside = None
    if curve.backtest is not None:
        inside = curve.backtest.coverage
    if inside is not None and inside < MIN_COVERAGE:
        kind = "weak_backtest_half"
        if len(curve.series.holdout_compute):
            kind = "weak_backtest_held_out"
        yield say(kind, curve, curve.backtest)


def checkpoint_says(curve: CurveResult, fall: Fall, result: Result) -> Iterator[Say]:
    """Say which checkpoint to choose of a run that fell: that of an evaluation that exists."""
    step = curve.checkpoint
    yield say("checkpoint_compute" if step is None else "checkpoint_step", fall, curve)
    saved: list[int] = []
    for run in result.runs:
        if step is not None and (run.arm == curve.name or len(result.runs) == 1):
            saved += [each for each in run.checkpoints() if each <= step]
    if saved:
        yield say("checkpoint_saved", name=curve.name, step=max(saved))


def comparison_says(comparison: Comparison, members: Sequence[CurveResult]) -> Iterator[Say]:
    """Yield which of several recipes to choose at the budget, and what would settle an open choice."""
    pick = comparison.pick
    standings = comparison.standings
    finest = decimals_of(members)
    if pick is None:
        yield say("no_curve_yet")
        return
    first = next(each for each in standings if each.name == comparison.chosen[0])
    given = {"unit": members[0].unit, "names": comparison.chosen, "decimals": finest}
    yield say(pick.answer.name.lower(), first, comparison, pick, **given)
    if pick.answer == Answer.OPEN:
        rival = next(each.name for each in standings if each.name != first.name)
        pair = next(pair for pair in comparison.pairs if {pair.a, pair.b} == {first.name, rival})
        if pair.settling is not None:
            yield say("settle", pair.settling, a=first.name, b=rival)
    if comparison.is_default_budget:
        yield say("default_budget")
    fallen = tuple(each.name for each in standings if each.uses_best_checkpoint)
    if fallen:
        yield say("best_checkpoint", names=fallen)
    assumed = {each.name: each.assumed_spread for each in standings if each.assumed_spread is not None}
    if assumed:
        yield say("assumed_spread", names=tuple(assumed), sd=max(assumed.values()), decimals=finest)
    for pair in comparison.pairs:
        if pair.is_same_run:
            yield say("same_run", pair)
    without = tuple(curve.name for curve in members if curve.name not in comparison.names)
    if without:
        yield say("without_curve", names=without)


def decimals_of(members: Sequence[CurveResult]) -> int:
    """Return the decimals of the curve that needs most of them."""
    return max(curve.decimals for curve in members)


def paper_curve_says(curve: CurveResult) -> Iterator[Say]:
    """Yield the paper's numbers, and no word on how sure they are."""
    yield say("paper", curve, **curve.fit.params)
    if curve.fit.edges:
        yield say("paper_edge", curve, names=curve.fit.edges)


def paper_says(comparison: PaperComparison, members: Sequence[CurveResult]) -> Iterator[Say]:
    for pair in comparison.pairs:
        kind = "paper_equal"
        if pair.winner is not None:
            kind = "paper_exponent"
            if pair.by_ceiling:
                kind = "paper_ceiling"
        smaller, larger = sorted(pair.exponents or (math.nan, math.nan))
        given = {"difference": abs(pair.ceiling_difference), "smaller": smaller, "larger": larger}
        yield say(kind, pair, **given, decimals=decimals_of(members))


# Curves ---------------------------------------------------------------------------------------------------------------


def curves(result: Result, name: str) -> Blocks:
    """Show the chart, a line for each curve, and the forecasts that were asked for."""
    members = result.members(name)
    comparison = result.comparisons.get(name)
    if result.command == "report" and any(len(curve.series.compute) for curve in members):
        from scalerl.forecast.report.figures import chart

        at = None
        if isinstance(comparison, Comparison):
            at = comparison.at
        yield chart(members, f"curves/{name}", at=at)
    is_paper = result.options.method == "paper"
    if result.command != "backtest" and (len(members) > 1 or (is_paper and members[0].at)):
        yield curve_grid(members, is_paper)
    unit = members[0].unit
    rows: list[tuple[Any, ...]] = []
    for curve in members:
        rows += [(curve, reach, curve.fit) for reach in curve.reach]
    if rows:
        yield table("reach", {"curve": "{name}", "reward": "{reward:g}", f"{unit} needed": words.needed}, rows)
    for curve in members:
        for each in curve.at:
            times = each.compute / curve.fit.scale
            if times > FAR:
                yield say("far", curve, compute=each.compute, times=times)
                break


def curve_grid(members: Sequence[CurveResult], is_paper: bool) -> Grid | None:
    """Return a line for each curve: where it stands, its ceiling, what doubling brings, and what to do."""
    ahead = next((curve.at for curve in members if curve.at), ())
    forecasts: dict[str, Words] = {}
    for place, each in enumerate(ahead):
        forecasts[f"at {compute_text(each.compute)} {members[0].unit}"] = f"{{at.{place}.reward:r}}"
    colours = tuple(range(len(members)))
    if is_paper:
        rows = [(curve.fit.params, curve) for curve in members]
        return table("curves", {**PAPER_COLUMNS, **forecasts}, rows, colours=colours)
    columns = dict(CURVE_COLUMNS)
    worths = {worth_text(curve.decision.worth) for curve in members if curve.decision is not None}
    if worths:
        columns[f"P(over {join_names(sorted(worths), 'or')})"] = "{decision.p_worth:p}"
    columns |= forecasts
    if any(curve.price is not None for curve in members):
        columns["doubling costs"] = "{doubling_price:$}"
    columns["what to do"] = "{to_do}"
    return table("curves", columns, zip(members), left=2, right=1, colours=colours)


CURVE_COLUMNS: dict[str, Words] = {
    "curve": "{name}",
    "state": "{state}",
    "share reached": "{decision.share:%}",
    "ceiling": words.ceiling_or_peak,
    "doubling adds": "{doubling:+r}",
}
PAPER_COLUMNS = {"curve": "{name}", "A": "{ceiling:r}", "B": "{exponent:.2f}", "C_mid": "{midpoint:c}"}


# Pairs ----------------------------------------------------------------------------------------------------------------


def pairs(result: Result, name: str) -> Blocks:
    """Show how recipes stand at the budget, and the paper's axes beside every answer."""
    comparison = result.comparisons.get(name)
    members = result.members(name)
    finest = {"decimals": decimals_of(members)}
    unit = members[0].unit
    if isinstance(comparison, PaperComparison):
        rows = [({"by_rule": pair.winner or "equal"}, pair) for pair in comparison.pairs]
        yield table("pairs", RULE_COLUMNS, rows, finest, left=2, right=1)
        for curve in members:
            if curve.fit.edges:
                yield say("paper_edge", curve, names=curve.fit.edges)
        return
    if comparison is None or comparison.pick is None:
        return
    colours = {curve.name: place for place, curve in enumerate(members)}
    columns = {"curve": "{name}", "P(best)": "{p_best:p}", "expected regret": "{loss:r}",
               f"reward at {compute_text(comparison.at)} {unit}": "{reward:r}"}  # fmt: skip
    shades = tuple(colours[each.name] for each in comparison.standings)
    yield table("standings", columns, zip(comparison.standings), finest, colours=shades)
    yield from pair_grids(comparison, finest, unit)
    shared = comparison.shared_exponents
    ceiling = comparison.shared_ceiling
    if ceiling is not None and len(shared) > 1:
        exponents = tuple(f"{each} {interval_text(value, two_decimals)}" for each, value in shared.items())
        yield say("shared_exponents", ceiling=ceiling, exponents=exponents, **finest)


def pair_grids(comparison: Comparison, finest: Json, unit: str) -> Blocks:
    """Yield each pair at the budget; and on the paper's axes: ceilings, compute to a target, B at one ceiling."""
    first = comparison.standings[0].name
    exponents = comparison.shared_exponents
    every = [pair for pair in comparison.pairs if pair.answer is not None]
    rows: list[tuple[Any, ...]] = []
    for pair in every:
        if len(every) <= MOST_PAIRS or first in (pair.a, pair.b):
            rows.append(({"exponents": (exponents.get(pair.a), exponents.get(pair.b))}, pair))
    columns = {**PAIR_COLUMNS, f"curves cross at ({unit})": "{crossing:c}"}
    title = "The paper's measures, for reference (not used in the decision)"
    yield table("pairs", columns, rows, finest, left=2, level=WHY if len(every) > 1 else DETAIL)
    yield table("paper_axes", AXES_COLUMNS, rows, finest, title=title)


PAIR_COLUMNS: dict[str, Words] = {
    "a / b": "{a} / {b}",
    "answer": words.advice,
    "difference (a - b)": "{lead:+r}",
    "P(a ahead)": "{p_ahead:p}",
    "P(within threshold)": "{p_close:p}",
}
AXES_COLUMNS: dict[str, Words] = {
    "a / b": "{a} / {b}",
    "ceiling (a - b)": "{ceiling_difference:+r}",
    "P(a higher)": "{p_higher_ceiling:p}",
    "compute a / b": "{target.ratio:x}",
    "to reach": "{target.reward:r}",
    "exponents at one ceiling": words.exponents,
    "P(a larger)": "{p_larger_exponent:p}",
}
RULE_COLUMNS: dict[str, Words] = {
    "a": "{a}",
    "b": "{b}",
    "A of a less b": "{ceiling_difference:+r}",
    "B at one A": words.exponents,
    "the paper's rule": "{by_rule}",
}


def axes(result: Result, name: str) -> Blocks:
    """Show the answer on each axis of compute, and say where they disagree."""
    answers = result.by_axis.get(name, ())
    members = result.members(name)
    labels = [unit_of(members[0].series, each.axis) for each in answers]
    by_answer: dict[str, tuple[str, ...]] = {}
    for label, each in zip(labels, answers, strict=True):
        answer = axis_answer(each.comparison)
        by_answer[answer] = (*by_answer.get(answer, ()), label)
    if len(answers) > 1:
        if len(by_answer) == 1:
            yield say("axes_agree", axes=tuple(labels))
        else:
            texts = [say("axis_answer", labels=of, answer=answer).text for answer, of in by_answer.items()]
            yield say("axes_disagree", answers=tuple(texts))
        rows = []
        for label, each in zip(labels, answers, strict=True):
            own = {"label": label, "answer_text": axis_answer(each.comparison)}
            rows.append((own, each, each.comparison))
        finest = {"decimals": decimals_of(members)}
        yield table("axes", AXIS_COLUMNS, rows, finest, left=2, level=DETAIL if len(by_answer) == 1 else WHY)
    if answers and axis_label(answers[0].axis) == AXIS_LABELS["step"]:
        for axis, ratio in uneven_steps(curve.series for curve in members).items():
            yield say("uneven_steps", axis=axis_label(axis), ratio=ratio)


def axis_answer(comparison: Comparison) -> str:
    """Return the answer on an axis; open choices agree, whoever leads."""
    pick = comparison.pick
    if pick is None or pick.answer == Answer.OPEN:
        return "no clear winner"
    return join_names(sorted(comparison.chosen), "or")


AXIS_COLUMNS = {
    "compute in": "{label}",
    "answer": "{answer_text}",
    "P(best) of the first": "{standings.0.p_best:p}",
    "its expected regret": "{standings.0.loss:r}",
    "budget": "{at:c}",
}


# Scores and details ---------------------------------------------------------------------------------------------------


def scores(result: Result, name: str) -> Blocks:
    """Show how forecasts did on evaluations that they had not seen."""
    rows = []
    missing = []
    for curve in result.members(name):
        tests = list(curve.early)
        if curve.tested is not None and curve.tested.score is not None:
            tests.insert(0, curve.tested)
        for each in tests:
            part = "all but held-out rows"
            if each.share is not None:
                part = f"first {each.share:.0%}"
            if each.score is not None:
                rows.append(({"part": part}, curve, each.score))
            else:
                kind = "nothing_after"
                if each.num_later:
                    kind = "not_scored"
                missing.append(say(kind, curve, {"part": part, "num": each.num_points}))
    level = DETAIL
    if result.command in ("backtest", "report"):
        level = WHY
    return [table("scores", SCORE_COLUMNS, rows, left=2, level=level), *missing]


SCORE_COLUMNS = {
    "curve": "{name}",
    "fitted on": "{part}",
    "later points": "{num_points}",
    "RMSE": "{rmse:.3g}",
    "bias": "{bias:+.3g}",
    "inside": "{coverage:%}",
    "expected": "{level:%}",
}


def details(result: Result, name: str) -> Blocks:
    """Show the parameters, the noise, and the smallest change that means something."""
    members = result.members(name)
    if len(members) > 1:
        for curve in members:
            for each in standing_says(curve):
                yield replace(each, level=DETAIL)
    for curve in members:
        change = math.nan
        if curve.decision is not None:
            change = curve.decision.smallest_change
        if math.isfinite(change):
            yield say("smallest_change", curve, change=change, decimals=curve.decimals + 1)
    if result.options.method != "paper":
        yield say("worth", worth=result.worth)
    columns = dict(PARAMETER_COLUMNS)
    if all(curve.fit.alone is None for curve in members):
        del columns["ceiling alone"]
    rows = [({"alone": param_value(curve.fit.alone, "ceiling")}, curve, curve.params, curve.fit) for curve in members]
    title = f"{FORMS[members[0].fit.form].formula}, C in {members[0].unit}"
    yield table("parameters", columns, rows, title=title, level=DETAIL)


PARAMETER_COLUMNS = {
    "curve": "{name}",
    "points": "{num_points}",
    "runs": "{num_runs}",
    "ceiling": "{ceiling:r}",
    "ceiling alone": "{alone:r}",
    "exponent": "{exponent:.2f}",
    "midpoint": "{midpoint:c}",
    "start": "{start:r}",
    "noise": "{noise_sd:.4g}",
}


# What was read --------------------------------------------------------------------------------------------------------


def log_says(result: Result, explain: bool) -> Blocks:
    """Say which columns were read, what was decided about the logs, and what could not be used."""
    for data in result.left_out:
        yield say("problem", data)
    yield from result.notes
    if len(result.curves) > 1:
        yield from equal_curves(result)
    if result.options.price is not None and all(curve.price is None for curve in result.curves):
        yield say("price_needs_hours", unit=listed(sorted({curve.unit for curve in result.curves})))
    if result.command != "report":
        yield columns_say(result.curves)
    facts: dict[str, Fact] = {}
    names: dict[str, list[str]] = {}
    for curve in result.curves:
        for fact in curve.series.facts:
            facts[repr(fact)] = fact
            names.setdefault(repr(fact), []).append(curve.name)
    for key, fact in facts.items():
        level = level_of(fact.kind)
        if level == DETAIL and not explain:
            continue
        if len(names[key]) < len(result.curves):
            yield replace(say("holds_for", names=tuple(names[key])), level=level)
        yield say(fact.kind, fact.values)


def columns_say(curves: Sequence[CurveResult]) -> Say:
    """Return which columns were read, and why those were taken that the user did not name."""
    named = Choice((), "option")
    compute = {curve.axis: curve.series.plan.get("x", named) for curve in curves}
    reward = {curve.y: curve.series.plan.get("y", named) for curve in curves}
    detected: list[str] = []
    for name, choices in (("x", compute), ("y", reward)):
        # A row number is counted because nothing was detected.
        if any(why.rule not in ("option", "counted") for why in choices.values()):
            detected.append(name)
    return say("columns", compute=_columns_text(compute), reward=_columns_text(reward), detected=tuple(detected))


def _columns_text(reasons: Mapping[str, Choice]) -> tuple[str, ...]:
    """Return each column with the reason for which it was taken."""
    return tuple(say("column", why, column=column).text for column, why in reasons.items())


def equal_curves(result: Result) -> Iterator[Say]:
    """Yield the curves with the same reward everywhere: their settings had no effect, or a log was given twice."""
    moving = [curve for curve in result.curves if len(set(curve.series.reward)) > 2]
    for alike in grouped(moving, lambda curve: (curve.evaluation_set, curve.series.reward.tobytes())):
        if len(alike) > 1:
            yield say("equal_curves", names=tuple(curve.name for curve in alike))


ANSWERS: dict[Command, tuple[str, ...]] = {
    "fit": ("answer", "curves"),
    "forecast": ("answer", "curves"),
    "backtest": ("answer", "scores"),
    "compare": ("answer", "curves", "pairs", "axes"),
}
"""The sections of an evaluation set that a command prints unasked."""
OF_A_SET: dict[str, tuple[str, Callable[[Result, str], Blocks]]] = {
    "answer": ("Answer", answer),
    "curves": ("Curves", curves),
    "pairs": ("Which recipe", pairs),
    "axes": ("By each axis", axes),
    "scores": ("Forecasts against what happened", scores),
    "details": ("Parameters and noise", details),
}
