"""The description of a vLLM engine, which can be sent to another process, and vLLM's arguments for it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalerl.errors import RecipeError
from scalerl.recipe.import_path import announce
from scalerl.recipe.parts import VllmSettings
from scalerl.recipe.recipe import vllm_code

WORKER = "scalerl.training.rollout.vllm.worker.WeightReceiver"
SAMPLER = "scalerl.training.rollout.vllm.samplers:OwnSampler"
CPU_BLOCK = 32
"""Tokens per cache block on a CPU, where prompts are short; vLLM's default there is 128."""
LEAST_BATCH_TOKENS = {False: 2048, True: 8192}
"""Smallest limit on the tokens of one step, on a CPU and on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine to build: the model's configuration, the sizes, and the settings of [rollout.vllm]."""

    config: str
    """The content of config.json. The engine starts with random weights, and the first push brings the model's."""
    slots: int
    context: int
    stop_tokens: tuple[int, ...]
    dtype: str = "float32"
    fp32_head: bool = True
    on_gpu: bool = False
    settings: VllmSettings = field(default_factory=VllmSettings)
    names: frozenset[str] = frozenset()
    """Names of the weights that every push must contain."""
    records_experts: bool = False

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {self.slots}")


def environment(*, on_gpu: bool, compiled: bool = False) -> dict[str, str]:
    """Return environment variables that vLLM needs before it is imported; variables that the user has set are kept.

    On a CPU, nothing is compiled unless `compiled`: even eager vLLM compiles a few functions, which takes long, needs a
    compiler, and, if killed meanwhile, leaves a broken library in the cache for later runs.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # keep the scheduler in this process, so that we control every step
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the first model runner supports our sampler in every version
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if not on_gpu:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # learner and graders use the same cores
        variables["TORCH_COMPILE_DISABLE"] = str(int(not compiled))
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def engine_arguments(spec: EngineSpec, *, folder: str = "", cache_bytes: int | None = None) -> dict[str, Any]:
    """Return the arguments of vllm.EngineArgs; RecipeError if the recipe sets one that follows from other settings.

    `folder` has the model's config.json; `cache_bytes` is the size of the cache on a CPU.
    """
    settings = spec.settings
    ours: dict[str, Any] = {
        "model": folder,
        "skip_tokenizer_init": True,
        "dtype": spec.dtype,
        "load_format": "dummy",
        "max_model_len": spec.context,
        "max_num_seqs": 2 * spec.slots,  # running requests, and those that a pause put aside
        "tensor_parallel_size": settings.tensor_parallel,
        "enable_prefix_caching": settings.prefix_caching,
        "quantization": settings.quantisation or None,
        "generation_config": "vllm",
        "disable_log_stats": True,
        # Our sampler leaves one choice, whose logit is its log-prob; vLLM passes both on unchanged.
        "logits_processors": [SAMPLER],
        "logprobs_mode": "processed_logits",
        # Prepare the next step while one is computed; vLLM cannot do this on a CPU.
        "async_scheduling": spec.on_gpu,
        "worker_extension_cls": WORKER,
    }
    if spec.records_experts:
        ours["enable_return_routed_experts"] = True
    chosen: dict[str, Any] = {
        "seed": 0,
        "enforce_eager": not spec.on_gpu,
        "max_num_batched_tokens": max(LEAST_BATCH_TOKENS[spec.on_gpu], spec.context, 2 * spec.slots),
    }
    if spec.on_gpu:
        chosen["gpu_memory_utilization"] = settings.memory_share
    else:
        chosen |= {"enable_chunked_prefill": False, "block_size": CPU_BLOCK, "kv_cache_memory_bytes": cache_bytes}
    if taken := sorted(ours.keys() & settings.engine_args.keys()):
        raise RecipeError(
            f"rollout.vllm.engine_args sets {taken[0]}, which follows from other settings of the recipe: remove it"
        )
    announce(*vllm_code(settings))
    return {**ours, **chosen, **settings.engine_args}


def cpu_cache_bytes(config: Any, slots: int, context: int, dtype: Any) -> int:
    """Return the bytes of a paged cache with room for every slot at full length, twice.

    So no request is preempted, after which it would be recomputed with newer weights, and requests that a pause puts
    aside keep their cache. `config` is the model's; vLLM keeps one block for itself.
    """
    from scalerl.training.rollout.memory import cache_bytes

    num_blocks = 2 * slots * -(-(context + 1) // CPU_BLOCK) + 2
    return cache_bytes(config, 1, num_blocks * CPU_BLOCK, dtype)


def visible_devices(settings: VllmSettings, environ: Mapping[str, str], learner: int | None) -> str | None:
    """Return CUDA_VISIBLE_DEVICES for the child: vLLM's GPUs first, then the learner's, whose memory it reads.

    None means that vLLM uses the first GPUs.
    """
    if not settings.devices:
        return None
    if len(settings.devices) != settings.tensor_parallel:
        raise RecipeError(
            f"rollout.vllm.devices names {len(settings.devices)} GPUs, but rollout.vllm.tensor_parallel is "
            f"{settings.tensor_parallel}: the two must be equal"
        )
    names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    wanted = [*settings.devices, *([] if learner is None or learner in settings.devices else [learner])]
    if names and (beyond := [number for number in wanted if not 0 <= number < len(names)]):
        raise RecipeError(f"rollout.vllm.devices names GPU {beyond[0]}, but only {len(names)} are visible (from 0 on)")
    return ",".join(names[number] if names else str(number) for number in wanted)
