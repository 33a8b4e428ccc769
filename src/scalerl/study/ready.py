"""Check that the arms of a plan can start here, before the first run has cost anything."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import StudyError
from scalerl.study.die_with_parent import dying_with_parent
from scalerl.study.failure_reason import last_error
from scalerl.study.folder import run_folder
from scalerl.study.plan import Arm, Plan

# What is read or imported when a run begins. All else has been checked with the recipe.
_READ = ("model.path", "task.", "tasks.", "evaluation.sets.")


def untried(plan: Plan, folder: Path) -> list[Arm]:
    """Return the arms that read or import something the base does not and have no run in this folder yet.

    The base is not tried: it is the first run and fails at once.
    """
    begun = {run.arm for run in plan.runs if (run_folder(folder, run) / store.RECIPE).is_file()}
    return [arm for arm in plan.arms if arm.skipped is None and arm.name not in begun and _brings_something(arm)]


def check_arms(arms: Sequence[Arm], command: Sequence[str]) -> None:
    """Set each of them up as its runs would, and train none."""
    faults = {arm.name: _fault(arm, command) for arm in arms}
    if problems := [f"the arm {name} cannot be run here: {fault}" for name, fault in faults.items() if fault]:
        raise StudyError(*problems)


def _brings_something(arm: Arm) -> bool:
    return any(
        new is not None and (key.startswith(_READ) or _is_import_path(new)) for key, (_, new) in arm.changes.items()
    )


def _is_import_path(value: Any) -> bool:
    return isinstance(value, str) and ":" in value


def _fault(arm: Arm, command: Sequence[str]) -> str:
    """Return why an arm cannot be set up; empty if it can."""
    with tempfile.TemporaryDirectory(prefix="scalerl-check-") as temporary:
        file = Path(temporary, "recipe.json")
        store.write_json(file, arm.recipe.model_dump(mode="json"))
        words = [*command, str(file), "--out", str(Path(temporary, "run")), "--check"]
        ended = subprocess.run(dying_with_parent(words), capture_output=True, text=True, check=False)
    return (last_error(ended.stderr or ended.stdout) or f"exit code {ended.returncode}") if ended.returncode else ""
