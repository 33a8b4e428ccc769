"""The study folder: its layout, its lock, and what a resumed study may change.

DIR/  study.json  the resolved plan      recipes/ARM-seedN.json  what each run is started with
      runs/ARM-seedN/  run folders       logs/ARM-seedN.log      what each run printed
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isnan
from pathlib import Path
from typing import Any

from scalerl.errors import BusyError, RecipeError, RunFolderError, StudyError
from scalerl.forecast.report.metrics import number
from scalerl.recipe.load import load_written
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.suggest import show
from scalerl.runfolder import store
from scalerl.runfolder.atomic_files import locked, write_errors
from scalerl.runfolder.json_text import parse_json
from scalerl.study.plan import Arm, PlannedRun, StudyPlan, changes_of

_RUNS = "runs"
_RECIPES = "recipes"
_LOGS = "logs"
_LOCK = ".lock"
# The runs of a study that was just killed hold its lock until they end, which may take this long.
_LOCK_WAIT_S = 5.0
_TAIL_BYTES = 1 << 16  # enough for the last row of metrics.jsonl


def run_folder(folder: Path, run: PlannedRun) -> Path:
    return folder / _RUNS / run.name


def recipe_file(folder: Path, run: PlannedRun) -> Path:
    return folder / _RECIPES / f"{run.name}.json"


def log_file(folder: Path, run: PlannedRun) -> Path:
    return folder / _LOGS / f"{run.name}.log"


def _read_or_none(read: Callable[[Path], Any], folder: Path) -> Any:
    """Return read(folder); None if the file is missing or cannot be read."""
    try:
        return read(folder)
    except RunFolderError:
        return None


def run_status(folder: Path) -> Mapping[str, Any]:
    """Return the run's status.json; empty if there is none."""
    return _read_or_none(store.read_status, folder) or {}


def last_row(folder: Path) -> store.Row:
    """Return the last complete row of metrics.jsonl, read from the end of the file; empty if there is none."""
    path = folder / store.METRICS
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        for line in reversed(file.read().split(b"\n")):
            with suppress(ValueError):
                row = parse_json(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    return row
    return {}


def last_reward(folder: Path) -> float | None:
    """Return the reward of the latest evaluation on the first evaluation set; None if there is none."""
    rows = _read_or_none(store.read_evals, folder) or []
    for row in reversed(rows):
        reward = number(row.get("reward"))
        if row.get("set") == rows[0].get("set") and not isnan(reward):
            return reward
    return None


def is_done(folder: Path, run: PlannedRun) -> bool:
    """Return whether a run has reached the end of its planned budget, not only that of an earlier, smaller one."""
    place = run_folder(folder, run)
    if run_status(place).get("status") != "done":
        return False
    written = _read_or_none(store.read_recipe, place) or {}
    earlier = written.get("budget") or {}
    for key, limit in run.recipe.budget:
        before = earlier.get(key)
        if before is not None and limit is not None and limit > before:
            return False
    return True


@contextmanager
def open_study(plan: StudyPlan, folder: Path, *, jobs: int, shares_device: bool, resume: bool) -> Iterator[int]:
    """Create or reopen the folder of a study, write the plan and hold the lock.

    Yield the descriptor of the lock, for runs to inherit: the lock is held until the last of them has ended.
    """
    check_folder(folder, resume)
    with write_errors(folder):
        for name in (_RUNS, _RECIPES, _LOGS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    busy = BusyError(f"a study is already running in {folder}: wait for it, stop it, or choose another --out")
    with locked(folder / _LOCK, busy, wait_s=_LOCK_WAIT_S) as lock:
        earlier_plan = read_study(folder) if resume else None
        if earlier_plan is not None:
            _check_same(earlier_plan, plan, folder)
        for run in plan.runs:
            store.write_json(recipe_file(folder, run), run.recipe.model_dump(mode="json"))
        # The folder keeps rows measured while runs shared a device, so it stays marked.
        shared = shares_device or bool(earlier_plan and earlier_plan.get("shared_device"))
        store.write_json(folder / store.STUDY, plan_record(plan, jobs=jobs, shared_device=shared))
        yield lock


def read_study(folder: Path) -> dict[str, Any] | None:
    """Return the plan that was written; None if there is none."""
    try:
        written = store.read_study(folder)
        is_plan = written is None or all("arm" in row and "folder" in row for row in written["runs"])
    except (OSError, ValueError, TypeError, LookupError):
        is_plan = False
        written = None
    if not is_plan:
        raise StudyError(
            f"{folder / store.STUDY} is not a readable plan of a study: restore it, or choose another --out"
        )
    return written


def plan_record(plan: StudyPlan, *, jobs: int, shared_device: bool) -> dict[str, Any]:
    """Return the content of study.json; paths are relative to its folder."""
    study = plan.study
    return {
        "name": plan.name,
        "description": study.description,
        "base_recipe": study.base,
        "base": plan.base.name,
        "base_added": plan.adds_base,
        "seeds": study.seeds,
        "compute": study.compute,
        "fit": study.fit.model_dump(),
        "holdout": None if study.holdout is None else study.holdout.model_dump(by_alias=True),
        "jobs": jobs,
        "shared_device": shared_device,
        "arms": [_arm_record(arm) for arm in plan.arms],
        "skipped": [{"arm": arm.name, "skipped": arm.skipped} for arm in plan.arms if arm.skipped is not None],
        "runs": [{"arm": run.arm, "seed": run.seed, "folder": f"{_RUNS}/{run.name}"} for run in plan.runs],
    }


def _arm_record(arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "changes": {key: {"base": old, "arm": new} for key, (old, new) in arm.changes.items()},
        "budget": arm.recipe.budget.model_dump(exclude_none=True),
    }


def check_folder(folder: Path, resume: bool) -> None:
    """Raise StudyError if a new study would overwrite something, or if there is no study to resume."""
    holds_study = (folder / store.STUDY).is_file()
    if resume and not holds_study:
        raise StudyError(
            f"{folder} contains no study to resume: it has no {store.STUDY}; to start one there, leave out --resume"
        )
    if holds_study and not resume:
        raise StudyError(f"{folder} already contains a study: continue it with --resume, or choose another --out")
    store.check_place(folder)
    if not resume and folder.exists() and not _is_bare(folder):
        raise StudyError(f"{folder} already exists and is not empty: choose another --out")


def _is_bare(folder: Path) -> bool:
    """Return whether a folder is empty, or holds only what a study creates before it writes its plan."""
    ours = {_LOCK, _RUNS, _RECIPES, _LOGS}
    return folder.is_dir() and {entry.name for entry in folder.iterdir()} <= ours and not any(folder.glob(f"{_RUNS}/*"))


def _check_same(before: Mapping[str, Any], plan: StudyPlan, folder: Path) -> None:
    """Raise StudyError if a resumed study changes its plan, other than by adding arms or seeds or raising budgets."""
    problems: list[str] = []
    for row in before["runs"]:
        problems += _changes_of_run(row, plan, folder)
    if problems:
        raise StudyError(
            *dict.fromkeys(problems),
            "undo this change to resume (you may add arms and seeds, and raise budgets), or start another study with "
            "another --out",
        )


def _changes_of_run(row: Mapping[str, Any], plan: StudyPlan, folder: Path) -> Iterator[str]:
    """Yield what a resumed study may not change about a run of its earlier plan."""
    name = Path(row["folder"]).name
    arm = row["arm"]
    run = next((run for run in plan.runs if run.name == name), None)
    if run is None:
        is_arm_left = any(arm == each.name for each in plan.arms)
        what = f"the run {name}" if is_arm_left else f"the arm {arm}"
        yield f"{what} of {folder / store.STUDY} is no longer in the study"
        return
    file = folder / _RECIPES / f"{name}.json"
    if not file.is_file():
        return
    for key, (was, now) in changes_of(_written(file), run.recipe).items():
        is_raised = key.startswith("budget.") and was is not None and now is not None and now > was
        if not is_raised:
            yield f"{key} of the arm {arm} was {show(was)} and is {show(now)} now"
    place = folder / row["folder"]
    if (place / store.RECIPE).is_file() and run_status(place).get("status") != "done":
        # The run will be continued, so its own recipe must be readable.
        _written(place / store.RECIPE)


def _written(file: Path) -> Recipe:
    """Read the recipe that a study or a run wrote when it started."""
    try:
        return load_written(file)
    except RecipeError as error:
        raise StudyError(
            f"{error}, or it is damaged: resume with that version, restore the file, or start another study "
            "with another --out"
        ) from None
