"""`write_report`: from runs or logs to one HTML page, and Markdown with pictures for a paper or a pull request."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import InputError, StoreError
from scalerl.logs.series import Selection
from scalerl.report.content import page_json, report_json
from scalerl.report.markdown import markdown
from scalerl.report.page import page
from scalerl.report.results import FitOptions
from scalerl.report.runs import Run
from scalerl.report.samples import Query, search
from scalerl.report.views import ALL, Report, build_report
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
    pictures = {name: _picture(report, name, folder) for name in report.sets}
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
