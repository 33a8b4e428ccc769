"""`build_report`: from study folders, run folders or logs to one Result; `write_report`: to one HTML page.

A run that cannot be read becomes a warning; the rest of the report is made all the same.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from scalerl.errors import InputError, StoreError, option
from scalerl.forecast.logs import Selection, Series, series_from
from scalerl.forecast.logs.facts import facts_of
from scalerl.forecast.logs.formats import read_logs
from scalerl.forecast.logs.frame import grouped
from scalerl.forecast.logs.names import file_names, without_seed
from scalerl.forecast.logs.places import find, logs_among
from scalerl.forecast.report.analyse import HALF, Window, analysed, compared, with_end
from scalerl.forecast.report.document import Level, Say, say, says
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.page import page
from scalerl.forecast.report.results import CurveResult, Result
from scalerl.forecast.report.run_series import AXES, run_series
from scalerl.forecast.report.runs import PER_RUN, WAITING, Run, hours_name, read_folder, read_source, run_of_log
from scalerl.forecast.report.safe_files import Root
from scalerl.forecast.report.sections import document
from scalerl.forecast.report.sources import Source, planned
from scalerl.forecast.report.wording import join_names
from scalerl.forecast.report.workers import Workers, worth
from scalerl.runfolder import store

SEVERAL_RUNS = 8
"""A fit of several runs takes as long as this many fits of one."""
MOST_IN_TITLE = 3
"""With more runs, the title gives their number."""
UNEVEN = 1.3
"""Times as long for the same work: something else used the machine."""


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
        store.write_text(folder / PAGE, page(result.title, sections))
    except StoreError as error:
        raise InputError(f"the report is not written: {error}.") from None
    warnings = [each.text for each in says(sections) if each.level == Level.WARNING]
    return Written(folder / PAGE, tuple(warnings))


def build_report(inputs: Sequence[Path], selection: Selection, options: FitOptions) -> Result:
    """Read what was named, and report on it."""
    return report_on(*gather([Path(path) for path in inputs]), selection, options)


def gather(paths: Sequence[Path]) -> tuple[Source, list[Run]]:
    """Read everything that was named: return it as one source, and its runs and logs."""
    if not paths:
        raise InputError("no input was given: name a study folder, run folders or log files.")
    path = paths[0]
    if len(paths) == 1 and (path / store.STUDY).is_file():
        try:
            plan = store.read_study(path) or {}
        except (OSError, ValueError) as fault:
            raise InputError(f"{fault}: run the study again with --resume, or repair it.") from None
        name = str(plan.get("name") or path.resolve().name)
        study = Source(path=path, root=Root(), kind="study", name=name, plan=plan)
        runs = [*map(read_source, planned(study))]
        if not runs:
            raise InputError(
                f"{path / store.STUDY} lists no runs: give the run folders themselves, or run the study first."
            )
        return study, runs
    found: list[Run] = []
    for each in paths:
        found += _read_at(each)
    names = file_names([run.source.path for run in found])
    runs = []
    for run, name in zip(found, names, strict=True):
        runs.append(replace(run, source=replace(run.source, name=name, arm=name)))
    if len(paths) == 1:
        (title,) = file_names([path.resolve()])
    elif len(names) <= MOST_IN_TITLE:
        title = join_names(names)
    else:
        title = say("several_runs", num=len(names)).text
    return Source(path=path, root=Root(), kind="all", name=title), runs


def _read_at(path: Path) -> list[Run]:
    """Return the runs of ours at a path, read as what they are, and the logs of other trainers."""
    folders: list[Path] = []
    logs: list[Path] = []
    for place in chain.from_iterable(find(path)):
        if place.kind == "run":
            folders.append(place.path)
        else:
            logs.append(place.path)
    facts = ()
    if folders and path.is_dir() and path not in folders:
        files = logs_among(path, sorted(path.iterdir()))
        facts = facts_of("files_beside", names=tuple(file.name for file in files))
    runs: list[Run] = []
    for folder in folders:
        runs.append(replace(read_folder(Source(path=folder, root=Root(), kind="run")), facts=facts))
    for log in read_logs(logs if folders else [path]):
        runs.append(run_of_log(Source(path=log.path, root=Root(), kind="log"), log))
    return runs


def report_on(
    source: Source,
    runs: Sequence[Run],
    selection: Selection,
    options: FitOptions,
    *,
    in_workers: bool = True,
    end: float | None = None,
    most: int | None = None,
) -> Result:
    """Fit and compare the curves of runs, here or in workers; InputError where none of them can be used.

    `end` is the compute at the end of a budget that a run does not name itself, and `most` the number of curves to fit.
    """
    notes = list(_faults(source, runs))
    if len(runs) > 1 and source.kind != "study":
        notes += joined_seeds(runs)
    usable = [run for run in runs if not run.problem]
    if not usable:
        first = "none is evaluated yet."
        if notes:
            first = notes[0].text
        raise InputError(runs[0].problem if len(runs) == 1 else f"nothing of what was given can be used; {first}")
    column, reasons = _main_axis(source, usable, selection)
    series = _series_of(usable, replace(selection, x=column))
    options = options.in_unit_of(series)
    window = Window()
    if source.plan:
        options = _with_study_options(options, source)
        window = _window_of(source)
    if most is not None and len(series) > most:
        reasons.append(say("too_many_curves", most=most, num=len(series)))
        series = series[:most]
    result = _fitted(series, options, window, in_workers=in_workers)
    curves = tuple(_judged(curve, runs, end) for curve in result.curves)
    notes += [*reasons, *result.notes]
    return compared(replace(result, curves=curves, notes=tuple(notes), source=source, runs=tuple(runs)))


def _fitted(series: Sequence[Series], options: FitOptions, window: Window, *, in_workers: bool) -> Result:
    """Fit the curves twice, whole and for their back-test, here or in workers."""
    num_fits = 0
    for data in series:
        if not data.problem:
            num_fits += 2 * (1 if data.run is None else SEVERAL_RUNS)
    num_workers = 0
    if in_workers:
        num_workers = worth(num_fits)
    if not num_workers:
        return analysed("report", series, options, window)
    with Workers(num_workers) as workers:
        return analysed("report", series, options, window, workers.map)


# What was read --------------------------------------------------------------------------------------------------------


def _faults(source: Source, runs: Sequence[Run]) -> Iterator[Say]:
    """Yield what cannot be read, has not started, or was not run."""
    for run in runs:
        for fault in run.faults():
            yield say("fault_of", name=run.name, problem=fault.text) if run.is_folder else fault
    waiting = tuple(run.name for run in runs if run.status == WAITING)
    if waiting:
        yield say("waiting", names=waiting)
    for row in source.plan.get("skipped", []):
        if "arm" in row:
            yield say("skipped", row)


def _with_study_options(options: FitOptions, source: Source) -> FitOptions:
    """Skip what the study skips, unless the user says otherwise."""
    fitted = source.plan.get("fit") or {}
    share = fitted.get("skip_before")
    compute = fitted.get("skip_before_compute")
    if options.skip_before is not None or (not share and compute is None):
        return options
    if share:
        return replace(options, skip_before=f"{100 * share:g}%")
    return replace(options, skip_before=compute, skip_axis=source.plan.get("compute"))


def _window_of(source: Source) -> Window:
    """Return the window of the back-test: what the study fits and holds out, or else the first half."""
    fitted = source.plan.get("fit") or {}
    held = source.plan.get("holdout") or {}
    until = fitted.get("until", 1.0)
    begin = held.get("from")
    if until >= 1.0:
        until = HALF
        if begin is not None:
            until = begin
    until_compute = fitted.get("until_compute")
    begin_compute = held.get("from_compute")
    return Window(
        until=until,
        scored_from=begin,
        until_compute=begin_compute if until_compute is None else until_compute,
        scored_from_compute=begin_compute,
        axis=source.plan.get("compute"),
    )


def _main_axis(source: Source, runs: Sequence[Run], selection: Selection) -> tuple[str | None, list[Say]]:
    """Return the column of compute, and why it was chosen if the user did not choose it."""
    if selection.x is not None:
        return selection.x, []
    wanted = source.plan.get("compute")
    folders = [run for run in runs if run.is_folder]
    if not folders:
        return None, []
    is_shared = source.plan.get("shared_device")
    uneven = uneven_pace(folders)
    is_unfair = is_shared or uneven > UNEVEN
    if wanted in (None, "gpu_hours") and is_unfair and all(run.counts("flops") for run in runs):
        kind = "uneven_pace"
        if is_shared:
            kind = "shared_device"
        return "flops", [say(kind, hours=hours_name(run.hours_name for run in folders), size=uneven)]
    if wanted and all(run.counts(wanted) for run in runs):
        return wanted, []
    return None, []


def _series_of(runs: Sequence[Run], selection: Selection) -> list[Series]:
    """Return the curves of runs, with their names within their evaluation sets.

    The columns of our folders are known; other logs are read for what they mean.
    """
    folders = [run.evaluations for run in runs if run.is_folder]
    logs = [run.log for run in runs if run.log is not None]
    if folders and not logs and selection != Selection(x=selection.x):
        raise InputError(
            f"the columns of run folders are known: of the options on columns a report on them takes {option:x} alone "
            "(fit and compare take all of them)."
        )
    if logs:
        series = series_from(logs, selection)
    else:
        series = []
    axis = selection.x
    if axis is None and series and series[0].x_label in AXES:
        axis = series[0].x_label
    if folders:
        series += run_series(folders, axis)
    if not series:
        raise InputError("there is nothing to report on: no curve was found")
    problems = [data.problem for data in series if data.problem]
    if len(problems) == len(series):
        raise InputError(problems[0])
    named: list[Series] = []
    for data in series:
        if data.evaluation_set:
            data = replace(data, name=data.name.removesuffix(f"/{data.evaluation_set}"))
        named.append(data)
    return named


# Arms -----------------------------------------------------------------------------------------------------------------


def joined_seeds(runs: Sequence[Run]) -> Iterator[Say]:
    """Join runs whose recipes differ only in the seed into one arm; yield a note on each."""
    taken: set[str] = set()
    for members in grouped(runs, _settings_of_arm):
        arm = members[0].name
        short = {without_seed(run.name) for run in members}
        if len(members) > 1 and len(short) == 1 and not short & taken:
            (arm,) = short
        taken.add(arm)
        for run in members:
            run.source = replace(run.source, arm=arm)
        if len(members) > 1:
            yield say("seeds_joined", runs=tuple(run.name for run in members), arm=arm)


def _settings_of_arm(run: Run) -> str:
    """Return the settings that runs of one arm share, as text; of a run without settings its name."""
    settings = run.settings or {"name": run.name}
    shared = {name: value for name, value in settings.items() if name not in PER_RUN}
    return json.dumps(shared, sort_keys=True, default=str)


def uneven_pace(runs: Sequence[Run]) -> float:
    """Return the largest ratio of GPU-hours per FLOP between runs of one arm; about 1 unless they shared a machine."""
    known = [run for run in runs if run.cost.get("gpu_hours") and run.cost.get("flops")]
    largest = 1.0
    for of_arm in grouped(known, lambda run: run.arm):
        paces = [run.cost["gpu_hours"] / run.cost["flops"] for run in of_arm]
        largest = max(largest, max(paces) / min(paces))
    return largest


# What is made of it ---------------------------------------------------------------------------------------------------


def _judged(curve: CurveResult, runs: Sequence[Run], end: float | None) -> CurveResult:
    """Return a curve that knows whether all its runs have ended, with its forecast for the end of the budget.

    A single run names its own end; `end` is for others.
    """
    own = [run for run in runs if run.arm == curve.name] or runs
    if len(runs) == 1:
        end = runs[0].end_compute(curve.axis) or end
    return with_end(replace(curve, is_over=all(run.is_over for run in own)), end)
