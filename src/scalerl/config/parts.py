"""The tables of a recipe, each setting documented by the string under it.

One axis is one field. An axis with choices is a table with a `name`; what else it holds are the keyword-only arguments
of the function of that name (a test compares them). A name with a colon is an import path: "package.module:function".
A new choice is a class here and its name in the axis below it. Defaults are ScaleRL's; the numbers' sources stand in
recipes/scalerl.toml.
"""

from collections.abc import Generator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Fraction = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """A table of a recipe: frozen, and strict, since a silently dropped or converted setting is a wrong run."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CustomSettings(Settings):
    """A function of one's own, by import path; every other key of the table is one of its keyword-only arguments."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """Import path of the function: "package.module:function"."""


def _origin(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "custom" if isinstance(name, str) and ":" in name else "built-in"


Choices = TypeVar("Choices")

# Axis[One | Another]: one of these or a function of one's own, told apart by the colon and then by name.
Axis = Annotated[
    Annotated[Choices, Field(discriminator="name"), Tag("built-in")] | Annotated[CustomSettings, Tag("custom")],
    Discriminator(_origin),
]


class LoraSettings(Settings):
    rank: int = Field(default=0, ge=0)
    """Rank of the adapters that are trained instead of the model's own weights; 0 trains those."""
    alpha: float = Field(default=32.0, gt=0)
    """What the adapters add is scaled by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the linear layers that get one: ["q_proj", "v_proj"]; empty is all but the head."""


class ModelSettings(Settings):
    path: str | None = None
    """Folder or hub name of the base model, a .gguf file, "tiny-base" or "smollm2-135m"; to be set before training."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of the body; auto is bfloat16 on a GPU and float32 on a CPU. Master weights are always float32."""
    fp32_head: Literal["both", "generator", "learner", "none"] = "both"
    """Where the head and the log-probs are computed in FP32; one side alone helps only partly."""
    lora: LoraSettings = LoraSettings()
    """Adapters of low rank."""


class TaskSettings(Settings):
    """Which problems are asked, and how; every key that does not stand here is a setting of that task."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    """Name of a task, or import path of a function that gives one; has to be set before training."""
    template: str = "{prompt}"
    """Text around a problem, which goes where {prompt} stands."""
    chat: bool = False
    """Ask in the chat template of the model's tokenizer, as a user's turn."""
    system: str = ""
    """What such a chat begins with."""
    grader: str = ""
    """Name or import path of what judges the answers; empty for the task's own."""
    thinking_start: str | None = None
    """Text that begins a completion's thinking, if not the task's own; empty where nothing does."""
    thinking_end: str | None = None
    """Text that ends it; what follows is graded."""

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that every task has, by name."""
        return {name: getattr(self, name) for name in TaskSettings.model_fields if name != "name"}

    def __iter__(self) -> Generator[tuple[str, Any], None, None]:
        """The name and the task's own settings: what its function takes."""
        yield from {"name": self.name, **(self.model_extra or {})}.items()


class MixedTaskSettings(TaskSettings):
    """One of several tasks of a run."""

    weight: float = Field(default=1.0, gt=0)
    """How often it is asked, against the weights of the others."""


class NoPositiveResamplingSettings(Settings):
    name: Literal["no_positive_resampling"] = "no_positive_resampling"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.9
    """A problem whose pass rate reaches this does not return in later epochs."""
    history: Literal["latest", "cumulative"] = "latest"
    """Whether the pass rate is that of a problem's latest group or of all its groups."""


class UniformSettings(Settings):
    name: Literal["uniform"] = "uniform"


Curriculum = Axis[NoPositiveResamplingSettings | UniformSettings]


class InterruptionSettings(Settings):
    name: Literal["interruption"] = "interruption"
    thinking_min: int = Field(default=10240, ge=1)
    """Earliest token after which thinking is interrupted; the place is drawn for each request."""
    thinking_max: int = Field(default=12288, ge=1)
    """Latest such token."""
    marker: str = Field(
        default="\n\nI have used up my time for thinking and must give my final answer now.\n</think>\n\n", min_length=1
    )
    """Text forced at that place; it ends the thinking and is never trained on."""
    thinking_end: str = Field(default="</think>", min_length=1)
    """Text by which a completion ends its thinking by itself."""
    answer_budget: int = Field(default=2048, ge=1)
    """Tokens left from the end of thinking on, a forced marker counted among them."""


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


Loss = Axis[CispoSettings | DapoSettings | GspoSettings | TisSettings]


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
    eps: float = Field(default=1e-6, gt=0)
    """Added to a group's standard deviation."""


class NoNormalisationSettings(Settings):
    name: Literal["none"] = "none"


Normalisation = Axis[BatchNormalisationSettings | PromptNormalisationSettings | NoNormalisationSettings]


class AdvantageSettings(Settings):
    baseline: Baseline = MeanBaselineSettings()
    """What is subtracted from a reward: the mean of its group, or of the others in it."""
    normalisation: Normalisation = BatchNormalisationSettings()
    """Whose standard deviation advantages are divided by: the batch's, the prompt's, or none."""


class RewardSettings(Settings):
    correct: float = 1.0
    """Reward of a correct completion, before the length control's adjustment."""
    wrong: float = -1.0
    """Reward of a wrong one. A completion without a verdict is never trained on."""


class GradingSettings(Settings):
    """What graders that run in child processes may take: math, gym's and one's own."""

    num_workers: int = Field(default=0, ge=0)
    """Processes that grade at the same time; 0 is twice the cores, at most 32."""
    timeout_s: float = Field(default=10.0, gt=0, le=86400)
    """Seconds after which an answer is given up; it has no verdict then."""
    cpu_limit_s: float = Field(default=3.0, gt=0)
    """Seconds of computing after which it is; they do not depend on what else the machine does."""
    memory_limit_mb: int = Field(default=512, ge=16, le=2**20)
    """Memory that grading one answer may take beyond what the grader's imports do, on Linux."""
    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """What programs of code tasks run in. With "none" they have all rights of the user who trains."""


class FilterSettings(Settings):
    zero_variance: bool = True
    """Drop groups whose verdicts are all equal, without a refill."""
    drop_truncated: bool = True
    """Drop completions that ran into their length limit."""


class PipelineSettings(Settings):
    max_lag: int = Field(default=8, ge=0)
    """Most steps between sampling a group's first token and training on it; 0 is synchronous."""
    push_every: int = Field(default=1, ge=1)
    """Steps between two pushes of weights to the generator."""
    drain: bool = False
    """Finish everything sampled with one policy before pushing the next: no completion then mixes policies."""
    groups_per_batch: int = Field(default=48, ge=1)
    """Problems a step trains on, before any filter."""
    completions_per_group: int = Field(default=16, ge=2)
    """Completions sampled for a problem; an advantage compares them, so there must be two."""


class OptimizerSettings(Settings):
    lr: float = Field(default=5e-7, gt=0)
    """Learning rate, constant after the warm-up."""
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


class LearnerSettings(Settings):
    kind: Literal["torch"] = "torch"
    """What computes the steps."""
    micro_batch_tokens: int = Field(default=32768, ge=1)
    """Most tokens of one forward and backward pass; how a batch is split never changes its gradient."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""


class RolloutSettings(Settings):
    engine: Literal["torch"] = "torch"
    """What samples completions."""
    slots: int = Field(default=64, ge=1)
    """Completions generated at the same time."""
    context: int = Field(default=16384, ge=1)
    """Most tokens of a prompt and its completion together."""
    max_prompt_tokens: int = Field(default=2048, ge=1)
    """Problems with a longer prompt are left out."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature in training; the learner's log-probs use the same."""


class EvaluationSettings(Settings):
    every: int = Field(default=100, ge=1)
    """Steps between two evaluations; one is always made before the first step."""
    num_prompts: int = Field(default=1000, ge=1)
    """Problems of the task withheld from training and evaluated on."""
    samples_per_prompt: int = Field(default=16, ge=1)
    """Completions sampled for each; the value reported is their mean of `correct`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this probability."""
    seed: int = Field(default=0, ge=0)
    """Chooses the withheld problems and the noise: equal seeds make runs comparable prompt by prompt."""
    sets: dict[str, TaskSettings] = Field(default_factory=dict)
    """Further sets to evaluate on, each a task under a name of its own: [evaluation.sets.NAME]."""


class BudgetSettings(Settings):
    """The run ends at whichever is reached first; at least one must be set."""

    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps."""
    gpu_hours: float | None = Field(default=None, gt=0)
    """Devices held x hours of training, generators and learners together."""
    flops: float | None = Field(default=None, gt=0)
    """Floating-point operations of generator and learner."""


class CheckpointSettings(Settings):
    every: int = Field(default=100, ge=1)
    """Steps between two checkpoints."""
    keep: int = Field(default=2, ge=1)
    """How many of the latest are kept."""


SinkName = Literal["tensorboard", "trackio", "wandb"]
