"""The arms of a plan from analysed curves, and the plan as sentences, a table, JSON and a figure."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from scalerl.curves import Fit, Value, Verdict
from scalerl.errors import InputError
from scalerl.joint.plan import Candidate, Planned
from scalerl.joint.pool import pool
from scalerl.report.json import picked
from scalerl.report.numbers import compute_text, fixed, interval_text, probability_text, short_compute_text
from scalerl.report.picture import GREY, colour, log_ticks, new_figure, write_figure
from scalerl.report.results import CurveResult, check_one_axis
from scalerl.report.tables import Table

NUM_PLACES = 120  # of a drawn curve
STYLES = {"continue": "green", "stop": "yellow", "done": "dim"}
TOLERANCE = 1.01  # times the target that an arm may have spent: the last evaluation often lies a little beyond


def make_candidates(curves: Sequence[CurveResult], target: float) -> list[Candidate]:
    """Return the arms of a plan with pooled fits; InputError if they cannot be planned together."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be planned")
    if len(curves) < 2:
        raise InputError(f"only one arm ({curves[0].name}) was found and two or more are needed to plan")
    spent = {curve.name: float(curve.series.compute.max(initial=0.0)) for curve in curves}
    for name, amount in spent.items():
        if amount > TOLERANCE * target:
            raise InputError(
                f"--target {target:g} lies below what {name} has spent already ({amount:g}): name a larger target"
            )
    fits = pool({curve.name: curve.fit for curve in curves if curve.fit is not None})
    return [
        Candidate(
            name=curve.name,
            spent=spent[curve.name],
            fit=fits.get(curve.name),
            can_continue=curve.verdict != Verdict.FALLEN,
            num_runs=fits[curve.name].num_runs if curve.name in fits else 1,
        )
        for curve in curves
    ]


# In words


def plan_messages(planned: Planned) -> list[str]:
    """Return the plan as sentences; the first states the decision."""
    going = [arm for arm in planned.arms if arm.action == "continue"]
    stopped = [arm.name for arm in planned.arms if arm.action == "stop"]
    lines = [_answer(planned)]
    if going:
        words = ", ".join(f"{arm.name} to {compute_text(arm.until or 0.0)}" for arm in going)
        lines.append(f"Continue {words}: {compute_text(planned.cost)} of compute in all.")
        best = max(going, key=lambda arm: arm.rate)
        if math.isfinite(best.value) and planned.kind != "decided":
            lines.append(f"One more rung is worth most on {best.name}: {best.value:.2g} of reward is expected of it.")
    if stopped:
        lines.append(
            f"Stop {', '.join(stopped)}: {'it is' if len(stopped) == 1 else 'they are'} not worth more compute."
        )
    return lines


def _answer(planned: Planned) -> str:
    target = compute_text(planned.target)
    if planned.favourite is None or planned.regret is None:
        return "No arm has a curve yet: continue all of them."
    arm = planned.arm(planned.favourite)
    loss = f"taking it now is expected to lose {planned.regret.value:.2g} (interval up to {planned.regret.high:.2g})"
    if planned.kind == "decided":
        return f"Take {arm.name}: best at {target} with probability {probability_text(arm.p_best)}, and {loss}."
    if planned.kind == "not_separable":
        return (
            f"Not separable at {target}: {arm.name} leads with probability {probability_text(arm.p_best)}, and {loss}."
        )
    return f"{arm.name} leads at {target} with probability {probability_text(arm.p_best)}; {loss}."


def plan_table(planned: Planned, candidates: Sequence[Candidate]) -> Any:
    """Return the plan as a table for the terminal."""
    fits = {arm.name: arm.fit for arm in candidates}
    heads = (
        "arm",
        "spent",
        "P(best)",
        f"reward at {compute_text(planned.target)}",
        "alone",
        "action",
        "until",
        "value",
    )
    show = fixed(3)
    rows = [
        (
            arm.name,
            compute_text(arm.spent),
            "-" if math.isnan(arm.p_best) else f"{arm.p_best:.2f}",
            interval_text(arm.reward_at_target, show),
            interval_text(_alone(fits.get(arm.name), planned.target), show),
            Text(arm.action, style=STYLES[arm.action]),
            "" if arm.until is None else compute_text(arm.until),
            f"{arm.value:.4f}" if math.isfinite(arm.value) and arm.action == "continue" else "",
        )
        for arm in planned.arms
    ]
    return Table(heads=heads, rows=rows, left=("arm", "action")).rich(plan_messages(planned))


def _alone(curve: Fit | None, target: float) -> Value | None:
    own = curve.unpooled or curve if curve is not None else None
    if own is None or not own.has_intervals:
        return None
    low, high = own.curve_interval([target])
    return Value(value=float(own.predict(target)), low=float(low[0]), high=float(high[0]))


# As JSON and as a figure


def plan_json(planned: Planned) -> dict[str, Any]:
    """Return the plan as JSON types."""
    shown = ("name", "spent", "p_best", "reward_at_target", "action", "until")
    return {
        "arms": [picked(arm, *shown) for arm in planned.arms],
        **picked(planned, "regret", "kind", "favourite", "target", "cost"),
    }


def draw_plan(planned: Planned, candidates: Sequence[Candidate], path: Path) -> None:
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
