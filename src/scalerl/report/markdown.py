"""The report as Markdown: plain tables and pictures, from the same JSON as the page."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scalerl.report.numbers import number_text, short_compute_text, two_decimals
from scalerl.report.together import interval_cell
from scalerl.report.windows import ALL

Pictures = Mapping[str, Sequence[tuple[str, str]]]


def plain(text: object) -> str:
    """Return a text that Markdown shows as it is: no HTML, no link, no end of a table's cell."""
    return str(text).replace("<", "&lt;").replace("](", "]\\(").replace("|", "\\|")


def markdown(content: Mapping[str, Any], pictures: Pictures) -> str:
    parts = [f"# {plain(content['title'])}"]
    parts += [plain(content["description"])] if content["description"] else []
    for eval_set in content["sets"]:
        parts += _set(content, eval_set, pictures.get(eval_set["name"], ()))
    parts += _listed("Warnings", content["warnings"]) + _listed("Notes", content["notes"])
    for each in content["tables"]:
        parts += [f"## {each['title']}", table(each["heads"], each["rows"])]
    return "\n\n".join(parts) + "\n"


def _set(content: Mapping[str, Any], eval_set: Mapping[str, Any], pictures: Sequence[tuple[str, str]]) -> list[str]:
    name = eval_set["name"]
    parts = [f"## {plain(name)}"] if name else []
    parts.append(plain(" ".join(content["summary"][name])))
    parts += [f"![{plain(words)}]({quote(file)})\n\n*{plain(words)}*" for file, words in pictures]
    axis = content["axes"][0]
    view = _view(content, name, axis["key"], content["window"])
    fitted = next(window["label"] for window in content["windows"] if window["key"] == content["window"])
    parts += [f"### Ceiling and efficiency ({plain(axis['label'])}, {fitted})", _results(view, eval_set, axis["label"])]
    parts += ["### Pairs", _pairs(view, eval_set)] if view["pairs"] else []
    if view["curves"] and any(curve["forecast"] for curve in view["curves"]):
        parts += ["### Forecast", _forecast(content, view, axis["label"])]
    scores = _scores(content, name, axis["key"])
    parts += ["### Forecasts against what happened", scores] if scores else []
    return parts + _listed("What these data do not settle", content["open"][name])


def _view(content: Mapping[str, Any], name: str, axis: str, window: str) -> Mapping[str, Any]:
    wanted = (name, axis, window)
    return next(view for view in content["views"] if (view["set"], view["axis"], view["window"]) == wanted)


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    line = lambda cells: f"| {' | '.join(map(plain, cells))} |"  # noqa: E731
    return "\n".join([line(heads), f"|{'---|' * len(heads)}", *map(line, rows)])


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {plain(item)}" for item in items)] if items else []


def _results(view: Mapping[str, Any], eval_set: Mapping[str, Any], axis: str) -> str:
    labels = {curve["name"]: curve["label"] for curve in eval_set["curves"]}
    shared = view["shared_ceiling"]
    heads = [
        "curve", "ceiling A", "exponent B", f"C_mid, {axis}",
        "B, shared ceiling" if shared is None else f"B at ceiling {number_text(shared)}", "fit",
    ]  # fmt: skip
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
    return table(heads, rows)


def _pairs(view: Mapping[str, Any], eval_set: Mapping[str, Any]) -> str:
    """Return both axes of every pair: ceilings, then the compute that a needs for a reward over that of b."""
    labels = {curve["name"]: curve["label"] for curve in eval_set["curves"]}
    heads = ("a", "b", "P(a higher A)", "A of a less b", "compute of a / b", "P(a larger B)", "verdict", "to decide")
    rows = []
    for pair in view["pairs"]:
        target, ratio = pair["target"], "-"
        if target is not None:
            ratio = f"{interval_cell(target['compute_ratio'], two_decimals)} for {number_text(target['reward'])}"
        rows.append(
            (
                labels[pair["a"]],
                labels[pair["b"]],
                _share(pair["p_higher_ceiling"]),
                interval_cell(pair["ceiling_difference"], lambda value: f"{value:+.3f}"),
                ratio,
                _share(pair["p_larger_exponent"]),
                pair["text"],
                pair["to_decide"] or "",
            )
        )
    return table(heads, rows)


def _share(probability: float | None) -> str:
    return "-" if probability is None else two_decimals(probability)


def _forecast(content: Mapping[str, Any], view: Mapping[str, Any], axis: str) -> str:
    curves = [curve for curve in view["curves"] if curve["forecast"]]
    heads = [
        f"at {short_compute_text(row['compute'])} {axis} [{content['level']:.0%}]" for row in curves[0]["forecast"]
    ]
    rows = [(curve["label"], *(interval_cell(row, number_text) for row in curve["forecast"])) for curve in curves]
    return table(("curve", *heads), rows)


def _scores(content: Mapping[str, Any], name: str, axis: str) -> str:
    rows = []
    for window in content["windows"]:
        for curve in _view(content, name, axis, window["key"])["curves"]:
            score = curve["score"]
            if score is not None and window["key"] != ALL:
                inside = "-" if score["coverage"] is None else f"{score['coverage']:.0%}"
                errors = (f"{score['rmse']:.4f}", f"{score['bias']:+.4f}", inside)
                rows.append((curve["label"], window["label"], score["num_points"], *errors))
    return table(("curve", "fitted on", "points scored", "RMSE", "bias", "inside the interval"), rows) if rows else ""
