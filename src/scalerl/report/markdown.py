"""The report as Markdown: plain tables and pictures, from the same JSON as the page."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scalerl.report.numbers import fixed, interval_cell, number_text, short_compute_text, two_decimals
from scalerl.report.tables import Table, shielded
from scalerl.report.views import ALL

Pictures = Mapping[str, Sequence[tuple[str, str]]]
Json = Mapping[str, Any]


def markdown(content: Json, pictures: Pictures) -> str:
    parts = [f"# {shielded(content['title'])}"]
    parts += [shielded(content["description"])] if content["description"] else []
    for eval_set in content["sets"]:
        parts += _set(content, eval_set, pictures.get(eval_set["name"], ()))
    parts += _listed("Warnings", content["warnings"]) + _listed("Notes", content["notes"])
    for each in content["tables"]:
        parts += [f"## {each['title']}", Table(heads=each["heads"], rows=each["rows"]).markdown()]
    return "\n\n".join(parts) + "\n"


def _set(content: Json, eval_set: Json, pictures: Sequence[tuple[str, str]]) -> list[str]:
    name, axis = eval_set["name"], content["axes"][0]
    of_axis = {view["window"]: view for view in content["views"] if (view["set"], view["axis"]) == (name, axis["key"])}
    view, labels = of_axis[content["window"]], {curve["name"]: curve["label"] for curve in eval_set["curves"]}
    fitted = {window["key"]: window["label"] for window in content["windows"]}
    parts = [f"## {shielded(name)}"] if name else []
    parts.append(shielded(" ".join(content["summary"][name])))
    parts += [f"![{shielded(words)}]({quote(file)})\n\n*{shielded(words)}*" for file, words in pictures]
    title = f"Ceiling and efficiency ({shielded(axis['label'])}, {fitted[content['window']]})"
    tables = {
        title: _results(view, labels, axis["label"]),
        "Pairs": _pairs(view, labels),
        "Forecast": _forecast(view, axis["label"], content["level"]),
        "Forecasts against what happened": _scores(of_axis, fitted),
    }
    for head, table in tables.items():
        parts += [f"### {head}", table.markdown()] if table.rows else []
    return parts + _listed("What these data do not settle", content["open"][name])


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {shielded(item)}" for item in items)] if items else []


def _results(view: Json, labels: Mapping[str, str], axis: str) -> Table:
    shared = view["shared_ceiling"]
    shared_head = "B, shared ceiling" if shared is None else f"B at ceiling {number_text(shared)}"
    rows = [
        (
            labels[curve["name"]],
            interval_cell(curve["ceiling"], number_text),
            interval_cell(curve["exponent"], two_decimals),
            interval_cell(curve["midpoint"], short_compute_text),
            interval_cell(view["shared_exponents"].get(curve["name"]), two_decimals),
            curve["verdict_text"],
        )
        for curve in sorted(view["curves"], key=lambda row: -((row["ceiling"] or {}).get("value") or -1.0))
    ]
    return Table(heads=("curve", "ceiling A", "exponent B", f"C_mid, {axis}", shared_head, "fit"), rows=rows)


def _pairs(view: Json, labels: Mapping[str, str]) -> Table:
    """Return both axes of every pair: ceilings, then the compute that a needs for a reward over that of b."""
    heads = ("a", "b", "P(a higher A)", "A of a less b", "compute of a / b", "P(a larger B)", "verdict", "to decide")
    rows = []
    for pair in view["pairs"]:
        target, ratio = pair["target"], "-"
        if target is not None:
            ratio = f"{interval_cell(target['compute_ratio'], two_decimals)} for {number_text(target['reward'])}"
        higher, steeper = (
            "-" if pair[key] is None else two_decimals(pair[key]) for key in ("p_higher_ceiling", "p_larger_exponent")
        )
        difference = interval_cell(pair["ceiling_difference"], fixed(3, "+"))
        verdict = (pair["text"], pair["to_decide"] or "")
        rows.append((labels[pair["a"]], labels[pair["b"]], higher, difference, ratio, steeper, *verdict))
    return Table(heads=heads, rows=rows)


def _forecast(view: Json, axis: str, level: float) -> Table:
    curves = [curve for curve in view["curves"] if curve["forecast"]]
    computes = [row["compute"] for curve in curves[:1] for row in curve["forecast"]]
    heads = ("curve", *(f"at {short_compute_text(compute)} {axis} [{level:.0%}]" for compute in computes))
    rows = [(curve["label"], *(interval_cell(row, number_text) for row in curve["forecast"])) for curve in curves]
    return Table(heads=heads, rows=rows)


def _scores(of_axis: Mapping[str, Json], fitted: Mapping[str, str]) -> Table:
    rows = []
    for window, label in fitted.items():
        for curve in of_axis[window]["curves"] if window != ALL else ():
            if (score := curve["score"]) is not None:
                inside = "-" if score["coverage"] is None else f"{score['coverage']:.0%}"
                errors = (f"{score['rmse']:.4f}", f"{score['bias']:+.4f}", inside)
                rows.append((curve["label"], label, score["num_points"], *errors))
    return Table(heads=("curve", "fitted on", "points scored", "RMSE", "bias", "inside the interval"), rows=rows)
