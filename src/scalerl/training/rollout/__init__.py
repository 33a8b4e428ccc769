"""Engines: requests in, completions out. An engine does not know the purpose of its completions.

    requests, noise, sampling, progress    shared by all engines, independent of any of them
    engine, memory                         checks and counts of all engines; the memory of their caches
    torch/                                 the embedded engine: continuous batching with torch in this process
    vllm/                                  vLLM in child processes: large models, tensor parallelism, quantised weights
    fleet/                                 one engine over several in other processes

ENGINES has a function for each value of rollout.engine in a recipe. It takes the loaded model and the rollout settings,
and returns an object with the methods of loop/seams.Engine. Heavy packages are imported inside the function.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.recipe.parts import RolloutSettings
    from scalerl.training.models.load import LoadedModel
    from scalerl.training.rollout.fleet.fleet import Fleet
    from scalerl.training.rollout.torch.engine import TorchEngine


def torch_engine(model: "LoadedModel", settings: "RolloutSettings", **others: Any) -> "TorchEngine":
    """Return the embedded engine, in this process and on the model's device."""
    from scalerl.training.rollout.torch.build import build_engine

    return build_engine(model, settings, **others)


def vllm_engine(model: "LoadedModel", settings: "RolloutSettings", **others: Any) -> "Fleet":
    """Return vLLM in a child process, which is replaced if it dies; RecipeError if it is not installed."""
    from scalerl.training.rollout.vllm.build import build_engine

    return build_engine(model, settings, **others)


ENGINES: dict[str, Callable[..., Any]] = {"torch": torch_engine, "vllm": vllm_engine}
