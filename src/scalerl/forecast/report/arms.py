"""What several runs have together: which are seeds of one arm, how arms differ, and whether runs shared a machine."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from scalerl.forecast.logs.frame import grouped
from scalerl.forecast.logs.names import without_seed
from scalerl.forecast.logs.readers.objects import flatten
from scalerl.forecast.report.document import Say, say
from scalerl.forecast.report.runs import PER_RUN, Run


def joined_seeds(runs: Sequence[Run]) -> Iterator[Say]:
    """Join runs whose recipes differ only in the seed into one arm; yield a note on each."""
    taken: set[str] = set()
    for members in grouped(runs, _settings_of_arm):
        arm = members[0].name
        short = {without_seed(run.name) for run in members}
        if len(members) > 1 and len(short) == 1 and not short & taken:
            (arm,) = short
        taken.add(arm)
        for run in members:
            run.source = replace(run.source, arm=arm)
        if len(members) > 1:
            yield say("seeds_joined", runs=tuple(run.name for run in members), arm=arm)


def _settings_of_arm(run: Run) -> str:
    """Return the settings that runs of one arm share, as text; of a run without settings its name."""
    settings = run.settings or {"name": run.name}
    shared = {name: value for name, value in settings.items() if name not in PER_RUN}
    return json.dumps(shared, sort_keys=True, default=str)


def hours_name(hours: Iterable[str]) -> str:
    """Return what the device hours of several are called: CPU-hours if those of each are, otherwise GPU-hours."""
    return "CPU-hours" if {*hours} == {"CPU-hours"} else "GPU-hours"


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


def uneven_pace(runs: Sequence[Run]) -> float:
    """Return the largest ratio of GPU-hours per FLOP between runs of one arm; about 1 unless they shared a machine."""
    known = [run for run in runs if run.cost.get("gpu_hours") and run.cost.get("flops")]
    largest = 1.0
    for of_arm in grouped(known, lambda run: run.arm):
        paces = [run.cost["gpu_hours"] / run.cost["flops"] for run in of_arm]
        largest = max(largest, max(paces) / min(paces))
    return largest
