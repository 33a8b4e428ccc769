"""`write_report`: from runs or logs to one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scalerl.errors import InputError, StoreError
from scalerl.forecast.logs import Selection
from scalerl.forecast.report.build import build_report
from scalerl.forecast.report.document import Level, says
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.page import page
from scalerl.forecast.report.sections import document
from scalerl.runfolder.store import write_text

PAGE = "report.html"


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
    """Write report.html into `out` (the study's folder, else the current one)."""
    result = build_report(inputs, selection or Selection(), options or FitOptions())
    folder = out or result.study or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"cannot write the report into {folder}: {fault.strerror or fault}.") from None
    sections = document(result)
    try:
        write_text(folder / PAGE, page(result.title, sections))
    except StoreError as error:
        raise InputError(f"the report is not written: {error}.") from None
    warnings = [each.text for each in says(sections) if each.level == Level.WARNING]
    return Written(folder / PAGE, tuple(warnings))
