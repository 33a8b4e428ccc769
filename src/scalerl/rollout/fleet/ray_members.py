"""Members as Ray actors, on any node of a cluster. `ray` must be connected (run/cluster/connect.py does that).

An actor's `take` waits for news in the actor, so the driver learns of a completion at once and of a dead actor by
Ray's error. A process that is stopped (SIGSTOP) or a lost network gives no error: the fleet's own clock finds those.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.rollout.fleet.generator import Generator
from scalerl.rollout.fleet.members import MemberLost
from scalerl.rollout.fleet.messages import Command, Report
from scalerl.rollout.fleet.weights import Bucket, Published, fetch, publish
from scalerl.types import Completion

REPORT_S = 1.0
"""A living actor reports at least this often."""
_THREADS = 4
"""Calls that an actor serves at a time: `take` waits while `give` goes on. Commands are numbered, so order is kept."""


class RayGenerator(Generator):
    """A Generator that knows where it runs and reads weights from Ray's object store."""

    def __init__(self, make_engine: Callable[[int], Any], number: int, *, slots: int) -> None:
        super().__init__(lambda: make_engine(number), slots=slots, fetch=_fetch, devices=held_devices())

    def process(self) -> tuple[str, int]:
        """Return the node's id and the process id, for tests that kill it."""
        import os

        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()


def held_devices() -> tuple[str, ...]:
    """Return the devices of this actor as "node/device": its GPUs by id, or the CPU of its node."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return tuple(f"{context.get_node_id()}/gpu:{gpu}" for gpu in gpus) or (f"{context.get_node_id()}/cpu",)


def _fetch(buckets: tuple[Bucket, ...]) -> Mapping[str, Any]:
    import ray

    return fetch(buckets, ray.get)


class RayMember:
    """A generator in a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.report = actor.take.remote(0.0)
        """The call whose answer is waited for."""

    def give(self, number: int, commands: Sequence[Command]) -> None:
        self.actor.give.remote(number, tuple(commands))

    def take(self) -> Report | None:
        import ray
        from ray.exceptions import RayError

        try:
            done, _ = ray.wait([self.report], timeout=0)
            if not done:
                return None
            report: Report = ray.get(self.report)
        except RayError as error:
            raise MemberLost(_reason(error)) from None
        self.report = self.actor.take.remote(REPORT_S)
        completions = tuple(_copied(completion) for completion in report.completions)
        return replace(report, completions=completions)

    def kill(self) -> None:
        import ray
        from ray.exceptions import RayError

        # It may be dead already, or its node may be.
        with suppress(RayError, ValueError):
            ray.kill(self.actor)


class RayLauncher:
    """Starts generators as actors; `make_engine(number)` is pickled and builds the engine inside the actor."""

    def __init__(
        self, make_engine: Callable[[int], Any], *, slots: int, num_gpus: float = 0.0, num_cpus: float = 1.0
    ) -> None:
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._make_engine = make_engine
        self._slots = slots
        self._resources = {"num_gpus": num_gpus, "num_cpus": num_cpus}

    def start(self, number: int) -> RayMember:
        import ray

        options = {"max_restarts": 0, "max_concurrency": _THREADS, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(RayGenerator).options(**self._resources, **options)
        return RayMember(actor.remote(self._make_engine, number, slots=self._slots))

    def wait(self, members: Sequence[RayMember], timeout_s: float) -> None:
        import ray

        ray.wait([member.report for member in members], num_returns=1, timeout=timeout_s)

    def publish(self, weights: Mapping[str, Any]) -> tuple[Bucket, ...]:
        import ray

        published = weights if isinstance(weights, Published) else publish(weights.items(), ray.put)
        return published.buckets

    def close(self) -> None:
        """Do nothing: the fleet has ended the actors already."""


def _copied(completion: Completion) -> Completion:
    """Copy the arrays: those that Ray returns keep a block of its object store from being freed."""
    names = ("tokens", "log_probs", "versions", "forced")
    return replace(completion, **{name: np.array(getattr(completion, name)) for name in names})


def _reason(error: Exception) -> str:
    """Return the type and the first line of the error with which an actor died."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason was given'}"
