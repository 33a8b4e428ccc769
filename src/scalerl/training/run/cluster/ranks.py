"""The learner's ranks as Ray actors: place and number them, and build the learner over them."""

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from scalerl.errors import ClusterError
from scalerl.recipe.parts import LearnerSettings
from scalerl.training.learner.ranks.driver import LOOPBACK, RankedLearner, ranked_learner
from scalerl.training.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.training.remote.actors import ActorLink, ActorPlace, by_number, here, reason_of, start_actor, variables_of
from scalerl.training.run.cluster.connect import Connection

PLACED_S = 60.0
"""Time limit for Ray to find free devices for all ranks."""
STARTED_S = 300.0
"""Time limit for the ranks' processes to import torch."""
CAUSE_S = 12.0
"""Time after the failure of a rank in which Ray may report the loss of another rank: it notices a lost node late."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedRanks:
    """Actors that hold the devices of the learner's ranks, in order of rank."""

    actors: Sequence[Any]
    places: Sequence[ActorPlace]
    address: str
    """Address at which other nodes reach the driver's node."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.places[0].gpus)

    @property
    def free_bytes(self) -> float:
        """Free memory of the GPU with the least of it."""
        return min(place.free_bytes for place in self.places)


@contextmanager
def placed_ranks(
    connection: Connection, num_ranks: int, *, on_gpu: bool, cpus: float, is_here: bool = False
) -> Iterator[PlacedRanks]:
    """Reserve a GPU for every rank, or `cpus` cores without GPUs; ClusterError if they are not free.

    Ranks are packed on as few nodes as possible and numbered node by node, beginning with the driver's. With `is_here`,
    all ranks are on the driver's node.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resources = {"GPU": 1.0} if on_gpu else {"CPU": cpus}
    if is_here:
        # Ray gives every node a resource named after its address.
        resources[f"node:{ray.util.get_node_ip_address()}"] = 0.001
    group = ray.util.placement_group([resources] * num_ranks, strategy="PACK")
    actors: list[Any] = []
    try:
        if not group.wait(PLACED_S):
            raise ClusterError(not_free(connection, num_ranks, 1.0 if on_gpu else cpus, on_gpu=on_gpu))
        for index in range(num_ranks):
            bundle = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
            options = {"num_gpus": float(on_gpu), "num_cpus": 0.0 if on_gpu else cpus, "scheduling_strategy": bundle}
            actors.append(start_actor("LearnerRank", **options))
        try:
            places: list[ActorPlace] = ray.get([actor.place.remote(on_gpu) for actor in actors], timeout=STARTED_S)
        except GetTimeoutError:
            raise ClusterError(f"the learner's {num_ranks} ranks did not start within {STARTED_S:g} s") from None
        except RayError as error:
            raise ClusterError(f"a rank of the learner cannot be started: {reason_of(error)}") from None
        _check_gpus_seen(places, on_gpu=on_gpu)
        order = ordered(places, first=ray.get_runtime_context().get_node_id())
        places = [places[index] for index in order]
        yield PlacedRanks(
            actors=[actors[index] for index in order],
            places=places,
            address=LOOPBACK if len(connection.nodes) == 1 or is_here else ray.util.get_node_ip_address(),
        )
    finally:
        for actor in actors:
            with suppress(RayError, ValueError):
                ray.kill(actor)
        with suppress(Exception):
            ray.util.remove_placement_group(group)


def ray_learner(placed: PlacedRanks, learner: LearnerSettings, **fields: Any) -> RankedLearner:
    """Return a learner over placed actors, each of which loads the model; `fields` are fields of RankSpec."""

    def start(spec: RankSpec) -> list[ActorLink]:
        return [
            ActorLink(actor, functools.partial(_rank, spec, rank), placed.places[rank])
            for rank, actor in enumerate(placed.actors)
        ]

    # Ray shows each process only its own GPU, and gives it as many threads as it has cores.
    fields |= {"device": "cuda" if placed.on_gpu else "cpu", "devices": (0,) * len(placed.actors), "on_ray": True}
    return ranked_learner(start, learner, address=placed.address, cause_s=CAUSE_S, **fields)


def _rank(spec: RankSpec, rank: int) -> LearnerRank:
    for name, value in variables_of(here(), is_only_node=spec.address == LOOPBACK).items():
        os.environ.setdefault(name, value)
    return LearnerRank(spec, rank)


def ordered(places: Sequence[ActorPlace], *, first: str) -> list[int]:
    """Return the indices of places in the order of ranks: node by node, beginning with the node of id `first`.

    A replica of hybrid sharding is learner.shard_size ranks in a row, so it stays within a node if nodes have that
    many GPUs.
    """

    def key(index: int) -> tuple[Any, ...]:
        place = places[index]
        return place.node != first, place.address, place.node, [by_number(gpu) for gpu in place.gpus], index

    return sorted(range(len(places)), key=key)


def _check_gpus_seen(places: Sequence[ActorPlace], *, on_gpu: bool) -> None:
    for place in places:
        if on_gpu and not place.device_name:
            raise ClusterError(
                f"Ray reports a GPU on node {place.address}, but torch finds none there: install a build of torch with "
                f"CUDA on that node"
            )


def not_free(connection: Connection, num_ranks: int, each: float, *, on_gpu: bool) -> str:
    import ray

    kind = "GPU" if on_gpu else "CPU"
    free = ray.available_resources().get(kind, 0.0)
    return (
        f"learner.ranks = {num_ranks} needs {num_ranks * each:g} free {kind}s, and the cluster at {connection.address} "
        f"has {free:g}: wait until others are done, or lower learner.ranks; without learner.sharding they must be on "
        f"this node"
    )
