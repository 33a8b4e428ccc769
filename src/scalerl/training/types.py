"""The values that the loop passes between its parts. All are frozen, and none imports torch.

    Problem -> Request (for one completion, with its LengthPlan) -> Completion -> Group (graded) -> Batch

A conversation with an environment is one Completion: its turns are sampled, and the environment's text is forced. If it
began again with another prompt, its earlier parts are branches.

A completion has three different numbers. `value` is the graders' result, from 0 to 1, or None for "no verdict": the
zero-variance filter compares values. `correct` is whether the value reaches the threshold: pass rates, curricula,
evaluations and curves report its mean. `reward` is used for advantages: the value on the recipe's scale, with the
length control's adjustment.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Finish = Literal["stop", "length"]
"""Why a completion ended: a stop token, or its length plan (then it is truncated)."""


Purpose = Literal["training", "evaluation"]
"""The purpose of grading a completion."""


def derive_seed(*parts: str | int) -> int:
    """Return a 63-bit seed that depends only on the parts.

    Noise is keyed by the request, not by its time or its batch. Python's hash() differs between processes, so a resumed
    run could not use it.
    """
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def derive_seeds(*parts: str | int, num: int) -> list[int]:
    """Return derive_seed(*parts, index) for index = 0 .. num - 1; the common parts are hashed only once."""
    text = "\x1f".join([*(f"{type(part).__name__}:{part}" for part in parts), "int:"])
    common, seeds = hashlib.blake2b(text.encode(), digest_size=8), []
    for index in range(num):
        own = common.copy()
        own.update(b"%d" % index)
        seeds.append(int.from_bytes(own.digest(), "big") >> 1)
    return seeds


def group_key(epoch: int, problem_id: str) -> str:
    """Return the name of a group in a run; it is unique because a problem is issued at most once per epoch."""
    return f"{epoch}/{problem_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question, and the reference with which its grader compares answers."""

    id: str
    prompt: str
    answer: str
    """The reference: a number, a formula, unit tests or anything else that the task's grader reads."""
    task: str
    """The task of the problem; a run may mix several tasks."""
    messages: tuple[tuple[str, str], ...] = ()
    """The turns of a chat as (role, content), if the problem is a chat; `prompt` then has their text."""

    def __post_init__(self) -> None:
        # JSON has lists instead of tuples.
        object.__setattr__(self, "messages", tuple((role, content) for role, content in self.messages))

    @property
    def asked(self) -> "str | list[dict[str, str]]":
        """The question before any template: a text, or the turns of a chat."""
        return [{"role": role, "content": content} for role, content in self.messages] or self.prompt

    @property
    def content_hash(self) -> str:
        """A hash of the prompt's words. Evaluation problems are kept out of training by this, not by id."""
        return hashlib.sha256(" ".join(self.prompt.split()).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Recognises the end of thinking token by token, because a text can be spelled with many sequences of tokens.

    The state is the length of the part that the last tokens contain: 0 at first, `width` when it is complete.
    """

    key: tuple[str | int, ...]
    """Endings of a model with the same key are equal."""
    width: int
    moves: Mapping[int, int]
    """token x width + state -> the next state, if it is not 0."""
    tokens: frozenset[int]
    """The tokens with moves."""

    def after(self, state: int, token: int) -> int:
        """Return the state after one more token."""
        return self.moves.get(token * self.width + state, 0)

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of_tokens(tokens: tuple[int, ...]) -> "Ending":
        """Return an ending that recognises only this sequence of tokens."""
        return Ending._of(tokens, [(token, (token,)) for token in set(tokens)], tokens)

    @classmethod
    def of_text(cls, end: str, texts: Sequence[str]) -> "Ending":
        """Return an ending that recognises a text in any spelling; `texts` are the texts of all tokens, in order."""
        beginnings = tuple(end[:num] for num in range(1, len(end) + 1))
        ends = tuple(end[num:] for num in range(len(end)))
        # Few tokens can have a part of it; one without text changes nothing.
        chosen = [
            (token, text)
            for token, text in enumerate(texts)
            if text.endswith(beginnings) or text.startswith(ends) or text in end or end in text
        ]
        return cls._of((end,), chosen, end)

    @classmethod
    def _of(cls, key: tuple[str | int, ...], chosen: Iterable[tuple[int, Any]], end: Any) -> "Ending":
        width, moves = len(end), {}
        for token, part in chosen:
            for state in range(width):
                seen = end[:state] + part
                places = range(1, len(seen) + 1)
                whole = any(seen[place - width : place] == end for place in places if place >= width)
                state_after = (
                    width
                    if whole
                    else max(num for num in range(width) if num <= len(seen) and seen[len(seen) - num :] == end[:num])
                )
                if state_after:
                    moves[token * width + state] = state_after
        return cls(key, width, moves, frozenset(key // width for key in moves))


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPlan:
    """The length limits of one completion, which every engine applies.

    With a thinking budget: if the end of thinking (`ending`, or else exactly the thinking_end tokens) was not sampled
    within `thinking_budget` tokens, the marker tokens are forced there. After the end of thinking, sampled or forced,
    `answer_budget` tokens remain, including a forced marker. So max_tokens always bounds the completion. Without a
    thinking budget, the whole completion is the answer.
    """

    thinking_budget: int | None = None
    thinking_end: tuple[int, ...] = ()
    marker: tuple[int, ...] = ()
    answer_budget: int
    ending: Ending | None = field(default=None, compare=False, repr=False)
    """Recognises the text of thinking_end in any spelling."""

    @property
    def recognised(self) -> Ending | None:
        """The ending that is recognised; None if nothing ends thinking."""
        if self.thinking_budget is None or not (self.ending or self.thinking_end):
            return None
        return self.ending or Ending.of_tokens(self.thinking_end)

    @property
    def max_tokens(self) -> int:
        return (self.thinking_budget or 0) + self.answer_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one completion. Its noise depends only on `seed`, never on a batch or slot."""

    group: str
    """Key of its group; a group that is issued again after a resume has the same key."""
    index: int
    """Index in the group."""
    problem: Problem
    prompt_tokens: tuple[int, ...]
    seed: int
    length: LengthPlan
    temperature: float = 1.0
    top_p: float = 1.0
    """Below 1 only in evaluations, because the ratio's denominator is the log-prob under the full distribution."""
    environment: str = ""
    """Name of the environment (its evaluation set) that answers each turn; empty for a single turn."""
    hint_tokens: tuple[int, ...] = ()
    """The prompt with a hint, for the policy as its own teacher (kl.reference); empty for none."""

    @property
    def key(self) -> str:
        return f"{self.group}#{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """How a conversation with an environment ended."""

    value: float | None = None
    """Value of the conversation, from 0 to 1; None without a verdict, or if graders judge the answer."""
    answer: str | None = None
    """The text for the task's graders, if the environment leaves the verdict to them."""
    base: float = 0.0
    weight: float = 1.0
    """If graders give an answer the value x, that of the conversation is base + weight * x, clipped to 0 to 1."""
    reason: str | None = None
    """Why there is no verdict."""
    num_calls: int = 0
    """Number of tool calls."""
    num_errors: int = 0
    """Number of failed tool calls."""
    num_branches: int = 0
    """Number of times that it began again with another prompt."""


# Create these only once: a step makes hundreds of completions.
_PER_TOKEN: tuple[tuple[str, DTypeLike], ...] = (
    ("tokens", np.dtype(np.int32)),
    ("log_probs", np.dtype(np.float32)),
    ("versions", np.dtype(np.int32)),
    ("forced", np.dtype(np.bool_)),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """A sampled completion, with the values that the learner needs for each token. The arrays are read-only."""

    request: Request
    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    """Log-prob of each token under the policy that sampled it, at the request's temperature; 0 for forced tokens."""
    versions: NDArray[np.int32]
    """Policy version that sampled each token; it rises within a completion when weights arrive in flight."""
    forced: NDArray[np.bool_]
    """True for the marker of an interruption and for text of an environment, which are context and never trained on."""
    finish: Finish
    interrupted_at: int | None = None
    """Index of the first token of the first marker."""
    turns: tuple[tuple[int, int], ...] = ()
    """Begin and end of each turn of the model; empty if the completion is a single turn."""
    episode: Episode | None = None
    """How a conversation ended; None without an environment."""
    branches: tuple["Completion", ...] = ()
    """Earlier parts of a conversation that began again with another prompt, oldest first."""
    experts: NDArray[np.int16] | None = None
    """The experts of every computed token, including the prompt: [tokens, layers x experts per token]; None if they are
    not recorded (model.router_replay)."""

    def __post_init__(self) -> None:
        given = self.tokens, self.log_probs, self.versions, self.forced
        for (name, dtype), values in zip(_PER_TOKEN, given, strict=True):
            # A read-only array need not be copied. (Native dtypes are singletons, so `is` compares them.)
            if type(values) is not np.ndarray or values.dtype is not dtype or values.flags.writeable:
                array = np.array(values, dtype=dtype)
                array.setflags(write=False)
                object.__setattr__(self, name, array)
        if not len(given[0]) == len(given[1]) == len(given[2]) == len(given[3]) > 0:
            lengths = {name: len(getattr(self, name)) for name, _ in _PER_TOKEN}
            raise ValueError(
                f"completion {self.request.key}: its arrays need equal lengths of at least 1, got {lengths}"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completion):
            return NotImplemented
        rest = ("request", "finish", "interrupted_at", "turns", "episode", "branches")
        return all(getattr(self, name) == getattr(other, name) for name in rest) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name, _ in _PER_TOKEN
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> "tuple[Completion, ...]":
        """The branches and this completion, each with its own prompt."""
        return (*self.branches, self)

    @property
    def first_version(self) -> int:
        return int(self.sequences[0].versions[0])

    @property
    def num_trained_tokens(self) -> int:
        return sum(len(each.tokens) - int(each.forced.sum()) for each in self.sequences)

    @property
    def num_turns(self) -> int:
        return sum(len(each.turns) for each in self.sequences)

    @property
    def num_written(self) -> int:
        """Number of tokens except those of environments, including markers."""
        if self.episode is None:
            return len(self.tokens)
        return sum(end - start for each in self.sequences for start, end in each.turns)

    @property
    def truncated(self) -> bool:
        return self.finish == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The graded completions of one issue of a problem."""

    key: str
    problem: Problem
    completions: tuple[Completion, ...]
    correct: tuple[bool | None, ...]
    """Whether each completion's value reaches the threshold; None without a verdict, which is never trained on."""
    rewards: tuple[float, ...]
    """The value's reward plus the length control's adjustment; ignored without a verdict."""
    values: tuple[float | None, ...] = ()
    """The graders' value of each completion, from 0 to 1; by default 1 if correct and 0 if wrong."""
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """The values of each of several graders, by column; empty for a single grader."""

    def __post_init__(self) -> None:
        if not self.values:
            derived = tuple(None if verdict is None else float(verdict) for verdict in self.correct)
            object.__setattr__(self, "values", derived)
        if not len(self.completions) == len(self.correct) == len(self.rewards) > 0:
            counts = (len(self.completions), len(self.correct), len(self.rewards))
            raise ValueError(f"group {self.key}: needs a verdict and a reward per completion, got {counts}")

    @property
    def first_version(self) -> int:
        """The earliest version that sampled a first token; the group's deadline is this version + max_lag."""
        return min(completion.first_version for completion in self.completions)

    @property
    def num_graded(self) -> int:
        return sum(verdict is not None for verdict in self.correct)

    @property
    def num_correct(self) -> int:
        return sum(verdict is True for verdict in self.correct)

    @property
    def num_trained_tokens(self) -> int:
        return sum(completion.num_trained_tokens for completion in self.completions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one step, before any filter, and the version from which the step starts."""

    version: int
    groups: Sequence[Group]

    @property
    def lags(self) -> list[int]:
        """Steps between sampling a group's first token and training on it, by group; see loop/lag.py for the bound."""
        return [self.version - group.first_version for group in self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of an engine so far, for the compute axis, without padding and idle slots."""

    prefilled: int = 0
    """Prompt tokens computed in batches. A prompt shared by several requests counts as often as it was computed. Its
    last token counts as decoded, because the first answer token is sampled from it."""
    decoded: int = 0
    """Tokens of completions, finished or not, including forced tokens; each takes one step."""
    attended: int = 0
    """Sum of the context lengths of all these tokens, including the token itself."""

    @classmethod
    def of(cls, prompt: int, num: int, cached: int = 0) -> "Work":
        """Return the work of `num` tokens after a prompt whose first `cached` tokens were not computed."""
        context = prompt + num - 1
        attended = context * (context + 1) // 2 - cached * (cached + 1) // 2
        return cls(prefilled=prompt - 1 - cached, decoded=num, attended=attended)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            prefilled=self.prefilled + other.prefilled,
            decoded=self.decoded + other.decoded,
            attended=self.attended + other.attended,
        )
