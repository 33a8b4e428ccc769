"""Graders by rules, and the table of all graders. A grader decides whether a completion answers a problem correctly.

A grader is a pure function of the completion's text and the problem's reference answer. It returns True, False, or None
if the reference cannot be read; completions without a verdict are never trained on. Some graders return a Score, which
also names the outcome. Only the text after the end of thinking is read. The recipe sets the reward of a verdict
(reward.correct, reward.wrong).

Graders in POOLED may hang, crash or use much memory on some texts. They run in a GraderPool (pool.py), like graders
with an import path.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from scalerl.training.graders import code, gym, judge, math
from scalerl.training.graders.answer import reads_answer

_LONGEST_NUMBER = 1000
"""Largest number of characters in a number. (Python does not read integers of more than 4,300 digits.)"""

# A number that is not part of a word: 1,234.5 or .5 or 3/4. The minus of 3-4 is not a sign.
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:/[1-9]\d*)?(?!\w)")


@reads_answer
def exact(given: str | None, answer: str) -> bool | None:
    """Return whether the answer equals the reference word for word, apart from white space."""
    if not answer.split():
        return None
    return given is not None and given.split() == answer.split()


@reads_answer
def numeric(given: str | None, answer: str) -> bool | None:
    """Return whether the last numbers of answer and reference are equal as exact fractions: 0.50 equals 1/2."""
    wanted = _last_number(answer)
    if wanted is None:
        return None
    return given is not None and _last_number(given) == wanted


def _last_number(text: str) -> Fraction | None:
    # Typeset text uses another minus sign; without this, -4 would be read as 4.
    numbers = _NUMBER.findall(text.replace("\u2212", "-"))
    if not numbers or len(numbers[-1]) > _LONGEST_NUMBER:
        return None
    # Fraction reads "0.5" and "3/4" but not "0.5/2".
    numerator, _, denominator = numbers[-1].replace(",", "").partition("/")
    return Fraction(numerator) / Fraction(denominator or 1)


# Ways to write a choice, the clearest first: in a box, after the word "answer", or as a single letter. A repetition is
# possessive or stays in its line: otherwise a long text without a letter would take quadratic time.
_CHOICES = (
    re.compile(r"\\boxed\{[^A-Za-z\\]*+(?:\\\w+\{)?[^A-Za-z]*+([A-Za-z])\b"),
    re.compile(r"(?i:\banswer\b(?: is| would be)?)[\s:*(\[]*+([A-Z])\b(?!['\u2019])"),
    re.compile(r"^(?:(?!\n)[\s*(\[])*+([A-Za-z])(?=[*)\].:]|[^\S\n]*+$)", re.MULTILINE),
)


@reads_answer
def choice(given: str | None, answer: str) -> bool | None:
    """Return whether the answer chooses the reference's letter: "B", "(b)", "B. Paris", "The answer is B"."""
    wanted = _CHOICES[-1].match(answer.strip())
    if wanted is None:
        return None
    letters = next((found for choices in _CHOICES if (found := choices.findall(given or ""))), [""])
    return letters[-1].upper() == wanted[1].upper()


GRADERS: Mapping[str, Callable[..., Any]] = {
    "exact": exact,
    "numeric": numeric,
    "choice": choice,
    "math": math.math,
    "gym": gym.gym,
    "code": code.code,
    "code_share": code.code_share,
    "judge": judge.judge,
}

RUN_PROGRAMS = frozenset({"code", "code_share"})
"""Graders that run programs, with the recipe's limits and sandbox."""

WAIT = frozenset({"judge"})
"""Graders that wait for a server: like coroutine functions, they get more workers."""

POOLED = frozenset({"math", "gym"}) | WAIT | RUN_PROGRAMS

PREPARE: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(RUN_PROGRAMS, code.prepare),
    "judge": judge.prepare,
    "math": math.prepare,
    "gym": gym.prepare,
}
"""Called once with a grader's settings before workers are forked; GraderError if the grader is unusable."""


def unknown_grader(name: str) -> str:
    """Return an error message for a name that is neither in the table nor an import path."""
    meant = f'; did you mean "{name.removesuffix(".py")}:FUNCTION"?' if name.endswith(".py") else ""
    return f'there is no grader "{name}"; choices: {", ".join(GRADERS)}, or "package.module:function"{meant}'
