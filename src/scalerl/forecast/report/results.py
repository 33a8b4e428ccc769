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
MIN_COVERAGE = 0.5
"""If the interval holds a smaller share of the later evaluations than this, the forecast should not be trusted."""
PARAMS = ("ceiling", "exponent", "midpoint", "start")


def param_value(fit: Fit | None, name: str) -> Value | None:
    """Return a parameter with its interval; None if the form does not have it or there is no curve."""
    if fit is None or not fit.usable or name not in fit.params:
        return None
    low, high = fit.interval(name)
    return Value(value=fit.params[name], low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve, and what is decided about it."""

    series: Series
    fit: Fit
    decision: Decision | None = None
    """None for the paper's procedure."""
    backtest: Score | None = None
    """How well the fit forecasts the held-out rows; without any, how well the part up to `tested_share` forecasts the
    rest: the first half, or what a study says."""
    tested_share: float | None = None
    """Share of its compute from which the curve was forecast; None with held-out rows."""
    early: tuple[tuple[float, "CurveResult"], ...] = ()
    """The same curve up to shares of its compute, with the rest held out."""
    at: tuple[At, ...] = ()
    """Forecasts of the reward at given computes; in a report, at the end of the budget."""
    reach: tuple[Reach, ...] = ()
    """Forecasts of the compute at which given rewards are reached."""
    is_over: bool = False
    """Whether its runs have ended, so that waiting brings nothing more."""
    price: float | None = None
    """Price of one unit of compute; None where it is not known."""

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def axis(self) -> str:
        """The column of compute."""
        return self.series.x_label

    @property
    def unit(self) -> str:
        """The unit of compute in words, such as GPU-hours."""
        return unit_of(self.series)

    @property
    def y(self) -> str:
        """The column of reward."""
        return self.series.y_label

    def money(self, compute: float) -> float | None:
        """Return what this much compute costs; None where no price is known."""
        return None if self.price is None else self.price * compute

    @property
    def doubling_price(self) -> float | None:
        """What one more doubling costs: as much as the run so far."""
        return self.money(self.fit.scale)

    @property
    def evaluation_set(self) -> str:
        return self.series.evaluation_set or ""

    @property
    def decimals(self) -> int:
        return decimals(self.fit)

    @property
    def computes_ahead(self) -> tuple[float, ...]:
        """The computes for which a forecast is made unasked: 2 and 4 times the data."""
        return 2 * self.fit.scale, 4 * self.fit.scale

    @property
    def at_end(self) -> At | None:
        """The forecast for the end of a budget; None where it is not known, or reached."""
        return self.at[-1] if self.at else None

    @property
    def usable(self) -> bool:
        return self.fit.usable

    @property
    def state(self) -> State | None:
        return None if self.decision is None else self.decision.state

    @property
    def to_do(self) -> str:
        """What to do with the run, in a few words; nothing for the paper's procedure."""
        return "" if self.decision is None else words.to_do(Lookup(self, self.decision))

    @property
    def fall(self) -> Fall | None:
        """The fall of a run that is past its peak."""
        return None if self.decision is None else self.decision.fall

    @property
    def ceiling(self) -> Value | None:
        """The ceiling; None if there is no curve, or if it is flat, too early to tell or past its peak."""
        return None if self.state in (State.FLAT, State.TOO_EARLY, State.PAST_PEAK) else self.params["ceiling"]

    @property
    def params(self) -> dict[str, Value | None]:
        """The parameters with their intervals; None for one that the form does not have, or without a curve."""
        return {name: param_value(self.fit, name) for name in PARAMS}

    @property
    def doubling(self) -> Value | None:
        """Gain of twice the compute; None if the curve is flat or too early to tell."""
        if self.decision is None or self.state in (State.FLAT, State.TOO_EARLY):
            return None
        return self.decision.doubling

    @property
    def is_weak(self) -> bool:
        """Whether the interval of the run's own back-test missed most of what came later."""
        inside = None if self.backtest is None else self.backtest.coverage
        return inside is not None and inside < MIN_COVERAGE

    @property
    def checkpoint(self) -> float | None:
        """The step of the last evaluation before a fall; None without a fall, or without steps."""
        steps = self.series.axes.get("step")
        if steps is None and axis_label(self.axis) == AXIS_LABELS["step"]:
            steps = self.series.compute
        if self.fall is None or steps is None:
            return None
        return float(steps[np.argmin(np.abs(self.series.compute - self.fall.last_good))])


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
        return default_worth(list(fits_of(self.curves).values())) if self.options.worth is None else self.options.worth

    @property
    def own_runs(self) -> list[Any]:
        """Our own run folders among the runs."""
        return [run for run in self.runs if run.is_folder]

    @property
    def study(self) -> Any:
        """The folder of the study that a report was made from; None for anything else."""
        return self.source.path if self.source is not None and self.source.kind == "study" else None

    @property
    def title(self) -> str:
        return "" if self.source is None else self.source.name


def fits_of(curves: Iterable[CurveResult]) -> dict[str, Fit]:
    """Return the fits by name."""
    return {curve.name: curve.fit for curve in curves}
