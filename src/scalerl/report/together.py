"""What the arms of a study say together: ceilings pooled and alone, and what its policy decided."""

from collections.abc import Mapping
from typing import Any

from scalerl import store
from scalerl.joint.pool import pool
from scalerl.report.json import value_json
from scalerl.report.numbers import Format, fixed, two_decimals
from scalerl.report.results import param_value
from scalerl.report.standing import labels
from scalerl.report.views import Report, View

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
    label, pooled = labels(view), pool(fits)
    rows = []
    for name, curve in pooled.items():
        if curve.unpooled is None:
            continue
        sides = {"pooled": curve, "alone": curve.unpooled}
        own = {param: {side: value_json(param_value(fit, param)) for side, fit in sides.items()} for param in PARAMS}
        rows.append({"arm": label[name], "set": view.evaluation_set, **own})
    return rows


PARAMS = ("ceiling", "exponent", "midpoint")


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


def interval_cell(value: Mapping[str, float | None] | None, show: Format) -> str:
    """Return a value of the report's JSON with its interval, as in "0.612 [0.600, 0.630]"; "-" if there is none."""
    if value is None or value["value"] is None:
        return "-"
    if value["low"] is None or value["low"] == value["high"]:
        return show(value["value"])
    high = "unbounded" if value["high"] is None else show(value["high"])
    return f"{show(value['value'])} [{show(value['low'])}, {high}]"


DECISION_HEADS = ("decision", "time", "compute goes to", "because of", "favourite then", "expected loss")
POOLED_HEADS = ("arm", "ceiling, pooled", "ceiling, alone", "exponent, pooled", "exponent, alone")


def pooled_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{row['arm']} ({row['set']})" if row["set"] else row["arm"]
    shown = {"ceiling": fixed(3), "exponent": two_decimals}
    return name, *(
        interval_cell(row[param][side], show) for param, show in shown.items() for side in ("pooled", "alone")
    )
