"""The tables of a report besides its curves, as cells of text: the page and the Markdown show the same."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.report.numbers import duration, short_compute_text
from scalerl.report.together import DECISION_HEADS, POOLED_HEADS, decision_cells, pooled_cells


def tables(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables that have rows, from the JSON of a report; the last `numbers` columns are numbers."""
    runs = content["runs"]
    made = [
        _table("pooled", "Pooled over arms", POOLED_HEADS, [pooled_cells(row) for row in content["pooled"]], 4),
        _table("decisions", "Decisions", DECISION_HEADS, [decision_cells(row) for row in content["decisions"]], 1),
        _differences(content["differences"]),
        _signals(content["signals"], [run for run in runs if run["signals"] is not None]),
        _cost(runs, content["hours"]),
        _environment(content["environment"]),
    ]
    return [each for each in made if each["rows"]]


def _table(key: str, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> dict[str, Any]:
    return {"key": key, "title": title, "heads": list(heads), "rows": [list(row) for row in rows], "numbers": numbers}


def _differences(content: Mapping[str, Any]) -> dict[str, Any]:
    text = lambda value: "-" if value is None else json.dumps(value)  # noqa: E731
    rows = [(row["arm"], row["key"], text(row["base"]), text(row["value"])) for row in content["rows"]]
    return _table("differences", "What differs", ("arm", "setting", str(content["base"]), "this arm"), rows, 0)


def _signals(signals: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = lambda run, key: "-" if (value := run["signals"]["last"].get(key)) is None else f"{value:.3g}"  # noqa: E731
    rows = [(run["name"], *(last(run, signal["key"]) for signal in signals)) for run in runs]
    heads = ("run", *(signal["label"] for signal in signals))
    return _table("stability", "Stability over the last steps", heads, rows if signals else [], len(signals))


def _cost(runs: Sequence[Mapping[str, Any]], hours: str) -> dict[str, Any]:
    keys = ("gpu_hours", "flops", "tokens")
    rows = []
    for run in runs:
        total = sum(run["seconds"].values())
        parts = [f"{part.replace('_', '-')} {spent / total:.0%}" for part, spent in run["seconds"].items()
                 if total > 0 and spent / total >= 0.005]  # fmt: skip
        ending = f"{run['status']}: {run['reason']}" if run["reason"] else run["status"]
        spent = [_amount(run["cost"].get(key)) for key in keys]
        rows.append((run["name"], ending, ", ".join(parts) or "-", f"{run['num_steps']:,}", *spent,
                     duration(total) if total else "-"))  # fmt: skip
    if len(runs) > 1:
        seconds = sum(sum(run["seconds"].values()) for run in runs)
        spent = [_amount(sum(run["cost"].get(key, 0.0) for run in runs)) for key in keys]
        rows.append(("together", "", "", "", *spent, duration(seconds)))
    heads = ("run", "status", "where the time went", "steps", hours, "FLOPs", "tokens", "wall time")
    return _table("cost", "Runs and cost", heads, rows, 5)


def _amount(value: float | None) -> str:
    return "-" if value is None else short_compute_text(value)


def _environment(content: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    rows = []
    for key, values in content.items():
        of = [f"{value} ({', '.join(runs)})" if len(values) > 1 else value for value, runs in values.items()]
        rows.append((key, "; ".join(of)))
    return _table("environment", "Environment", ("", "value"), rows, 0)
