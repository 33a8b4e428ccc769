"""Find the part of a completion that a grader reads: the answer after the end of thinking."""

import functools
from collections.abc import Callable

from scalerl.training.answer_format import THINKING_END, THINKING_START

TAGS = ("thinking_start", "thinking_end")
"""Settings that every task passes to its grader."""


def reads_answer(grade: Callable[[str | None, str], bool | None]) -> Callable[..., bool | None]:
    """Turn a function of (answer or None if thinking never ended, reference) into a grader of whole texts."""

    def grader(
        text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
    ) -> bool | None:
        return grade(answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end), answer)

    functools.update_wrapper(grader, grade)
    vars(grader).pop("__wrapped__")  # The signature is that of `grader`.
    return grader


def after_thinking(text: str, *, thinking_start: str, thinking_end: str) -> str | None:
    """Return the text after the first end of thinking, including white space; None if thinking never ended.

    Without thinking, or if `thinking_end` is empty, the whole text is the answer.
    """
    if not thinking_end:
        return text
    thinking, end, answer = text.partition(thinking_end)
    if end:
        return answer
    return None if thinking_start and thinking_start in thinking else text


def answer_part(text: str, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END) -> str | None:
    """Return `after_thinking` without white space around it."""
    answer = after_thinking(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return None if answer is None else answer.strip()
