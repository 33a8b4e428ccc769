"""Draw plans with matplotlib, as PNG or SVG."""

from pathlib import Path
from typing import Any

import numpy as np

from scalerl.joint.plan import Candidate, Planned
from scalerl.report.numbers import short_compute_text
from scalerl.report.picture import GREY, colour, log_ticks, new_figure, write_figure

NUM_PLACES = 120


def draw_plan(planned: Planned, candidates: list[Candidate], path: Path) -> None:
    """Draw the curves of all arms up to the target, and the probability of each to be the best there."""

    def make() -> Any:
        figure = new_figure(10.5, 4.2)
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
        return figure

    write_figure(path, make)


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
