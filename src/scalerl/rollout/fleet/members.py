"""The protocols of a member of a fleet and of its launcher, and the limits after which a member counts as lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scalerl.rollout.fleet.messages import Command, Report


class MemberLost(Exception):
    """A member has died; the text is the reason."""


class Member(Protocol):
    """One generator, wherever it runs. No method blocks."""

    def give(self, number: int, commands: Sequence[Command]) -> None:
        """Send commands; calls are numbered from 0 and obeyed in that order."""
        ...

    def take(self) -> Report | None:
        """Return the next report, None if there is none yet; raise MemberLost if the member has died."""
        ...

    def kill(self) -> None:
        """End it by force, also if it hangs."""
        ...


class Launcher(Protocol):
    """Starts members of one kind and waits for them."""

    def start(self, number: int) -> Member: ...

    def wait(self, members: Sequence[Any], timeout_s: float) -> None:
        """Return when one of these members may have a report, or after the timeout."""
        ...

    def publish(self, weights: Mapping[str, Any]) -> Any:
        """Return what a Push carries: a copy of the weights, or references to one, that every member can fetch."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a member counts as lost, and when the fleet gives up. In seconds."""

    start_s: float = 3600.0
    """Longest time until its engine is built; it may have to download a large model first."""
    silent_start_s: float = 600.0
    """Longest time without a report until then: it may wait for a place, or for libraries that are imported."""
    silent_s: float = 15.0
    """Longest time without a report once it is ready, after which its process or node is assumed to be gone."""
    stuck_s: float = 300.0
    """Longest time in one call of its engine, after which the device is assumed to hang."""
    replacements: int = 10
    """The fleet gives up at the next loss after this many replacements in `window_s`."""
    window_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One member that was replaced, or the loss that ended the fleet."""

    number: int
    kind: Literal["died", "silent", "stuck", "start"]
    reason: str
    num_requests: int
    """Requests it had, which were given to others."""
