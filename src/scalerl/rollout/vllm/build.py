"""Build the vLLM engine from a recipe's rollout settings: vLLM in a child process, with the model's weights pushed."""

import tempfile

import torch

from scalerl.config.parts import RolloutSettings
from scalerl.models.load import LoadedModel
from scalerl.rollout.torch.build import MEMORY_SHARE, free_bytes
from scalerl.rollout.torch.cache import cache_bytes
from scalerl.rollout.vllm.check import check_engine
from scalerl.rollout.vllm.install import require_vllm
from scalerl.rollout.vllm.process import VllmProcess
from scalerl.rollout.vllm.spec import EngineSpec


def most_slots(model: LoadedModel, settings: RolloutSettings, dtype: torch.dtype) -> int | None:
    """Return how many slots fit at full length, at least 1; None if free memory is not known.

    More would fit while completions are short, but once memory runs out vLLM computes some of them again, all of it.
    """
    per_slot = cache_bytes(model.model.config, 1, settings.context, dtype)
    if model.model.device.type != "cuda":
        free = free_bytes(model)
        return None if free is None else max(int(MEMORY_SHARE * free) // (2 * per_slot), 1)
    num_gpus = settings.vllm.tensor_parallel
    total = torch.cuda.get_device_properties(model.model.device).total_memory * num_gpus
    weights = sum(parameter.numel() for parameter in model.model.parameters()) * dtype.itemsize
    return max(int(settings.vllm.memory_share * total - weights) // per_slot, 1)


def build_engine(model: LoadedModel, settings: RolloutSettings, *, dtype: torch.dtype, fp32_head: bool) -> VllmProcess:
    """Return vLLM in a child process, with a copy of the model, once it has passed its check.

    vLLM reads the model's configuration, not its files.
    """
    assert settings.slots is not None, "run/parts.py has chosen the number of slots"
    if not settings.vllm.python:
        require_vllm()  # with another interpreter the child looks for itself
    weights = {name: parameter.detach() for name, parameter in model.model.named_parameters()}
    with tempfile.TemporaryDirectory(prefix="scalerl-vllm-") as folder:
        model.model.config.save_pretrained(folder)
        spec = EngineSpec(
            folder=folder,
            slots=settings.slots,
            context=settings.context,
            stop_tokens=tuple(model.stop_tokens),
            dtype=str(dtype).removeprefix("torch."),
            fp32_head=fp32_head,
            on_gpu=model.model.device.type == "cuda",
            has_weights=False,
            settings=settings.vllm,
        )
        engine = VllmProcess(spec, names=frozenset(weights))
    try:
        engine.push_weights(weights, 0)
        check_engine(engine, model, context=settings.context, quantised=bool(settings.vllm.quantisation))
    except BaseException:
        engine.close()
        raise
    return engine
