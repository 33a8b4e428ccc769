"""The learner's ranks as Ray actors: placing them, numbering them, and the learner over them."""

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from scalerl.config.parts import LearnerSettings
from scalerl.errors import ClusterError
from scalerl.learner.ranks.driver import LOOPBACK, RankedLearner, ranked_learner
from scalerl.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.remote.actors import ActorLink, Place, by_number, here, reason_of, start_actor, variables_of
from scalerl.run.cluster.connect import Connection

PLACED_S = 60.0
"""How long Ray may take to find free devices for all ranks."""
STARTED_S = 300.0
"""How long the ranks' processes may take to import torch."""
CAUSE_S = 12.0
"""How long after the failure of a rank the loss of another one may be noticed: Ray learns of a lost node late."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedRanks:
    """Actors that hold the devices of the learner's ranks, in the order of the ranks."""

    actors: Sequence[Any]
    places: Sequence[Place]
    address: str
    """Address of the driver's node, as other nodes reach it."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.places[0].gpus)

    @property
    def free_bytes(self) -> float:
        """Free memory of the fullest GPU."""
        return min(place.free_bytes for place in self.places)


@contextmanager
def placed_ranks(
    connection: Connection, num_ranks: int, *, on_gpu: bool, cpus: float, is_here: bool = False
) -> Iterator[PlacedRanks]:
    """Hold a GPU, or `cpus` cores of a machine without any, for every rank; ClusterError if they are not free.

    Ranks are packed on as few nodes as possible and numbered node by node, the driver's first. With `is_here` all are
    on the driver's node.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"GPU": 1.0} if on_gpu else {"CPU": cpus}
    if is_here:
        # What Ray gives every node under its own address.
        bundle[f"node:{ray.util.get_node_ip_address()}"] = 0.001
    group = ray.util.placement_group([bundle] * num_ranks, strategy="PACK")
    actors: list[Any] = []
    try:
        if not group.wait(PLACED_S):
            raise ClusterError(not_free(connection, num_ranks, 1.0 if on_gpu else cpus, on_gpu=on_gpu))
        for index in range(num_ranks):
            there = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
            options = {"num_gpus": float(on_gpu), "num_cpus": 0.0 if on_gpu else cpus, "scheduling_strategy": there}
            actors.append(start_actor("LearnerRank", **options))
        try:
            places: list[Place] = ray.get([actor.place.remote(on_gpu) for actor in actors], timeout=STARTED_S)
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
    """Return a learner over actors that were placed, each of which loads the model; `fields` are those of RankSpec."""

    def start(spec: RankSpec) -> list[ActorLink]:
        return [
            ActorLink(actor, functools.partial(_rank, spec, rank), placed.places[rank])
            for rank, actor in enumerate(placed.actors)
        ]

    # Ray lets a process see no GPU but its own, and gives it as many threads as it has cores.
    fields |= {"device": "cuda" if placed.on_gpu else "cpu", "devices": (0,) * len(placed.actors), "on_ray": True}
    return ranked_learner(start, learner, address=placed.address, cause_s=CAUSE_S, **fields)


def _rank(spec: RankSpec, rank: int) -> LearnerRank:
    for name, value in variables_of(here(), is_only_node=spec.address == LOOPBACK).items():
        os.environ.setdefault(name, value)
    return LearnerRank(spec, rank)


def ordered(places: Sequence[Place], *, first: str) -> list[int]:
    """Return the indices of places by node, that of the id `first` in front: neighbouring ranks share a node.

    A replica of hybrid sharding is learner.shard_size ranks in a row, so it is within a node where the nodes have as
    many.
    """

    def key(index: int) -> tuple[Any, ...]:
        place = places[index]
        return place.node != first, place.address, place.node, [by_number(gpu) for gpu in place.gpus], index

    return sorted(range(len(places)), key=key)


def _check_gpus_seen(places: Sequence[Place], *, on_gpu: bool) -> None:
    for place in places:
        if on_gpu and not place.device_name:
            raise ClusterError(
                f"Ray has a GPU on node {place.address}, but torch sees none there: install a build of torch with CUDA "
                f"on that node"
            )


def not_free(connection: Connection, num_ranks: int, each: float, *, on_gpu: bool) -> str:
    import ray

    kind = "GPU" if on_gpu else "CPU"
    free = ray.available_resources().get(kind, 0.0)
    return (
        f"learner.ranks = {num_ranks} needs {num_ranks * each:g} free {kind}s, and the cluster at {connection.address} "
        f"has {free:g}: others hold them, so wait for them or lower learner.ranks; without learner.sharding they must "
        f"be on this node"
    )
