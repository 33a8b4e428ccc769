"""The fleet of generators that a recipe describes: threads of this process, or Ray actors."""

import functools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from scalerl.config import Recipe, body_dtype
from scalerl.errors import RecipeError
from scalerl.models.load import LoadedModel, load_model, name_elsewhere
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.members import Launcher, Limits
from scalerl.rollout.fleet.threads import ThreadLauncher
from scalerl.rollout.fleet.weights import clone
from scalerl.rollout.requests import check_request
from scalerl.run.cluster.meter import FleetMeter
from scalerl.run.cluster.place import Place

if TYPE_CHECKING:
    from scalerl.loop.seams import Engine

_LOADING = threading.Lock()
"""Loading a model changes torch's global settings for a moment, so threads take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMaker:
    """Builds the engine of a generator where the generator runs. Can be pickled."""

    recipe: Recipe
    slots: int
    build: "Callable[..., Engine]"
    """The function run/parts.build_engine, passed in to avoid an import cycle."""

    def __call__(self, number: int, device: str | None = None) -> "Engine":
        """Load the model on the device, or on the only one that a Ray actor sees, and return an engine with a copy."""
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if target.type == "cuda" and target.index is not None:
            # A thread begins with the first GPU as its own: streams, events and graphs of the engine would be there.
            torch.cuda.set_device(target)
        path = self.recipe.model.path
        assert path is not None, "checked by load_inputs"
        # Rounded already: every weight comes with the first push, and the device need not hold FP32 ones meanwhile.
        dtype = getattr(torch, body_dtype(self.recipe, gpu=target.type == "cuda"))
        with _LOADING:
            model = load_model(
                path,
                dtype=dtype,
                device=target,
                context=self.recipe.rollout.context,
                trust_remote_code=self.recipe.model.trust_remote_code,
            )
            if self.recipe.rollout.engine != "vllm":
                return self.build(model, self.recipe, slots=self.slots)
        # vLLM takes a minute to start, in a process of its own: generators start it at the same time.
        return self.build(model, self.recipe, slots=self.slots)


def slots_per_generator(recipe: Recipe, slots: int) -> int:
    """Return the slots of each generator if all of them together have `slots`."""
    return max(-(-slots // recipe.rollout.generators), 1)


def build_fleet(
    recipe: Recipe, model: LoadedModel, *, slots: int, build_engine: "Callable[..., Engine]", place: Place
) -> tuple[Fleet, FleetMeter]:
    """Start the generators of a recipe; they load the model while this returns."""
    rollout = recipe.rollout
    assert recipe.model.path is not None, "checked by load_inputs"
    # The working folder of an actor is another one.
    named = recipe.model.model_copy(update={"path": name_elsewhere(recipe.model.path)})
    recipe = recipe.model_copy(update={"model": named})
    make = EngineMaker(recipe=recipe, slots=slots_per_generator(recipe, slots), build=build_engine)
    on_gpu = place.computes_on(model.model.device).type == "cuda"
    num_gpus = rollout.generator_gpus * int(on_gpu)
    launcher: Launcher
    if recipe.cluster.address:
        from scalerl.rollout.fleet.ray_members import RayLauncher

        launcher = RayLauncher(make, slots=make.slots, num_gpus=num_gpus, num_cpus=place.cpus_per_generator)
    else:
        launcher = _threads(make, recipe.learner.ranks, rollout.generators, num_gpus)
    head: Any = model.model.get_output_embeddings()
    fleet = Fleet(
        launcher,
        rollout.generators,
        check=functools.partial(check_request, max_length=rollout.context, vocabulary=int(head.weight.shape[0])),
        limits=Limits(silent_s=rollout.silent_s, replacements=rollout.max_replacements),
    )
    return fleet, FleetMeter(fleet, slots=make.slots, gpus_per_generator=num_gpus, learner=place.names)


def _threads(make: EngineMaker, ranks: int, generators: int, num_gpus: int) -> ThreadLauncher:
    """Return a launcher of threads, each on a separate GPU that the learner does not use, or all on the CPU."""
    host = socket.gethostname()
    if not num_gpus:
        return ThreadLauncher(
            lambda number: make(number, "cpu"), slots=make.slots, devices=lambda _: (f"{host}/cpu",), copy=clone
        )
    if make.recipe.rollout.engine == "vllm":
        raise RecipeError(
            'rollout.generators with rollout.engine = "vllm" needs Ray, which gives each generator its GPUs: set '
            'cluster.address = "local"'
        )
    # The learner has the first ones.
    others = range(ranks, torch.cuda.device_count())
    if generators > len(others):
        raise RecipeError(
            f"rollout.generators = {generators} needs {generators} GPUs beside the learner's, and this machine has "
            f"{len(others)}: lower it, set it to 0 to share one GPU, or use a Ray cluster (cluster.address)"
        )
    return ThreadLauncher(
        lambda number: make(number, f"cuda:{others[number]}"),
        slots=make.slots,
        devices=lambda number: (f"{host}/cuda:{others[number]}",),
        copy=clone,
    )
