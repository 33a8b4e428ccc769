"""simulate: how fast a recipe would be on a number of GPUs, before renting them. Imports no torch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalerl.cli.console import print_json
from scalerl.cli.options import Overrides, RecipeName, flag
from scalerl.cli.recipe import print_table
from scalerl.cli.train import load

if TYPE_CHECKING:
    from scalerl.curves import Fit


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
    rates: Annotated[Path, _option("Rates: a TOML file, or a run folder of at least 8 steps.", "FILE|RUN")],
    overrides: Overrides = None,
    generators: Annotated[int | None, _option("This number of generators only. Unset: every split.", "N")] = None,
    curve: Annotated[
        Path | None, _option("A run folder or log: its reward per step gives reward against GPU-hours.", "RUN")
    ] = None,
    gpu_hours: Annotated[
        float | None,
        _option("With --curve: GPU-hours up to which the reward is given. Unset: the recipe's budget.", "H"),
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print one JSON object, with every split.")] = False,
) -> None:
    """Compute steps per hour, idle time and lag of a recipe on a number of GPUs, and the best split of the GPUs.

    [dim]scalerl more simulate scalerl --gpus 64 --rates rates.toml[/dim]

    See also: train --check --gpus NUMxGB for the memory it needs.
    """
    settings = load(recipe, overrides)
    from scalerl.run.rates import read_rates
    from scalerl.run.simulate import best, replayed, rewards, splits

    fitted, table = None if curve is None else _curve(curve), read_rates(rates)
    by_scheme = splits(settings, table, gpus, generators)
    chosen = {name: replayed(settings, table, best(of_scheme)) for name, of_scheme in by_scheme.items()}
    first = next(iter(chosen.values()))
    most = gpu_hours or settings.budget.gpu_hours or (settings.budget.steps or 1000) * first.gpu_hours_per_step
    hours = [most * place / 8 for place in range(1, 9)]
    reward = {} if fitted is None else {name: rewards(split, fitted, hours) for name, split in chosen.items()}
    if as_json:
        content = {
            name: {
                "best": asdict(chosen[name]),
                "splits": [asdict(split) for split in of_scheme],
                "reward": [
                    {"gpu_hours": each, "steps": at.compute, **asdict(at.reward)}
                    for each, at in zip(hours, reward.get(name, ()), strict=bool(reward))
                ],
            }
            for name, of_scheme in by_scheme.items()
        }
        rates_json = table.model_dump(mode="json")
        print_json("simulate", gpus=gpus, rates=rates_json, schemes=content)
        return
    typer.echo(f"{gpus} GPU{'s' * (gpus > 1)}; rates: {table.description or 'as given'}")
    header = ("scheme", "generators", "learner", "steps/h", "GPU-h/step", "idle: generators", "learner", "slots used")
    rows = []
    for name, split in chosen.items():
        idle = (f"{split.generator_idle:.0%}", f"{split.learner_idle:.0%}")
        pace = (f"{split.steps_per_hour:.1f}", f"{split.gpu_hours_per_step:.3g}")
        used = (f"{split.slots_used:.0%}", f"{split.lag_mean:.1f}", str(split.lag_max))
        rows.append((name, str(split.generators), str(split.learner_gpus), *pace, *idle, *used))
    print_table((*header, "lag mean", "max"), rows)
    if reward:
        cells = [
            [f"{at.reward.value:.3f} [{at.reward.low:.3f}, {at.reward.high:.3f}]" for at in column]
            for column in reward.values()
        ]
        table_rows = zip([f"{each:.4g}" for each in hours], *cells, strict=True)
        print_table(("GPU-hours", *(f"reward, {name}" for name in reward)), table_rows)
        typer.echo("Reward per step is the curve's, at the lag it was measured with; only the pace is computed.")


def _curve(path: Path) -> "Fit":
    from scalerl.logs.formats import read_table
    from scalerl.logs.series import Selection, series_from
    from scalerl.report.results import FitOptions, analyse_fit

    result = analyse_fit(series_from([read_table(str(path))], Selection(x="step"))[:1], FitOptions()).curves[0]
    assert result.fit is not None, "a curve that cannot be fitted is an error"
    return result.fit
