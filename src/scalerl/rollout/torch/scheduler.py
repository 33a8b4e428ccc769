"""Decide which request goes into which slot, and which prompts are prefilled together. Plain Python, no torch.

A prompt's padded width depends only on its length, and the number of rows only on that width. The shape a prompt is
computed in, and with it the last bits of the result, therefore does not depend on the other requests.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalerl.types import Request

FINEST_WIDTH = 8
"""Prompts are padded to a multiple of this; longer ones to a multiple of a quarter of the next lower power of two."""


class Admitted(NamedTuple):
    """A request and its slot; `order` counts submissions and sorts what finishes together."""

    slot: int
    order: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch:
    """One forward pass: `rows` x `width` tokens. Rows beyond the prompts are padding."""

    width: int
    rows: int
    prompts: tuple[tuple[int, ...], ...]
    """Distinct prompts, each without its last token, which is decoded."""
    places: tuple[tuple[int, int], ...]
    """Pairs of row and slot: a row's cache is copied to every slot whose request has that prompt."""

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


class SlotScheduler:
    """First come, first served: the earliest waiting request takes the lowest free slot."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: list[Admitted | None] = [None] * slots
        self._free = list(range(slots))
        """Sorted, lowest first."""
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
        """Move waiting requests into free slots, as many as there are."""
        num = min(len(self._free), len(self._waiting))
        slots, self._free = self._free[:num], self._free[num:]
        admitted = [Admitted(slot, *self._waiting.popleft()) for slot in slots]
        for entry in admitted:
            self._running[entry.slot] = entry
        return admitted

    def running(self, slot: int) -> Admitted | None:
        return self._running[slot]

    def release(self, slots: Iterable[int]) -> list[Admitted]:
        """Free the slots and return their requests in order of submission."""
        released = []
        for slot in slots:
            holder = self._running[slot]
            assert holder is not None, f"slot {slot} is already free"
            self._running[slot] = None
            released.append(holder)
        self._free = sorted([*self._free, *(holder.slot for holder in released)])
        return sorted(released, key=lambda holder: holder.order)


def padded_width(length: int) -> int:
    """Return the padded width of a prompt; the padding is less than FINEST_WIDTH or a quarter of its length."""
    step = max(FINEST_WIDTH, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


def plan_prefill(admitted: Sequence[Admitted], *, batch_tokens: int, max_length: int) -> list[PrefillBatch]:
    """Group prompts by padded width, in order of arrival; a batch has up to `batch_tokens` tokens, at least one row."""
    slots_of_prompt: dict[tuple[int, ...], list[int]] = {}
    for entry in admitted:
        slots_of_prompt.setdefault(entry.request.prompt_tokens, []).append(entry.slot)
    slots_of_prefix: dict[tuple[int, ...], list[int]] = {}
    for prompt, slots in slots_of_prompt.items():
        if len(prompt) > 1:
            slots_of_prefix.setdefault(prompt[:-1], []).extend(slots)
    by_width: dict[int, list[tuple[int, ...]]] = {}
    for prompt in slots_of_prefix:
        by_width.setdefault(min(padded_width(len(prompt)), max_length), []).append(prompt)
    batches = []
    for width, prompts in by_width.items():
        rows = max(1, batch_tokens // width)
        for start in range(0, len(prompts), rows):
            part = tuple(prompts[start : start + rows])
            places = tuple((row, slot) for row, prompt in enumerate(part) for slot in slots_of_prefix[prompt])
            batches.append(PrefillBatch(width=width, rows=rows, prompts=part, places=places))
    return batches
