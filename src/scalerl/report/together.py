"""What the arms of a study say together: ceilings pooled and alone, and what its policy decided."""

from collections.abc import Mapping
from typing import Any

from scalerl import store
from scalerl.analysis.json import number
from scalerl.analysis.results import param_value
from scalerl.curves import Fit, Value
from scalerl.joint.pool import pool
from scalerl.report.views import Report, View, label_of

KINDS = {
    "first_rung": "first rung of every arm",
    "round": "a round of successive halving",
    "continue": "the largest expected gain per compute",
    "finish": "the choice is made, and it is trained to the end",
    "decided": "the choice is made",
    "not_separable": "no arm is worth more compute, and none is clearly the best",
    "budget_spent": "the share of the budget is spent",
}


def pooled_json(report: Report) -> list[dict[str, Any]]:
    """Return ceilings and exponents of the view shown first, pooled over arms and alone; empty unless a study."""
    if report.material.folder is None:
        return []
    rows: list[dict[str, Any]] = []
    for name in report.sets:
        rows += _view_rows(report.view(name))
    return rows


def _view_rows(view: View) -> list[dict[str, Any]]:
    fits = {curve.name: curve.fit for curve in view.analysis.curves if curve.fit is not None and curve.usable}
    labels = {curve.name: label_of(curve.series) for curve in view.analysis.curves}
    pooled = pool(fits)
    rows = []
    for name, curve in pooled.items():
        if curve.unpooled is None:
            continue
        own = {param: {"pooled": _json(curve, param), "alone": _json(curve.unpooled, param)} for param in PARAMS}
        rows.append({"arm": labels[name], "set": view.evaluation_set, **own})
    return rows


PARAMS = ("ceiling", "exponent", "midpoint")


def _json(curve: Fit, param: str) -> dict[str, float | None]:
    value: Value | None = param_value(curve, param)
    assert value is not None
    return {"value": number(value.value), "low": number(value.low), "high": number(value.high)}


def decisions_json(report: Report) -> list[dict[str, Any]]:
    """Return the decisions of the study's policy, one row each; empty where it has none."""
    folder = report.material.folder
    return [] if folder is None else [_decision(row) for row in store.read_decisions(folder)]


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    known = row.get("known") or {}
    return {
        "decision": row.get("decision"),
        "time": row.get("time"),
        "policy": row.get("policy"),
        "kind": row.get("kind"),
        "arm": row.get("arm"),
        "until": row.get("until"),
        "favourite": known.get("favourite"),
        "regret": known.get("regret"),
        "spent": {arm["name"]: arm["spent"] for arm in known.get("arms", [])},
    }


def decision_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table cells of one decision: number, time, action, reason, favourite and expected loss."""
    until = row["until"]
    done = "end" if row["arm"] is None else f"{row['arm']} to {until:.0%} of its budget"
    regret = "" if row["regret"] is None else f"{row['regret']:.4f}"
    why = KINDS.get(row["kind"], str(row["kind"]))
    return str(row["decision"]), str(row["time"]), done, why, row["favourite"] or "", regret


def interval_cell(value: Mapping[str, float | None], digits: int = 3) -> str:
    """Return a value with its interval, as in "0.612 [0.600, 0.630]"."""
    if value["value"] is None:
        return ""
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.{digits}f}"
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


DECISION_HEADS = ("decision", "time", "compute goes to", "because of", "favourite then", "expected loss")
POOLED_HEADS = ("arm", "ceiling, pooled", "ceiling, alone", "exponent, pooled", "exponent, alone")


def pooled_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{row['arm']} ({row['set']})" if row["set"] else row["arm"]
    sides = [(param, side) for param in ("ceiling", "exponent") for side in ("pooled", "alone")]
    return name, *(interval_cell(row[param][side], 3 if param == "ceiling" else 2) for param, side in sides)
