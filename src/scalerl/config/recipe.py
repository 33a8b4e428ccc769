"""The recipe: all settings of one run, and which combinations of them cannot work."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from scalerl.config import parts
from scalerl.config.cluster import ClusterSettings
from scalerl.config.evaluation import EvaluationSettings
from scalerl.config.parts import Settings
from scalerl.config.rollout import RolloutSettings, VllmSettings
from scalerl.config.sft import SftSettings


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
    rollout: RolloutSettings = RolloutSettings()
    """How completions are sampled."""
    cluster: ClusterSettings = ClusterSettings()
    """Where generators run."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How the run is measured."""
    budget: parts.BudgetSettings = parts.BudgetSettings()
    """When the run ends."""
    forecast: parts.ForecastSettings = parts.ForecastSettings()
    """The forecast that a run shows while it trains."""
    checkpoint: parts.CheckpointSettings = parts.CheckpointSettings()
    """How often the run is saved."""
    sft: SftSettings = SftSettings()
    """How `scalerl sft` makes a base model from the task's demonstrations; not used by training."""
    sinks: Annotated[tuple[parts.SinkName, ...], Field(strict=False)] = ()
    """Services that also receive the rows of metrics.jsonl and evals.jsonl."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if conflicting := list(conflicts(self)):
            text = "; ".join(message for _, message in conflicting)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicting})
        return self


def conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield combinations that cannot work: the fields in question, and a sentence that says how to fix them."""
    yield from _pipeline_conflicts(recipe.pipeline)
    yield from _length_conflicts(recipe)
    yield from _task_conflicts(recipe)
    reward, grading, evaluation, budget = recipe.reward, recipe.grading, recipe.evaluation, recipe.budget
    if reward.correct <= reward.wrong:
        yield (
            ("reward.correct", "reward.wrong"),
            f"reward.correct is {reward.correct:g} and reward.wrong is {reward.wrong:g}: a correct completion must be "
            f"worth more",
        )
    if grading.cpu_limit_s > grading.timeout_s:
        yield (
            ("grading.cpu_limit_s", "grading.timeout_s"),
            f"grading.cpu_limit_s is {grading.cpu_limit_s:g}, above grading.timeout_s = {grading.timeout_s:g}, when "
            f"the answer is given up anyway: raise grading.timeout_s or lower grading.cpu_limit_s",
        )
    for table, sampling in evaluation.sampling_of_sets():
        if sampling.temperature == 0 and sampling.samples_per_prompt > 1:
            yield (
                (f"{table}.temperature", f"{table}.samples_per_prompt"),
                f"{table}.temperature = 0 is greedy, so {sampling.samples_per_prompt} samples of a prompt would be "
                f"one sample counted often: set {table}.samples_per_prompt = 1 or raise the temperature",
            )
    if budget.steps is None and budget.gpu_hours is None and budget.flops is None:
        yield (
            ("budget",),
            "budget is not set: give at least one of budget.steps, budget.gpu_hours, budget.flops",
        )

    yield from _training_conflicts(recipe)
    yield from _rank_conflicts(recipe.learner)
    yield from _cluster_conflicts(recipe)
    if recipe.sft.epochs is not None and recipe.sft.steps is not None:
        yield (
            ("sft.epochs", "sft.steps"),
            f"sft.epochs is {recipe.sft.epochs:g} and sft.steps is {recipe.sft.steps}: set one of the two",
        )


def _training_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    optimizer, budget, best = recipe.optimizer, recipe.budget, recipe.checkpoint.best
    if optimizer.schedule != "constant" and optimizer.decay_steps is None and budget.steps is None:
        yield (
            ("optimizer.schedule", "optimizer.decay_steps"),
            f'optimizer.schedule is "{optimizer.schedule}", but the run has no number of steps over which the learning '
            f"rate could fall: set optimizer.decay_steps, or budget.steps",
        )
    sets = [*(recipe.tasks or ["main"]), *recipe.evaluation.sets]
    if best and best not in sets:
        yield (
            ("checkpoint.best",),
            f'checkpoint.best is "{best}", which is not an evaluation set; the sets are {", ".join(sets)}',
        )
    if best and recipe.evaluation.overlap:
        yield (
            ("checkpoint.best", "evaluation.overlap"),
            f'checkpoint.best is "{best}" and evaluation.overlap is {recipe.evaluation.overlap:g}: an evaluation '
            f"beside training ends when the weights have changed already, so set evaluation.overlap = 0",
        )


def _rank_conflicts(learner: parts.LearnerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    ranks, sharding, size = learner.ranks, learner.sharding, learner.shard_size
    if sharding == "none" and ranks > 1:
        yield (
            ("learner.ranks", "learner.sharding"),
            f'learner.ranks is {ranks}, but learner.sharding is "none": set it to "replicate" if a device can hold '
            f'weights and optimiser, else to "full"',
        )
    if sharding == "hybrid" and (size is None or ranks % size or ranks == size):
        given = "not set" if size is None else str(size)
        yield (
            ("learner.shard_size", "learner.ranks", "learner.sharding"),
            f'learner.sharding is "hybrid" and learner.shard_size is {given}: set it to a divisor of learner.ranks = '
            f'{ranks} below it, or learner.sharding to "full"',
        )
    if sharding != "hybrid" and size is not None:
        yield (
            ("learner.shard_size", "learner.sharding"),
            f'learner.shard_size is {size}, but learner.sharding is "{sharding}": it is only for "hybrid"',
        )
    if learner.context_ranks > 1 and sharding != "full":
        yield (
            ("learner.context_ranks", "learner.sharding"),
            f'learner.context_ranks is {learner.context_ranks}, but learner.sharding is "{sharding}": it is only for '
            f'"full"',
        )
    elif ranks % learner.context_ranks:
        yield (
            ("learner.context_ranks", "learner.ranks"),
            f"learner.context_ranks is {learner.context_ranks}, which does not divide learner.ranks = {ranks}: set it "
            f"to a divisor, or to 1",
        )
    if sharding in ("full", "hybrid") and learner.start_kl:
        yield (
            ("learner.start_kl", "learner.sharding"),
            f'learner.start_kl is {learner.start_kl:g} with learner.sharding = "{sharding}", which would need a second '
            f'sharded model: set learner.start_kl = 0 or learner.sharding = "replicate"',
        )


def _cluster_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    address, rollout = recipe.cluster.address, recipe.rollout
    if address and not rollout.generators:
        yield (
            ("cluster.address", "rollout.generators"),
            f'cluster.address is "{address}", but rollout.generators is 0, so nothing would sample there: set '
            f"rollout.generators, or leave cluster.address out",
        )
    if address and recipe.grading.sandbox == "none":
        yield (
            ("cluster.address", "grading.sandbox"),
            'grading.sandbox is "none", which is refused with cluster.address: programs would have all rights on a '
            "machine that others of the cluster trust",
        )
    if rollout.engine == "torch" and (rollout.gpus_per_generator or 0) > 1:
        yield (
            ("rollout.gpus_per_generator", "rollout.engine"),
            f"rollout.gpus_per_generator is {rollout.gpus_per_generator}, but the torch engine samples on one GPU: set "
            f"it to 1 and raise rollout.generators",
        )
    if (
        rollout.generators
        and rollout.engine == "vllm"
        and rollout.generator_gpus not in (0, rollout.vllm.tensor_parallel)
    ):
        yield (
            ("rollout.gpus_per_generator", "rollout.vllm.tensor_parallel"),
            f"rollout.gpus_per_generator is {rollout.gpus_per_generator}, but rollout.vllm.tensor_parallel is "
            f"{rollout.vllm.tensor_parallel}: set both alike",
        )


def _pipeline_conflicts(pipeline: parts.PipelineSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    max_lag, push_every = pipeline.max_lag, pipeline.push_every
    if not pipeline.drain and push_every > 1:
        yield (
            ("pipeline.push_every", "pipeline.drain"),
            f"pipeline.push_every is {push_every} with pipeline.drain = false: set pipeline.push_every = 1 "
            f"(PipelineRL-{max_lag}), or pipeline.drain = true and pipeline.max_lag = {push_every - 1} "
            f"(PPO-off-policy-{push_every})",
        )
    if pipeline.drain and max_lag != push_every - 1:
        yield (
            ("pipeline.max_lag", "pipeline.push_every", "pipeline.drain"),
            f"pipeline.max_lag is {max_lag}, but with pipeline.drain = true and pipeline.push_every = {push_every} the "
            f"lag is always up to {push_every - 1}: set pipeline.max_lag = {push_every - 1}, or "
            f"pipeline.push_every = {max_lag + 1}, or pipeline.drain = false (and pipeline.push_every = 1) for "
            f"PipelineRL-{max_lag}",
        )


def _length_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    length, rollout = recipe.length, recipe.rollout
    if isinstance(length, parts.InterruptionSettings):
        if length.thinking_min > length.thinking_max:
            yield (
                ("length.thinking_min", "length.thinking_max"),
                f"length.thinking_min is {length.thinking_min}, above length.thinking_max = {length.thinking_max}: "
                f"the place is drawn between the two",
            )
        if length.thinking_end not in length.marker:
            yield (
                ("length.marker", "length.thinking_end"),
                f"length.marker does not contain length.thinking_end = {json.dumps(length.thinking_end)}, so the "
                f"thinking would go on after it: end the marker with that text",
            )
        fields, num_tokens = ("length.thinking_max", "length.answer_budget"), length.thinking_max + length.answer_budget
    elif isinstance(length, parts.PenaltySettings | parts.UnlimitedSettings):
        fields, num_tokens = ("length.max_length",), length.max_length
    else:
        return
    if isinstance(length, parts.PenaltySettings) and length.cache > length.max_length:
        yield (
            ("length.cache", "length.max_length"),
            f"length.cache is {length.cache}, above length.max_length = {length.max_length}: even an empty answer "
            f"would be penalised",
        )
    needed = rollout.max_prompt_tokens + num_tokens
    if needed > rollout.context:
        yield (
            (*fields, "rollout.max_prompt_tokens", "rollout.context"),
            f"rollout.context is {rollout.context}, but rollout.max_prompt_tokens + {' + '.join(fields)} is {needed}: "
            f"set rollout.context = {needed} or shorten the others",
        )


def _task_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    if "main" in recipe.evaluation.sets and not recipe.tasks:
        yield (
            ("evaluation.sets.main",),
            "evaluation.sets.main has the name of the task's own evaluation set: give it another name",
        )
    if recipe.tasks and recipe.task.name:
        yield (
            ("task", "tasks"),
            f'task.name is "{recipe.task.name}" and tasks holds {", ".join(recipe.tasks)}: a run has one task or '
            f'several, so move [task] to a table [tasks.NAME], or write task = "" where it comes by extends',
        )
    for name, task in recipe.tasks.items():
        # Problems, evaluation sets and curves are named after it.
        if not re.fullmatch(r"[\w-]+", name):
            yield (
                ("tasks",),
                f"tasks holds {json.dumps(name)}, but the name of a task may only have letters, digits, _ and -",
            )
        if not task.name:
            yield ((f"tasks.{name}",), f"tasks.{name}.name is not set: say which task it is")
        if name in recipe.evaluation.sets:
            yield (
                (f"tasks.{name}", f"evaluation.sets.{name}"),
                f"evaluation.sets.{name} has the name of tasks.{name}, which already has an evaluation set: give it "
                f"another name",
            )
    tables = {"task": recipe.task} | {f"tasks.{name}": task for name, task in recipe.tasks.items()}
    eval_tables = {f"evaluation.sets.{name}": task for name, task in recipe.evaluation.sets.items()}
    for table, task in {**tables, **eval_tables}.items():
        yield from _grader_conflicts(table, task)
    if isinstance(recipe.length, parts.InterruptionSettings):
        for table, task in tables.items():
            if task.thinking_end not in (None, recipe.length.thinking_end):
                yield (
                    (f"{table}.thinking_end", "length.thinking_end"),
                    f"{table}.thinking_end is {json.dumps(task.thinking_end)} and length.thinking_end is "
                    f"{json.dumps(recipe.length.thinking_end)}: thinking must end for the grader where it ends for the "
                    f"length control, so set both alike",
                )


def _grader_conflicts(table: str, task: parts.TaskSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    if task.grader and task.graders:
        yield (
            (f"{table}.grader", f"{table}.graders"),
            f'{table}.grader is "{task.grader}" and {table}.graders has {", ".join(task.graders)}: a task has one '
            f"grader or several, so move it to a table [{table}.graders.NAME]",
        )
    if task.graders and not any(grader.weight for grader in task.graders.values()):
        yield ((f"{table}.graders",), f"every weight in {table}.graders is 0: nothing would be trained on")
    for name in task.graders:
        # A column of metrics.jsonl is named after it.
        if not re.fullmatch(r"[\w-]+", name):
            yield (
                (f"{table}.graders",),
                f"{table}.graders has {json.dumps(name)}, but a column's name may only have letters, digits, _ and -",
            )


def mode_name(pipeline: parts.PipelineSettings) -> str:
    """Return the paper's name for the regime that max_lag, push_every and drain make."""
    if pipeline.max_lag == 0:
        return "synchronous"
    return f"PPO-off-policy-{pipeline.push_every}" if pipeline.drain else f"PipelineRL-{pipeline.max_lag}"


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
        defaults = dict(VllmSettings())
        changed = [name for name, value in recipe.rollout.vllm if value != defaults[name]]
        reasons |= {f"rollout.vllm.{name}": f'rollout.engine is "{recipe.rollout.engine}"' for name in changed}
    baseline, normalisation = recipe.advantage.baseline, recipe.advantage.normalisation
    # Under batch normalisation it has an effect: groups differ in size where completions have no verdict.
    if (
        isinstance(baseline, parts.LeaveOneOutBaselineSettings)
        and isinstance(normalisation, parts.PromptNormalisationSettings)
        and normalisation.eps <= 1e-4
    ):
        reasons["advantage.baseline"] = (
            "leave_one_out scales a group's advantages by G / (G - 1), and division by the group's own standard "
            "deviation takes that out again"
        )
    return reasons


def remedies(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the settings of this recipe that help against each kind of alarm (analysis/signals.py)."""
    match recipe.length:
        case parts.InterruptionSettings():
            names = ("length.answer_budget", "length.thinking_max")
        case parts.PenaltySettings() | parts.UnlimitedSettings():
            names = ("length.max_length",)
        case _:
            names = ()
    if recipe.filter.drop_truncated:
        keep = ("filter.drop_truncated = false",)
        # Without interruptions nothing else teaches the model to be brief, so that comes first.
        is_held = isinstance(recipe.length, parts.InterruptionSettings)
        names = (*names, *keep) if is_held else (*keep, *names)
    return {"truncated": names, "backend": _backend_remedies(recipe), "retired": ('curriculum = "uniform"',)}


def _backend_remedies(recipe: Recipe) -> tuple[str, ...]:
    """Return what brings generator and learner closer together: first the head, then what rounds the body."""
    if recipe.model.fp32_head != "both":
        return ('model.fp32_head = "both"',)
    if recipe.rollout.engine == "vllm" and recipe.rollout.vllm.quantisation:
        return ('rollout.vllm.quantisation = ""',)
    return ('model.dtype = "float32"',)
