"""What every engine does, whatever runs behind it: take requests, give completions, accept weights at any moment.

The loop sees only this. `tests/contracts/` holds an engine to it.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from scalerl.types import Completion, Request

if TYPE_CHECKING:
    from torch import Tensor


class EngineError(RuntimeError):
    """The engine cannot go on; the message says why. Every later poll raises it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an engine has computed since it was made, for the compute axis; padding and idle slots are not in it."""

    prefilled: int = 0
    """Prompt tokens computed in batches: a prompt shared by several requests counts as often as it was computed, and
    its last token counts among the decoded, since the first answer token is sampled from it."""
    decoded: int = 0
    """Tokens of completions, returned or on their way, forced ones included: each took one step."""
    attended: int = 0
    """Sum over all of these of the length of the context attended to, the token itself included."""


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


def check_request(request: Request, *, max_length: int, vocabulary: int | None = None) -> None:
    """One clear sentence about a request that no engine could serve."""
    if said := _fault(request, max_length, vocabulary):
        raise ValueError(f"request {request.key} {said}")


def _fault(request: Request, max_length: int, vocabulary: int | None) -> str | None:
    plan, prompt = request.length, request.prompt_tokens
    if not prompt:
        return "has an empty prompt: give it at least one token"
    thinking, most = plan.thinking_budget or 0, plan.max_tokens
    if plan.answer_budget < 0 or thinking < 0 or most < 1:
        return f"has a length plan that allows no token: {plan}"
    if len(prompt) + most > max_length:
        return (
            f"needs {len(prompt)} prompt tokens and up to {most} new ones, but the engine's context is {max_length}"
            " tokens"
        )
    if not 0 <= request.temperature < math.inf:
        return f"has temperature {request.temperature}: it must be 0 (greedy) or more"
    if not 0 < request.top_p <= 1:
        return f"has top_p {request.top_p}: it must be above 0 and at most 1"
    if vocabulary is not None and not (_known(prompt, vocabulary) and _known(plan.marker, vocabulary)):
        return f"has token ids outside the model's vocabulary of {vocabulary}"
    return None


@functools.lru_cache(maxsize=1024)
def _known(tokens: tuple[int, ...], vocabulary: int) -> bool:
    """The completions of a group have one prompt, and all have one marker, so few are looked at."""
    return not tokens or (min(tokens) >= 0 and max(tokens) < vocabulary)
