"""Settings of the engine that samples completions: the table [rollout], and [rollout.vllm] inside it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from scalerl.config.parts import Settings


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
    eager: bool | None = None
    """Whether layers run as they are, without compilation and CUDA graphs; not set: on a CPU only."""
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
