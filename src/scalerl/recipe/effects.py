"""Which settings have no effect in a recipe, and why.

A setting may be written although it has no effect, because a recipe is a place to try things. `train --check` and the
start of a run name every such setting that differs from its default. A test changes every setting and runs three steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from scalerl.recipe import parts
from scalerl.recipe.keys import dotted, is_at
from scalerl.recipe.recipe import Recipe, body_dtype
from scalerl.recipe.suggest import show
from scalerl.recipe.task_settings import DEMONSTRATION_SETTINGS
from scalerl.recipe.tree import settings_of


class Condition(NamedTuple):
    """When some settings have an effect."""

    keys: str
    """Keys of settings, or of tables with all their settings."""
    holds: Callable[[Any], bool]
    """Whether they have an effect in a recipe; for TASK_CONDITIONS, with a task."""
    otherwise: str
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
    return not (divides and is_relative and adds_nothing)


def _zero_variance_acts(recipe: Recipe) -> bool:
    others = (recipe.reference, recipe.imitation.name != "none", recipe.entropy.name != "none")
    is_alone = recipe.weights.name == "constant" and recipe.advantage.normalisation.name in ("prompt", "none")
    return any(others) or recipe.filter.refill > 0 or recipe.advantage.credit.name != "completion" or not is_alone


def _has_processes(recipe: Recipe) -> bool:
    return recipe.rollout.generators > 0 or recipe.rollout.engine != "torch"


# fmt: off
CONDITIONS: tuple[Condition, ...] = (
    Condition("model.lora.alpha model.lora.targets model.lora.bits",
              lambda recipe: recipe.model.lora.rank > 0,
              "model.lora.rank is 0, so there are no adapters"),
    Condition("correction", _trains_on_rewards,
              'loss is "none", so no ratio is in the loss'),
    Condition("entropy advantage critic.lr", _trains_on_rewards,
              'loss is "none", so no advantage is in the loss'),
    Condition("advantage.baseline",
              lambda recipe: recipe.advantage.credit.name != "gae",
              'advantage.credit is "gae", so the critic is the baseline'),
    Condition("advantage.baseline", _baseline_acts,
              "leave_one_out scales a group's advantages by G / (G - 1), and division by the group's standard "
              "deviation undoes that"),
    Condition("advantage.credit",
              lambda recipe: recipe.advantage.credit.name != "states" or _has_environment(recipe),
              "without an environment, no turns begin in the same state"),
    Condition("critic",
              lambda recipe: recipe.has_critic,
              'only advantage.credit = "gae" has a critic'),
    Condition("kl.estimator kl.reference",
              lambda recipe: recipe.reference is not None,
              "kl.coefficient is 0, so there is no KL term"),
    Condition("reward.correct reward.wrong", _trains_on_rewards,
              'loss is "none", so no reward is in the loss'),
    Condition("reward.correct reward.wrong", _scale_of_rewards_acts,
              "advantages are divided by their standard deviation, which undoes any scale of the rewards"),
    Condition("filter.zero_variance", _zero_variance_acts,
              "groups of equal verdicts have advantages of 0, and neither the average nor the normalisation "
              "counts them"),
    Condition("pipeline.drain",
              lambda recipe: recipe.pipeline.max_lag > 0,
              "pipeline.max_lag is 0, so every step waits for all groups"),
    Condition("pipeline.waits_for",
              lambda recipe: recipe.pipeline.max_lag > 0 and not recipe.pipeline.drain,
              "every step waits for all groups that are sampled"),
    Condition("optimizer.decay_steps optimizer.final_lr_frac",
              lambda recipe: recipe.optimizer.schedule != "constant",
              'optimizer.schedule is "constant"'),
    Condition("learner.silent_s learner.start_s",
              lambda recipe: recipe.learner.sharding != "none" or bool(recipe.cluster.address),
              'learner.sharding is "none", so the learner has no other processes'),
    Condition("rollout.gpus_per_generator rollout.max_replacements rollout.silent_s", _has_processes,
              "rollout.generators is 0, so the engine has no other processes"),
    Condition("rollout.vllm",
              lambda recipe: recipe.rollout.engine == "vllm",
              'rollout.engine is not "vllm"'),
    Condition("evaluation.top_p",
              lambda recipe: any(sampling.temperature for _, sampling in recipe.evaluation.sampling_of_sets()),
              "evaluation.temperature is 0, so every token is the most likely one"),
)
"""A setting has an effect if all conditions on it hold."""

TASK_CONDITIONS: tuple[Condition, ...] = (
    Condition("environment",
              lambda task: bool(task.environment.name),
              "environment.name is empty, so there is no environment"),
    Condition("environment.step_s environment.step_cpu_s environment.step_memory_mb",
              lambda task: not task.environment.in_process,
              "environment.in_process is true, so steps have no limits"),
)
"""The same for the settings of a task, by their keys in its table."""
# fmt: on


def inert(recipe: Recipe, *, gpu: bool) -> dict[str, str]:
    """Return the settings, and tables of settings, without an effect in this recipe on this device, with the reason."""
    reasons: dict[str, str] = {}
    if body_dtype(recipe.model, gpu=gpu) == "float32":
        reasons["model.fp32_head"] = "the body is float32, so the head is always float32, too"
    reasons |= _reasons(CONDITIONS, recipe)
    for table, task in {**recipe.task_tables, **recipe.eval_tables}.items():
        reasons |= {dotted(table, key): reason for key, reason in _reasons(TASK_CONDITIONS, task).items()}
    return reasons


def without_effect(recipe: Recipe, *, gpu: bool) -> Iterator[str]:
    """Yield a sentence on each setting that differs from its default and has no effect."""
    reasons = inert(recipe, gpu=gpu)
    for key, value in changed(recipe).items():
        tables = [table for table in reasons if is_at(key, table)]
        if tables:
            yield f"{key} = {show(value)} has no effect: {reasons[max(tables, key=len)]}"


def only_for_sft(recipe: Recipe, keys: Iterable[str]) -> Iterator[str]:
    """Yield a sentence on each of these settings that training does not read, because only `scalerl sft` does.

    A recipe may have them: it also says how its base was made. Who gives one to a command expects it to act.
    """
    read_by_sft = ["sft"]
    for table, task in {**recipe.task_tables, **recipe.eval_tables}.items():
        read_by_sft += [dotted(table, name) for name in DEMONSTRATION_SETTINGS.get(task.name or "", ())]
    for key in keys:
        if any(is_at(key, each) for each in read_by_sft):
            yield f"{key} has no effect on training: only scalerl sft reads it"


def changed(recipe: Recipe) -> Mapping[str, Any]:
    """Return the settings that differ from their defaults; those without a default, such as a path, always do."""
    return {
        key: setting.value for key, setting in settings_of(recipe).items() if setting.value != _default_at(recipe, key)
    }


def _default_at(recipe: Recipe, key: str) -> Any:
    """Return the default of a setting in its table; of the name of a choice, the default choice."""
    *tables, name = key.split(".")
    above = recipe
    owner = recipe
    for table in tables:
        above = owner
        owner = owner[table] if isinstance(owner, Mapping) else getattr(owner, table)
    if name == "name" and tables and not isinstance(above, Mapping):
        default = type(above).model_fields[tables[-1]].get_default(call_default_factory=True)
        return getattr(default, "name", None)
    field = type(owner).model_fields.get(name)
    return None if field is None else field.get_default(call_default_factory=True)


def _reasons(conditions: Iterable[Condition], part: Any) -> dict[str, str]:
    """Return the first reason for each key whose condition does not hold."""
    reasons: dict[str, str] = {}
    for condition in conditions:
        if not condition.holds(part):
            for key in condition.keys.split():
                reasons.setdefault(key, condition.otherwise)
    return reasons
