"""The fleet of generators that a recipe describes: threads of this process, or Ray actors."""

import functools
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from scalerl.config import Recipe, body_dtype
from scalerl.errors import RecipeError
from scalerl.models.load import LoadedModel, load_model
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.members import Launcher, Limits
from scalerl.rollout.fleet.threads import ThreadLauncher
from scalerl.rollout.fleet.weights import clone
from scalerl.rollout.requests import check_request
from scalerl.run.cluster.meter import FleetMeter

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device of the learner in the driver's process."""

    device: torch.device | None
    """Device of the learner; None if any may be used."""
    names: tuple[str, ...]
    """The learner's devices, as "node/device"."""
    cpus_per_generator: float = 1.0
    """Cores that Ray reserves for each generator: one, or its share where there are more generators than cores."""


def enter_cluster(recipe: Recipe, opened: ExitStack) -> Place:
    """Connect to the recipe's cluster, if it has one, and hold a GPU there for the learner."""
    on_gpu = torch.cuda.is_available()
    if recipe.rollout.generators and recipe.rollout.gpus_per_generator and not on_gpu:
        raise RecipeError(
            f"rollout.gpus_per_generator is {recipe.rollout.gpus_per_generator}, and this machine has no GPU: leave it "
            f"out to sample on CPUs"
        )
    if not recipe.cluster.address:
        devices = [f"cuda:{rank}" for rank in range(recipe.learner.ranks)] if on_gpu else ["cpu"]
        return Place(device=None, names=tuple(f"{socket.gethostname()}/{device}" for device in devices))
    from scalerl.run.cluster.connect import check_gpus, connect, node_id, reserved_gpus

    connection = connect(recipe.cluster.address)
    opened.callback(connection.close)
    wanted = gpus_wanted(recipe, has_gpus=on_gpu)
    check_gpus(connection, wanted=wanted, source=f"rollout.generators = {recipe.rollout.generators}")
    cpus = min(1.0, connection.num_cpus / recipe.rollout.generators)
    if not on_gpu:
        return Place(device=torch.device("cpu"), names=(f"{node_id()}/cpu",), cpus_per_generator=cpus)
    gpus = opened.enter_context(reserved_gpus(recipe.learner.ranks))
    names = tuple(f"{node_id()}/gpu:{gpu}" for gpu in gpus)
    return Place(device=torch.device(f"cuda:{gpus[0]}"), names=names, cpus_per_generator=cpus)


def build_fleet(
    recipe: Recipe, model: LoadedModel, *, slots: int, build_engine: "Callable[..., Engine]", place: Place
) -> tuple[Fleet, FleetMeter]:
    """Start the generators of a recipe; they load the model while this returns."""
    rollout = recipe.rollout
    make = EngineMaker(recipe=recipe, slots=slots_per_generator(recipe, slots), build=build_engine)
    on_gpu = model.model.device.type == "cuda"
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


def gpus_wanted(recipe: Recipe, *, has_gpus: bool) -> int:
    """Return the GPUs that a recipe's generators and its learner need in all."""
    if not has_gpus:
        return 0
    return recipe.rollout.generators * recipe.rollout.generator_gpus + recipe.learner.ranks


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
