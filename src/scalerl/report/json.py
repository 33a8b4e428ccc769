"""An analysis as plain JSON types: what `--json` of fit, forecast, backtest and compare prints."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scalerl.curves import (
    Comparison,
    Note,
    NoteKind,
    Pair,
    Score,
    Target,
    Value,
    find_note,
    note_json,
    note_text,
    stopping,
)
from scalerl.report.results import Analysis, Command, CurveResult, param_value


def to_json(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis as plain JSON types; what is not known, or not finite, is null."""
    out: dict[str, Any] = {"curves": [_curve_json(curve, analysis.command) for curve in analysis.curves]}
    ranking = analysis.form_ranking
    if ranking is not None:
        same = {"num_curves": ranking.num_curves, "scored_on": ranking.scored_on}
        out["forms"] = [{"form": name, "rmse": number(rmse), **same} for name, rmse in ranking.errors]
    if analysis.command == "compare":
        out |= _comparisons_json(analysis)
    if analysis.notes:
        out["notes"] = [note_text(each) for each in analysis.notes]
    return out


def number(value: float | None) -> float | None:
    """Return a finite number, and None for any other."""
    return float(value) if value is not None and math.isfinite(value) else None


def value_json(value: Value | None) -> dict[str, float | None] | None:
    """Return a number with its interval; null for an end that is not finite."""
    if value is None:
        return None
    return {"value": number(value.value), "low": number(value.low), "high": number(value.high)}


PARAMS = ("ceiling", "exponent", "midpoint", "start")
NO_SCORE: dict[str, Any] = dict.fromkeys(("num_points", "rmse", "bias", "coverage", "level"))


def score_json(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {
        "num_points": score.num_points,
        "rmse": number(score.rmse),
        "bias": number(score.bias),
        "coverage": number(score.coverage),
        "level": score.level,
    }


def _curve_json(curve: CurveResult, command: Command) -> dict[str, Any]:
    fit = curve.fit
    out: dict[str, Any] = {
        "name": curve.name,
        "x": curve.series.x_label,
        "y": curve.series.y_label,
        "form": fit.form if fit is not None else None,
        "num_points": fit.num_points if fit is not None else len(curve.series.compute),
    }
    for word in PARAMS:
        out[word] = value_json(param_value(fit, word))
    out["verdict"] = curve.verdict
    out["messages"] = list(curve.messages)
    out["facts"] = [fact.as_json() for fact in curve.series.facts]
    out["notes"] = notes_json(curve.notes)
    out["num_runs"] = fit.num_runs if fit is not None else None
    out["noise_sd"] = number(fit.noise_sd) if fit is not None else None
    out["run_sd"] = number(fit.run_sd) if fit is not None else None
    if fit is not None and fit.unpooled is not None:
        alone = {word: value_json(param_value(fit.unpooled, word)) for word in PARAMS}
        out["unpooled"] = {**alone, "verdict": fit.unpooled.verdict}
        out["pooled_with"] = list(fit.prior.sources) if fit.prior is not None else []
    if command == "fit":
        out["stopping"] = _stopping_json(curve)
    if command == "backtest":
        out["holdout"] = score_json(curve.holdout)
        why = {share: note_text(each) for share, each in curve.unscored}
        out["fractions"] = [
            {"fraction": share, **(score_json(score) or NO_SCORE), "message": why.get(share)}
            for share, score in curve.fractions
        ]
    if command == "forecast":
        out["at"] = [{"compute": row.compute, "reward": value_json(row.reward), **_told(row.notes)} for row in curve.at]
        out["reach"] = [
            {
                "reward": row.reward,
                "compute": value_json(row.compute),
                "p_above_ceiling": row.p_above_ceiling,
                **_told(row.notes),
            }
            for row in curve.reach
        ]
        out["doubling"] = value_json(curve.doubling)
    return out


def notes_json(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """Return notes by kind and numbers; null for a number that is not finite."""
    rows = [note_json(each) for each in notes]
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    return number(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value


def _told(notes: Sequence[Note]) -> dict[str, Any]:
    return {"message": " ".join(map(note_text, notes)), "notes": notes_json(notes)}


def _stopping_json(curve: CurveResult) -> dict[str, Any] | None:
    when = stopping(curve.fit) if curve.fit is not None else None
    if when is None:
        return None
    values = {"most_of_gain": value_json(when.most_of_gain), "doubling": value_json(when.doubling)}
    return asdict(when) | values


def _comparisons_json(analysis: Analysis) -> dict[str, Any]:
    """Return the pairs and rankings of all sets as one list; with several sets, also the ranking of each."""
    sets = [{"set": name, **_ranked_json(comparison)} for name, comparison in analysis.comparisons.items()]
    out: dict[str, Any] = {"pairs": [_pair_json(pair) for pair in analysis.pairs]}
    if len(sets) == 1:
        return out | _ranked_json(*analysis.comparisons.values())
    return out | {"ranking": [row for row in sets for row in row["ranking"]], "sets": sets}


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "a": pair.a,
        "b": pair.b,
        "kind": pair.kind,
        "winner": pair.winner,
        "verdict": pair.verdict,
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
        "to_decide": None if (wanted := find_note(pair.notes, NoteKind.SETTLED_BY)) is None else note_text(wanted),
        "messages": list(pair.messages),
        "notes": notes_json(pair.notes),
    }


def _target_json(target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    return {"reward": target.reward, "compute_ratio": value_json(target.ratio), "p_less": target.p_less}


def _ranked_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "ranking": [asdict(standing) for standing in comparison.standings],
        "shared_ceiling": number(comparison.shared_ceiling),
        "shared_exponents": {name: value_json(value) for name, value in comparison.shared_exponents.items()},
    }
