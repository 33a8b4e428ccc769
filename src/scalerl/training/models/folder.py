"""Read a Hugging Face folder weight by weight, so that no process has to hold a whole model.

empty_model(folder)    the model without weights: parameters on the meta device, real buffers
fill(module, ...)      the weights of one module, read from the files
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from scalerl.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def empty_model(folder: Path, dtype: torch.dtype) -> "PreTrainedModel":
    """Return a folder's model with parameters on the meta device and real buffers, such as rotary frequencies."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with _parameters_on_meta():
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)


@torch.no_grad()
def fill(model: "PreTrainedModel", module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Read the parameters of one module of the model that are still on the meta device.

    Modules that share a weight must be filled together, so that they still share it.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for key, parameter in list(owner.named_parameters(recurse=False)):
            if parameter.device.type != "meta":
                continue
            if id(parameter) not in made:
                values = weights[names[id(parameter)]].to(parameter.dtype)
                if values.shape != parameter.shape:
                    raise ModelError(
                        f"the weight {names[id(parameter)]} has shape {tuple(values.shape)}, but the model's config "
                        f"needs {tuple(parameter.shape)}"
                    )
                made[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            setattr(owner, key, made[id(parameter)])


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move parameters to the meta device as soon as they are registered, before their memory is used."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register
