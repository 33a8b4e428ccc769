"""The commands `plan`, `transfer` and `score`: inference from several runs, and scores of past forecasts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.cli import options as opt
from scalerl.cli.console import show_document
from scalerl.cli.curves import Common, read, shares_options
from scalerl.cli.options import Parsed, ParsedList, option
from scalerl.errors import InputError, UsageError

if TYPE_CHECKING:
    from scalerl.forecast.logs.series import Series


def readable(series: "Sequence[Series]") -> "Sequence[Series]":
    """Return series that all can be fitted; InputError names the first that cannot."""
    for data in series:
        if data.problem:
            raise InputError(f"{data.name} cannot be used here: {data.problem}")
    return series


@shares_options("plot", "explain", "method")
def plan(
    common: Common,
    target: Parsed = option("C", "Compare at this compute, in the unit of the log; required.", check=opt.typed),
    budget: Parsed = option(
        "C",
        "Compute for all arms together, with what they have spent. Unset: no limit.",
        check=opt.typed,
    ),
) -> None:
    """Say which arms to continue, which to stop and why, and how probably each is the best at a target compute.

    The seeds of an arm go together, and arms inform each other. With --price the plan is in money too.

    [dim]scalerl plan runs/my-study --target 16000 --budget 60000[/dim]
    """
    from scalerl.forecast.logs.typed import MOST_OUTSIDE, compute_typed
    from scalerl.forecast.report import plans
    from scalerl.forecast.report.analyse import fitted_curves
    from scalerl.forecast.report.axes import check_one_axis
    from scalerl.forecast.report.json_values import plain
    from scalerl.forecast.several.plan import plan as planned_for

    if target is None:
        raise UsageError("arms are compared at one compute, that of the run to plan for: add --target C, say 16000")
    series, options = read(common)
    check_one_axis(readable(series), "arms must be on one axis of compute to be planned")
    wanted = compute_typed(target, "target", series)
    limit = None if budget is None else compute_typed(budget, "budget", series, most=MOST_OUTSIDE * len(series))
    curves = fitted_curves(series, options)
    candidates = plans.make_candidates(curves, wanted)
    planned = planned_for(candidates, wanted, budget=limit, worth=options.worth, level=options.level)
    show_document("plan", common.as_json, plain(planned), plans.plan_document(planned, curves))


@shares_options("start", "plot", "explain", "method")
def transfer(
    common: Common,
    size: str = option("COLUMN", "Column of the size: 0.5B, 72B, 7e9; or of a batch size, a length.", default=...),
    to: str = option("SIZE", "Size to forecast, such as 72B.", default=...),
    start: Parsed = option("REWARD", "Reward of that model before training.", default=...),
    at: ParsedList = option(
        "C[,C]", "Forecast the reward at these computes; may be repeated.", check=opt.several_typed
    ),
) -> None:
    """Forecast the curve of a larger model before it is trained, from runs of three or more smaller ones.

    [dim]scalerl more transfer runs.csv --x flops --y pass_rate --size size --to 72B --start 0.31 --at 2e20[/dim]
    """
    from scalerl.forecast.logs.typed import compute_typed
    from scalerl.forecast.report import transfers
    from scalerl.forecast.report.analyse import fitted_curves

    target = transfers.parse_size(to, "--to")
    # The size last, so that it ends each curve's name.
    common = replace(common, by=(*(name for name in common.by or () if name != size), size))
    series, options = read(common)
    share, series = transfers.in_one_scale(start, readable(series))
    curves = fitted_curves(series, options)
    # A larger model takes far more compute than the logs hold.
    computes = [compute_typed(each, "at", series, most=math.inf) for each in at or []]
    done, notes = transfers.make_transfer(curves, size, target, share, computes, options.level)
    content = transfers.transfer_json(done, notes)
    sections = transfers.transfer_document(done, notes)
    show_document("transfer", common.as_json, content, sections)


def score(
    sealed: Path = opt.argument("FILE|FOLDER", "A sealed forecast, or a folder of them."),
    logs: list[str] | None = opt.argument(
        "LOG",
        "The log as it is now. Left out: one of the sealed name, here or beside the sealed file.",
        None,
    ),
    as_json: bool = opt.JSON,
) -> None:
    """Score sealed forecasts (forecast --seal) on what was measured since; a folder gives one table of them all.

    [dim]scalerl forecast run/ --at 16000 --seal may.json; (later) scalerl more score may.json run/[/dim]
    """
    from scalerl.forecast.report import seals

    results = seals.read_scores(sealed, logs or [])
    show_document("score", as_json, seals.scores_json(results), seals.score_document(results))
