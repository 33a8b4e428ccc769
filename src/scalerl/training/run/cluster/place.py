"""Decide where the parts of a run are: the learner in this process or its ranks on nodes, and cores for generators."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from scalerl.errors import ClusterError, RecipeError
from scalerl.recipe.parts import LearnerSettings, RolloutSettings
from scalerl.training.run.memory import Gpus, num_gpus

if TYPE_CHECKING:
    from scalerl.training.run.cluster.connect import Connection
    from scalerl.training.run.cluster.ranks import PlacedRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The devices of a run."""

    device: torch.device
    """Device of the model in the driver's process; with ranks, the model is there only until they have loaded it."""
    computes_on: torch.device
    """The kind of device that the learner and the generators compute on."""
    num_devices: int
    """Number of GPUs that the run holds and pays for, shared or not; 0 without GPUs, where CPU time is counted."""
    cpus_per_generator: float = 1.0
    """Cores that Ray reserves for each generator: one, a fraction if there are too few, 0 if it has a GPU."""
    ranks: "PlacedRanks | None" = None
    """The learner's ranks, if they are Ray actors."""
    gpus: Gpus | None = None
    """The GPUs of the ranks; None without ranks or GPUs."""

    @property
    def on_ray(self) -> bool:
        """Whether the run is on a cluster, where even a single learner is a rank."""
        return self.ranks is not None

    @property
    def device_name(self) -> str:
        """Name of the ranks' GPUs on a cluster; empty if the driver has the same device."""
        return "" if self.ranks is None else self.ranks.places[0].device_name


def enter_cluster(
    address: str, learner: LearnerSettings, rollout: RolloutSettings, opened: ExitStack, on_lost: Callable[[str], None]
) -> Place:
    """Connect to the cluster at `address`, unless it is empty, and reserve devices for the learner.

    `on_lost` is called from another thread if a Ray for this machine alone dies.
    """
    if address:
        from scalerl.training.run.cluster.connect import connect

        connection = connect(address, on_lost=on_lost)
        opened.callback(connection.close)
        return place_on(connection, learner, rollout, opened)
    on_gpu = torch.cuda.is_available()
    _check(learner, rollout, torch.cuda.device_count(), "this machine")
    computes_on = kind_of_device(on_gpu=on_gpu)
    num_devices = num_gpus(learner, rollout) if on_gpu else 0
    if learner.sharding == "none":
        return Place(device=computes_on, computes_on=computes_on, num_devices=num_devices)
    return Place(
        device=torch.device("cpu"),
        computes_on=computes_on,
        num_devices=num_devices,
        gpus=Gpus.here(learner.ranks),
    )


def kind_of_device(*, on_gpu: bool) -> torch.device:
    return torch.device("cuda" if on_gpu else "cpu")


def place_on(connection: "Connection", learner: LearnerSettings, rollout: RolloutSettings, opened: ExitStack) -> Place:
    """Reserve devices for the learner's ranks on the nodes of a cluster; the driver needs no GPU.

    Without learner.sharding there is one rank, on the driver's node, so that other nodes need not see the run folder.
    """
    from scalerl.training.run.cluster.ranks import placed_ranks

    ranks = learner.ranks
    generators = rollout.generators
    on_gpu = connection.num_gpus > 0
    _check(learner, rollout, connection.num_gpus, f"the cluster at {connection.address}")
    # A process with a GPU needs no core; the others share the cores if there are too few.
    on_cores = 0
    if not on_gpu:
        on_cores = ranks + generators
    elif not rollout.generator_gpus:
        on_cores = generators
    cores = int(sum(node.cpus for node in connection.nodes))
    if on_cores and not cores:
        raise ClusterError(f"the cluster at {connection.address} has no CPUs: start its nodes with --num-cpus")
    cpus = 1 / math.ceil(on_cores / cores) if on_cores else 0.0
    is_here = learner.sharding == "none"
    placed = opened.enter_context(placed_ranks(connection, ranks, on_gpu=on_gpu, cpus=cpus, is_here=is_here))
    return Place(
        device=torch.device("cpu"),
        computes_on=kind_of_device(on_gpu=on_gpu),
        num_devices=num_gpus(learner, rollout) if on_gpu else 0,
        cpus_per_generator=cpus,
        ranks=placed,
        gpus=Gpus(num=ranks, bytes_each=placed.free_bytes) if on_gpu else None,
    )


def check_gpus(settings: str, needed: int, num: int, where: str) -> None:
    """Raise ClusterError if settings need more GPUs than a machine or cluster has; without GPUs, CPUs are used."""
    if needed > num > 0:
        raise ClusterError(
            f"{settings} needs {needed} GPUs, but {where} has {num}: use fewer, or more nodes (cluster.address)"
        )


def _check(learner: LearnerSettings, rollout: RolloutSettings, num: int, where: str) -> None:
    each = rollout.gpus_per_generator
    sampling = f"rollout.generators = {rollout.generators}"
    if rollout.engine == "vllm" and not rollout.generators:
        sampling = f"rollout.vllm.tensor_parallel = {rollout.vllm.tensor_parallel}"
        if rollout.vllm.devices:
            sampling = f"rollout.vllm.devices = {[*rollout.vllm.devices]}"
    check_gpus(f"learner.ranks = {learner.ranks} with {sampling}", num_gpus(learner, rollout), num, where)
    if rollout.generators and each and not num:
        raise RecipeError(
            f"rollout.gpus_per_generator is {each}, but {where} has no GPU: leave it out to sample on CPUs"
        )
