"""Low-rank adapters (LoRA, arXiv 2106.09685): linear layers are frozen, and the adapters added to them are trained.

    y = W x + alpha / rank * B A x        A random, B zero, both FP32; W frozen, in the dtype of its file or 4 bits

vLLM and exports get W + alpha / rank * B A under the name of W, so they need no adapter code. The torch engine gets A
and B separately: it computes the same products as the learner, and shares W with a learner in its process.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scalerl.errors import LoraError
from scalerl.recipe.parts import LoraSettings
from scalerl.training.models.nf4 import Nf4Linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NamedTensors = Iterator[tuple[str, Tensor]]
_ADAPTER = (".lora_A.", ".lora_B.")


class AdaptedLinear(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, base_layer: nn.Linear | Nf4Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.scale = alpha / rank
        self.in_features = base_layer.in_features
        self.out_features = base_layer.out_features
        frozen = base_layer.scale if isinstance(base_layer, Nf4Linear) else base_layer.weight
        place: Any = {"dtype": torch.promote_types(frozen.dtype, torch.float32), "device": frozen.device}
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **place)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **place)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        # Scale the narrow tensor: after B, a backward pass would write and read a scaled copy of the gradient.
        return self.base_layer(inputs) + self.lora_B(self.lora_A(inputs) * self.scale)

    def merged(self, whole: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the weight of a linear layer with the same output; for `whole` see each_merged_weight."""
        base = self.base_layer
        down = whole(self.lora_A.weight)
        up = whole(self.lora_B.weight)
        frozen = base.decoded(down.dtype) if isinstance(base, Nf4Linear) else whole(base.weight)
        return frozen + (up @ down) * self.scale


def master_dtype(settings: LoraSettings) -> torch.dtype | None:
    """Return the dtype in which a learner loads a model: FP32 to train it, or None, that of the files, to freeze it."""
    return None if settings.rank else torch.float32


def wrap(model: "PreTrainedModel", settings: LoraSettings) -> "PreTrainedModel":
    """Return a model with adapters, in which only the adapters have gradients; with rank 0, return `model`.

    `model` is not changed. Both share their weights, which are frozen in both.
    """
    if settings.rank == 0:
        return model
    targets = _targets(model, settings)
    shared: dict[int, Any] = {id(parameter): parameter.requires_grad_(False) for parameter in model.parameters()}
    wrapped = copy.deepcopy(model, shared)
    for name in targets:
        layer: Any = wrapped.get_submodule(name)
        # No dropout: log-probs in training must be those of the policy that sampled.
        wrapped.set_submodule(name, AdaptedLinear(layer, rank=settings.rank, alpha=settings.alpha))
    return wrapped


def merged_weights(model: "PreTrainedModel") -> dict[str, Tensor]:
    """Return all weights by their names without adapters; see each_merged_weight."""
    return dict(each_merged_weight(model))


@torch.no_grad()
def each_merged_weight(
    model: "PreTrainedModel", whole: Callable[[Tensor], Tensor] = Tensor.detach, *, dtype: torch.dtype | None = None
) -> NamedTensors:
    """Yield all weights by their names without adapters: merged copies, or the model's own without an adapter.

    `whole` returns all values of a parameter, if this process has only a part. Merged copies are rounded to `dtype`,
    the dtype of the engine's body: copies of 8B parameters in FP32 would take 26 GiB.
    """
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            merged = module.merged(whole)
            yield f"{name}.weight", merged.to(dtype or merged.dtype)
        elif isinstance(module, Nf4Linear) and not name.endswith(".base_layer"):
            yield f"{name}.weight", module.decoded(dtype or torch.float32)
    for name, parameter in model.named_parameters():
        if not name.endswith(".base_layer.weight") and not is_adapter(name):
            yield name.replace(".base_layer.", "."), whole(parameter)


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has unmerged adapters."""
    return any(isinstance(module, AdaptedLinear) for module in model.modules())


def is_adapter(name: str) -> bool:
    """Return whether a parameter with this name belongs to an adapter."""
    return any(part in name for part in _ADAPTER)


def each_adapter(model: "PreTrainedModel", whole: Callable[[Tensor], Tensor] = Tensor.detach) -> NamedTensors:
    """Yield the weights of all adapters; for `whole` see each_merged_weight."""
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            yield name, whole(parameter)


def num_adapter_params(model: "PreTrainedModel") -> int:
    """Return the number of adapter parameters; 0 without adapters."""
    return sum(weight.numel() for _, weight in each_adapter(model))


def _targets(model: "PreTrainedModel", settings: LoraSettings) -> list[str]:
    """Return the full names of the layers that get an adapter."""
    head = model.get_output_embeddings()
    kind = (nn.Linear, Nf4Linear)
    layers = [name for name, module in model.named_modules() if isinstance(module, kind) and module is not head]
    kinds = {name.rpartition(".")[2] for name in layers}
    if unknown := [target for target in settings.targets if target not in kinds]:
        raise LoraError(
            f'model.lora.targets names "{unknown[0]}", but the layers of this model are {", ".join(sorted(kinds))}'
        )
    return [name for name in layers if not settings.targets or name.rpartition(".")[2] in settings.targets]
