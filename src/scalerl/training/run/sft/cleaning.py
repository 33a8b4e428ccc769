"""Remove demonstrations that show an evaluation problem, as the paper did before its SFT (arXiv 2510.13786, A.3).

The paper does not define its n-grams. Here they have 13 words, as for GPT-3. Demonstrations of trivial prompts are left
out next (trivial.py), and those that are too long when they are encoded (demonstrations.py).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalerl.training.tasks.task import Demonstration
from scalerl.training.types import Problem

FEWEST_TOKENS = 3
"""Words and symbols of the shortest problem that counts inside a longer prompt; a shorter one must be equal."""
_WORD = re.compile(r"\w+")
# A number with its decimals or thousands is one token; the marks of a formula are none.
_TOKEN = re.compile(r"\d+(?:[.,]\d+)+|\w+|[^\w\s$]")
_BETWEEN = frozenset(".,:;!?\"'()[]{}`")
"""Symbols that may stand beside a problem without being a part of it."""

Ngram = tuple[str, ...]
Drawn = Mapping[str, Sequence[Demonstration]]
"""Demonstrations by task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What one step removed."""

    kind: Literal["contaminated", "trivial", "too_long"]
    num: int
    total: int
    """Number of demonstrations before the step."""
    limit: int
    """The setting of the step: number of words in a row, of samples, or of tokens."""
    by_set: Mapping[str, int] = field(default_factory=dict)
    """Number of demonstrations that share words with problems of each evaluation set."""
    example: str = ""
    """A prompt that was removed."""


class EvaluationNgrams:
    """Finds evaluation problems in prompts: equal ones, by n-grams of words, and short ones, of fewer words, as a part.

    N-grams that several problems of a set share belong to a template and are not evidence of contamination.
    """

    def __init__(self, problems: Mapping[str, Sequence[Problem]], length: int) -> None:
        self._length = length
        self._sets: dict[Ngram, str] = {}
        self._whole: dict[Ngram, str] = {}
        self._short: dict[Ngram, str] = {}
        for name, of_set in problems.items():
            counts = Counter[Ngram]()
            for text in {problem.prompt.casefold() for problem in of_set}:
                ngrams = _ngrams(_WORD.findall(text), length)
                counts.update(ngrams)
                tokens = _tokens(text)
                self._whole[tokens] = name
                if not ngrams:
                    self._short[tokens] = name
            self._sets |= {ngram: name for ngram, num in counts.items() if num == 1}
        self._short_lengths = sorted({len(tokens) for tokens in self._short})

    def set_of(self, problem: Problem) -> str | None:
        """Return an evaluation set of which the prompt is or has a problem, or an n-gram; None if there is none."""
        text = problem.prompt.casefold()
        tokens = _tokens(text)
        if tokens in self._whole:
            return self._whole[tokens]
        for ngram in _ngrams(_WORD.findall(text), self._length):
            if ngram in self._sets:
                return self._sets[ngram]
        for length in self._short_lengths:
            if length < FEWEST_TOKENS:
                continue
            for start in range(len(tokens) - length + 1):
                part = tokens[start : start + length]
                if part in self._short and _stands_alone(tokens, start, start + length):
                    return self._short[part]
        return None


def _ngrams(words: Sequence[str], length: int) -> set[Ngram]:
    """Return the n-grams of a text; none if it has fewer words."""
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def _tokens(text: str) -> Ngram:
    """Return the words and symbols of a text without the marks at its end; "5!" is another number than "5"."""
    tokens = _TOKEN.findall(text)
    while tokens and tokens[-1] in ".?":
        tokens.pop()
    return tuple(tokens)


def _stands_alone(tokens: Ngram, start: int, end: int) -> bool:
    """Return whether no token beside this part continues its formula, so that the prompt would ask for more.

    "1 + 2 =" is no part of "3 + 1 + 2 =", but of "Compute: 1 + 2 = ".
    """
    before = start > 0 and _continues(tokens[start - 1], tokens[start])
    after = end < len(tokens) and _continues(tokens[end], tokens[end - 1])
    return not before and not after


def _continues(neighbour: str, edge: str) -> bool:
    return not edge.isalpha() and not neighbour.isalpha() and neighbour not in _BETWEEN


def decontaminate(
    drawn: Drawn, problems: Mapping[str, Sequence[Problem]], length: int
) -> tuple[dict[str, list[Demonstration]], Removed]:
    """Remove demonstrations whose prompt shares `length` words in a row with an evaluation problem, or contains a
    shorter one."""
    ngrams = EvaluationNgrams(problems, length)
    kept: dict[str, list[Demonstration]] = {}
    removed: list[str] = []
    by_set = Counter[str]()
    for name, items in drawn.items():
        kept[name] = []
        for item in items:
            of_set = ngrams.set_of(item.problem)
            if of_set is None:
                kept[name].append(item)
            else:
                removed.append(item.problem.prompt)
                by_set[of_set] += 1
    return kept, Removed(
        kind="contaminated",
        num=len(removed),
        total=sum(map(len, drawn.values())),
        limit=length,
        by_set=dict(by_set),
        example=removed[0] if removed else "",
    )
