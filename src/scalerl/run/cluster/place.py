"""Where the parts of a run are: the learner in the driver's process or its ranks on nodes, and room for generators."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from scalerl.config import Recipe
from scalerl.errors import ClusterError, RecipeError
from scalerl.models.load import load_config
from scalerl.run.memory import Gpus, check_context_ranks

if TYPE_CHECKING:
    from scalerl.run.cluster.connect import Connection
    from scalerl.run.cluster.ranks import PlacedRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The devices of a run's learner."""

    device: torch.device
    """Device of the model in the driver's process; with ranks it is there only until they have loaded theirs."""
    computes_on: torch.device
    """The kind of device that learner and generators compute on."""
    names: tuple[str, ...]
    """The learner's devices, as "node/device"."""
    cpus_per_generator: float = 1.0
    """Cores that Ray reserves for each generator: one, or its share where there are too few."""
    ranks: "PlacedRanks | None" = None
    """The learner's ranks, where they are Ray actors."""
    gpus: Gpus | None = None
    """The GPUs of ranks; None without those."""

    @property
    def device_name(self) -> str:
        """Name of the ranks' GPUs on a cluster; empty where the driver knows it."""
        return "" if self.ranks is None else self.ranks.places[0].device_name


def enter_cluster(recipe: Recipe, opened: ExitStack, on_lost: Callable[[str], None]) -> Place:
    """Connect to the recipe's cluster, if it has one, and hold devices there for the learner.

    `on_lost` is called from another thread if a Ray on this machine alone dies.
    """
    if recipe.learner.context_ranks > 1 and recipe.model.path is not None:
        check_context_ranks(recipe, load_config(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code))
    on_gpu = torch.cuda.is_available()
    has_ranks = recipe.learner.sharding != "none"
    has_actors = bool(recipe.cluster.address) and has_ranks
    if not has_actors:
        _check_generators(recipe, on_gpu=on_gpu, where="this machine")
    if not recipe.cluster.address:
        here = torch.device("cuda" if on_gpu else "cpu")
        devices = [f"cuda:{rank}" for rank in range(recipe.learner.ranks)] if on_gpu else ["cpu"]
        return Place(
            device=torch.device("cpu") if has_ranks else here,
            computes_on=here,
            names=tuple(f"{socket.gethostname()}/{device}" for device in devices),
            gpus=Gpus.here(len(devices)) if has_ranks else None,
        )
    from scalerl.run.cluster.connect import check_gpus, connect, node_id, reserved_gpu

    connection = connect(recipe.cluster.address, on_lost=on_lost)
    opened.callback(connection.close)
    if has_actors:
        return _place_ranks(recipe, connection, opened)
    wanted = gpus_wanted(recipe, has_gpus=on_gpu)
    check_gpus(connection, wanted=wanted, source=f"rollout.generators = {recipe.rollout.generators}")
    cpus = cpu_share(cpus_for(recipe, connection, on_gpu=on_gpu), recipe.rollout.generators)
    if not on_gpu:
        cpu = torch.device("cpu")
        return Place(device=cpu, computes_on=cpu, names=(f"{node_id()}/cpu",), cpus_per_generator=cpus)
    gpu = opened.enter_context(reserved_gpu())
    uuids = [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in range(torch.cuda.device_count())]
    device = torch.device("cuda", gpu_number(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"), uuids))
    return Place(device=device, computes_on=device, names=(f"{node_id()}/gpu:{gpu}",), cpus_per_generator=cpus)


def gpu_number(gpu: str, visible: str | None, uuids: Sequence[str]) -> int:
    """Return the number of a GPU in this process. `gpu` is Ray's id: its name in the node's CUDA_VISIBLE_DEVICES.

    `visible` is that variable in this process, and `uuids` are those of the GPUs that it sees. The variable may hold
    numbers, UUIDs, beginnings of those, and names of parts of a GPU.
    """
    names = [name.strip() for name in visible.split(",")] if visible else [str(number) for number in range(len(uuids))]
    numbers = [number for number, uuid in enumerate(uuids) if uuid.startswith(gpu)]
    if gpu not in names and len(numbers) != 1:
        given = "is not set" if visible is None else f'is "{visible}"'
        raise ClusterError(
            f"Ray gave GPU {gpu} of this node to the learner, and this process does not see it (CUDA_VISIBLE_DEVICES "
            f"{given}): start the run with the CUDA_VISIBLE_DEVICES that `ray start` had on this node"
        )
    return names.index(gpu) if gpu in names else numbers[0]


def _place_ranks(recipe: Recipe, connection: "Connection", opened: ExitStack) -> Place:
    """Hold the devices of the ranks, on any nodes; the driver needs no GPU."""
    from scalerl.run.cluster.connect import check_gpus
    from scalerl.run.cluster.ranks import placed_ranks

    ranks, generators = recipe.learner.ranks, recipe.rollout.generators
    on_gpu = connection.num_gpus > 0
    _check_generators(recipe, on_gpu=on_gpu, where=f"the cluster at {connection.address}")
    source = f"learner.ranks = {ranks} with rollout.generators = {generators}"
    check_gpus(connection, wanted=gpus_wanted(recipe, has_gpus=on_gpu), source=source, ranks=ranks if on_gpu else 0)
    cpus = cpu_share(cpus_for(recipe, connection, on_gpu=on_gpu), generators + (0 if on_gpu else ranks))
    if not (cpus or on_gpu):
        raise ClusterError(f"the cluster at {connection.address} has no CPUs: start its nodes with --num-cpus")
    placed = opened.enter_context(placed_ranks(connection, ranks, on_gpu=on_gpu, cpus=cpus))
    return Place(
        device=torch.device("cpu"),
        computes_on=torch.device("cuda" if on_gpu else "cpu"),
        names=placed.devices,
        cpus_per_generator=cpus,
        ranks=placed,
        gpus=Gpus(num=ranks, bytes_each=placed.free_bytes) if on_gpu else None,
    )


def _check_generators(recipe: Recipe, *, on_gpu: bool, where: str) -> None:
    if recipe.rollout.generators and recipe.rollout.gpus_per_generator and not on_gpu:
        raise RecipeError(
            f"rollout.gpus_per_generator is {recipe.rollout.gpus_per_generator}, and {where} has no GPU: leave it "
            f"out to sample on CPUs"
        )


def gpus_wanted(recipe: Recipe, *, has_gpus: bool) -> int:
    """Return the GPUs that a recipe's generators and its learner need in all."""
    if not has_gpus:
        return 0
    return recipe.rollout.generators * recipe.rollout.generator_gpus + recipe.learner.ranks


def cpus_for(recipe: Recipe, connection: "Connection", *, on_gpu: bool) -> tuple[float, ...]:
    """Return the cores of the nodes that generators may run on: where they need a GPU, of those with GPUs."""
    anywhere = not (on_gpu and recipe.rollout.generator_gpus)
    return tuple(cpus for node, cpus in connection.node_cpus if anywhere or node in connection.gpu_nodes)


def cpu_share(cpus_of_nodes: Sequence[float], num: int) -> float:
    """Return the cores that Ray may reserve for each of `num` processes, at most 1, such that nodes have room for all.

    cpu_share([2], 4) is 0.5, and cpu_share([2, 1], 4) is 0.6666: of 0.75 there would be room for three.
    """
    # A node is used up by a whole number of processes at the best share. Ray counts in ten-thousandths.
    shares = {min(cpus / each, 1.0) for cpus in cpus_of_nodes for each in range(1, num + 1)}
    shares = {int(share * 1e4) / 1e4 for share in shares} - {0.0}
    return max((share for share in shares if sum(int(cpus / share) for cpus in cpus_of_nodes) >= num), default=0.0)
