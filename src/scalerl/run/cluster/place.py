"""Where the parts of a run are: the learner in the driver's process or its ranks on nodes, and room for generators."""

import math
import socket
from collections.abc import Callable
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
    """Cores that Ray reserves for each generator: one, a part where there are too few, none beside a GPU."""
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
    if recipe.cluster.address:
        from scalerl.run.cluster.connect import connect

        connection = connect(recipe.cluster.address, on_lost=on_lost)
        opened.callback(connection.close)
        return place_on(connection, recipe, opened)
    on_gpu, has_ranks = torch.cuda.is_available(), recipe.learner.sharding != "none"
    _check_generators(recipe, on_gpu=on_gpu, where="this machine")
    here = torch.device("cuda" if on_gpu else "cpu")
    devices = [f"cuda:{rank}" for rank in range(recipe.learner.ranks)] if on_gpu else ["cpu"]
    return Place(
        device=torch.device("cpu") if has_ranks else here,
        computes_on=here,
        names=tuple(f"{socket.gethostname()}/{device}" for device in devices),
        gpus=Gpus.here(len(devices)) if has_ranks else None,
    )


def place_on(connection: "Connection", recipe: Recipe, opened: ExitStack) -> Place:
    """Hold devices for the learner's ranks on the nodes of a cluster; the driver needs no GPU.

    Without learner.sharding there is one rank, on the driver's node: others need not see the run folder.
    """
    from scalerl.run.cluster.ranks import placed_ranks

    ranks, generators, on_gpu = recipe.learner.ranks, recipe.rollout.generators, connection.num_gpus > 0
    _check_generators(recipe, on_gpu=on_gpu, where=f"the cluster at {connection.address}")
    wanted = generators * recipe.rollout.generator_gpus + ranks if on_gpu else 0
    if wanted > connection.num_gpus:
        raise ClusterError(
            f"learner.ranks = {ranks} with rollout.generators = {generators} needs {wanted} GPUs, and the cluster at "
            f"{connection.address} has {connection.num_gpus}: lower one of the two, or add nodes"
        )
    # Whoever has a GPU needs no core of its own; the others share the cores, if those are too few.
    on_cores = (0 if on_gpu else ranks) + (0 if on_gpu and recipe.rollout.generator_gpus else generators)
    cores = int(sum(node.cpus for node in connection.nodes))
    if on_cores and not cores:
        raise ClusterError(f"the cluster at {connection.address} has no CPUs: start its nodes with --num-cpus")
    cpus = 1 / math.ceil(on_cores / cores) if on_cores else 0.0
    is_here = recipe.learner.sharding == "none"
    placed = opened.enter_context(placed_ranks(connection, ranks, on_gpu=on_gpu, cpus=cpus, is_here=is_here))
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
