"""simulate: how fast a recipe would be on a number of GPUs, before renting them. Imports no torch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from scalerl.cli import options as opt
from scalerl.cli.console import print_json
from scalerl.cli.options import option
from scalerl.cli.recipe import print_table
from scalerl.cli.train import load
from scalerl.errors import UsageError

if TYPE_CHECKING:
    from scalerl.curves import Fit
    from scalerl.run.simulate import Split


def simulate(
    recipe: str = opt.RECIPE,
    gpus: int = option("N", "Number of GPUs; 1: one GPU that samples and trains in turns.", default=..., min=1),
    rates: Path = option("FILE|RUN", "Rates: a TOML file, or a run folder of at least 8 steps.", default=...),
    overrides: list[str] | None = opt.OVERRIDES,
    generators: int | None = option("N", "This number of generators only. Unset: every split.", min=0),
    curve: Path | None = option(
        "RUN", "A run folder or log: its reward per step gives reward against GPU-hours of the budget."
    ),
    reach: float | None = option("R", "With --curve: days until it has this reward."),
    as_json: bool = opt.JSON,
) -> None:
    """Compute steps per hour, idle time and lag of a recipe on a number of GPUs, and the best split of the GPUs.

    [dim]scalerl more simulate scalerl --gpus 64 --rates rates.toml[/dim]

    See also: train --check --gpus NUMxGB for the memory it needs.
    """
    if reach is not None and curve is None:
        raise UsageError("--reach needs --curve RUN, whose reward per step it follows")
    settings = load(recipe, overrides)
    from scalerl.curves import compute_for, reward_at
    from scalerl.run.simulate import best, read_rates, splits

    fitted, table = None if curve is None else _curve(curve), read_rates(rates)
    by_scheme = splits(settings, table, gpus, generators)
    chosen = {name: best(of_scheme) for name, of_scheme in by_scheme.items()}
    first = next(iter(chosen.values()))
    most = settings.budget.gpu_hours or (settings.budget.steps or 1000) * first.gpu_hours_per_step
    hours = [most * place / 8 for place in range(1, 9)]
    reward = {} if fitted is None else {
        name: reward_at(fitted, [each / split.gpu_hours_per_step for each in hours]) for name, split in chosen.items()
    }  # fmt: skip
    reached = None if fitted is None or reach is None else compute_for(fitted, [reach])[0].compute

    def days(split: "Split") -> list[float]:
        per_step = split.gpu_hours_per_step / gpus / 24
        return [] if reached is None else [per_step * each for each in (reached.value, reached.low, reached.high)]

    if as_json:
        content = {
            name: {
                "best": asdict(chosen[name]),
                "splits": [asdict(split) for split in of_scheme],
                "reward": [
                    {"gpu_hours": each, "steps": at.compute, **asdict(at.reward)}
                    for each, at in zip(hours, reward.get(name, ()), strict=bool(reward))
                ],
                "days": days(chosen[name]),
            }
            for name, of_scheme in by_scheme.items()
        }
        print_json("simulate", gpus=gpus, rates=table.model_dump(mode="json"), schemes=content)
        return
    typer.echo(f"{gpus} GPU{'s' * (gpus > 1)}; rates: {table.description or 'as given'}")
    header = ("scheme", "generators", "learner", "steps/h", "GPU-h/step", "idle: generators", "learner", "slots used")
    rows = [
        (
            *(name, str(split.generators), str(split.learner_gpus)),
            *(f"{split.steps_per_hour:.1f}", f"{split.gpu_hours_per_step:.3g}"),
            *(f"{split.generator_idle:.0%}", f"{split.learner_idle:.0%}"),
            *(f"{split.slots_used:.0%}", f"{split.lag_mean:.1f}"),
        )
        for name, split in chosen.items()
    ]
    print_table((*header, "mean lag"), rows)
    if reward:
        cells = [
            [f"{at.reward.value:.3f} [{at.reward.low:.3f}, {at.reward.high:.3f}]" for at in column]
            for column in reward.values()
        ]
        table_rows = zip([f"{each:.4g}" for each in hours], *cells, strict=True)
        print_table(("GPU-hours", *(f"reward, {name}" for name in reward)), table_rows)
        for name, split in chosen.items() if reach is not None else ():
            text = "probably never" if reached is None else "{:.3g} [{:.3g}, {:.3g}] days".format(*days(split))
            typer.echo(f"reward {reach:g}, {name}: {text} on {gpus} GPUs")
        typer.echo("Reward per step is the curve's, at the lag it was measured with; only the pace is computed.")


def _curve(path: Path) -> "Fit":
    from scalerl.logs.formats import read_table
    from scalerl.logs.series import Selection, series_from
    from scalerl.report.results import FitOptions, analyse_fit

    result = analyse_fit(series_from([read_table(str(path))], Selection(x="step"))[:1], FitOptions()).curves[0]
    assert result.fit is not None, "a curve that cannot be fitted is an error"
    return result.fit
