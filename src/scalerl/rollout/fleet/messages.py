"""What generators report. All values are frozen and can be pickled."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.types import Completion, Finish, Problem, Request, Work

_NO_PROBLEM = Problem(id="", prompt="", answer="", task="")


def bare(request: Request) -> Request:
    """Return the request without its problem, of which an engine needs nothing."""
    return replace(request, problem=_NO_PROBLEM)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion without its request, which the driver has."""

    key: str
    seed: int
    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    versions: NDArray[np.int32]
    forced: NDArray[np.bool_]
    finish: Finish
    interrupted_at: int | None
    experts: NDArray[np.int16] | None

    @classmethod
    def of(cls, completion: Completion) -> "Sampled":
        fields: dict[str, Any] = {name: getattr(completion, name) for name in cls.__slots__ if name not in _OF_REQUEST}
        return cls(key=completion.request.key, seed=completion.request.seed, **fields)

    def completion(self, request: Request) -> Completion:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name not in _OF_REQUEST}
        return Completion(request=request, **fields)


_OF_REQUEST = ("key", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a generator's engine took, in all since it started: what simulations need to know."""

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
    """What a generator has done."""

    completions: tuple[Sampled, ...] = ()
    """Those since the last report."""
    work: Work = field(default_factory=Work)
    """Total work since the generator started."""
    eval_work: Work = field(default_factory=Work)
    """The part of `work` that was done for evaluation requests."""
    pace: Pace = field(default_factory=Pace)
    version: int = -1
    """The version that its engine samples with."""
    devices: tuple[str, ...] = ()
    """The devices it holds, as "node/device"."""
