"""`result_json`: what `--json` prints of a result: numbers under their names, and the sections with their sentences."""

from scalerl.forecast.curves import Comparison, PaperComparison
from scalerl.forecast.logs.series import Series
from scalerl.forecast.report.document import Json
from scalerl.forecast.report.json_values import picked, plain, to_json
from scalerl.forecast.report.results import CurveResult, Result, param_value
from scalerl.forecast.report.sections import document

CURVE_KEYS = (
    "name", "set", "units", "form", "num_points", "num_runs", "noise_sd", "run_sd", "ceiling", "exponent", "midpoint",
    "start", "state", "action", "share", "p_nearly_all", "p_worth", "p_seen", "settled_at", "p_settled",
    "noticed", "smallest_change", "missing", "fall", "dip", "worth", "doubling", "checkpoint", "problem", "facts",
    "alone", "pooled_with", "at", "reach", "holdout", "fractions",
)  # fmt: skip
COMPARISON_KEYS = (
    "answer", "at", "worth", "winner", "chosen", "standings", "correlation", "shared_ceiling", "shared_exponents",
)  # fmt: skip
PAPER_KEYS = ("answer", "winner", "standings", "shared_ceiling")


def result_json(result: Result) -> Json:
    """Return what `--json` prints: numbers under their names, and the sections with their sentences."""
    curves = [curve_json(curve) for curve in result.curves]
    for data in result.left_out:
        given = {"set": data.evaluation_set or "", "units": _units(data)}
        curves.append(picked(("name", "set", "units", "problem"), given, data))
    axes: list[Json] = []
    for name, answers in result.by_axis.items():
        for each in answers:
            axes.append({"set": name, "axis": each.axis, **comparison_json(each.comparison), "at": each.at})
    return {
        "curves": curves,
        "pairs": plain(result.pairs),
        "rankings": [{"set": name, **comparison_json(each)} for name, each in result.comparisons.items()],
        "axes": axes,
        "worth": plain(result.worth),
        "sections": to_json(document(result)),
    }


def comparison_json(comparison: Comparison | PaperComparison) -> Json:
    if isinstance(comparison, PaperComparison):
        return picked(PAPER_KEYS, {"standings": ()}, comparison)
    return picked(COMPARISON_KEYS, comparison, comparison.pick)


def curve_json(curve: CurveResult) -> Json:
    """Return one curve; what is not known, or not finite, is null."""
    fit = curve.fit
    given = {
        "set": curve.evaluation_set,
        "units": _units(curve.series),
        "ceiling": curve.ceiling,
        "doubling": curve.doubling,
        "problem": None,
        "facts": [each.as_json() for each in curve.series.facts],
        "alone": None if fit.alone is None else {name: param_value(fit.alone, name) for name in curve.params},
        "pooled_with": fit.prior.sources if fit.alone is not None and fit.prior is not None else (),
        "holdout": curve.backtest,
        "fractions": [{"fraction": each.share, **(plain(each.score) or {})} for each in curve.early],
    }
    return picked(CURVE_KEYS, given, curve.params, curve, curve.decision, fit)


def _units(series: Series) -> Json:
    return {"compute": series.x_label, "reward": series.y_label, "reward_scale": series.y_scale}
