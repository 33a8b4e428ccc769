"""Which request goes into which slot, and which prompts are prefilled together. Plain Python, no torch.

A prompt's padded width depends on its own length and the number of rows on that width alone, so the shape a prompt is
computed in, and with it the last bits of the result, do not depend on what else was waiting.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalerl.types import Request

FINEST_WIDTH = 8
"""Prompts are padded to a multiple of this, longer ones to a multiple of a quarter of the power of two below them."""


class Admitted(NamedTuple):
    """A request and the slot it now holds; `order` counts submissions, so that ties are settled first come first."""

    slot: int
    order: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch:
    """One forward pass: `rows` x `width` tokens. Rows beyond the prompts are padding."""

    width: int
    rows: int
    prompts: tuple[tuple[int, ...], ...]
    """Different ones; each without its last token, which is decoded."""
    places: tuple[tuple[int, int], ...]
    """Pairs of row and slot: the cache of a row goes to every slot whose request has that prompt."""

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


class SlotScheduler:
    """First come, first served: the earliest waiting request takes the lowest free slot, as soon as there is one."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: list[Admitted | None] = [None] * slots
        self._free = list(range(slots))
        """The lowest first."""
        self._submitted = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running) - len(self._free)

    @property
    def num_pending(self) -> int:
        return self.num_waiting + self.num_running

    def submit(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._waiting.append((self._submitted, request))
            self._submitted += 1

    def admit(self) -> list[Admitted]:
        """Fill every free slot that a waiting request can have."""
        num = min(len(self._free), len(self._waiting))
        slots, self._free = self._free[:num], self._free[num:]
        admitted = [Admitted(slot, *self._waiting.popleft()) for slot in slots]
        for entry in admitted:
            self._running[entry.slot] = entry
        return admitted

    def running(self, slot: int) -> Admitted | None:
        return self._running[slot]

    def release(self, slots: Iterable[int]) -> list[Admitted]:
        """Free slots; their requests in order of submission."""
        released = []
        for slot in slots:
            holder = self._running[slot]
            assert holder is not None, f"slot {slot} is free already"
            self._running[slot] = None
            released.append(holder)
        self._free = sorted([*self._free, *(holder.slot for holder in released)])
        return sorted(released, key=lambda holder: holder.order)


def padded_width(length: int) -> int:
    """The width a prompt is computed at: less than FINEST_WIDTH or a quarter of its length more than it needs."""
    step = max(FINEST_WIDTH, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


def plan_prefill(admitted: Sequence[Admitted], *, batch_tokens: int, max_length: int) -> list[PrefillBatch]:
    """Group by padded width, in order of arrival; `batch_tokens` of padded prompt make a batch (at least one row)."""
    asked: dict[tuple[int, ...], list[int]] = {}
    for entry in admitted:
        asked.setdefault(entry.request.prompt_tokens, []).append(entry.slot)
    holders: dict[tuple[int, ...], list[int]] = {}
    for prompt, slots in asked.items():
        if len(prompt) > 1:
            holders.setdefault(prompt[:-1], []).extend(slots)
    by_width: dict[int, list[tuple[int, ...]]] = {}
    for prompt in holders:
        by_width.setdefault(min(padded_width(len(prompt)), max_length), []).append(prompt)
    batches = []
    for width, prompts in by_width.items():
        rows = max(1, batch_tokens // width)
        for start in range(0, len(prompts), rows):
            part = tuple(prompts[start : start + rows])
            places = tuple((row, slot) for row, prompt in enumerate(part) for slot in holders[prompt])
            batches.append(PrefillBatch(width=width, rows=rows, prompts=part, places=places))
    return batches
