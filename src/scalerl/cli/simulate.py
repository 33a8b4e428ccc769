"""simulate: what a recipe would do on a number of GPUs, before renting them. Imports no torch unless it measures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalerl.cli.options import Overrides, RecipeName, flag
from scalerl.cli.train import load
from scalerl.store import JSON_FORMAT

if TYPE_CHECKING:
    from scalerl.config import Recipe
    from scalerl.curves import Fit
    from scalerl.run.simulate.plan import Plan
    from scalerl.run.simulate.rates import RatesSettings


def _option(text: str, metavar: str) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=False)


def simulate(
    recipe: RecipeName,
    gpus: Annotated[
        int,
        typer.Option(
            min=1, help="Number of GPUs; 1: one GPU that samples and trains in turns.", metavar="N", show_default=False
        ),
    ],
    overrides: Overrides = None,
    rates: Annotated[
        Path | None,
        _option("Rates: a TOML file, or a run folder. Unset: measured here, with the recipe's model.", "FILE|RUN"),
    ] = None,
    generators: Annotated[
        int | None, _option("Simulate this number of generators only. Unset: every split.", "N")
    ] = None,
    steps: Annotated[int, typer.Option(min=4, help="Steps to simulate per split.", metavar="N")] = 48,
    curve: Annotated[
        Path | None, _option("A run folder or log: its reward per step gives reward against GPU-hours.", "RUN")
    ] = None,
    gpu_hours: Annotated[
        float | None,
        _option("With --curve: GPU-hours up to which the reward is given. Unset: the recipe's budget.", "H"),
    ] = None,
    plot: Annotated[Path | None, _option("Draw into this .png or .svg file.", "FILE")] = None,
    as_json: Annotated[bool, flag("--json", "Print one JSON object, with every split.")] = False,
) -> None:
    """Simulate a recipe on a number of GPUs: steps per hour, idle time, lag, and the best split of the GPUs.

    The loop and its lag rule are the real ones, on a virtual clock; the durations of sampling and training are given.

    [dim]scalerl simulate scalerl --gpus 64 --rates rates.toml --plot plan.png[/dim]

    See also: train --check --gpus NUMxGB for the memory of a layout.
    """
    settings = load(recipe, overrides)
    from scalerl.run.simulate.plan import as_json as plan_json
    from scalerl.run.simulate.plan import make_plan

    if plot is not None:
        from scalerl.run.simulate.picture import check_path

        check_path(plot)
    fitted = None if curve is None else _curve(curve)
    measured = _rates(rates, settings)
    plan = make_plan(settings, measured, gpus, generators=generators, steps=steps)
    hours = _hours(plan, settings, gpu_hours)
    if plot is not None:
        from scalerl.run.simulate.picture import draw

        draw(plan, plot, fitted, hours)
    if as_json:
        typer.echo(json.dumps({"format": JSON_FORMAT, **plan_json(plan, fitted, hours)}, indent=2))
        return
    _print(plan, fitted, hours)
    if plot is not None:
        typer.echo(f"Drawn: {plot}")


def _rates(path: Path | None, recipe: "Recipe") -> "RatesSettings":
    if path is not None:
        from scalerl.run.simulate.rates import read_rates

        return read_rates(path)
    from scalerl.cli.train import setting_up

    with setting_up():
        from scalerl.run.simulate.probe import measure

        return measure(recipe)


def _curve(path: Path) -> "Fit":
    from scalerl.analysis.results import FitOptions, analyse_fit
    from scalerl.logs.read import read_table
    from scalerl.logs.series import Selection, series_from

    result = analyse_fit(series_from([read_table(str(path))], Selection(x="step"))[:1], FitOptions()).curves[0]
    assert result.fit is not None, "a curve that cannot be fitted is an error"
    return result.fit


def _hours(plan: "Plan", recipe: "Recipe", given: float | None) -> list[float]:
    """Return the GPU-hours to give the reward at: eighths up to the budget."""
    most = given or recipe.budget.gpu_hours
    if most is None:
        most = (recipe.budget.steps or 1000) * plan.regimes[0].best.gpu_hours_per_step
    return [most * place / 8 for place in range(1, 9)]


def _print(plan: "Plan", fitted: "Fit | None", hours: list[float]) -> None:
    from scalerl.run.simulate.plan import rewards

    rates = plan.rates
    sampling = f"{rates.slots} completions at a time"
    layout = (
        f"1 GPU that samples and trains in turns, {sampling}"
        if plan.gpus == 1
        else f"{plan.gpus} GPUs, {sampling} in a generator of {rates.gpus_per_generator}"
    )
    typer.echo(f"{layout}; rates: {rates.description or 'as given'}")
    header = (
        "regime",
        "generators",
        "learner",
        "steps/h",
        "GPU-h/step",
        "idle: generators",
        "learner",
        "slots used",
        "lag mean",
    )
    rows = []
    for regime in plan.regimes:
        best = regime.best
        run = best.simulated
        shares = (f"{run.generator_idle:.0%}", f"{run.learner_idle:.0%}", f"{run.slots_used:.0%}")
        lag = f"{best.lag_mean:.1f} (half <= {best.lag_quantile(0.5)}, all <= {max(best.simulated.lags)})"
        pace = (f"{best.steps_per_hour:.1f}", f"{best.gpu_hours_per_step:.3g}")
        rows.append((regime.name, f"{best.generators}", f"{best.learner_gpus}", *pace, *shares, lag))
    _table(header, rows)
    if fitted is not None:
        table: list[tuple[str, ...]] = []
        columns = [rewards(regime, fitted, hours) for regime in plan.regimes]
        for place, each in enumerate(hours):
            cells = [
                f"{at[place].reward.value:.3f} [{at[place].reward.low:.3f}, {at[place].reward.high:.3f}]"
                for at in columns
            ]
            table.append((f"{each:.4g}", *cells))
        _table(("GPU-hours", *(f"reward, {regime.name}" for regime in plan.regimes)), table)
        typer.echo("Reward per step is the curve's, at the lag it was measured with; only the pace is simulated.")


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich import box
    from rich.table import Table

    from scalerl.cli.console import table_console

    table: Any = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    table_console().print(table)
