"""What an environment is: an object per conversation that answers the model's turns. Standard library only.

class Guess:
    def __init__(self, problem, seed, *, most=100):       # keyword-only arguments are settings of the recipe
        self._number = seed % most

    def step(self, text):                                 # one turn of the model
        if text == str(self._number):
            return 1.0                                    # a number from 0 to 1 ends the conversation with this value
        if not text.isdecimal():
            return "a number, please"                     # a text is an observation: the model goes on
        return "higher" if int(text) < self._number else "lower"

None ends a conversation without a verdict; a Step says everything that can be said. A class with `reset` is used in the
manner of gymnasium: it is made with its settings alone, `reset(seed=...)` returns the opening observation, and `step`
returns (observation, reward, terminated, truncated, info). Another class may have a method `begin`, which returns what
it says first.

The seed is the same for all conversations of a group, which are compared with each other. An environment repeats itself
for a seed and the same turns: a run that was killed plays conversations again. Each conversation has a process of its
own (steps.py), unless the recipe says in_process.
"""

import json
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

LONGEST_OBSERVATION = 100_000
"""Characters or tokens; more than any context holds. An environment that prints more has failed."""


Message = tuple[str, str]
"""Role and content of a turn of a chat."""


class Turn(str):
    """What the model said, as text, with the tokens that were sampled."""

    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of one turn."""

    observation: str = ""
    """What the model reads next; unused where the conversation is done."""
    messages: tuple[Message, ...] = ()
    """What the model reads next as turns of a chat, instead of an observation."""
    tokens: tuple[int, ...] = ()
    """What the model reads next as tokens, instead of either."""
    tools: str = ""
    """JSON of the schemas of tools that are offered; only of the first messages, or after a restart."""
    restart: bool = False
    """Whether messages or tokens are a new prompt: what was said before is a branch, trained on with this advantage."""
    reward: float | None = None
    """Reward of this turn; the recipe says how the rewards of a conversation are added up."""
    done: bool = False
    """Whether the conversation ends here. Without a reward and an answer it then has no verdict."""
    truncated: bool = False
    """Whether it ends because of a limit; such conversations are filtered like completions that are too long."""
    answer: str | None = None
    """The final answer, where the task's own graders say what it is worth."""
    num_calls: int = 0
    """Tools that the turn called."""
    num_errors: int = 0
    """Calls among them that failed."""


Start = Callable[..., Any]
"""A class or function (problem, seed, *, settings) that gives an object with `step`, or a class like gymnasium's."""


def read_step(returned: Any) -> Step:
    """Return what an environment returned as a Step; TypeError or ValueError says why it cannot be."""
    if isinstance(returned, Step):
        return _checked(returned)
    if isinstance(returned, str):
        return _checked(Step(observation=returned))
    if returned is None:
        return Step(done=True)
    if isinstance(returned, tuple) and len(returned) == 5:
        observation, reward, terminated, truncated, _ = returned
        done = bool(terminated) or bool(truncated)
        cut = bool(truncated) and not terminated
        return _checked(Step(observation=str(observation), reward=_number(reward), done=done, truncated=cut))
    return _checked(Step(reward=_number(returned), done=True))


def _checked(step: Step) -> Step:
    """Return a Step that the trainer can use without looking: texts are texts, and can be encoded."""
    messages: Any = tuple(step.messages)
    pairs = all(isinstance(each, tuple | list) and len(each) == 2 for each in messages)
    texts = [step.observation, step.tools, "" if step.answer is None else step.answer]
    if not pairs or not all(isinstance(text, str) for each in (texts, *messages) for text in each):
        raise TypeError("a Step has texts: observation, answer and tools are str, messages pairs (role, content)")
    tokens: Any = tuple(step.tokens)
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise TypeError("a Step has the ids of tokens, which are whole numbers from 0")
    if not (isinstance(step.num_calls, int) and isinstance(step.num_errors, int)):
        raise TypeError("a Step counts calls and errors by whole numbers")
    if step.tools:
        json.loads(step.tools)
    step = replace(
        step,
        observation=_encodable(step.observation),
        messages=tuple((_encodable(role), _encodable(content)) for role, content in messages),
        tokens=tokens,
        answer=None if step.answer is None else _encodable(step.answer),
        reward=None if step.reward is None else _number(step.reward),
        restart=bool(step.restart),
        done=bool(step.done),
        truncated=bool(step.truncated),
    )
    length = len(step.observation) + len(tokens) + sum(len(content) for _, content in step.messages)
    if length > LONGEST_OBSERVATION:
        raise ValueError(f"the environment returned {length:,} characters or tokens: at most 100,000 are read")
    if step.reward is not None and not math.isfinite(step.reward):
        raise ValueError(f"the environment returned the reward {step.reward}")
    return step


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which no tokenizer takes; they are written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _number(returned: Any) -> float:
    # By name: numpy must not be imported for an environment that does without.
    is_numpy = type(returned).__module__ == "numpy"
    if isinstance(returned, numbers.Real) or is_numpy:
        return float(returned)
    raise TypeError(
        f"the environment returned {returned!r:.60}, but a step returns a text, a number from 0 to 1, None, a Step, or "
        f"gymnasium's five values"
    )
