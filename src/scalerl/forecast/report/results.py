"""`Result`: what a command found, as values. `analyse.py` makes them, and every view of a command shows them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from scalerl.forecast.curves import (
    At,
    Comparison,
    Decision,
    Fall,
    Fit,
    PaperComparison,
    Reach,
    Score,
    State,
    Value,
    default_worth,
)
from scalerl.forecast.logs.series import Series
from scalerl.forecast.report import words
from scalerl.forecast.report.axes import AXIS_LABELS, axis_label, unit_of
from scalerl.forecast.report.document import Say
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.wording import Lookup, decimals

Command = Literal["fit", "forecast", "backtest", "compare", "report"]
PARAMS = ("ceiling", "exponent", "midpoint", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A forecast from a part of a curve against what came later."""

    share: float | None
    """Share of its compute that was fitted; None where the rows held out are what came later."""
    num_points: int
    """Points that were fitted."""
    num_later: int
    """Points that came later."""
    score: Score | None
    """None where the one or the other are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve, what is decided about it, and what every view shows of it; `curve_result` makes it."""

    series: Series
    fit: Fit
    decision: Decision | None
    """None for the paper's procedure."""
    name: str
    evaluation_set: str
    """Empty where there is only one."""
    axis: str
    """The column of compute."""
    unit: str
    """The unit of compute in words, such as GPU-hours."""
    y: str
    """The column of reward."""
    decimals: int
    """Decimals that its rewards need."""
    state: State | None
    fall: Fall | None
    """The fall of a run that is past its peak."""
    params: Mapping[str, Value | None]
    """The parameters with their intervals; None for one that the form does not have, or without a curve."""
    ceiling: Value | None
    """None if there is no curve, or if it is flat, too early to tell or past its peak."""
    doubling: Value | None
    """Gain of twice the compute; None if the curve is flat or too early to tell."""
    checkpoint: float | None
    """The step of the last evaluation before a fall; None without a fall, or without steps."""
    price: float | None
    """Price of one unit of compute; None where it is not known."""
    doubling_price: float | None
    """What one more doubling costs: as much as the run so far."""
    tested: Tested | None
    """How well the fit forecasts the held-out rows; without any, how well a part of the curve, such as the first half,
    forecasts the rest."""
    early: tuple[Tested, ...] = ()
    """The forecasts from other parts that a back-test was asked for."""
    at: tuple[At, ...] = ()
    """Forecasts of the reward at given computes; in a report, at the end of the budget."""
    reach: tuple[Reach, ...] = ()
    """Forecasts of the compute at which given rewards are reached."""
    is_over: bool = False
    """Whether its runs have ended, so that waiting brings nothing more."""

    @property
    def usable(self) -> bool:
        return self.fit.usable

    @property
    def backtest(self) -> Score | None:
        if self.tested is None:
            return None
        return self.tested.score

    @property
    def at_end(self) -> At | None:
        """The forecast for the end of a budget; None where it is not known, or reached."""
        if self.at:
            return self.at[-1]
        return None

    @property
    def to_do(self) -> str:
        """What to do with the run, in a few words; nothing for the paper's procedure."""
        if self.decision is None:
            return ""
        return words.to_do(Lookup(self, self.decision))


def curve_result(
    series: Series,
    curve: Fit,
    decision: Decision | None,
    *,
    price: float | None = None,
    tested: Tested | None = None,
) -> CurveResult:
    """Return a curve with what is decided about it, and what every view shows of it."""
    state = None
    fall = None
    if decision is not None:
        state = decision.state
        fall = decision.fall
    params = {name: param_value(curve, name) for name in PARAMS}
    ceiling = params["ceiling"]
    if state in (State.FLAT, State.TOO_EARLY, State.PAST_PEAK):
        ceiling = None
    doubling = None
    if decision is not None and state not in (State.FLAT, State.TOO_EARLY):
        doubling = decision.doubling
    return CurveResult(
        series=series,
        fit=curve,
        decision=decision,
        name=series.name,
        evaluation_set=series.evaluation_set or "",
        axis=series.x_label,
        unit=unit_of(series),
        y=series.y_label,
        decimals=decimals(curve),
        state=state,
        fall=fall,
        params=params,
        ceiling=ceiling,
        doubling=doubling,
        checkpoint=None if fall is None else _step_at(series, fall.last_good),
        price=price,
        doubling_price=None if price is None else price * curve.scale,
        tested=tested,
    )


def param_value(curve: Fit | None, name: str) -> Value | None:
    """Return a parameter with its interval; None if the form does not have it or there is no curve."""
    if curve is None or not curve.usable or name not in curve.params:
        return None
    low, high = curve.interval(name)
    return Value(value=curve.params[name], low=low, high=high)


def _step_at(series: Series, compute: float) -> float | None:
    """Return the step of the evaluation at a compute; None where steps are not known."""
    steps = series.axes.get("step")
    if steps is None and axis_label(series.x_label) == AXIS_LABELS["step"]:
        steps = series.compute
    if steps is None:
        return None
    return float(steps[np.argmin(np.abs(series.compute - compute))])


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisAnswer:
    """What a comparison says where compute is counted on another axis."""

    axis: str
    at: float
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found: each curve, and the curves together."""

    command: Command
    curves: tuple[CurveResult, ...]
    options: FitOptions
    left_out: tuple[Series, ...] = ()
    """Series that make no curve; their problems say why."""
    comparisons: Mapping[str, Comparison | PaperComparison] = field(default_factory=dict)
    """The comparison of each evaluation set; none for a set whose curves were not compared."""
    by_axis: Mapping[str, tuple[AxisAnswer, ...]] = field(default_factory=dict)
    """The answers of each evaluation set on every axis; the axis of the fits comes first."""
    notes: tuple[Say, ...] = ()
    """Notes on the curves together."""
    source: Any = None
    """The `Source` that a report was made from; None for other commands."""
    runs: tuple[Any, ...] = ()
    """The runs and logs of the source, including unreadable ones."""

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(curve.evaluation_set for curve in self.curves))

    def members(self, evaluation_set: str) -> list[CurveResult]:
        """Return the curves of an evaluation set."""
        return [curve for curve in self.curves if curve.evaluation_set == evaluation_set]

    @property
    def pairs(self) -> tuple[Any, ...]:
        pairs: list[Any] = []
        for comparison in self.comparisons.values():
            pairs += comparison.pairs
        return tuple(pairs)

    @property
    def worth(self) -> float:
        """The smallest difference of reward that matters."""
        if self.options.worth is None:
            return default_worth(list(fits_of(self.curves).values()))
        return self.options.worth

    @property
    def own_runs(self) -> list[Any]:
        """Our own run folders among the runs."""
        return [run for run in self.runs if run.is_folder]

    @property
    def study(self) -> Any:
        """The folder of the study that a report was made from; None for anything else."""
        if self.source is not None and self.source.kind == "study":
            return self.source.path
        return None

    @property
    def title(self) -> str:
        if self.source is None:
            return ""
        return self.source.name


def fits_of(curves: Iterable[CurveResult]) -> dict[str, Fit]:
    """Return the fits by name."""
    return {curve.name: curve.fit for curve in curves}
