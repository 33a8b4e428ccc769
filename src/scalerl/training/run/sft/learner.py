"""Supervised fine-tuning with the learner of RL: demonstrations take the place of sampled completions.

    examples -> a batch whose tokens are all imitated with equal weight (rl/algorithm.py) -> TorchLearner -> AdamW

The loss of a step is the mean negative log-prob of the imitated tokens in its batch. Prompts and the text of
environments are context, as in RL.
"""

import functools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scalerl.recipe.parts import OptimizerSettings
from scalerl.recipe.recipe import Recipe, body_dtype
from scalerl.training.learner import torch_learner
from scalerl.training.learner.saved import SavedTensors
from scalerl.training.rl.algorithm import imitate
from scalerl.training.rl.losses import none
from scalerl.training.rl.objective import Objective
from scalerl.training.run.cluster.place import check_gpus
from scalerl.training.run.learners import child_learner
from scalerl.training.types import Batch, Completion, Group

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def sft_learner(
    model: "PreTrainedModel", recipe: Recipe, *, lr: float, num_steps: int, device: torch.device | None = None
) -> Any:
    """Return a learner whose rate warms up and then falls along a cosine to a fiftieth of `lr`.

    It trains the model in place. With learner.sharding, ranks on this kind of device train copies of it, and
    `take_weights` copies their weights back.
    """
    learner = recipe.learner
    device = device or model.device
    optimizer = OptimizerSettings(
        lr=lr,
        schedule="cosine",
        decay_steps=num_steps,
        final_lr_frac=0.02,
        warmup_steps=math.ceil(recipe.sft.warmup_frac * num_steps),
        bits=recipe.optimizer.bits,
        on_host=recipe.optimizer.on_host,
        beta2=0.95,
        eps=1e-8,
    )
    step: dict[str, Any] = {
        "algorithm": imitate,
        "objective": Objective(loss=none),
        "learner": learner.model_copy(update={"share_prompts": False}),
        "optimizer": optimizer,
        "dtype": getattr(torch, body_dtype(recipe.model, gpu=device.type == "cuda")),
        "fp32_head": True,
    }
    if learner.sharding == "none":
        return torch_learner(model.to(device), **step)  # pyright: ignore[reportArgumentType]
    check_gpus(f"learner.ranks = {learner.ranks}", learner.ranks, torch.cuda.device_count(), "this machine")
    with tempfile.TemporaryDirectory(prefix="scalerl-sft-") as folder:
        # child_learner returns when the ranks have read the folder.
        model.save_pretrained(folder)
        return child_learner(learner, device, model=folder, settings=functools.partial(dict, **step))


@torch.no_grad()
def take_weights(learner: Any, model: "PreTrainedModel") -> None:
    """Copy the weights that ranks have trained into the model, unrounded, through the files of a checkpoint."""
    with tempfile.TemporaryDirectory(prefix="scalerl-sft-") as folder:
        learner.state_dict().write(Path(folder))
        weights = SavedTensors(Path(folder))["weights"]
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def batch_of(examples: Sequence[Completion], version: int = 0) -> Batch:
    """Return demonstrations as a batch of groups with one completion each."""
    groups = [
        Group(key="sft", problem=each.request.problem, completions=(each,), correct=(True,), rewards=(1.0,))
        for each in examples
    ]
    return Batch(version=version, groups=groups)
