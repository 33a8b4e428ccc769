"""fit | forecast | backtest | compare: scaling curves from any run's log."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scalerl.study.analysis import Analysis, FitOptions
    from scalerl.study.series import Series

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="CSV, JSONL, trainer_state.json, tensorboard or run folders; the kind is recognised.",
        show_default=False,
    ),
]
DATA, FIT, OUT = "Which data", "How to fit", "Output"


def _data(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=DATA, show_default=False, **more)


X = Annotated[str | None, _data("Column of compute (GPU-hours, FLOPs, tokens, steps).", metavar="COLUMN")]
Y = Annotated[str | None, _data("Column of reward: a pass rate in [0,1].", metavar="COLUMN")]
By = Annotated[str | None, _data("One curve for each value of these columns.", metavar="COL[,COL]")]
Seed = Annotated[str | None, _data("Column that tells runs of one recipe apart.", metavar="COLUMN")]
Where = Annotated[list[str] | None, _data("Keep only these rows; may be repeated.", metavar="COL=VALUE")]
Start = Annotated[
    str | None,
    _data("Reward before training; 'first' takes each run's first row; fitted when not given.", metavar="VALUE|first"),
]
Gpus = Annotated[float | None, _data("Build GPU-hours from step time for this many GPUs.", metavar="N")]
YScale = Annotated[
    str,
    typer.Option(
        help="Unit of the reward: 1, 100 (percent), pm1 (-1..1), none (no limits).",
        rich_help_panel=DATA,
        metavar="1|100|pm1|none",
    ),
]
SkipBefore = Annotated[
    str | None,
    typer.Option(
        help="Leave out early compute: a value, a share ('10%') or 'auto'.",
        rich_help_panel=FIT,
        metavar="C",
        show_default=False,
    ),
]
FitUntil = Annotated[
    float | None,
    typer.Option(help="Leave out later compute.", rich_help_panel=FIT, metavar="C", show_default=False),
]
Level = Annotated[float, typer.Option(help="Level of the intervals.", rich_help_panel=FIT)]
Margin = Annotated[
    float, typer.Option(help="Width from which a ceiling is called not identifiable yet.", rich_help_panel=FIT)
]
Form = Annotated[
    str, typer.Option(help="sigmoid, power, exponential or log-linear.", rich_help_panel=FIT, metavar="NAME")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=OUT)]
Plot = Annotated[
    str | None,
    typer.Option(
        help="Draw into a .png, .svg or .html file.",
        rich_help_panel=OUT,
        metavar="OUT.png|.svg|.html",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that the four commands share, as typed."""

    files: list[str]
    x: str | None
    y: str | None
    by: str | None
    seed: str | None
    where: list[str] | None
    start: str | None
    gpus: float | None
    y_scale: str
    skip_before: str | None
    fit_until: float | None
    level: float
    margin: float
    form: str
    as_json: bool
    plot: str | None


def fit(
    files: Files, x: X = None, y: Y = None, by: By = None, seed: Seed = None, where: Where = None, start: Start = None,
    gpus: Gpus = None, y_scale: YScale = "1", skip_before: SkipBefore = None, fit_until: FitUntil = None,
    level: Level = 0.9, margin: Margin = 0.06, form: Form = "sigmoid", as_json: AsJson = False, plot: Plot = None,
) -> None:  # fmt: skip
    """Fit R(C) = R0 + (A - R0) / (1 + (C_mid/C)^B): the ceiling, how sure we are, and what more compute buys.

    [dim]scalerl fit runs.csv --x gpu_hours --y pass_rate --by recipe --start 0.399[/dim]
    """
    from scalerl.study.analysis import analyse_fit

    _run(Common(**locals_of(locals())), analyse_fit)


def forecast(
    files: Files, x: X = None, y: Y = None, by: By = None, seed: Seed = None, where: Where = None, start: Start = None,
    gpus: Gpus = None, y_scale: YScale = "1", skip_before: SkipBefore = None, fit_until: FitUntil = None,
    level: Level = 0.9, margin: Margin = 0.06, form: Form = "sigmoid", as_json: AsJson = False, plot: Plot = None,
    at: Annotated[str | None, typer.Option(help="Forecast the reward at these computes (default: 2 and 4 times the data).", metavar="C[,C]", show_default=False)] = None,
    reach: Annotated[str | None, typer.Option(help="Forecast the compute that reaches these rewards.", metavar="R[,R]", show_default=False)] = None,
) -> None:  # fmt: skip
    """Say what more compute buys: the reward at a compute, or the compute a reward needs.

    [dim]scalerl forecast run/ --at 16000,32000 --reach 0.6[/dim]
    """
    from scalerl.study.analysis import analyse_forecast

    computes, rewards = numbers(at, "--at"), numbers(reach, "--reach")
    _run(
        Common(**locals_of(locals())),
        lambda series, options: analyse_forecast(series, options, computes, rewards),
    )


def backtest(
    files: Files, x: X = None, y: Y = None, by: By = None, seed: Seed = None, where: Where = None, start: Start = None,
    gpus: Gpus = None, y_scale: YScale = "1", skip_before: SkipBefore = None, fit_until: FitUntil = None,
    level: Level = 0.9, margin: Margin = 0.06, form: Form = "sigmoid", as_json: AsJson = False, plot: Plot = None,
    holdout: Annotated[str | None, typer.Option(help="These rows are scored, not fitted.", metavar="COL=VALUE", show_default=False)] = None,
    fraction: Annotated[str, typer.Option(help="Fit what lies before each share of the compute, score the rest.", metavar="F[,F]")] = "0.25,0.5,0.75",
) -> None:  # fmt: skip
    """Ask how early one could have known: fit the first part, score the forecast of the rest, rank the forms.

    [dim]scalerl backtest runs.csv --x gpu_hours --y pass_rate --by recipe --fraction 0.25,0.5[/dim]
    """
    from scalerl.study.analysis import analyse_backtest

    shares = numbers(fraction, "--fraction")
    _run(
        Common(**locals_of(locals())),
        lambda series, options: analyse_backtest(series, options, shares),
        holdout=column_value(holdout, "--holdout") if holdout is not None else None,
    )


def compare(
    files: Files, x: X = None, y: Y = None, by: By = None, seed: Seed = None, where: Where = None, start: Start = None,
    gpus: Gpus = None, y_scale: YScale = "1", skip_before: SkipBefore = None, fit_until: FitUntil = None,
    level: Level = 0.9, margin: Margin = 0.06, form: Form = "sigmoid", as_json: AsJson = False, plot: Plot = None,
    at: Annotated[float | None, typer.Option(help="Rank at this compute instead of by ceiling.", metavar="C", show_default=False)] = None,
) -> None:  # fmt: skip
    """Tell which recipe to scale: by ceiling first, by efficiency at a shared ceiling second, or 'not separable'.

    [dim]scalerl compare a.csv b.csv --x gpu_hours --y pass_rate --start first --at 100000[/dim]
    """
    from scalerl.study.analysis import analyse_compare

    target = at
    if target is not None and not target > 0:
        raise ValueError(f"--at must be a positive compute, but is {target:g}")
    _run(
        Common(**locals_of(locals())),
        lambda series, options: analyse_compare(series, options, target),
    )


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the page.")] = Path("demo"),
) -> None:
    """Compare two embedded example recipes, forecast them and draw both: every command shown as it is run."""
    from importlib.resources import as_file
    from importlib.resources import files as resources

    out.mkdir(parents=True, exist_ok=True)
    with as_file(resources("scalerl") / "assets" / "example_runs.csv") as table:
        common = "--x gpu_hours --y pass_rate --by recipe --seed seed --start first"
        for words in (
            f"forecast {common} --at 20000 --reach 0.6",
            f"compare {common} --at 20000 --plot {out / 'example.png'}",
            f"fit {common} --plot {out / 'example.html'}",
        ):
            typer.secho(f"\n$ scalerl {words.split(' ', 1)[0]} {table.name} {words.split(' ', 1)[1]}", bold=True)
            name, *options = words.split()
            _call(name, [str(table), *options])
    typer.echo(f"\nOpen {out / 'example.html'} in a browser. Next: scalerl fit YOUR_LOG --help")


def _call(name: str, words: list[str]) -> None:
    from typer.main import get_command

    from scalerl.cli import app

    get_command(app).main([name, *words], standalone_mode=False)


# Shared -----------------------------------------------------------------------------------------------------------


def locals_of(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in Common.__dataclass_fields__}


def numbers(text: str | None, option: str) -> list[float]:
    """'1,2.5' as numbers."""
    found = []
    for word in (text or "").split(","):
        if word.strip():
            try:
                found.append(float(word))
            except ValueError:
                raise ValueError(f"{option} takes numbers with commas between them, not {word.strip()!r}") from None
    return found


def column_value(text: str, option: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column.strip():
        raise ValueError(f"{option} takes COLUMN=VALUE, not {text!r}")
    return column.strip(), value.strip()


def _run(
    common: Common,
    analyse: "Callable[[Sequence[Series], FitOptions], Analysis]",
    *,
    holdout: tuple[str, str] | None = None,
) -> None:
    from scalerl.curves.forms import FORMS
    from scalerl.study.analysis import FitOptions, to_json
    from scalerl.study.importers import read_table
    from scalerl.study.series import Selection, series_from

    if common.form not in FORMS:
        raise ValueError(f"--form must be one of {', '.join(FORMS)}, not {common.form!r}")
    if not 0 < common.level < 1:
        raise ValueError(f"--level must lie between 0 and 1, not {common.level:g}")
    if not common.margin > 0:
        raise ValueError(f"--margin must be positive, not {common.margin:g}")
    if common.y_scale not in ("1", "100", "pm1", "none"):
        raise ValueError(f"--y-scale must be 1, 100, pm1 or none, not {common.y_scale!r}")
    selection = Selection(
        x=common.x,
        y=common.y,
        by=tuple(name.strip() for name in common.by.split(",") if name.strip()) if common.by else (),
        seed=common.seed,
        where=tuple(column_value(text, "--where") for text in common.where or ()),
        start=_start(common.start),
        y_scale=common.y_scale,
        holdout=holdout,
        gpus=common.gpus,
    )
    if common.plot is not None:
        from scalerl.study.plots import check_plot_path

        check_plot_path(Path(common.plot))
    series = series_from([read_table(path) for path in common.files], selection)
    options = FitOptions(
        form=common.form,
        level=common.level,
        margin=common.margin,
        skip_before=common.skip_before,
        fit_until=common.fit_until,
        bounded=common.y_scale != "none",
    )
    analysis = analyse(series, options)
    if common.plot is not None:
        from scalerl.study.plots import draw

        draw(analysis, Path(common.plot))
    if common.as_json:
        typer.echo(json.dumps(to_json(analysis), indent=2))
        return
    _show(analysis)
    if common.plot is not None:
        typer.echo(f"\nDrawn into {common.plot}")


def _start(text: str | None) -> Any:
    if text is None or text == "first":
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--start takes a number or 'first', not {text!r}") from None


def _show(analysis: "Analysis") -> None:
    from rich.console import Console

    from scalerl.study.text import render

    console = Console(soft_wrap=False)
    if not console.is_terminal:
        # Into a file or a pipe: no colours, and no folding at a width that nobody sees.
        console = Console(width=max(console.width, 160), no_color=True)
    console.print(render(analysis), highlight=False)
