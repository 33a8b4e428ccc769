"""An analysis for the terminal: tables, and one plain sentence per curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scalerl.curves import (
    Comparison,
    Fit,
    Note,
    NoteKind,
    Pair,
    PairKind,
    Reach,
    Score,
    Verdict,
    find_note,
    note,
    note_text,
    pair_verdict,
    tails,
)
from scalerl.logs.facts import Fact, sentence
from scalerl.logs.names import listed
from scalerl.report.numbers import compute_text, decimals, fixed, interval_text, two_decimals
from scalerl.report.results import Analysis, CurveResult, FormRanking, param_value
from scalerl.report.words import curve_text

STYLES = {Verdict.KNOWN: "green", Verdict.TOO_FEW: "red", Verdict.NO_CURVE: "red"}
PAIR_STYLES = {PairKind.NOT_SEPARABLE: "dim", PairKind.NOT_COMPARABLE: "dim", PairKind.NO_CURVE: "red"}
MOST_PAIRS = 15  # of more, only those with the most likely best curve are shown
NARROWEST = 14  # letters that a column of names keeps on a narrow terminal
LONG_NAME = 20  # letters from which a verdict says "a" or "b" instead of a name that stands beside it
IN_TABLE = (NoteKind.CEILING_DIFFERENCE, NoteKind.COMPUTE_RATIO, NoteKind.EXPONENT, NoteKind.RUN_SPREAD)
"""Notes of a pair whose numbers stand in the table of pairs, or that are printed once for all pairs."""


def render(analysis: Analysis, origins: Mapping[str, str] | None = None) -> Group:
    """Render all results of an analysis for the terminal, the most important first.

    `origins` says where the columns come from that the user did not name.
    """
    parts: list[Table | Text] = [_curve_table(analysis), Text(_columns_line(analysis, origins or {}), style="dim")]
    if any(curve.holdout is not None or curve.fractions for curve in analysis.curves):
        parts.append(_score_table(analysis))
        parts.extend(_unscored(analysis))
    if any(curve.at or curve.reach for curve in analysis.curves):
        parts.append(_forecast_table(analysis))
    if analysis.form_ranking is not None:
        parts.append(Text(_forms_sentence(analysis.form_ranking, _finest(analysis))))
    if analysis.comparisons:
        parts.extend(_comparison_parts(analysis))
    parts.append(Text())
    shared = _shared_facts(analysis)
    parts.extend(_sentence(curve, shared) for curve in analysis.curves)
    parts.extend(Text(f"All curves: {sentence(fact)}") for fact in shared)
    parts.extend(Text(note_text(each), style="yellow") for each in analysis.notes)
    return Group(*parts)


def _finest(analysis: Analysis) -> int:
    """Return the largest number of decimals that any reward needs."""
    return max((decimals(curve.fit) for curve in analysis.curves if curve.fit is not None), default=3)


WORDS = ("curve", "a", "b", "verdict", "fitted on", "asked", "note")


def _table(analysis: Analysis, title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None)
    longest = max(len(curve.name) for curve in analysis.curves)
    for column in columns:
        names = column in ("curve", "a", "b", "note")
        side = "left" if column in WORDS else "right"
        wraps = names or column == "verdict"
        table.add_column(
            column,
            justify=side,
            overflow="fold",
            no_wrap=not wraps,
            min_width=min(NARROWEST, longest) if names else None,
        )
    return table


# Tables ---------------------------------------------------------------------------------------------------------------


def _curve_table(analysis: Analysis) -> Table:
    first = next((curve.fit for curve in analysis.curves if curve.fit is not None), None)
    level = first.level if first is not None else 0.9
    is_pooled = any(curve.fit is not None and curve.fit.unpooled is not None for curve in analysis.curves)
    alone = ["ceiling alone"] if is_pooled else []
    head = f"ceiling [{level:.0%}]"
    table = _table(analysis, "", "curve", "points", head, *alone, "exponent", "midpoint", "start", "verdict")
    for curve in analysis.curves:
        fit = curve.fit
        table.add_row(
            curve.name,
            str(fit.num_points if fit is not None else len(curve.series.compute)),
            _ceiling_cell(fit),
            *[_alone(fit) for _ in alone],
            interval_text(param_value(fit, "exponent"), two_decimals),
            interval_text(param_value(fit, "midpoint"), compute_text),
            interval_text(param_value(fit, "start"), fixed(decimals(fit))),
            Text(curve.verdict, style=STYLES.get(curve.verdict, "yellow")),
        )
    return table


def _ceiling_cell(fit: Fit | None) -> str:
    """Return the ceiling with its interval, or the reward at the peak of a run that fell after it."""
    show = fixed(decimals(fit))
    if fit is not None and fit.fall is not None:
        return f"peak {show(fit.fall.best)}"
    return interval_text(param_value(fit, "ceiling"), show)


def _alone(fit: Fit | None) -> str:
    """Return the ceiling of the fit before pooling; empty if the fit is not pooled."""
    own = fit.unpooled if fit is not None else None
    return "" if own is None else interval_text(param_value(own, "ceiling"), fixed(decimals(own)))


def _columns_line(analysis: Analysis, origins: Mapping[str, str]) -> str:
    """Return which columns are compute and reward: 'compute: step (recognised), reward: pass_rate'."""
    compute = _columns({curve.name: curve.series.x_label for curve in analysis.curves}, origins)
    reward = _columns({curve.name: curve.series.y_label for curve in analysis.curves}, origins)
    advice = "; name others with --x and --y" if origins else ""
    return f"compute: {compute}, reward: {reward}{advice}"


def _columns(by_curve: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Return each column once, with its curves where there are several columns."""
    curves: dict[str, list[str]] = {}
    for name, column in by_curve.items():
        curves.setdefault(column, []).append(name)
    described = {column: f"{column} ({origins[column]})" if column in origins else column for column in curves}
    if len(curves) == 1:
        return "".join(described.values())
    return " / ".join(f"{described[column]} of {listed(names)}" for column, names in curves.items())


def _score_table(analysis: Analysis) -> Table:
    table = _table(
        analysis, "\nForecast against what happened", "curve", "fitted on", "scored", "RMSE", "bias", "coverage"
    )

    def add(curve: CurveResult, fitted_on: str, score: Score | None) -> None:
        if score is None:
            table.add_row(curve.name, fitted_on, "-", "-", "-", "-")
            return
        digits = decimals(curve.fit) + 1
        coverage = "-" if math.isnan(score.coverage) else f"{score.coverage:.0%} of {score.level:.0%}"
        error, bias = fixed(digits)(score.rmse), fixed(digits, "+")(score.bias)
        table.add_row(curve.name, fitted_on, str(score.num_points), error, bias, coverage)

    for curve in analysis.curves:
        if curve.holdout is not None:
            add(curve, "all but held out", curve.holdout)
        for share, score in curve.fractions:
            add(curve, f"first {share:.0%}", score)
    held = [curve.holdout for curve in analysis.curves if curve.holdout is not None]
    if len(held) > 1:
        num = sum(score.num_points for score in held)
        pooled = sum(score.coverage * score.num_points for score in held) / num
        middle = sorted(score.rmse for score in held)
        median = (middle[(len(middle) - 1) // 2] + middle[len(middle) // 2]) / 2
        table.add_section()
        error = fixed(_finest(analysis) + 1)(median)
        table.add_row(f"median of {len(held)}", "all but held out", str(num), error, "", f"{pooled:.0%} pooled")
    return table


def _unscored(analysis: Analysis) -> Iterator[Text]:
    """Yield, for each dash in the table, why there is no score."""
    for curve in analysis.curves:
        for share, why in curve.unscored:
            yield Text(f"{curve.name}, first {share:.0%}: not scored. {note_text(why)}", style="dim")


def _forecast_table(analysis: Analysis) -> Table:
    table = _table(analysis, "\nForecast (of a new evaluation)", "curve", "asked", "answer", "note")
    for curve in analysis.curves:
        for row in curve.at:
            answer = interval_text(row.reward, fixed(decimals(curve.fit)))
            table.add_row(curve.name, f"reward at {compute_text(row.compute)}", answer, _texts(row.notes))
        for row in curve.reach:
            table.add_row(curve.name, f"compute for {row.reward:g}", *_reach_cells(curve, row))
    return table


def _reach_cells(curve: CurveResult, row: Reach) -> tuple[str, str]:
    """Return (answer, note). The answer is "never" only if that is as certain as an end of the interval."""
    text, share = _texts(row.notes), row.p_above_ceiling
    if row.compute is not None:
        return interval_text(row.compute, compute_text), text
    if share is None or curve.fit is None:
        return "not known", text
    if share >= tails(curve.fit.level)[1]:
        return "never", text
    return f"not known: P(above ceiling) {share:.2f}", ""


def _texts(notes: Sequence[Note]) -> str:
    return " ".join(map(note_text, notes))


def _forms_sentence(ranking: FormRanking, digits: int) -> str:
    if not ranking.errors:
        return f"\nForms are not ranked: on no curve do all of them have an error on {ranking.scored_on}."
    ranked = ", ".join(f"{name} {fixed(digits + 1)(rmse)}" for name, rmse in ranking.errors)
    curves = f"{ranking.num_curves} curve{'s' if ranking.num_curves > 1 else ''}"
    return f"\nForms by their error on {ranking.scored_on} (median RMSE over {curves}): {ranked}."


def _comparison_parts(analysis: Analysis) -> Iterator[Table | Text]:
    heads = ("P(higher ceiling)", "compute a / b", "for reward", "exponents", "P(larger)", "verdict")
    table = _table(analysis, "\nPairs", "a", "b", *heads)
    exponents = {name: value for each in analysis.comparisons.values() for name, value in each.shared_exponents.items()}
    pairs = _shown_pairs(analysis)
    for pair in pairs:
        both = [exponents[name].value for name in (pair.a, pair.b) if name in exponents]
        table.add_row(
            pair.a,
            pair.b,
            _share(pair.p_higher_ceiling),
            "-" if pair.target is None else interval_text(pair.target.ratio, compute_text),
            "-" if pair.target is None else fixed(_finest(analysis))(pair.target.reward),
            " / ".join(map(two_decimals, both)) if len(both) == 2 else "-",
            _share(pair.p_larger_exponent),
            Text(_short_verdict(pair), style=PAIR_STYLES.get(pair.kind, "green")),
        )
    yield table
    if len(pairs) < len(analysis.pairs):
        more = len(analysis.pairs) - len(pairs)
        yield Text(f"Pairs with the most likely best curve; {more} others are in --json.", style="dim")
    for name, comparison in analysis.comparisons.items():
        yield from _ranking_parts(analysis, f" in {name}" if name else "", comparison)
    yield from _pair_notes(analysis)


def _share(probability: float) -> str:
    return "-" if math.isnan(probability) else f"{probability:.2f}"


def _shown_pairs(analysis: Analysis) -> list[Pair]:
    """Return all pairs or, if there are many, those with the curve that is most likely the best of its set."""
    if len(analysis.pairs) <= MOST_PAIRS:
        return list(analysis.pairs)
    best = {comparison.ranking[0][0] for comparison in analysis.comparisons.values() if comparison.ranking}
    return [pair for pair in analysis.pairs if pair.a in best or pair.b in best]


def _short_verdict(pair: Pair) -> str:
    if pair.winner is None or len(pair.winner) < LONG_NAME:
        return pair.verdict
    return pair_verdict(pair.kind, "a" if pair.winner == pair.a else "b")


def _ranking_parts(analysis: Analysis, within: str, comparison: Comparison) -> Iterator[Text]:
    if comparison.shared_ceiling is not None:
        exponents = ", ".join(
            f"{name} {interval_text(value, two_decimals)}" for name, value in comparison.shared_exponents.items()
        )
        ceiling = fixed(_finest(analysis))(comparison.shared_ceiling)
        yield Text(f"\nExponents with one ceiling of {ceiling} for all{within}: {exponents}.")
    if not comparison.standings:
        return
    where = "by ceiling" if analysis.at is None else f"at compute {compute_text(analysis.at)}"
    best = ", ".join(f"{each.name} {each.p_best:.0%}" for each in comparison.standings)
    regret = fixed(_finest(analysis) + 1)(comparison.standings[0].regret)
    yield Text(f"\nProbability to be the best {where}{within}: {best}. Taking the first now should cost {regret}.")


def _pair_notes(analysis: Analysis) -> Iterator[Text]:
    """Yield what the table does not show of each pair, then once the spread assumed for single runs."""
    for pair in _shown_pairs(analysis):
        texts = [note_text(each) for each in pair.notes if each.kind not in IN_TABLE]
        if texts:
            yield Text(f"{pair.a} / {pair.b}: {' '.join(texts)}", style="dim")
    spreads = [spread for pair in analysis.pairs if (spread := find_note(pair.notes, NoteKind.RUN_SPREAD)) is not None]
    if spreads:
        names = list(dict.fromkeys(name for spread in spreads for name in spread.names))
        shared = note(NoteKind.RUN_SPREAD, names=(listed(names),), sd=max(spread.sd for spread in spreads))
        yield Text(note_text(shared), style="dim")


# Sentences ------------------------------------------------------------------------------------------------------------


def _shared_facts(analysis: Analysis) -> list[Fact]:
    """Return the facts that hold for all of several curves, to be printed once."""
    first, *others = analysis.curves
    return [fact for fact in first.series.facts if others and all(fact in curve.series.facts for curve in others)]


def _sentence(curve: CurveResult, shared: Sequence[Fact]) -> Text:
    own = tuple(fact for fact in curve.series.facts if fact not in shared)
    curve = replace(curve, series=replace(curve.series, facts=own))
    text = Text()
    text.append(f"{curve.name}: ", style="bold")
    text.append(curve_text(curve))
    return text
