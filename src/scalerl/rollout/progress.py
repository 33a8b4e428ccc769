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

from scalerl.types import Ending, LengthPlan

FREE = -1
"""Stands for "no forced token": the token is sampled."""
_NEVER = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The tokens of a chunk that count, and the slots that finished."""

    num_kept: NDArray[np.int64]
    """Number of first tokens of each slot that count."""
    forced: NDArray[np.bool_]
    """[chunk, slots], true for the tokens of a marker."""
    finished: NDArray[np.bool_]
    stopped: NDArray[np.bool_]
    """Whether a slot finished by a stop token; the other finished slots reached a limit of their length plan."""


class CompletionProgress:
    """The position of one completion in its length plan, updated token by token."""

    __slots__ = ("_ending", "_plan", "_state", "count", "ended", "limit")

    def __init__(self, plan: LengthPlan) -> None:
        self._plan, self._ending, self._state = plan, plan.recognised, 0
        self.count, self.limit, self.ended = 0, plan.max_tokens, False

    def forced(self, index: int) -> int:
        """Return the forced token at an index, or FREE; known up to the next token."""
        budget, marker = self._plan.thinking_budget, self._plan.marker
        if budget is None or self.ended or not 0 <= index - budget < len(marker):
            return FREE
        return marker[index - budget]

    def take(self, token: int) -> None:
        self.count += 1
        if self._ending is None or self.ended or self.count > (self._plan.thinking_budget or 0):
            return
        self._state = self._ending.after(self._state, token)
        if self._state == self._ending.width:
            self.ended, self.limit = True, self.count + self._plan.answer_budget


class SlotProgress:
    """The position of each slot in its length plan."""

    def __init__(self, slots: int, stop_tokens: Iterable[int]) -> None:
        self._stop_tokens = np.array(sorted(set(stop_tokens)), dtype=np.int64)
        self.active = np.zeros(slots, dtype=np.bool_)
        self.count = np.zeros(slots, dtype=np.int64)
        """Tokens of each completion so far."""
        self._limit = np.zeros(slots, dtype=np.int64)
        self._budget = np.full(slots, _NEVER)
        self._answer = np.zeros(slots, dtype=np.int64)
        self._ended = np.zeros(slots, dtype=np.bool_)
        self._markers: list[tuple[int, ...]] = [()] * slots
        self._marker_length = np.zeros(slots, dtype=np.int64)
        self._endings: dict[tuple[str | int, ...], int] = {}
        self._tables: list[NDArray[np.int16]] = []
        """One table per ending: state x token -> next state. The last column is for tokens without a column."""
        self._ending = np.full(slots, -1)
        """The number of each slot's ending, or -1."""
        self._state = np.zeros(slots, dtype=np.int64)
        self._complete = np.full(slots, -1)
        """The state in which the end of thinking is complete."""

    def start(self, slots: Sequence[int], plans: Sequence[LengthPlan]) -> None:
        """Put new requests with these plans into the slots."""
        for slot, plan in zip(slots, plans, strict=True):
            ending, self._markers[slot] = plan.recognised, plan.marker
            self._ending[slot] = -1 if ending is None else self._table(ending)
            self._complete[slot] = -1 if ending is None else ending.width
        self.active[slots], self.count[slots], self._ended[slots], self._state[slots] = True, 0, False, 0
        thinking = np.array([_NEVER if plan.thinking_budget is None else plan.thinking_budget for plan in plans])
        self._budget[slots] = thinking
        self._answer[slots] = [plan.answer_budget for plan in plans]
        self._limit[slots] = self._answer[slots] + np.where(thinking == _NEVER, 0, thinking)
        self._marker_length[slots] = [len(plan.marker) for plan in plans]

    def forced(self, chunk: int) -> NDArray[np.int64]:
        """Return [chunk, slots]: the forced token of a slot at a step, or FREE."""
        tokens = np.full((chunk, len(self.count)), FREE, dtype=np.int64)
        if not self._marker_length.any():
            return tokens
        forced = self._is_forced(self.count + np.arange(chunk)[:, None])
        for slot in np.flatnonzero(forced.any(axis=0)).tolist():
            first, num = int(forced[:, slot].argmax()), int(forced[:, slot].sum())
            place = int(self.count[slot]) + first - int(self._budget[slot])
            tokens[first : first + num, slot] = self._markers[slot][place : place + num]
        return tokens

    def apply(self, tokens: NDArray[np.int64]) -> ChunkResult:
        """Apply the plans to the tokens [chunk, slots] sampled after `forced`; slots that finish become inactive."""
        chunk = len(tokens)
        steps = np.arange(chunk)[:, None]
        index = self.count + steps
        forced = self._is_forced(index)
        keep = np.full(len(self.count), chunk, dtype=np.int64)

        states = self._states(tokens) if self._tables else None
        ends = np.False_ if states is None else (states[1:] == self._complete) & (index < self._budget) & ~self._ended
        if ends.any():
            ended_now = ends.any(axis=0)
            end = self.count + ends.argmax(axis=0) + 1
            self._limit = np.where(ended_now, end + self._answer, self._limit)
            keep = np.where(ended_now, np.minimum(keep, self._budget - self.count), keep)
            self._ended |= ended_now
        keep = np.minimum(keep, self._limit - self.count)

        stops = self._is_stop(tokens) & ~forced & (steps < keep)
        stopped = stops.any(axis=0) & self.active
        keep = np.where(stopped, stops.argmax(axis=0) + 1, keep)
        keep = np.where(self.active, keep, 0)

        if states is not None:
            self._state = np.take_along_axis(states, keep[None], axis=0)[0]
        self.count = self.count + keep
        finished = self.active & (stopped | (self.count >= self._limit))
        self.active &= ~finished
        return ChunkResult(num_kept=keep, forced=forced, finished=finished, stopped=stopped)

    def _is_stop(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        # There are few stop tokens: np.isin takes several times as long.
        stops = np.zeros(tokens.shape, dtype=np.bool_)
        for token in self._stop_tokens:
            stops |= tokens == token
        return stops

    def _is_forced(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._marker_length.any():
            return np.zeros(index.shape, dtype=np.bool_)
        past = index - self._budget
        return (past >= 0) & (past < self._marker_length) & ~self._ended & self.active

    def _states(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [chunk + 1, slots]: the state of each slot's ending before and after each token."""
        states = np.zeros((len(tokens) + 1, len(self._state)), dtype=np.int64)
        states[0] = self._state
        for number, table in enumerate(self._tables):
            chosen = np.flatnonzero(self.active & ~self._ended & (self._ending == number))
            columns = np.minimum(tokens[:, chosen], table.shape[1] - 1)
            for step in range(len(tokens) if len(chosen) else 0):
                states[step + 1, chosen] = table[states[step, chosen], columns[step]]
        return states

    def _table(self, ending: Ending) -> int:
        """Return the number of an ending's table."""
        if ending.key not in self._endings:
            keys = np.fromiter(ending.moves, dtype=np.int64, count=len(ending.moves))
            table = np.zeros((ending.width + 1, int(keys.max(initial=0)) // ending.width + 2), dtype=np.int16)
            table[keys % ending.width, keys // ending.width] = list(ending.moves.values())
            # The complete state is final.
            table[ending.width] = ending.width
            self._endings[ending.key] = len(self._tables)
            self._tables.append(table)
        return self._endings[ending.key]
