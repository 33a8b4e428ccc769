"""Series in, one value out that tables, JSON and plots all read: the fits and what was asked of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.curves import (
    FORMS,
    At,
    Comparison,
    Fit,
    Reach,
    Score,
    Value,
    backtest,
    compare,
    compute_for,
    doubling,
    fit,
    rank_forms,
    reward_at,
)
from scalerl.study.series import InputError, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What the commands' shared options say of the fit."""

    form: str = "sigmoid"
    level: float = 0.9
    margin: float = 0.06
    skip_before: float | str | None = None
    fit_until: float | None = None
    bounded: bool = True
    """False for a reward without limits (--y-scale none)."""

    def of(self, series: Series) -> dict[str, Any]:
        """Keyword arguments of `fit` for one series."""
        return {
            "form": self.form,
            "level": self.level,
            "margin": self.margin,
            "skip_before": self.skip_before,
            "fit_until": self.fit_until,
            "bounds": (0.0, 1.0) if self.bounded else None,
            "start": series.start,
            "start_sd": series.start_sd,
            "run": series.run,
            "num_samples": series.num_samples,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """One curve. `fit` is None where the series had a problem of its own."""

    series: Series
    fit: Fit | None
    holdout: Score | None = None
    fractions: tuple[tuple[float, Score | None], ...] = ()
    at: tuple[At, ...] = ()
    reach: tuple[Reach, ...] = ()
    doubling: Value | None = None

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def verdict(self) -> str:
        return self.fit.verdict if self.fit is not None else "no curve"

    @property
    def messages(self) -> tuple[str, ...]:
        problem = (self.series.problem,) if self.series.problem else ()
        return (*problem, *(self.fit.messages if self.fit is not None else ()))

    @property
    def usable(self) -> bool:
        return self.fit is not None and self.fit.usable


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    curves: tuple[CurveResult, ...]
    comparison: Comparison | None = None
    at: float | None = None
    """The target compute of a comparison."""
    form_ranking: tuple[tuple[str, float, int], ...] = ()
    """Form, median error on held-out points, number of curves: best first."""
    notes: tuple[str, ...] = field(default=())


def analyse_fit(series: Sequence[Series], options: FitOptions) -> Analysis:
    return Analysis(curves=tuple(_fitted(one, options) for one in _some(series)))


def analyse_forecast(
    series: Sequence[Series], options: FitOptions, at: Sequence[float], reach: Sequence[float]
) -> Analysis:
    curves = []
    for one in _some(series):
        done = _fitted(one, options)
        if done.fit is not None and done.fit.usable:
            done = CurveResult(
                series=one,
                fit=done.fit,
                holdout=done.holdout,
                at=tuple(reward_at(done.fit, at or ([] if reach else [2 * done.fit.scale, 4 * done.fit.scale]))),
                reach=tuple(compute_for(done.fit, reach)),
                doubling=doubling(done.fit),
            )
        curves.append(done)
    return Analysis(curves=tuple(curves))


def analyse_backtest(series: Sequence[Series], options: FitOptions, fractions: Sequence[float]) -> Analysis:
    """Score each curve's forecast on its held-out points and on what lies after each fraction; rank the forms."""
    curves, errors = [], {name: [] for name in FORMS}
    for one in _some(series):
        if one.problem:
            curves.append(CurveResult(series=one, fit=None))
            continue
        held = (one.holdout_compute, one.holdout_reward) if len(one.holdout_compute) else None
        keywords = options.of(one)
        done = backtest(one.compute, one.reward, holdout=held, fractions=fractions, **keywords)
        curves.append(CurveResult(series=one, fit=done.fit, holdout=done.holdout, fractions=done.fractions))
        for name, rmse in rank_forms(one.compute, one.reward, holdout=held, **keywords):
            errors[name].append(rmse)
    ranking = [(name, float(np.median(found)), len(found)) for name, found in errors.items() if found]
    return Analysis(curves=tuple(curves), form_ranking=tuple(sorted(ranking, key=lambda row: row[1])))


def analyse_compare(series: Sequence[Series], options: FitOptions, at: float | None) -> Analysis:
    if len(series) < 2:
        raise InputError(
            f"only one curve ({series[0].name if series else 'none'}) was found and two or more are needed to compare: "
            "name more files, or split one with --by COLUMN."
        )
    curves = tuple(_fitted(one, options) for one in _some(series))
    units = sorted({curve.series.x_label for curve in curves})
    notes = ()
    if len(units) > 1:
        notes = (f"The curves count compute in different columns ({', '.join(units)}): name one with --x COLUMN.",)
    fits = {curve.name: curve.fit for curve in curves if curve.fit is not None}
    return Analysis(curves=curves, comparison=compare(fits, at=at), at=at, notes=notes)


def _some(series: Sequence[Series]) -> Sequence[Series]:
    problems = [one.problem for one in series if one.problem]
    if series and len(problems) == len(series):
        raise InputError(f"no usable curve at all; the first of {len(series)} failed with: {problems[0]}")
    return series


def _fitted(one: Series, options: FitOptions) -> CurveResult:
    if one.problem:
        return CurveResult(series=one, fit=None)
    done = fit(one.compute, one.reward, evaluation=one.evaluation, **options.of(one))
    return CurveResult(series=one, fit=done)


# JSON -----------------------------------------------------------------------------------------------------------------


def to_json(analysis: Analysis) -> dict[str, Any]:
    """The whole analysis as plain JSON types; what is not known, or not finite, is null."""
    out: dict[str, Any] = {"curves": [_curve_json(curve) for curve in analysis.curves]}
    if analysis.form_ranking:
        out["forms"] = [
            {"form": name, "rmse": number(rmse), "num_curves": num} for name, rmse, num in analysis.form_ranking
        ]
    if analysis.comparison is not None:
        out.update(_comparison_json(analysis.comparison))
    if analysis.notes:
        out["notes"] = list(analysis.notes)
    return out


def number(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _value_json(value: Value | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    return {"value": number(value.value), "low": number(value.low), "high": number(value.high)}


def param_value(fit: Fit | None, name: str) -> Value | None:
    """A parameter with its interval; None where the form has none or there is no fit."""
    if fit is None or name not in fit.params:
        return None
    low, high = fit.interval(name)
    return Value(value=fit.params[name], low=low, high=high)


NO_SCORE: dict[str, Any] = dict.fromkeys(("num_points", "rmse", "bias", "coverage", "level"))


def _score_json(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {
        "num_points": score.num_points,
        "rmse": number(score.rmse),
        "bias": number(score.bias),
        "coverage": number(score.coverage),
        "level": score.level,
    }


def _curve_json(curve: CurveResult) -> dict[str, Any]:
    fit = curve.fit
    out: dict[str, Any] = {
        "name": curve.name,
        "form": fit.form if fit is not None else None,
        "num_points": fit.num_points if fit is not None else len(curve.series.compute),
    }
    for word in ("ceiling", "exponent", "midpoint", "start"):
        out[word] = _value_json(param_value(fit, word))
    out["verdict"] = curve.verdict
    out["messages"] = list(curve.messages)
    out["num_runs"] = fit.num_runs if fit is not None else None
    out["noise_sd"] = number(fit.noise_sd) if fit is not None else None
    out["run_sd"] = number(fit.run_sd) if fit is not None else None
    if len(curve.series.holdout_compute) or curve.fractions:
        out["holdout"] = _score_json(curve.holdout)
        out["fractions"] = [{"fraction": share, **(_score_json(score) or NO_SCORE)} for share, score in curve.fractions]
    if curve.doubling is not None:
        out["at"] = [{"compute": row.compute, "reward": _value_json(row.reward)} for row in curve.at]
        out["reach"] = [
            {"reward": row.reward, "compute": _value_json(row.compute), "message": row.message} for row in curve.reach
        ]
        out["doubling"] = _value_json(curve.doubling)
    return out


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "pairs": [
            {
                "a": pair.a,
                "b": pair.b,
                "p_higher_ceiling": number(pair.p_higher_ceiling),
                "p_more_efficient": number(pair.p_more_efficient),
                "p_sooner": number(pair.p_sooner),
                "verdict": pair.verdict,
                "messages": list(pair.messages),
                "crossing": number(pair.crossing),
            }
            for pair in comparison.pairs
        ],
        "ranking": [{"name": name, "p_best": share} for name, share in comparison.ranking],
        "shared_ceiling": number(comparison.shared_ceiling),
        "shared_exponents": {name: _value_json(value) for name, value in comparison.shared_exponents.items()},
    }
