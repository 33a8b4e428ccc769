"""Log forecasts to a project of wandb or trackio: a run per curve, with its line and its forecast."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from scalerl.callbacks.forecast import describe
from scalerl.curves import tails
from scalerl.errors import InputError, UsageError, first_line
from scalerl.logs.projects import Project, imported, project_at
from scalerl.report.results import CurveResult

_REACH = 4.0
"""A curve is drawn to this multiple of its largest compute."""
_NUM_PLACES = 60

Line = Mapping[str, Sequence[float]]
"""Columns of equal length: compute, reward, low, high."""
Publisher = Callable[[Any, Project, CurveResult, Line, Mapping[str, Any]], None]


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
                PUBLISHERS[project.tracker](package, project, curve, line_of(curve), describe(curve).metrics())
        except Exception as fault:  # trackers raise errors of their own and of the network
            raise InputError(
                f"the forecast of {curve.series.name} was not logged to {project} ({first_line(fault)})."
            ) from None
    return [run_name(curve) for curve in usable]


def run_name(curve: CurveResult) -> str:
    return f"{curve.series.name} forecast"


def line_of(curve: CurveResult) -> dict[str, list[float]]:
    """Return the fitted curve with its interval, from the first point to beyond the last."""
    fit = curve.fit
    grid = np.geomspace(fit.compute.min(), _REACH * fit.scale, _NUM_PLACES)
    low, high = tails(fit.level)
    rewards = np.quantile(fit.curve_draws(grid), [0.5, low, high], axis=0).tolist()
    return {"compute": grid.tolist(), **dict(zip(("reward", "low", "high"), rewards, strict=True))}


def _to_wandb(wandb: Any, project: Project, curve: CurveResult, line: Line, numbers: Mapping[str, Any]) -> None:
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


def _to_trackio(trackio: Any, project: Project, curve: CurveResult, line: Line, numbers: Mapping[str, Any]) -> None:
    """Log the line as metrics over compute, and the numbers with its last point."""
    run = trackio.init(project=project.name, name=run_name(curve), config={"compute": curve.series.x_label})
    for at in range(_NUM_PLACES):
        is_last = at == _NUM_PLACES - 1
        run.log(
            {f"forecast/{key}": values[at] for key, values in line.items()} | (dict(numbers) if is_last else {}), at
        )
    run.finish()


PUBLISHERS: dict[str, Publisher] = {"wandb": _to_wandb, "trackio": _to_trackio}
