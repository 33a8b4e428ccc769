"""Length control: how long a completion may become, and how its length changes its reward.

Each control takes `encode` (text to token ids, without special tokens) and the text that ends thinking, and returns a
LengthControl: a plan for a request, drawn from that request's seed, and an adjustment of the reward.
Source: arXiv 2510.13786, section 4.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalerl.errors import RecipeError
from scalerl.training.types import Ending, LengthPlan, derive_seed

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthControl:
    """The two effects of a length control: `plan` for the generator, `adjust` for the reward."""

    max_tokens: int
    """Largest number of tokens that any plan allows."""
    plan: Callable[[int], LengthPlan]
    """A request's seed -> its length plan."""
    adjust: Callable[[int, bool], float] = lambda num_tokens, correct: 0.0
    """(number of tokens, correct) -> what is added to a completion's reward."""


def recognising(control: LengthControl, ending: Ending) -> LengthControl:
    """Return the control with plans that recognise the end of thinking in any spelling."""

    @functools.cache
    def with_ending(plan: LengthPlan) -> LengthPlan:
        return replace(plan, ending=ending)

    return replace(control, plan=lambda seed: with_ending(control.plan(seed)))


def interruption(
    encode: Encode,
    thinking_end: str,
    /,
    *,
    thinking_min: int,
    thinking_max: int,
    marker: str,
    answer_budget: int,
) -> LengthControl:
    """Interrupt thinking after a number of tokens drawn uniformly from [thinking_min, thinking_max]."""
    marker_tokens = tuple(encode(marker))
    end_tokens = tuple(encode(thinking_end))
    if not thinking_end or thinking_end not in marker:
        raise RecipeError(
            f"length.marker is {json.dumps(marker)} but must hold the text that ends thinking, task.thinking_end = "
            f"{json.dumps(thinking_end)}; otherwise thinking would continue after it"
        )
    if len(marker_tokens) >= answer_budget:
        raise ValueError(
            f"length.answer_budget is {answer_budget}, but the marker alone takes {len(marker_tokens)} tokens of it: "
            f"raise length.answer_budget or shorten length.marker"
        )

    @functools.cache
    def with_budget(budget: int) -> LengthPlan:
        return LengthPlan(
            thinking_budget=budget, thinking_end=end_tokens, marker=marker_tokens, answer_budget=answer_budget
        )

    def plan(seed: int) -> LengthPlan:
        # The bias of the modulo is below 1e-12 for any budget, because the seed has 63 bits.
        return with_budget(thinking_min + derive_seed("thinking budget", seed) % (thinking_max - thinking_min + 1))

    return LengthControl(max_tokens=thinking_max + answer_budget, plan=plan)


def penalty(encode: Encode, thinking_end: str, /, *, max_length: int, cache: int) -> LengthControl:
    """Reduce the reward of long correct answers by clip((L_max - |y|) / L_cache - 1, -1, 0).

    Zero up to max_length - cache tokens, -1 at max_length, which is also where generation ends.
    """

    def adjust(num_tokens: int, correct: bool) -> float:
        if not correct:
            return 0.0
        return min(max((max_length - num_tokens) / cache - 1.0, -1.0), 0.0)

    return LengthControl(max_tokens=max_length, plan=_same_plan(max_length), adjust=adjust)


def unlimited(encode: Encode, thinking_end: str, /, *, max_length: int) -> LengthControl:
    """Limit only the length."""
    return LengthControl(max_tokens=max_length, plan=_same_plan(max_length))


def _same_plan(max_length: int) -> Callable[[int], LengthPlan]:
    plan = LengthPlan(answer_budget=max_length)
    return lambda seed: plan


LENGTHS = {"interruption": interruption, "penalty": penalty, "none": unlimited}
