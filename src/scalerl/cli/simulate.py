"""scalerl more simulate: compute how fast a recipe would be on a number of GPUs. Imports no torch."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options as opt
from scalerl.cli.console import show, table
from scalerl.cli.options import option
from scalerl.cli.train import load
from scalerl.errors import UsageError

if TYPE_CHECKING:
    from scalerl.forecast.curves import Value
    from scalerl.training.run.simulate import Split

_COLUMNS = {
    "scheme": "{0.scheme}",
    "generators": "{0.generators}",
    "learner": "{0.learner_gpus}",
    "steps/h": "{0.steps_per_hour:.1f}",
    "GPU-h/step": "{0.gpu_hours_per_step:.3g}",
    "idle: generators": "{0.generator_idle:.0%}",
    "idle: learner": "{0.learner_idle:.0%}",
    "slots used": "{0.slots_used:.0%}",
    "mean lag": "{0.lag_mean:.1f}",
}


def simulate(
    recipe: str = opt.RECIPE,
    gpus: int = option("N", "Number of GPUs; a single GPU samples and trains in turns.", default=..., min=1),
    rates: Path = option(
        "FILE|RUN", "Measured rates: a TOML file, or a run folder with at least 8 steps.", default=...
    ),
    overrides: list[str] | None = opt.OVERRIDES,
    generators: int | None = option("N", "Number of generators. Unset: try every split.", min=0),
    curve: Path | None = option("RUN", "With --reach: a run folder or log with the reward per step."),
    reach: float | None = option("R", "With --curve: estimate the days until this reward."),
    as_json: bool = opt.JSON,
) -> None:
    """Compute steps per hour, idle time and lag of a recipe on a number of GPUs, and the best split of the GPUs.

    [dim]scalerl more simulate scalerl --gpus 64 --rates rates.toml[/dim]

    See also: train --check --gpus NUMxGB for the memory it needs.
    """
    if (reach is None) != (curve is None):
        raise UsageError(
            "--curve RUN and --reach R go together: they estimate the days until the curve of RUN reaches the reward R"
        )
    settings = load(recipe, overrides)
    from scalerl.training.run.simulate import best, read_rates, splits

    steps, rated = None if curve is None or reach is None else _steps_to(curve, reach), read_rates(rates)
    by_scheme = splits(settings, rated, gpus, generators)
    chosen = {name: best(of_scheme) for name, of_scheme in by_scheme.items()}

    def days(split: "Split") -> list[float]:
        per_step = split.gpu_hours_per_step / gpus / 24
        return [] if steps is None else [per_step * each for each in (steps.value, steps.low, steps.high)]

    def text() -> Iterator[Any]:
        yield f"{gpus} GPU{'s' * (gpus > 1)}; rates: {rated.description or 'as given'}"
        yield table(list(_COLUMNS), [[cell.format(split) for cell in _COLUMNS.values()] for split in chosen.values()])
        for name, split in chosen.items() if reach is not None else ():
            when = "probably never" if steps is None else "{:.3g} [{:.3g}, {:.3g}] days".format(*days(split))
            yield f"reward {reach:g}, {name}: {when}, if the reward per step is that of the curve"

    schemes = {
        name: {"best": asdict(split), "splits": [asdict(each) for each in by_scheme[name]], "days": days(split)}
        for name, split in chosen.items()
    }
    content = {"gpus": gpus, "rates": rated.model_dump(mode="json"), "schemes": schemes}
    show("simulate", as_json, content, text)


def _steps_to(path: Path, reward: float) -> "Value | None":
    """Return the steps until the curve of a run reaches a reward, with an interval; None if it probably never does."""
    from scalerl.forecast.curves import compute_for
    from scalerl.forecast.logs import Selection, read
    from scalerl.forecast.report.analyse import analyse_fit
    from scalerl.forecast.report.options import FitOptions

    result = analyse_fit(read([path], Selection(x="step"))[:1], FitOptions()).curves[0]
    return compute_for(result.fit, [reward])[0].compute
