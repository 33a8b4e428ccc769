"""Draw plans with matplotlib, as PNG or SVG, and save figures for other modules of this folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.errors import InputError, StoreError
from scalerl.joint.plan import Candidate, Planned
from scalerl.report.drawing.style import GREY, colour, compute_ticks
from scalerl.report.numbers import short_compute_text
from scalerl.report.plots import DPI, STYLE, check_plot_path

KINDS = (".png", ".svg")
NUM_PLACES = 120


def check_picture_path(path: Path) -> None:
    """Raise InputError, before any fit, if a figure cannot be written to this path."""
    if path.suffix.lower() not in KINDS:
        raise InputError(f"--plot {path} ends in {path.suffix or 'nothing'!r}: choose one of {', '.join(KINDS)}")
    check_plot_path(path)


def save(path: Path, make: Callable[[Any], None], size: tuple[float, float]) -> None:
    """Create a figure, let `make` draw into it, and write it to `path`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        make(figure)
        kind = path.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {}
        try:
            with new_file(path) as unfinished:
                figure.savefig(unfinished, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
        except StoreError as error:
            raise InputError(f"{error}.") from None


def log_ticks(axis: Any, low: float, high: float, show: Callable[[float], str] = short_compute_text) -> None:
    """Put ticks at round numbers on a logarithmic axis from `low` to `high`."""
    ticks = compute_ticks(low, high, 6)
    axis.set_ticks(ticks, [show(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def draw_plan(planned: Planned, candidates: list[Candidate], path: Path) -> None:
    """Draw the curves of all arms up to the target, and the probability of each to be the best there."""

    def make(figure: Any) -> None:
        axes, bars = figure.subplots(1, 2, width_ratios=(3, 1))
        for place, arm in enumerate(candidates):
            _draw_arm(axes, arm, planned, colour(place))
        axes.axvline(planned.target, color=GREY, linewidth=0.8, linestyle=":")
        axes.set(
            xscale="log", xlabel="compute", ylabel="reward", title=f"to the target {short_compute_text(planned.target)}"
        )
        log_ticks(axes.xaxis, *axes.get_xlim())
        axes.legend(fontsize=8, frameon=False)
        places = np.arange(len(planned.arms))
        shades = [colour(place) for place in range(len(planned.arms))]
        bars.barh(places, [np.nan_to_num(arm.p_best) for arm in planned.arms], color=shades)
        bars.set_yticks(places, [f"{arm.name} ({arm.action})" for arm in planned.arms], fontsize=8)
        bars.invert_yaxis()
        bars.set(xlim=(0, 1), title="probability of being the best there")

    save(path, make, (10.5, 4.2))


def _draw_arm(axes: Any, arm: Candidate, planned: Planned, shade: str) -> None:
    curve = arm.fit
    if curve is None or not curve.has_intervals:
        return
    axes.plot(curve.compute, curve.reward, "o", markersize=2.5, color=shade, alpha=0.6)
    places = np.geomspace(curve.compute.min(), planned.target, NUM_PLACES)
    low, high = curve.curve_interval(places)
    action = planned.arm(arm.name).action
    axes.plot(places, curve.predict(places), color=shade, linestyle="-" if action != "stop" else "--", label=arm.name)
    axes.fill_between(places, low, high, color=shade, alpha=0.12, linewidth=0)
    until = planned.arm(arm.name).until
    if until is not None:
        axes.plot([until], curve.predict([until]), marker="|", markersize=12, color=shade)
