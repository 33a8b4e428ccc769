"""How a completion separates thinking from its answer. Standard library only: processes that grade import this too."""

from dataclasses import dataclass

THINKING_START = "<think>"
THINKING_END = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The texts before and after a completion's thinking; empty where it does not think."""

    thinking_start: str = THINKING_START
    thinking_end: str = THINKING_END
