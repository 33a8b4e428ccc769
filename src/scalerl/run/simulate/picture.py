"""Draw a plan: steps per hour by split, lags of the best splits, and reward against GPU-hours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.analysis.drawing.style import colour
from scalerl.analysis.plots import check_plot_path
from scalerl.curves import Fit
from scalerl.errors import InputError
from scalerl.run.simulate.plan import Plan, rewards


def check_path(path: Path) -> None:
    """Raise InputError if a plan cannot be drawn into this file."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"--plot {path} ends in {path.suffix or 'nothing'!r}: a plan is drawn as .png or .svg.")
    check_plot_path(path)


def draw(plan: Plan, path: Path, curve: Fit | None, gpu_hours: Sequence[float]) -> None:
    """Draw a plan into a .png or .svg file."""
    check_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_panels = 2 if curve is None else 3
    figure = Figure(figsize=(4.6 * num_panels, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Any] = list(figure.subplots(1, num_panels))
    _splits(panels[0], plan)
    _lags(panels[1], plan)
    if curve is not None:
        _rewards(panels[2], plan, curve, gpu_hours)
    figure.suptitle(f"{plan.gpus} GPU{'s' * (plan.gpus > 1)}, simulated")
    figure.savefig(path, dpi=150)


def _splits(axes: Any, plan: Plan) -> None:
    for place, regime in enumerate(plan.regimes):
        generators = [split.generator_gpus for split in regime.splits]
        axes.plot(
            generators,
            [split.steps_per_hour for split in regime.splits],
            marker="o",
            markersize=3,
            color=colour(place),
            label=regime.name,
        )
        best = regime.best
        label = f"{best.generator_gpus} + {best.learner_gpus}"
        axes.annotate(label, (best.generator_gpus, best.steps_per_hour), textcoords="offset points", xytext=(4, 5))
    axes.set_xlabel("GPUs of generators")
    axes.set_ylabel("steps per hour")
    axes.margins(y=0.12)  # room for the label of the best split
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _lags(axes: Any, plan: Plan) -> None:
    width = 0.8 / len(plan.regimes)
    for place, regime in enumerate(plan.regimes):
        lags = regime.best.simulated.lags
        total = sum(lags.values())
        axes.bar(
            [lag + (place - (len(plan.regimes) - 1) / 2) * width for lag in lags],
            [num / total for num in lags.values()],
            width=width,
            color=colour(place),
            label=regime.name,
        )
    axes.set_xlabel("lag of a trained group (steps)")
    axes.set_ylabel("share of groups")
    axes.legend(frameon=False)


def _rewards(axes: Any, plan: Plan, curve: Fit, gpu_hours: Sequence[float]) -> None:
    for place, regime in enumerate(plan.regimes):
        points = rewards(regime, curve, gpu_hours)
        axes.plot(gpu_hours, [at.reward.value for at in points], color=colour(place), label=regime.name)
        low, high = [at.reward.low for at in points], [at.reward.high for at in points]
        axes.fill_between(gpu_hours, low, high, color=colour(place), alpha=0.15, linewidth=0)
    axes.set_xlabel("GPU-hours")
    axes.set_ylabel("reward")
    axes.legend(frameon=False)
