"""What the arms of a study say together: ceilings pooled and alone, and what its policy decided."""

from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.joint.pool import pool
from scalerl.report.json import plain
from scalerl.report.results import param_value
from scalerl.report.views import Report

PARAMS = ("ceiling", "exponent", "midpoint")


def pooled_json(report: Report) -> list[dict[str, Any]]:
    """Return ceilings and exponents of the view shown first, pooled over arms and alone; empty unless a study."""
    rows: list[dict[str, Any]] = []
    for view in map(report.view, report.sets) if report.material.folder is not None else ():
        fits = {curve.name: curve.fit for curve in view.analysis.curves if curve.fit is not None and curve.usable}
        for name, fit in pool(fits).items():
            if fit.unpooled is not None:
                sides = {"pooled": fit, "alone": fit.unpooled}
                values = {param: {side: plain(param_value(each, param)) for side, each in sides.items()}
                          for param in PARAMS}  # fmt: skip
                rows.append({"arm": name, "set": view.evaluation_set, **values})
    return rows


def decisions_json(report: Report) -> list[dict[str, Any]]:
    """Return the decisions of the study's policy, one row each; empty where it has none."""
    folder = report.material.folder
    rows = []
    for row in [] if folder is None else store.read_decisions(folder):
        known = row.get("known") or {}
        rows.append(
            {
                **{key: row.get(key) for key in ("decision", "time", "policy", "kind", "arm", "until")},
                **{key: known.get(key) for key in ("favourite", "regret")},
                "spent": {arm.get("name"): arm.get("spent") for arm in known.get("arms", [])},
            }
        )
    return rows


def last_choice(out: Path) -> dict[str, Any] | None:
    """Return the decision that ended a study; None if its policy has not ended it yet."""
    rows = store.read_decisions(out)
    return rows[-1] if rows and rows[-1]["arm"] is None else None


def choice_text(row: dict[str, Any]) -> str:
    """Return the choice of a policy as one sentence."""
    known = row["known"]
    favourite, regret = known.get("favourite"), known.get("regret")
    loss = "" if regret is None else f"; taking it is expected to lose {regret:.2g}"
    if favourite is None:
        return "The policy ends without a favourite: no arm has a curve."
    spent = sum(arm["spent"] for arm in known["arms"]) / len(known["arms"])
    after = f"after {spent:.0%} of the compute of running all arms to the end"
    if row["kind"] == "decided":
        return f"The policy chooses {favourite} {after}{loss}."
    return f"Not separable: the policy leans to {favourite} {after}{loss}."


def choice_json(row: dict[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"kind": row["kind"], "favourite": row["known"].get("favourite"), "regret": row["known"].get("regret")}
