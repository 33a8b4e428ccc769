"""Write the trained model of a run as a Hugging Face folder."""

import copy
from pathlib import Path
from typing import NamedTuple

import torch

from scalerl.errors import RecipeError
from scalerl.runfolder import store
from scalerl.training.models.load import load_model, save_model
from scalerl.training.models.lora import merged_weights, wrap
from scalerl.training.models.nf4 import quantise_layers
from scalerl.training.run import checkpoint as checkpoints
from scalerl.training.run.resume import best_step, written_recipe


def checkpoint_at(folder: Path, step: str, set_name: str | None) -> checkpoints.Checkpoint:
    """Return the checkpoint of a run at a step: a number, "last", or "best" by its reward on an evaluation set."""
    by_step = checkpoints.steps(folder / store.CHECKPOINTS)
    if not by_step:
        raise RecipeError(f"{folder} has no checkpoint yet, so there is no model to export")
    if step == "last" and (newest := checkpoints.latest(folder / store.CHECKPOINTS)) is not None:
        return newest
    chosen = step
    why = f"--step {step}"
    if step == "best":
        best = best_step(store.read_evals(folder), set_name)
        if best is None:
            raise RecipeError(f'{folder} has no evaluation of "{set_name}" after a step: give --step last or a number')
        chosen = str(best)
        why = f'the best evaluation of "{set_name}" was after step {best}'
    if not chosen.isdigit() or int(chosen) not in by_step:
        raise RecipeError(
            f'{why}, but {folder} has only checkpoints of steps {", ".join(map(str, by_step))}: give one, or "last"'
        )
    return checkpoints.load(by_step[int(chosen)])


class Exported(NamedTuple):
    """A model that was written, and the step of its checkpoint."""

    folder: Path
    step: int


def export(folder: Path, out: Path, step: str = "last", *, trust_remote_code: bool = False) -> Exported:
    """Write the model of one checkpoint of a run as a Hugging Face folder; see checkpoint_at for `step`."""
    recipe = written_recipe(folder, "export")
    settings = recipe.model
    checkpoint = checkpoint_at(folder, step, recipe.best_set or next(iter(recipe.tasks), "main"))
    base = load_model(settings.required_path, dtype=torch.float32, device="cpu", trust_remote_code=trust_remote_code)
    frozen = base.model
    if settings.lora.bits == 4:
        frozen = copy.deepcopy(frozen)
        quantise_layers(frozen, torch.device("cpu"))
    trained = wrap(frozen, settings.lora)
    weights = checkpoint.read_tensors["weights"]
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
        for name, weight in merged_weights(trained).items():
            base.model.get_parameter(name).copy_(weight)
    return Exported(save_model(base.model, base.tokenizer, out), checkpoint.step)
