"""Sections on runs: their health, what they spent, how they differ, and what they wrote."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.forecast.logs import Log
from scalerl.forecast.report.alarms import LIMITS, alarms_to_show, fall_alarms
from scalerl.forecast.report.arms import differences, environments, hours_name
from scalerl.forecast.report.document import (
    Blocks,
    Grid,
    Json,
    Level,
    Lines,
    Samples,
    Say,
    grid,
    rounded,
    say,
    table,
)
from scalerl.forecast.report.metrics import CHARTS, Array, log_columns, number, thinned, with_pace
from scalerl.forecast.report.results import CurveResult, Result
from scalerl.forecast.report.runs import COST, Run
from scalerl.forecast.report.samples import Query, search
from scalerl.runfolder import store

SAMPLES_OF_A_RUN = 6
MOST_OTHERS = 40
"""Columns of a single run that are drawn as details."""
NAMED = "reward/mean"
"""The column whose lines are named below their chart."""
UNSHOWN = ("step", "attempt")
LEAST_SHARE = 0.005
"""Share of the time from which a part of it is named."""


# Health ---------------------------------------------------------------------------------------------------------------


def health(result: Result) -> Blocks:
    """Show the alarms of runs, and what shows whether they are healthy."""
    runs: list[Run] = [*result.runs]
    own = result.own_runs
    if own:
        yield from run_says(own)
    for run in runs:
        for alarm in alarms_to_show(run.alarms):
            yield alarm.say(run=run.name if len(runs) > 1 else "", unit="")
    for curve in result.curves if runs else ():
        columns = next((run.columns for run in runs if run.arm == curve.name), runs[0].columns)
        for alarm in fall_alarms(curve.evaluation_set or curve.name, curve, columns):
            yield alarm.say(run=curve.name if len(result.curves) > 1 else "", unit=curve.unit)
    if own:
        yield lag_table(own)
    yield from lines_of(runs, result.curves)
    if own:
        yield from pass_lines(own)


def run_says(runs: Sequence[Run]) -> Iterator[Say]:
    """Yield what a reader must know: runs cut short, work done twice, time that stood still, other environments."""
    for run in runs:
        if run.is_cut:
            yield say("not_finished", run=run.name, status=status_text(run))
        if again := run.repeated:
            share = again["flops"] / run.cost["flops"] if run.cost.get("flops") else 0.0
            yield say("repeated", run=run.name, hours=run.hours_name, share=share, **again)
        if stalled_s := run.seconds.get("stalled"):
            yield say("stood_still", run=run.name, hours=run.hours_name, seconds=stalled_s)
    if differing := tuple(key for key, values in environments(runs).items() if len(values) > 1):
        yield say("different_environments", keys=differing)


def status_text(run: Run) -> str:
    return ": ".join(filter(None, (run.status, run.reason)))


def lines_of(runs: Sequence[Run], curves: Sequence[CurveResult] = ()) -> list[Lines]:
    """Return a small chart for each usual column, a line for each run in the colour of its curve.

    Of a single run the other columns that it logged are shown too, as details.
    """
    words = {run.step_word for run in runs}
    counted = "row" if words == {"row"} else "step"
    charts: dict[str, list[Any]] = {}
    for name, colour, logged in columns_of(runs, curves):
        columns = with_pace(logged)
        steps = thinned("step", columns.get("step", np.empty(0)))
        others = [key for key in columns if key not in CHARTS and key not in UNSHOWN]
        for key in (*CHARTS, *others[: MOST_OTHERS if len(runs) == 1 else 0]):
            if key in columns and np.isfinite(columns[key]).any():
                charts.setdefault(key, []).append((name, colour, steps, thinned(key, columns[key])))
    return [
        Lines(
            key=key,
            title=CHARTS.get(key, key),
            lines=tuple(lines),
            limit=LIMITS.get(key),
            has_legend=key == NAMED,
            counted=counted,
            level=Level.WHY if key in CHARTS else Level.DETAIL,
        )
        for key, lines in charts.items()
    ]


def columns_of(runs: Sequence[Run], curves: Sequence[CurveResult]) -> Iterator[tuple[str, int, Mapping[str, Array]]]:
    """Yield the name, the colour and the columns of each run; of a log with several curves, those of each curve."""
    arms = [*dict.fromkeys(run.arm for run in runs)]
    for run in runs:
        parts = [] if run.log is None else list(_parts_of_log(run.log, curves))
        yield from parts if len(parts) > 1 else [(run.name, arms.index(run.arm), run.columns)]


def _parts_of_log(log: Log, curves: Sequence[CurveResult]) -> Iterator[tuple[str, int, Mapping[str, Array]]]:
    """Yield the name, the colour and the columns of each curve that a log has rows of."""
    for colour, curve in enumerate(curves):
        labels = [(column, value) for column, value in curve.series.key if column in log.frame]
        rows = np.ones(len(log.frame), dtype=bool)
        for column, value in labels:
            rows &= log.frame.words(column) == value
        if labels and rows.any():
            yield curve.name, colour, log_columns(replace(log, frame=log.frame.take(rows)))


LAG_COLUMNS = {
    "run": "{name}",
    "what max_lag bounds": "{bound}",
    "mean lag": "{mean:.2f}",
    "expected": "{expected_mean:.2f}",
    "largest lag": "{largest:.0f}",
    "expected largest": "{expected_largest:.1f}",
}


def lag_table(runs: Sequence[Run]) -> Grid | None:
    """Return the mean and largest lag of runs in steps, as seen and as expected at their start."""
    rows: list[Json] = []
    for run in runs:
        means, largest = (_finite(run.columns.get(f"rollout/lag_{kind}")) for kind in ("mean", "max"))
        if len(means) and len(largest):
            expected = run.environment.get("expected_lag")
            expected = expected if isinstance(expected, dict) else {}
            rows.append({
                "name": run.name,
                "bound": run.lag_bound,
                "mean": float(means.mean()),
                "largest": float(largest.max()),
                "expected_mean": number(expected.get("mean")),
                "expected_largest": number(expected.get("largest")),
            })  # fmt: skip
    return table("lag", LAG_COLUMNS, zip(rows), left=2) if rows else None


def _finite(values: Array | None) -> Array:
    """Return the finite values of a column, or nothing if it does not exist."""
    return np.empty(0) if values is None else values[np.isfinite(values)]


def pass_lines(runs: Sequence[Run]) -> Iterator[Lines]:
    """Yield pass@k over the steps, a chart for each run and evaluation set."""
    for run in runs:
        for name, (steps, by_k) in run.passes().items():
            lines = tuple((f"pass@{k}", place, steps, rounded(np.array(values), 5))
                          for place, (k, values) in enumerate(by_k.items()))  # fmt: skip
            title = ", ".join(filter(None, ("pass@k", run.name if len(runs) > 1 else "", name)))
            yield Lines(key=f"pass/{run.name}/{name}", title=title, lines=lines, has_legend=True)


# Cost -----------------------------------------------------------------------------------------------------------------


def cost(result: Result) -> Blocks:
    """Show what runs have spent, in compute, time and money."""
    runs = result.own_runs
    hours = hours_name(run.hours_name for run in runs)
    price = result.options.price if hours == "GPU-hours" else None  # an hour of a CPU has another price
    rows: list[Json] = []
    for run in runs:
        total = sum(run.seconds.values())
        shares = {part.replace("_", "-"): seconds / total for part, seconds in run.seconds.items() if total}
        time = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= LEAST_SHARE)
        texts = {"name": run.name, "status": status_text(run), "time": time or "-", "steps": f"{run.num_steps:,}"}
        money = (price or 0.0) * run.cost.get("gpu_hours", 0.0)
        rows.append({**texts, **dict.fromkeys(COST), **run.cost, "total": total or None, "money": money})
    if len(runs) > 1:
        sums = {key: sum(row[key] or 0.0 for row in rows) or None for key in (*COST, "total", "money")}
        rows.append({"name": "together", "status": "", "time": "", "steps": "", **sums})
    columns = {hours if head == "GPU-hours" else head: each for head, each in COST_COLUMNS.items()}
    if price is None:
        del columns["cost"]
    yield table("cost", columns, zip(rows), left=3)


COST_COLUMNS = {
    "run": "{name}",
    "status": "{status}",
    "where the time went": "{time}",
    "steps": "{steps}",
    "GPU-hours": "{gpu_hours:C}",
    "FLOPs": "{flops:C}",
    "tokens": "{tokens:C}",
    "wall time": "{total:d}",
    "cost": "{money:$}",
}


# Settings and samples -------------------------------------------------------------------------------------------------


def settings(result: Result) -> Blocks:
    """Show what arms change, and the environments."""
    folders = result.own_runs
    known = [run for run in folders if run.recipe]
    arms = [run.arm for run in known]
    base = result.study and result.source.plan.get("base")
    base = base if base in arms else next(iter(arms), "")
    text = lambda value: "-" if value is None else json.dumps(value)  # noqa: E731
    changes = [(arm, key, *map(text, values)) for arm, key, *values in differences(known, base)]
    machines = []
    for key, values in environments(folders).items():
        of = [f"{value} ({', '.join(runs)})" if len(values) > 1 else value for value, runs in values.items()]
        machines.append((key, "; ".join(of)))
    yield grid("differences", ("arm", "setting", base, "this arm"), changes, left=4, title="What differs")
    own = [(key, text(value)) for key, value in folders[0].settings.items()] if len(folders) == 1 else []
    yield grid("settings", ("setting", "value"), own, left=2, title="Settings", level=Level.DETAIL)
    yield grid("environment", ("", "value"), machines, left=2, title="Environment", level=Level.DETAIL)


def samples(result: Result) -> Blocks:
    """Show the last answers that each run was trained on."""
    query = Query(num=SAMPLES_OF_A_RUN)
    rows = [
        {"run": run.name, **sample}
        for run in result.own_runs
        for sample in search(run.source.path / store.SAMPLES, run.source.root, query)["samples"]
    ]
    return [Samples(rows=tuple(rows))] if rows else []
