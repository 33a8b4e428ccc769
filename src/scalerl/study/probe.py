"""Check that the arms of a study can start, and estimate its cost by training its base for a few steps."""

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scalerl import processes
from scalerl.errors import StudyError
from scalerl.recipe.parts import BudgetSettings
from scalerl.recipe.recipe import Recipe, replaced
from scalerl.runfolder import store
from scalerl.study.failure_reason import last_error
from scalerl.study.folder import is_done, last_row, run_folder
from scalerl.study.plan import Arm, PlannedRun, StudyPlan

_STEPS = 6  # the first steps fill the pipeline and are not timed
_COUNTED = 4
_PROMPTS = 32  # of the evaluation that is timed
# Settings whose values are read or imported when a run starts; all others were checked with the recipe.
_READ = ("model.path", "task.", "tasks.", "evaluation.sets.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The cost of a step and of an evaluation, measured on the base."""

    step_s: float
    step_gpu_hours: float
    step_flops: float
    sample_s: float
    """Seconds per evaluated completion."""
    start_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of all runs of a study."""

    hours: float = 0.0
    """Wall-clock time if runs follow each other, with evaluations and start-up."""
    gpu_hours: float = 0.0
    """Compute of training, without evaluations."""
    device_hours: float = 0.0
    """Hours for which the runs hold their devices, with evaluations and start-up."""
    steps: int = 0
    longest_run_hours: float = 0.0


@contextmanager
def _temporary_run(recipe: Recipe, command: Sequence[str], *options: str) -> Iterator[tuple[Path, str]]:
    """Run a recipe in a temporary folder; yield the folder and the reason if the command failed."""
    with tempfile.TemporaryDirectory(prefix="scalerl-probe-") as temporary:
        file = Path(temporary, "recipe.json")
        folder = Path(temporary, "run")
        store.write_json(file, recipe.model_dump(mode="json"))
        command_line = processes.dying_with_parent([*command, str(file), "--out", str(folder), *options])
        code, stdout, stderr = processes.run(command_line)
        fault = ""
        if code:
            printed = (stderr or stdout).decode(errors="replace")
            fault = last_error(printed) or f"exit code {code}"
        yield folder, fault


# Whether the arms can start -------------------------------------------------------------------------------------------


def arms_to_check(plan: StudyPlan, folder: Path) -> list[Arm]:
    """Return the arms that read or import something that the base does not, and that have no run in this folder yet.

    The base itself need not be checked: it is the first run, so it fails at once.
    """
    begun = {run.arm for run in plan.runs if (run_folder(folder, run) / store.RECIPE).is_file()}
    return [arm for arm in plan.arms if arm.skipped is None and arm.name not in begun and _brings_something(arm)]


def _brings_something(arm: Arm) -> bool:
    for key, (_, new) in arm.changes.items():
        is_read = new is not None and key.startswith(_READ)
        is_imported = isinstance(new, str) and ":" in new
        if is_read or is_imported:
            return True
    return False


def check_arms(arms: Sequence[Arm], command: Sequence[str]) -> None:
    """Set up each arm as its runs do, without training; raise StudyError if that fails."""
    problems = []
    for arm in arms:
        with _temporary_run(arm.recipe, command, "--check") as (_, fault):
            if fault:
                problems.append(f"the arm {arm.name} cannot be run here: {fault}")
    if problems:
        raise StudyError(*problems)


# What the runs cost ---------------------------------------------------------------------------------------------------


def probe(recipe: Recipe, command: Sequence[str]) -> Pace:
    """Measure the pace of a recipe: train it for a few steps in a temporary folder, with a small evaluation."""
    began = time.monotonic()
    with _temporary_run(_shortened(recipe), command) as (folder, fault):
        seconds = time.monotonic() - began
        if fault:
            raise StudyError(f"the base cannot be run here: {fault}")
        return pace_from(store.read_metrics(folder), store.read_evals(folder), seconds)


def _shortened(recipe: Recipe) -> Recipe:
    """Return the recipe with a few steps, and an evaluation of a few problems before and after them."""
    # One problem shows that a further set can be read and graded, and every set has that many.
    sets = {name: replaced(each, {"num_prompts": 1}) for name, each in recipe.evaluation.sets.items()}
    changes = {
        "budget": BudgetSettings(steps=_STEPS),
        "evaluation.every": _STEPS,
        "evaluation.num_prompts": min(recipe.evaluation.num_prompts, _PROMPTS),
        "evaluation.sets": sets,
    }
    return replaced(recipe, changes)


def pace_from(metrics: Sequence[store.Row], evals: Sequence[store.Row], seconds: float) -> Pace:
    """Return the pace of a run that took `seconds` in total.

    The time of evaluations in the last row of metrics is that of the evaluations before it.
    """
    if not metrics:
        raise StudyError("the base ended before its first step, so its pace is unknown")
    last = metrics[-1]
    # There are fewer rows if the data were exhausted.
    num_counted = min(len(metrics), _COUNTED)
    before = metrics[-1 - _COUNTED] if len(metrics) > _COUNTED else {}

    def per_step(column: str) -> float:
        return (last[column] - before.get(column, 0.0)) / num_counted

    num_timed = sum(row["num_samples"] for row in evals if row["step"] < last["step"])
    num_evaluated = sum(row["num_samples"] for row in evals)
    sample_s = last["time/evaluation_s"] / num_timed if num_timed else 0.0
    return Pace(
        step_s=per_step("time/training_s"),
        step_gpu_hours=per_step("gpu_hours"),
        step_flops=per_step("flops"),
        sample_s=sample_s,
        start_up_s=max(seconds - last["time/training_s"] - sample_s * num_evaluated, 0.0),
    )


def runs_left(plan: StudyPlan, folder: Path) -> list[PlannedRun]:
    return [run for run in plan.runs if not is_done(folder, run)]


def cost(plan: StudyPlan, folder: Path, pace: Pace) -> Cost:
    """Return the cost of the unfinished runs at the base's pace, as if completions cost the same in every arm."""
    hours = []
    gpu_hours = 0.0
    num_steps = 0
    for run in runs_left(plan, folder):
        scale = run.recipe.pipeline.batch / plan.base.recipe.pipeline.batch
        steps = _steps_left(run, run_folder(folder, run), pace, scale)
        evaluation_s = _samples_left(run.recipe, steps) * pace.sample_s
        seconds = steps * pace.step_s * scale + evaluation_s + pace.start_up_s
        hours.append(seconds / 3600)
        gpu_hours += steps * pace.step_gpu_hours * scale
        num_steps += steps
    num_devices = 3600 * pace.step_gpu_hours / pace.step_s
    return Cost(
        hours=sum(hours),
        gpu_hours=gpu_hours,
        device_hours=num_devices * sum(hours),
        steps=num_steps,
        longest_run_hours=max(hours, default=0.0),
    )


def _samples_left(recipe: Recipe, steps: int) -> int:
    """Return how many completions are evaluated during these steps, and before the first one."""
    evaluation = recipe.evaluation
    num = 0
    for name in recipe.eval_sets:
        num_evaluations = 1 + math.ceil(steps / evaluation.every_of(name))
        num += num_evaluations * evaluation.num_answers(name)
    return num


def _steps_left(run: PlannedRun, folder: Path, pace: Pace, scale: float) -> int:
    """Return the remaining steps until the first limit of the budget; all steps if the run has not started."""
    last = last_row(folder)
    per_step = {"steps": 1.0, "gpu_hours": pace.step_gpu_hours * scale, "flops": pace.step_flops * scale}
    left = []
    for key, limit in run.recipe.budget:
        if limit is not None:
            spent = last.get(store.BUDGET_COLUMNS[key], 0)
            left.append((limit - spent) / per_step[key])
    return max(round(min(left)), 1)
