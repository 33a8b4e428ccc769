"""The report as Markdown: the tables and sentences of the terminal, with pictures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scalerl.report.tables import Table, shielded
from scalerl.report.text import Part, details_table, fit_table, pair_parts, score_table
from scalerl.report.views import ALL, Report

Pictures = Mapping[str, Sequence[tuple[str, str]]]


def markdown(report: Report, content: Mapping[str, Any], pictures: Pictures) -> str:
    """Return the whole file; `content` has the words of the page."""
    parts = [f"# {shielded(content['title'])}"]
    parts += [shielded(content["description"])] if content["description"] else []
    for name in report.sets:
        parts += [f"## {shielded(name)}"] if name else []
        parts.append(shielded(" ".join(content["summary"][name])))
        parts += [
            f"![{shielded(words)}]({quote(file)})\n\n*{shielded(words)}*" for file, words in pictures.get(name, ())
        ]
        parts += map(_text, _results(report, name))
        parts += _listed("What these data do not settle", content["open"][name])
    parts += _listed("Warnings", content["warnings"]) + _listed("Notes", content["notes"])
    for each in content["tables"]:
        parts += [f"## {each['title']}", Table(heads=each["heads"], rows=each["rows"]).markdown()]
    return "\n\n".join(parts) + "\n"


def _results(report: Report, evaluation_set: str) -> Iterator[Part]:
    view = report.view(evaluation_set)
    yield fit_table(view.analysis, title=f"Ceiling and forecast ({view.axis.label}, {view.window.label})")
    yield details_table(view.analysis)
    if view.is_compared:
        yield from pair_parts(view.analysis)
    scores = [
        (curve, window.label, curve.holdout)
        for window in report.windows
        for curve in report.view(evaluation_set, window=window.key).analysis.curves
        if window.key != ALL and curve.holdout is not None
    ]
    if scores:
        yield score_table(scores, title="Forecasts against what happened")


def _text(part: Part) -> str:
    if isinstance(part, Table):
        return f"### {shielded(part.title.strip())}\n\n{part.markdown()}"
    return shielded(str(part))


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {shielded(item)}" for item in items)] if items else []
