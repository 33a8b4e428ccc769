"""fit | forecast | backtest | compare | report: scaling curves from any run's log."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli import options as opt
from scalerl.cli import question
from scalerl.cli.console import print_json, say
from scalerl.cli.options import Parsed, ParsedList, flag, option, rare
from scalerl.errors import UnclearLogError, UsageError

if TYPE_CHECKING:
    from scalerl.forecast.logs import Selection, Series
    from scalerl.forecast.report.options import FitOptions
    from scalerl.forecast.report.results import Result

KINDS = "CSV, JSONL, console output, folders of any trainer or tracker; patterns such as 'logs/*.jsonl'."
FRACTIONS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that the commands on logs share; those of Selection and FitOptions have the names of their fields."""

    files: list[str] = opt.argument("FILE|FOLDER", KINDS)
    x: str | None = option("COLUMN", "Column of compute. Unset: detected.")
    y: str | None = option("COLUMN", "Column of reward. Unset: detected.")
    by: ParsedList = option(
        "COL[,COL]",
        "One curve for each value. Unset: for each recipe, arm, model ... or file.",
        check=opt.columns,
    )
    start: Parsed = option(
        "R|first|fit",
        "Reward before training. first: each run's first row. Unset: a row at 0, else fitted.",
    )
    gpus: float | None = option("N", "Build GPU-hours from the log's times.")
    plot: Parsed = option("FILE", "Draw the curves: .png or .svg.", check=lambda text, _: _plot(text))
    as_json: bool = opt.JSON
    explain: bool = flag("--explain", "Say why, and what was read from the log.")
    seed: str | None = rare("COLUMN", "Column whose values are runs of one recipe. Unset: detected.")
    where: list[str] | None = rare(
        "COL=VALUE|COL!=VALUE",
        "Keep only rows with (or without) this value; may be repeated: values of one column are alternatives.",
        check=opt.conditions,
    )
    labels: list[str] | None = rare("NAME", "Name to show for a curve or file; give one for each, in order.", "--label")
    y_scale: Parsed = rare(
        "auto|1|100|pm1|none",
        "Range of the reward: 1 for 0 to 1, 100 for percent, pm1 for -1 to 1, none for no limits.",
        default="auto",
    )
    skip_before: str | None = rare("C|SHARE", "Do not fit points before this compute: a value or a share ('10%').")
    fit_until: str | None = rare("C", "Do not fit points beyond this compute.")
    worth: str | None = option(
        "R",
        "Smallest difference of reward that counts, such as 0.01 or 1%. Unset: 1% of its scale, or 3% of the range.",
    )
    price: float | None = option("MONEY", "Price of a GPU-hour, to add costs.")
    level: str | None = rare("P", "Probability of the intervals that are shown. Unset: 0.9.")
    run_sd: str | None = rare(
        "R", "Spread between runs of a recipe that was run once. Unset: a share of the gain.", "--run-spread"
    )
    ceiling: ParsedList = rare(
        "A|LOW,HIGH",
        "Hold the ceiling fixed; two values: the range of the grid of --method paper.",
        check=opt.several_typed,
    )
    form: str | None = rare("NAME", "sigmoid, power, exponential or log-linear. Unset: sigmoid.")
    method: str | None = rare(
        "NAME", "posterior; or paper: the grid search of arXiv 2510.13786, A.5, without intervals. Unset: posterior."
    )
    alone: bool = flag("--alone", "Fit each curve alone, also where others have the same start and task.", hidden=True)
    help_all: bool = opt.HELP_ALL


def _plot(text: str) -> Path:
    from scalerl.forecast.report.picture import check_plot_path

    check_plot_path(Path(text))
    return Path(text)


def shares_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `Common` after a command's own, so that each is declared once; some may be left out."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [param for name, param in inspect.signature(command).parameters.items() if name != "common"]
        options = inspect.signature(Common).parameters
        shared = [param for name, param in options.items() if name not in without]
        absent = {name: options[name].default.default for name in without}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            common = Common(**absent, **{param.name: given.pop(param.name) for param in shared})
            try:
                command(common=common, **given)
            except UnclearLogError as error:
                chosen_options = question.answer(error, may_ask=not common.as_json)
                command(common=replace(common, **chosen_options), **given)

        # Help shows a command's own options first.
        params = [*(param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own), *shared]
        run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        run.__annotations__ = {param.name: param.annotation for param in params}
        return run

    return decorate


AT: Parsed = option(
    "C", "Compare at this compute, in the unit of the log: 100 or 100B. Unset: 4 times the largest.", check=opt.typed
)


@shares_options()
def fit(
    common: Common,
    at: ParsedList = option(
        "C[,C]", "Forecast the reward at these computes too; may be repeated.", check=opt.several_typed
    ),
) -> None:
    """Fit reward against compute: where a run stands, its ceiling, what more compute should add, and what to do.

    The curve is R(C) = R0 + (A - R0) / (1 + (C_mid/C)^B), with start R0, ceiling A, midpoint C_mid and exponent B.

    [dim]scalerl fit runs.csv --x gpu_hours --y pass_rate --by recipe[/dim]

    See also: forecast, compare; report for one page with all of them.
    """
    from scalerl.forecast.report.analyse import analyse_fit

    series, options = read(common)
    _print(common, analyse_fit(series, options, at or ()))


@shares_options()
def forecast(
    common: Common,
    at: ParsedList = option(
        "C[,C]",
        "Forecast the reward at these computes, in the unit of the log: 100 or 100B. Unset: at 2 and 4 times the data.",
        check=opt.several_typed,
    ),
    reach: ParsedList = option(
        "R[,R]", "Forecast the compute that reaches these rewards: 0.6 or 60%.", check=opt.several_typed
    ),
    seal: Path | None = rare(
        "FILE", "Write the forecast and a hash of its data, for 'scalerl more score' to check later."
    ),
) -> None:
    """Forecast the reward at a compute, or the compute that a reward needs.

    [dim]scalerl forecast run/ --at 16000,32000 --reach 0.6[/dim]

    See also: more score for forecasts written with --seal; watch to forecast a run while it is trained.
    """
    from scalerl.forecast.report.analyse import analyse_forecast

    if seal is not None:
        from scalerl.forecast.report.seals import check_new_seal

        check_new_seal(seal)
        if common.method == "paper":
            raise UsageError("--seal writes intervals, which --method paper does not have: leave out one of the two")

    series, options = read(common)
    result = analyse_forecast(series, options, at or (), reach or ())
    _print(common, result)
    if seal is not None:
        from scalerl.forecast.report.seals import write_seal

        write_seal(seal, result.curves, common.files, chosen(common)[0], result.options)


@shares_options()
def backtest(
    common: Common,
    holdout: Parsed = option("COL=VALUE", "Score these rows instead of fitting them.", check=opt.column_value),
    fraction: ParsedList = option(
        "F[,F]",
        "Fit the points before each share of the compute, score the rest. Unset: 0.25, 0.5 and 0.75.",
        check=opt.columns,
    ),
) -> None:
    """Check how early runs could have been forecast: fit the first part, score the rest.

    [dim]scalerl more backtest runs.csv --x gpu_hours --y pass_rate --by recipe --fraction 0.25,0.5[/dim]

    See also: forecast for what lies ahead.
    """
    from scalerl.forecast.report.analyse import analyse_backtest
    from scalerl.forecast.report.options import share_given

    shares = [share_given(each, "fraction") for each in fraction or FRACTIONS]
    series, options = read(common, holdout=holdout)
    _print(common, analyse_backtest(series, options, shares))


@shares_options()
def compare(
    common: Common,
    at: Parsed = AT,
) -> None:
    """Say which recipe to choose at a budget: one of them, either, or what would settle it.

    [dim]scalerl compare a.csv b.csv --x gpu_hours --y pass_rate --start first --at 100000[/dim]

    See also: plan for which runs to continue; study to run the recipes; report for one page.
    """
    from scalerl.forecast.report.analyse import analyse_compare

    if at is not None and common.method == "paper":
        raise UsageError("--at compares by probabilities, which --method paper does not have: leave out one of the two")
    series, options = read(common)
    _print(common, analyse_compare(series, options, at))


@shares_options("plot", "explain", "method")
def report(
    common: Common,
    holdout: Parsed = option(
        "COL=VALUE", "Test the forecast on these rows instead of fitting them.", check=opt.column_value
    ),
    at: Parsed = AT,
    out: Path | None = option("FOLDER", "Folder to write into. Unset: the study's, or else this one."),
) -> None:
    """Write one page on a study, on runs or on logs: which recipe to choose, curves, forecasts and open questions.

    report.html opens in any browser without a network. Pictures are drawn by fit and compare, with --plot.

    [dim]scalerl report runs/loo[/dim]

    See also: watch for the same while runs are trained.
    """
    from scalerl.forecast.report.build import build_report, write_report
    from scalerl.forecast.report.result_json import result_json

    selection, options = chosen(common, holdout=holdout)
    options = options if at is None else replace(options, typed={**options.typed, "at": at})
    inputs = [Path(name) for name in common.files]
    if common.as_json:
        print_json("report", **result_json(build_report(inputs, selection, options)))
        return
    written = write_report(inputs, out, selection=selection, options=options)
    for warning in written.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"The report is {written.page}")


# What the commands share -----------------------------------------------------------------------------------------


def chosen(common: Common, *, holdout: tuple[str, str] | None = None) -> "tuple[Selection, FitOptions]":
    """Return the data selection and fit options of a command; checks them before any file is read."""
    from scalerl.forecast.logs import Selection
    from scalerl.forecast.report.options import FitOptions, changed_options

    conditions: Any = common.where or ()
    selection = Selection(
        x=common.x,
        y=common.y,
        by=tuple(common.by or ()),
        seed=common.seed,
        where=tuple((column, value) for column, value, is_wanted in conditions if is_wanted),
        where_not=tuple((column, value) for column, value, is_wanted in conditions if not is_wanted),
        start=common.start,
        y_scale=common.y_scale,
        holdout=holdout,
        gpus=common.gpus,
        labels=tuple(common.labels or ()),
    )
    given = {
        "form": common.form,
        "level": common.level,
        "method": common.method,
        "alone": common.alone or None,
        "price": common.price,
        "fit_until": common.fit_until,
        "skip_before": common.skip_before,
        "worth": common.worth,
        "run_sd": common.run_sd,
        "ceiling": common.ceiling,
    }
    given = {name: value for name, value in given.items() if value is not None}
    options = changed_options(FitOptions(), given, "fit", ())
    return selection, options


def read(common: Common, *, holdout: tuple[str, str] | None = None) -> "tuple[list[Series], FitOptions]":
    """Return the curves that the options select from the files, and their options in the unit of the log."""
    from scalerl.forecast import logs

    selection, options = chosen(common, holdout=holdout)
    series = logs.read(common.files, selection)
    return series, options.in_unit_of(series)


def _print(common: Common, result: "Result") -> None:
    """Print a result as an answer or as JSON, and draw it if that is asked for."""
    if common.plot is not None:
        from scalerl.forecast.report.picture import draw

        draw(result, common.plot)
    if common.as_json:
        from scalerl.forecast.report.result_json import result_json

        print_json(result.command, **result_json(result))
        return
    from scalerl.forecast.report.sections import answer_text

    say(answer_text(result, common.explain))
    if common.plot is not None:
        typer.echo(f"Drawn into {common.plot}")
