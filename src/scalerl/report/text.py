"""An analysis for the terminal: what to know first, one line per curve; with `explain` the rest, each thing once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType

from rich.console import Group
from rich.text import Text

from scalerl.curves import (
    Note,
    NoteKind,
    Reach,
    Score,
    Verdict,
    find_note,
    note,
    note_text,
    tails,
)
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.frame import listed
from scalerl.report.numbers import (
    compute_text,
    decimals,
    error_text,
    fixed,
    interval_text,
    number_text,
    two_decimals,
)
from scalerl.report.results import Advice, Analysis, CurveResult, param_value, why_unscored
from scalerl.report.standing import lead, lead_text, pair_of, ranked
from scalerl.report.tables import Table

Part = Table | Text | str

GOOD, BAD = "green", "red"
STYLES = {Verdict.KNOWN: GOOD, Verdict.AT_BOUND: GOOD, Verdict.TOO_FEW: BAD, Verdict.NO_CURVE: BAD}
ADVICE = {
    Advice.TOO_EARLY: "too early to tell",
    Advice.FLAT: "look into the recipe: nothing has risen",
    Advice.LEVELLED_OFF: "stop: more compute hardly pays",
    Advice.RISING: "go on: more compute pays",
    Advice.UNCLEAR: "go on to know more",
}
HELD_OUT = "all but held out"
MOST_PAIRS = 15  # of more, only those with the most likely best curve are explained
LEFT = ("curve", "a", "b", "verdict", "what to do", "fitted on", "asked", "note")
IN_FIRST_LINES = (NoteKind.LEVELS_OFF, NoteKind.DOUBLING)
IN_PAIR_TABLE = (NoteKind.CEILING_DIFFERENCE, NoteKind.COMPUTE_RATIO, NoteKind.EXPONENT, NoteKind.RUN_SPREAD)
QUIET_FACTS = (
    "lines_taken", "rows_counted", "longest_history", "one_column_per_run", "short_attempts", "superseded",
    "files_joined", "runs_apart", "runs_by_column", "repeated_rows", "held_values", "start_at_zero",
    "start_from_evaluation",
)  # fmt: skip
"""What was decided about a log and hardly changes the answer: said by `explain` only."""


def render(
    analysis: Analysis,
    origins: Mapping[str, str] = MappingProxyType({}),
    *,
    explain: bool = False,
    hint: str = "--explain says more",
) -> Group:
    """Return the answer of a command; the decision first. `origins`: of the columns that the user did not name."""
    answers = {"fit": _fit, "forecast": _forecast, "backtest": _backtest, "compare": _compare}
    parts: list[Part] = [
        *answers[analysis.command](analysis),
        Text(_columns_line(analysis, origins, "" if explain else hint), style="dim"),
        *_facts(analysis, every=explain),
        *(Text(note_text(each), style="yellow") for each in analysis.notes),
        *(_explained(analysis) if explain else ()),
    ]
    return Group(*(part.rich() if isinstance(part, Table) else Text(part) if isinstance(part, str) else part
                   for part in parts))  # fmt: skip


# The answers of the commands


def _fit(analysis: Analysis) -> Iterator[Part]:
    yield fit_table(analysis)


def fit_table(analysis: Analysis, title: str = "") -> Table:
    """Return a line per curve: verdict, ceiling, what doubling brings, forecasts that were asked for, what to do."""
    at = [row.compute for row in next((curve.at for curve in analysis.curves if curve.at), ())]
    rows = []
    for curve in analysis.curves:
        verdict = Text(curve.verdict, style=STYLES.get(curve.verdict, "yellow"))
        gain = interval_text(curve.doubling, fixed(decimals(curve.fit), "+"))
        answers = [interval_text(row.reward, fixed(decimals(curve.fit))) for row in curve.at] or ["-"] * len(at)
        rows.append((curve.name, verdict, ceiling_cell(curve), gain, *answers, to_do(curve)))
    heads = ("verdict", _ceiling_head(analysis), "doubling brings", *(f"at {compute_text(each)}" for each in at))
    return _table(("curve", *heads, "what to do"), rows, title)


def _forecast(analysis: Analysis) -> Iterator[Part]:
    rows = []
    for curve in analysis.curves:
        for at in curve.at:
            answer = interval_text(at.reward, fixed(decimals(curve.fit)))
            rows.append((curve.name, f"reward at {compute_text(at.compute)}", answer, _texts(at.notes)))
        for reach in curve.reach:
            rows.append((curve.name, f"compute for {reach.reward:g}", *_reach_cells(curve, reach)))
        if not curve.at and not curve.reach:
            rows.append((curve.name, "", "-", to_do(curve)))
    heads = ("curve", "asked", f"new evaluation [{_level(analysis):.0%}]", "note")
    shown = 4 if any(row[-1] for row in rows) else 3
    yield _table(heads[:shown], [row[:shown] for row in rows])


def _reach_cells(curve: CurveResult, row: Reach) -> tuple[str, str]:
    """Return (answer, note). The answer is "never" only if that is as certain as an end of the interval."""
    text, share = _texts(row.notes), row.p_above_ceiling
    if row.compute is not None:
        return interval_text(row.compute, compute_text), text
    if share is None:
        return "not known", text
    if share >= tails(curve.fit.level)[1]:
        return "never", text
    return f"not known: P(above ceiling) {share:.2f}", ""


def _backtest(analysis: Analysis) -> Iterator[Part]:
    scores = []
    for curve in analysis.curves:
        scores += [] if curve.holdout is None else [(curve, HELD_OUT, curve.holdout)]
        scores += [(curve, f"first {share:.0%}", early.holdout) for share, early in curve.early]
    yield score_table(scores)
    for curve in analysis.curves:
        for share, early in curve.early:
            if why := why_unscored(early, share):
                yield Text(f"{curve.name}, first {share:.0%}: not scored. {note_text(why)}", style="dim")
    ranking = analysis.form_ranking
    if ranking is not None and not ranking.errors:
        yield f"Forms are not ranked: on no curve do all of them have an error on {ranking.scored_on}."
    elif ranking is not None:
        ranked = ", ".join(f"{name} {error_text(rmse)}" for name, rmse in ranking.errors)
        curves = f"{ranking.num_curves} curve{'s' if ranking.num_curves > 1 else ''}"
        yield f"Forms by their error on {ranking.scored_on} (median RMSE over {curves}): {ranked}."
    yield from _problems(analysis)


def score_table(scores: Sequence[tuple[CurveResult, str, Score | None]], title: str = "") -> Table:
    """Return how forecasts did: (curve, what it was fitted on, its score)."""
    rows = []
    for curve, fitted_on, score in scores:
        cells = ("-",) * 4
        if score is not None:
            inside = "-" if math.isnan(score.coverage) else f"{score.coverage:.0%} of {score.level:.0%}"
            cells = (str(score.num_points), error_text(score.rmse), error_text(score.bias, "+"), inside)
        rows.append((curve.name, fitted_on, *cells))
    whole = [score for _, fitted_on, score in scores if score is not None and fitted_on == HELD_OUT]
    if len(whole) > 1:
        num = sum(score.num_points for score in whole)
        inside = sum(score.coverage * score.num_points for score in whole) / num
        error = error_text(median(score.rmse for score in whole))
        rows.append((f"median of {len(whole)}", HELD_OUT, str(num), error, "", f"{inside:.0%} of all"))
    return _table(("curve", "fitted on", "scored", "RMSE", "bias", "inside"), rows, title)


def _compare(analysis: Analysis) -> Iterator[Part]:
    """Yield the choice within each evaluation set, then a line per curve, the best first."""
    by_name = {curve.name: curve for curve in analysis.curves}
    for name, comparison in analysis.comparisons.items():
        p_best = dict(comparison.ranking)
        members = dict.fromkeys([*p_best, *(side for pair in comparison.pairs for side in (pair.a, pair.b))])
        order = ranked(comparison, list(members), analysis.at)
        against = {each: pair for each in order if (pair := pair_of(comparison, order[0], each)) is not None}
        within = f" in {name}" if name else ""
        first = lead(comparison, order, at=analysis.at)
        assert first is not None
        yield Text(f"{lead_text(first, _finest(analysis) + 1, analysis.at)}{within}.", style="bold")
        rows = [
            (
                each,
                f"{p_best[each]:.2f}" if each in p_best and len(p_best) > 1 else "-",
                ceiling_cell(by_name[each]),
                against[each].verdict if each in against else "",
            )
            for each in order
        ]
        yield _table(("curve", "P(best)", _ceiling_head(analysis), "verdict"), rows)
    yield from _problems(analysis)


def _problems(analysis: Analysis) -> Iterator[Part]:
    """Yield why series have no curve, for answers whose tables do not say it."""
    for curve in analysis.curves:
        if curve.series.problem:
            yield Text(f"{curve.name} has no curve: {curve.series.problem}", style="yellow")


# What explains them


def _explained(analysis: Analysis) -> Iterator[Part]:
    """Yield the parameters of the fits, what to conclude from each, and the pairs."""
    yield details_table(analysis)
    in_first_lines = IN_FIRST_LINES if analysis.command in ("fit", "compare") else ()
    for curve in analysis.curves:
        if texts := _texts([each for each in curve.conclusions if each.kind not in in_first_lines]):
            yield f"{curve.name}: {texts}"
    if analysis.comparisons:
        yield from pair_parts(analysis)


def details_table(analysis: Analysis) -> Table:
    is_pooled = any(curve.fit.unpooled is not None for curve in analysis.curves)
    alone = ("ceiling alone",) if is_pooled else ()
    rows = []
    for curve in analysis.curves:
        fit = curve.fit
        show = fixed(decimals(fit))
        rows.append(
            (
                curve.name,
                str(fit.num_points if curve.is_fitted else len(curve.series.compute)),
                str(fit.num_runs if curve.is_fitted else "-"),
                *[interval_text(param_value(fit.unpooled, "ceiling"), show) for _ in alone],
                interval_text(param_value(fit, "exponent"), two_decimals),
                interval_text(param_value(fit, "midpoint"), compute_text),
                interval_text(param_value(fit, "start"), show),
                "-" if math.isnan(fit.noise_sd) else fixed(decimals(fit) + 1)(fit.noise_sd),
            )
        )
    heads = ("curve", "points", "runs", *alone, "exponent", "midpoint", "start", "noise")
    return _table(heads, rows, title="\nFits")


def pair_parts(analysis: Analysis) -> Iterator[Part]:
    """Yield the table of pairs and what else there is to know about them."""
    exponents = {name: value for each in analysis.comparisons.values() for name, value in each.shared_exponents.items()}
    best = {comparison.ranking[0][0] for comparison in analysis.comparisons.values() if comparison.ranking}
    pairs = [pair for pair in analysis.pairs if len(analysis.pairs) <= MOST_PAIRS or pair.a in best or pair.b in best]
    rows = []
    for pair in pairs:
        both = [exponents[name].value for name in (pair.a, pair.b) if name in exponents]
        target = ("-", "-")
        if pair.target is not None:
            reward = fixed(_finest(analysis))(pair.target.reward)
            target = (interval_text(pair.target.ratio, compute_text), reward)
        slopes = " / ".join(map(two_decimals, both)) if len(both) == 2 else "-"
        steeper = (slopes, _share(pair.p_larger_exponent))
        rows.append((pair.a, pair.b, _share(pair.p_higher_ceiling), *target, *steeper, pair.verdict))
    heads = ("a", "b", "P(higher ceiling)", "compute a / b", "for reward", "exponents", "P(larger)", "verdict")
    yield _table(heads, rows, title="\nPairs")
    if len(pairs) < len(analysis.pairs):
        yield f"Pairs with the most likely best curve; {len(analysis.pairs) - len(pairs)} more are in --json."
    for comparison in analysis.comparisons.values():
        if comparison.shared_ceiling is not None:
            slopes = [f"{name} {interval_text(exponents[name], two_decimals)}" for name in comparison.shared_exponents]
            yield f"Exponents at one ceiling of {number_text(comparison.shared_ceiling)}: {', '.join(slopes)}."
    for pair in pairs:
        if texts := _texts([each for each in pair.notes if each.kind not in IN_PAIR_TABLE]):
            yield f"{pair.a} / {pair.b}: {texts}"
    spreads = [spread for pair in pairs if (spread := find_note(pair.notes, NoteKind.RUN_SPREAD)) is not None]
    if spreads:
        names = list(dict.fromkeys(name for spread in spreads for name in spread.names))
        yield note_text(note(NoteKind.RUN_SPREAD, names=(listed(names),), sd=max(each.sd for each in spreads)))


# Cells


def to_do(curve: CurveResult) -> str:
    """Return what to do with a run, in a few words."""
    fit, advice = curve.fit, curve.advice
    if curve.series.problem:
        return curve.series.problem
    if advice == Advice.TOO_EARLY and fit.notes:
        return note_text(fit.notes[-1]).removesuffix(".")
    if fit.fall is not None:
        return f"take the checkpoint at {compute_text(fit.fall.compute)}"
    wide = find_note(fit.notes, NoteKind.WIDE_CEILING)
    if advice != Advice.LEVELLED_OFF and wide is not None and wide.times is not None:
        return f"go on: about {wide.times:g} times the compute should show the ceiling"
    return ADVICE[advice]


def ceiling_cell(curve: CurveResult) -> str:
    """Return the ceiling with its interval, or the reward at the peak of a run that fell after it."""
    fit = curve.fit
    show = fixed(decimals(fit))
    if not fit.usable or fit.verdict == Verdict.FLAT:
        return "-"
    return f"peak {show(fit.fall.best)}" if fit.fall is not None else interval_text(param_value(fit, "ceiling"), show)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str = "") -> Table:
    return Table(heads=heads, rows=rows, left=LEFT, title=title)


def _level(analysis: Analysis) -> float:
    return analysis.curves[0].fit.level


def _ceiling_head(analysis: Analysis) -> str:
    return f"ceiling [{_level(analysis):.0%}]"


def _finest(analysis: Analysis) -> int:
    """Return the largest number of decimals that any reward needs."""
    return max((decimals(curve.fit) for curve in analysis.curves if curve.is_fitted), default=3)


def _share(probability: float) -> str:
    return "-" if math.isnan(probability) else f"{probability:.2f}"


def _texts(notes: Sequence[Note]) -> str:
    return " ".join(map(note_text, notes))


# Columns and facts


def _columns_line(analysis: Analysis, origins: Mapping[str, str], hint: str) -> str:
    """Return which columns are compute and reward: 'compute: step (recognised), reward: pass_rate'."""
    compute = _columns({curve.name: curve.series.x_label for curve in analysis.curves}, origins)
    reward = _columns({curve.name: curve.series.y_label for curve in analysis.curves}, origins)
    advice = ["name others with --x and --y"] if origins else []
    return "; ".join(filter(None, [f"compute: {compute}, reward: {reward}", *advice, hint]))


def _columns(by_curve: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Return each column once, with its curves where there are several columns."""
    curves: dict[str, list[str]] = {}
    for name, column in by_curve.items():
        curves.setdefault(column, []).append(name)
    described = {column: f"{column} ({origins[column]})" if column in origins else column for column in curves}
    if len(curves) == 1:
        return "".join(described.values())
    return " / ".join(f"{described[column]} of {listed(names)}" for column, names in curves.items())


def _facts(analysis: Analysis, *, every: bool) -> Iterator[Part]:
    """Yield each fact about the logs once, with the curves that it holds for."""
    holders: dict[str, tuple[Fact, list[str]]] = {}
    for curve in analysis.curves:
        for fact in curve.series.facts:
            holders.setdefault(repr(fact), (fact, []))[1].append(curve.name)
    for fact, names in holders.values():
        if every or fact.kind not in QUIET_FACTS:
            whose = "" if len(names) == len(analysis.curves) else f"{listed(names)}: "
            yield f"{whose}{sentence(fact)}"
