"""report: one page on a study, on runs, or on any trainer's logs."""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from scalerl.cli.curves import Common, _check, _skip_before, _start, column_value, option, shares_options


def _draws_its_own(command: Callable[..., None]) -> Callable[..., None]:
    """The shared options without --plot: a report has its own pictures."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(plot=None, **given)

    shown = inspect.signature(command)
    run.__signature__ = shown.replace(  # type: ignore[attr-defined]
        parameters=[param for param in shown.parameters.values() if param.name != "plot"]
    )
    run.__annotations__ = {name: kind for name, kind in command.__annotations__.items() if name != "plot"}
    return run


@_draws_its_own
@shares_options
def report(
    common: Common,
    holdout: Annotated[str | None, option("These rows test the forecast.", metavar="COL=VALUE")] = None,
    out: Annotated[
        Path | None, option("Folder to write into (default: the study's, else this one).", "Output", metavar="FOLDER")
    ] = None,
) -> None:
    """Write one page on a study, on runs or on logs: curves, verdicts, forecasts, and what cannot be told yet.

    report.html opens in any browser without a network; report.md and its pictures are for a paper or a pull request.

    [dim]scalerl report runs/tiny-loo[/dim]
    """
    from scalerl.study.analysis import FitOptions
    from scalerl.study.report import build_report, report_json, write_report
    from scalerl.study.series import Selection

    selection = Selection(
        x=common.x,
        y=common.y,
        by=tuple(name.strip() for name in (common.by or "").split(",") if name.strip()),
        seed=common.seed,
        where=tuple(column_value(text, "--where") for text in common.where or ()),
        start=_start(common.start),
        y_scale=common.y_scale,  # type: ignore[arg-type]
        holdout=column_value(holdout, "--holdout") if holdout is not None else None,
        gpus=common.gpus,
    )
    options = FitOptions(
        form=common.form,
        level=common.level,
        margin=common.margin,
        skip_before=_skip_before(common.skip_before),
        fit_until=common.fit_until,
        bounded=common.y_scale != "none",
    )
    _check(common)
    inputs = [Path(name) for name in common.files]
    if common.as_json:
        typer.echo(json.dumps(report_json(build_report(inputs, selection, options)), indent=2, allow_nan=False))
        return
    page = write_report(inputs, out, selection=selection, options=options)
    typer.echo(f"The report is {page}")
