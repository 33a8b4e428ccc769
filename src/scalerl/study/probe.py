"""What a study will cost, from a few steps of its base."""

import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerl import store
from scalerl.config import Recipe
from scalerl.config.parts import BudgetSettings
from scalerl.errors import StudyError
from scalerl.study.die_with_parent import dying_with_parent
from scalerl.study.failure_reason import last_error
from scalerl.study.plan import PlannedRun

_STEPS = 6  # the first ones fill the pipeline and are not counted
_COUNTED = 4
_PROMPTS = 32  # to time an evaluation by


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a run of the base costs."""

    step_s: float
    step_gpu_hours: float
    step_flops: float
    sample_s: float
    """Seconds per evaluated completion."""
    start_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the runs of a study cost together."""

    hours: float
    """Wall clock, one run after the other, evaluations and start-up included."""
    gpu_hours: float
    """On the compute axis: training only."""
    steps: int
    longest_run_hours: float


def probe(recipe: Recipe, command: Sequence[str]) -> Pace:
    """Train the recipe for a few steps in a folder that is thrown away, with a small evaluation."""
    evaluation = recipe.evaluation.model_copy(
        update={"every": _STEPS, "num_prompts": min(recipe.evaluation.num_prompts, _PROMPTS)}
    )
    short = recipe.model_copy(update={"budget": BudgetSettings(steps=_STEPS), "evaluation": evaluation})
    with tempfile.TemporaryDirectory(prefix="scalerl-probe-") as temporary:
        file, folder = Path(temporary, "recipe.json"), Path(temporary, "run")
        store.write_json(file, short.model_dump(mode="json"))
        began = time.monotonic()
        ended = subprocess.run(
            dying_with_parent([*command, str(file), "--out", str(folder)]), capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        if ended.returncode != 0:
            why = last_error(ended.stderr or ended.stdout) or f"exit code {ended.returncode}"
            raise StudyError(f"the base cannot be run here: {why}")
        return pace_from(store.read_metrics(folder), store.read_evals(folder), seconds)


def pace_from(metrics: Sequence[store.Row], evals: Sequence[store.Row], seconds: float) -> Pace:
    """Return the pace of a run that took this long in all; evaluations before the last row are timed in it."""
    if not metrics:
        raise StudyError("the base ended before its first step, so there is nothing to time")
    last = metrics[-1]
    # A run whose data ended early has fewer rows than asked for.
    before = metrics[-1 - _COUNTED] if len(metrics) > _COUNTED else dict.fromkeys(last, 0.0)
    counted = min(len(metrics), _COUNTED)
    step_s, step_gpu_hours, step_flops = (
        (last[key] - before[key]) / counted for key in ("time/training_s", "gpu_hours", "flops")
    )
    timed = sum(row["num_samples"] for row in evals if row["step"] < last["step"])
    sample_s = last["time/evaluation_s"] / timed if timed else 0.0
    evaluated = sum(row["num_samples"] for row in evals)
    return Pace(
        step_s=step_s,
        step_gpu_hours=step_gpu_hours,
        step_flops=step_flops,
        sample_s=sample_s,
        start_up_s=max(seconds - last["time/training_s"] - sample_s * evaluated, 0.0),
    )


def cost(runs: Iterable[PlannedRun], base: Recipe, pace: Pace) -> Cost:
    """Return the cost of these runs at the base's pace; a completion is assumed to cost the same in every arm."""
    of_base = _completions(base)
    hours, gpu_hours, steps = [], 0.0, 0
    for run in runs:
        scale = _completions(run.recipe) / of_base
        run_steps = _steps(run, pace, scale)
        settings = run.recipe.evaluation
        num_sets = max(len(run.recipe.tasks), 1) + len(settings.sets)
        samples = settings.num_prompts * settings.samples_per_prompt * num_sets
        num_evaluations = 1 + -(-run_steps // settings.every)
        seconds = run_steps * pace.step_s * scale + num_evaluations * samples * pace.sample_s + pace.start_up_s
        hours.append(seconds / 3600)
        gpu_hours += run_steps * pace.step_gpu_hours * scale
        steps += run_steps
    return Cost(hours=sum(hours), gpu_hours=gpu_hours, steps=steps, longest_run_hours=max(hours, default=0.0))


def _completions(recipe: Recipe) -> int:
    return recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group


def _steps(run: PlannedRun, pace: Pace, scale: float) -> int:
    budget = run.recipe.budget
    ends = [budget.steps] if budget.steps is not None else []
    if budget.gpu_hours is not None:
        ends.append(round(budget.gpu_hours / (pace.step_gpu_hours * scale)))
    if budget.flops is not None:
        ends.append(round(budget.flops / (pace.step_flops * scale)))
    return max(min(ends), 1)
