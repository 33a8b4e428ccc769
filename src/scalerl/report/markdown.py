"""The report as Markdown: plain tables and pictures, from the same JSON as the page."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from scalerl.report.numbers import duration, number_text, short_compute_text, two_decimals
from scalerl.report.together import DECISION_HEADS, POOLED_HEADS, decision_cells, interval_cell, pooled_cells
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
    parts += (
        _pooled(content["pooled"])
        + _decisions(content["decisions"])
        + _differences(content["differences"])
        + _signals(content)
        + _cost(content["runs"], content["hours"])
        + _environment(content["environment"])
    )
    return "\n\n".join(parts) + "\n"


def _pooled(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return ["## Pooled over arms", table(POOLED_HEADS, [pooled_cells(row) for row in rows])] if rows else []


def _decisions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return ["## Decisions", table(DECISION_HEADS, [decision_cells(row) for row in rows])] if rows else []


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


# Runs


def _differences(content: Mapping[str, Any]) -> list[str]:
    if not content["rows"]:
        return []
    rows = [(row["arm"], row["key"], row["base"], row["value"]) for row in content["rows"]]
    return ["## What differs", table(("arm", "setting", content["base"], "this arm"), rows)]


def _signals(content: Mapping[str, Any]) -> list[str]:
    runs = [run for run in content["runs"] if run["signals"] is not None]
    if not runs:
        return []
    keys = [(signal["key"], signal["label"]) for signal in content["signals"]]
    rows = [(run["name"], *(_last(run["signals"]["last"].get(key)) for key, _ in keys)) for run in runs]
    return ["## Stability over the last steps", table(("run", *(label for _, label in keys)), rows)]


def _last(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _cost(runs: Sequence[Mapping[str, Any]], hours: str) -> list[str]:
    if not runs:
        return []
    rows = []
    for run in runs:
        spent = [run["cost"].get(key) for key in ("gpu_hours", "flops", "tokens")]
        time = ", ".join(f"{part.replace('_', '-')} {duration(seconds)}" for part, seconds in run["seconds"].items())
        ending = f"{run['status']}: {run['reason']}" if run["reason"] else run["status"]
        amounts = ["-" if value is None else short_compute_text(value) for value in spent]
        rows.append((run["name"], ending, run["num_steps"], *amounts, time or "-"))
    return ["## Runs and cost", table(("run", "status", "steps", hours, "FLOPs", "tokens", "wall time"), rows)]


def _environment(content: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    of = lambda values: [f"{value} ({', '.join(runs)})" for value, runs in values.items()]  # noqa: E731
    rows = [(key, next(iter(values)) if len(values) == 1 else "; ".join(of(values))) for key, values in content.items()]
    return ["## Environment", table(("", "value"), rows)] if rows else []
