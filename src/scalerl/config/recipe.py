"""The recipe: all settings of one run, and the combinations that cannot work."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from scalerl.config import parts
from scalerl.config.keys import leaves
from scalerl.config.parts import Settings


class Recipe(Settings):
    """All settings of one run."""

    description: str = ""
    """One line on what this recipe is."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything random: the order of problems, the noise of sampling, the lengths."""
    model: parts.ModelSettings = parts.ModelSettings()
    """The model that is trained."""
    task: parts.TaskSettings = parts.TaskSettings()
    """The problems that are trained on."""
    tasks: dict[str, parts.MixedTaskSettings] = Field(default_factory=dict)
    """Several tasks instead of one, mixed in the ratio of their weights: [tasks.NAME]."""
    curriculum: parts.Curriculum = parts.NoPositiveResamplingSettings()
    """Which problems return in later epochs."""
    length: parts.Length = parts.InterruptionSettings()
    """How the length of completions is controlled."""
    loss: parts.Loss = parts.CispoSettings()
    """The loss of a token."""
    weights: parts.Weights = parts.PromptAverageSettings()
    """How token losses are averaged: equal weight for each prompt, completion or token, or a constant denominator."""
    advantage: parts.AdvantageSettings = parts.AdvantageSettings()
    """How rewards become advantages."""
    reward: parts.RewardSettings = parts.RewardSettings()
    """The reward of a correct and of a wrong completion."""
    grading: parts.GradingSettings = parts.GradingSettings()
    """Limits for graders in child processes."""
    filter: parts.FilterSettings = parts.FilterSettings()
    """Which groups and completions are left out of a batch."""
    pipeline: parts.PipelineSettings = parts.PipelineSettings()
    """How generation and training interleave; three settings instead of a mode."""
    optimizer: parts.OptimizerSettings = parts.OptimizerSettings()
    """Settings of AdamW."""
    learner: parts.LearnerSettings = parts.LearnerSettings()
    """How a step is computed."""
    rollout: parts.RolloutSettings = parts.RolloutSettings()
    """How completions are sampled."""
    cluster: parts.ClusterSettings = parts.ClusterSettings()
    """Where generators run."""
    evaluation: parts.EvaluationSettings = parts.EvaluationSettings()
    """How the run is measured."""
    budget: parts.BudgetSettings = parts.BudgetSettings()
    """When the run ends."""
    checkpoint: parts.CheckpointSettings = parts.CheckpointSettings()
    """How often the run is saved."""
    sft: parts.SftSettings = parts.SftSettings()
    """How `scalerl sft` makes a base model from the task's demonstrations; not used by training."""
    sinks: Annotated[tuple[parts.SinkName, ...], Field(strict=False)] = ()
    """Services that also receive the rows of metrics.jsonl and evals.jsonl."""
    derived: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Settings that follow from the model and the problems and are filled in when a run starts (`train --check` shows
    them); one that is set by hand leaves the list."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if found := list(conflicts(self)):
            text = "; ".join(sentence for _, sentence in found)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": found})
        return self

    @property
    def task_tables(self) -> Mapping[str, parts.TaskSettings]:
        """The tasks that are trained on, by the key of their table."""
        several = {f"tasks.{name}": task for name, task in self.tasks.items()}
        return several or {"task": self.task}

    @property
    def eval_tables(self) -> Mapping[str, parts.EvalSetSettings]:
        """The further evaluation sets, by the key of their table."""
        return {f"evaluation.sets.{name}": task for name, task in self.evaluation.sets.items()}


Table = TypeVar("Table", bound=Settings)
Conflict = tuple[tuple[str, ...], str]
"""Settings that cannot work together, or tables of them, and a sentence that says how to fix it."""


def conflicts(r: Recipe) -> Iterator[Conflict]:
    """Yield each combination that cannot work."""
    yield from _pipeline_conflicts(r)
    yield from _device_conflicts(r)
    for table, task in {**r.task_tables, **r.eval_tables}.items():
        yield from _task_conflicts(table, task)
    yield from _mixture_conflicts(r)
    yield from _evaluation_conflicts(r)
    if r.reward.correct <= r.reward.wrong:
        correct, wrong = f"{r.reward.correct:g}", f"{r.reward.wrong:g}"
        yield (
            ("reward.correct", "reward.wrong"),
            f"reward.correct is {correct} and reward.wrong is {wrong}: a correct completion must be worth more",
        )
    if r.grading.cpu_limit_s > r.grading.timeout_s:
        yield (
            ("grading.cpu_limit_s", "grading.timeout_s"),
            f"grading.cpu_limit_s is {r.grading.cpu_limit_s:g}, above grading.timeout_s = {r.grading.timeout_s:g}, "
            f"when the answer is given up anyway: raise grading.timeout_s or lower grading.cpu_limit_s",
        )
    if r.budget.steps is None and r.budget.gpu_hours is None and r.budget.flops is None:
        yield ("budget",), "budget is not set: give at least one of budget.steps, budget.gpu_hours, budget.flops"
    if r.optimizer.schedule != "constant" and r.optimizer.decay_steps is None and r.budget.steps is None:
        yield (
            ("optimizer.schedule", "optimizer.decay_steps", "budget.steps"),
            f'optimizer.schedule is "{r.optimizer.schedule}", but the run has no number of steps over which the '
            f"learning rate could fall: set optimizer.decay_steps, or budget.steps",
        )
    if r.sft.epochs is not None and r.sft.steps is not None:
        yield (
            ("sft.epochs", "sft.steps"),
            f"sft.epochs is {r.sft.epochs:g} and sft.steps is {r.sft.steps}: set one of the two",
        )


def _pipeline_conflicts(r: Recipe) -> Iterator[Conflict]:
    pipeline, length, rollout = r.pipeline, r.length, r.rollout
    lag, every = pipeline.max_lag, pipeline.push_every
    if not pipeline.drain and every > 1:
        yield (
            ("pipeline",),
            f"pipeline.push_every is {every} with pipeline.drain = false: set pipeline.push_every = 1 "
            f"(PipelineRL-{lag}), or pipeline.drain = true and pipeline.max_lag = {every - 1} (PPO-off-policy-{every})",
        )
    if pipeline.drain and lag != every - 1:
        yield (
            ("pipeline",),
            f"pipeline.max_lag is {lag}, but with pipeline.drain = true and pipeline.push_every = {every} the lag is "
            f"always up to {every - 1}: set pipeline.max_lag = {every - 1}, or pipeline.push_every = {lag + 1}, or "
            f"pipeline.drain = false (and pipeline.push_every = 1) for PipelineRL-{lag}",
        )
    if pipeline.drain and pipeline.waits_for == "generators":
        yield (
            ("pipeline",),
            'pipeline.waits_for is "generators" with pipeline.drain = true, which waits for every group: set '
            'pipeline.waits_for = "groups", or pipeline.drain = false',
        )
    if isinstance(length, parts.InterruptionSettings) and length.thinking_min > length.thinking_max:
        yield (
            ("length",),
            f"length.thinking_min is {length.thinking_min}, above length.thinking_max = {length.thinking_max}: the "
            f"place is drawn between the two",
        )
    if isinstance(length, parts.PenaltySettings) and length.cache > length.max_length:
        yield (
            ("length",),
            f"length.cache is {length.cache}, above length.max_length = {length.max_length}: even an empty answer "
            f"would be penalised",
        )
    fields = length_settings(r)
    needed = rollout.max_prompt_tokens + sum(getattr(length, name.partition(".")[2]) for name in fields)
    if fields and needed > rollout.context and "rollout.context" not in r.derived:
        yield (
            ("rollout.context", "rollout.max_prompt_tokens", *fields),
            f"rollout.context is {rollout.context}, but rollout.max_prompt_tokens + {' + '.join(fields)} is {needed}: "
            f"set rollout.context = {needed} or shorten the others",
        )


def _device_conflicts(r: Recipe) -> Iterator[Conflict]:
    learner, rollout, address = r.learner, r.rollout, r.cluster.address
    ranks, sharding, size, context = learner.ranks, learner.sharding, learner.shard_size, learner.context_ranks
    if sharding == "none" and ranks > 1:
        yield (
            ("learner.ranks", "learner.sharding"),
            f'learner.ranks is {ranks}, but learner.sharding is "none": set it to "replicate" if a device can hold '
            f'weights and optimiser, else to "full"',
        )
    if sharding == "hybrid" and not (size is not None and ranks % size == 0 and size < ranks):
        yield (
            ("learner.sharding", "learner.shard_size", "learner.ranks"),
            f'learner.sharding is "hybrid" and learner.shard_size is {size or "not set"}: set it to a divisor of '
            f'learner.ranks = {ranks} below it, or learner.sharding to "full"',
        )
    if sharding != "hybrid" and size is not None:
        yield (
            ("learner.shard_size", "learner.sharding"),
            f'learner.shard_size is {size}, but learner.sharding is "{sharding}": it is only for "hybrid"',
        )
    if context > 1 and sharding != "full":
        yield (
            ("learner.context_ranks", "learner.sharding"),
            f'learner.context_ranks is {context}, but learner.sharding is "{sharding}": it is only for "full"',
        )
    if sharding == "full" and ranks % context:
        yield (
            ("learner.context_ranks", "learner.ranks"),
            f"learner.context_ranks is {context}, which does not divide learner.ranks = {ranks}: set it to a divisor, "
            f"or to 1",
        )
    if sharding in ("full", "hybrid") and learner.start_kl:
        yield (
            ("learner.start_kl", "learner.sharding"),
            f'learner.start_kl is {learner.start_kl:g} with learner.sharding = "{sharding}", which would need a second '
            f'sharded model: set learner.start_kl = 0 or learner.sharding = "replicate"',
        )
    if r.model.router_replay and context > 1:
        yield (
            ("model.router_replay", "learner.context_ranks"),
            f"model.router_replay with learner.context_ranks = {context}: experts of a divided pass are not replayed; "
            f"set learner.context_ranks = 1",
        )
    if r.model.router_replay and r.task.environment.name:
        yield (
            ("model.router_replay", "task.environment"),
            "model.router_replay with task.environment: the experts of a conversation of several turns are not "
            "recorded; set model.router_replay = false",
        )
    if address and not rollout.generators:
        yield (
            ("cluster.address", "rollout.generators"),
            f'cluster.address is "{address}", but rollout.generators is 0, so nothing would sample there: set '
            f"rollout.generators, or leave cluster.address out",
        )
    if rollout.engine == "torch" and (rollout.gpus_per_generator or 0) > 1:
        yield (
            ("rollout.gpus_per_generator", "rollout.engine"),
            f"rollout.gpus_per_generator is {rollout.gpus_per_generator}, but the torch engine samples on one GPU: set "
            f"it to 1 and raise rollout.generators",
        )
    parallel = rollout.vllm.tensor_parallel
    if rollout.generators and rollout.engine == "vllm" and rollout.generator_gpus not in (0, parallel):
        yield (
            ("rollout.gpus_per_generator", "rollout.vllm.tensor_parallel"),
            f"rollout.gpus_per_generator is {rollout.gpus_per_generator}, but rollout.vllm.tensor_parallel is "
            f"{parallel}: set both alike",
        )
    if "trust_remote_code" in rollout.vllm.engine_args:
        yield (
            ("rollout.vllm.engine_args",),
            "rollout.vllm.engine_args has trust_remote_code, which no recipe sets: use --trust-remote-code",
        )


def _task_conflicts(table: str, task: parts.TaskSettings) -> Iterator[Conflict]:
    if task.grader and task.graders:
        yield (
            (f"{table}.grader", f"{table}.graders"),
            f'{table}.grader is "{task.grader}" and there are also {table}.graders: a task has one grader or several, '
            f"so move it to a table [{table}.graders.NAME]",
        )
    if task.graders and not any(grader.weight for grader in task.graders.values()):
        yield (f"{table}.graders",), f"every weight in {table}.graders is 0: nothing would be trained on"
    if not all(map(_is_plain, task.graders)):
        yield (
            (f"{table}.graders",),
            f"a name in {table}.graders has other characters than letters, digits, _ and -, and a column is named "
            f"after it",
        )
    if task.environment.reward_range[0] >= task.environment.reward_range[1]:
        yield (
            (f"{table}.environment.reward_range",),
            f"{table}.environment.reward_range is {task.environment.reward_range}: what is worth 1 must be above what "
            f"is worth 0",
        )


def _mixture_conflicts(r: Recipe) -> Iterator[Conflict]:
    if r.tasks and r.task.name:
        yield (
            ("task", "tasks"),
            f'task.name is "{r.task.name}" and there are also tables [{"], [".join(r.task_tables)}]: a run has one '
            f'task or several, so move [task] to a table [tasks.NAME], or write task = "" where it comes by extends',
        )
    for name, task in r.tasks.items():
        # Problems, evaluation sets and curves are named after it.
        if not _is_plain(name):
            yield (
                ("tasks",),
                f"tasks holds {json.dumps(name)}, but the name of a task may only have letters, digits, _ and -",
            )
        if not task.name:
            yield (f"tasks.{name}",), f"tasks.{name}.name is not set: say which task it is"
        if name in r.evaluation.sets:
            yield (
                (f"evaluation.sets.{name}", f"tasks.{name}"),
                f"evaluation.sets.{name} has the name of tasks.{name}, which already has an evaluation set: give it "
                f"another name",
            )


def _evaluation_conflicts(r: Recipe) -> Iterator[Conflict]:
    best = r.checkpoint.best
    names = [*(r.tasks or ["main"]), *r.evaluation.sets]
    if "main" in r.evaluation.sets and not r.tasks:
        yield (
            ("evaluation.sets.main",),
            "evaluation.sets.main has the name of the task's own evaluation set: give it another name",
        )
    if best and best not in names:
        yield (
            ("checkpoint.best", "evaluation.sets"),
            f'checkpoint.best is "{best}", which is not an evaluation set; the sets are {", ".join(names)}',
        )
    for table, sampling in r.evaluation.sampling_of_sets():
        if sampling.temperature == 0 and sampling.samples_per_prompt > 1:
            yield (
                (f"{table}.temperature", f"{table}.samples_per_prompt"),
                f"{table}.temperature = 0 is greedy, so {sampling.samples_per_prompt} samples of a prompt would be "
                f"one sample counted often: set {table}.samples_per_prompt = 1 or raise the temperature",
            )


def length_settings(recipe: Recipe) -> tuple[str, ...]:
    """Return the settings whose sum is the longest completion; none for a user's own length control."""
    interruption = ("length.thinking_max", "length.answer_budget")
    limited = ("length.max_length",)
    return {"interruption": interruption, "penalty": limited, "none": limited}.get(recipe.length.name, ())


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w-]+", name) is not None


def replaced(part: Table, changes: Mapping[str, Any]) -> Table:
    """Return a table with settings changed by dotted key, unchecked: whoever calls has computed them."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        part = part.model_copy(update={name: replaced(getattr(part, name), {rest: value}) if rest else value})
    return part


def trusting(recipe: Recipe, *, trust_remote_code: bool) -> Recipe:
    """Return the recipe with the user's word, for this call, on code that comes with the model."""
    return replaced(recipe, {"model.trust_remote_code": trust_remote_code})


def imports_of(recipe: Recipe) -> dict[str, str]:
    """Return the code that a recipe runs besides the package's own: import paths and interpreters, by their keys."""
    values = dict(leaves(recipe.model_dump(mode="json"), numbered=True))
    for key in [key for key, value in values.items() if key.endswith("environment.tools") and isinstance(value, list)]:
        values |= {f"{key}.{number}.name": tool for number, tool in enumerate(values.pop(key))}
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, str)
        and (
            (key.endswith(("name", "grader")) and re.fullmatch(r"[\w.]+:\w+", value))
            or (key == "rollout.vllm.python" and value)
        )
    }


def mode_name(pipeline: parts.PipelineSettings) -> str:
    """Return the paper's name for the regime that the settings of the pipeline make."""
    if pipeline.max_lag == 0:
        return "synchronous"
    if pipeline.drain:
        return f"PPO-off-policy-{pipeline.push_every}"
    waits = "" if pipeline.waits_for == "groups" else " (waits for generators)"
    return f"PipelineRL-{pipeline.max_lag}{waits}"


def body_dtype(recipe: Recipe, *, gpu: bool) -> Literal["bfloat16", "float32"]:
    """Return the precision of the body; "auto" depends on the device."""
    if recipe.model.dtype == "auto":
        return "bfloat16" if gpu else "float32"
    return recipe.model.dtype


def inert(recipe: Recipe, *, gpu: bool) -> dict[str, str]:
    """Return the settings that have no effect in this recipe on this device, each with the reason."""
    reasons: dict[str, str] = {}
    if body_dtype(recipe, gpu=gpu) == "float32":
        reasons["model.fp32_head"] = "the body is float32, so the head is at both ends, whatever this says"
    if recipe.rollout.engine != "vllm":
        defaults = dict(parts.VllmSettings())
        changed = [name for name, value in recipe.rollout.vllm if value != defaults[name]]
        reasons |= {f"rollout.vllm.{name}": f'rollout.engine is "{recipe.rollout.engine}"' for name in changed}
    baseline, normalisation = recipe.advantage.baseline, recipe.advantage.normalisation
    # Under batch normalisation it has an effect: groups differ in size where completions have no verdict.
    if isinstance(baseline, parts.LeaveOneOutBaselineSettings) and isinstance(
        normalisation, parts.PromptNormalisationSettings
    ):
        reasons["advantage.baseline"] = (
            "leave_one_out scales a group's advantages by G / (G - 1), and division by the group's own standard "
            "deviation takes that out again"
        )
    return reasons


def remedies(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the settings of this recipe that help against each kind of alarm (report/alarms.py)."""
    names = length_settings(recipe)[::-1]
    if recipe.filter.drop_truncated:
        keep = ("filter.drop_truncated = false",)
        # Without interruptions nothing else teaches the model to be brief, so that comes first.
        names = (*names, *keep) if recipe.length.name == "interruption" else (*keep, *names)
    return {"truncated": names, "backend": _backend_remedies(recipe), "solved": ('curriculum = "uniform"',)}


def _backend_remedies(recipe: Recipe) -> tuple[str, ...]:
    """Return what brings generator and learner closer together: first the head, then what rounds the body."""
    if recipe.model.fp32_head != "both":
        return ('model.fp32_head = "both"',)
    if recipe.rollout.engine == "vllm" and recipe.rollout.vllm.quantisation:
        return ('rollout.vllm.quantisation = ""',)
    return ('model.dtype = "float32"',)
