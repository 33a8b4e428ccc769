"""`write_report`: from runs or logs to one HTML page, and Markdown with pictures for a paper or a pull request."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from scalerl.errors import InputError, StoreError
from scalerl.logs.series import Selection
from scalerl.report.content import page_json, report_json
from scalerl.report.page import page
from scalerl.report.results import FitOptions
from scalerl.report.runs import Run
from scalerl.report.samples import Query, search
from scalerl.report.tables import Table, shielded
from scalerl.report.text import Part, details_table, fit_table, pair_parts, score_table
from scalerl.report.views import ALL, Report, build_report
from scalerl.store import SAMPLES, write_text

Pictures = Mapping[str, Sequence[tuple[str, str]]]
PAGE = "report.html"
MARKDOWN = "report.md"
SAMPLES_OF_A_RUN = 6

__all__ = ["Written", "build_report", "page_json", "report_json", "write_report"]


class Written(NamedTuple):
    """The page, and what its reader is warned of."""

    page: Path
    warnings: tuple[str, ...]


def write_report(
    inputs: Sequence[Path],
    out: Path | None = None,
    *,
    selection: Selection | None = None,
    options: FitOptions | None = None,
) -> Written:
    """Write report.html, report.md and its pictures into `out` (the study's folder, else the current one)."""
    report = build_report(inputs, selection or Selection(), options or FitOptions())
    folder = _folder(report, out)
    pictures = {name: _picture(report, name, folder) for name in report.sets}
    try:
        content = {**page_json(report), "samples": newest_samples(report.material.runs)}
        write_text(folder / PAGE, page(content))
        write_text(folder / MARKDOWN, markdown(report, content, pictures))
    except StoreError as error:
        raise InputError(f"the report is not written: {error}.") from None
    return Written(page=folder / PAGE, warnings=(*content["warnings"], *content["alarms"]))


def newest_samples(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the last samples of each run, to be read on the page."""
    query = Query(num=SAMPLES_OF_A_RUN)
    return [
        {"run": run.name, **sample}
        for run in runs
        for sample in search(run.source.path / SAMPLES, run.source.root, query)["samples"]
    ]


def _folder(report: Report, out: Path | None) -> Path:
    folder = out or report.material.folder or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"cannot write the report into {folder}: {fault.strerror or fault}.") from None
    return folder


def _picture(report: Report, evaluation_set: str, folder: Path) -> list[tuple[str, str]]:
    """Draw the view of a set that is shown first; return (file, what it shows), nothing without matplotlib."""
    view = report.view(evaluation_set)
    if find_spec("matplotlib") is None or not view.usable:
        return []
    from scalerl.report.picture import draw

    title = f"{report.material.title}, {evaluation_set}" if evaluation_set else report.material.title
    name = f"report-curves{f'-{evaluation_set}' if evaluation_set else ''}.png".replace("/", "-")
    draw(view.analysis, folder / name, title=title, x_label=view.axis.label)
    held = "" if view.window.key == ALL else " Hollow points were held out and test the forecast."
    return [(name, f"Reward against {view.axis.label}, fitted on: {view.window.label}.{held}")]


# Markdown: the tables and sentences of the terminal, with pictures


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
        parts += _listed("What these data do not decide", content["open"][name])
    parts += _listed("Warnings", [*content["warnings"], *content["alarms"]]) + _listed("Notes", content["notes"])
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
