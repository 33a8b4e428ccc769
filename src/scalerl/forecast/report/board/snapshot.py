"""What the board shows of a run, a log, a study, or everything together: the document of a report on it.

`take_snapshot` is called in workers, whenever files have changed. A worker keeps the fits that it has made; any other
can make them anew.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scalerl.errors import UserError
from scalerl.forecast.logs import Selection
from scalerl.forecast.report import analyse
from scalerl.forecast.report.build import report_on
from scalerl.forecast.report.document import Document, Level, Say, say, says, sections
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import CurveResult, Result
from scalerl.forecast.report.run_sections import status_text
from scalerl.forecast.report.runs import WAITING, Run, read_source
from scalerl.forecast.report.sections import document
from scalerl.forecast.report.sources import Source, planned
from scalerl.forecast.report.wording import Lookup, filled
from scalerl.runfolder import store

# What reading files that anyone may have written can raise.
UNFORESEEN = (OSError, MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
MAX_BYTES = 256 << 20
"""Largest log that is read: it is read as a whole whenever it grows."""
MOST_CURVES = 40
"""Curves of one log that are fitted."""
MOST_FITS = 200
RUN_FILES = (store.RECIPE, store.ENV, store.METRICS, store.EVALS, store.SAMPLES, store.STATUS)
TOGETHER = ("answer", "curves", "pairs", "axes", "log", "settings")
"""Sections of everything together."""
_DEPTH = 3
_MOST_FILES = 4000

File = tuple[str, int, int]
"""Path, size and time of the last change in nanoseconds."""
Line = Mapping[str, str]
"""Cells of a line in the overview, by the names in CELLS, with `name`, `curve` and `step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What there is to show of a source."""

    source: Source
    document: Document = ()
    lines: tuple[Line, ...] = ()
    """In the overview: a line for each curve; one for a study, and for a run without a curve."""
    status: str = ""
    state: str = ""
    """The status of a run with its reason, or the format of a log."""
    step: str = ""
    problem: str = ""
    updated_at: float = 0.0
    num_alarms: int = 0
    is_empty: bool = False
    """Whether there is neither a curve nor a column."""


def files_of(source: Source) -> list[File]:
    """Return the files of a source: it is looked at again when they have changed."""
    path = source.path
    if source.kind == "all":
        files: list[File] = []
        for member in source.members:
            files += files_of(member)
        return sorted(files)
    if source.kind == "study":
        names = [path / store.STUDY]
        for run in planned(source):
            names += [run.path / name for name in RUN_FILES]
    elif source.kind == "run":
        names = [path / name for name in RUN_FILES]
    elif path.is_dir():
        names = list(_log_files(path))
    else:
        # Beside a database lies what SQLite has not moved into it yet.
        names = [path, *([f"{path}-wal"] if path.suffix == ".db" else [])]
    files = []
    for name in names:
        with suppress(OSError):
            status = os.stat(name)
            files.append((str(name), status.st_size, status.st_mtime_ns))
    return sorted(files)


def _log_files(path: Path) -> Iterator[str]:
    """Yield what may be part of a log in a folder, by name; weights and optimizer states are not."""
    num = 0
    for folder, folders, inside in os.walk(path):
        depth = len(Path(folder).relative_to(path).parts)
        folders[:] = [each for each in folders if depth < _DEPTH and not each.startswith(".")]
        for name in inside:
            if "tfevents" in name or name.endswith((".json", ".jsonl", ".wandb", ".log", ".csv", ".db")):
                yield os.path.join(folder, name)
                num += 1
        if num >= _MOST_FILES:
            return


def take_snapshot(source: Source, end_compute: float | None = None) -> Snapshot:
    """Read a source and make its document; `end_compute` ends a budget that the run does not name itself."""
    analyse.remember_fits(MOST_FITS)
    try:
        runs = _runs(source)
        problems: list[Say] = []
        try:
            result = report_on(
                source, runs, Selection(), FitOptions(), in_workers=False, end=end_compute, most=MOST_CURVES
            )
        except UserError as fault:
            result = _no_result(source, runs)
            problems.append(say("fault", problem=str(fault)))
        return _snapshot_of(result, problems)
    except UNFORESEEN as fault:
        return unreadable(source, f"{type(fault).__name__}: {fault}")


def unreadable(source: Source, fault: str) -> Snapshot:
    """Return what is shown of something that cannot be read."""
    problem = say("unreadable", name=source.name, fault=fault)
    return _snapshot_of(_no_result(source, [Run(source=source, problem=problem.text)]), [problem])


def _no_result(source: Source, runs: Sequence[Run]) -> Result:
    """Return the report on runs without a curve."""
    return Result(command="report", curves=(), options=FitOptions(), source=source, runs=tuple(runs))


# Reading --------------------------------------------------------------------------------------------------------------


def _runs(source: Source) -> list[Run]:
    if source.kind == "study":
        if _refusal(source) is not None:
            return []
        return [_read(run) for run in planned(source)]
    if source.kind == "all":
        return [_read(member) for member in source.members]
    return [_read(source)]


def _read(source: Source) -> Run:
    """Read a run or a log."""
    if source.kind == "log":
        refusal = _refusal(source)
        if refusal is None:
            return read_source(source)
        return Run(source=source, problem=refusal.text)
    run = read_source(source)
    if run.problem and not run.evals:
        if run.is_over:
            run.problem = say("never_evaluated").text
        elif run.status == WAITING:
            run.problem = say("not_started").text
        else:
            run.problem = say("no_evaluation").text
    return run


def _refusal(source: Source) -> Say | None:
    """Return why a log is not read; None where it may be."""
    files = files_of(source)
    if any(not source.root.holds(Path(name)) for name, _, _ in files):
        return say("no_link_outside", name=source.name)
    if not source.path.is_dir() and not source.path.is_file():
        return say("not_regular", name=source.name)
    size = sum(size for _, size, _ in files)
    if source.kind == "log" and size > MAX_BYTES:
        return say("too_long", name=source.name, size=size / 1e6, most=MAX_BYTES / 1e6)
    return None


# Showing --------------------------------------------------------------------------------------------------------------


def _snapshot_of(result: Result, problems: Sequence[Say]) -> Snapshot:
    source: Source = result.source
    shown = document(result)
    if source.kind == "all":
        # What each run shows by itself is not shown again for all together.
        shown = tuple(each for each in shown if each.key.split("/")[0] in TOGETHER)
    shown = (*sections(("problems", "", [*source.faults, *problems])), *shown)
    problem = " ".join(each.text for each in problems)
    seen = Snapshot(source=source, document=shown, problem=problem, is_empty=not result.curves)
    if source.kind == "all":
        return seen
    if source.kind == "study":
        answers = [each.text for each in says(shown) if each.level == Level.ANSWER]
        return replace(seen, lines=({"name": source.name, "curve": "", "do": answers[0] if answers else problem},))
    (run,) = result.runs
    steps = run.columns.get("step", np.empty(0))
    step = ""
    if len(steps):
        step = f"{run.step_word} {steps[-1]:,.0f}"
    curves = [curve for curve in result.curves if len(curve.series.reward)]
    several = len({curve.name for curve in curves}) > 1
    lines = tuple(_line(source, step, curve, several=several) for curve in curves)
    return replace(
        seen,
        lines=lines or ({"name": source.name, "curve": "", "step": step, "do": problem},),
        status=run.status,
        state=status_text(run) if run.log is None else run.log.kind,
        step=step,
        updated_at=max((changed for _, _, changed in files_of(source)), default=0) / 1e9,
        num_alarms=sum(map(is_alarm, says(shown))),
        is_empty=not result.curves and not run.columns,
    )


def is_alarm(each: Say) -> bool:
    """Return whether a sentence warns of something that goes on."""
    return each.kind.startswith("alarm_") and each.level == Level.WARNING


CELLS = {
    "reward": "{last:r}",
    "end": "{at_end.reward:r}",
    "ceiling": "{ceiling:r}",
    "state": "{state}",
    "do": "{to_do}",
}
"""What the overview shows of a curve."""


def _line(source: Source, step: str, curve: CurveResult, *, several: bool) -> Line:
    """Return the line of a curve in the overview; one of several has its own name, set and step."""
    series = curve.series
    steps = curve.series.axes.get("step", np.empty(0))
    if several:
        step = ""
        if len(steps):
            step = f"step {steps.max():,.0f}"
    own_name = "/".join(filter(None, (curve.name if several else "", curve.evaluation_set)))
    values = Lookup({"last": float(series.reward[np.argmax(series.compute)])}, curve)
    cells = {name: filled(template, values) for name, template in CELLS.items()}
    return {"name": source.name, "curve": own_name, "step": step, **cells}
