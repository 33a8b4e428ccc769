"""Assign completions to ranks and passes. Plain numpy, with the same result on every rank.

    kept completions -> one share per rank, by tokens -> passes within a budget of tokens

Completions of one prompt can share it: the first one in a pass contains the whole prompt; the others begin with the
prompt's last token and attend to the rest of it in the first one (packed_attention.py). A pass then has

    sum over prompts of (prompt - 1)  +  sum over completions of (completion)        tokens.

If prompts are not shared, each completion has its own prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scalerl.training.types import Completion

Rows = NDArray[np.int64]
"""Indices of completions."""

LEAST_SAVED = 0.1
"""Prompts are shared if that saves at least this share of the tokens; gathering keys has a small cost."""
LEAST_WORK = 2**42
"""Tokens x parameters of a pass on a GPU up to which prompts are not shared: launching kernels then takes longer than
computing them, and sharing launches more kernels. On an H200, a step of a 135M model with 28,600 tokens (2**41.8) took
85 ms, and 122 ms with shared prompts and half of the tokens; a step of a 1.5B model took 1.08 s and 0.67 s."""


def ranges(starts: Rows | int, nums: Rows) -> Rows:
    """Return nums[i] consecutive numbers from starts[i] on, for all i in turn."""
    return np.arange(nums.sum()) + np.repeat(starts - np.cumsum(nums) + nums, nums)


def fewest_shared_tokens(num_params: int, *, gpu: bool) -> int:
    """Return the number of tokens in a pass above which sharing prompts can make it faster."""
    return LEAST_WORK // num_params if gpu else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """The properties of a batch's completions that passes depend on."""

    prompt: Rows
    """Number of tokens of each prompt that can be shared: all but the last."""
    tokens: Rows
    """Number of other inputs of each completion: the last token of its prompt, and its own tokens except the last,
    which predicts nothing."""
    temperature: NDArray[np.float64]
    """Temperature of each completion; all completions of a pass have the same."""
    unit: Rows
    """A number that is equal for completions that share their prompt."""

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> Self:
        """Return the sizes of completions that do not share prompts."""
        prompts = [len(completion.request.prompt_tokens) - 1 for completion in completions]
        assert min(prompts, default=0) >= 0, "a completion without a prompt: nothing predicts its first token"
        return cls(
            prompt=np.array(prompts, dtype=np.int64),
            tokens=np.array([len(completion.tokens) for completion in completions], dtype=np.int64),
            temperature=np.array([completion.request.temperature for completion in completions], dtype=np.float64),
            unit=np.arange(len(completions)),
        )

    def sharing(
        self, completions: Sequence[Completion], kept: Rows, num_ranks: int = 1, *, budget: int, share_from: int | None
    ) -> Self:
        """Return the sizes with shared prompts if that saves enough tokens, otherwise these.

        Prompts are shared only in passes of more than `share_from` tokens; None means never. A pass has at most
        `budget` tokens, and at most a rank's share of all tokens.
        """
        alone = self.cost(kept)
        if share_from is None or min(alone / num_ranks, budget) <= share_from:
            return self
        shared = replace(self, unit=_prompt_numbers(completions))
        return shared if alone - shared.cost(kept) >= LEAST_SAVED * alone else self

    @property
    def length(self) -> Rows:
        """Tokens of each completion with its whole prompt."""
        return self.prompt + self.tokens

    def cost(self, rows: Rows) -> int:
        """Return the number of tokens in a pass over these completions."""
        _, first = np.unique(self.unit[rows], return_index=True)
        return int(self.tokens[rows].sum() + self.prompt[rows[first]].sum())

    def prefixes(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the parent of each completion of a pass, which has its prompt, and the number of shared tokens.

        A completion that contains its prompt is its own parent and shares 0 tokens.
        """
        places = np.arange(len(rows))
        _, first, unit = np.unique(self.unit[rows], return_index=True, return_inverse=True)
        shared = np.where(first[unit] == places, 0, self.prompt[rows])
        return np.where(shared > 0, first[unit], places), shared

    def assign(self, kept: Rows, num_ranks: int) -> list[Rows]:
        """Divide the kept completions among ranks: parts, the largest first, go to the rank with the fewest tokens.

        A part is the completions of one prompt. Parts larger than an equal share of all tokens are divided first, so
        that one long group does not occupy a single rank.
        """
        if num_ranks == 1:
            return [kept]
        parts = self._cut(kept, self.cost(kept) / num_ranks, within=self.unit)
        costs = np.array([self.cost(part) for part in parts], dtype=np.int64)
        load = np.zeros(num_ranks, dtype=np.int64)
        chosen = [[kept[:0]] for _ in range(num_ranks)]
        for place in np.argsort(-costs, kind="stable"):
            rank = int(load.argmin())
            load[rank] += costs[place]
            chosen[rank].append(parts[place])
        return [np.sort(np.concatenate(rows)) for rows in chosen]

    def split(self, kept: Rows, budget: int) -> list[Rows]:
        """Group completions into passes, by temperature and similar length, within the budget of tokens.

        The longest come first. A completion longer than the budget gets its own pass; sequences are never split.
        """
        passes = self._cut(kept, budget, within=self.temperature)
        length = self.length
        # sorted() is stable, so passes whose first sequences are equally long keep their order.
        return sorted(passes, key=lambda rows: -length[rows[0]])

    def _cut(self, kept: Rows, budget: float, *, within: NDArray) -> list[Rows]:
        """Divide completions into runs within a budget of tokens, each with a single value of `within`.

        Completions of a prompt stay together. Prompts, and completions within a prompt, are in order of length, longest
        first.
        """
        rows = kept[np.lexsort((kept, -self.tokens[kept]))]
        _, first, unit = np.unique(self.unit[rows], return_index=True, return_inverse=True)
        longest = rows[first[unit]]
        rows = rows[np.lexsort((np.arange(len(rows)), longest, -self.length[longest], self.temperature[rows]))]
        starts = []
        spent = 0
        parts = zip(*(part[rows].tolist() for part in (self.prompt, self.tokens, self.unit, within)), strict=True)
        before = None, None
        for place, (prompt, tokens, unit, kind) in enumerate(parts):
            cost = tokens if unit == before[0] else prompt + tokens
            if kind != before[1] or spent + cost > budget:
                starts.append(place)
                spent = 0
                cost = prompt + tokens
            spent += cost
            before = unit, kind
        return np.split(rows, starts)[1:]


def _prompt_numbers(completions: Sequence[Completion]) -> Rows:
    """Return a number per completion that is equal for completions with equal prompts and temperatures."""
    known: dict[tuple[float, tuple[int, ...]], int] = {}
    requests = [completion.request for completion in completions]
    numbers = [known.setdefault((each.temperature, each.prompt_tokens), len(known)) for each in requests]
    return np.array(numbers, dtype=np.int64)
