"""The tables of a recipe, each setting documented by the string under it.

One axis is one field. An axis with choices is a table with a `name`; its other settings are the keyword-only arguments
of the function of that name (a test compares them). A name with a colon is an import path: "package.module:function".
To add a choice, add a class here and its name to the axis below it. Defaults are ScaleRL's; recipes/scalerl.toml gives
the sources of the numbers.
"""

from collections.abc import Generator, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Fraction = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """A table of a recipe: frozen and strict, so that no setting is silently dropped or converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CustomSettings(Settings):
    """A user's function, by import path; every other key of the table is one of its keyword-only arguments."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """Import path of the function: "package.module:function"."""


def _origin(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "custom" if isinstance(name, str) and ":" in name else "built-in"


Choices = TypeVar("Choices")

# Axis[A | B]: one of these choices or a user's function, distinguished by the colon and then by name.
Axis = Annotated[
    Annotated[Choices, Field(discriminator="name"), Tag("built-in")] | Annotated[CustomSettings, Tag("custom")],
    Discriminator(_origin),
]


class LoraSettings(Settings):
    rank: int = Field(default=0, ge=0)
    """Rank of the adapters that are trained instead of the model's own weights; 0 trains the weights."""
    alpha: float = Field(default=32.0, gt=0)
    """What the adapters add is scaled by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the linear layers that get an adapter: ["q_proj", "v_proj"]; empty means all but the head."""
    bits: Literal[16, 4] = 16
    """Bits of the frozen weights under adapters: 16 as the model's files have them, 4 rounds those of all linear layers
    but the head to NF4 (QLoRA). The torch engine then samples with the rounded ones, too."""


class ModelSettings(Settings):
    path: str | None = None
    """Folder or hub name of the base model, a .gguf file, "tiny-base", "tiny-code-base", "tiny-tools-base" or
    "smollm2-135m"; required for training."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of the body; auto means bfloat16 on a GPU and float32 on a CPU. Master weights are always float32."""
    fp32_head: Literal["both", "generator", "learner", "none"] = "both"
    """Where the head and the log-probs are computed in FP32 (to 1e-6 to 2e-4, docs/math.md); one side alone helps only
    partly."""
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run Python code that comes with the model. No file sets it, the option --trust-remote-code does."""
    lora: LoraSettings = LoraSettings()
    """Adapters of low rank."""
    router_replay: bool = False
    """Mixtures of experts: train every token with the experts that the engine routed it to, and log how often the
    learner would have chosen others."""


class GraderSettings(Settings):
    """One of several graders of a task; every other key is a keyword-only argument of that grader."""

    model_config = ConfigDict(extra="allow")

    name: str
    """Name or import path of the grader."""
    weight: float = Field(default=1.0, ge=0)
    """Its weight in the mean of the graders' values; with 0 it is measured and not trained on."""


class EnvironmentSettings(Settings):
    """What answers the model's turns; every other key is a setting of that environment."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    """Name of an environment, or import path of a class or function; empty for none: one completion is the answer."""
    max_turns: int = Field(default=8, ge=1)
    """Turns of the model after which a conversation that goes on is truncated."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the model may write in all turns together, where [length] bounds each; not set: as many as
    rollout.context holds beside the prompt and the observations."""
    rewards: Literal["last", "sum", "mean"] = "last"
    """How a conversation's value comes from the rewards of its turns."""
    reward_range: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 1.0)
    """Rewards that map to 0 and to 1; the value is linear in between and is clipped to 0 to 1."""
    in_process: bool = False
    """Run an environment or tool of your own in the process that trains instead of a process per conversation: faster
    and repeatable to the last digit, but a step that hangs or crashes stops the run."""
    step_s: float = Field(default=60.0, gt=0, le=86400)
    """Seconds that a step of an environment in a process of its own may take; a conversation that takes longer has no
    verdict. `train --check` measures them."""
    step_cpu_s: float = Field(default=30.0, gt=0)
    """Seconds of CPU time that a step may take; independent of the load of the machine."""
    step_memory_mb: int = Field(default=1024, ge=16, le=2**20)
    """Memory that a conversation may use in addition to what the environment imports, on Linux."""

    @property
    def own(self) -> dict[str, Any]:
        """Return the settings of the environment itself."""
        return dict(self.model_extra or {})


class TaskSettings(Settings):
    """Which problems are used, and how they are prompted; every other key is a setting of that task."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    """Name of a task, or import path of a function that returns one; required for training."""
    template: str = "{prompt}"
    """Text around a problem, which replaces {prompt}."""
    chat: bool = False
    """Send the problem as a user's turn in the chat template of the model's tokenizer."""
    system: str = ""
    """System prompt of that chat."""
    grader: str = ""
    """Name or import path of the grader; empty for the task's own."""
    graders: dict[str, GraderSettings] = Field(default_factory=dict)
    """Several graders instead of one, each under the name of its column in rows: [task.graders.NAME]."""
    thinking_start: str | None = None
    """Text that begins a completion's thinking, if not the task's own; empty for no thinking."""
    thinking_end: str | None = None
    """Text that ends it; what follows is graded."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What answers the model's turns: tools, or a game."""

    @property
    def shared(self) -> dict[str, Any]:
        """Return the settings that every task has, by name."""
        return {name: getattr(self, name) for name in TaskSettings.model_fields if name != "name"}

    def __iter__(self) -> Generator[tuple[str, Any], None, None]:
        """Yield the name and the task's own settings, which its function takes."""
        yield from {"name": self.name, **(self.model_extra or {})}.items()


class MixedTaskSettings(TaskSettings):
    """One of several tasks of a run."""

    weight: float = Field(default=1.0, gt=0)
    """How often its problems are drawn, relative to the weights of the other tasks."""
    algorithm: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ for this task: those of advantage, entropy and imitation, kl.coefficient,
    filter.zero_variance and filter.drop_truncated. Loss and averaging are the recipe's."""


class NoPositiveResamplingSettings(Settings):
    name: Literal["no_positive_resampling"] = "no_positive_resampling"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.9
    """A problem whose pass rate reaches this does not return in later epochs."""
    history: Literal["latest", "cumulative"] = "latest"
    """Whether the pass rate is that of a problem's latest group or of all its groups."""


class PoolsSettings(Settings):
    name: Literal["pools"] = "pools"
    easy: Annotated[float, Field(gt=0, le=1)] = 0.9
    """A problem whose pass rate reaches this is easy."""
    hard: Fraction = 0.0
    """A problem whose pass rate is not above this is hard."""
    easy_frac: Fraction = 0.1
    """Share of the epochs in which an easy problem is asked; 0: never again."""
    hard_frac: Fraction = 0.5
    """Share of the epochs in which a hard problem is asked."""
    history: Literal["latest", "cumulative"] = "latest"
    """Whether the pass rate is that of a problem's latest group or of all its groups."""


class UniformSettings(Settings):
    name: Literal["uniform"] = "uniform"


Curriculum = Axis[NoPositiveResamplingSettings | PoolsSettings | UniformSettings]


class InterruptionSettings(Settings):
    name: Literal["interruption"] = "interruption"
    thinking_min: int = Field(default=10240, ge=1)
    """Earliest token after which thinking is interrupted; the position is drawn for each request."""
    thinking_max: int = Field(default=12288, ge=1)
    """Latest token after which thinking is interrupted."""
    marker: str = Field(
        default="Okay, time is up. Let me stop thinking and formulate a final answer now. </think>", min_length=1
    )
    """Text forced at that position, the paper's if not set; it must hold the task's thinking_end and is never trained
    on."""
    answer_budget: int = Field(default=2048, ge=1)
    """Tokens left after the end of thinking, including a forced marker."""


class PenaltySettings(Settings):
    name: Literal["penalty"] = "penalty"
    max_length: int = Field(default=14336, ge=1)
    """Tokens at which generation ends and the penalty reaches -1."""
    cache: int = Field(default=2048, ge=1)
    """Number of tokens before max_length over which the penalty grows from 0."""


class UnlimitedSettings(Settings):
    name: Literal["none"] = "none"
    max_length: int = Field(default=14336, ge=1)
    """Tokens at which generation ends."""


Length = Axis[InterruptionSettings | PenaltySettings | UnlimitedSettings]


class CispoSettings(Settings):
    name: Literal["cispo"] = "cispo"
    cap: float = Field(default=5.0, gt=0)
    """Absolute cap on the importance ratio (not 1 + cap); a capped token keeps its gradient."""


class DapoSettings(Settings):
    name: Literal["dapo"] = "dapo"
    clip_low: Fraction = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.26, ge=0)
    """The ratio is clipped above at 1 + clip_high; equal to clip_low this is GRPO."""


class GspoSettings(Settings):
    name: Literal["gspo"] = "gspo"
    clip_low: Fraction = 3e-3
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=4e-3, ge=0)
    """The sequence ratio is clipped above at 1 + clip_high."""
    length_normalised: bool = True
    """Whether the sequence ratio is the geometric mean over its tokens, as in GSPO's own paper, or their product."""


class TisSettings(Settings):
    name: Literal["tis"] = "tis"
    cap: float = Field(default=2.0, gt=0)
    """Absolute cap on the importance ratio."""


class NoLossSettings(Settings):
    name: Literal["none"] = "none"


Loss = Axis[CispoSettings | DapoSettings | GspoSettings | TisSettings | NoLossSettings]


class NoCorrectionSettings(Settings):
    name: Literal["none"] = "none"


class BandSettings(Settings):
    name: Literal["band"] = "band"
    low: float = Field(default=0.5, ge=0)
    """Tokens with a smaller ratio are left out."""
    high: float = Field(default=5.0, gt=0)
    """Tokens with a larger ratio are left out."""


class SequenceTruncateSettings(Settings):
    name: Literal["sequence_truncate"] = "sequence_truncate"
    cap: float = Field(default=2.0, gt=0)
    """Largest ratio of a completion."""
    length_normalised: bool = False
    """Whether the ratio of a completion is the geometric mean over its tokens, or their product."""


class SequenceMaskSettings(Settings):
    name: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.0, ge=0)
    """Completions with a smaller ratio are left out."""
    high: float = Field(default=2.0, gt=0)
    """Completions with a larger ratio are left out."""
    length_normalised: bool = False
    """Whether the ratio of a completion is the geometric mean over its tokens, or their product."""


Correction = Axis[NoCorrectionSettings | BandSettings | SequenceTruncateSettings | SequenceMaskSettings]


class NoEntropyControlSettings(Settings):
    name: Literal["none"] = "none"


class EntropyBonusSettings(Settings):
    name: Literal["bonus"] = "bonus"
    coefficient: float = Field(default=1e-3, gt=0)
    """Weight of the policy's entropy beside the reward, whose advantages have a standard deviation of 1."""


class ClipCovSettings(Settings):
    name: Literal["clip_cov"] = "clip_cov"
    fraction: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of the trained tokens that lose their policy gradient, at least one token."""
    low: float = 1.0
    """Smallest covariance of log-prob and advantage of a token that may lose it."""
    high: float = 5.0
    """Largest covariance of such a token."""


EntropyControl = Axis[NoEntropyControlSettings | EntropyBonusSettings | ClipCovSettings]


class NoImitationSettings(Settings):
    name: Literal["none"] = "none"


class CorrectImitationSettings(Settings):
    name: Literal["correct"] = "correct"
    coefficient: float = Field(default=0.1, gt=0)
    """Weight of the mean negative log-likelihood of correct completions beside the loss."""


Imitation = Axis[NoImitationSettings | CorrectImitationSettings]


class K3Settings(Settings):
    name: Literal["k3"] = "k3"


class ReverseKlSettings(Settings):
    name: Literal["reverse"] = "reverse"
    cap: float = Field(default=5.0, gt=0)
    """Absolute cap on the importance ratio of a token's term."""


KlEstimator = Axis[K3Settings | ReverseKlSettings]


class StartReferenceSettings(Settings):
    name: Literal["start"] = "start"


class TeacherReferenceSettings(Settings):
    name: Literal["teacher"] = "teacher"
    path: str = Field(min_length=1)
    """Folder or hub name of the teacher, which has the same tokenizer; it is loaded beside the policy."""


class ServerReferenceSettings(Settings):
    name: Literal["server"] = "server"
    url: str = Field(min_length=1)
    """Address of a server with OpenAI's interface that returns log-probs of a prompt, such as vLLM's:
    "http://HOST:8000/v1"."""
    model: str = Field(min_length=1)
    """Name of the model at the server, which has the same tokenizer."""
    api_key: str = ""
    """Key of the server, or "env:NAME" for a variable that holds it."""
    params: float = Field(default=0.0, ge=0)
    """Parameters that its model multiplies a token by, for the compute axis; 0: its work is not counted."""
    num_parallel: int = Field(default=16, ge=1)
    """Requests at the same time."""


class SelfReferenceSettings(Settings):
    name: Literal["self"] = "self"
    temperature_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Temperature of the reference as a share of that of sampling: below 1 the policy follows its own most likely
    tokens."""
    hint: str = ""
    """What the policy is asked as its own teacher, before the task's template: {prompt} stands for the problem and
    {answer} for its answer. Empty for the problem alone."""


KlReference = Axis[StartReferenceSettings | TeacherReferenceSettings | ServerReferenceSettings | SelfReferenceSettings]


class KlSettings(Settings):
    coefficient: float = Field(default=0.0, ge=0)
    """Weight of a KL term that pulls the policy towards a reference, beside the loss; 0, as in the paper, for none."""
    estimator: KlEstimator = K3Settings()
    """The term of a token: "k3" as in GRPO, or "reverse", the policy gradient of the reverse KL, as in distillation."""
    reference: KlReference = StartReferenceSettings()
    """What the policy is compared with: the model as it was at the start, in a second copy of the weights; a teacher,
    by its folder or at a server; or the policy itself with a hint or at a lower temperature."""


class PromptAverageSettings(Settings):
    name: Literal["prompt"] = "prompt"


class SampleAverageSettings(Settings):
    name: Literal["sample"] = "sample"


class TokenAverageSettings(Settings):
    name: Literal["token"] = "token"


class ConstantDenominatorSettings(Settings):
    name: Literal["constant"] = "constant"
    denominator: float = Field(gt=0)
    """What the sum of token losses is divided by."""


Weights = Axis[PromptAverageSettings | SampleAverageSettings | TokenAverageSettings | ConstantDenominatorSettings]


class MeanBaselineSettings(Settings):
    name: Literal["mean"] = "mean"


class LeaveOneOutBaselineSettings(Settings):
    name: Literal["leave_one_out"] = "leave_one_out"


Baseline = Axis[MeanBaselineSettings | LeaveOneOutBaselineSettings]


class BatchNormalisationSettings(Settings):
    name: Literal["batch"] = "batch"


class PromptNormalisationSettings(Settings):
    name: Literal["prompt"] = "prompt"


class NoNormalisationSettings(Settings):
    name: Literal["none"] = "none"


Normalisation = Axis[BatchNormalisationSettings | PromptNormalisationSettings | NoNormalisationSettings]


class CompletionCreditSettings(Settings):
    name: Literal["completion"] = "completion"


class GaeSettings(Settings):
    name: Literal["gae"] = "gae"
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of the reward per token, or per turn."""
    lam: Fraction = 0.95
    """1 compares what came with the critic's value; 0 compares each value with the next one."""
    level: Literal["token", "turn"] = "token"
    """Whether each token has an advantage of its own, or each turn of a conversation."""


class StatesSettings(Settings):
    name: Literal["states"] = "states"
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Discount of a conversation's value per turn before its end."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of the comparison of turns relative to that of conversations."""


Credit = Axis[CompletionCreditSettings | GaeSettings | StatesSettings]


class CriticSettings(Settings):
    """Settings of the critic of advantage.credit = "gae": a second model of the policy's size, which begins as it."""

    lr: float | None = Field(default=None, gt=0)
    """Its learning rate; not set: ten times the policy's. Its other settings are those of optimizer."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start in which only the critic learns."""


class AdvantageSettings(Settings):
    baseline: Baseline = MeanBaselineSettings()
    """What is subtracted from a reward: the mean of its group, or of the others in it."""
    normalisation: Normalisation = BatchNormalisationSettings()
    """Whose standard deviation advantages are divided by: the batch's, the prompt's, or none."""
    credit: Credit = CompletionCreditSettings()
    """Advantage of each token: that of its completion; "gae", by a critic, as in PPO; or "states", which adds the
    advantage of its turn over other turns of the group that began at the same state of an environment."""


class RewardSettings(Settings):
    correct: float = 1.0
    """Reward of a completion of value 1, before the length control's adjustment."""
    wrong: float = -1.0
    """Reward of a completion of value 0, linear in between. A completion without a verdict is never trained on."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The value from which on a completion is correct: for pass rates, the curriculum and evaluations."""


class GradingSettings(Settings):
    """Limits for graders that run in child processes: math, those of gym, and a user's own."""

    num_workers: int = Field(default=0, ge=0)
    """Answers that each grader grades at the same time; 0 means twice the number of cores, at most 32, or 64 for a
    grader that waits for others: a judge, or a coroutine function."""
    timeout_s: float = Field(default=10.0, gt=0, le=86400)
    """Seconds after which an answer is given up; it then has no verdict."""
    cpu_limit_s: float = Field(default=3.0, gt=0)
    """Seconds of CPU time after which it is given up; independent of the load of the machine."""
    memory_limit_mb: int = Field(default=512, ge=16, le=2**20)
    """Memory that grading one answer may use in addition to the grader's imports, on Linux."""


class FilterSettings(Settings):
    zero_variance: bool = True
    """Drop groups whose verdicts are all equal."""
    refill: int = Field(default=0, ge=0)
    """Replace dropped groups until a batch is full, as DAPO does, by at most this many batches of further groups per
    step; 0, as in the paper, trains on what is left. What is sampled for it counts as compute."""
    drop_truncated: bool = True
    """Drop completions that reached their length limit, as the paper does; false trains on them as they were graded."""


class PipelineSettings(Settings):
    max_lag: int = Field(default=8, ge=0)
    """Steps that training may lag behind sampling: at most (max_lag + 1) batches are untrained at a time, so the mean
    number of steps between a group's first token and training on it is at most max_lag; 0 is synchronous."""
    push_every: int = Field(default=1, ge=1)
    """Steps between two pushes of weights to the generator."""
    drain: bool = False
    """Finish everything sampled with one policy before pushing the next: no completion then mixes policies."""
    waits_for: Literal["batch", "groups"] = "batch"
    """What a step waits for: "batch", the paper's rule, only for a full batch, so a slow group is trained late;
    "groups" also for every group that would otherwise get older than max_lag steps, so one slow group can stop
    training."""
    groups_per_batch: int = Field(default=48, ge=1)
    """Problems that a step trains on, before any filter."""
    completions_per_group: int = Field(default=16, ge=1)
    """Completions sampled per problem; advantages compare them, so at least two."""


class OptimizerSettings(Settings):
    lr: float = Field(default=5e-7, gt=0)
    """Learning rate after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How it falls after the warm-up; the paper's is constant."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Steps until it has fallen, warm-up included; not set: budget.steps."""
    final_lr_frac: Fraction = 0.0
    """The fraction of lr that it falls to."""
    warmup_steps: int = Field(default=100, ge=0)
    """Steps over which it rises linearly from 0."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's decay of the mean squared gradient."""
    eps: float = Field(default=1e-15, gt=0)
    """AdamW's epsilon, far below usual because RL gradients are small."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    grad_clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0 turns clipping off."""
    bits: Literal[32, 8] = 32
    """Bits of each number of AdamW's two moments: 8 takes a quarter of the memory and rounds them, without bias, to
    about 5 %."""
    on_host: bool = False
    """Keep FP32 weights and moments in host memory, apart from the head's weights; an update brings them to the GPU in
    portions. 12 bytes less per weight, and the same numbers."""


class LearnerSettings(Settings):
    micro_batch_tokens: int = Field(default=32768, ge=1)
    """Maximum number of tokens of one forward and backward pass; splitting a batch does not change its gradient."""
    share_prompts: bool = True
    """Compute a prompt once for all its completions in a pass, where that saves at least a tenth of the tokens and, on
    a GPU, passes are large enough for it to be faster; the gradient is the same."""
    gradient_checkpointing: Literal[True, False, "auto"] = "auto"
    """Recompute activations in the backward pass: less memory, about a third more compute, the same gradient. auto does
    so if the activations would not fit in a GPU beside the rest."""
    ranks: int = Field(default=1, ge=1)
    """Processes that compute a step together, one per device; a batch is divided among them by tokens."""
    sharding: Literal["none", "replicate", "full", "hybrid"] = "none"
    """What each rank holds: replicate, a whole copy of weights and optimiser; full, its part of both (FSDP2); hybrid,
    its part of a copy that learner.shard_size ranks hold together. none is this process alone."""
    shard_size: int | None = Field(default=None, ge=2)
    """With hybrid sharding, the number of ranks that hold one copy together: those of a node."""
    context_ranks: int = Field(default=1, ge=1)
    """With full sharding, the number of neighbouring ranks that compute each pass together, each a slice of its tokens
    and in attention some of the heads: activations of long sequences are divided among them. A divisor of ranks."""
    silent_s: float = Field(default=15.0, gt=0)
    """Seconds without a sign of life after which a rank counts as lost. A rank of this machine that was not stopped has
    at least 60 s, since a long call may hold up its Python."""
    start_s: float = Field(default=3600.0, gt=0)
    """Seconds that ranks may take to download the model, and again to load it; then the run ends."""


class VllmSettings(Settings):
    """How vLLM is set up, if rollout.engine is "vllm". Other settings of [rollout] mean the same for all engines."""

    tensor_parallel: int = Field(default=1, ge=1)
    """Number of GPUs that every layer is spread over."""
    devices: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Numbers of the GPUs that vLLM may use, tensor_parallel of them; empty for the first ones."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Share of a GPU's memory that vLLM may take for its weights and cache; more where the learner is elsewhere."""
    prefix_caching: bool = True
    """Whether the completions of a problem share the cache of its prompt, as long as the weights are the same."""
    quantisation: str = ""
    """How vLLM quantises the weights that it is given, such as "fp8"; empty: not at all."""
    python: str = ""
    """Interpreter of an environment that has scalerl and vLLM; empty: the one that trains."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Other arguments of vllm.EngineArgs, passed on as they are: [rollout.vllm.engine_args]."""


class RolloutSettings(Settings):
    engine: Literal["torch", "vllm"] = "torch"
    """Name of the engine that samples completions."""
    slots: int | None = Field(default=None, ge=1)
    """Completions generated at the same time; not set: (max_lag + 1) batches of them, as far as memory allows."""
    context: int = Field(default=16384, ge=1)
    """Maximum number of tokens of a prompt and its completion together."""
    max_prompt_tokens: int = Field(default=2048, ge=1)
    """Problems with a longer prompt are left out."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature in training; the learner's log-probs use the same."""
    vllm: VllmSettings = VllmSettings()
    """How vLLM is set up, if it is the engine."""
    generators: int = Field(default=0, ge=0)
    """Engines that sample while the learner trains, each on devices of its own, with slots / generators slots each; 0:
    one engine, which the torch engine runs in turns with the learner on its device."""
    max_generators: int | None = Field(default=None, ge=1)
    """Generators on a cluster that gains and loses nodes: the run begins with `generators`, and as many more take part
    as there is room for, up to this number; not set: no more."""
    gpus_per_generator: int | None = Field(default=None, ge=0)
    """GPUs of each generator; not set: 1, vllm.tensor_parallel for vLLM, or 0 on machines without a GPU."""
    max_replacements: int = Field(default=10, ge=0)
    """Generators that may be replaced within an hour because they died or hung; the next loss ends the run."""
    silent_s: float = Field(default=15.0, gt=0)
    """Seconds without an answer after which a generator is replaced."""

    @property
    def generator_gpus(self) -> int:
        """GPUs of each generator on machines that have some."""
        if self.gpus_per_generator is not None:
            return self.gpus_per_generator
        return self.vllm.tensor_parallel if self.engine == "vllm" else 1


class ClusterSettings(Settings):
    address: str = ""
    """Ray cluster that generators and the learner's ranks run on: "auto" for the one this machine belongs to,
    "HOST:PORT", or "local" to start Ray on this machine for this run; empty: no Ray, generators and ranks are child
    processes of the one that trains."""


class EvalSetSettings(TaskSettings):
    """A further evaluation set; what is not set here is as for the others, but for the number of problems."""

    num_prompts: int | None = Field(default=None, ge=1)
    """Problems of this set; not set: all rows of a file or data set, 1000 of a task that makes its own."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Completions sampled for each problem of this set."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of this set; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample this set from the smallest set of tokens with this probability."""


class EvalSampling(NamedTuple):
    """How the problems of one evaluation set are sampled."""

    samples_per_prompt: int
    temperature: float
    top_p: float


class EvaluationSettings(Settings):
    every: int = Field(default=100, ge=1)
    """Steps between two evaluations; there is always one before the first step."""
    num_prompts: int = Field(default=1000, ge=1)
    """Problems of the task that are withheld from training and evaluated on."""
    samples_per_prompt: int = Field(default=16, ge=1)
    """Completions sampled for each problem; the reported value is the mean of `correct`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this probability."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Selects the withheld problems and the sampling noise: with equal seeds runs can be compared per prompt."""
    sets: dict[str, EvalSetSettings] = Field(default_factory=dict)
    """Further evaluation sets, each a task under its own name: [evaluation.sets.NAME]."""

    def sampling(self, name: str) -> EvalSampling:
        """Return how the set of this name is sampled."""
        own = self.sets.get(name)
        values = {field: None if own is None else getattr(own, field) for field in EvalSampling._fields}
        return EvalSampling(**{key: getattr(self, key) if value is None else value for key, value in values.items()})

    def sampling_of_sets(self) -> Iterator[tuple[str, EvalSampling]]:
        """Yield the sampling of the tasks' own sets and of each further set, with the table that sets it."""
        # A name that no set can have, for what holds without one.
        yield "evaluation", self.sampling("")
        for name, own in self.sets.items():
            if own.temperature is not None or own.samples_per_prompt is not None:
                yield f"evaluation.sets.{name}", self.sampling(name)


class BudgetSettings(Settings):
    """The run ends when the first limit is reached; at least one must be set."""

    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps."""
    gpu_hours: float | None = Field(default=None, gt=0)
    """Devices held x hours of training, generators and learners together; without GPUs, hours of CPU time."""
    flops: float | None = Field(default=None, gt=0)
    """Floating-point operations of generator and learner."""


class CheckpointSettings(Settings):
    every: int = Field(default=100, ge=1)
    """Steps between two checkpoints."""
    every_minutes: float = Field(default=5.0, gt=0)
    """Minutes after which a checkpoint is written between two of them, so that a kill costs no more than that."""
    keep: int = Field(default=2, ge=1)
    """How many of the latest checkpoints are kept."""
    best: str = ""
    """Evaluation set whose best checkpoint is kept too, saved when it is evaluated; not set: that of the first task,
    which is called "main" if there is only one. With "none" only the latest are kept."""


SinkName = Literal["tensorboard", "trackio", "wandb"]


NEW_MODEL = "new"


class SftSettings(Settings):
    """How a base model is made from demonstrations; RL's optimizer settings are not used."""

    model: str = ""
    """Model to start from, named as model.path is, which is used if this is empty; "new" builds a small Llama."""
    new_tokens: Literal["none", "characters", "words"] = "none"
    """Tokens to add to the tokenizer: for characters of the demonstrations that it does not know, or for those and for
    words that it writes with several tokens. A new model has all characters anyway."""
    lr: float | None = Field(default=None, gt=0)
    """Largest learning rate; not set: 3e-5, the paper's, or 2e-3 for a new model."""
    epochs: float | None = Field(default=None, gt=0)
    """Times that every demonstration is trained on; not set: 4, as in the paper, unless steps is set."""
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps, instead of epochs; not set for a new model: 5000."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a step, prompts included; not set: the smaller of 2 million and an eighth of an epoch, or 9000 for a
    new model."""
    warmup_frac: Fraction = 0.04
    """Share of the steps over which the learning rate rises linearly."""
    num_demonstrations: int | None = Field(default=None, ge=2)
    """Largest number of demonstrations; not set: all of a file, of a task that makes its own 10,000, or 250,000 for a
    new model."""
    num_heldout: int = Field(default=4000, ge=1)
    """Demonstrations that only measure the loss; at most a tenth of all."""
    ngram_words: int = Field(default=13, ge=0)
    """Leave out demonstrations whose prompt shares so many words in a row with a problem of an evaluation set, or all
    words of a shorter one; 0: none."""
    trivial_samples: int = Field(default=0, ge=0)
    """Leave out demonstrations of trivial prompts, those that the model to start from answers right in every one of so
    many samples; 0: none, and nothing is sampled. Not for a new model."""
    max_tokens: int | None = Field(default=12288, ge=2)
    """Leave out demonstrations with more tokens, prompt included, the paper's if not set; or with more than the context
    of the model."""
