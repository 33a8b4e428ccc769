"""The engines that a recipe describes: in this process, or a fleet of generators in child processes or Ray actors."""

import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scalerl.choose import entry
from scalerl.config import Recipe, body_dtype, replaced
from scalerl.errors import RecipeError
from scalerl.models.load import LoadedModel, load_model, name_elsewhere
from scalerl.remote.child import ChildLink
from scalerl.remote.peer import Limits, Link
from scalerl.remote.weights import publisher
from scalerl.rollout import ENGINES
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.generator import Generator
from scalerl.rollout.requests import check_request
from scalerl.run.cluster.meter import FleetMeter
from scalerl.run.cluster.place import Place


def make_engine(model: LoadedModel, recipe: Recipe, *, slots: int, gpu: bool) -> Any:
    """Return an engine that samples from a copy of the model, on the model's device."""
    return entry(ENGINES, recipe.rollout.engine, "rollout.engine")(
        model,
        recipe.rollout.model_copy(update={"slots": slots}),
        dtype=getattr(torch, body_dtype(recipe, gpu=gpu)),
        fp32_head=recipe.model.fp32_head in ("both", "generator"),
        records_experts=recipe.model.router_replay,
    )


def load_engine(recipe: Recipe, *, slots: int, device: str = "") -> Any:
    """Load the model on the device, or on the only one that this process sees, and return an engine with a copy."""
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = target.type == "cuda"
    if gpu and target.index is not None:
        # Streams, events and graphs of the engine would otherwise be on the first GPU.
        torch.cuda.set_device(target)
    assert recipe.model.path is not None, "checked by load_inputs"
    model = load_model(
        recipe.model.path,
        # Rounded already: every weight comes with the first push, and the device need not hold FP32 ones meanwhile.
        dtype=getattr(torch, body_dtype(recipe, gpu=gpu)),
        device=target,
        context=recipe.rollout.context,
        trust_remote_code=recipe.model.trust_remote_code,
    )
    return make_engine(model, recipe, slots=slots, gpu=gpu)


def slots_per_generator(recipe: Recipe, slots: int) -> int:
    """Return the slots of each generator if all of them together have `slots`."""
    return max(-(-slots // max(recipe.rollout.generators, 1)), 1)


def build_fleet(
    recipe: Recipe, model: LoadedModel, *, slots: int, place: Place, weights: Callable[[], Mapping[str, Any]]
) -> tuple[Fleet, FleetMeter]:
    """Start the generators of a recipe; they load the model while this returns. `weights` are the learner's."""
    rollout = recipe.rollout
    assert recipe.model.path is not None, "checked by load_inputs"
    # The working folder of another process may be another one.
    recipe = replaced(recipe, {"model.path": name_elsewhere(recipe.model.path)})
    slots = slots_per_generator(recipe, slots)
    on_gpu = place.computes_on.type == "cuda"
    num_gpus = rollout.generator_gpus * int(on_gpu)
    common: dict[str, Any] = {
        "weights": weights,
        # With rarer pushes the learner's memory is ahead of the last one.
        "publish": publisher(on_ray=bool(recipe.cluster.address), borrows=recipe.pipeline.push_every == 1),
    }
    if recipe.cluster.address:
        fleet = _fleet(_actors(recipe, slots, num_gpus, place.cpus_per_generator), recipe, model, **common)
    else:
        gpus = _gpus_of_generators(recipe, num_gpus)
        host = socket.gethostname()
        devices = [tuple(f"{host}/cuda:{gpu}" for gpu in each) or (f"{host}/cpu",) for each in gpus]
        if rollout.engine == "vllm":
            from scalerl.rollout.vllm.build import vllm_fleet

            # Ranks that continue a run are ahead of the model here, with which engines are checked.
            has_ranks = recipe.learner.sharding != "none"
            own = {name: parameter.detach() for name, parameter in model.model.named_parameters()}
            fleet = vllm_fleet(
                model,
                rollout.model_copy(update={"slots": slots}),
                dtype=getattr(torch, body_dtype(recipe, gpu=on_gpu)),
                fp32_head=recipe.model.fp32_head in ("both", "generator"),
                on_gpu=on_gpu,
                records_experts=recipe.model.router_replay,
                first=own if has_ranks else weights(),
                num=len(gpus),
                gpus=gpus if num_gpus and rollout.generators else (),
                devices=devices,
                **common,
            )
        else:
            fleet = _fleet(_children(recipe, slots, gpus, devices), recipe, model, **common)
    return fleet, FleetMeter(fleet, slots=slots, gpus_per_generator=num_gpus, learner=place.names)


def _fleet(start: Callable[[int], Link], recipe: Recipe, model: LoadedModel, **common: Any) -> Fleet:
    rollout, head = recipe.rollout, model.model.get_output_embeddings()
    assert isinstance(head, torch.nn.Module)
    vocabulary = int(head.weight.shape[0])  # pyright: ignore[reportArgumentType, reportIndexIssue, reportAttributeAccessIssue]
    return Fleet(
        start,
        rollout.generators,
        check=functools.partial(check_request, max_length=rollout.context, vocabulary=vocabulary),
        limits=Limits(silent_s=rollout.silent_s),
        replacements=rollout.max_replacements,
        **common,
    )


def _gpus_of_generators(recipe: Recipe, num_gpus: int) -> list[Sequence[int]]:
    """Return the numbers of each generator's GPUs on this machine: the learner has the first ones.

    A vLLM without rollout.generators has those of rollout.vllm.devices, or the learner's.
    """
    num, ranks = recipe.rollout.generators, recipe.learner.ranks
    if not num_gpus:
        return [()] * max(num, 1)
    if not num:
        return [recipe.rollout.vllm.devices or range(num_gpus)]
    others = range(ranks, torch.cuda.device_count())
    if num * num_gpus > len(others):
        raise RecipeError(
            f"rollout.generators = {num} needs {num * num_gpus} GPUs beside the learner's, and this machine has "
            f"{len(others)}: lower it, set it to 0 to share one GPU, or use a Ray cluster (cluster.address)"
        )
    return [others[number * num_gpus : (number + 1) * num_gpus] for number in range(num)]


def _children(
    recipe: Recipe, slots: int, gpus: Sequence[Sequence[int]], devices: Sequence[tuple[str, ...]]
) -> Callable[[int], Link]:
    """Return what starts generators as processes of this machine, each on a GPU of its own, or all on the CPU."""
    threads = 1 if gpus[0] else max(torch.get_num_threads() // len(gpus), 1)
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}

    def start(number: int) -> ChildLink:
        device = f"cuda:{gpus[number][0]}" if gpus[number] else "cpu"
        make = functools.partial(_generator, recipe, slots, device, devices[number])
        return ChildLink(make, variables=variables)

    return start


def _actors(recipe: Recipe, slots: int, num_gpus: int, num_cpus: float) -> Callable[[int], Link]:
    """Return what starts generators as Ray actors, spread over the nodes."""
    from scalerl.remote.actors import ActorLink, start_actor

    # A vLLM that dies ends its actor, which is then replaced.
    make = functools.partial(_generator, replaced(recipe, {"rollout.max_replacements": 0}), slots)

    def start(number: int) -> Link:
        options = {"num_gpus": num_gpus, "num_cpus": num_cpus, "scheduling_strategy": "SPREAD"}
        return ActorLink(start_actor("Generator", **options), make)

    return start


def _generator(recipe: Recipe, slots: int, device: str = "", devices: tuple[str, ...] = ()) -> Generator:
    """Return a generator, in its process: on a device of a child, or on those that Ray gave to an actor."""
    if not devices:
        from scalerl.remote.actors import here

        devices = here().devices
    return Generator(load_engine(recipe, slots=slots, device=device), slots=slots, devices=devices)
