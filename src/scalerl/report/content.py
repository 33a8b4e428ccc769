"""A report as plain JSON types: kinds and numbers for `--json`, and the words that the page adds to them."""

from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.curves import FORMS, NoteKind, Verdict, find_note, note_text
from scalerl.logs.series import Series
from scalerl.report.alarms import listed
from scalerl.report.charts import lines_json, times_json
from scalerl.report.conclusions import leader, open_questions, reference, sentence, summary, warnings
from scalerl.report.figures import points_json
from scalerl.report.json import picked, plain, ranking_json, to_json
from scalerl.report.results import curve_text
from scalerl.report.runs import Run, differences, environments, hours_name
from scalerl.report.tables import report_tables
from scalerl.report.views import HELD_OUT, Report, View


def report_json(report: Report) -> dict[str, Any]:
    """Return kinds and numbers: what `--json` prints."""
    return {**_numbers(report), **plain(_facts(report))}


def page_json(report: Report) -> dict[str, Any]:
    """Return the same in words where people read it: what the page and the Markdown show."""
    content, facts = _numbers(report), _facts(report)
    for row, view in zip(content["views"], report.views, strict=True):
        for curve_row, curve in zip(row["curves"], view.analysis.curves, strict=True):
            curve_row |= {"verdict_text": curve.verdict, "text": curve_text(curve, notes=curve.notes)}
        for pair_row, pair in zip(row["pairs"], view.analysis.pairs, strict=True):
            wanted = find_note(pair.notes, NoteKind.DECIDED_BY)
            pair_row["text"] = pair.verdict
            pair_row["to_decide"] = None if wanted is None else note_text(wanted)
    # On the page runs have their alarms, with when they began.
    alarms = [fact for fact in facts["warnings"] if fact.kind == "alarm"]
    facts = {**facts, "warnings": [fact for fact in facts["warnings"] if fact not in alarms], "alarms": alarms}
    return {**content, **_in_words(facts), "tables": [table.as_json() for table in report_tables(content)]}


def _facts(report: Report) -> dict[str, Any]:
    """Return what the report says: its facts, by the part that they belong to."""
    return {
        "summary": {name: summary(report, name) for name in report.sets},
        "warnings": warnings(report),
        "notes": list(report.notes),
        "open": {name: open_questions(report, name) for name in report.sets},
    }


def _in_words(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {key: _in_words(each) for key, each in facts.items()}
    return [sentence(fact) for fact in facts]


def _numbers(report: Report) -> dict[str, Any]:
    material = report.material
    return {
        "title": material.title,
        "description": str(material.plan.get("description") or ""),
        "form": report.options.form,
        "formula": FORMS[report.options.form].formula,
        "level": report.options.level,
        "y_label": report.series[report.axes[0].column][0].y_label,
        "axes": [{"key": axis.column, "label": axis.label} for axis in report.axes],
        "windows": [{"key": window.key, "label": window.label} for window in report.windows],
        "window": report.window.key,
        "sets": [_set_json(report, name) for name in report.sets],
        "views": [_view_json(view) for view in report.views],
        "runs": [run_json(run) for run in material.runs],
        "hours": hours_name(material.runs),
        "differences": {
            "base": material.base or next((run.arm for run in material.runs), None),
            "rows": differences(material.runs, material.base),
        },
        "environment": environments(material.runs),
        "decisions": decisions_json(report),
    }


def _set_json(report: Report, name: str) -> dict[str, Any]:
    members = {axis.column: report.members(name, axis.column) for axis in report.axes}
    first = members[report.axes[0].column]
    return {
        "name": name,
        "lead": plain(leader(report, name)),
        "reference": reference(report, name),
        "curves": [{"name": data.name, "label": data.name, "problem": data.problem} for data in first],
        "points": {
            column: {data.name: points_json(data, _held_out(report, column, data)) for data in series}
            for column, series in members.items()
        },
    }


def _held_out(report: Report, column: str, data: Series) -> set[tuple[float, float]]:
    """Return the points that the first window leaves out."""
    if all(window.key != HELD_OUT for window in report.windows):
        return set()
    curves = report.view(data.evaluation_set or "", column, HELD_OUT).analysis.curves
    held = [curve.series for curve in curves if curve.name == data.name]
    return {point for each in held for point in zip(each.holdout_compute, each.holdout_reward, strict=True)}


def _view_json(view: View) -> dict[str, Any]:
    analysis = to_json(view.analysis)
    for row, curve in zip(analysis["curves"], view.analysis.curves, strict=True):
        line = view.lines.get(curve.name)
        row |= {"label": curve.name, "is_known": curve.verdict == Verdict.KNOWN, "line": line and line.as_json()}
    straight = {
        name: {**refitted.params, "first": float(refitted.compute.min()), "last": refitted.scale}
        for name, refitted in view.comparison.shared_fits.items()
    }
    del analysis["rankings"]
    keys = {"set": view.evaluation_set, "axis": view.axis.column, "window": view.window.key}
    return {**analysis, **ranking_json(view.comparison), **keys, "compared": view.is_compared, "straight": straight}


def run_json(run: Run) -> dict[str, Any]:
    """Return what a page shows of one run besides its curve."""
    return {
        **picked(run, "name", "arm", "seed", "status", "reason", "num_steps", "cost", "seconds"),
        "faults": run.faults(),
        "alarms": listed(run.alarms),
        "signals": lines_json(run.columns),
        "times": times_json(run.columns, per_step=not run.is_folder),
        "passes": run.passes(),
    }


# What the policy of a study decided


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
