"""Assign requests to slots, and decide which prompts are prefilled together. Plain Python, no torch.

The padded width of a prompt depends only on its length, and the number of rows only on that width. So the shape in
which a prompt is computed, and with it the last bits of the result, does not depend on other requests.

After a turn of a conversation, its slot keeps the cache until another request needs the slot. The prompt of the next
turn begins with the content of that slot, so the turn continues there, and only the rest of its prompt is computed.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalerl.training.types import Request

FINEST_WIDTH = 8
"""Prompts are padded to a multiple of this; longer ones to a multiple of a quarter of the next lower power of two."""


class Admitted(NamedTuple):
    """A request and its slot; `order` is the number of its submission, by which completions are sorted."""

    slot: int
    order: int
    request: Request
    num_held: int = 0
    """Number of first tokens of its prompt that are already in the slot's cache."""


class HeldTurn(NamedTuple):
    """The prompt and completion of a turn that a free slot still holds."""

    key: str
    tokens: tuple[int, ...]

    def continued_by(self, request: Request) -> bool:
        num = len(self.tokens)
        return len(request.prompt_tokens) > num and request.prompt_tokens[:num] == self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """One forward pass: `rows` x `width` tokens, of whole prompts or of the rest of prompts that slots hold in part."""

    width: int
    rows: int
    """Number of rows; those beyond `tokens` are padding."""
    tokens: tuple[tuple[int, ...], ...]
    """The tokens of each row, without the last of the prompt, which is decoded. Whole prompts are distinct."""
    starts: tuple[int, ...]
    """Position of each row's first token: 0 in all rows, or in none."""
    places: tuple[tuple[int, int], ...]
    """Pairs of row and slot: the cache of a row is copied to every slot whose request has that prompt."""


class SlotScheduler:
    """First come, first served: the earliest waiting request takes the lowest free slot."""

    def __init__(self, slots: int) -> None:
        self._waiting: deque[tuple[int, Request]] = deque()
        self.running: dict[int, Admitted] = {}
        """The admitted requests, by slot."""
        self._free = set(range(slots))
        self._submitted = 0
        self.kept: dict[int, HeldTurn] = {}
        """Turns held by free slots, by slot, in the order in which they ended."""

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + len(self.running)

    def submit(self, requests: Iterable[Request]) -> None:
        numbered = list(enumerate(requests, start=self._submitted))
        self._waiting += numbered
        self._submitted += len(numbered)

    def admit(self) -> list[Admitted]:
        """Move waiting requests into free slots; slots that hold a turn are used last."""
        num = min(len(self._free), len(self._waiting))
        if not num:
            return []
        chosen = [self._waiting.popleft() for _ in range(num)]
        continued = self._continued(chosen) if self.kept else {}
        taken = set(continued.values())
        empty = sorted(self._free - self.kept.keys())
        others = iter([*empty, *(slot for slot in self.kept if slot not in taken)])
        admitted = []
        for order, request in chosen:
            slot = continued.get(order)
            if slot is None:
                admitted.append(Admitted(next(others), order, request))
                continue
            # The last token of a turn was sampled, but is not in the cache.
            num_held = len(self.kept[slot].tokens) - 1
            admitted.append(Admitted(slot, order, request, num_held))
        self.running |= {entry.slot: entry for entry in admitted}
        self._free.difference_update(entry.slot for entry in admitted)
        self.kept = {slot: turn for slot, turn in self.kept.items() if slot in self._free}
        return admitted

    def _continued(self, chosen: Iterable[tuple[int, Request]]) -> dict[int, int]:
        """Return the slots that hold the turns which requests continue, by order of submission."""
        slot_of = {kept.key: slot for slot, kept in self.kept.items()}
        known = [(order, slot_of[request.key], request) for order, request in chosen if request.key in slot_of]
        return {order: slot for order, slot, request in known if self.kept[slot].continued_by(request)}

    def keep(self, turn: Admitted, tokens: tuple[int, ...]) -> None:
        """Record that a free slot holds these tokens: the prompt and completion of a turn."""
        self.kept[turn.slot] = HeldTurn(turn.request.key, tokens)

    def release(self, slots: Iterable[int]) -> list[Admitted]:
        """Free the slots and return their requests in order of submission."""
        released = sorted((self.running.pop(slot) for slot in slots), key=lambda entry: entry.order)
        self._free.update(entry.slot for entry in released)
        return released


def padded_width(length: int) -> int:
    """Return the padded width of a prompt; padding is less than FINEST_WIDTH or a quarter of the length."""
    step = max(FINEST_WIDTH, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


class _Missing(NamedTuple):
    """The part of a prompt that is not in the cache. Requests with the same whole prompt share it."""

    start: int
    holder: int | None
    """The slot that holds the tokens before it, if any; the rest of its prompt is for that slot alone."""
    tokens: tuple[int, ...]


def plan_prompts(admitted: Sequence[Admitted], *, batch_tokens: int, max_length: int) -> list[PromptBatch]:
    """Group the missing parts of prompts by padded width, in order of arrival.

    A batch has up to `batch_tokens` tokens, and at least one row.
    """
    slots_of: dict[_Missing, list[int]] = {}
    for slot, _, request, held in admitted:
        tokens = request.prompt_tokens[held:-1]
        if tokens:
            holder = slot if held else None
            slots_of.setdefault(_Missing(held, holder, tokens), []).append(slot)
    by_width: dict[tuple[bool, int], list[_Missing]] = {}
    for each in slots_of:
        width = min(padded_width(len(each.tokens)), max_length)
        by_width.setdefault((each.start > 0, width), []).append(each)
    batches = []
    for (_, width), prompts in by_width.items():
        rows = max(1, batch_tokens // width)
        for start in range(0, len(prompts), rows):
            part = prompts[start : start + rows]
            places: list[tuple[int, int]] = []
            for row, each in enumerate(part):
                places += [(row, slot) for slot in slots_of[each]]
            tokens = tuple(each.tokens for each in part)
            starts = tuple(each.start for each in part)
            batches.append(PromptBatch(width=width, rows=rows, tokens=tokens, starts=starts, places=tuple(places)))
    return batches
