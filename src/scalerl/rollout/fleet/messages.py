"""The messages between a fleet and its members. All values are frozen and can be pickled."""

from dataclasses import dataclass, field
from typing import Any

from scalerl.types import Completion, Request, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Sample these requests with the weights of the last `Push` before this command, or with newer ones."""

    requests: tuple[Request, ...]
    inside: bool = False
    """They were submitted within a pause: only such requests are served until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Sample with these weights from now on."""

    version: int
    weights: Any
    """As the member's `fetch` takes them: a mapping of tensors, or references to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Put all requests aside, except those that are submitted inside the pause; or end the pause and drop those."""

    paused: bool


Command = Submit | Push | Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a member's engine took, in all since it started: what simulations need to know."""

    chunks: int = 0
    """Calls of the engine that sampled."""
    busy_s: float = 0.0
    """Seconds spent in these calls."""
    active: int = 0
    """Sum over these calls of the requests that were being sampled."""
    copies: int = 0
    """Pushes of weights that were applied."""
    copy_s: float = 0.0
    """Seconds in which sampling paused for them."""

    def __add__(self, other: "Pace") -> "Pace":
        return Pace(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def __sub__(self, other: "Pace") -> "Pace":
        return Pace(**{name: getattr(self, name) - getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a member has done since its last report."""

    completions: tuple[Completion, ...] = ()
    ready: bool = False
    """Its engine is built; from then on it must report often."""
    work: Work = field(default_factory=Work)
    """Total work since the member started."""
    eval_work: Work = field(default_factory=Work)
    """The part of `work` that was done for evaluation requests."""
    pace: Pace = field(default_factory=Pace)
    version: int = -1
    """The version that its engine samples with."""
    stuck_s: float = 0.0
    """Seconds that the current call of its engine has taken so far; 0 while the engine has nothing to do."""
    devices: tuple[str, ...] = ()
    """The devices it holds, as "node/device"."""
    failure: str | None = None
    """Why it has stopped for good."""
    by_user: bool = False
    """Whether that is a mistake of the user, such as a wrong setting, which a replacement would meet again."""
