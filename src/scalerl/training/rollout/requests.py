"""Check a request before an engine takes it."""

import math
from collections.abc import Iterable

from scalerl.training.types import Request


def check_requests(requests: Iterable[Request], *, max_length: int, vocabulary: int | None = None) -> None:
    """Raise ValueError if an engine with this context and vocabulary cannot serve one of the requests."""
    for request in requests:
        if fault := _fault(request, max_length, vocabulary):
            raise ValueError(f"request {request.key} {fault}")


def _fault(request: Request, max_length: int, vocabulary: int | None) -> str | None:
    """Return what is wrong with a request, or None."""
    plan = request.length
    prompt = request.prompt_tokens
    if not prompt:
        return "has an empty prompt: give it at least one token"
    thinking = plan.thinking_budget or 0
    most = plan.max_tokens
    if plan.answer_budget < 0 or thinking < 0 or most < 1:
        return f"has a length plan that allows no tokens: {plan}"
    if len(prompt) + most > max_length:
        return (
            f"needs {len(prompt)} prompt tokens and up to {most} new ones, but the engine's context is {max_length}"
            " tokens"
        )
    if not 0 <= request.temperature < math.inf:
        return f"has temperature {request.temperature}: it must be 0 (greedy) or more"
    if not 0 < request.top_p <= 1:
        return f"has top_p {request.top_p}: it must be above 0 and at most 1"
    tokens = prompt + plan.marker
    if vocabulary is not None and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        return f"has token ids outside the model's vocabulary of {vocabulary}"
    return None
