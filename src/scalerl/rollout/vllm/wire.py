"""The messages between the trainer and the child: small frozen values, pickled into a socket.

    trainer -> child    EngineSpec first, then Submit, Push, Pause, Resume, Close
    child -> trainer    Ready, then Done, Pushed and Beat; Failed is the last

Requests travel without their problems, and completions without their requests; `number` identifies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.rollout.vllm.parcels import Parcel
from scalerl.types import Completion, Finish, LengthPlan, Problem, Purpose, Request, Work

_NO_PROBLEM = Problem(id="", prompt="", answer="", task="")


@dataclass(frozen=True, slots=True)
class WireRequest:
    number: int
    group: str
    index: int
    prompt_tokens: tuple[int, ...]
    seed: int
    length: LengthPlan
    temperature: float
    top_p: float
    purpose: Purpose

    @classmethod
    def of(cls, number: int, request: Request) -> "WireRequest":
        return cls(
            number,
            request.group,
            request.index,
            request.prompt_tokens,
            request.seed,
            request.length,
            request.temperature,
            request.top_p,
            request.purpose,
        )

    def request(self) -> Request:
        return Request(
            group=self.group,
            index=self.index,
            problem=_NO_PROBLEM,
            prompt_tokens=self.prompt_tokens,
            seed=self.seed,
            length=self.length,
            temperature=self.temperature,
            top_p=self.top_p,
            purpose=self.purpose,
        )


@dataclass(frozen=True, slots=True)
class WireCompletion:
    number: int
    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    versions: NDArray[np.int32]
    forced: NDArray[np.bool_]
    finish: Finish
    interrupted_at: int | None

    @classmethod
    def of(cls, number: int, completion: Completion) -> "WireCompletion":
        return cls(
            number,
            completion.tokens,
            completion.log_probs,
            completion.versions,
            completion.forced,
            completion.finish,
            completion.interrupted_at,
        )

    def completion(self, request: Request) -> Completion:
        return Completion(
            request=request,
            tokens=self.tokens,
            log_probs=self.log_probs,
            versions=self.versions,
            forced=self.forced,
            finish=self.finish,
            interrupted_at=self.interrupted_at,
        )


@dataclass(frozen=True, slots=True)
class Submit:
    requests: Sequence[WireRequest]


@dataclass(frozen=True, slots=True)
class Push:
    parcel: Parcel
    version: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Set all requests aside and serve only those submitted after this message."""


@dataclass(frozen=True, slots=True)
class Resume:
    """End the pause: drop the requests submitted during it and continue the others."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the process."""


@dataclass(frozen=True, slots=True)
class Ready:
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Done:
    completions: Sequence[WireCompletion]
    work: Work
    eval_work: Work


@dataclass(frozen=True, slots=True)
class Pushed:
    version: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The process is alive."""


@dataclass(frozen=True, slots=True)
class Failed:
    sentence: str
    by_user: bool
    """Whether the cause is a setting of the user rather than the engine."""
