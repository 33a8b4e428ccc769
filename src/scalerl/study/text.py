"""An analysis for the terminal: a table, and one plain sentence a curve."""

import math
from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scalerl.curves import Pair, Score, Value, doubling
from scalerl.study.analysis import Analysis, CurveResult, param_value

STYLES = {
    "ok": "green",
    "ceiling not identifiable yet": "yellow",
    "at a bound": "yellow",
    "unstable": "red",
    "too few points": "red",
    "no curve": "red",
}


def render(analysis: Analysis) -> Group:
    """Everything an analysis holds, in the order a reader wants it."""
    parts: list[Table | Text] = [_curve_table(analysis)]
    if any(curve.holdout is not None or curve.fractions for curve in analysis.curves):
        parts.append(_score_table(analysis))
    if any(curve.at or curve.reach for curve in analysis.curves):
        parts.append(_forecast_table(analysis))
    if analysis.form_ranking:
        parts.append(Text(_forms_sentence(analysis)))
    if analysis.comparison is not None:
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


def _interval(value: Value | None, show=lambda number: f"{number:.3f}") -> str:
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
            _interval(param_value(fit, "ceiling")),
            _interval(param_value(fit, "exponent"), lambda number: f"{number:.2f}"),
            _interval(param_value(fit, "midpoint"), compute_text),
            _interval(param_value(fit, "start")),
            Text(curve.verdict, style=STYLES.get(curve.verdict, "")),
        )
    return table


def _score_table(analysis: Analysis) -> Table:
    table = _table("\nForecast against what happened", "curve", "fitted on", "scored", "RMSE", "bias", "coverage")

    def add(name: str, fitted_on: str, score: Score | None) -> None:
        if score is None:
            table.add_row(name, fitted_on, "-", "-", "-", "-")
        else:
            coverage = "-" if math.isnan(score.coverage) else f"{score.coverage:.0%} of {score.level:.0%}"
            table.add_row(name, fitted_on, str(score.num_points), f"{score.rmse:.4f}", f"{score.bias:+.4f}", coverage)

    for curve in analysis.curves:
        if curve.holdout is not None:
            add(curve.name, "all but held out", curve.holdout)
        for share, score in curve.fractions:
            add(curve.name, f"first {share:.0%}", score)
    held = [curve.holdout for curve in analysis.curves if curve.holdout is not None]
    if len(held) > 1:
        num = sum(score.num_points for score in held)
        pooled = sum(score.coverage * score.num_points for score in held) / num
        middle = sorted(score.rmse for score in held)
        median = (middle[(len(middle) - 1) // 2] + middle[len(middle) // 2]) / 2
        table.add_section()
        table.add_row(
            f"median of {len(held)}", "all but held out", str(num), f"{median:.4f}", "", f"{pooled:.0%} pooled"
        )
    return table


def _forecast_table(analysis: Analysis) -> Table:
    table = _table("\nForecast (of a new evaluation)", "curve", "asked", "answer", "note")
    for curve in analysis.curves:
        for row in curve.at:
            table.add_row(curve.name, f"reward at {compute_text(row.compute)}", _interval(row.reward), "")
        for row in curve.reach:
            answer = _interval(row.compute, compute_text) if row.compute is not None else "never"
            table.add_row(curve.name, f"compute for {row.reward:g}", answer, row.message)
    return table


def _forms_sentence(analysis: Analysis) -> str:
    ranked = ", ".join(f"{name} {rmse:.4f}" for name, rmse, _ in analysis.form_ranking)
    num = analysis.form_ranking[0][2]
    return f"\nForms by their error on unseen points (median RMSE over {num} curve{'s' if num > 1 else ''}): {ranked}."


def _comparison_parts(analysis: Analysis) -> Iterator[Table | Text]:
    comparison = analysis.comparison
    assert comparison is not None
    table = _table("\nPairs", "a", "b", "P(higher ceiling)", "P(larger exponent)", "P(sooner)", "verdict")
    share = lambda value: "-" if math.isnan(value) else f"{value:.2f}"  # noqa: E731
    for pair in comparison.pairs:
        table.add_row(
            pair.a,
            pair.b,
            share(pair.p_higher_ceiling),
            share(pair.p_more_efficient),
            share(pair.p_sooner),
            Text(pair.verdict, style="dim" if pair.verdict == "not separable" else "green"),
        )
    yield table
    if comparison.shared_ceiling is not None:
        exponents = ", ".join(
            f"{name} {_interval(value, lambda number: f'{number:.2f}')}"
            for name, value in comparison.shared_exponents.items()
        )
        yield Text(f"\nExponents with one ceiling of {comparison.shared_ceiling:.3f} for all: {exponents}.")
    where = "by ceiling" if analysis.at is None else f"at compute {compute_text(analysis.at)}"
    best = ", ".join(f"{name} {share:.0%}" for name, share in comparison.ranking)
    yield Text(f"\nProbability to be the best {where}: {best}.")
    yield from _pair_notes(comparison.pairs)


def _pair_notes(pairs: tuple[Pair, ...]) -> Iterator[Text]:
    """Each pair's words on one line. What all single runs share is said once, and verdicts stand in the table."""
    assumed: dict[str, None] = {}
    for pair in pairs:
        own = []
        for message in pair.messages:
            if message.startswith("One run of"):
                assumed[message.partition(": ")[2]] = None
            elif not message.endswith("free exponents.") and not message.startswith((f"{pair.a}: ", f"{pair.b}: ")):
                own.append(message)
        if own:
            yield Text(f"{pair.a} / {pair.b}: {' '.join(own)}", style="dim")
    for assumption in assumed:
        yield Text(f"Single runs: {assumption}", style="dim")


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
    more = doubling(fit)
    gain = (
        f"doubling the compute of {compute_text(fit.scale)} should bring {more.value:+.3f} "
        f"[{more.low:+.3f}, {more.high:+.3f}]"
    )
    if fit.verdict == "unstable":
        return said
    if fit.verdict == "ceiling not identifiable yet":
        return f"the ceiling lies somewhere in {ceiling.low:.3f} to {ceiling.high:.3f}; {gain}. {said}"
    if fit.form == "log-linear":
        return f"a log-linear law has no ceiling below 1; {gain}. {said}".rstrip()
    return (
        f"levels off at {ceiling.value:.3f} ({fit.level:.0%} between {ceiling.low:.3f} and {ceiling.high:.3f}); "
        f"{gain}. {said}"
    ).rstrip()
