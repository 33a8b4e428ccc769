"""A conversation as tokens: the model's turns, exactly as sampled, and the observations of the environment.

    prompt | turn 1 | observation | turn 2 | observation | turn 3
            sampled    forced      sampled    forced      sampled        one Completion under the first request

Every turn is a separate request, whose prompt is all tokens so far. Turns are never decoded and encoded again, because
a text can be spelled with different tokens, and log-probs belong to the sampled ones. Observations are forced tokens:
context with log-prob 0 and no loss. If a conversation begins again with another prompt, for example after its history
was summarised, the turns until then are kept as a branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scalerl.training.types import Completion, Episode, Finish, LengthPlan, Request, derive_seed


@dataclass(slots=True)
class Conversation:
    """All tokens after the prompt, with the values that the learner needs for each."""

    request: Request
    """The request that the loop submitted; an opening observation is part of its prompt."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    interrupted_at: int | None = None
    branches: list[Completion] = field(default_factory=list)
    """Earlier parts of a conversation that began again, oldest first."""

    def open(self, prompt_tokens: Sequence[int]) -> None:
        """Begin, or begin again, with a prompt. Turns sampled before become a branch."""
        if self.turns:
            self.branches.append(self._sequence(finish="stop"))
        for part in (self.tokens, self.log_probs, self.versions, self.forced, self.turns):
            part.clear()
        self.interrupted_at = None
        self.request = replace(self.request, prompt_tokens=tuple(prompt_tokens))

    def take(self, turn: Completion) -> None:
        """Append a turn exactly as the engine returned it."""
        start = len(self.tokens)
        if turn.interrupted_at is not None and self.interrupted_at is None:
            self.interrupted_at = start + turn.interrupted_at
        self.tokens += turn.tokens.tolist()
        self.log_probs += turn.log_probs.tolist()
        self.versions += turn.versions.tolist()
        self.forced += turn.forced.tolist()
        self.turns.append((start, len(self.tokens)))

    def observe(self, tokens: Sequence[int], *, version: int | None = None) -> None:
        """Append an observation. Its version is that of the turn before."""
        num = len(tokens)
        before = self.versions[-1:] if version is None else [version]
        self.tokens += tokens
        self.log_probs += [0.0] * num
        self.versions += before * num
        self.forced += [True] * num

    @property
    def num_written(self) -> int:
        """Number of tokens in the model's turns."""
        turns = list(self.turns)
        for branch in self.branches:
            turns += branch.turns
        return sum(end - start for start, end in turns)

    def room(self, num_observed: int, *, context: int, max_tokens: int | None) -> int:
        """Return how many tokens the next turn may have after an observation of `num_observed` tokens."""
        left = context - len(self.request.prompt_tokens) - len(self.tokens) - num_observed
        return left if max_tokens is None else min(left, max_tokens - self.num_written)

    def next_request(self, room: int) -> Request:
        """Return the request for the next turn, of at most `room` tokens."""
        first = self.request
        number = len(self.turns) + sum(len(branch.turns) for branch in self.branches)
        prompt = (*first.prompt_tokens, *self.tokens)
        # Noise is keyed by the seed and the index in a request: with the same seed, all turns would repeat it.
        seed = derive_seed("turn", first.seed, number) if number else first.seed
        return replace(first, prompt_tokens=prompt, seed=seed, length=fit_plan(first.length, room))

    def completion(self, *, finish: Finish, episode: Episode) -> Completion:
        """Return the whole conversation as one completion."""
        return self._sequence(finish=finish, episode=episode, branches=tuple(self.branches))

    def _sequence(self, **more: Any) -> Completion:
        return Completion(
            request=self.request,
            tokens=np.array(self.tokens, dtype=np.int32),
            log_probs=np.array(self.log_probs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            forced=np.array(self.forced, dtype=np.bool_),
            interrupted_at=self.interrupted_at,
            turns=tuple(self.turns),
            **more,
        )


def fit_plan(plan: LengthPlan, room: int) -> LengthPlan:
    """Shorten a plan to `room` tokens, at least one; thinking is shortened before the answer."""
    if plan.max_tokens <= room:
        return plan
    thinking = room - plan.answer_budget
    if plan.thinking_budget is not None and thinking >= 0:
        return replace(plan, thinking_budget=thinking)
    return replace(plan, thinking_budget=None, answer_budget=room)
