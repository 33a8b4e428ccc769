"""The tables of a recipe; the string under each setting documents it.

One axis is one field. An axis with choices is a table with a `name`; its other settings are the keyword-only arguments
of the function with that name (a test compares them). A name with a colon is an import path: "package.module:function".
To add a choice, add a class here and add it to the axis below. Defaults are those of ScaleRL; recipes/scalerl.toml has
the sources of the numbers.
"""

from collections.abc import Generator, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from scalerl.errors import RecipeError

Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Item = TypeVar("Item")
Listed = Annotated[tuple[Item, ...], Field(strict=False)]
"""A list in a file."""


class Settings(BaseModel):
    """A table of a recipe: frozen and strict, so that no setting is silently dropped or converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CustomSettings(Settings):
    """A user's function by import path; all other keys of the table are its keyword-only arguments."""

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
    rank: Whole = 0
    """Rank of adapters, trained instead of the weights; 0 for none."""
    alpha: Positive = 32.0
    """The output of adapters is scaled by alpha / rank."""
    targets: Listed[str] = ()
    """Layers with adapters, such as ["q_proj"]; empty for all linear ones but the head."""
    bits: Literal[16, 4] = 16
    """Bits of the frozen weights under adapters: 16 keeps the files' dtype, 4 rounds all linear layers but the head to
    NF4 (QLoRA), in the torch engine too."""


class ModelSettings(Settings):
    path: str | None = None
    """Folder, hub name or .gguf file of the base model, or "tiny-base", "tiny-code-base", "tiny-tools-base",
    "smollm2-135m"."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of the body (auto: bfloat16 on a GPU, float32 on a CPU); master weights are float32."""
    fp32_head: Literal["both", "generator", "learner", "none"] = "both"
    """Where head and log-probs are computed in FP32; one side alone helps less."""
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run Python code that comes with the model. Only the option --trust-remote-code can set this, not a file."""
    lora: LoraSettings = LoraSettings()
    """Low-rank adapters."""
    router_replay: bool = False
    """Mixtures of experts: train every token with the experts that the engine chose, and log how often the learner
    chooses others."""

    @property
    def required_path(self) -> str:
        """The path of the model to train; RecipeError if there is none."""
        if self.path is None:
            raise RecipeError("model.path is not set, so there is nothing to train: add --set model.path=...")
        return self.path


class GraderSettings(Settings):
    """One of several graders of a task; all other keys are keyword-only arguments of the grader."""

    model_config = ConfigDict(extra="allow")

    name: str
    """Name or import path of the grader."""
    weight: NotNegative = 1.0
    """Weight of the grader in the mean of values; 0 only reports its values."""


class EnvironmentSettings(Settings):
    """The environment that answers the model's turns; all other keys are settings of that environment."""

    model_config = ConfigDict(extra="allow")

    name: str = ""
    """Name of an environment, or import path; if empty, one completion is the answer."""
    max_turns: Count = 8
    """Most turns of the model; a conversation that needs more is truncated."""
    max_tokens: Count | None = None
    """Most tokens in all turns of the model ([length] limits each turn); by default what fits into rollout.context."""
    rewards: Literal["last", "sum", "mean"] = "last"
    """How the rewards of turns become the value of a conversation."""
    reward_range: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 1.0)
    """Rewards that map linearly to the values 0 and 1; others are clipped."""
    in_process: bool = False
    """Run your own environment or tool in the training process, not in one per conversation: faster and repeatable, but
    a step that hangs or crashes stops the run."""
    step_s: float = Field(default=60.0, gt=0, le=86400)
    """Limit on the wall time of a step in its own process, without waits for a core; beyond it the conversation has no
    verdict."""
    step_cpu_s: Positive = 30.0
    """Limit on the CPU time of a step."""
    step_memory_mb: int = Field(default=1024, ge=16, le=2**20)
    """Limit on the memory of a conversation beyond the environment's imports, on Linux."""

    @property
    def own(self) -> dict[str, Any]:
        """Return the settings of the environment itself."""
        return dict(self.model_extra or {})


class TaskSettings(Settings):
    """The problems and their prompts; all other keys are settings of the task."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    """Name of a task, or import path of a function that returns one."""
    template: str = "{prompt}"
    """Text of the prompt; {prompt} is the problem."""
    chat: bool = False
    """Write the problem as a user's turn with the chat template."""
    system: str = ""
    """System prompt of the chat."""
    grader: str = ""
    """Name or import path of the grader; empty for the task's default."""
    graders: dict[str, GraderSettings] = Field(default_factory=dict)
    """Several graders instead of one, by the names of their columns in rows: [task.graders.NAME]."""
    thinking_start: str | None = None
    """Text that begins thinking, by default the task's; empty for no thinking."""
    thinking_end: str | None = None
    """Text that ends thinking; what follows is graded."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """The environment that answers the model's turns: tools, or a game."""

    def __iter__(self) -> Generator[tuple[str, Any], None, None]:
        """Yield the name and the task's own settings, which its function takes."""
        yield from {"name": self.name, **(self.model_extra or {})}.items()


class MixedTaskSettings(TaskSettings):
    """One of several tasks of a run."""

    weight: Positive = 1.0
    """How often its problems are drawn, relative to other tasks."""


class NoPositiveResamplingSettings(Settings):
    name: Literal["no_positive_resampling"] = "no_positive_resampling"
    threshold: Share = 0.9
    """Problems with at least this pass rate leave later epochs."""
    history: Literal["latest", "cumulative"] = "latest"
    """Whether the pass rate is of a problem's latest group or of all."""


class PoolsSettings(Settings):
    name: Literal["pools"] = "pools"
    easy: Share = 0.9
    """Problems with at least this pass rate are easy."""
    hard: Fraction = 0.0
    """Problems with at most this pass rate are hard."""
    easy_frac: Fraction = 0.1
    """Share of the epochs with an easy problem; 0 for none."""
    hard_frac: Fraction = 0.5
    """Share of the epochs with a hard problem."""
    history: Literal["latest", "cumulative"] = "latest"
    """Whether the pass rate is of a problem's latest group or of all."""


class UniformSettings(Settings):
    name: Literal["uniform"] = "uniform"


Curriculum = Axis[NoPositiveResamplingSettings | PoolsSettings | UniformSettings]


class InterruptionSettings(Settings):
    name: Literal["interruption"] = "interruption"
    thinking_min: Count = 10240
    """Earliest token after which thinking is interrupted; drawn per request."""
    thinking_max: Count = 12288
    """Latest token after which thinking is interrupted."""
    marker: str = Field(
        default="Okay, time is up. Let me stop thinking and formulate a final answer now. </think>", min_length=1
    )
    """Text forced there, never trained on; it must contain the task's thinking_end."""
    answer_budget: Count = 2048
    """Most tokens after thinking, including a forced marker."""


class PenaltySettings(Settings):
    name: Literal["penalty"] = "penalty"
    max_length: Count = 14336
    """Length at which generation ends and the penalty reaches -1."""
    cache: Count = 2048
    """Tokens before max_length over which the penalty grows."""


class UnlimitedSettings(Settings):
    name: Literal["none"] = "none"
    max_length: Count = 14336
    """Length at which generation ends."""


Length = Axis[InterruptionSettings | PenaltySettings | UnlimitedSettings]


class CispoSettings(Settings):
    name: Literal["cispo"] = "cispo"
    cap: Positive = 5.0
    """Absolute cap on the importance ratio (not 1 + cap); a capped token keeps its gradient."""


class DapoSettings(Settings):
    name: Literal["dapo"] = "dapo"
    clip_low: Fraction = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: NotNegative = 0.26
    """The ratio is clipped above at 1 + clip_high; if equal to clip_low, the loss is GRPO's."""


class GspoSettings(Settings):
    name: Literal["gspo"] = "gspo"
    clip_low: Fraction = 3e-3
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: NotNegative = 4e-3
    """The sequence ratio is clipped above at 1 + clip_high."""
    length_normalised: bool = True
    """Whether the sequence ratio is the geometric mean of token ratios or their product."""


class TisSettings(Settings):
    name: Literal["tis"] = "tis"
    cap: Positive = 2.0
    """Absolute cap on the importance ratio."""


class NoLossSettings(Settings):
    name: Literal["none"] = "none"


Loss = Axis[CispoSettings | DapoSettings | GspoSettings | TisSettings | NoLossSettings]


class NoCorrectionSettings(Settings):
    name: Literal["none"] = "none"


class BandSettings(Settings):
    name: Literal["band"] = "band"
    low: NotNegative = 0.5
    """Tokens with a smaller ratio are left out."""
    high: Positive = 5.0
    """Tokens with a larger ratio are left out."""


class SequenceTruncateSettings(Settings):
    name: Literal["sequence_truncate"] = "sequence_truncate"
    cap: Positive = 2.0
    """Largest ratio of a completion."""
    length_normalised: bool = False
    """Whether a completion's ratio is the geometric mean over its tokens, or their product."""


class SequenceMaskSettings(Settings):
    name: Literal["sequence_mask"] = "sequence_mask"
    low: NotNegative = 0.0
    """Completions with a smaller ratio are left out."""
    high: Positive = 2.0
    """Completions with a larger ratio are left out."""
    length_normalised: bool = False
    """Whether a completion's ratio is the geometric mean over its tokens, or their product."""


Correction = Axis[NoCorrectionSettings | BandSettings | SequenceTruncateSettings | SequenceMaskSettings]


class NoEntropyControlSettings(Settings):
    name: Literal["none"] = "none"


class EntropyBonusSettings(Settings):
    name: Literal["bonus"] = "bonus"
    coefficient: Positive = 1e-3
    """Weight of the policy's entropy relative to advantages with a standard deviation of 1."""


class ClipCovSettings(Settings):
    name: Literal["clip_cov"] = "clip_cov"
    fraction: Share = 2e-4
    """Share of trained tokens that lose their policy gradient, at least one."""
    low: float = 1.0
    """Least covariance of log-prob and advantage of a token that may lose its gradient."""
    high: float = 5.0
    """Largest such covariance."""


EntropyControl = Axis[NoEntropyControlSettings | EntropyBonusSettings | ClipCovSettings]


class NoImitationSettings(Settings):
    name: Literal["none"] = "none"


class CorrectImitationSettings(Settings):
    name: Literal["correct"] = "correct"
    coefficient: Positive = 0.1
    """Weight of correct completions' mean negative log-likelihood, relative to the loss."""


Imitation = Axis[NoImitationSettings | CorrectImitationSettings]


class K3Settings(Settings):
    name: Literal["k3"] = "k3"


class ReverseKlSettings(Settings):
    name: Literal["reverse"] = "reverse"
    cap: Positive = 5.0
    """Absolute cap on the importance ratio in a token's term."""


KlEstimator = Axis[K3Settings | ReverseKlSettings]


class StartReferenceSettings(Settings):
    name: Literal["start"] = "start"


class TeacherReferenceSettings(Settings):
    name: Literal["teacher"] = "teacher"
    path: str = Field(min_length=1)
    """Folder or hub name of the teacher, which has the same tokenizer and is loaded beside the policy."""


class ServerReferenceSettings(Settings):
    name: Literal["server"] = "server"
    url: str = Field(min_length=1)
    """Address with OpenAI's interface that returns log-probs of a prompt, such as vLLM's "http://HOST:8000/v1"."""
    model: str = Field(min_length=1)
    """Name of the model there, which has the same tokenizer."""
    api_key: str = ""
    """Key of the server, or "env:NAME" for the variable that contains it."""
    params: NotNegative = 0.0
    """Active parameters of the server's model, for the compute axis; 0 does not count its work."""
    num_parallel: Count = 16
    """Number of concurrent requests."""


class SelfReferenceSettings(Settings):
    name: Literal["self"] = "self"
    temperature_frac: Share = 1.0
    """Temperature of the reference as a share of the sampling temperature."""
    hint: str = ""
    """Prompt of the policy as its own teacher, before the task's template, with {prompt} and {answer}; empty for the
    problem alone."""


KlReference = Axis[StartReferenceSettings | TeacherReferenceSettings | ServerReferenceSettings | SelfReferenceSettings]


class KlSettings(Settings):
    coefficient: NotNegative = 0.0
    """Weight of the term; 0, as in the paper, for none."""
    estimator: KlEstimator = K3Settings()
    """The term of a token: as in GRPO, or the policy gradient of the reverse KL, as in distillation."""
    reference: KlReference = StartReferenceSettings()
    """What the policy is compared with: its start; a teacher, in a folder or at a server; or itself, with a hint or at
    a lower temperature."""


class PromptAverageSettings(Settings):
    name: Literal["prompt"] = "prompt"


class SampleAverageSettings(Settings):
    name: Literal["sample"] = "sample"


class TokenAverageSettings(Settings):
    name: Literal["token"] = "token"


class ConstantDenominatorSettings(Settings):
    name: Literal["constant"] = "constant"
    denominator: Positive
    """Divisor of the sum of token losses."""


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
    gamma: Share = 1.0
    """Discount of the reward per token, or per turn."""
    lam: Fraction = 0.95
    """1 compares the return with the critic's value; 0 each value with the next one."""
    level: Literal["token", "turn"] = "token"
    """Whether advantages are per token or per turn."""


class StatesSettings(Settings):
    name: Literal["states"] = "states"
    gamma: Share = 0.95
    """Discount per turn of a conversation's value."""
    weight: NotNegative = 1.0
    """Weight of comparing turns, relative to conversations."""


Credit = Axis[CompletionCreditSettings | GaeSettings | StatesSettings]


class CriticSettings(Settings):
    """Settings of the critic for advantage.credit = "gae": a second model, which starts as a copy of the policy."""

    lr: Positive | None = None
    """Learning rate of the critic; by default ten times the policy's. The rest is as in [optimizer]."""
    warmup_steps: Whole = 0
    """First steps, in which only the critic learns."""


class AdvantageSettings(Settings):
    baseline: Baseline = MeanBaselineSettings()
    """What is subtracted from a reward: the mean of its group, or of the others in it."""
    normalisation: Normalisation = BatchNormalisationSettings()
    """Whose standard deviation divides advantages."""
    credit: Credit = CompletionCreditSettings()
    """The advantage of a token: that of its completion; a critic's, as in PPO; or also that of its turn over others of
    the group from the same state."""


class RewardSettings(Settings):
    correct: float = 1.0
    """Reward of a completion with value 1, before length control."""
    wrong: float = -1.0
    """Reward of a completion with value 0; values in between are linear."""
    threshold: Share = 1.0
    """Smallest value that counts as correct, for the curriculum and evaluations."""


class GradingSettings(Settings):
    """Limits for graders that run in child processes: math, gym's, and users' own."""

    num_workers: Whole = 0
    """Answers that a grader grades at a time; 0 means twice the cores, at most 32, or 64 for graders that wait for
    servers (a judge, a coroutine function)."""
    timeout_s: float = Field(default=10.0, gt=0, le=86400)
    """Limit on the wall time of an answer, without waits for a core; beyond it, the answer has no verdict."""
    cpu_limit_s: Positive = 3.0
    """Limit in seconds on the CPU time of an answer."""
    memory_limit_mb: int = Field(default=512, ge=16, le=2**20)
    """Limit on the memory of an answer beyond the grader's imports, on Linux."""


class FilterSettings(Settings):
    zero_variance: bool = True
    """Drop groups whose verdicts are all equal. With loss = "none" the default is false."""
    refill: Whole = 0
    """Replace dropped groups, as in DAPO, by at most this many batches of new ones per step; 0, as in the paper, trains
    on the rest."""
    drop_truncated: bool = True
    """Drop completions that reached their length limit, as in the paper."""


class PipelineSettings(Settings):
    max_lag: Whole = 8
    """Bound on the steps between a group's first token and training on it, for the mean over groups or every group
    (waits_for); 0 is synchronous."""
    push_every: Count = 1
    """Steps between two pushes of weights to the generator."""
    drain: bool = False
    """Finish everything sampled with one policy before pushing the next."""
    waits_for: Literal["batch", "groups"] = "batch"
    """What a step waits for. "batch": a full batch, so max_lag bounds the mean lag, and slow groups may be several
    times older. "groups": also every group that would become older than max_lag, so one slow group can stop
    training."""
    groups_per_batch: Count = 48
    """Problems per step, before any filter."""
    completions_per_group: Count = 16
    """Completions per problem."""

    @property
    def batch(self) -> int:
        """Completions per step, before any filter."""
        return self.groups_per_batch * self.completions_per_group


class OptimizerSettings(Settings):
    lr: Positive = 5e-7
    """Learning rate after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up; constant in the paper."""
    decay_steps: Count | None = None
    """Step at which it has fallen; by default budget.steps."""
    final_lr_frac: Fraction = 0.0
    """Final learning rate as a fraction of lr."""
    warmup_steps: Whole = 100
    """Steps over which it rises linearly from 0."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean gradient."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the mean squared gradient."""
    eps: Positive = 1e-15
    """Much smaller than usual, because RL gradients are small."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay."""
    grad_clip: NotNegative = 1.0
    """Largest norm of the gradient; 0 disables clipping."""
    bits: Literal[32, 8] = 32
    """Bits per number of the two moments: 8 rounds them, without bias, to about 5%."""
    on_host: bool = False
    """Keep FP32 weights (except the head's) and moments in host memory: saves 12 bytes per weight."""


class LearnerSettings(Settings):
    micro_batch_tokens: Count = 32768
    """Most tokens in a forward and backward pass; the gradient does not depend on it."""
    share_prompts: bool = True
    """Compute a prompt once for its completions in a pass, where that is faster; the gradient is the same."""
    gradient_checkpointing: Literal[True, False, "auto"] = "auto"
    """Recompute activations in the backward pass: less memory, a third more compute; auto does so if they would not fit
    on a GPU."""
    ranks: Count = 1
    """Processes that share a step, one per device."""
    sharding: Literal["none", "replicate", "full", "hybrid"] = "none"
    """What each rank holds of weights and optimiser: replicate, a copy; full, a part (FSDP2); hybrid, a part of a copy
    that learner.shard_size ranks share. none uses this process alone."""
    shard_size: int | None = Field(default=None, ge=2)
    """Ranks that share a copy with hybrid sharding."""
    silent_s: Positive = 15.0
    """Seconds without a sign of life after which a rank counts as lost; at least 60 for a rank on this machine that was
    not stopped."""
    start_s: Positive = 3600.0
    """Seconds that ranks have to download the model, and again to load it."""


class VllmSettings(Settings):
    """Settings of vLLM, for rollout.engine = "vllm". Other settings of [rollout] apply to all engines."""

    tensor_parallel: Count = 1
    """GPUs among which every layer is divided."""
    devices: Listed[int] = ()
    """Numbers of the tensor_parallel GPUs for vLLM; empty for the first ones."""
    memory_share: Share = 0.4
    """Share of a GPU's memory for vLLM; raise it if the learner is on other GPUs."""
    prefix_caching: bool = True
    """Whether completions of a problem share the cache of its prompt."""
    quantisation: str = ""
    """How vLLM quantises weights, such as "fp8"; empty for not at all."""
    python: str = ""
    """Python interpreter of an environment with scalerl and vLLM; empty for the one that trains."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Other arguments of vllm.EngineArgs."""


class RolloutSettings(Settings):
    engine: Literal["torch", "vllm"] = "torch"
    """Engine that samples completions."""
    slots: Count | None = None
    """Completions sampled at a time; by default (max_lag + 1) batches, as memory allows."""
    context: Count = 16384
    """Most tokens in a prompt and its completion together."""
    max_prompt_tokens: Count = 2048
    """Problems with a longer prompt are left out."""
    temperature: Positive = 1.0
    """Sampling temperature in training, also of the learner's log-probs."""
    vllm: VllmSettings = VllmSettings()
    """Settings of vLLM, if it is the engine."""
    generators: Whole = 0
    """Engines that sample while the learner trains, on their own devices, and divide the slots. 0: one engine, which
    takes turns with the learner if it is torch."""
    gpus_per_generator: Whole | None = None
    """GPUs per generator; by default 1, vllm.tensor_parallel for vLLM, or 0 on machines without a GPU."""
    max_replacements: Whole = 10
    """Generators that may be replaced within an hour; one more ends the run."""
    silent_s: Positive = 15.0
    """Seconds without an answer after which a generator is replaced."""

    @property
    def generator_gpus(self) -> int:
        """GPUs per generator on machines with GPUs."""
        if self.gpus_per_generator is not None:
            return self.gpus_per_generator
        return self.vllm.tensor_parallel if self.engine == "vllm" else 1


class ClusterSettings(Settings):
    address: str = ""
    """Ray cluster for generators and the learner's ranks: "auto" for this machine's, "HOST:PORT", or "local" to start
    Ray here for this run. Empty: child processes, without Ray."""


class EvalSetSettings(TaskSettings):
    """A further evaluation set; unset values, except the number of problems, are as for other sets."""

    every: Count | None = None
    """As evaluation.every; also evaluated at the end."""
    num_prompts: Count | None = None
    """Problems in this set; by default all rows of a file or data set, or 1000 of a generated task."""
    samples_per_prompt: Count | None = None
    """As in [evaluation]."""
    temperature: NotNegative | None = None
    """As in [evaluation]."""
    top_p: Share | None = None
    """As in [evaluation]."""


class EvalSampling(NamedTuple):
    """Sampling settings of one evaluation set."""

    samples_per_prompt: int
    temperature: float
    top_p: float


class EvaluationSettings(Settings):
    every: Count = 100
    """Steps between evaluations; there is always one before the first."""
    num_prompts: Count = 1000
    """Problems withheld from training."""
    samples_per_prompt: Count = 16
    """Completions per problem."""
    temperature: NotNegative = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Share = 1.0
    """Sample from the smallest set of tokens with this probability."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Selects the withheld problems and the sampling noise."""
    sets: dict[str, EvalSetSettings] = Field(default_factory=dict)
    """Further evaluation sets, each a task with its own name: [evaluation.sets.NAME]."""

    def every_of(self, name: str) -> int:
        """Return the number of steps between two evaluations of a set."""
        own = self.sets[name].every if name in self.sets else None
        return own or self.every

    def is_due(self, name: str, step: int) -> bool:
        """Return whether a set is evaluated after this step, even if the run does not end there."""
        return step % self.every_of(name) == 0

    def num_answers(self, name: str) -> int:
        """Return the number of completions in one evaluation of a set, as far as the recipe says it."""
        own = self.sets[name].num_prompts if name in self.sets else None
        return (own or self.num_prompts) * self.sampling(name).samples_per_prompt

    def sampling(self, name: str) -> EvalSampling:
        """Return the sampling settings of a set."""
        own = self.sets.get(name)
        values = {field: None if own is None else getattr(own, field) for field in EvalSampling._fields}
        return EvalSampling(**{key: getattr(self, key) if value is None else value for key, value in values.items()})

    def sampling_of_sets(self) -> Iterator[tuple[str, EvalSampling]]:
        """Yield the sampling settings of the tasks' sets and of each further set, with the table that sets them."""
        # An empty name, which no set can have, returns the settings of the tasks' sets.
        yield "evaluation", self.sampling("")
        for name, own in self.sets.items():
            if own.temperature is not None or own.samples_per_prompt is not None:
                yield f"evaluation.sets.{name}", self.sampling(name)


class BudgetSettings(Settings):
    """The run ends when the first limit is reached; at least one must be set."""

    steps: Count | None = None
    """Optimiser steps."""
    gpu_hours: Positive | None = None
    """Devices held x hours of training; without GPUs, CPU hours."""
    flops: Positive | None = None
    """Floating-point operations of generators and learner."""


class CheckpointSettings(Settings):
    every: Count = 100
    """Steps between two checkpoints."""
    every_minutes: Positive = 5.0
    """Most minutes between two checkpoints."""
    keep: Count = 2
    """Latest checkpoints that are kept."""
    best: str = ""
    """Evaluation set whose best checkpoint is also kept; by default the first task's (a single task's is "main"),
    "none" for no set."""


SinkName = Literal["tensorboard", "trackio", "wandb"]


NEW_MODEL = "new"


class SftSettings(Settings):
    """Settings for making a base model from demonstrations; the optimizer settings of RL are not used."""

    model: str = ""
    """Model to start from, as in model.path, which is the default; "new" builds a small Llama."""
    new_tokens: Literal["none", "characters", "words"] = "none"
    """Tokens to add to the tokenizer: unknown characters of the demonstrations, which a new model always has, or also
    words of several tokens."""
    lr: Positive | None = None
    """Largest learning rate; by default 3e-5, the paper's, or 2e-3 for a new model."""
    epochs: Positive | None = None
    """Passes over the demonstrations; by default 4, unless steps is set."""
    steps: Count | None = None
    """Optimiser steps, instead of epochs; by default 5000 for a new model."""
    batch_tokens: Count | None = None
    """Tokens per step, with prompts; by default the smaller of 2 million and an eighth of an epoch, or 9000 for a new
    model."""
    warmup_frac: Fraction = 0.04
    """Share of the steps over which the learning rate rises linearly."""
    num_demonstrations: int | None = Field(default=None, ge=2)
    """Most demonstrations; by default all of a file, 10,000 of a generated task, 250,000 for a new model."""
    num_heldout: Count = 4000
    """Held-out demonstrations, which only measure the loss; at most a tenth of all."""
    ngram_words: Whole = 13
    """Leave out prompts that share so many consecutive words with an evaluation problem, or contain a shorter one; 0
    for none."""
    trivial_samples: Whole = 4
    """Leave out prompts that the starting model answers correctly in each of so many samples, as in the paper; 0 for
    none, as for a new model."""
    max_tokens: int | None = Field(default=12288, ge=2)
    """Leave out longer demonstrations, with the prompt, and those beyond the model's context."""
