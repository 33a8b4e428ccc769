"""Apply length plans and stop tokens to sampled tokens, for all slots at once. Plain numpy, for any engine.

An engine samples a chunk of tokens for every slot without interpreting them. Before the chunk, this module returns the
forced tokens, and after the chunk the number of tokens that count:

    forced(chunk) -> [chunk, slots] token or -1        apply(tokens) -> number of tokens kept per slot, slots finished

Tokens after a stop token or a limit are dropped. If thinking ends by itself in the chunk in which its budget runs out,
the marker was not needed: the tokens after the budget are dropped and sampled again, with the same noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.training.types import LengthPlan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
FREE = -1
"""Stands for "no forced token": the token is sampled."""
_NEVER = np.iinfo(np.int64).max // 2
"""The thinking budget of a plan without one."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The tokens of a chunk that count, and the slots that finished."""

    num_kept: Ints
    """Number of first tokens of each slot that count."""
    forced: Flags
    """[chunk, slots], true for the tokens of a marker."""
    finished: Flags
    stopped: Flags
    """Whether a slot finished by a stop token; the other finished slots reached a limit of their length plan."""


class CompletionProgress:
    """The position of one completion in its length plan, updated token by token."""

    __slots__ = ("_ending", "_state", "budget", "count", "ended", "limit", "marker")

    def __init__(self, plan: LengthPlan) -> None:
        self._ending = plan.recognised
        self.marker = plan.marker
        self._state = 0
        self.budget = _NEVER if plan.thinking_budget is None else plan.thinking_budget
        self.count = 0
        self.limit = plan.max_tokens
        self.ended = False

    def forced(self, index: int) -> int:
        """Return the forced token at an index, or FREE; known up to the next token."""
        place = index - self.budget
        is_forced = 0 <= place < len(self.marker) and not self.ended
        return self.marker[place] if is_forced else FREE

    def take(self, token: int) -> None:
        self.count += 1
        if self._ending is None or self.ended or self.count > self.budget:
            return
        self._state = self._ending.after(self._state, token)
        if self._state == self._ending.width:
            # The rest of the thinking budget is not used.
            self.ended = True
            self.limit = self.limit - self.budget + self.count

    def take_chunk(self, first: int, tokens: Sequence[int]) -> None:
        """Take the tokens from index `first` on, after which the last chunk ended."""
        self.count = first
        if self._ending is not None and (self._state or not self._ending.tokens.isdisjoint(tokens)):
            for token in tokens:
                self.take(token)


class SlotProgress:
    """The position of each slot in its length plan."""

    def __init__(self, slots: int, stop_tokens: Iterable[int]) -> None:
        self._stop_tokens = sorted(set(stop_tokens))
        self.active = np.zeros(slots, dtype=np.bool_)
        self.count = np.zeros(slots, dtype=np.int64)
        """Tokens of each completion so far."""
        self._limit = np.zeros(slots, dtype=np.int64)
        self._thinking: dict[int, CompletionProgress] = {}
        """The active slots whose end of thinking may still be sampled or forced."""

    def start(self, slots: Sequence[int], plans: Sequence[LengthPlan]) -> None:
        """Put new requests with these plans into the slots."""
        self.active[slots] = True
        self.count[slots] = 0
        self._limit[slots] = [plan.max_tokens for plan in plans]
        for slot, plan in zip(slots, plans, strict=True):
            if plan.thinking_budget is not None:
                self._thinking[slot] = CompletionProgress(plan)

    def forced(self, chunk: int) -> Ints:
        """Return [chunk, slots]: the forced token of a slot at a step, or FREE."""
        tokens = np.full((chunk, len(self.count)), FREE, dtype=np.int64)
        counts = self.count.tolist()
        for slot, progress in self._thinking.items():
            if counts[slot] + chunk > progress.budget:
                tokens[:, slot] = [progress.forced(counts[slot] + step) for step in range(chunk)]
        return tokens

    def apply(self, tokens: Ints) -> ChunkResult:
        """Apply the plans to the tokens [chunk, slots] sampled after `forced`; slots that finish become inactive."""
        chunk = len(tokens)
        forced = self.forced(chunk) != FREE
        keep = np.full(len(self.count), chunk, dtype=np.int64)
        counts = self.count.tolist()
        for slot, progress in self._thinking.items():
            progress.take_chunk(counts[slot], tokens[:, slot].tolist())
            if progress.ended:
                self._limit[slot] = progress.limit
                keep[slot] = min(chunk, progress.budget - counts[slot])
        keep = np.minimum(keep, self._limit - self.count)

        stops = self._is_stop(tokens) & ~forced & (np.arange(chunk)[:, None] < keep)
        stopped = stops.any(axis=0) & self.active
        keep = np.where(stopped, stops.argmax(axis=0) + 1, keep)
        keep = np.where(self.active, keep, 0)
        self.count = self.count + keep
        finished = self.active & (stopped | (self.count >= self._limit))
        self.active &= ~finished
        active = self.active.tolist()
        counts = self.count.tolist()
        self._thinking = {
            slot: progress
            for slot, progress in self._thinking.items()
            if active[slot] and not progress.ended and counts[slot] < progress.budget + len(progress.marker)
        }
        return ChunkResult(num_kept=keep, forced=forced, finished=finished, stopped=stopped)

    def _is_stop(self, tokens: Ints) -> Flags:
        # There are few stop tokens: np.isin takes several times as long.
        stops = np.zeros(tokens.shape, dtype=np.bool_)
        for token in self._stop_tokens:
            stops |= tokens == token
        return stops
