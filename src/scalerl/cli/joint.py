"""The commands `prior`, `plan`, `transfer` and `score`: inference from several runs, and scores of past forecasts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalerl.cli.console import drawn, print_json, table_console
from scalerl.cli.curves import Common, chosen, shares_options
from scalerl.cli.options import Json, argument, numbers, option, positive
from scalerl.errors import InputError, UsageError

if TYPE_CHECKING:
    from scalerl.logs.series import Series
    from scalerl.report.results import CurveResult


def _curves(common: Common) -> "list[CurveResult]":
    """Fit the curves that the shared options select: each alone, or with `--prior` and `--pool`."""
    from scalerl.report.results import fitted_curves

    return fitted_curves(_series(common), chosen(common)[1])


def _series(common: Common) -> "list[Series]":
    from scalerl.logs.formats import read_tables
    from scalerl.logs.series import series_from

    return series_from(read_tables(common.files), chosen(common)[0])


@shares_options("plot")
def prior(
    common: Common,
    out: Annotated[Path, option("File for what was learnt.", "--out", metavar="FILE")],
) -> None:
    """Learn typical gains, exponents and midpoints from earlier runs, for --prior FILE of other commands.

    [dim]scalerl more prior old_runs/ --out ours.json; scalerl forecast new_run/ --prior ours.json[/dim]
    """
    from scalerl.report.results import prior_of
    from scalerl.store import write_json

    content = prior_of(_curves(common))
    if not out.parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.parent}")
    write_json(out, content)
    if common.as_json:
        print_json("prior", file=str(out), prior=content)
        return
    typer.echo(f"{len(content['members'])} runs are in {out}: use it with --prior {out}")


@shares_options()
def plan(
    common: Common,
    target: Annotated[float, option("Compute at which the arms are compared.", metavar="C")],
    budget: Annotated[
        float | None,
        option(
            "Compute that all arms may spend together, what they have spent included. Unset: no limit.", metavar="C"
        ),
    ] = None,
    allocate: Annotated[
        str | None,
        option(
            "Say instead which values of these columns are best at which compute up to the target: what a step is "
            "spent on, such as completions_per_group,groups_per_batch.",
            metavar="COL[,COL]",
        ),
    ] = None,
) -> None:
    """Say which arms to continue, which to stop, and how probably each is the best at a target compute.

    Arms inform each other, as with --pool.

    [dim]scalerl plan runs/my-study --target 16000 --budget 60000[/dim]

    [dim]scalerl plan runs/my-study --target 16000 --allocate completions_per_group,groups_per_batch[/dim]

    See also: study --set budget.policy=forecast, which plans and continues its arms by itself.
    """
    from scalerl.joint.plan import plan as planned_for
    from scalerl.report.joint import plans
    from scalerl.report.json import plain

    positive([target], "--target")
    positive([] if budget is None else [budget], "--budget")
    if allocate is not None:
        if common.plot is not None:
            raise UsageError("--allocate prints a table and draws nothing: leave out --plot")
        _allocate(replace(common, by=allocate), target)
        return
    curves = _curves(common)
    candidates = plans.make_candidates(curves, target)
    planned = planned_for(candidates, target, budget=budget, level=common.level)
    if common.plot is not None:
        plans.draw_plan(planned, candidates, curves, Path(common.plot))
    if common.as_json:
        print_json("plan", **plain(planned))
        return
    table_console().print(plans.plan_table(planned, candidates), highlight=False)
    drawn(common.plot)


def _allocate(common: Common, target: float) -> None:
    from scalerl.report.joint import allocations

    names = [name.strip() for name in (common.by or "").split(",")]
    found = allocations.make_allocations(_curves(common), names, target, common.level)
    if common.as_json:
        print_json("allocation", **allocations.allocation_json(found, names))
        return
    table_console().print(allocations.allocation_table(found, names), highlight=False)


@shares_options("start")
def transfer(
    common: Common,
    size: Annotated[str, option("Column of the size: 0.5B, 72B, 7e9; or of a batch size, a length.", metavar="COLUMN")],
    to: Annotated[str, option("Size to forecast, such as 72B.", metavar="SIZE")],
    start: Annotated[float, option("Reward of that model before training.", metavar="REWARD")],
    at: Annotated[str | None, option("Forecast the reward at these computes.", metavar="C[,C]")] = None,
) -> None:
    """Forecast the curve of a larger model before it is trained, from runs of three or more smaller ones.

    --plot draws ceilings against starts, and midpoints against sizes.

    [dim]scalerl more transfer runs.csv --x flops --y pass_rate --size size --to 72B --start 0.31 --at 2e20[/dim]
    """
    from scalerl.report.joint import transfers
    from scalerl.report.results import fitted_curves

    target = transfers.parse_size(to, "--to")
    computes = positive(numbers(at, "--at"), "--at")
    # The size last, so that it ends each curve's name.
    columns = [name.strip() for name in (common.by or "").split(",") if name.strip() and name.strip() != size]
    common = replace(common, by=",".join([*columns, size]))
    start, series = transfers.in_one_scale(start, _series(common))
    curves = fitted_curves(series, chosen(common)[1])
    done, notes = transfers.make_transfer(curves, size, target, start, computes, common.level)
    if common.plot is not None:
        transfers.draw_transfer(done, Path(common.plot))
    if common.as_json:
        print_json("transfer", **transfers.transfer_json(done, notes))
        return
    table_console().print(transfers.transfer_table(done, notes), highlight=False)
    drawn(common.plot)


def score(
    sealed: Annotated[Path, argument("FILE|FOLDER", "A sealed forecast, or a folder of them.")],
    logs: Annotated[
        list[str] | None, argument("LOG", "The log as it is now. Left out: the path it had when it was sealed.")
    ] = None,
    out: Annotated[
        Path | None, option("Calibration page of a folder. Unset: FOLDER/calibration.html.", metavar="OUT.html")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score sealed forecasts (forecast --seal) on what was measured since; a folder gives a calibration page.

    [dim]scalerl forecast run/ --at 16000 --seal may.json; (later) scalerl more score may.json run/[/dim]
    """
    from scalerl.report.joint import seals

    if sealed.is_dir():
        results = seals.score_folder(sealed, logs or [])
        page = out or sealed / "calibration.html"
        seals.write_page(results, page)
        if as_json:
            print_json("score", **seals.folder_json(results))
            return
        table_console().print(seals.folder_table(results), highlight=False)
        typer.echo(f"The calibration page is {page}")
        return
    if out is not None:
        raise UsageError(f"--out is for a folder of sealed forecasts, and {sealed} is not a folder")
    result = seals.score_file(sealed, logs or [])
    if as_json:
        print_json("score", files=[seals.score_json(result)], calibration=None)
        return
    table_console().print(seals.score_table(result), highlight=False)
