"""Agents that other people trained (docs/results/bank/agentgym.csv.gz): forecasts, arms, and what stopping saves.

    python benchmarks/agents.py forecasts       from a tenth, a quarter and half of each run, scored on the rest
    python benchmarks/agents.py runs            the same, run by run
    python benchmarks/agents.py arms            choices among the runs of a task, and what they lost
    python benchmarks/agents.py stops           what stopping when told to saves, and what it costs
    python benchmarks/agents.py draw PICTURE    the forecasts from a quarter

Every log is fitted as `scalerl fit` fits it. What a run reached is the mean of the last tenth of its hours.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bank import Curve, load
from gate_fitters import LeastSquares
from populations import Run

from scalerl.forecast.curves import Action, Answer, Fit, compare, decide
from scalerl.forecast.curves.data import block_means

CUTS = {"tenth": 0.1, "quarter": 0.25, "half": 0.5}
END = 0.9
"""What a run reached is the mean after this share of its hours."""
EVERY = 0.05
"""Share of a run's hours between two looks at it."""
MOST_LATER = 200
"""Later steps of a run that are scored, evenly chosen."""


@cache
def runs() -> tuple[Curve, ...]:
    return tuple(curve for curve in load() if curve.family == "agentgym")


def arm(curve: Curve) -> str:
    """Return what tells a run from the others of its task: all of TextCraft's are called main."""
    return curve.curve.split("/")[-1].removeprefix("main-")


def name(curve: Curve) -> str:
    return f"{curve.task} {arm(curve)}"


def points(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return np.array(curve.compute), np.array(curve.reward)


def reached(curve: Curve) -> float:
    compute, reward = points(curve)
    return float(reward[compute > END * compute.max()].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a part of a run says of its end, in units of the reward."""

    run: str
    cut: str
    end: float
    errors: dict[str, float]
    """Forecast less what was reached, by method."""
    inside: float
    """Share of the later steps inside their 90 % intervals."""
    width: float
    holds_end: bool
    """Whether the 90 % interval of the curve itself holds what was reached."""


@cache
def forecast(curve: Curve, cut: str) -> Forecast | None:
    """Return the forecast from the first part of a run; None where that is too little to fit."""
    compute, reward = points(curve)
    until = CUTS[cut] * compute.max()
    here, last = compute <= until, compute > END * compute.max()
    fitted = curve.fitted(until)
    if not fitted.has_intervals:
        return None
    later = np.flatnonzero(~here)
    later = later[np.linspace(0, len(later) - 1, min(len(later), MOST_LATER)).round().astype(int)]
    low, high = (np.interp(compute[later], *edge) for edge in _edges(fitted, compute[later]))
    ends = np.linspace(END, 1.0, 9)[1:] * compute.max()
    seen = seen_of(curve, CUTS[cut])
    bottom, top = LeastSquares().fit(seen).new(ends)
    draws = fitted.curve_draws(ends).mean(axis=1)
    edges = np.quantile(draws, [0.05, 0.95])
    end = float(reward[last].mean())
    return Forecast(
        run=name(curve),
        cut=cut,
        end=end,
        errors={
            "scalerl": float(np.median(draws)) - end,
            "last value": tail_mean(seen) - end,
            "least squares": float(np.mean(bottom + top) / 2) - end,
        },
        inside=float(np.mean((reward[later] >= low) & (reward[later] <= high))),
        width=float(np.median(high - low)),
        holds_end=bool(edges[0] <= end <= edges[1]),
    )


def _edges(fitted: Fit, compute: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    places = np.linspace(compute.min(), compute.max(), 40)
    return [(places, edge) for edge in fitted.new_interval(places)]


def forecasts() -> Iterator[str]:
    methods = ("scalerl", "last value", "least squares")
    yield (
        "| from the first | runs | later steps in 90% | their width | ends in 90% of the curve "
        + "".join(f"| error of the end: {each} " for each in methods)
        + "|"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for cut in CUTS:
        each = [row for curve in runs() if (row := forecast(curve, cut)) is not None]
        errors = [f"{np.median([abs(row.errors[method]) for row in each]):.3f}" for method in methods]
        inside, held = np.mean([row.inside for row in each]), sum(row.holds_end for row in each)
        width = np.median([row.width for row in each])
        yield f"| {cut} | {len(each)} | {inside:.0%} | {width:.2f} | {held} of {len(each)} | {' | '.join(errors)} |"


def by_run() -> Iterator[str]:
    yield "| run | reached | " + " | ".join(f"from a {cut}: error, steps in 90%" for cut in CUTS) + " |"
    yield "|---|---|---|---|---|"
    for curve in runs():
        rows = [forecast(curve, cut) for cut in CUTS]
        cells = ["" if row is None else f"{row.errors['scalerl']:+.3f}, {row.inside:.0%}" for row in rows]
        yield f"| {name(curve)} | {reached(curve):.3f} | {' | '.join(cells)} |"


# Arms -----------------------------------------------------------------------------------------------------------------


def arms() -> Iterator[str]:
    """Choices among each task's runs, from what was seen then, and what they lost against the run that ended highest.

    The budget is that of the task's longest run, as planned before it began.
    """
    yield "| task | seen | runs | answer | P(best) | reward lost | by the one ahead | by least squares |"
    yield "|---|---|---|---|---|---|---|---|"
    for task in dict.fromkeys(curve.task for curve in runs()):
        held = [curve for curve in runs() if curve.task == task]
        end = max(max(curve.compute) for curve in held)
        highest = max(map(reached, held))
        for label, share in (("a tenth", 0.1), ("a quarter", 0.25), ("half", 0.5)):
            done = compare({arm(curve): curve.fitted(share * max(curve.compute)) for curve in held}, at=end)
            if done.pick is None:
                continue
            decided = done.pick.answer != Answer.OPEN
            leader = next(curve for curve in held if arm(curve) == done.standings[0].name)
            # The log of one run begins after its first quarter.
            begun = [curve for curve in held if min(curve.compute) <= share * max(curve.compute)]
            ahead = max(begun, key=lambda curve: tail_mean(seen_of(curve, share)))
            fitted = max(begun, key=lambda curve: least_squares_at(seen_of(curve, share), end))
            losses = [f"{highest - reached(chosen):.3f}" for chosen in (leader, ahead, fitted)]
            words = f"choose {arm(leader)}" if decided else f"inconclusive; ahead: {arm(leader)}"
            yield (
                f"| {task} | {label} | {len(held)} | {words} | {done.standings[0].p_best:.2f} | {' | '.join(losses)} |"
            )


def seen_of(curve: Curve, share: float) -> Run:
    """Return the first part of a run, without what came later."""
    compute, reward = points(curve)
    here = compute <= share * compute.max()
    return Run(compute=compute[here], reward=reward[here], start=curve.start, is_bounded=curve.bounds is not None)


def tail_mean(run: Run) -> float:
    return float(run.reward[-max(len(run.reward) // 10, 3) :].mean())


def least_squares_at(run: Run, compute: float) -> float:
    low, high = LeastSquares().fit(run).new(np.array([compute]))
    return float(low[0] + high[0]) / 2


# Stopping -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    curve: Curve
    at: float | None
    """Share of the hours at which the advice is first to stop; None: never."""
    lost: float
    """What the rest of the run still brought."""


@cache
def stop(curve: Curve) -> Stop:
    compute, reward = points(curve)
    for share in np.arange(2 * EVERY, 1.0 - EVERY / 2, EVERY):
        decision = decide(curve.fitted(share * compute.max()))
        if decision is not None and decision.action == Action.STOP:
            before = (compute > (share - EVERY) * compute.max()) & (compute <= share * compute.max())
            return Stop(curve=curve, at=float(share), lost=reached(curve) - float(reward[before].mean()))
    return Stop(curve=curve, at=None, lost=0.0)


def stops() -> Iterator[str]:
    yield "| run | hours | told to stop at | hours saved | reward then | reached in the end | lost |"
    yield "|---|---|---|---|---|---|---|"
    total = saved = 0.0
    lost = []
    for curve in runs():
        each, hours, end = stop(curve), max(curve.compute), reached(curve)
        total += hours
        if each.at is None:
            yield f"| {name(curve)} | {hours:.0f} | never | 0 |  | {end:.3f} |  |"
            continue
        saved += (1.0 - each.at) * hours
        lost.append(each.lost)
        yield (
            f"| {name(curve)} | {hours:.0f} | {each.at:.0%} | {(1 - each.at) * hours:.0f} | {end - each.lost:.3f} "
            f"| {end:.3f} | {each.lost:+.3f} |"
        )
    mean = f"{np.mean(lost):+.3f}" if lost else ""
    told = f"{len(lost)} of {len(runs())}"
    yield f"| **all** | {total:.0f} | {told} | {saved:.0f} ({saved / total:.0%}) |  |  | {mean} on average |"


# Picture --------------------------------------------------------------------------------------------------------------


def draw(path: Path, cut: str = "quarter") -> None:
    """Draw each run with the forecast that its first part makes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 7.5, "axes.linewidth": 0.6}):
        figure = Figure(figsize=(11.5, 6.6), dpi=150, layout="constrained")
        for axes, curve in zip(figure.subplots(3, 5).ravel(), runs(), strict=False):
            _panel(axes, curve, cut)
        figure.supxlabel("hours of training", fontsize=9)
        figure.supylabel("training score", fontsize=9)
        figure.savefig(path, facecolor="white")


def _panel(axes: Any, curve: Curve, cut: str) -> None:
    compute, reward = points(curve)
    until = CUTS[cut] * compute.max()
    fitted = curve.fitted(until)
    places = np.linspace(compute.min(), compute.max(), 120)
    if fitted.has_intervals:
        for edges, alpha in ((fitted.new_interval(places), 0.10), (fitted.curve_interval(places), 0.22)):
            axes.fill_between(places, *edges, color="#0072B2", alpha=alpha, linewidth=0)
        axes.plot(places, fitted.predict(places), color="#0072B2", linewidth=1.2)
    axes.axvline(until, color="#666666", linewidth=0.6, linestyle=(0, (4, 3)))
    x, y, _, _ = block_means(compute, reward)
    axes.plot(x[x <= until], y[x <= until], ".", color="black", markersize=3)
    axes.plot(
        x[x > until], y[x > until], "o", color="#D55E00", markersize=2.4, markerfacecolor="white", markeredgewidth=0.6
    )
    axes.set_title(name(curve), fontsize=7.5, loc="left")
    axes.set_ylim(min(0.0, y.min()), max(1.0, y.max()))
    axes.spines[["top", "right"]].set_visible(False)


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "forecasts": forecasts, "runs": by_run, "arms": arms, "stops": stops
}  # fmt: skip


def run(*words: str) -> None:
    match words:
        case ("draw", path):
            draw(Path(path))
        case (asked,) if asked in TABLES:
            print(*TABLES[asked](), sep="\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    run(*sys.argv[1:])
