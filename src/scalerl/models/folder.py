"""Read a Hugging Face folder weight by weight, so that a process never has to hold a whole model.

empty_model(folder)    the model without weights: parameters on the meta device, buffers as they are
fill(module, ...)      the weights of one module, read from the files
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from scalerl.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class FolderWeights:
    """The weights in the safetensors files of a model's folder, by name."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        if (folder / _INDEX).is_file():
            files: dict[str, str] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        elif (folder / _ONE_FILE).is_file():
            with safe_open(folder / _ONE_FILE, framework="pt") as opened:
                files = dict.fromkeys(opened.keys(), _ONE_FILE)
        else:
            raise ModelError(f"model {folder}: this folder has no {_ONE_FILE}")
        self.names = files.keys()
        self._files = files
        self._folder = folder

    def read(self, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._folder / self._files[name], framework="pt") as opened:
            return opened.get_tensor(name)


def empty_model(folder: Path, dtype: torch.dtype) -> "PreTrainedModel":
    """Return a folder's model with parameters on the meta device. Buffers, such as rotary frequencies, are real."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with _parameters_on_meta():
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)


def can_fill(model: "PreTrainedModel", weights: FolderWeights) -> bool:
    """Return whether the files hold every weight of an empty model under its name; some families rename them."""
    return all(name in weights.names for name, _ in model.named_parameters())


@torch.no_grad()
def fill(model: "PreTrainedModel", module: nn.Module, weights: FolderWeights) -> None:
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
                values = weights.read(names[id(parameter)]).to(parameter.dtype)
                if values.shape != parameter.shape:
                    raise ModelError(
                        f"the weight {names[id(parameter)]} has shape {tuple(values.shape)}, but the model's config "
                        f"needs {tuple(parameter.shape)}"
                    )
                made[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            setattr(owner, key, made[id(parameter)])


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Put parameters on the meta device as soon as they are registered; their memory was never touched."""
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
