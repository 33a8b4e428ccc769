"""The protocol of environments: an object per conversation answers the model's turns.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import PydanticCustomError

from scalerl.runfolder.json_text import parse_or_none
from scalerl.training.graders.values import real_number

LONGEST_OBSERVATION = 100_000
"""Characters or tokens, more than fit into any context. An environment that returns more has failed."""


Message = tuple[str, str]
"""Role and content of a turn of a chat."""


def _encodable(text: str) -> str:
    """Return a text with lone surrogates written as escapes, because no tokenizer accepts them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _json(text: str) -> str:
    if text and parse_or_none(text) is None:
        raise PydanticCustomError("json", "Input should be JSON")
    return text


def _number(returned: Any) -> float:
    if not math.isnan(number := real_number(returned)):
        return number
    raise TypeError(
        f"the environment returned {returned!r:.60}, but a step returns a text, a number from 0 to 1, None, a Step, or "
        f"gymnasium's five values"
    )


_Text = Annotated[str, AfterValidator(_encodable)]
_Reward = Annotated[FiniteFloat, BeforeValidator(_number)]
_Count = Annotated[int, Field(strict=True, ge=0)]
_Flag = Annotated[bool, BeforeValidator(bool)]


class Turn(str):
    """A turn of the model as text, with the sampled tokens."""

    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


@with_config(ConfigDict(extra="forbid", revalidate_instances="always"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An environment's response to one turn."""

    observation: _Text = ""
    """The text that the model reads next; unused if the conversation is done."""
    messages: tuple[tuple[_Text, _Text], ...] = ()
    """The turns of a chat that the model reads next, instead of an observation."""
    tokens: tuple[_Count, ...] = ()
    """The tokens that the model reads next, instead of either."""
    tools: Annotated[_Text, AfterValidator(_json)] = ""
    """JSON with the schemas of the offered tools; only with the first messages or after a restart."""
    restart: _Flag = False
    """Whether messages or tokens are a new prompt. The turns so far become a branch with the same advantage."""
    reward: _Reward | None = None
    """Reward of this turn; the recipe says how the rewards of a conversation are combined."""
    done: _Flag = False
    """Whether the conversation ends here. If it ends without a reward or an answer, it has no verdict."""
    truncated: _Flag = False
    """Whether it ends because of a limit; such conversations are filtered like truncated completions."""
    answer: _Text | None = None
    """The final answer, if the task's graders are to judge it."""
    num_calls: _Count = 0
    """Number of tool calls in the turn."""
    num_errors: _Count = 0
    """Number of these calls that failed."""


Start = Callable[..., Any]
"""A class or function (problem, seed, *, settings) that returns an object with `step`, or a class like gymnasium's."""


_STEP = TypeAdapter(Step)


def read_step(returned: Any) -> Step:
    """Convert the return value of an environment to a Step; TypeError or ValueError if that is impossible."""
    if returned is None:
        returned = Step(done=True)
    elif isinstance(returned, str):
        returned = Step(observation=returned)
    elif isinstance(returned, tuple) and len(returned) == 5:
        observation, reward, terminated, truncated, _ = returned
        done = terminated or truncated
        cut = truncated and not terminated
        returned = Step(observation=str(observation), reward=reward, done=done, truncated=cut)
    elif not isinstance(returned, Step):
        returned = Step(reward=_number(returned), done=True)
    return checked(returned)


def checked(given: Any) -> Step:
    """Return a Step with valid fields, from one or from a dict; TypeError or ValueError if that is impossible."""
    try:
        step = _STEP.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        reason = first["msg"]
        raise ValueError(f"the environment returned a Step with {field} = {first['input']!r:.60}: {reason}") from None
    length = len(step.observation) + len(step.tokens) + sum(len(content) for _, content in step.messages)
    if length > LONGEST_OBSERVATION:
        raise ValueError(f"the environment returned {length:,} characters or tokens: at most 100,000 are read")
    return step
