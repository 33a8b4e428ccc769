"""Protocols of the loop's three parts: an engine that samples, graders, and a learner that trains.

The loop uses only these protocols; rollout and learner satisfy them without importing this module. `tests/contracts/`
tests every engine against its protocol.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scalerl.training.types import Batch, Completion, Group, Request, Work

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Engine(Protocol):
    """Samples completions."""

    @property
    def version(self) -> int:
        """The version of the weights that sample the next token."""
        ...

    @property
    def num_pending(self) -> int:
        """The number of requests whose completion has not been returned yet."""
        ...

    @property
    def work(self) -> Work:
        """Work computed for training, outside of pauses."""
        ...

    @property
    def eval_work(self) -> Work:
        """Work computed for evaluations, inside pauses."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue the requests: all of them, or none if it raises ValueError."""
        ...

    def poll(self) -> list[Completion]:
        """Return the completions that have finished since the last call. An engine in this process also samples a
        chunk of tokens."""
        ...

    def push_weights(self, weights: "Mapping[str, Tensor]", version: int) -> None:
        """Copy these weights and sample with them from now on, even within completions, whose caches are kept."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Suspend all pending requests, with their caches.

        Inside the context only requests submitted there are served. At its end the unfinished ones are dropped, and the
        suspended requests continue unchanged.
        """
        ...

    def close(self) -> None:
        """Release the device; pending requests are dropped."""
        ...


class Grading(Protocol):
    """Grades complete groups."""

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        """Grade all completions of these groups."""
        ...

    def poll(self, *, wait: bool = False) -> list[Group]:
        """Return the groups whose verdicts have arrived; with `wait`, wait a moment for at least one."""
        ...


class Learner(Protocol):
    """Trains the model. Its version is the number of steps it has taken."""

    @property
    def version(self) -> int: ...

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Train on the batch and return its metrics.

        The version advances by one with every call, also if the filters left nothing to train on: the groups are used
        up, and lags count calls.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """Return the weights that the engine should sample with next."""
        ...
