"""What each setting acts on, and when: ACTS is the one table, and a test runs three steps with every setting changed.

A setting may be written although it has no effect, because a recipe is a place to try things. `train --check` and the
start of a run name every such setting that differs from its default.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.recipe import parts
from scalerl.recipe.keys import dotted
from scalerl.recipe.recipe import Recipe, body_dtype
from scalerl.recipe.suggest import show
from scalerl.recipe.tree import settings_of

Target = Literal["steps", "evaluations", "limits", "machine", "files", "end", "start", "sft"]
"""steps: what a step computes. limits: what happens when a limit is reached. machine: time, memory, processes and the
compute axis, up to rounding. start: what is derived when a run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """What some settings act on, and when."""

    keys: str
    """Keys of settings, or of tables with all their settings."""
    on: Target
    when: Callable[[Any], bool] | None = None
    """Whether they have an effect in a recipe; None for always. In TASK_ACTS it is called with the task."""
    otherwise: str = ""
    """Why they have none."""


def _trains_on_rewards(recipe: Recipe) -> bool:
    return recipe.loss.name != "none"


def _has_environment(recipe: Recipe) -> bool:
    return any(task.environment.name for task in recipe.task_tables.values())


def _baseline_acts(recipe: Recipe) -> bool:
    # With batch normalisation it has an effect: groups differ in size if completions have no verdict.
    by_prompt = isinstance(recipe.advantage.normalisation, parts.PromptNormalisationSettings)
    return not by_prompt or isinstance(recipe.advantage.baseline, parts.CustomSettings)


def _scale_of_rewards_acts(recipe: Recipe) -> bool:
    divides = recipe.advantage.normalisation.name in ("batch", "prompt")
    is_relative = recipe.advantage.credit.name in ("completion", "states")
    adds_nothing = recipe.length.name in ("interruption", "none")
    return _any_task_differs(recipe, "advantage") or not (divides and is_relative and adds_nothing)


def _zero_variance_acts(recipe: Recipe) -> bool:
    others = (recipe.reference, recipe.imitation.name != "none", recipe.entropy.name != "none")
    is_alone = recipe.weights.name == "constant" and recipe.advantage.normalisation.name in ("prompt", "none")
    return any(others) or recipe.filter.refill > 0 or recipe.advantage.credit.name != "completion" or not is_alone


def _any_task_differs(recipe: Recipe, table: str) -> bool:
    return any(key.partition(".")[0] == table for task in recipe.tasks.values() for key in task.algorithm)


def _has_processes(recipe: Recipe) -> bool:
    return recipe.rollout.generators > 0 or recipe.rollout.engine != "torch"


# fmt: off
ACTS: tuple[Acts, ...] = (
    Acts(keys="seed model task tasks curriculum length loss weights imitation kl.coefficient", on="steps"),
    Acts(keys="model.trust_remote_code", on="machine"),
    Acts(keys="model.lora.alpha model.lora.targets model.lora.bits", on="steps",
         when=lambda recipe: recipe.model.lora.rank > 0,
         otherwise="model.lora.rank is 0, so there are no adapters"),
    Acts(keys="correction", on="steps", when=_trains_on_rewards,
         otherwise='loss is "none", so no ratio is in the loss'),
    Acts(keys="entropy", on="steps", when=_trains_on_rewards,
         otherwise='loss is "none", so no advantage is in the loss'),
    Acts(keys="advantage", on="steps", when=_trains_on_rewards,
         otherwise='loss is "none", so no advantage is in the loss'),
    Acts(keys="advantage.baseline", on="steps",
         when=lambda recipe: recipe.advantage.credit.name != "gae",
         otherwise='advantage.credit is "gae", so the critic is the baseline'),
    Acts(keys="advantage.baseline", on="steps", when=_baseline_acts,
         otherwise="leave_one_out scales a group's advantages by G / (G - 1), and division by the group's standard "
                   "deviation undoes that"),
    Acts(keys="advantage.credit", on="steps",
         when=lambda recipe: recipe.advantage.credit.name != "states" or _has_environment(recipe),
         otherwise="without an environment, no turns begin in the same state"),
    Acts(keys="critic.lr", on="steps", when=_trains_on_rewards,
         otherwise='loss is "none", so no advantage is in the loss'),
    Acts(keys="critic", on="steps",
         when=lambda recipe: recipe.has_critic,
         otherwise='only advantage.credit = "gae" has a critic'),
    Acts(keys="kl.estimator kl.reference", on="steps",
         when=lambda recipe: recipe.reference is not None,
         otherwise="kl.coefficient is 0, so there is no KL term"),
    Acts(keys="kl.reference.params kl.reference.num_parallel kl.reference.api_key", on="machine"),
    Acts(keys="reward.correct reward.wrong", on="steps", when=_trains_on_rewards,
         otherwise='loss is "none", so no reward is in the loss'),
    Acts(keys="reward.correct reward.wrong", on="steps", when=_scale_of_rewards_acts,
         otherwise="advantages are divided by their standard deviation, which undoes any scale of the rewards"),
    Acts(keys="reward.threshold grading", on="limits"),
    Acts(keys="filter", on="steps"),
    Acts(keys="filter.zero_variance", on="steps", when=_zero_variance_acts,
         otherwise="groups of equal verdicts have advantages of 0, and neither the average nor the normalisation "
                   "counts them"),
    Acts(keys="pipeline", on="steps"),
    Acts(keys="pipeline.drain", on="steps",
         when=lambda recipe: recipe.pipeline.max_lag > 0,
         otherwise="pipeline.max_lag is 0, so every step waits for all groups"),
    Acts(keys="pipeline.waits_for", on="steps",
         when=lambda recipe: recipe.pipeline.max_lag > 0 and not recipe.pipeline.drain,
         otherwise="every step waits for all groups that are sampled"),
    Acts(keys="optimizer", on="steps"),
    Acts(keys="optimizer.on_host", on="machine"),
    Acts(keys="optimizer.decay_steps optimizer.final_lr_frac", on="steps",
         when=lambda recipe: recipe.optimizer.schedule != "constant",
         otherwise='optimizer.schedule is "constant"'),
    Acts(keys="learner cluster", on="machine"),
    Acts(keys="learner.silent_s learner.start_s", on="machine",
         when=lambda recipe: recipe.learner.sharding != "none" or bool(recipe.cluster.address),
         otherwise='learner.sharding is "none", so the learner has no other processes'),
    Acts(keys="rollout.slots rollout.temperature", on="steps"),
    Acts(keys="rollout.engine rollout.generators rollout.max_generators", on="machine"),
    Acts(keys="rollout.context rollout.max_prompt_tokens", on="limits"),
    Acts(keys="rollout.gpus_per_generator rollout.max_replacements rollout.silent_s", on="machine", when=_has_processes,
         otherwise="rollout.generators is 0, so the engine has no other processes"),
    Acts(keys="rollout.vllm", on="machine",
         when=lambda recipe: recipe.rollout.engine == "vllm",
         otherwise='rollout.engine is not "vllm"'),
    # Of a file, the problems that are withheld for evaluations are not trained on.
    Acts(keys="evaluation", on="evaluations"),
    Acts(keys="evaluation.top_p", on="evaluations",
         when=lambda recipe: any(sampling.temperature for _, sampling in recipe.evaluation.sampling_of_sets()),
         otherwise="evaluation.temperature is 0, so every token is the most likely one"),
    Acts(keys="budget", on="end"),
    Acts(keys="checkpoint sinks description", on="files"),
    Acts(keys="derived", on="start"),
    Acts(keys="sft", on="sft"),
)
"""A setting acts on what the last row of its longest key says, and has an effect if all rows of its keys say so."""

TASK_ACTS: tuple[Acts, ...] = (
    Acts(keys="environment", on="steps",
         when=lambda task: bool(task.environment.name),
         otherwise="environment.name is empty, so there is no environment"),
    Acts(keys="environment.step_s environment.step_cpu_s environment.step_memory_mb", on="limits",
         when=lambda task: not task.environment.in_process,
         otherwise="environment.in_process is true, so steps have no limits"),
)
"""The same for the settings of a task, by their keys in its table."""
# fmt: on


def rows_of(key: str) -> list[Acts]:
    """Return the rows of ACTS on a setting, the one with the longest key last."""
    found = [(len(each), row) for row in ACTS for each in row.keys.split() if is_at(key, each)]
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def is_at(key: str, table: str) -> bool:
    """Return whether a key is this one, or in the table that it names."""
    return key == table or key.startswith(f"{table}.")


def inert(recipe: Recipe, *, gpu: bool) -> dict[str, str]:
    """Return the settings, and tables of settings, without an effect in this recipe on this device, with the reason."""
    reasons: dict[str, str] = {}
    if body_dtype(recipe.model, gpu=gpu) == "float32":
        reasons["model.fp32_head"] = "the body is float32, so the head is always float32, too"
    reasons |= _reasons(ACTS, recipe)
    for table, task in {**recipe.task_tables, **recipe.eval_tables}.items():
        reasons |= {dotted(table, key): reason for key, reason in _reasons(TASK_ACTS, task).items()}
    return reasons


def without_effect(recipe: Recipe, *, gpu: bool) -> Iterator[str]:
    """Yield a sentence on each setting that differs from its default and has no effect."""
    reasons = inert(recipe, gpu=gpu)
    for key, value in changed(recipe).items():
        tables = [table for table in reasons if is_at(key, table)]
        if tables:
            yield f"{key} = {show(value)} has no effect: {reasons[max(tables, key=len)]}"


def changed(recipe: Recipe) -> Mapping[str, Any]:
    """Return the settings that differ from their defaults; those without a default, such as a path, always do."""
    return {
        key: setting.value for key, setting in settings_of(recipe).items() if setting.value != _default_at(recipe, key)
    }


def _default_at(recipe: Recipe, key: str) -> Any:
    """Return the default of a setting in its table; of the name of a choice, the default choice."""
    *tables, name = key.split(".")
    above, owner = recipe, recipe
    for table in tables:
        above, owner = owner, owner[table] if isinstance(owner, Mapping) else getattr(owner, table)
    if name == "name" and tables and not isinstance(above, Mapping):
        default = type(above).model_fields[tables[-1]].get_default(call_default_factory=True)
        return getattr(default, "name", None)
    field = type(owner).model_fields.get(name)
    return None if field is None else field.get_default(call_default_factory=True)


def _reasons(rows: tuple[Acts, ...], part: Any) -> dict[str, str]:
    silent = [row for row in rows if row.when is not None and not row.when(part)]
    return {key: row.otherwise for row in reversed(silent) for key in row.keys.split()}
