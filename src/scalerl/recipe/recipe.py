"""The recipe: all settings of a run, and combinations that cannot work."""

import functools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from scalerl.recipe import parts
from scalerl.recipe.keys import dotted, leaves
from scalerl.recipe.parts import Settings
from scalerl.recipe.suggest import quoted, show


class Recipe(Settings):
    """All settings of one run."""

    description: str = ""
    """One line on the recipe."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of all randomness in training."""
    model: parts.ModelSettings = parts.ModelSettings()
    """The model to train."""
    task: parts.TaskSettings = parts.TaskSettings()
    """The problems to train on."""
    tasks: dict[str, parts.MixedTaskSettings] = Field(default_factory=dict)
    """Several tasks instead of one: [tasks.NAME]."""
    curriculum: parts.Curriculum = parts.NoPositiveResamplingSettings()
    """Which problems are used in later epochs."""
    length: parts.Length = parts.InterruptionSettings()
    """How the length of completions is controlled."""
    loss: parts.Loss = parts.CispoSettings()
    """The loss of a token."""
    correction: parts.Correction = parts.NoCorrectionSettings()
    """What to do, besides the loss's cap or clip, where generator and learner differ: leave out tokens or completions
    outside a band, or weigh by the ratio of the completion."""
    weights: parts.Weights = parts.PromptAverageSettings()
    """What has equal weight when token losses are averaged; or a constant denominator."""
    entropy: parts.EntropyControl = parts.NoEntropyControlSettings()
    """How to keep up the entropy: by a bonus, or without gradient for the few tokens that lower it most."""
    imitation: parts.Imitation = parts.NoImitationSettings()
    """Which completions are also imitated, as in supervised fine-tuning."""
    kl: parts.KlSettings = parts.KlSettings()
    """A KL term beside the loss, or instead of it: keeps the policy near its start, or distils a teacher."""
    advantage: parts.AdvantageSettings = parts.AdvantageSettings()
    """How rewards become advantages."""
    critic: parts.CriticSettings = parts.CriticSettings()
    """A model that predicts the returns of completions, for advantage.credit = "gae"."""
    reward: parts.RewardSettings = parts.RewardSettings()
    """The reward of a correct and of a wrong completion."""
    grading: parts.GradingSettings = parts.GradingSettings()
    """Limits for graders in child processes."""
    filter: parts.FilterSettings = parts.FilterSettings()
    """Which groups and completions are left out of a batch."""
    pipeline: parts.PipelineSettings = parts.PipelineSettings()
    """How sampling and training interleave."""
    optimizer: parts.OptimizerSettings = parts.OptimizerSettings()
    """Settings of AdamW."""
    learner: parts.LearnerSettings = parts.LearnerSettings()
    """How a step is computed."""
    rollout: parts.RolloutSettings = parts.RolloutSettings()
    """How completions are sampled."""
    cluster: parts.ClusterSettings = parts.ClusterSettings()
    """Where generators and the ranks of the learner run."""
    evaluation: parts.EvaluationSettings = parts.EvaluationSettings()
    """How the run is measured."""
    budget: parts.BudgetSettings = parts.BudgetSettings()
    """When the run ends."""
    checkpoint: parts.CheckpointSettings = parts.CheckpointSettings()
    """How often the run is saved."""
    sft: parts.SftSettings = parts.SftSettings()
    """How `scalerl sft` makes a base model from the task's demonstrations."""
    sinks: parts.Listed[parts.SinkName] = ()
    """Services that also receive all rows."""
    derived: parts.Listed[str] = ()
    """Settings that are derived from the model and the problems when a run starts (`train --check` shows them). A
    setting that you set is removed from the list."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if found := list(conflicts(self)):
            text = "; ".join(sentence for _, sentence in found)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": found})
        return self

    @property
    def task_tables(self) -> Mapping[str, parts.TaskSettings]:
        """The training tasks, by the key of their table."""
        several = {f"tasks.{name}": task for name, task in self.tasks.items()}
        return several or {"task": self.task}

    @property
    def has_critic(self) -> bool:
        return isinstance(self.advantage.credit, parts.GaeSettings)

    @property
    def reference(self) -> parts.KlReference | None:
        """What the KL term compares the policy with; None without a term."""
        return self.kl.reference if self.kl.coefficient else None

    @property
    def hint(self) -> str:
        """The hint that the reference reads; "" without one."""
        return self.reference.hint if isinstance(self.reference, parts.SelfReferenceSettings) else ""

    @property
    def length_settings(self) -> tuple[str, ...]:
        """Keys of the settings whose sum is the longest completion; empty for a user's length control."""
        return LENGTHS.get(self.length.name, ())

    @property
    def longest(self) -> int:
        """Number of tokens in the longest prompt and completion together."""
        lengths = (getattr(self.length, key.partition(".")[2]) for key in self.length_settings)
        return self.rollout.max_prompt_tokens + sum(lengths)

    @property
    def best_set(self) -> str | None:
        """The evaluation set whose best checkpoint is kept, or None."""
        best = self.checkpoint.best or next(iter(self.tasks), "main")
        return None if best == "none" else best

    @property
    def eval_sets(self) -> tuple[str, ...]:
        """The names of all evaluation sets: one for each task, then the further sets."""
        return (*(self.tasks or ["main"]), *self.evaluation.sets)

    @property
    def eval_tables(self) -> Mapping[str, parts.EvalSetSettings]:
        """The further evaluation sets, by the key of their table."""
        return {f"evaluation.sets.{name}": task for name, task in self.evaluation.sets.items()}


Table = TypeVar("Table", bound=Settings)
Conflict = tuple[tuple[str, ...], str]
"""Settings that cannot work together, and a sentence on how to fix that."""


@dataclass(frozen=True)
class Rule:
    """A combination of settings that cannot work; it applies where all of them exist."""

    keys: str
    """Keys of the settings; a message begins with their values."""
    is_broken: Callable[..., object]
    """Called with these values, and those of `also`."""
    remedy: str
    """How or why to fix it; {r} is the recipe."""
    also: str = ""
    """Keys of further values, which a message leaves out."""


LENGTHS = {
    "interruption": ("length.thinking_max", "length.answer_budget"),
    "penalty": ("length.max_length",),
    "none": ("length.max_length",),
}
"""Keys of the settings whose sum is the longest completion, for each length control."""

_DIVIDED = ("full", "hybrid")
"""Values of learner.sharding with which a model is divided among ranks."""

# fmt: off
RULES: tuple[Rule, ...] = (
    Rule("pipeline.drain pipeline.push_every pipeline.max_lag",
         lambda *shown: mode_name(shown[-1]) == "",
         "set pipeline.drain = false and pipeline.push_every = 1 (PipelineRL), or pipeline.drain = true and "
         "pipeline.max_lag = pipeline.push_every - 1 (PPO-off-policy)",
         also="pipeline"),
    Rule("loss.name imitation.name kl.coefficient",
         lambda loss, imitation, coefficient: loss == imitation == "none" and not coefficient,
         "nothing would be trained on: choose a loss, imitate correct completions, or set kl.coefficient"),
    Rule("correction.low correction.high", operator.ge, "every token would be left out"),
    Rule("entropy.low entropy.high", operator.ge, "no token lies between them"),
    Rule("curriculum.hard curriculum.easy", operator.ge, "a problem could be easy and hard at once"),
    Rule("filter.refill filter.zero_variance",
         lambda refill, zero_variance: refill and not zero_variance,
         "no group would be dropped, so set filter.refill = 0 or filter.zero_variance = true"),
    Rule("length.thinking_min length.thinking_max", operator.gt,
         "the position is drawn between the two, so the first must not be above the second"),
    Rule("length.cache length.max_length", operator.gt, "even an empty answer would be penalised"),
    *(Rule(f"rollout.context rollout.max_prompt_tokens {' '.join(keys)}",
           lambda context, *lengths: sum(lengths[:-1]) > context and "rollout.context" not in lengths[-1],
           "set rollout.context = {r.longest} or shorten the others",
           also="derived")
      for keys in dict.fromkeys(LENGTHS.values())),
    Rule("learner.ranks learner.sharding",
         lambda ranks, sharding: sharding == "none" and ranks > 1,
         'set learner.sharding = "replicate" if a device can hold weights and optimiser, else "full"'),
    Rule("learner.shard_size learner.sharding learner.ranks",
         lambda size, sharding, ranks: not _is_divided(ranks, size) if sharding == "hybrid" else size is not None,
         'with learner.sharding = "hybrid" learner.shard_size is a divisor of learner.ranks below it, else not set'),
    Rule("kl.coefficient kl.reference.name learner.sharding",
         lambda _, name, sharding, used: sharding in _DIVIDED and used is not None and name != "server",
         'a second sharded model would be needed, so put the reference at a server, or set learner.sharding = '
         '"replicate"',
         also="reference"),
    Rule("advantage.credit.name learner.sharding",
         lambda credit, sharding: credit == "gae" and sharding in _DIVIDED,
         'a critic is not divided among ranks, so set learner.sharding = "replicate"'),
    Rule("pipeline.completions_per_group advantage.credit.name",
         lambda num, credit: num == 1 and credit != "gae",
         'an answer is compared with others of its group: set at least 2, or advantage.credit = "gae"'),
    Rule("pipeline.completions_per_group filter.zero_variance",
         lambda num, zero_variance, credit: num == 1 and credit == "gae" and zero_variance,
         "one answer has no variance, so every group would be dropped: set filter.zero_variance = false",
         also="advantage.credit.name"),
    Rule("kl.reference.temperature_frac kl.reference.hint",
         lambda frac, hint: frac == 1 and not hint,
         "the policy would be compared with itself: give it a hint, or kl.reference.temperature_frac below 1"),
    Rule("kl.reference.hint",
         lambda hint: hint and "{prompt}" not in hint,
         "it must contain {{prompt}}, which is replaced by the problem"),
    Rule("kl.reference.name rollout.temperature",
         lambda name, temperature: name == "server" and temperature != 1,
         "a server's log-probs are those at temperature 1, so set rollout.temperature = 1"),
    Rule("optimizer.bits optimizer.on_host learner.sharding",
         lambda bits, on_host, sharding: sharding in _DIVIDED and (bits != 32 or on_host),
         "sharding divides the optimiser among ranks already, so set optimizer.bits = 32 and optimizer.on_host = false "
         'or learner.sharding = "replicate"'),
    Rule("model.lora.bits model.lora.rank",
         lambda bits, rank: bits == 4 and not rank,
         "weights in 4 bits are frozen, so set model.lora.rank, or model.lora.bits = 16"),
    Rule("model.lora.bits learner.sharding",
         lambda bits, sharding: bits == 4 and sharding in _DIVIDED,
         'weights in 4 bits are not divided among ranks: set learner.sharding = "replicate" or model.lora.bits = 16'),
    Rule("optimizer.on_host rollout.engine",
         lambda on_host, engine: on_host and engine == "vllm",
         'vLLM is checked against the model on the GPU, so set optimizer.on_host = false or rollout.engine = "torch"'),
    Rule("optimizer.on_host model.lora.rank",
         lambda on_host, rank: on_host and rank,
         "the optimiser of adapters is small, so set optimizer.on_host = false"),
    Rule("model.router_replay task.environment.name",
         lambda replays, environment: replays and environment,
         "experts of several turns are not recorded, so set model.router_replay = false"),
    Rule("cluster.address rollout.generators",
         lambda address, generators: address and not generators,
         "the cluster would sample nothing, so set rollout.generators, or leave cluster.address out"),
    Rule("rollout.gpus_per_generator rollout.engine rollout.vllm.tensor_parallel",
         lambda _, engine, parallel, gpus: gpus not in (0, 1 if engine == "torch" else parallel),
         "a generator has one GPU with the torch engine, rollout.vllm.tensor_parallel with vLLM, or none",
         also="rollout.generator_gpus"),
    # For files and --set only: changes by `trusting` are not checked again.
    Rule("model.trust_remote_code", bool,
         "no recipe may say so: code that comes with a model runs only if you say so each time, with "
         "--trust-remote-code (trust_remote_code=True in Python)"),
    Rule("rollout.vllm.engine_args",
         lambda arguments: "trust_remote_code" in arguments,
         "no recipe sets trust_remote_code: use --trust-remote-code"),
    Rule("task.name tasks",
         lambda name, tasks: name and tasks,
         'a run has one task or several: move [task] to a table [tasks.NAME], or write task = "" where it is extended'),
    # Problems, evaluation sets and curves are named after tasks.
    Rule("tasks",
         lambda tasks: not all(map(_is_plain, tasks)),
         "the name of a task may only have letters, digits, _ and -"),
    Rule("evaluation.sets tasks",
         lambda sets, tasks: sets.keys() & (tasks.keys() or {"main"}),
         'each task has an evaluation set of its name, the only one "main": give the others different names'),
    Rule("checkpoint.best evaluation.sets tasks",
         lambda best, sets, tasks: best not in ["", "none", *(tasks or ["main"]), *sets],
         'checkpoint.best is an evaluation set: that of a task (of the only one "main"), one of evaluation.sets, or '
         '"none"'),
    Rule("reward.correct reward.wrong", operator.le, "a correct completion must be worth more"),
    Rule("grading.cpu_limit_s grading.timeout_s", operator.gt,
         "the time limit would end the answer first, so raise grading.timeout_s or lower grading.cpu_limit_s"),
    Rule("budget.steps budget.gpu_hours budget.flops",
         lambda *limits: limits == (None, None, None),
         "a run needs an end, so give at least one of them"),
    Rule("optimizer.schedule optimizer.decay_steps budget.steps",
         lambda schedule, *steps: schedule != "constant" and steps == (None, None),
         "the learning rate needs a number of steps to fall over: set optimizer.decay_steps, or budget.steps"),
    Rule("sft.epochs sft.steps", lambda *given: None not in given, "set one of the two"),
)
TASK_RULES: tuple[Rule, ...] = (
    Rule("grader graders",
         lambda grader, graders: grader and graders,
         "a task has one grader or several, so move the one to a table of its own in graders"),
    Rule("graders",
         lambda graders: graders and not any(grader.weight for grader in graders.values()),
         "every weight is 0, so nothing would be trained on"),
    Rule("graders",
         lambda graders: not all(map(_is_plain, graders)),
         "each names a column, so use only letters, digits, _ and -"),
    Rule("environment.step_cpu_s environment.step_s", operator.gt,
         "the time limit would end the step first, so raise environment.step_s or lower environment.step_cpu_s"),
    Rule("environment.reward_range",
         lambda ends: ends[0] >= ends[1],
         "the reward for value 1 must be above the reward for value 0"),
)
MIXED_RULES = (
    Rule("name", operator.not_, "set the name of the task"),
)
SAMPLING_RULE = Rule(
    "temperature samples_per_prompt",
    lambda temperature, num: temperature == 0 and num > 1,
    "greedy samples of a prompt are all the same, so set samples_per_prompt = 1 or raise the temperature",
)
# fmt: on


def conflicts(r: Recipe) -> Iterator[Conflict]:
    """Yield each combination that cannot work."""
    yield from _broken(RULES, r)
    for table, task in {**r.task_tables, **r.eval_tables}.items():
        yield from _broken(TASK_RULES, task, table)
    for name, task in r.tasks.items():
        yield from _broken(MIXED_RULES, task, f"tasks.{name}")
    for table, sampling in r.evaluation.sampling_of_sets():
        yield from _broken([SAMPLING_RULE], sampling, table)


def _broken(rules: Sequence[Rule], part: object, table: str = "") -> Iterator[Conflict]:
    for rule in rules:
        keys = rule.keys.split()
        if not all(_has(part, key) for key in keys):
            continue
        values = {dotted(table, key): value_at(part, key) for key in keys}
        if rule.is_broken(*values.values(), *(value_at(part, key) for key in rule.also.split())):
            stated = ", ".join(f"{key} {_with_verb(value)}" for key, value in values.items())
            yield tuple(values), f"{stated}: {rule.remedy.format(r=part)}"


def _has(part: Any, key: str) -> bool:
    """Return whether a table has this setting: another choice of an axis, or a user's function, may not."""
    table, _, name = key.rpartition(".")
    owner = type(value_at(part, table) if table else part)
    return name in getattr(owner, "model_fields", getattr(owner, "_fields", ()))


def _with_verb(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"holds {quoted(value)}" if value else "is empty"
    return "is not set" if value is None else f"is {show(value)}"


def _is_divided(num: int, size: int | None) -> bool:
    """Return whether a number has several parts of this size."""
    return size is not None and size < num and num % size == 0


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w-]+", name) is not None


def value_at(part: object, key: str) -> Any:
    """Return the value of a setting by dotted key."""
    return functools.reduce(getattr, key.split("."), part)


def replaced(part: Table, changes: Mapping[str, Any]) -> Table:
    """Return a table with settings changed by dotted key, without validation."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if rest:
            value = replaced(getattr(part, name), {rest: value})
        part = part.model_copy(update={name: value})
    return part


def trusting(recipe: Recipe, *, trust_remote_code: bool) -> Recipe:
    """Return the recipe with the user's decision on code that comes with the model."""
    return replaced(recipe, {"model.trust_remote_code": trust_remote_code})


def code_outside(recipe: Recipe) -> list[str]:
    """Return the code that a recipe names: import paths, and settings of vLLM."""
    code: list[str] = []
    for key, value in leaves(recipe.model_dump(mode="json"), numbered=True):
        if key.rpartition(".")[2] in ("name", "grader", "program", "tools"):
            texts = value if isinstance(value, list) else [value]
            code += [text for text in texts if isinstance(text, str) and ":" in text]
    if recipe.rollout.engine == "vllm":
        code += vllm_code(recipe.rollout.vllm)
    return list(dict.fromkeys(code))


def vllm_code(settings: parts.VllmSettings) -> list[str]:
    """Return the settings with which vLLM may run code: another interpreter, and texts, which may name a class."""
    texts = [(key, value) for key, value in leaves(settings.engine_args, "engine_args") if _has_text(value)]
    chosen = [("python", settings.python)] if settings.python else []
    return [f"rollout.vllm.{key} = {json.dumps(value)}" for key, value in [*chosen, *texts]]


def _has_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str)


def mode_name(pipeline: parts.PipelineSettings) -> str:
    """Return the paper's name for the regime of the pipeline's settings; "" if it has none."""
    if pipeline.drain:
        fits = pipeline.max_lag == pipeline.push_every - 1
        name = f"PPO-off-policy-{pipeline.push_every}"
    else:
        fits = pipeline.push_every == 1
        bounded = "the mean lag" if pipeline.waits_for == "batch" else "every lag"
        name = f"PipelineRL-{pipeline.max_lag} (bounds {bounded})"
    if not fits:
        return ""
    return name if pipeline.max_lag else "synchronous"


def body_dtype(model: parts.ModelSettings, *, gpu: bool) -> Literal["bfloat16", "float32"]:
    """Return the precision of the body; "auto" depends on the device."""
    if model.dtype == "auto":
        return "bfloat16" if gpu else "float32"
    return model.dtype


def pushes_adapters(model: parts.ModelSettings, rollout: parts.RolloutSettings) -> bool:
    """Return whether adapters are pushed to the engine separately, not merged into the weights."""
    return model.lora.rank > 0 and rollout.engine == "torch"


def remedies(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the settings of this recipe that help against each kind of alarm (forecast/report/alarms.py)."""
    names = recipe.length_settings[::-1]
    if recipe.filter.drop_truncated:
        keep = ("filter.drop_truncated = false",)
        # Without interruptions, nothing else teaches the model to be brief, so this comes first.
        names = (*names, *keep) if recipe.length.name == "interruption" else (*keep, *names)
    varied = ('entropy = "clip_cov"',) if recipe.entropy.name == "none" else ()
    return {
        "truncated": names,
        "backend": (*_closer(recipe), *_corrections(recipe)),
        "mismatch": (*_corrections(recipe), *_younger(recipe)),
        "entropy": varied,
        "unused_tools": varied,
        "solved": ('curriculum = "uniform"',),
    }


def rounds_generator(recipe: Recipe, *, gpu: bool) -> str:
    """Return the setting that makes generator and learner compute tokens differently; "" if there is none."""
    if recipe.rollout.engine == "vllm" and recipe.rollout.vllm.quantisation:
        return f'rollout.vllm.quantisation = "{recipe.rollout.vllm.quantisation}"'
    if body_dtype(recipe.model, gpu=gpu) != "float32" and recipe.model.fp32_head != "both":
        return f'model.fp32_head = "{recipe.model.fp32_head}"'
    return ""


def _closer(recipe: Recipe) -> tuple[str, ...]:
    """Return settings that bring the arithmetic of generator and learner closer: first the head, then the body."""
    if recipe.model.fp32_head != "both":
        return ('model.fp32_head = "both"',)
    if recipe.rollout.engine == "vllm" and recipe.rollout.vllm.quantisation:
        return ('rollout.vllm.quantisation = ""',)
    return ('model.dtype = "float32"',)


def _corrections(recipe: Recipe) -> tuple[str, ...]:
    """Return settings that exclude tokens on which generator and learner disagree from the loss."""
    return ('correction = "band"',) if recipe.correction.name == "none" else ()


def _younger(recipe: Recipe) -> tuple[str, ...]:
    """Return a setting that lowers the lag."""
    lag = recipe.pipeline.max_lag // 2
    return (f"pipeline.max_lag = {lag}",) if recipe.pipeline.max_lag and not recipe.pipeline.drain else ()
