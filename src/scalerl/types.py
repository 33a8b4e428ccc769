"""The values that the loop passes between its parts. All are frozen, and none imports torch.

    Problem -> Request (one completion wanted, with its LengthPlan) -> Completion -> Group (graded) -> Batch

A conversation with an environment is one Completion: its turns are sampled, what the environment says is forced. One
that began again with another prompt has its earlier branches, too.

Three numbers of a completion are kept apart. `value` is what its graders say, from 0 to 1, or None for "no verdict":
the zero-variance filter compares values. `correct` is whether the value reaches the threshold: pass rates, curricula,
evaluations and curves report its mean. `reward` is what advantages are made of: the value on the recipe's scale, with
the length control's adjustment.
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
"""What a completion is graded for."""


def derive_seed(*parts: str | int) -> int:
    """Return a 63-bit seed that depends on the parts alone.

    Noise is keyed by what is requested, not by when it is requested or what else is in the batch. Python's own hash()
    differs between processes, so a resumed run could not use it.
    """
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def derive_seeds(*parts: str | int, num: int) -> list[int]:
    """Return derive_seed(*parts, index) for index = 0 .. num - 1; what they have in common is hashed once."""
    text = "\x1f".join([*(f"{type(part).__name__}:{part}" for part in parts), "int:"])
    common, seeds = hashlib.blake2b(text.encode(), digest_size=8), []
    for index in range(num):
        own = common.copy()
        own.update(b"%d" % index)
        seeds.append(int.from_bytes(own.digest(), "big") >> 1)
    return seeds


def group_key(epoch: int, problem_id: str) -> str:
    """Return the name of a group within a run; unique because a problem is issued at most once per epoch."""
    return f"{epoch}/{problem_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question, and the reference that its grader compares answers with."""

    id: str
    prompt: str
    answer: str
    """The reference: a number, a formula, unit tests; whatever the task's grader reads."""
    task: str
    """The task it belongs to; several tasks can be mixed in one run."""
    messages: tuple[tuple[str, str], ...] = ()
    """The turns of a chat as (role, content), where the problem is one; `prompt` then has their text."""

    def __post_init__(self) -> None:
        # From JSON they come as lists.
        object.__setattr__(self, "messages", tuple((role, content) for role, content in self.messages))

    @property
    def asked(self) -> "str | list[dict[str, str]]":
        """What is asked, before any template: a text, or the turns of a chat."""
        return [{"role": role, "content": content} for role, content in self.messages] or self.prompt

    @property
    def content_hash(self) -> str:
        """A hash of the prompt's words. Evaluation problems are kept out of training by this, not by id."""
        return hashlib.sha256(" ".join(self.prompt.split()).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Recognises the end of thinking, token by token. A text can be spelled with many sequences of tokens.

    The state is how much of the end the last tokens have: 0 at first, `width` when it is complete.
    """

    key: tuple[str | int, ...]
    """Endings of one model with the same key are equal."""
    width: int
    moves: Mapping[int, int]
    """token x width + state -> the next state, where it is not 0."""

    def after(self, state: int, token: int) -> int:
        """Return the state after one more token."""
        return self.moves.get(token * self.width + state, 0)

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of_tokens(tokens: tuple[int, ...]) -> "Ending":
        """Recognise this sequence of tokens alone."""
        return Ending._of(tokens, [(token, (token,)) for token in set(tokens)], tokens)

    @classmethod
    def of_text(cls, end: str, texts: Sequence[str]) -> "Ending":
        """Recognise a text, however it is spelled; `texts` are those of all tokens, in order."""
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
        return cls(key, width, moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPlan:
    """How long one completion may get. Every engine follows it.

    With a thinking budget: if the end of thinking (`ending`, or without one exactly the thinking_end tokens) has not
    been sampled after `thinking_budget` tokens, the marker
    tokens are forced there. From the end of thinking, reached or forced, `answer_budget` tokens remain, a forced marker
    counted among them; so max_tokens bounds the completion in every case. Without one, the answer is all there is.
    """

    thinking_budget: int | None = None
    thinking_end: tuple[int, ...] = ()
    marker: tuple[int, ...] = ()
    answer_budget: int
    ending: Ending | None = field(default=None, compare=False, repr=False)
    """Recognises the text of thinking_end also where it is spelled with other tokens."""

    @property
    def recognised(self) -> Ending | None:
        """What ends thinking; None where nothing can."""
        if self.thinking_budget is None or not (self.ending or self.thinking_end):
            return None
        return self.ending or Ending.of_tokens(self.thinking_end)

    @property
    def max_tokens(self) -> int:
        return (self.thinking_budget or 0) + self.answer_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to sample. Its noise depends on `seed` alone, never on a batch slot."""

    group: str
    """Key of the group it belongs to; a group that is issued again after a resume has the same key."""
    index: int
    """Its index within that group."""
    problem: Problem
    prompt_tokens: tuple[int, ...]
    seed: int
    length: LengthPlan
    temperature: float = 1.0
    top_p: float = 1.0
    """Below 1 only in evaluation: the ratio's denominator is the log-prob under the full distribution."""
    environment: str = ""
    """Name of the environment that answers each turn, by evaluation set; empty where one turn is all."""
    hint_tokens: tuple[int, ...] = ()
    """The prompt with a hint, for the policy as its own teacher (kl.reference); empty where there is none."""

    @property
    def key(self) -> str:
        return f"{self.group}#{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """How a conversation with an environment ended."""

    value: float | None = None
    """What it is worth, from 0 to 1; None without a verdict, and where graders read the answer."""
    answer: str | None = None
    """The text that the task's graders read, where the environment leaves the verdict to them."""
    base: float = 0.0
    weight: float = 1.0
    """An answer that graders value at x makes the conversation worth base + weight * x, within 0 to 1."""
    reason: str | None = None
    """Why there is no verdict."""
    num_calls: int = 0
    """Tools that the model called."""
    num_errors: int = 0
    """Calls among them that failed."""
    num_branches: int = 0
    """How often it began again with another prompt."""


# Created once: a step makes hundreds of completions.
_PER_TOKEN: tuple[tuple[str, DTypeLike], ...] = (
    ("tokens", np.dtype(np.int32)),
    ("log_probs", np.dtype(np.float32)),
    ("versions", np.dtype(np.int32)),
    ("forced", np.dtype(np.bool_)),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine sampled, with what the learner needs to know about each token. The arrays are read-only."""

    request: Request
    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    """Log-prob of each token under the policy that sampled it, at the request's temperature; 0 where forced."""
    versions: NDArray[np.int32]
    """Policy version that sampled each token; rises within a completion when weights arrive in flight."""
    forced: NDArray[np.bool_]
    """True for an interruption's marker and for what an environment said: part of the context, never trained on."""
    finish: Finish
    interrupted_at: int | None = None
    """Index of the first token of the first marker."""
    turns: tuple[tuple[int, int], ...] = ()
    """Where the model's turns of a conversation begin and end; empty where the completion is one turn."""
    episode: Episode | None = None
    """How a conversation ended; None without an environment."""
    branches: tuple["Completion", ...] = ()
    """What was sampled before a conversation began again with another prompt, the earliest first."""
    experts: NDArray[np.int16] | None = None
    """The experts of every token that the engine computed, prompt included: [tokens, layers x experts per token]; None
    where they are not recorded (model.router_replay)."""

    def __post_init__(self) -> None:
        given = self.tokens, self.log_probs, self.versions, self.forced
        for (name, dtype), values in zip(_PER_TOKEN, given, strict=True):
            # A read-only array needs no copy. (Native dtypes are singletons, so `is` compares them.)
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
        """All that was sampled for its request, each after a prompt of its own: the branches, and itself."""
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
        """Tokens that the model wrote, markers included: all but what an environment said."""
        if self.episode is None:
            return len(self.tokens)
        return sum(end - start for each in self.sequences for start, end in each.turns)

    @property
    def truncated(self) -> bool:
        return self.finish == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The graded completions of one problem, issued once."""

    key: str
    problem: Problem
    completions: tuple[Completion, ...]
    correct: tuple[bool | None, ...]
    """Whether each completion's value reaches the threshold; None has no verdict and is never trained on."""
    rewards: tuple[float, ...]
    """What is trained on: the value's reward plus the length control's adjustment; unread without a verdict."""
    values: tuple[float | None, ...] = ()
    """The graders' value of each completion, from 0 to 1; where left out, 1 for correct and 0 for wrong."""
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """The values of each of several graders, by column; empty where there is only one."""

    def __post_init__(self) -> None:
        if not self.values:
            derived = tuple(None if verdict is None else float(verdict) for verdict in self.correct)
            object.__setattr__(self, "values", derived)
        if not len(self.completions) == len(self.correct) == len(self.rewards) > 0:
            counts = (len(self.completions), len(self.correct), len(self.rewards))
            raise ValueError(f"group {self.key}: needs a verdict and a reward per completion, got {counts}")

    @property
    def first_version(self) -> int:
        """The earliest version that sampled a first token; the group's deadline is this + max_lag."""
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
    """The groups of one step, before any filter, and the version the step starts from."""

    version: int
    groups: Sequence[Group]

    @property
    def lags(self) -> list[int]:
        """Steps between sampling each group's first token and training on it; see loop/lag.py for its bound."""
        return [self.version - group.first_version for group in self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an engine has computed so far, for the compute axis; without padding and idle slots."""

    prefilled: int = 0
    """Prompt tokens computed in batches. A prompt shared by several requests counts as often as it was computed. Its
    last token counts as decoded, since the first answer token is sampled from it."""
    decoded: int = 0
    """Tokens of completions, finished or not, including forced ones: each took one step."""
    attended: int = 0
    """Sum, over all these tokens, of the length of the context attended to, including the token itself."""

    @classmethod
    def of(cls, prompt: int, num: int, cached: int = 0) -> "Work":
        """Return the work of `num` tokens after a prompt, of which the first `cached` were not computed."""
        context = prompt + num - 1
        attended = context * (context + 1) // 2 - cached * (cached + 1) // 2
        return cls(prefilled=prompt - 1 - cached, decoded=num, attended=attended)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            prefilled=self.prefilled + other.prefilled,
            decoded=self.decoded + other.decoded,
            attended=self.attended + other.attended,
        )
