"""What several runs say together: settings that differ, machines, pace, and prompts they were evaluated on."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.logs.table import flatten
from scalerl.report.run_folder import RunFolder

PER_RUN = ("description", "seed")  # settings in which runs of one arm may differ


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes differ, by dotted key: (old value, new value), None if there is none.

    Seed and description are left out, since they differ between runs of one arm.
    """
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in PER_RUN]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all recipes, by dotted key: the value in each, None without one."""
    rows = {key: [own.get(key) for own in settings] for key in dict.fromkeys(key for own in settings for key in own)}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def hours_name(runs: Sequence[RunFolder]) -> str:
    """Return what to call the hours that devices were held: no GPU-hours where all of them are CPUs."""
    return "CPU-hours" if {run.hours for run in runs} == {"CPU-hours"} else "GPU-hours"


def differences(runs: Sequence[RunFolder], base: str | None) -> list[dict[str, Any]]:
    """Return what each arm changes, against `base` or the first arm; seeds aside."""
    of_arm: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        if run.recipe:
            of_arm.setdefault(run.arm, run.settings)
    before = of_arm.get(base or "", next(iter(of_arm.values()), {}))
    return [
        {"arm": arm, "key": key, "base": old, "value": new}
        for arm, settings in of_arm.items()
        for key, (old, new) in changed_settings(before, settings).items()
    ]


def environments(runs: Sequence[RunFolder]) -> dict[str, dict[str, list[str]]]:
    """Return, for each key of the environment, its values and the runs that have each."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in flatten(run.environment).items():
            # The version of the file; and slots, which the run chose for its arm: neither describes the machine.
            if key not in ("format", "slots"):
                by_key.setdefault(key.replace("/", "."), {}).setdefault(str(value), []).append(run.name)
    return by_key


def uneven_pace(runs: Sequence[RunFolder]) -> float:
    """Return the largest ratio of time per FLOP between two runs of one arm; about 1 unless they shared a machine."""
    paces: dict[str, list[float]] = {}
    for run in runs:
        if (spent := run.cost).get("gpu_hours") and spent.get("flops"):
            paces.setdefault(run.arm, []).append(spent["gpu_hours"] / spent["flops"])
    return max((max(of_arm) / min(of_arm) for of_arm in paces.values()), default=1.0)


def incomparable(runs: Sequence[RunFolder]) -> dict[str, dict[str, frozenset[str]]]:
    """Return, for each evaluation set on which prompts differed between runs, the prompt hashes of each arm."""
    by_set: dict[str, dict[str, frozenset[str]]] = {}
    for run in runs:
        for name, hashes in run.prompts.items():
            arms = by_set.setdefault(name, {})
            arms[run.arm] = arms.get(run.arm, frozenset()) | hashes
    return {name: arms for name, arms in by_set.items() if len(frozenset().union(*arms.values())) > 1}
