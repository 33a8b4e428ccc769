"""The memory of engines: the size of a cache, and how many slots fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scalerl.recipe.parts import RolloutSettings
from scalerl.training.models.shape import head_sizes

if TYPE_CHECKING:
    from scalerl.training.models.load import LoadedModel

MEMORY_SHARE = 0.25
"""Share of the free memory that the cache may take if the number of slots is not set. The learner's gradients and
moments are not allocated yet, and on a CPU an evaluation keeps a second copy of the cache."""


def cache_bytes(config: Any, slots: int, max_length: int, dtype: torch.dtype) -> int:
    """Return the bytes of the keys and values of this many slots."""
    num_kv_heads, head_dim = head_sizes(config)
    return 2 * config.num_hidden_layers * slots * num_kv_heads * max_length * head_dim * dtype.itemsize


def most_slots(model: "LoadedModel", settings: RolloutSettings, dtype: torch.dtype) -> int | None:
    """Return how many slots of the chosen engine fit at full length, at least 1; None if the free memory is unknown.

    More would fit into vLLM while completions are short, but when memory runs out it recomputes whole completions.
    """
    per_slot = cache_bytes(model.model.config, 1, settings.context, dtype)
    if settings.engine == "vllm" and model.device.type == "cuda":
        total = torch.cuda.get_device_properties(model.device).total_memory * settings.vllm.tensor_parallel
        weights = sum(parameter.numel() for parameter in model.model.parameters()) * dtype.itemsize
        return max(int(settings.vllm.memory_share * total - weights) // per_slot, 1)
    free = free_bytes(model)
    if free is None:
        return None
    # On a CPU, vLLM's cache also has room for requests that a pause puts aside.
    num_caches = 2 if settings.engine == "vllm" else 1
    return max(int(MEMORY_SHARE * free) // per_slot // num_caches, 1)


def free_bytes(model: "LoadedModel") -> int | None:
    """Return the free memory of the model's device; None if the system does not report it."""
    device = model.device
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_free_bytes()


def host_free_bytes() -> int | None:
    """Return the free memory of this machine; None if the system does not report it."""
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(row.split()[1]) for row in rows if row.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
