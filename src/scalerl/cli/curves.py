"""fit | forecast | backtest | compare: scaling curves from any run's log."""

import functools
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalerl.cli.console import column_origins, drawn, print_json, table_console
from scalerl.cli.options import (
    HelpAll,
    Json,
    argument,
    column_value,
    condition,
    flag,
    numbers,
    option,
    positive,
    skip_before_value,
    start_value,
)
from scalerl.errors import UsageError

if TYPE_CHECKING:
    from scalerl.logs.series import Selection, Series
    from scalerl.report.results import Analysis, FitOptions

KINDS = (
    "CSV, JSONL, trainer_state.json, console output; folders of a run, a study, a Trainer, tensorboard or wandb; "
    "patterns such as 'logs/*.jsonl'. The kind is recognised."
)
rare = functools.partial(option, rare=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that the commands on logs share."""

    files: Annotated[list[str], argument("FILE|FOLDER", KINDS)]
    x: Annotated[
        str | None, option("Column of compute: GPU-hours, FLOPs, tokens or steps. Unset: recognised.", metavar="COLUMN")
    ] = None
    y: Annotated[str | None, option("Column of reward, such as a pass rate. Unset: recognised.", metavar="COLUMN")] = (
        None
    )
    by: Annotated[
        str | None, option("One curve for each value of these columns. Unset: one for each file.", metavar="COL[,COL]")
    ] = None
    start: Annotated[
        str | None,
        option(
            "Reward before training; 'first': each run's first row; 'fit': fitted. Unset: a row at 0, or fitted.",
            metavar="VALUE|first|fit",
        ),
    ] = None
    gpus: Annotated[float | None, option("Build GPU-hours from the log's times, for this many GPUs.", metavar="N")] = (
        None
    )
    plot: Annotated[str | None, option("Draw the curves into this file.", metavar="OUT.png|.svg")] = None
    as_json: Json = False
    seed: Annotated[
        str | None, rare("Column whose values are runs of one recipe. Unset: recognised.", metavar="COLUMN")
    ] = None
    where: Annotated[
        list[str] | None,
        rare("Keep only rows with (or without) this value; may be repeated.", metavar="COL=VALUE|COL!=VALUE"),
    ] = None
    label: Annotated[
        list[str] | None, rare("Name to show for a curve or file; give one for each, in order.", metavar="NAME")
    ] = None
    y_scale: Annotated[
        str,
        rare(
            "Range of the reward: 1 for 0 to 1, 100 for percent, pm1 for -1 to 1, none for no limits.",
            metavar="auto|1|100|pm1|none",
            show_default=True,
        ),
    ] = "auto"
    skip_before: Annotated[
        str | None, rare("Do not fit points before this compute: a value or a share ('10%').", metavar="C|SHARE")
    ] = None
    fit_until: Annotated[float | None, rare("Do not fit points beyond this compute.", metavar="C")] = None
    level: Annotated[float, rare("Probability of the intervals.", show_default=True)] = 0.9
    margin: Annotated[
        float | None,
        rare("Difference of ceilings that matters, in units of the reward. Unset: a share of the gain.", metavar="R"),
    ] = None
    run_spread: Annotated[
        float | None,
        rare("Spread of ceilings between runs of a recipe that was run once. Unset: a share of the gain.", metavar="R"),
    ] = None
    ceiling: Annotated[
        str | None,
        rare("Hold the ceiling fixed; two values: the range of the grid of --method paper.", metavar="A|LOW,HIGH"),
    ] = None
    form: Annotated[str, rare("sigmoid, power, exponential or log-linear.", metavar="NAME", show_default=True)] = (
        "sigmoid"
    )
    pool: Annotated[bool, flag("--pool", "Let curves of one model and task inform each other.", rare=True)] = False
    prior: Annotated[
        str | None,
        rare("Let earlier runs inform each curve: a file of 'scalerl more prior', or 'published'.", metavar="FILE"),
    ] = None
    help_all: HelpAll = False


def shares_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the options of `Common` before a command's own, so that each is declared once; some may be left out."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [param for param in inspect.signature(command).parameters.values() if param.name != "common"]
        shared = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=field.type,
                default=inspect.Parameter.empty if field.name == "files" else field.default,
            )
            for field in fields(Common)
            if field.name not in without
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(common=Common(**{param.name: given.pop(param.name) for param in shared}), **given)

        params = [*shared, *(param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own)]
        run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        run.__annotations__ = {param.name: param.annotation for param in params}
        return run

    return decorate


Explain = Annotated[bool, flag("--explain", "Say how: parameters, noise, reasons, and what was read from the log.")]
Method = Annotated[
    str,
    rare(
        "posterior; or paper: the grid search of arXiv 2510.13786, A.5, without intervals.",
        metavar="NAME",
        show_default=True,
    ),
]


@shares_options()
def fit(
    common: Common,
    at: Annotated[str | None, option("Forecast the reward at these computes too.", metavar="C[,C]")] = None,
    explain: Explain = False,
    method: Method = "posterior",
) -> None:
    """Fit reward against compute: the ceiling, how sure it is, what more compute brings, and what to do.

    The curve is R(C) = R0 + (A - R0) / (1 + (C_mid/C)^B), with start R0, ceiling A, midpoint C_mid and exponent B.

    [dim]scalerl fit runs.csv --x gpu_hours --y pass_rate --by recipe[/dim]

    See also: forecast, compare; report for one page with all of them.
    """
    from scalerl.report.results import analyse_fit

    computes = positive(numbers(at, "--at"), "--at")
    _run(common, lambda series, options: analyse_fit(series, options, computes), method=method, explain=explain)


@shares_options()
def forecast(
    common: Common,
    at: Annotated[
        str | None, option("Forecast the reward at these computes. Unset: at 2 and 4 times the data.", metavar="C[,C]")
    ] = None,
    reach: Annotated[str | None, option("Forecast the compute that reaches these rewards.", metavar="R[,R]")] = None,
    seal: Annotated[
        Path | None,
        rare("Write the forecast and a hash of its data, for 'scalerl more score' to check later.", metavar="FILE"),
    ] = None,
    explain: Explain = False,
    method: Method = "posterior",
) -> None:
    """Forecast the reward at a compute, or the compute that a reward needs.

    [dim]scalerl forecast run/ --at 16000,32000 --reach 0.6[/dim]

    See also: more score for forecasts written with --seal; watch to forecast a run while it is trained.
    """
    from scalerl.report.results import analyse_forecast

    computes, rewards = positive(numbers(at, "--at"), "--at"), numbers(reach, "--reach")
    if seal is not None:
        from scalerl.report.joint.seals import check_new_seal

        check_new_seal(seal)
        if method == "paper":
            raise UsageError("--seal writes intervals, which --method paper does not have: leave out one of the two")

    def analyse(series: "Sequence[Series]", options: "FitOptions") -> "Analysis":
        for low, high in filter(None, (data.bounds for data in series)):
            outside = [reward for reward in rewards if not low <= reward <= high]
            if outside:
                raise UsageError(
                    f"--reach {outside[0]:g} is outside [{low:g}, {high:g}]: give it in the unit of the log; for "
                    "rewards without limits say --y-scale none"
                )
        return analyse_forecast(series, options, computes, rewards)

    analysis = _run(common, analyse, method=method, explain=explain)
    if seal is not None:
        from scalerl.report.joint.seals import write_seal

        write_seal(seal, analysis.curves, common.files, *chosen(common), computes)


@shares_options()
def backtest(
    common: Common,
    holdout: Annotated[str | None, option("Score these rows instead of fitting them.", metavar="COL=VALUE")] = None,
    fraction: Annotated[
        str,
        option("Fit the points before each share of the compute, score the rest.", metavar="F[,F]", show_default=True),
    ] = "0.25,0.5,0.75",
    explain: Explain = False,
    method: Method = "posterior",
) -> None:
    """Check how early runs could have been forecast: fit the first part, score the rest, rank the forms of curve.

    [dim]scalerl more backtest runs.csv --x gpu_hours --y pass_rate --by recipe --fraction 0.25,0.5[/dim]

    See also: forecast for what lies ahead.
    """
    from scalerl.report.results import analyse_backtest

    shares = numbers(fraction, "--fraction")
    wrong = [share for share in shares if not 0 < share < 1]
    if wrong:
        raise UsageError(f"--fraction takes shares between 0 and 1, not {wrong[0]:g}")
    _run(
        common,
        lambda series, options: analyse_backtest(series, options, shares),
        holdout=holdout,
        method=method,
        explain=explain,
    )


@shares_options()
def compare(
    common: Common,
    at: Annotated[float | None, option("Rank at this compute instead of by ceiling.", metavar="C")] = None,
    explain: Explain = False,
    method: Method = "posterior",
) -> None:
    """Say which recipe to scale: by ceiling first, by efficiency at a shared ceiling second, or 'not separable'.

    [dim]scalerl compare a.csv b.csv --x gpu_hours --y pass_rate --start first --at 100000[/dim]

    See also: plan for which runs to continue; study to run the recipes; report for one page.
    """
    from scalerl.report.results import analyse_compare

    positive([] if at is None else [at], "--at")
    if at is not None and method == "paper":
        raise UsageError("--at ranks by probabilities, which --method paper does not have: leave out one of the two")
    _run(common, lambda series, options: analyse_compare(series, options, at), method=method, explain=explain)


def example(out: Annotated[Path, typer.Option(help="Folder for the data and the pictures.")] = Path("example")) -> None:
    """Forecast, compare and draw two embedded example recipes. Each command is printed before it runs.

    [dim]scalerl example --out example[/dim]
    """
    from importlib.resources import files as resources

    out.mkdir(parents=True, exist_ok=True)
    table = out / "runs.csv"
    table.write_bytes((resources("scalerl") / "assets" / "example_runs.csv").read_bytes())
    options = "--x gpu_hours --y pass_rate --by recipe --seed seed --start first"
    for name, more in (
        ("fit", ["--at", "20000"]),
        ("compare", ["--at", "20000", "--plot", str(out / "example.png")]),
        ("report", ["--out", str(out)]),
    ):
        words = [str(table), *options.split(), *more]
        typer.secho(f"\n$ scalerl {name} {shlex.join(words)}", bold=True)
        _call(name, words)
    typer.echo(f"\nOpen {out / 'report.html'} in a browser. Next, with a log of your own: scalerl fit YOUR_LOG")


def _call(name: str, words: list[str]) -> None:
    from typer.main import get_command

    from scalerl.cli import app

    get_command(app).main([name, *words], standalone_mode=False)


# What the commands share -----------------------------------------------------------------------------------------


def _check(common: Common, method: str) -> None:
    from scalerl.curves import FORMS

    if method not in ("posterior", "paper"):
        raise UsageError(f"--method must be posterior or paper, not {method!r}")
    if common.form not in FORMS:
        raise UsageError(f"--form must be one of {', '.join(FORMS)}, not {common.form!r}")
    if method == "paper" and common.form != "sigmoid":
        raise UsageError(f"--method paper fits the sigmoid, not --form {common.form}")
    if method == "paper" and (common.pool or common.prior is not None):
        raise UsageError("--method paper has no intervals to pool: leave out --pool and --prior")
    if common.y_scale not in ("auto", "1", "100", "pm1", "none"):
        raise UsageError(f"--y-scale must be auto, 1, 100, pm1 or none, not {common.y_scale!r}")
    if common.y_scale == "none" and (ceiling := FORMS[common.form].ceiling) is not None:
        raise UsageError(
            f"--form {common.form} has its ceiling at {ceiling:g} and does not suit --y-scale none: choose another form"
        )
    if not 0 < common.level < 1:
        raise UsageError(f"--level must lie between 0 and 1, not {common.level:g}")
    for name in ("margin", "run_spread", "gpus", "fit_until"):
        value = getattr(common, name)
        positive([] if value is None else [value], f"--{name.replace('_', '-')}")
    if common.plot is not None:
        from scalerl.report.picture import check_plot_path

        check_plot_path(Path(common.plot))


def _ceilings(text: str | None, method: str) -> tuple[float, ...]:
    """Return the ceiling to hold fixed, or the ends of the paper's grid."""
    values = numbers(text, "--ceiling")
    most = 2 if method == "paper" else 1
    if text is not None and not 0 < len(values) <= most:
        raise UsageError(
            f"--ceiling takes one number, or the two ends of the grid of --method paper, and {len(values)} were given"
        )
    if len(values) == 2 and not values[0] < values[1]:
        raise UsageError(f"--ceiling takes the lower end of the grid first, not {text}")
    return tuple(values)


def chosen(common: Common, *, holdout: str | None = None, method: str = "posterior") -> "tuple[Selection, FitOptions]":
    """Return the data selection and fit options of a command; checks them before any file is read."""
    from scalerl.logs.series import Selection
    from scalerl.report.results import FitOptions

    where = [condition(text) for text in common.where or ()]
    selection = Selection(
        x=common.x,
        y=common.y,
        by=tuple(name.strip() for name in (common.by or "").split(",") if name.strip()),
        seed=common.seed,
        where=tuple((column, value) for column, value, has in where if has),
        where_not=tuple((column, value) for column, value, has in where if not has),
        start=start_value(common.start),
        y_scale=common.y_scale,  # type: ignore[arg-type]
        holdout=column_value(holdout, "--holdout") if holdout is not None else None,
        gpus=common.gpus,
        labels=tuple(common.label or ()),
    )
    options = FitOptions(
        form=common.form,
        level=common.level,
        margin=common.margin,
        run_sd=common.run_spread,
        ceiling=_ceilings(common.ceiling, method),
        method=method,  # type: ignore[arg-type]
        skip_before=skip_before_value(common.skip_before),
        fit_until=common.fit_until,
        pool=common.pool,
        prior=common.prior,
    )
    _check(common, method)
    return selection, options


def _run(
    common: Common,
    analyse: "Callable[[Sequence[Series], FitOptions], Analysis]",
    *,
    holdout: str | None = None,
    method: str = "posterior",
    explain: bool = False,
) -> "Analysis":
    from scalerl.logs.formats import read_tables
    from scalerl.logs.series import series_from
    from scalerl.report.json import to_json
    from scalerl.report.text import Shown, render

    selection, options = chosen(common, holdout=holdout, method=method)
    tables = read_tables(common.files)
    series = series_from(tables, selection)
    analysis = analyse(series, options)
    if common.plot is not None:
        from scalerl.report.picture import draw

        draw(analysis, Path(common.plot))
    if common.as_json:
        print_json(analysis.command, **to_json(analysis))
        return analysis
    shown = Shown(origins=column_origins(common.x, common.y, tables, series), explain=explain)
    table_console().print(render(analysis, shown), highlight=False)
    drawn(common.plot)
    return analysis
