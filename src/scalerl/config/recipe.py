"""The recipe: all settings of one run, and a table of the combinations that cannot work."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from scalerl.config import parts
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

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if conflicting := list(conflicts(self)):
            text = "; ".join(message for _, message in conflicting)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicting})
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


class Rule(NamedTuple):
    """Settings that cannot be together."""

    keys: str
    """Those in question, with spaces between them."""
    broken: Callable[[Any], bool]
    """Whether they are, by the recipe, or by the table in which `sentence` has its fields."""
    sentence: str
    """What is wrong and what to set; {fields} are filled in from the same."""


RULES = (
    Rule(
        "pipeline.push_every pipeline.drain",
        lambda r: not r.pipeline.drain and r.pipeline.push_every > 1,
        "pipeline.push_every is {r.pipeline.push_every} with pipeline.drain = false: set pipeline.push_every = 1 "
        "(PipelineRL-{r.pipeline.max_lag}), or pipeline.drain = true and pipeline.max_lag = {before_push} "
        "(PPO-off-policy-{r.pipeline.push_every})",
    ),
    Rule(
        "pipeline.max_lag pipeline.push_every pipeline.drain",
        lambda r: r.pipeline.drain and r.pipeline.max_lag != r.pipeline.push_every - 1,
        "pipeline.max_lag is {r.pipeline.max_lag}, but with pipeline.drain = true and pipeline.push_every = "
        "{r.pipeline.push_every} the lag is always up to {before_push}: set pipeline.max_lag = {before_push}, or "
        "pipeline.push_every = {after_lag}, or pipeline.drain = false (and pipeline.push_every = 1) for "
        "PipelineRL-{r.pipeline.max_lag}",
    ),
    Rule(
        "pipeline.waits_for pipeline.drain",
        lambda r: r.pipeline.drain and r.pipeline.waits_for == "generators",
        'pipeline.waits_for is "generators" with pipeline.drain = true, which waits for every group: set '
        'pipeline.waits_for = "groups", or pipeline.drain = false',
    ),
    Rule(
        "length.thinking_min length.thinking_max",
        lambda r: _interrupts(r) and r.length.thinking_min > r.length.thinking_max,
        "length.thinking_min is {r.length.thinking_min}, above length.thinking_max = {r.length.thinking_max}: the "
        "place is drawn between the two",
    ),
    Rule(
        "length.cache length.max_length",
        lambda r: r.length.name == "penalty" and r.length.cache > r.length.max_length,
        "length.cache is {r.length.cache}, above length.max_length = {r.length.max_length}: even an empty answer "
        "would be penalised",
    ),
    Rule(
        "evaluation.sets.main",
        lambda r: "main" in r.evaluation.sets and not r.tasks,
        "evaluation.sets.main has the name of the task's own evaluation set: give it another name",
    ),
    Rule(
        "task tasks",
        lambda r: bool(r.tasks and r.task.name),
        'task.name is "{r.task.name}" and there are also tables [tasks.NAME]: a run has one task or several, so move '
        '[task] to a table [tasks.NAME], or write task = "" where it comes by extends',
    ),
    Rule(
        "reward.correct reward.wrong",
        lambda r: r.reward.correct <= r.reward.wrong,
        "reward.correct is {r.reward.correct:g} and reward.wrong is {r.reward.wrong:g}: a correct completion must be "
        "worth more",
    ),
    Rule(
        "grading.cpu_limit_s grading.timeout_s",
        lambda r: r.grading.cpu_limit_s > r.grading.timeout_s,
        "grading.cpu_limit_s is {r.grading.cpu_limit_s:g}, above grading.timeout_s = {r.grading.timeout_s:g}, when the "
        "answer is given up anyway: raise grading.timeout_s or lower grading.cpu_limit_s",
    ),
    Rule(
        "budget",
        lambda r: r.budget.steps is None and r.budget.gpu_hours is None and r.budget.flops is None,
        "budget is not set: give at least one of budget.steps, budget.gpu_hours, budget.flops",
    ),
    Rule(
        "optimizer.schedule optimizer.decay_steps",
        lambda r: r.optimizer.schedule != "constant" and r.optimizer.decay_steps is None and r.budget.steps is None,
        'optimizer.schedule is "{r.optimizer.schedule}", but the run has no number of steps over which the learning '
        "rate could fall: set optimizer.decay_steps, or budget.steps",
    ),
    Rule(
        "checkpoint.best",
        lambda r: bool(r.checkpoint.best) and r.checkpoint.best not in _set_names(r),
        'checkpoint.best is "{r.checkpoint.best}", which is not an evaluation set; the sets are {set_names}',
    ),
    Rule(
        "checkpoint.best evaluation.overlap",
        lambda r: bool(r.checkpoint.best and r.evaluation.overlap),
        'checkpoint.best is "{r.checkpoint.best}" and evaluation.overlap is {r.evaluation.overlap:g}: an evaluation '
        "beside training ends when the weights have changed already, so set evaluation.overlap = 0",
    ),
    Rule(
        "learner.ranks learner.sharding",
        lambda r: r.learner.sharding == "none" and r.learner.ranks > 1,
        'learner.ranks is {r.learner.ranks}, but learner.sharding is "none": set it to "replicate" if a device can '
        'hold weights and optimiser, else to "full"',
    ),
    Rule(
        "learner.shard_size learner.ranks learner.sharding",
        lambda r: r.learner.sharding == "hybrid" and not _is_part(r.learner.shard_size, r.learner.ranks),
        'learner.sharding is "hybrid" and learner.shard_size is {shard_size}: set it to a divisor of learner.ranks = '
        '{r.learner.ranks} below it, or learner.sharding to "full"',
    ),
    Rule(
        "learner.shard_size learner.sharding",
        lambda r: r.learner.sharding != "hybrid" and r.learner.shard_size is not None,
        'learner.shard_size is {r.learner.shard_size}, but learner.sharding is "{r.learner.sharding}": it is only for '
        '"hybrid"',
    ),
    Rule(
        "learner.context_ranks learner.sharding",
        lambda r: r.learner.context_ranks > 1 and r.learner.sharding != "full",
        'learner.context_ranks is {r.learner.context_ranks}, but learner.sharding is "{r.learner.sharding}": it is '
        'only for "full"',
    ),
    Rule(
        "learner.context_ranks learner.ranks",
        lambda r: r.learner.sharding == "full" and r.learner.ranks % r.learner.context_ranks,
        "learner.context_ranks is {r.learner.context_ranks}, which does not divide learner.ranks = {r.learner.ranks}: "
        "set it to a divisor, or to 1",
    ),
    Rule(
        "model.router_replay rollout.engine",
        lambda r: r.model.router_replay and r.rollout.engine != "torch",
        'model.router_replay needs rollout.engine = "torch": what vLLM reports about its routing '
        "(enable_return_routed_experts) is not read yet",
    ),
    Rule(
        "model.router_replay learner.context_ranks",
        lambda r: r.model.router_replay and r.learner.context_ranks > 1,
        "model.router_replay with learner.context_ranks = {r.learner.context_ranks}: experts of a divided pass are not "
        "replayed; set learner.context_ranks = 1",
    ),
    Rule(
        "model.router_replay task.environment",
        lambda r: r.model.router_replay and bool(r.task.environment.name),
        "model.router_replay with task.environment: the experts of a conversation of several turns are not recorded; "
        "set model.router_replay = false",
    ),
    Rule(
        "learner.start_kl learner.sharding",
        lambda r: r.learner.sharding in ("full", "hybrid") and r.learner.start_kl,
        'learner.start_kl is {r.learner.start_kl:g} with learner.sharding = "{r.learner.sharding}", which would need a '
        'second sharded model: set learner.start_kl = 0 or learner.sharding = "replicate"',
    ),
    Rule(
        "cluster.address rollout.generators",
        lambda r: bool(r.cluster.address) and not r.rollout.generators,
        'cluster.address is "{r.cluster.address}", but rollout.generators is 0, so nothing would sample there: set '
        "rollout.generators, or leave cluster.address out",
    ),
    Rule(
        "cluster.address grading.sandbox",
        lambda r: bool(r.cluster.address) and r.grading.sandbox == "none",
        'grading.sandbox is "none", which is refused with cluster.address: programs would have all rights on a machine '
        "that others of the cluster trust",
    ),
    Rule(
        "rollout.gpus_per_generator rollout.engine",
        lambda r: r.rollout.engine == "torch" and (r.rollout.gpus_per_generator or 0) > 1,
        "rollout.gpus_per_generator is {r.rollout.gpus_per_generator}, but the torch engine samples on one GPU: set it "
        "to 1 and raise rollout.generators",
    ),
    Rule(
        "rollout.gpus_per_generator rollout.vllm.tensor_parallel",
        lambda r: (
            r.rollout.generators
            and r.rollout.engine == "vllm"
            and r.rollout.generator_gpus not in (0, r.rollout.vllm.tensor_parallel)
        ),
        "rollout.gpus_per_generator is {r.rollout.gpus_per_generator}, but rollout.vllm.tensor_parallel is "
        "{r.rollout.vllm.tensor_parallel}: set both alike",
    ),
    Rule(
        "rollout.vllm.engine_args",
        lambda r: "trust_remote_code" in r.rollout.vllm.engine_args,
        "rollout.vllm.engine_args has trust_remote_code, which no recipe sets: it is the option --trust-remote-code",
    ),
    Rule(
        "sft.epochs sft.steps",
        lambda r: r.sft.epochs is not None and r.sft.steps is not None,
        "sft.epochs is {r.sft.epochs:g} and sft.steps is {r.sft.steps}: set one of the two",
    ),
)
"""Rules of a whole recipe, which is `r` in a sentence."""

TASK_RULES = (
    Rule(
        "{table}.grader {table}.graders",
        lambda task: bool(task.grader and task.graders),
        '{table}.grader is "{task.grader}" and there are also {table}.graders: a task has one grader or several, so '
        "move it to a table [{table}.graders.NAME]",
    ),
    Rule(
        "{table}.graders",
        lambda task: bool(task.graders) and not any(grader.weight for grader in task.graders.values()),
        "every weight in {table}.graders is 0: nothing would be trained on",
    ),
    Rule(
        "{table}.graders",
        lambda task: not all(map(_is_plain, task.graders)),
        "a name in {table}.graders has other characters than letters, digits, _ and -, and a column is named after it",
    ),
    Rule(
        "{table}.environment.reward_range",
        lambda task: task.environment.reward_range[0] >= task.environment.reward_range[1],
        "{table}.environment.reward_range is {task.environment.reward_range}: what is worth 1 must be above what is "
        "worth 0",
    ),
)
"""Rules of each table of a task."""


def conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield combinations that cannot work: the fields in question, and a sentence that says how to fix them."""
    values = {
        "r": recipe,
        "before_push": recipe.pipeline.push_every - 1,
        "after_lag": recipe.pipeline.max_lag + 1,
        "set_names": ", ".join(_set_names(recipe)),
        "shard_size": recipe.learner.shard_size or "not set",
    }
    for rule in RULES:
        if rule.broken(recipe):
            yield tuple(rule.keys.split()), rule.sentence.format(**values)
    for table, task in {**recipe.task_tables, **recipe.eval_tables}.items():
        for rule in TASK_RULES:
            if rule.broken(task):
                keys = rule.keys.format(table=table)
                yield tuple(keys.split()), rule.sentence.format(table=table, task=task)
    yield from _mixture_conflicts(recipe)
    yield from _context_conflicts(recipe)
    for table, sampling in recipe.evaluation.sampling_of_sets():
        if sampling.temperature == 0 and sampling.samples_per_prompt > 1:
            yield (
                (f"{table}.temperature", f"{table}.samples_per_prompt"),
                f"{table}.temperature = 0 is greedy, so {sampling.samples_per_prompt} samples of a prompt would be "
                f"one sample counted often: set {table}.samples_per_prompt = 1 or raise the temperature",
            )


def _mixture_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, task in recipe.tasks.items():
        # Problems, evaluation sets and curves are named after it.
        if not _is_plain(name):
            text = f"tasks holds {json.dumps(name)}, but the name of a task may only have letters, digits, _ and -"
            yield ("tasks",), text
        if not task.name:
            yield (f"tasks.{name}",), f"tasks.{name}.name is not set: say which task it is"
        if name in recipe.evaluation.sets:
            yield (
                (f"tasks.{name}", f"evaluation.sets.{name}"),
                f"evaluation.sets.{name} has the name of tasks.{name}, which already has an evaluation set: give it "
                f"another name",
            )


def _context_conflicts(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    rollout, fields = recipe.rollout, length_settings(recipe)
    needed = rollout.max_prompt_tokens + sum(getattr(recipe.length, name.partition(".")[2]) for name in fields)
    if fields and needed > rollout.context:
        yield (
            (*fields, "rollout.max_prompt_tokens", "rollout.context"),
            f"rollout.context is {rollout.context}, but rollout.max_prompt_tokens + {' + '.join(fields)} is {needed}: "
            f"set rollout.context = {needed} or shorten the others",
        )


def length_settings(recipe: Recipe) -> tuple[str, ...]:
    """Return the settings whose sum is the longest completion; none for a user's own length control."""
    interruption = ("length.thinking_max", "length.answer_budget")
    limited = ("length.max_length",)
    return {"interruption": interruption, "penalty": limited, "none": limited}.get(recipe.length.name, ())


def _interrupts(recipe: Recipe) -> bool:
    return isinstance(recipe.length, parts.InterruptionSettings)


def _set_names(recipe: Recipe) -> list[str]:
    return [*(recipe.tasks or ["main"]), *recipe.evaluation.sets]


def _is_part(size: int | None, whole: int) -> bool:
    return size is not None and whole % size == 0 and size < whole


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w-]+", name) is not None


def trusting(recipe: Recipe, *, trust_remote_code: bool) -> Recipe:
    """Return the recipe with the user's word, for this call, on code that comes with the model."""
    model = recipe.model.model_copy(update={"trust_remote_code": trust_remote_code})
    return recipe.model_copy(update={"model": model})


def imports_of(recipe: Recipe) -> dict[str, str]:
    """Return the code that a recipe runs besides the package's own: import paths and interpreters, by their keys."""
    found = {}

    def look(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                look(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, list) and key.endswith("environment.tools"):
            for number, inner in enumerate(value):
                look(inner, f"{key}.{number}.name")
        elif isinstance(value, str) and (
            (key.endswith(("name", "grader")) and re.fullmatch(r"[\w.]+:\w+", value))
            or (key == "rollout.vllm.python" and value)
        ):
            found[key] = value

    look(recipe.model_dump(mode="json"), "")
    return found


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
        is_held = _interrupts(recipe)
        names = (*names, *keep) if is_held else (*keep, *names)
    return {"truncated": names, "backend": _backend_remedies(recipe), "retired": ('curriculum = "uniform"',)}


def _backend_remedies(recipe: Recipe) -> tuple[str, ...]:
    """Return what brings generator and learner closer together: first the head, then what rounds the body."""
    if recipe.model.fp32_head != "both":
        return ('model.fp32_head = "both"',)
    if recipe.rollout.engine == "vllm" and recipe.rollout.vllm.quantisation:
        return ('rollout.vllm.quantisation = ""',)
    return ('model.dtype = "float32"',)
