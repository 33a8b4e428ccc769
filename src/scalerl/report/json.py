"""An analysis as plain JSON types: kinds and numbers, no sentences. docs/schema.json describes what commands print."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from scalerl.curves import Comparison, Fit, Note, Pair, Score, Target, Value, note_json
from scalerl.report.results import Analysis, CurveResult, param_value

PARAMS = ("ceiling", "exponent", "midpoint", "start")
NO_SCORE: dict[str, Any] = dict.fromkeys(("num_points", "rmse", "bias", "coverage", "level"))


def to_json(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis; what is not known, or not finite, is null."""
    forms = analysis.form_ranking
    return {
        "curves": [curve_json(curve, concluded=analysis.command in ("fit", "forecast")) for curve in analysis.curves],
        "pairs": [_pair_json(pair) for pair in analysis.pairs],
        "rankings": [{"set": name, **ranking_json(each)} for name, each in analysis.comparisons.items()],
        "forms": None
        if forms is None
        else {
            "fraction": forms.fraction,
            "num_curves": forms.num_curves,
            "errors": [{"form": name, "rmse": number(rmse)} for name, rmse in forms.errors],
        },
        "notes": notes_json(analysis.notes),
    }


def number(value: float | None) -> float | None:
    """Return a finite number, and None for any other."""
    return float(value) if value is not None and math.isfinite(value) else None


def value_json(value: Value | None) -> dict[str, float | None] | None:
    """Return a number with its interval; null for an end that is not finite."""
    if value is None:
        return None
    return {"value": number(value.value), "low": number(value.low), "high": number(value.high)}


def kind(value: Enum) -> str:
    """Return the kind of a verdict: its name, since its value is for people."""
    return value.name.lower()


def score_json(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {key: _plain(value) for key, value in asdict(score).items()}


def curve_json(curve: CurveResult, *, concluded: bool) -> dict[str, Any]:
    """Return one curve; `concluded` adds where it levels off and when to stop to its notes."""
    fit, series = curve.fit, curve.series
    why = {share: note_json(each) for share, each in curve.unscored}
    own = None if fit is None else fit.unpooled
    return {
        "name": curve.name,
        "units": {"compute": series.x_label, "reward": series.y_label, "reward_scale": series.y_scale},
        "form": fit.form if fit is not None else None,
        "num_points": fit.num_points if fit is not None else len(series.compute),
        "num_runs": fit.num_runs if fit is not None else None,
        **_params(fit),
        "verdict": kind(curve.verdict),
        "advice": str(curve.advice),
        "doubling": value_json(curve.doubling),
        "problem": series.problem,
        "notes": notes_json(curve.conclusions if concluded else curve.notes),
        "facts": [{key: _plain(value) for key, value in fact.as_json().items()} for fact in series.facts],
        "noise_sd": number(fit.noise_sd) if fit is not None else None,
        "run_sd": number(fit.run_sd) if fit is not None else None,
        "unpooled": None if own is None else {**_params(own), "verdict": kind(own.verdict)},
        "pooled_with": list(fit.prior.sources) if own is not None and fit is not None and fit.prior is not None else [],
        "at": [
            {"compute": row.compute, "reward": value_json(row.reward), "notes": notes_json(row.notes)}
            for row in curve.at
        ],
        "reach": [
            {
                "reward": row.reward,
                "compute": value_json(row.compute),
                "p_above_ceiling": row.p_above_ceiling,
                "notes": notes_json(row.notes),
            }
            for row in curve.reach
        ],
        "holdout": score_json(curve.holdout),
        "fractions": [
            {"fraction": share, **(score_json(score) or NO_SCORE), "note": why.get(share)}
            for share, score in curve.fractions
        ],
    }


def _params(fit: Fit | None) -> dict[str, Any]:
    return {name: value_json(param_value(fit, name)) for name in PARAMS}


def notes_json(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """Return notes by kind and numbers; null for a number that is not finite."""
    return [{key: _plain(value) for key, value in note_json(each).items()} for each in notes]


def _plain(value: Any) -> Any:
    return number(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "a": pair.a,
        "b": pair.b,
        "kind": pair.kind,
        "winner": pair.winner,
        "p_higher_ceiling": number(pair.p_higher_ceiling),
        "p_higher_by_margin": number(pair.p_higher_by_margin),
        "ceiling_difference": value_json(pair.ceiling_difference),
        "margin": number(pair.margin),
        "p_ahead": number(pair.p_ahead),
        "target": _target_json(pair.target),
        "targets": [_target_json(target) for target in pair.targets],
        "p_larger_exponent": number(pair.p_larger_exponent),
        "correlation": pair.correlation,
        "crossing": number(pair.crossing),
        "notes": notes_json(pair.notes),
    }


def _target_json(target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    return {"reward": target.reward, "compute_ratio": value_json(target.ratio), "p_less": target.p_less}


def ranking_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "standings": [asdict(standing) for standing in comparison.standings],
        "shared_ceiling": number(comparison.shared_ceiling),
        "shared_exponents": {name: value_json(value) for name, value in comparison.shared_exponents.items()},
    }
