"""report: one page on a study, on runs, or on any trainer's logs."""

from pathlib import Path

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import print_json
from scalerl.cli.curves import Common, chosen, shares_options
from scalerl.cli.options import Parsed, option


@shares_options("plot", "explain", "method")
def report(
    common: Common,
    holdout: Parsed = option(
        "COL=VALUE", "Test the forecast on these rows instead of fitting them.", check=opt.column_value
    ),
    out: Path | None = option("FOLDER", "Folder to write into. Unset: the study's, or else this one."),
) -> None:
    """Write one page on a study, on runs or on logs: curves, verdicts, forecasts, and what is not known yet.

    report.html opens in any browser without a network; report.md and its pictures are for a paper or a pull request.

    [dim]scalerl report runs/tiny-loo[/dim]

    See also: watch for the same while runs are trained.
    """
    from scalerl.report.write import build_report, report_json, write_report

    selection, options = chosen(common, holdout=holdout)
    inputs = [Path(name) for name in common.files]
    if common.as_json:
        print_json("report", **report_json(build_report(inputs, selection, options)))
        return
    written = write_report(inputs, out, selection=selection, options=options)
    for warning in written.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"The report is {written.page}")
