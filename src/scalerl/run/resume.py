"""A run that is there already: whether a recipe is still its own, where it goes on, and the model it made."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from scalerl import store
from scalerl.config import Recipe, load_written, settings_of
from scalerl.errors import RecipeError, RunFolderError
from scalerl.models.load import load_model, save_model
from scalerl.models.lora import merged_weights, wrap
from scalerl.run import checkpoint as checkpoints

# What a run may be resumed with another value of: when it ends, where it is recorded, and how many grade at a time.
_FREE = ("budget.", "checkpoint.", "sinks", "description", "grading.num_workers")


@contextmanager
def only_trainer(folder: Path) -> Iterator[None]:
    """Hold a run's folder: a second process would mix its rows and checkpoints with those of the first."""
    # The folder itself, no file in it: the system lets go of it however the process ends.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{folder} is being trained into by another process: wait for its end, or stop it first"
            ) from None
        except OSError:  # A file system that knows no locks is no reason not to train.
            pass
        yield
    finally:
        os.close(descriptor)


def newest_checkpoint(folder: Path) -> checkpoints.Checkpoint | None:
    """What a run is resumed from; None where it was ended before its first checkpoint."""
    path = checkpoints.latest(folder / store.CHECKPOINTS)
    return None if path is None else checkpoints.load(path, verify=False)


def check_same(recipe: Recipe, folder: Path) -> None:
    """A resumed run is the same run, to the last setting that matters to it."""
    before, now = settings_of(written_recipe(folder, "resume")), settings_of(recipe)
    for key in sorted(before.keys() | now.keys()):
        old, new = (one[key].value if key in one else None for one in (before, now))
        if old != new and not key.startswith(_FREE):
            raise RecipeError(
                f"{folder} was started with {key} = {old!r}, and now it is {new!r}: resume with the same recipe, or "
                f"start another run with another --out"
            )


def written_recipe(folder: Path, purpose: Literal["resume", "export"]) -> Recipe:
    """The recipe that a run was started with."""
    if store.read_recipe(folder) is None:
        raise RecipeError(f"{folder} holds no run to {purpose}: it has no {store.RECIPE}")
    try:
        return load_written(folder / store.RECIPE)
    except RecipeError as error:
        raise RecipeError(f"{error}: {purpose} with that version") from None


def export(folder: Path, out: Path) -> Path:
    """The model of a run's newest checkpoint as a normal Hugging Face folder."""
    settings = written_recipe(folder, "export").model
    path = checkpoints.latest(folder / store.CHECKPOINTS)
    if path is None:
        raise RecipeError(f"{folder} has no checkpoint yet, so there is no model to export")
    assert settings.path is not None, "a run has a model"
    base = load_model(settings.path, dtype=torch.float32, device="cpu")
    trained = wrap(base.model, settings.lora)
    weights = checkpoints.load(path, verify=False).tensors["weights"]
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
        for name, weight in merged_weights(trained).items():
            base.model.get_parameter(name).copy_(weight)
    return save_model(base.model, base.tokenizer, out)
