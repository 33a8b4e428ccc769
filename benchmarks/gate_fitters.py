"""What the gate can judge: a fitter is an object with `fit(run)` and `pair(first, second)`.

`new` is the library; the peers need no part of it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from populations import Array, Run
from scipy.optimize import least_squares
from scipy.special import expit

Z = 1.6449
"""Half the width of a 90 % interval, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is said of a run. Intervals hold 90 %."""

    ceiling_low: float
    ceiling_high: float
    is_known: bool
    """Whether the verdict is that the ceiling is known ("ok")."""
    is_flat: bool
    is_fallen: bool
    new: Callable[[Array], tuple[Array, Array]]
    """Interval of one new evaluation at each compute; with several seeds, of a new seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is decided between two recipes."""

    answer: str
    """take, either or open."""
    leader: int
    """The one to take, or that leads: 1 is the first, -1 the second, 0 neither."""
    efficiency: int
    """1: the first needs less compute, -1: the second, 0: not said."""


UNDECIDED = Decision(answer="open", leader=0, efficiency=0)


class Fitter(Protocol):
    def fit(self, run: Run) -> Judged: ...

    def pair(self, first: Run, second: Run) -> Decision: ...


def arguments(run: Run) -> dict[str, Any]:
    """Return the keyword arguments of `scalerl.forecast.curves.fit`."""
    return {
        "start": run.start,
        "start_sd": run.start_sd,
        "num_samples": run.num_samples,
        "run": run.label,
        "bounds": (0.0, 1.0) if run.is_bounded else None,
    }


class New:
    """Decisions of `scalerl.forecast.curves` of this tree. What is "known" is the ceiling of a run that levels off."""

    def curve(self, run: Run) -> Any:
        from scalerl.forecast.curves import fit

        return fit(run.compute, run.reward, **arguments(run))

    def fit(self, run: Run) -> Judged:
        from scalerl.forecast.curves import State, decide

        curve = self.curve(run)
        low, high = curve.interval("ceiling")
        decision = decide(curve, run.worth)
        assert decision is not None
        return Judged(
            ceiling_low=low,
            ceiling_high=high,
            is_known=decision.state == State.LEVELLING_OFF,
            # Too few points to call a run flat in which no rise is seen.
            is_flat=decision.state in (State.FLAT, State.TOO_EARLY),
            is_fallen=decision.state == State.PAST_PEAK,
            new=curve.new_interval,
        )

    def pair(self, first: Run, second: Run) -> Decision:
        from scalerl.forecast.curves import compare

        done = compare({"first": self.curve(first), "second": self.curve(second)})
        pair = done.pairs[0]
        cheaper = 0.5 if pair.target is None else pair.target.p_less
        return Decision(
            answer="open" if pair.answer is None else str(pair.answer),
            leader=1 if done.chosen[0] == "first" else -1,
            efficiency=1 if cheaper >= 0.9 else -1 if cheaper <= 0.1 else 0,
        )


class Paper:
    """The paper's own fit and rule for pairs (arXiv 2510.13786, A.5)."""

    def fit(self, run: Run) -> Judged:
        raise NotImplementedError("the paper's procedure has no intervals")

    def pair(self, first: Run, second: Run) -> Decision:
        from scalerl.forecast.curves import compare_by_paper, fit

        fits = {
            name: fit(run.compute, run.reward, start=run.start, method="paper")
            for name, run in (("first", first), ("second", second))
        }
        [pair] = compare_by_paper(fits).pairs
        sign = {"first": 1, "second": -1, None: 0}[pair.winner]
        return Decision(answer="take", leader=sign, efficiency=sign)


class LeastSquares:
    """A sigmoid by least squares, a given start being one more evaluation; its residuals make the interval."""

    def fit(self, run: Run) -> Judged:
        log_compute = np.log(run.compute / run.compute.max())
        low, high = (0.0, 1.0) if run.is_bounded else one_range_around(run.reward)

        def curve(params: Array, places: Array) -> Array:
            level, gain, log_exponent, log_midpoint = params
            return level + gain * expit(np.exp(log_exponent) * (places - log_midpoint))

        def residuals(params: Array) -> Array:
            first = () if run.start is None else (params[0] - run.start,)
            return np.append(curve(params, log_compute) - run.reward, first)

        least = np.array([low, 0.0, np.log(0.3), np.log(1e-3)])
        most = np.array([high, high - low, np.log(10.0), np.log(30.0)])
        level = run.reward.min() if run.start is None else run.start
        gain = max(float(np.ptp(run.reward)), 1e-3 * (high - low))
        tried = [
            least_squares(
                residuals,
                np.clip(
                    [level, gain, np.log(1.5), middle], least + 1e-6 * (most - least), most - 1e-6 * (most - least)
                ),
                bounds=(least, most),
                x_scale=[gain, gain, 0.5, 0.5],
                max_nfev=200,
            )
            for middle in (-1.5, 0.0)
        ]
        best = min(tried, key=lambda each: each.cost)
        sd = float(np.sqrt(2 * best.cost / max(len(run.reward) - 4, 1)))

        def new(compute: Array) -> tuple[Array, Array]:
            middle = np.clip(curve(best.x, np.log(compute / run.compute.max())), low, high)
            return middle - Z * sd, middle + Z * sd

        return said(min(best.x[0] + best.x[1], high), sd, new)

    def pair(self, first: Run, second: Run) -> Decision:
        return UNDECIDED


class CarriedOn:
    """The mean of the last quarter, with its scatter, holds for ever."""

    def fit(self, run: Run) -> Judged:
        last = self.last(run)
        middle, sd = float(last.mean()), float(last.std(ddof=1))

        def new(compute: Array) -> tuple[Array, Array]:
            ones = np.ones(len(compute))
            return (middle - Z * sd) * ones, (middle + Z * sd) * ones

        return said(middle, sd, new)

    def pair(self, first: Run, second: Run) -> Decision:
        """Take the one that is ahead now."""
        ends = [float(np.mean(self.last(run))) for run in (first, second)]
        return Decision(answer="take", leader=1 if ends[0] >= ends[1] else -1, efficiency=0)

    def last(self, run: Run) -> Array:
        order = np.argsort(run.compute, kind="stable")
        return run.reward[order][-max(len(order) // 4, 3) :]


def said(ceiling: float, sd: float, new: Callable[[Array], tuple[Array, Array]]) -> Judged:
    """Return what a peer says: it has no verdicts."""
    ends = {"ceiling_low": ceiling - Z * sd, "ceiling_high": ceiling + Z * sd}
    return Judged(**ends, is_known=False, is_flat=False, is_fallen=False, new=new)


def one_range_around(reward: Array) -> tuple[float, float]:
    width = max(float(np.ptp(reward)), 1e-9)
    return float(reward.min()) - width, float(reward.max()) + width


FITTERS: dict[str, type] = {
    "new": New, "paper": Paper, "least-squares": LeastSquares, "carried-on": CarriedOn
}  # fmt: skip


def find(name: str) -> Fitter:
    """Return the fitter of this name, or a module on the path that has `fit` and `pair`."""
    return FITTERS[name]() if name in FITTERS else cast(Fitter, importlib.import_module(name))
