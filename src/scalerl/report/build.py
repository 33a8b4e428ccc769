"""`build_report`: from study folders, run folders or logs to one Result, as `document` shows it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs import Selection, Series, series_from
from scalerl.logs.axes import UNEVEN_TIME, disagreement_in
from scalerl.report.analyse import HALF, compared, fitted_curve, part, pool_notes, pooled, scored
from scalerl.report.document import Level, Say, say
from scalerl.report.material import ARM, Material, gather
from scalerl.report.options import FitOptions
from scalerl.report.outlook import with_end
from scalerl.report.results import CurveResult, Result
from scalerl.report.runs import hours_name, incomparable, uneven_pace
from scalerl.report.workers import Workers, worth

UNEVEN = 1.3
"""Times as long for the same work: something else used the machine."""
Fitted = Callable[[Series, FitOptions], CurveResult]


def build_report(inputs: Sequence[Path], selection: Selection, options: FitOptions) -> Result:
    """Read what was named, and report on it."""
    return report_on(gather([Path(path) for path in inputs]), selection, options)


def report_on(
    material: Material,
    selection: Selection,
    options: FitOptions,
    *,
    fitted: Fitted = fitted_curve,
    in_workers: bool = True,
    end: float | None = None,
    most: int | None = None,
) -> Result:
    """Fit and compare the curves; `fitted` makes one, here or in a worker.

    `end` is the compute at the end of a budget, and `most` the number of curves to fit.
    """
    if material.has_arms and not selection.by:
        selection = replace(selection, by=(ARM,))
    options = _with_study_options(options, material)
    column, notes = _main_axis(material, selection)
    series = _named(series_from(material.tables, replace(selection, x=column)))
    share = float((material.plan.get("fit") or {}).get("until") or HALF)
    if most is not None and len(series) > most:
        notes = [*notes, say("too_many_curves", Level.WARNING, most=most, num=len(series))]
        series = series[:most]
    good = [data for data in series if not data.problem]
    with Workers(worth(2 * len(good)) if in_workers else 0) as workers:
        whole = [workers.submit(fitted, data, options) for data in good]
        early = [workers.submit(_early, data, share, options, fitted) for data in good]
        curves = pooled([job.result() for job in whole], options)
        scores = [job.result() for job in early]
    done = [
        scored(curve) if len(curve.series.holdout_compute) else replace(curve, backtest=score)
        for curve, score in zip(curves, scores, strict=True)
    ]
    result = Result(
        command="report",
        curves=tuple(with_end(curve, end) for curve in done),
        options=options,
        left_out=tuple(data for data in series if data.problem),
        notes=(*notes, *pool_notes(curves, options)),
        material=material,
    )
    others = _other_prompts(result)
    kept = [curve for curve in result.curves if curve.name not in others.get(curve.evaluation_set, ())]
    notes = [
        say("different_prompts", Level.WARNING, names=tuple(sorted(arms)), of_set=f" of {name}" if name else "")
        for name, arms in others.items()
    ]
    done = compared(replace(result, curves=tuple(kept)))
    return replace(done, curves=result.curves, notes=(*done.notes, *notes))


def _early(data: Series, share: float, options: FitOptions, fitted: Fitted) -> Any:
    """Return the score of a forecast from the first part of a series; None where rows are held out already."""
    return (
        None if len(data.holdout_compute) or options.method == "paper" else part(data, share, options, fitted).backtest
    )


def _with_study_options(options: FitOptions, material: Material) -> FitOptions:
    """Skip what the study skips, unless the user says otherwise."""
    fitted = material.plan.get("fit") or {}
    share, compute = fitted.get("skip_before"), fitted.get("skip_before_compute")
    if options.skip_before is not None or (not share and compute is None):
        return options
    return replace(options, skip_before=f"{100 * share:g}%" if share else compute)


def _main_axis(material: Material, selection: Selection) -> tuple[str | None, list[Say]]:
    """Return the column of compute, and why it was chosen if the user did not choose it."""
    if selection.x is not None:
        return selection.x, []
    known = [set(log.frame.columns) for log in material.tables]
    axis, distorted = material.plan.get("compute"), _distorted(material)
    if distorted and axis in (None, "gpu_hours") and all("flops" in columns for columns in known):
        return "flops", distorted
    return (axis if axis and all(axis in columns for columns in known) else None), []


def _distorted(material: Material) -> list[Say]:
    """Return why the time that runs took does not measure their compute; empty where it does."""
    hours = hours_name(run.hours for run in material.runs)
    if material.plan.get("shared_device"):
        return [say("shared_device", hours=hours)]
    if (uneven := uneven_pace(material.runs)) > UNEVEN:
        return [say("uneven_pace", hours=hours, size=uneven)]
    is_one_run = len(material.tables) == len(material.runs) == 1
    size = disagreement_in(material.tables[0].frame) if is_one_run else 0.0
    return [say("uneven_time", hours=hours, size=size)] if size > UNEVEN_TIME else []


def _named(series: Sequence[Series]) -> list[Series]:
    """Return the curves with their names within their evaluation sets."""
    if not series:
        raise InputError("there is nothing to report on: no curve was found")
    return [
        replace(data, name=data.name.removesuffix(f"/{data.evaluation_set}")) if data.evaluation_set else data
        for data in series
    ]


def _other_prompts(result: Result) -> dict[str, set[str]]:
    """Return, for each evaluation set, the arms that were evaluated on other prompts than most."""
    others = {}
    assert result.material is not None
    for name, prompts in incomparable(result.material.runs).items():
        groups: dict[frozenset[str], set[str]] = {}
        for arm, hashes in prompts.items():
            groups.setdefault(hashes, set()).add(arm)
        most = max(groups.values(), key=len)
        # A single evaluation set goes without its name.
        others[name if name in result.sets else ""] = set(prompts) - most
    return others
