"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft. Only they are trained; all others get the merged weights.

    y = W x + alpha / rank * B A x        A random, B zero, both FP32; W frozen

The generator, evaluations and exports get W + alpha / rank * B A under W's own name, so they need no adapter code.
"""

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scalerl.config.parts import LoraSettings
from scalerl.errors import LoraError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ADAPTER = "default"


def wrap(model: "PreTrainedModel", settings: LoraSettings) -> "PreTrainedModel":
    """Return a model with adapters, which alone have gradients; with rank 0, `model` itself.

    `model` itself gets no adapters. The two share their weights, which are frozen in both.
    """
    if settings.rank == 0:
        return model
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise LoraError("model.lora.rank needs a package that is not installed: pip install peft") from None
    targets = _targets(model, settings)
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    wrapped = copy.deepcopy(model, shared)
    # No dropout: log-probs in training must be those of the policy that was sampled from.
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=targets, lora_dropout=0.0)  # pyright: ignore[reportArgumentType]
    inject_adapter_in_model(config, wrapped, _ADAPTER)
    return wrapped


def merged_weights(model: "PreTrainedModel") -> dict[str, Tensor]:
    """Return every weight under its name without adapters; see each_merged_weight."""
    return dict(each_merged_weight(model))


@torch.no_grad()
def each_merged_weight(
    model: "PreTrainedModel", whole: Callable[[Tensor], Tensor] = Tensor.detach, *, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight under its name without adapters: merged copies where there is one, else the model's own.

    `whole` turns a parameter into all of its values, if this process has only a part. Merged copies are rounded to
    `dtype`, that of the body which they go to: copies of 8B in FP32 take 26 GiB beside the model.
    """
    for name, parameter in model.named_parameters():
        layer, adapted, kind = name.partition(".base_layer.")
        if adapted and kind == "weight":
            module: Any = model.get_submodule(layer)
            down, up = (whole(getattr(module, part)[_ADAPTER].weight) for part in ("lora_A", "lora_B"))
            merged = whole(parameter) + (up @ down) * module.scaling[_ADAPTER]
            yield f"{layer}.weight", merged if dtype is None else merged.to(dtype)
        elif ".lora_" not in name:
            yield f"{layer}.{kind}" if adapted else name, whole(parameter)


def num_adapter_params(model: "PreTrainedModel") -> int:
    """Return the number of adapter parameters; 0 without adapters."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if ".lora_" in name)


def _targets(model: "PreTrainedModel", settings: LoraSettings) -> list[str]:
    """Return the full names of the layers that get an adapter, so that peft does not guess."""
    head = model.get_output_embeddings()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    kinds = {name.rpartition(".")[2] for name in layers}
    if unknown := [target for target in settings.targets if target not in kinds]:
        raise LoraError(
            f'model.lora.targets names "{unknown[0]}", and the layers of this model are {", ".join(sorted(kinds))}'
        )
    return [name for name in layers if not settings.targets or name.rpartition(".")[2] in settings.targets]
