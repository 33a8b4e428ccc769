"""An analysis as plain JSON types: kinds and numbers, no sentences. docs/schema.json describes what commands print."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from scalerl.curves import Comparison, Fit, Note, Target
from scalerl.logs.facts import Fact
from scalerl.report.results import Analysis, CurveResult, param_value, why_unscored

PARAMS = ("ceiling", "exponent", "midpoint", "start")
SCORE = ("num_points", "rmse", "bias", "coverage", "level")
PAIR = (
    "a", "b", "kind", "winner", "p_higher_ceiling", "p_higher_by_margin", "ceiling_difference", "margin", "p_ahead",
    "target", "targets", "p_larger_exponent", "correlation", "crossing", "notes",
)  # fmt: skip


def plain(value: Any) -> Any:
    """Return JSON types: an enum by its name, a value by its fields, null for a number that is not finite."""
    match value:
        case Enum():
            return value.name.lower()
        case float():
            return float(value) if math.isfinite(value) else None
        case Note() | Fact():
            return {"kind": str(value.kind), **plain(value.values)}
        case Target():
            return {"reward": value.reward, "compute_ratio": plain(value.ratio), "p_less": value.p_less}
        case Mapping():
            return {f"{key:g}" if isinstance(key, float) else key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case Path():
            return str(value)
        case _ if is_dataclass(value):
            return picked(value, *(each.name for each in fields(value)))
    return value


def picked(value: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of a value as JSON types."""
    return {name: plain(getattr(value, name)) for name in names}


def to_json(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis; what is not known, or not finite, is null."""
    forms = analysis.form_ranking
    return {
        "curves": [_curve_json(curve, concluded=analysis.command in ("fit", "forecast")) for curve in analysis.curves],
        "pairs": [picked(pair, *PAIR) for pair in analysis.pairs],
        "rankings": [{"set": name, **ranking_json(each)} for name, each in analysis.comparisons.items()],
        "forms": None
        if forms is None
        else {
            **picked(forms, "fraction", "num_curves"),
            "errors": [{"form": name, "rmse": plain(rmse)} for name, rmse in forms.errors],
        },
        "notes": plain(analysis.notes),
    }


def _curve_json(curve: CurveResult, *, concluded: bool) -> dict[str, Any]:
    """Return one curve; `concluded` adds where it levels off and when to stop to its notes."""
    fit, series = curve.fit, curve.series
    own = fit.unpooled
    of_fit = {"form": None, "num_points": len(series.compute), "num_runs": None, "noise_sd": None, "run_sd": None}
    return {
        "name": curve.name,
        "units": {"compute": series.x_label, "reward": series.y_label, "reward_scale": series.y_scale},
        **(picked(fit, *of_fit) if curve.is_fitted else of_fit),
        **_params(fit),
        "verdict": plain(curve.verdict),
        "advice": str(curve.advice),
        "doubling": plain(curve.doubling),
        "problem": series.problem,
        "notes": plain(curve.conclusions if concluded else curve.notes),
        "facts": plain(series.facts),
        "unpooled": None if own is None else {**_params(own), "verdict": plain(own.verdict)},
        "pooled_with": list(fit.prior.sources) if own is not None and fit.prior is not None else [],
        "at": [picked(row, "compute", "reward", "notes") for row in curve.at],
        "reach": [picked(row, "reward", "compute", "p_above_ceiling", "notes") for row in curve.reach],
        "holdout": plain(curve.holdout),
        "fractions": [
            {
                "fraction": share,
                **(dict.fromkeys(SCORE) if early.holdout is None else plain(early.holdout)),
                "note": plain(why_unscored(early, share)),
            }
            for share, early in curve.early
        ],
    }


def _params(fit: Fit | None) -> dict[str, Any]:
    return {name: plain(param_value(fit, name)) for name in PARAMS}


def ranking_json(comparison: Comparison) -> dict[str, Any]:
    return picked(comparison, "standings", "shared_ceiling", "shared_exponents")
