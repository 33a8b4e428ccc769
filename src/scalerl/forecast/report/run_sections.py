"""Sections on runs: their health, what they spent, how they differ, and what they wrote."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.forecast.logs import Log, Series
from scalerl.forecast.logs.columns import is_evaluation
from scalerl.forecast.logs.frame import grouped
from scalerl.forecast.logs.readers.objects import flatten
from scalerl.forecast.report.alarms import LIMITS, alarms_to_show
from scalerl.forecast.report.document import (
    Blocks,
    Grid,
    Json,
    Level,
    Lines,
    Samples,
    Say,
    grid,
    say,
    table,
)
from scalerl.forecast.report.json_values import rounded
from scalerl.forecast.report.metrics import CHARTS, Array, log_columns, number, thinned, with_pace
from scalerl.forecast.report.pass_at_k import pass_curves
from scalerl.forecast.report.results import CurveResult, Result
from scalerl.forecast.report.runs import COST, CUT, PER_RUN, Run, hours_name
from scalerl.forecast.report.samples import newest_samples
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
            yield alarm.say(run=run.name if len(runs) > 1 else "")
    if own:
        yield lag_table(own)
    yield from lines_of(runs, result.curves)
    if own:
        yield from pass_lines(own)


def run_says(runs: Sequence[Run]) -> Iterator[Say]:
    """Yield what a reader must know: runs cut short, work done twice, time that stood still, other environments."""
    for run in runs:
        # Without a status, nobody knows.
        if run.status in CUT:
            yield say("not_finished", run=run.name, status=status_text(run))
        again = run.repeated
        if again:
            flops = run.cost.get("flops")
            share = 0.0
            if flops:
                share = again["flops"] / flops
            yield say("repeated", run=run.name, hours=run.hours_name, share=share, **again)
        stalled_s = run.seconds.get("stalled")
        if stalled_s:
            yield say("stood_still", run=run.name, hours=run.hours_name, seconds=stalled_s)
    differing = tuple(key for key, values in environments(runs).items() if len(values) > 1)
    if differing:
        yield say("different_environments", keys=differing)


def status_text(run: Run) -> str:
    if run.reason:
        return f"{run.status}: {run.reason}"
    return run.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What one run, or one curve of a log, has logged over its steps."""

    name: str
    colour: int
    columns: Mapping[str, Array]


def lines_of(runs: Sequence[Run], curves: Sequence[CurveResult] = ()) -> list[Lines]:
    """Return a small chart for each usual column, a line for each run in the colour of its curve.

    Of a single run the other columns that it logged are shown too, as details.
    """
    words = {run.step_word for run in runs}
    counted = "step"
    if words == {"row"}:
        counted = "row"
    charts: dict[str, list[Any]] = {}
    for logged in logged_by(runs, curves):
        columns = with_pace(logged.columns)
        steps = thinned("step", columns.get("step", np.empty(0)))
        shown = list(CHARTS)
        if len(runs) == 1:
            others = [key for key in columns if key not in CHARTS and key not in UNSHOWN]
            shown += others[:MOST_OTHERS]
        for key in shown:
            if key in columns and np.isfinite(columns[key]).any():
                values = thinned(key, columns[key])
                charts.setdefault(key, []).append((logged.name, logged.colour, steps, values))
    made: list[Lines] = []
    for key, lines in charts.items():
        chart = Lines(
            key=key,
            title=CHARTS.get(key, key),
            lines=tuple(lines),
            limit=LIMITS.get(key),
            has_legend=key == NAMED,
            counted=counted,
            level=Level.WHY if key in CHARTS else Level.DETAIL,
        )
        made.append(chart)
    return made


def logged_by(runs: Sequence[Run], curves: Sequence[CurveResult]) -> Iterator[Logged]:
    """Yield what each run has logged; of a log with several curves, what each curve has."""
    arms = [*dict.fromkeys(run.arm for run in runs)]
    for run in runs:
        parts: list[Logged] = []
        if run.log is not None and len(curves) > 1:
            parts = _parts_of_log(run.log, curves, has_others=len(runs) > 1)
        if len(parts) > 1:
            yield from parts
        else:
            yield Logged(name=run.name, colour=arms.index(run.arm), columns=run.columns)


def _parts_of_log(log: Log, curves: Sequence[CurveResult], *, has_others: bool) -> list[Logged]:
    """Return what each curve of a log has logged: its rows, or in a table with a column for each run its rewards.

    Curves that may be of another log are left out if there are others.
    """
    parts: list[Logged] = []
    for colour, curve in enumerate(curves):
        if curve.evaluation_set:
            name = f"{curve.name}, {curve.evaluation_set}"
        else:
            name = curve.name
        labels = [(column, value) for column, value in curve.series.key if column in log.frame]
        rows = np.ones(len(log.frame), dtype=bool)
        for column, value in labels:
            rows &= log.frame.words(column) == value
        if labels and rows.any():
            own = replace(log, frame=log.frame.take(rows))
            columns, _ = log_columns(own)
            parts.append(Logged(name=name, colour=colour, columns=columns))
        elif not labels and not has_others and not is_evaluation(curve.y):
            parts.append(Logged(name=name, colour=colour, columns=_rewards_of(curve.series)))
    return parts


def _rewards_of(series: Series) -> Mapping[str, Array]:
    """Return the training rewards of a curve over its steps."""
    steps = series.axes.get("step", series.compute)
    return {"step": steps, NAMED: series.reward}


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
        means = _finite(run.columns.get("rollout/lag_mean"))
        largest = _finite(run.columns.get("rollout/lag_max"))
        if not len(means) or not len(largest):
            continue
        expected = run.environment.get("expected_lag")
        if not isinstance(expected, dict):
            expected = {}
        row = {
            "name": run.name,
            "bound": run.lag_bound,
            "mean": float(means.mean()),
            "largest": float(largest.max()),
            "expected_mean": number(expected.get("mean")),
            "expected_largest": number(expected.get("largest")),
        }
        rows.append(row)
    return table("lag", LAG_COLUMNS, zip(rows), left=2)


def _finite(values: Array | None) -> Array:
    """Return the finite values of a column, or nothing if it does not exist."""
    if values is None:
        return np.empty(0)
    return values[np.isfinite(values)]


def pass_lines(runs: Sequence[Run]) -> Iterator[Lines]:
    """Yield pass@k over the steps, a chart for each run and evaluation set."""
    for run in runs:
        for rows in grouped([row for _, row in run.evals], lambda row: str(row.get("set", ""))):
            name = str(rows[0].get("set", ""))
            steps, by_k = pass_curves(rows)
            if not by_k:
                continue
            lines: list[Any] = []
            for place, (k, values) in enumerate(by_k.items()):
                lines.append((f"pass@{k}", place, steps, rounded(np.array(values), 5)))
            if len(runs) > 1:
                about = ["pass@k", run.name, name]
            else:
                about = ["pass@k", name]
            title = ", ".join(filter(None, about))
            yield Lines(key=f"pass/{run.name}/{name}", title=title, lines=tuple(lines), has_legend=True)


# Cost -----------------------------------------------------------------------------------------------------------------


def cost(result: Result) -> Blocks:
    """Show what runs have spent, in compute, time and money."""
    runs = result.own_runs
    hours = hours_name(run.hours_name for run in runs)
    price = result.options.price if hours == "GPU-hours" else None  # an hour of a CPU has another price
    rows = [_cost_of(run, price) for run in runs]
    if len(runs) > 1:
        together: Json = {"name": "together", "status": "", "time": "", "steps": ""}
        for key in (*COST, "total", "money"):
            together[key] = sum(row[key] or 0.0 for row in rows) or None
        rows.append(together)
    columns: dict[str, str] = {}
    for head, each in COST_COLUMNS.items():
        if head == "GPU-hours":
            columns[hours] = each
        elif head != "cost" or price is not None:
            columns[head] = each
    yield table("cost", columns, zip(rows), left=3)


def _cost_of(run: Run, price: float | None) -> Json:
    """Return what a run has spent, and on what its time went."""
    total = sum(run.seconds.values())
    parts: list[str] = []
    for part, seconds in run.seconds.items():
        if total and seconds >= LEAST_SHARE * total:
            parts.append(f"{part.replace('_', '-')} {seconds / total:.0%}")
    return {
        "name": run.name,
        "status": status_text(run),
        "time": ", ".join(parts) or "-",
        "steps": f"{run.num_steps:,}",
        **dict.fromkeys(COST),
        **run.cost,
        "total": total or None,
        "money": (price or 0.0) * run.cost.get("gpu_hours", 0.0),
    }


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
    base = next(iter(arms), "")
    if result.study and result.source.plan.get("base") in arms:
        base = result.source.plan["base"]
    changes = [(arm, key, _json(before), _json(value)) for arm, key, before, value in differences(known, base)]
    yield grid("differences", ("arm", "setting", base, "this arm"), changes, left=4, title="What differs")
    if len(folders) == 1:
        own = [(key, _json(value)) for key, value in folders[0].settings.items()]
        yield grid("settings", ("setting", "value"), own, left=2, title="Settings", level=Level.DETAIL)
    machines: list[tuple[str, str]] = []
    for key, values in environments(folders).items():
        texts = list(values)
        if len(values) > 1:
            texts = [f"{value} ({', '.join(runs)})" for value, runs in values.items()]
        machines.append((key, "; ".join(texts)))
    yield grid("environment", ("", "value"), machines, left=2, title="Environment", level=Level.DETAIL)


def differences(runs: Sequence[Run], base: str) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the settings in which each arm differs from `base`, without seed and description: arm, key, both values."""
    arms = {run.arm: run.settings for run in reversed(runs)}
    for arm in dict.fromkeys(run.arm for run in runs):
        for key in {**arms[base], **arms[arm]}:
            before = arms[base].get(key)
            value = arms[arm].get(key)
            if before != value and key not in PER_RUN:
                yield arm, key, before, value


def environments(runs: Sequence[Run]) -> dict[str, dict[str, list[str]]]:
    """Return, for each key of the environment, its values and the runs that have each."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in flatten(run.environment).items():
            # Neither the version of the file nor slots and lag, which depend on the arm, describe the machine.
            if key not in ("format", "slots", "expected_lag/mean", "expected_lag/largest"):
                by_key.setdefault(key.replace("/", "."), {}).setdefault(str(value), []).append(run.name)
    return by_key


def _json(value: Any) -> str:
    if value is None:
        return "-"
    return json.dumps(value)


def samples(result: Result) -> Blocks:
    """Show the last answers that each run was trained on."""
    rows: list[Json] = []
    for run in result.own_runs:
        for sample in newest_samples(run.source.path / store.SAMPLES, run.source.root, SAMPLES_OF_A_RUN):
            rows.append({"run": run.name, **sample})
    if rows:
        return [Samples(rows=tuple(rows))]
    return []
