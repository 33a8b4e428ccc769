"""Log forecasts to a project of wandb or trackio: a run per curve, with its line and its forecast."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from scalerl.callbacks.forecast import describe
from scalerl.errors import InputError, UsageError, first_line
from scalerl.forecast.logs.readers.projects import Project, imported, project_at
from scalerl.forecast.report.figures import line_of
from scalerl.forecast.report.results import CurveResult

_REACH = 4.0
"""A curve is drawn to this multiple of its largest compute."""
_NUM_PLACES = 60

Columns = Mapping[str, Sequence[float]]
"""Columns of equal length: compute, reward, low, high."""
Publisher = Callable[[Any, Project, CurveResult, Columns, Mapping[str, Any]], None]


def tracker_of(address: str) -> tuple[Project, Any]:
    """Return the project of an address, `wandb:ENTITY/PROJECT` or `trackio:PROJECT`, and the package of its tracker."""
    project = project_at(address)
    if project is None:
        raise UsageError(f"{address!r} is not the address of a project: give wandb:ENTITY/PROJECT or trackio:PROJECT")
    return project, imported(project, "written")


def publish(curves: Sequence[CurveResult], address: str) -> list[str]:
    """Log the curves to a project as new runs and return their names. Other runs of the project are not changed."""
    project, package = tracker_of(address)
    usable = [curve for curve in curves if curve.usable and curve.fit.has_intervals]
    for curve in usable:
        try:
            with redirect_stdout(sys.stderr):
                PUBLISHERS[project.tracker](package, project, curve, columns_of(curve), describe(curve).metrics())
        except Exception as fault:  # trackers raise errors of their own and of the network
            raise InputError(
                f"the forecast of {curve.series.name} was not logged to {project} ({first_line(fault)})."
            ) from None
    return [run_name(curve) for curve in usable]


def run_name(curve: CurveResult) -> str:
    return f"{curve.series.name} forecast"


def columns_of(curve: CurveResult) -> Columns:
    """Return the fitted curve with its interval, from the first point to beyond the last."""
    line = line_of(curve, _REACH * curve.fit.scale, has_bands=True, num=_NUM_PLACES)
    assert line.band is not None
    rows = (line.compute, line.reward, *line.band)
    return {name: row.tolist() for name, row in zip(("compute", "reward", "low", "high"), rows, strict=True)}


def _to_wandb(wandb: Any, project: Project, curve: CurveResult, line: Columns, numbers: Mapping[str, Any]) -> None:
    """Log a panel with points, line and interval; the numbers are the summary of the run."""
    *entity, name = project.name.split("/")
    with wandb.init(
        entity="/".join(entity) or None,
        project=name,
        name=run_name(curve),
        job_type="forecast",
        reinit="create_new",
        settings=wandb.Settings(quiet=True),
    ) as run:
        measured = {"measured": (curve.series.compute.tolist(), curve.series.reward.tolist())}
        lines = measured | {key: (line["compute"], line[key]) for key in ("reward", "low", "high")}
        xs, ys = zip(*lines.values(), strict=True)
        panel = wandb.plot.line_series(
            xs=xs, ys=ys, keys=[*lines], title=curve.series.y_label, xname=curve.series.x_label
        )
        run.log({"forecast": panel})
        run.summary.update(numbers)


def _to_trackio(trackio: Any, project: Project, curve: CurveResult, line: Columns, numbers: Mapping[str, Any]) -> None:
    """Log the line as metrics over compute, and the numbers with its last point."""
    run = trackio.init(project=project.name, name=run_name(curve), config={"compute": curve.series.x_label})
    for at, row in enumerate(zip(*line.values(), strict=True), start=1):
        values = {f"forecast/{key}": value for key, value in zip(line, row, strict=True)}
        run.log(values | (dict(numbers) if at == len(line["compute"]) else {}), at - 1)
    run.finish()


PUBLISHERS: dict[str, Publisher] = {"wandb": _to_wandb, "trackio": _to_trackio}
