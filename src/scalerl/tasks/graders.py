"""Graders: was the answer right? Pure functions of a completion's text and a problem's reference answer.

True or False is a verdict; None is none: the reference itself cannot be read, so the completion is neither right nor
wrong and is never trained on. Only what stands after the end of thinking is looked at. What a verdict is worth in
training is the recipe's business (reward.correct, reward.wrong).
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

THINKING_START = "<think>"
THINKING_END = "</think>"

# A number that is no part of a word: 1,234.5 or .5 or 3/4. In 3-4 the minus is no sign.
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:/[1-9]\d*)?(?!\w)")


def answer_part(text: str, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END) -> str | None:
    """What follows the first end of thinking; the whole text if it holds no thinking; None if that never ended."""
    thinking, end, answer = text.partition(thinking_end)
    if end:
        return answer.strip()
    return None if thinking_start and thinking_start in thinking else thinking.strip()


def exact(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The answer is the reference, word for word, apart from spaces."""
    if not answer.split():
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return given is not None and given.split() == answer.split()


def numeric(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The last number of the answer equals the last number of the reference, as exact fractions: 0.50 is 1/2."""
    wanted = _last_number(answer)
    if wanted is None:
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return given is not None and _last_number(given) == wanted


def _last_number(text: str) -> Fraction | None:
    found = _NUMBER.findall(text)
    if not found:
        return None
    # Fraction reads "0.5" and "3/4" but not "0.5/2".
    numerator, _, denominator = found[-1].replace(",", "").partition("/")
    return Fraction(numerator) / Fraction(denominator or 1)


GRADERS: Mapping[str, Callable[..., bool | None]] = {"exact": exact, "numeric": numeric}
