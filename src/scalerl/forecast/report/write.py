"""`write_report`: from runs or logs to one HTML page, and Markdown with pictures for a paper or a pull request."""

import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from scalerl.errors import InputError, StoreError
from scalerl.forecast.logs import Selection
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.document import MARKDOWN, Level, render, says, shielded
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.page import page
from scalerl.forecast.report.results import Result
from scalerl.forecast.report.sections import document
from scalerl.runfolder.store import write_text

PAGE = "report.html"
MARKDOWN_FILE = "report.md"


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
    if find_spec("matplotlib") is not None:
        # It takes as long as ten fits, most of which other processes make meanwhile.
        threading.Thread(target=import_module, args=("matplotlib.backends.backend_agg",), daemon=True).start()
    result = build_report(inputs, selection or Selection(), options or FitOptions())
    folder = out or result.study or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"cannot write the report into {folder}: {fault.strerror or fault}.") from None
    sections = document(result)
    pictures = [f"![{shielded(name)}]({quote(file)})" for name, file in draw_sets(result, folder)]
    title = f"# {shielded(result.title)}"
    try:
        write_text(folder / PAGE, page(result.title, sections))
        write_text(folder / MARKDOWN_FILE, "\n\n".join([title, *pictures, render(sections, MARKDOWN)]))
    except StoreError as error:
        raise InputError(f"the report is not written: {error}.") from None
    return Written(folder / PAGE, tuple(each.text for each in says(sections) if each.level == Level.WARNING))


def draw_sets(result: Result, folder: Path) -> list[tuple[str, str]]:
    """Draw the curves of each evaluation set; return titles and files, nothing without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    from scalerl.forecast.report.picture import draw

    drawn = []
    for name in result.sets:
        members = result.members(name)
        if any(curve.usable for curve in members):
            title = f"{result.title}, {name}" if name else result.title
            file = f"report-curves{f'-{name}' if name else ''}.png".replace("/", "-")
            draw(result, folder / file, evaluation_set=name, title=title)
            drawn.append((title, file))
    return drawn
