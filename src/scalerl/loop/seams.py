"""What the loop needs of its three parts: an engine that samples, graders that judge, a learner that trains.

The loop sees only these protocols; rollout and learner satisfy them without importing this module. `tests/contracts/`
holds every engine to its part.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scalerl.types import Batch, Completion, Group, Request, Work

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Engine(Protocol):
    """Where completions come from."""

    @property
    def version(self) -> int:
        """Of the weights that sample the next token."""
        ...

    @property
    def num_pending(self) -> int:
        """Requests submitted whose completion has not been returned."""
        ...

    @property
    def work(self) -> Work: ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue them; all or, with a ValueError, none."""
        ...

    def poll(self) -> list[Completion]:
        """What has finished, each once, possibly nothing. An engine in this process advances by a chunk of tokens."""
        ...

    def push_weights(self, weights: "Mapping[str, Tensor]", version: int) -> None:
        """Sample the next token with these, also within a completion, whose cache is kept. Copies, never aliases."""
        ...

    def close(self) -> None:
        """Let go of the device; pending requests are dropped."""
        ...


class Grading(Protocol):
    """Verdicts on whole groups, at once or later."""

    def submit(self, completions: Sequence[Completion]) -> None: ...

    def poll(self, *, wait: bool = False) -> list[Group]:
        """The groups whose verdicts have come; with `wait`, a while is waited for at least one."""
        ...


class Learner(Protocol):
    """What is trained. Its version is the number of steps it has taken."""

    @property
    def version(self) -> int: ...

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Train on the batch and give its metrics.

        The version advances by one with every call, also if the filters left nothing to train on: the groups are used
        up, and lags count calls.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """What the engine is to sample with next."""
        ...
