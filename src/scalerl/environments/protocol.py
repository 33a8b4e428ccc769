"""The protocol of environments: an object per conversation answers the model's turns. Standard library only.

class Guess:
    def __init__(self, problem, seed, *, most=100):       # keyword-only arguments are settings of the recipe
        self._number = seed % most

    def step(self, text):                                 # one turn of the model
        if text == str(self._number):
            return 1.0                                    # a number from 0 to 1 ends the conversation with this value
        if not text.isdecimal():
            return "a number, please"                     # a text is an observation: the conversation continues
        return "higher" if int(text) < self._number else "lower"

None ends a conversation without a verdict; a Step can express every outcome. A class with `reset` is used like one of
gymnasium: it is created with its settings only, `reset(seed=...)` returns the opening observation, and `step` returns
(observation, reward, terminated, truncated, info). Other classes may have a method `begin`, which returns the opening
observation.

All conversations of a group have the same seed, because they are compared with each other. For the same seed and turns,
an environment must behave in the same way: a run that was killed repeats conversations. Each conversation has its own
process (steps.py) unless the recipe sets in_process.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalerl.json_text import parse_json

LONGEST_OBSERVATION = 100_000
"""Characters or tokens, more than fit into any context. An environment that returns more has failed."""


Message = tuple[str, str]
"""Role and content of a turn of a chat."""


class Turn(str):
    """A turn of the model as text, with the sampled tokens."""

    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An environment's response to one turn."""

    observation: str = ""
    """The text that the model reads next; unused if the conversation is done."""
    messages: tuple[Message, ...] = ()
    """The turns of a chat that the model reads next, instead of an observation."""
    tokens: tuple[int, ...] = ()
    """The tokens that the model reads next, instead of either."""
    tools: str = ""
    """JSON with the schemas of the offered tools; only with the first messages or after a restart."""
    restart: bool = False
    """Whether messages or tokens are a new prompt. The turns so far become a branch with the same advantage."""
    reward: float | None = None
    """Reward of this turn; the recipe says how the rewards of a conversation are combined."""
    done: bool = False
    """Whether the conversation ends here. If it ends without a reward or an answer, it has no verdict."""
    truncated: bool = False
    """Whether it ends because of a limit; such conversations are filtered like truncated completions."""
    answer: str | None = None
    """The final answer, if the task's graders are to judge it."""
    num_calls: int = 0
    """Number of tool calls in the turn."""
    num_errors: int = 0
    """Number of these calls that failed."""


Start = Callable[..., Any]
"""A class or function (problem, seed, *, settings) that returns an object with `step`, or a class like gymnasium's."""


def read_step(returned: Any) -> Step:
    """Convert the return value of an environment to a Step; TypeError or ValueError if that is impossible."""
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
    """Check the types of a Step's fields, and make its texts encodable."""
    messages: Any = tuple(step.messages)
    pairs = all(isinstance(each, tuple | list) and len(each) == 2 for each in messages)
    texts = [step.observation, step.tools, "" if step.answer is None else step.answer]
    if not pairs or not all(isinstance(text, str) for each in (texts, *messages) for text in each):
        raise TypeError("a Step's observation, answer and tools must be str, and its messages pairs (role, content)")
    tokens: Any = tuple(step.tokens)
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise TypeError("a Step's tokens must be ids, whole numbers from 0")
    if not (isinstance(step.num_calls, int) and isinstance(step.num_errors, int)):
        raise TypeError("a Step's num_calls and num_errors must be whole numbers")
    if step.tools:
        parse_json(step.tools)
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
    """Return a text with lone surrogates written as escapes, because no tokenizer accepts them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _number(returned: Any) -> float:
    # Compare by name: numpy must not be imported for an environment that does not use it.
    is_numpy = type(returned).__module__ == "numpy"
    if isinstance(returned, numbers.Real) or is_numpy:
        return float(returned)
    raise TypeError(
        f"the environment returned {returned!r:.60}, but a step returns a text, a number from 0 to 1, None, a Step, or "
        f"gymnasium's five values"
    )
