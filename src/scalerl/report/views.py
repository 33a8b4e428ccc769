"""`build_report`: one value that the page, the Markdown and the JSON all show.

inputs -> Material -> Series of each axis -> a View for each evaluation set, axis and window -> Report
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from scalerl.curves import Comparison, Fit, NoteKind, Pair, PairKind, Score, fit, note, score
from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.table import Table
from scalerl.report.inputs import ARM, Material, gather, num_inputs
from scalerl.report.results import Analysis, CurveResult, FitOptions
from scalerl.report.runs import hours_name, incomparable, uneven_pace
from scalerl.report.windows import ALL, HELD_OUT, SHARES, Window, later_points, windows_of
from scalerl.report.workers import Workers, worth

MOST_PAIRED = 8  # more curves than these are compared in the view shown first only
NUM_AXES = 4  # GPU-hours, FLOPs, steps and tokens
UNEVEN = 1.3  # times as long for the same work: something else used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A column of compute."""

    column: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The curves of one evaluation set on one axis, fitted on one window."""

    evaluation_set: str
    axis: Axis
    window: Window
    analysis: Analysis

    @property
    def is_compared(self) -> bool:
        return bool(self.analysis.comparisons)

    @property
    def straight(self) -> dict[str, Fit]:
        """Refits with one ceiling for all that share it; empty without a comparison."""
        shared = (comparison.shared_fits for comparison in self.analysis.comparisons.values())
        return {name: fit for fits in shared for name, fit in fits.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    material: Material
    options: FitOptions
    axes: tuple[Axis, ...]
    """The first is the one shown first."""
    windows: tuple[Window, ...]
    """The last holds all points."""
    window: Window
    """The one shown first: what the study or --holdout leaves to fit, else all points."""
    sets: tuple[str, ...]
    series: dict[str, list[Series]]
    """By axis: every curve with all its points."""
    views: tuple[View, ...]
    notes: tuple[str, ...]

    def view(self, evaluation_set: str | None = None, axis: str | None = None, window: str | None = None) -> View:
        wanted = (evaluation_set or self.sets[0], axis or self.axes[0].column, window or self.window.key)
        return next(view for view in self.views if (view.evaluation_set, view.axis.column, view.window.key) == wanted)


def label_of(series: Series) -> str:
    """Return the curve's name within its evaluation set."""
    return series.name if series.evaluation_set is None else series.name.removesuffix(f"/{series.evaluation_set}")


def build_report(
    inputs: Sequence[Path],
    selection: Selection,
    options: FitOptions,
    *,
    meanwhile: Callable[[Report], None] = lambda report: None,
    quick: bool = False,
) -> Report:
    """Build the report. `meanwhile` gets the report on the first axis alone while the others are being fitted.

    `quick` has one axis and, besides all points, the window that is shown first; it starts no process.
    """
    inputs = [Path(path) for path in inputs]
    # An estimate, since nothing has been read yet: inputs are read while the workers start.
    with Workers(0 if quick else worth(num_inputs(inputs) * (1 + len(SHARES)) * NUM_AXES)) as workers:
        material = gather(inputs)
        if material.has_arms and not selection.by:
            selection = replace(selection, by=(ARM,))
        if material.skip_share and options.skip_before is None:
            options = replace(options, skip_before=f"{100 * material.skip_share:g}%")
        if material.skip_compute is not None and options.skip_before is None:
            options = replace(options, skip_before=material.skip_compute)
        main, axis_note = _main_axis(material, selection)
        windows, window = windows_of(material, selection)
        windows = tuple(dict.fromkeys([window, windows[-1]])) if quick else windows
        notes: list[str] = []
        fitting = Fitting(workers, options, windows, window)
        for axis, series, held_out in _on_each_axis(material, replace(selection, x=main), main, notes):
            # The next axis is read while this one is fitted.
            fitting.submit(axis, series, held_out, alone=quick)
            if quick:
                break
        sets, axes = fitting.sets, tuple(fitting.axes)
        num = len(sets) * len(windows)
        # Compared here: the workers have the other axes before them.
        views = _views(fitting.jobs[:num], material, options, Workers())
        shown = [view for view in views if view.window is window]
        if window.key != ALL and not any(curve.usable for view in shown for curve in view.analysis.curves):
            notes.append(f"Nothing can be fitted on {window.label} yet, so all points are.")
            window = windows[-1]
        report = Report(
            material=material,
            options=options,
            axes=axes[:1],
            windows=windows,
            window=window,
            sets=sets,
            series=fitting.series,
            views=views,
            notes=(*([axis_note] if axis_note else []), *material.notes, *notes),
        )
        meanwhile(report)
        views += _views(fitting.jobs[num:], material, options, workers)
    return replace(report, axes=axes, views=tuple(sorted(views, key=lambda view: sets.index(view.evaluation_set))))


# Axes


def _main_axis(material: Material, selection: Selection) -> tuple[str | None, str]:
    """Return the column of compute to show first, and why it was chosen if the user did not choose it."""
    if selection.x is not None:
        return selection.x, ""
    known = [set(table.columns) for table in material.tables]
    uneven = uneven_pace(material.runs)
    distorted = ""
    if material.shared_device:
        distorted = "Jobs shared a device, which distorts the time that each took"
    elif uneven > UNEVEN:
        distorted = f"One run took {uneven:.1f} times as long as another of its arm for the same FLOPs"
    elif len(material.tables) == 1 and len(material.runs) == 1 and disagreement(material.tables[0].rows) > UNEVEN_TIME:
        share = disagreement(material.tables[0].rows)
        distorted = f"Time per FLOP changed during the run (by up to {share:.0%} of it)"
    by_time = material.axis in (None, "gpu_hours")
    if distorted and by_time and all("flops" in columns for columns in known):
        hours = hours_name(material.runs)
        return "flops", f"{distorted}: compute is counted in FLOPs first, and {hours} are not to be trusted."
    if material.axis and all(material.axis in columns for columns in known):
        return material.axis, ""
    choices = {table.x for table in material.tables}
    return (choices.pop() if len(choices) == 1 else None), ""


def _on_each_axis(
    material: Material, selection: Selection, main: str | None, notes: list[str]
) -> Iterator[tuple[Axis, list[Series], list[Series]]]:
    """Yield each axis, the main one first, with its series, and the same series with the rows of --holdout held out.

    An axis on which some curves cannot be fitted is skipped, with a note.
    """

    tables, hours = material.tables, hours_name(material.runs)

    def label(column: str) -> str:
        return axis_label(column, hours)

    def read(column: str | None) -> tuple[Axis, list[Series], list[Series]]:
        series = series_from(tables, replace(selection, x=column, holdout=None))
        column = column or series[0].x_label
        held_out = series if selection.holdout is None else series_from(tables, replace(selection, x=column))
        return Axis(column=column, label=label(column)), series, held_out

    usable = lambda series: {data.name for data in series if not data.problem}  # noqa: E731
    first = read(main)
    yield first
    for other in _candidates(tables) if main is not None else ():
        if other == main:
            continue
        try:
            axis_series = read(other)
        except InputError as fault:
            notes.append(f"No axis of {label(other)}: {fault}")
            continue
        if usable(axis_series[1]) == usable(first[1]):
            yield axis_series
        else:
            notes.append(f"No axis of {label(other)}: some curves cannot be fitted on it.")


def _candidates(tables: Sequence[Table]) -> Iterator[str]:
    for kind in (names.GPU_HOURS, names.FLOPS, names.STEP, names.TOKENS):
        columns = {names.find(kind, table.columns) for table in tables}
        if len(columns) == 1 and (column := columns.pop()) is not None:
            yield column


def axis_label(column: str, hours: str = "GPU-hours") -> str:
    for kind, label in (
        (names.GPU_HOURS, hours),
        (names.FLOPS, "FLOPs"),
        (names.TOKENS, "tokens"),
        (names.STEP, "steps"),
    ):
        if names.find(kind, [column]):
            return label
    return column


# Views


Fitted = tuple[Fit | None, Score | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The curves of a view while they are fitted."""

    evaluation_set: str
    axis: Axis
    window: Window
    members: list[Series]
    fits: list[Future[Fitted]]
    is_compared: bool


class Fitting:
    """The fits of a report, axis by axis, the first one first."""

    def __init__(self, workers: Workers, options: FitOptions, windows: Sequence[Window], shown: Window) -> None:
        self.workers, self.options, self.windows, self.shown = workers, options, windows, shown
        self.jobs: list[Job] = []
        self.axes: list[Axis] = []
        self.series: dict[str, list[Series]] = {}

    @property
    def first(self) -> list[Series]:
        return self.series[self.axes[0].column]

    @property
    def sets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(data.evaluation_set or "" for data in self.first))

    def submit(self, axis: Axis, series: list[Series], held_out: list[Series], *, alone: bool = False) -> None:
        self.axes.append(axis)
        self.series[axis.column] = series
        self.workers.start(0 if alone else worth(len(series) * len(self.windows) * NUM_AXES))
        for name in self.sets:
            for window in self.windows:
                self.jobs.append(self._job(name, axis, window, held_out if window.key == HELD_OUT else series))

    def _job(self, name: str, axis: Axis, window: Window, series: list[Series]) -> Job:
        members = [data for data in series if (data.evaluation_set or "") == name]
        on_main = {data.name: data for data in self.first}
        windows = [window.of(on_main.get(data.name, data)) for data in members]
        own = [
            _options(self.options, data, on_main.get(data.name, data), each)
            for data, each in zip(members, windows, strict=True)
        ]
        is_first = axis is self.axes[0] and window is self.shown
        return Job(
            evaluation_set=name,
            axis=axis,
            window=window,
            members=members,
            fits=[
                self.workers.submit(_fitted, data, given, each)
                for data, given, each in zip(members, own, windows, strict=True)
            ],
            # Few curves are compared in all views, many in the one that is shown first.
            is_compared=len(members) <= MOST_PAIRED or is_first,
        )


def _views(jobs: Sequence[Job], material: Material, options: FitOptions, workers: Workers) -> tuple[View, ...]:
    curves = [
        tuple(
            CurveResult(series=data, fit=done, holdout=tested)
            for data, future in zip(job.members, job.fits, strict=True)
            for done, tested in [future.result()]
        )
        for job in jobs
    ]
    usable = [{curve.name: curve.fit for curve in results if curve.fit is not None} for results in curves]
    compared = [
        workers.submit(options.compare, some) if job.is_compared and len(some) > 1 else None
        for job, some in zip(jobs, usable, strict=True)
    ]
    views = (
        View(
            evaluation_set=job.evaluation_set,
            axis=job.axis,
            window=job.window,
            analysis=Analysis(
                command="compare", curves=results, comparisons={} if pairs is None else {"": pairs.result()}
            ),
        )
        for job, results, pairs in zip(jobs, curves, compared, strict=True)
    )
    return tuple(_mark_incomparable(view, material) for view in views)


def _options(options: FitOptions, data: Series, main: Series, window: Window) -> FitOptions:
    """Return the options for one curve: computes given on the main axis keep their share on the others."""
    if not len(data.compute):
        return options
    largest, on_main = float(data.compute.max()), float(main.compute.max(initial=0.0))
    until, skip = options.fit_until, options.skip_before
    if data.x_label != main.x_label and on_main > 0:
        until = None if until is None else until / on_main * largest
        skip = skip / on_main * largest if isinstance(skip, float | int) else skip
    if isinstance(skip, str) and skip.endswith("%"):
        # Of the whole curve, whatever the window: the same points are left out of every one.
        skip = float(skip.removesuffix("%")) / 100 * largest
    if window.share is not None:
        until = min(window.share * largest, largest if until is None else until)
    return replace(options, fit_until=until, skip_before=skip)


def _fitted(data: Series, options: FitOptions, window: Window) -> Fitted:
    """Return the fit of one curve, and how it did on what lies beyond the window; None where there is none."""
    if data.problem:
        return None, None
    done = fit(data.compute, data.reward, evaluation=data.evaluation, **options.of(data))
    return done, score(done, *later_points(data, done, window)) if done.usable else None


def _mark_incomparable(view: View, material: Material) -> View:
    """Mark pairs of arms that were evaluated on different prompts as not comparable."""
    prompts = incomparable(material.runs)
    # A single evaluation set goes without its name.
    of_arm = prompts.get(view.evaluation_set) if view.evaluation_set else next(iter(prompts.values()), None)
    if not of_arm or not view.is_compared:
        return view
    arm = {curve.name: label_of(curve.series) for curve in view.analysis.curves}

    def mark(pair: Pair) -> Pair:
        left, right = of_arm.get(arm[pair.a]), of_arm.get(arm[pair.b])
        if left is None or right is None or left == right:
            return pair
        different = note(NoteKind.DIFFERENT_PROMPTS)
        return replace(pair, kind=PairKind.NOT_COMPARABLE, winner=None, notes=(different, *pair.notes))

    def marked(comparison: Comparison) -> Comparison:
        pairs = tuple(map(mark, comparison.pairs))
        if pairs == comparison.pairs:
            return comparison
        # Ceilings on different prompts must not be averaged.
        return replace(comparison, pairs=pairs, standings=(), shared_ceiling=None, shared_fits={})

    comparisons = {name: marked(comparison) for name, comparison in view.analysis.comparisons.items()}
    return replace(view, analysis=replace(view.analysis, comparisons=comparisons))
