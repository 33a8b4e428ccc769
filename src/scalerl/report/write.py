"""`write_report`: from runs or logs to one HTML page, and Markdown with pictures for a paper or a pull request."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import InputError, StoreError
from scalerl.logs.series import Selection
from scalerl.report.content import page_json, report_json
from scalerl.report.figures import FigureData, figure_data
from scalerl.report.markdown import markdown
from scalerl.report.page import page
from scalerl.report.results import Analysis, FitOptions
from scalerl.report.runs import Run
from scalerl.report.samples import Query, search
from scalerl.report.views import ALL, Report, View, build_report
from scalerl.store import SAMPLES, write_text

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
    pictures = {name: _pictures(report, name, folder) for name in report.sets}
    try:
        content = {**page_json(report), "samples": newest_samples(report.material.runs)}
        write_text(folder / PAGE, page(content))
        write_text(folder / MARKDOWN, markdown(report, content, pictures))
    except StoreError as error:
        raise InputError(f"the report is not written: {error}.") from None
    return Written(page=folder / PAGE, warnings=tuple(content["warnings"]))


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


def _pictures(report: Report, evaluation_set: str, folder: Path) -> list[tuple[str, str]]:
    """Draw the figures of a set; return (file, what it shows) for each, empty if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return []
    from scalerl.report.picture import draw_figure

    suffix = f"-{evaluation_set}" if evaluation_set else ""
    drawn = []
    for view, stem, words in _shown(report, evaluation_set):
        if any(curve.usable for curve in view.analysis.curves):
            name = f"report-{stem}{suffix}.png".replace("/", "-")
            draw_figure(_figure(report, view), folder / name)
            drawn.append((name, words))
    return drawn


def _figure(report: Report, view: View) -> FigureData:
    """Return the figure of a view, with the title of the report."""
    title = f"{report.material.title}, {view.evaluation_set}" if view.evaluation_set else report.material.title
    return replace(figure_data(view.analysis), title=title, x_label=view.axis.label)


def _shown(report: Report, evaluation_set: str) -> list[tuple[View, str, str]]:
    whole = report.view(evaluation_set, window=ALL)
    early = report.window if report.window.key != ALL else report.windows[-2]
    part = report.view(evaluation_set, window=early.key)
    # Without the panels of a comparison.
    curves = tuple(curve for curve in part.analysis.curves if curve.usable)
    tested = replace(part, analysis=Analysis(command="backtest", curves=curves))
    shown = [
        (whole, "curves", f"Reward against {whole.axis.label}, fitted on all points."),
        (tested, "forecast", f"Fitted on: {early.label}. Hollow points were held out and test the forecast."),
    ]
    return shown if report.window.key == ALL else shown[::-1]
