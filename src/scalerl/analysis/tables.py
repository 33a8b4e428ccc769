"""An analysis for the terminal: a table, and one plain sentence a curve."""

import math
from collections.abc import Callable, Iterator, Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scalerl.analysis.results import Analysis, CurveResult, FormRanking, param_value
from scalerl.curves import Comparison, Fit, Pair, Reach, Score, Value, doubling
from scalerl.curves.fit import tails
from scalerl.logs.table import listed

STYLES = {
    "ok": "green",
    "ceiling not identifiable yet": "yellow",
    "at a bound": "yellow",
    "unstable": "red",
    "too few points": "red",
    "no curve": "red",
}
PAIR_STYLES = {"not separable": "dim", "no curve": "red"}


def render(analysis: Analysis, origins: Mapping[str, str] | None = None) -> Group:
    """Everything an analysis holds, in the order a reader wants it.

    `origins` says of the columns that the user did not name where they come from.
    """
    parts: list[Table | Text] = [_curve_table(analysis), Text(_columns_line(analysis, origins or {}), style="dim")]
    if any(curve.holdout is not None or curve.fractions for curve in analysis.curves):
        parts.append(_score_table(analysis))
    if any(curve.at or curve.reach for curve in analysis.curves):
        parts.append(_forecast_table(analysis))
    if analysis.form_ranking is not None:
        parts.append(Text(_forms_sentence(analysis.form_ranking, _finest(analysis))))
    if analysis.comparisons:
        parts.extend(_comparison_parts(analysis))
    parts.append(Text())
    parts.extend(_sentence(curve) for curve in analysis.curves)
    parts.extend(Text(note, style="yellow") for note in analysis.notes)
    return Group(*parts)


# Numbers --------------------------------------------------------------------------------------------------------------


def compute_text(value: float) -> str:
    """1,234 or 1.23e+18, whichever reads better."""
    if not math.isfinite(value):
        return "unbounded"
    if 0.01 <= abs(value) < 1e7:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.3g}"


def decimals(fit: Fit | None) -> int:
    """Of a reward: three where rewards lie in [0, 1], fewer the wider they range."""
    if fit is None:
        return 3
    span = fit.bounds[1] - fit.bounds[0]
    return min(max(3 - math.floor(math.log10(span)), 0), 9)


def _finest(analysis: Analysis) -> int:
    return max((decimals(curve.fit) for curve in analysis.curves if curve.fit is not None), default=3)


def _reward(digits: int, sign: str = "") -> Callable[[float], str]:
    return lambda number: f"{number:{sign},.{digits}f}"


def _interval(value: Value | None, show: Callable[[float], str]) -> str:
    if value is None or not math.isfinite(value.value):
        return "-"
    if math.isnan(value.low) or value.low == value.high:
        return show(value.value)
    return f"{show(value.value)} [{show(value.low)}, {show(value.high)}]"


WORDS = ("curve", "a", "b", "verdict", "fitted on", "asked", "note")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None)
    for column in columns:
        names = column in ("curve", "a", "b", "note")
        table.add_column(column, justify="left" if column in WORDS else "right", overflow="fold", no_wrap=not names)
    return table


# Tables ---------------------------------------------------------------------------------------------------------------


def _curve_table(analysis: Analysis) -> Table:
    first = next((curve.fit for curve in analysis.curves if curve.fit is not None), None)
    level = first.level if first is not None else 0.9
    table = _table("", "curve", "points", f"ceiling [{level:.0%}]", "exponent", "midpoint", "start", "verdict")
    for curve in analysis.curves:
        fit = curve.fit
        table.add_row(
            curve.name,
            str(fit.num_points if fit is not None else len(curve.series.compute)),
            _interval(param_value(fit, "ceiling"), _reward(decimals(fit))),
            _interval(param_value(fit, "exponent"), lambda number: f"{number:.2f}"),
            _interval(param_value(fit, "midpoint"), compute_text),
            _interval(param_value(fit, "start"), _reward(decimals(fit))),
            Text(curve.verdict, style=STYLES.get(curve.verdict, "")),
        )
    return table


def _columns_line(analysis: Analysis, origins: Mapping[str, str]) -> str:
    """What was taken for compute and for reward: 'compute: step (recognised), reward: pass_rate'."""
    compute = _columns({curve.name: curve.series.x_label for curve in analysis.curves}, origins)
    reward = _columns({curve.name: curve.series.y_label for curve in analysis.curves}, origins)
    advice = "; name others with --x and --y" if origins else ""
    return f"compute: {compute}, reward: {reward}{advice}"


def _columns(by_curve: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Each column once, with its curves where there are several columns."""
    curves: dict[str, list[str]] = {}
    for name, column in by_curve.items():
        curves.setdefault(column, []).append(name)
    said = {column: f"{column} ({origins[column]})" if column in origins else column for column in curves}
    if len(curves) == 1:
        return "".join(said.values())
    return " / ".join(f"{said[column]} of {listed(names)}" for column, names in curves.items())


def _score_table(analysis: Analysis) -> Table:
    table = _table("\nForecast against what happened", "curve", "fitted on", "scored", "RMSE", "bias", "coverage")

    def add(curve: CurveResult, fitted_on: str, score: Score | None) -> None:
        if score is None:
            table.add_row(curve.name, fitted_on, "-", "-", "-", "-")
            return
        digits = decimals(curve.fit) + 1
        coverage = "-" if math.isnan(score.coverage) else f"{score.coverage:.0%} of {score.level:.0%}"
        error, bias = _reward(digits)(score.rmse), _reward(digits, "+")(score.bias)
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
        error = _reward(_finest(analysis) + 1)(median)
        table.add_row(f"median of {len(held)}", "all but held out", str(num), error, "", f"{pooled:.0%} pooled")
    return table


def _forecast_table(analysis: Analysis) -> Table:
    table = _table("\nForecast (of a new evaluation)", "curve", "asked", "answer", "note")
    for curve in analysis.curves:
        for row in curve.at:
            answer = _interval(row.reward, _reward(decimals(curve.fit)))
            table.add_row(curve.name, f"reward at {compute_text(row.compute)}", answer, row.message)
        for row in curve.reach:
            table.add_row(curve.name, f"compute for {row.reward:g}", *_reach_cells(curve, row))
    return table


def _reach_cells(curve: CurveResult, row: Reach) -> tuple[str, str]:
    """(answer, note). 'never' takes as much certainty as an end of an interval: a ceiling that may well lie above the
    reward is no answer."""
    if row.compute is not None:
        return _interval(row.compute, compute_text), row.message
    share = row.p_above_ceiling
    if share is None or curve.fit is None:
        return "not known", row.message
    if share >= tails(curve.fit.level)[1]:
        return "never", row.message
    return f"not known: P(above ceiling) {share:.2f}", ""


def _forms_sentence(ranking: FormRanking, digits: int) -> str:
    if not ranking.errors:
        return f"\nForms are not ranked: on no curve do all of them have an error on {ranking.scored_on}."
    ranked = ", ".join(f"{name} {_reward(digits + 1)(rmse)}" for name, rmse in ranking.errors)
    curves = f"{ranking.num_curves} curve{'s' if ranking.num_curves > 1 else ''}"
    return f"\nForms by their error on {ranking.scored_on} (median RMSE over {curves}): {ranked}."


def _comparison_parts(analysis: Analysis) -> Iterator[Table | Text]:
    table = _table("\nPairs", "a", "b", "P(higher ceiling)", "P(larger exponent)", "P(sooner)", "verdict")
    share = lambda value: "-" if math.isnan(value) else f"{value:.2f}"  # noqa: E731
    for pair in analysis.pairs:
        free = " (free)" if is_free(pair) else ""
        table.add_row(
            pair.a,
            pair.b,
            share(pair.p_higher_ceiling),
            share(pair.p_more_efficient) + free,
            share(pair.p_sooner) + free,
            Text(pair.verdict, style=PAIR_STYLES.get(pair.verdict, "green")),
        )
    yield table
    if any(map(is_free, analysis.pairs)):
        yield Text("(free): the ceilings are too far apart to share one; each curve keeps its own.", style="dim")
    for name, comparison in analysis.comparisons.items():
        yield from _ranking_parts(analysis, f" in {name}" if name else "", comparison)
    yield from _pair_notes(analysis)


def is_free(pair: Pair) -> bool:
    """Whether efficiencies are compared with each curve at its own ceiling."""
    return not pair.shared and pair.verdict != "no curve"


def _ranking_parts(analysis: Analysis, within: str, comparison: Comparison) -> Iterator[Text]:
    if comparison.shared_ceiling is not None:
        exponents = ", ".join(
            f"{name} {_interval(value, lambda number: f'{number:.2f}')}"
            for name, value in comparison.shared_exponents.items()
        )
        ceiling = _reward(_finest(analysis))(comparison.shared_ceiling)
        yield Text(f"\nExponents with one ceiling of {ceiling} for all{within}: {exponents}.")
    where = "by ceiling" if analysis.at is None else f"at compute {compute_text(analysis.at)}"
    best = ", ".join(f"{name} {share:.0%}" for name, share in comparison.ranking)
    yield Text(f"\nProbability to be the best {where}{within}: {best}.")


def _pair_notes(analysis: Analysis) -> Iterator[Text]:
    """Each pair's words on one line; what is assumed of single runs, which every pair of them says, once."""
    spreads = set()
    for pair in analysis.pairs:
        words = pair.messages
        if pair.assumed_run_sd is not None:
            spreads.add(pair.assumed_run_sd)
            words = [word for word in words if "between runs is assumed" not in word]
        if words:
            yield Text(f"{pair.a} / {pair.b}: {' '.join(words)}", style="dim")
    fits = {curve.name: curve.fit for curve in analysis.curves if curve.fit is not None}
    single = [name for name, fit in fits.items() if fit.num_runs == 1]
    which = f" ({listed(single)})" if len(single) < len(fits) else ""
    for spread in sorted(spreads):
        yield Text(
            f"Single runs{which}: a spread of {spread:.3g} between runs is assumed for the ceiling.", style="dim"
        )


# Sentences ------------------------------------------------------------------------------------------------------------


def _sentence(curve: CurveResult) -> Text:
    text = Text()
    text.append(f"{curve.name}: ", style="bold")
    text.append(sentence(curve))
    return text


def sentence(curve: CurveResult) -> str:
    """What a person should take away from one curve."""
    fit = curve.fit
    said = " ".join(curve.messages)
    if fit is None or not fit.usable or fit.draws is None:
        return said or curve.verdict
    ceiling = param_value(fit, "ceiling")
    assert ceiling is not None
    reward, change, more = _reward(decimals(fit)), _reward(decimals(fit), "+"), doubling(fit)
    gain = f"doubling the compute of {compute_text(fit.scale)} should bring {_interval(more, change)}"
    if fit.verdict == "unstable":
        return said
    if fit.verdict == "ceiling not identifiable yet":
        return f"the ceiling lies somewhere in {reward(ceiling.low)} to {reward(ceiling.high)}; {gain}. {said}"
    if fit.form == "log-linear":
        return f"a log-linear law has no ceiling below 1; {gain}. {said}".rstrip()
    return (
        f"levels off at {reward(ceiling.value)} ({fit.level:.0%} between {reward(ceiling.low)} and "
        f"{reward(ceiling.high)}); {gain}. {said}"
    ).rstrip()
