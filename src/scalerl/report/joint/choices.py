"""Present the final choice of a study's policy as JSON and as one sentence."""

from pathlib import Path
from typing import Any

from scalerl import store


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
