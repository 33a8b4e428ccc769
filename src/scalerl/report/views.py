"""`build_report`: one value that the page, the Markdown and the JSON all show.

inputs -> Material -> Series of each axis -> a View for each evaluation set, axis and window -> Report
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.curves import Comparison, Fit, NoteKind, Pair, PairKind, note, reward_at
from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import has_role
from scalerl.logs.facts import Fact
from scalerl.logs.formats import Log
from scalerl.logs.series import Selection, Series, series_from
from scalerl.report.figures import DIFFERENT_UNITS, Line, line_of
from scalerl.report.inputs import ARM, Material, gather
from scalerl.report.numbers import compute_text
from scalerl.report.results import (
    Analysis,
    CurveResult,
    FitOptions,
    check_pool,
    fits_of,
    fitted_curve,
    held_out_after,
    pooled,
    with_score,
)
from scalerl.report.runs import hours_name, incomparable, uneven_pace
from scalerl.report.workers import Workers, worth

SHARES = (0.25, 0.5)
TARGETS = (2.0, 4.0)
"""Times the largest compute at which forecasts are given."""
KNOWN = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, *TARGETS, 8.0, 16.0)
"""Times the largest compute at which the lines of the page are exact; between those it interpolates."""
LINE_POINTS = 48
NOT_COMPARED = Comparison(pairs=(), standings=(), shared_ceiling=None, shared_fits={})
ALL = "all"
HELD_OUT = "held-out"
MOST_PAIRED = 8  # of more curves than these not all views are fitted, and the one shown first is compared
UNEVEN = 1.3  # times as long for the same work: something else used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A column of compute."""

    column: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which part of each curve is fitted; what lies after it tests the forecast."""

    key: str
    label: str
    share: float | None = None
    """Share of each curve's largest compute; None for all of it."""
    test_share: float = 0.0
    """What lies between the window and this share of the compute neither makes the forecast nor tests it."""
    until: float | None = None
    """Instead of `share`: a compute on the main axis, equal for all curves."""
    test_from: float | None = None
    """Instead of `test_share`, likewise."""


@dataclass(frozen=True, slots=True)
class View:
    """The curves of one evaluation set on one axis, fitted on one window."""

    evaluation_set: str
    axis: Axis
    window: Window
    analysis: Analysis
    lines: Mapping[str, Line]
    """What the page draws of the curves that have one."""

    @property
    def is_compared(self) -> bool:
        return bool(self.analysis.comparisons)

    @property
    def comparison(self) -> Comparison:
        """That of its curves, with nothing in it if they were not compared."""
        return next(iter(self.analysis.comparisons.values()), NOT_COMPARED)

    @property
    def names(self) -> list[str]:
        return [curve.name for curve in self.analysis.curves]

    @property
    def usable(self) -> list[str]:
        return [curve.name for curve in self.analysis.curves if curve.usable]


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
    notes: tuple[Fact, ...]

    def view(self, evaluation_set: str | None = None, axis: str | None = None, window: str | None = None) -> View:
        wanted = (evaluation_set or self.sets[0], axis or self.axes[0].column, window or self.window.key)
        return next(view for view in self.views if (view.evaluation_set, view.axis.column, view.window.key) == wanted)

    def members(self, evaluation_set: str, axis: str) -> list[Series]:
        """Return the curves of a set on an axis."""
        return [data for data in self.series[axis] if (data.evaluation_set or "") == evaluation_set]


def build_report(inputs: Sequence[Path], selection: Selection, options: FitOptions) -> Report:
    """Read what was named, and report on it."""
    return report_on(gather([Path(path) for path in inputs]), selection, options)


def report_on(
    material: Material,
    selection: Selection,
    options: FitOptions,
    *,
    quick: bool = False,
    fitted: Callable[[Series, FitOptions], CurveResult] = fitted_curve,
    compare: bool = True,
) -> Report:
    """Fit and compare the curves in every view.

    `quick` has one axis and, besides all points, the window shown first; it starts no process.
    """
    if material.has_arms and not selection.by:
        selection = replace(selection, by=(ARM,))
    options = _with_study_options(options, material)
    main, axis_notes = _main_axis(material, selection)
    notes = [*axis_notes, *material.notes]
    windows, window = windows_of(material, selection)
    windows = tuple(dict.fromkeys([window, windows[-1]])) if quick else windows
    on_axes = _on_each_axis(material, replace(selection, x=main), main, notes)
    found = [next(on_axes)] if quick else list(on_axes)
    series = {axis.column: own for axis, own, _ in found}
    main_series = found[0][1]
    sets = tuple(dict.fromkeys(data.evaluation_set or "" for data in main_series))
    on_main = {(data.evaluation_set, data.name): data for data in main_series}
    jobs = []
    num_fits = sum(len(own) for own in series.values()) * len(windows)
    with Workers(0 if quick else worth(num_fits)) as workers:
        for name, (axis, own, held_out), each in product(sets, found, windows):
            chosen = held_out if each.key == HELD_OUT else own
            members = [data for data in chosen if (data.evaluation_set or "") == name]
            asked = [_asked(data, on_main.get((data.evaluation_set, data.name), data), each, options)
                     for data in members]  # fmt: skip
            largest = max(float(data.compute.max(initial=0.0)) for data in own)
            # Few curves are fitted and compared in all views. Many are fitted in all windows on the first axis, and on
            # the others in the window shown first and with all points; they are compared in the view shown first.
            is_first, are_few = axis is found[0][0], len(members) <= MOST_PAIRED
            if not (are_few or is_first or each in (window, windows[-1])):
                continue
            is_compared = compare and (are_few or (is_first and each is window))
            how = options.compare if is_compared else None
            jobs.append((name, axis, each, workers.submit(_analysed, asked, largest, fitted, how)))
        views = tuple(
            _mark_incomparable(View(name, axis, each, *job.result()), material) for name, axis, each, job in jobs
        )
    shown = [curve for view in views if view.axis is found[0][0] and view.window is window
             for curve in view.analysis.curves]  # fmt: skip
    if window.key != ALL and not any(curve.usable for curve in shown):
        notes.append(Fact(kind="window_too_short", values={"window": window.label}))
        window = windows[-1]
    return Report(
        material=material,
        options=options,
        axes=tuple(axis for axis, _, _ in found),
        windows=windows,
        window=window,
        sets=sets,
        series=series,
        views=views,
        notes=tuple(notes),
    )


def _with_study_options(options: FitOptions, material: Material) -> FitOptions:
    """Skip what the study skips, unless the user says otherwise."""
    fitted = material.plan.get("fit") or {}
    share, compute = fitted.get("skip_before"), fitted.get("skip_before_compute")
    if options.skip_before is not None or (not share and compute is None):
        return options
    return replace(options, skip_before=f"{100 * share:g}%" if share else compute)


# Axes


def _main_axis(material: Material, selection: Selection) -> tuple[str | None, list[Fact]]:
    """Return the column of compute to show first, and why it was chosen if the user did not choose it."""
    if selection.x is not None:
        return selection.x, []
    known = [set(log.frame.columns) for log in material.tables]
    axis, distorted = material.plan.get("compute"), _distorted(material)
    if distorted and axis in (None, "gpu_hours") and all("flops" in columns for columns in known):
        return "flops", [Fact(kind="time_distorted", values={**distorted, "hours": hours_name(material.runs)})]
    if axis and all(axis in columns for columns in known):
        return axis, []
    choices = {data.x_label for data in series_from(material.tables, selection) if not data.problem}
    return (choices.pop() if len(choices) == 1 else None), []


def _distorted(material: Material) -> dict[str, Any]:
    """Return why the time that runs took does not measure their compute; empty where it does."""
    if material.plan.get("shared_device"):
        return {"cause": "shared_device"}
    if (uneven := uneven_pace(material.runs)) > UNEVEN:
        return {"cause": "uneven_pace", "size": uneven}
    is_alone = len(material.tables) == len(material.runs) == 1
    frame = material.tables[0].frame
    spent = zip(frame.numbers("gpu_hours"), frame.numbers("flops"), strict=True)
    share = disagreement({"gpu_hours": hours, "flops": flops} for hours, flops in spent) if is_alone else 0.0
    return {"cause": "uneven_time", "size": share} if share > UNEVEN_TIME else {}


def _on_each_axis(
    material: Material, selection: Selection, main: str | None, notes: list[Fact]
) -> Iterator[tuple[Axis, list[Series], list[Series]]]:
    """Yield each axis, the main one first, with its series, and the same series with the rows of --holdout held out.

    An axis on which some curves cannot be fitted is skipped, with a note.
    """
    tables, hours = material.tables, hours_name(material.runs)
    usable: set[tuple[str | None, str]] = set()
    others = [column for column in _candidates(tables) if column != main] if main is not None else []
    for column in [main, *others]:
        try:
            series = _named(series_from(tables, replace(selection, x=column, holdout=None)))
            own = column or series[0].x_label
            held_out = series if selection.holdout is None else _named(series_from(tables, replace(selection, x=own)))
        except InputError as fault:
            if column == main:
                raise
            values = {"axis": axis_label(str(column), hours), "problem": str(fault)}
            notes.append(Fact(kind="axis_left_out", values=values))
            continue
        fitted = {(data.evaluation_set, data.name) for data in series if not data.problem}
        units = {axis_label(data.x_label, hours) for data in series}
        label = axis_label(own, hours) if len(units) == 1 else DIFFERENT_UNITS
        if column == main or fitted == usable:
            usable = usable or fitted
            yield Axis(column=own, label=label), series, held_out
        else:
            problem = "some curves cannot be fitted on it."
            notes.append(Fact(kind="axis_left_out", values={"axis": label, "problem": problem}))


def _named(series: Sequence[Series]) -> list[Series]:
    """Return the curves with their names within their evaluation sets."""
    return [
        replace(data, name=data.name.removesuffix(f"/{data.evaluation_set}")) if data.evaluation_set else data
        for data in series
    ]


def _candidates(logs: Sequence[Log]) -> Iterator[str]:
    plans = [plan for log in logs if (plan := log.planned()) is not None]
    for axis in ("gpu_hours", "flops", "step", "tokens"):
        columns = {plan.axis(axis) for plan in plans}
        if len(columns) == 1 and (column := columns.pop()):
            yield column


def axis_label(column: str, hours: str = "GPU-hours") -> str:
    labels = {"gpu_hours": hours, "flops": "FLOPs", "tokens": "tokens", "step": "steps"}
    return next((label for role, label in labels.items() if has_role(column, role)), column)


# Windows


def windows_of(material: Material, selection: Selection) -> tuple[tuple[Window, ...], Window]:
    """Return the windows to choose among, all points last, and the one to show first."""
    shares = [Window(key=f"{share:.0%}", label=f"first {share:.0%}", share=share) for share in SHARES]
    everything = Window(key=ALL, label="all points")
    if selection.holdout is not None:
        own = Window(key=HELD_OUT, label="without held-out rows")
        return (*shares[1:], own, everything), own
    fitted, held = material.plan.get("fit") or {}, material.plan.get("holdout") or {}
    until = float(fitted.get("until") or 1.0)
    least = {"test_share": float(held.get("from") or 0.0), "test_from": held.get("from_compute")}
    if (compute := fitted.get("until_compute")) is not None:
        own = Window(key=HELD_OUT, label=f"up to {compute_text(compute)}", until=compute, **least)
        return (*shares, own, everything), own
    if until >= 1:
        return (*shares, everything), everything
    own = Window(key=HELD_OUT, label=f"first {until:.0%}", share=until, **least)
    others = [window for window in shares if abs((window.share or 0.0) - until) > 0.01]
    return (*sorted([*others, own], key=lambda window: window.share or 0.0), everything), own


# Views


def _asked(data: Series, main: Series, window: Window, options: FitOptions) -> tuple[Series, FitOptions]:
    """Return the points to fit, with what tests the forecast held out, and how to fit them.

    Computes given on the main axis keep their share on the others.
    """
    largest, on_main = float(data.compute.max(initial=0.0)), float(main.compute.max(initial=0.0))
    scale = largest / on_main if data.x_label != main.x_label and on_main > 0 else 1.0
    skip = options.skip_before
    if isinstance(skip, str) and skip.endswith("%"):
        # Of the whole curve, whatever the window: the same points are left out of every one.
        skip = float(skip.removesuffix("%")) / 100 * largest
    elif isinstance(skip, float | int):
        skip = scale * skip
    limits = [scale * limit for limit in (window.until, options.fit_until) if limit is not None]
    limits += [] if window.share is None else [window.share * largest]
    test_from = max(window.test_share * largest, scale * (window.test_from or 0.0))
    split = held_out_after(data, min(limits, default=np.inf), test_from)
    return split, replace(options, fit_until=None, skip_before=skip or None)


def _analysed(
    asked: Sequence[tuple[Series, FitOptions]],
    largest: float,
    fitted: Callable[[Series, FitOptions], CurveResult],
    compare: Callable[[Mapping[str, Fit]], Comparison] | None,
) -> tuple[Analysis, dict[str, Line]]:
    """Fit the curves of a view, with scores on what is held out, forecasts and lines, and compare them."""
    series, options = [data for data, _ in asked], asked[0][1]
    check_pool(series, options)
    is_one_axis, computes = len({data.x_label for data in series}) == 1, [times * largest for times in KNOWN]
    curves, lines = [], {}
    for curve in pooled([fitted(data, own) for data, own in asked], options):
        fit, at = curve.fit, ()
        if fit.usable and is_one_axis:
            at = tuple(reward_at(fit, [times * largest for times in TARGETS]))
        if fit.usable and fit.has_intervals:
            begin = min(float(fit.compute.min()) / 4, computes[0])
            lines[curve.name] = line_of(fit, begin, 1.5 * computes[-1], num=LINE_POINTS, at=computes)
        curves.append(replace(with_score(curve), at=at))
    fits = fits_of(curves)
    comparisons = {"": compare(fits)} if compare is not None and len(fits) > 1 and is_one_axis else {}
    return Analysis(command="compare", curves=tuple(curves), comparisons=comparisons), lines


def _mark_incomparable(view: View, material: Material) -> View:
    """Mark pairs of arms that were evaluated on different prompts as not comparable."""
    prompts = incomparable(material.runs)
    # A single evaluation set goes without its name.
    of_arm = prompts.get(view.evaluation_set) if view.evaluation_set else next(iter(prompts.values()), None)
    if not of_arm or not view.is_compared:
        return view

    def mark(pair: Pair) -> Pair:
        left, right = of_arm.get(pair.a), of_arm.get(pair.b)
        if left is None or right is None or left == right:
            return pair
        different = note(NoteKind.DIFFERENT_PROMPTS)
        return replace(pair, kind=PairKind.NOT_COMPARABLE, winner=None, notes=(different, *pair.notes))

    pairs = tuple(map(mark, view.comparison.pairs))
    if pairs == view.comparison.pairs:
        return view
    # Ceilings on different prompts must not be averaged.
    return replace(view, analysis=replace(view.analysis, comparisons={"": replace(NOT_COMPARED, pairs=pairs)}))
