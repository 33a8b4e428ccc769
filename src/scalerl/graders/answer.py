"""The part of a completion that a grader reads: the answer, which follows the end of thinking."""

from scalerl.types import THINKING_END, THINKING_START

TAGS = ("thinking_start", "thinking_end")
"""The settings that every task passes to its grader."""


def answer_part(text: str, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END) -> str | None:
    """Return what follows the first end of thinking, or None if thinking began and never ended.

    A text without thinking is an answer as a whole, and so is every text if `thinking_end` is empty.
    """
    if not thinking_end:
        return text.strip()
    thinking, end, answer = text.partition(thinking_end)
    if end:
        return answer.strip()
    return None if thinking_start and thinking_start in thinking else thinking.strip()
