"""The numbers in a line of text: what each of them counts or measures.

A line is its numbers and what stands between them. What stands between them is the same in every line that a loop
prints, so it is read once for all of them:

    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     step:12 - actor/loss:0.1 - acc/mean@1:0.5

A name has up to four words; ':', '=' or a verb stands between it and its value. What a number counts stands before it:
a step, an epoch; or it is N/M without a name.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from scalerl.forecast.logs.frame import CALL, number
from scalerl.forecast.logs.readers.source import MAX_WORD

Values = dict[str, float]
Counters = dict[str, int]
"""Names in lower case; the counter of a bar is named by its end, as '/250'."""

_MAX_NAME_WORDS = 4
# More words before a number are prose, and so are words that are further away.
_MAX_WORDS = 12
_MAX_NEAR = 60

# What is written around numbers

# np.float64(0.5) and Array(0.5, dtype=float32), as values.
_CALLED = re.compile(rf"((?<=[:=,(\[])\s?){CALL}")
# [('reward', 0.7), ('kl', 0.1)]
_PAIRED = re.compile(r"(?<=\w)['\"]\s?,\s?(?=[-+]?\.?\d)")
# A list or an array of numbers under a name.
_LIST = re.compile(r"(?P<name>[\w./@-]\s{0,2}[:=]\s{0,2})\[(?P<cells>\s{0,8}[-+.\d][^\[\]A-DF-Za-df-z]{0,10000})\]")
# The folder of a step: global_step_100, checkpoint-100.
_FOLDER = re.compile(r"(?<![^\W_])(?:step|iter|checkpoint|ckpt)[-_](\d{1,12})(?![\w.-])", re.IGNORECASE)

# Numbers, and what stands between them

_NUMERAL = re.compile(
    r"([-+.\d](?<![\w.@/+-].)(?:(?<=\d)|(?<=[-+])\.?\d|(?<=\.)\d)(?:\s?/\s{0,12}(?=\d)|[\w./+-]|[:,](?=\d))*+(?:\s?%)?)"
)
_OF = re.compile(r"(\d{1,12})\s*+/\s*+(\d{1,12})")
# The places of a number, of 3/40, and of a number in a remark.
_NUMBER, _SHARE, _SKIPPED = "\0.", "\0/", "\0-"
_REMARK = re.compile(r"\((?=[^()]{0,60}[A-Za-z])[^()]{1,60}\)(?=\s?[:=]|\s(?:at|after)\s)")
WORD = re.compile(r"[^\W\d](?:[\w./@#+'-]*[\w@#/])?")
_TOKEN = re.compile(
    rf"\0(?P<place>[./-])(?:\s[sS]\b)?|(?P<words>{WORD.pattern}(?:(?:\s|\s?[^\w\s.,;:=+|\u2502()\[\]\0-]+\s?){WORD.pattern})*+)"
    r"|(?P<mark>[:=]|[|\u2502](?=\s*+\0[./])|\s{2,}+(?=\0[./]\s*+$))|(?P<alone>\[(?=\0\.\]))|(?P<open>\()"
    r"|(?P<end>[.,;\]+|\u2502-]|\)(?=\s?[^\W\d])|\s{2,}+(?=[\w(]))"
)
_DIGITS = re.compile(r"(?<=[\w-])\d+")
_NOTHING = frozenset(("nan", "inf", "none"))
_VERBS = frozenset(("is", "was", "are", "were", "equals"))
_PLACES = frozenset(("at", "after"))
_ASIDES = _PLACES | {"of", "over", "on", "across", "from", "in", "for", "per"}

# Names

COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(COUNTED, re.IGNORECASE)
_METRIC = re.compile(
    r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|success|rate|pass@\d+|loss|time)s?(?:[/_].*)?", re.IGNORECASE
)
_COUNTERS_IN_SHORT = {"ep": "episode", "iter": "iteration"}


class Said(NamedTuple):
    """What the numbers of a line say."""

    counters: Counters
    values: Values
    shape: str
    """The words of the line without its numbers."""


class Entry(NamedTuple):
    """What a number in a line is."""

    name: str
    is_counter: bool
    is_marked: bool = True
    """Whether something stands between name and number; else the line has to name a step."""


class Form(NamedTuple):
    """A line without its numbers."""

    entries: tuple[Entry | None, ...]
    """What each number is; None for one that says nothing."""
    shape: str
    counters: Counters
    """The steps in the names of folders."""


def said_in(text: str) -> Said:
    """Return the counters and values in a text, the first of a name."""
    if "[" in text:
        text = _LIST.sub(_mean_of_list, text)
    if "(" in text:
        text = _PAIRED.sub("=", without_calls(text))
    parts = _NUMERAL.split(text)
    numerals = parts[1::2]
    parts[1::2] = [_SHARE if "/" in numeral and _OF.fullmatch(numeral) else _NUMBER for numeral in numerals]
    parts[0::2] = [_near(part) if len(part) > _MAX_NEAR else part for part in parts[0::2]]
    form = _form("".join(parts))
    said = Said(dict(form.counters), {}, form.shape)
    for entry, numeral in zip(form.entries, numerals, strict=True):
        if entry is not None:
            _take(said, entry, numeral)
    return said


def _near(between: str) -> str:
    """Return the words that are near numbers, of what stands between them."""
    end = between.find(" ", _MAX_NEAR // 2)
    begin = between.rfind(" ", 0, -_MAX_NEAR)
    return f"{between[:end]},{between[begin:]}" if 0 < end < begin else between


def without_calls(text: str) -> str:
    """Return a text with 0.5 for np.float64(0.5)."""
    return _CALLED.sub(r"\1\2", text)


def _mean_of_list(match: re.Match[str]) -> str:
    """Return 'rewards=0.5' for 'rewards=[1.0, 0.0]', as lists and arrays print their numbers; other lists stay."""
    cells = match["cells"].replace(",", " ").split()
    mean = sum(map(number, cells)) / len(cells)
    return f"{match['name']}{mean:.10g}" if mean == mean else match[0]


def _take(said: Said, entry: Entry, numeral: str) -> None:
    """Take a number as what it is, if it can be that."""
    count, _, total = numeral.partition("/")
    is_share = bool(total) and _OF.fullmatch(numeral) is not None
    value = float(count) if is_share else _value(numeral.rstrip(".,: "))
    if entry.is_counter:
        if value.is_integer():
            said.counters.setdefault(entry.name or f"/{int(total)}", int(value))
        return
    if is_share:
        value = value / int(total) if int(total) else float("nan")
    if value == value and (entry.is_marked or said.counters):
        said.values.setdefault(entry.name, value)


def _value(numeral: str) -> float:
    """Return a number, milliseconds as seconds; NaN for a time of day, a date or a version."""
    if numeral[-1:].isdigit():
        return number(numeral)
    word = numeral[:MAX_WORD].lower()
    if word.endswith("ms"):
        return number(word[:-2]) / 1000
    return number(word.removesuffix("s"))


@lru_cache(maxsize=8192)
def _is_counter(word: str) -> bool:
    return _COUNTER.fullmatch(word) is not None


@lru_cache(maxsize=8192)
def _is_metric(word: str) -> bool:
    return _METRIC.fullmatch(word) is not None


# What stands between numbers


@lru_cache(maxsize=4096)
def _form(between: str) -> Form:
    """Return what the numbers of a line are, from what stands between them."""
    reader = _Reader(is_boxed=between.lstrip()[:1] in ("|", "\u2502"))
    told = _REMARK.sub(_only_places, between) if "(" in between else between
    for token in _TOKEN.finditer(told):
        kind = str(token.lastgroup)
        reader.meet(kind, token[kind])
    shape = " ".join(WORD.findall(_DIGITS.sub("", between))) if any(reader.entries) else ""
    folder = _FOLDER.search(between) if "_" in between or "-" in between else None
    return Form(tuple(reader.entries), shape, {"checkpoint": int(folder[1])} if folder else {})


def _only_places(remark: re.Match[str]) -> str:
    """Return the places of the numbers in a remark before a value, as in 'accuracy (500 problems): 0.61'."""
    return _SKIPPED * remark[0].count("\0")


def _aside(words: list[str]) -> list[str]:
    """Return the words that follow a name after 'over', 'at' and the like."""
    for at, word in enumerate(words):
        if at and word.lower() in _ASIDES:
            return words[at:]
    return []


class _Reader:
    """Reads what stands between numbers: words, marks, and what ends a name."""

    def __init__(self, *, is_boxed: bool) -> None:
        self.entries: list[Entry | None] = []
        self._is_boxed = is_boxed
        self._begin()

    def _begin(self) -> None:
        """Begin with a new name."""
        self._said = ""
        """The words that stand before the next number."""
        self._name: list[str] = []
        """The name before a number that is said about it, as in: reward over 64 problems after step 20 was 0.7."""
        self._mark = ""
        self._is_alone = False
        """Whether the next number stands alone in its brackets."""
        self._repeated: Entry | None = None
        """What the last number was, if the next one may say it again, as in 12/512 (2.3%)."""
        self._may_count = False
        """Whether the next word may say what the last number counts, as in: return after 120 episodes."""

    def meet(self, kind: str, said: str) -> None:
        if kind == "words":
            if self._mark or self._repeated or self._may_count:
                said = self._after_number(said)
            self._said = f"{self._said} {said}"
        elif kind == "place":
            self._meet_number(said)
        elif kind == "mark":
            self._mark = said
        elif kind == "alone":
            self._is_alone = True
        elif kind == "end" or self._name or _aside(self._words):
            self._begin()

    @property
    def _words(self) -> list[str]:
        return WORD.findall(self._said)[-_MAX_WORDS:]

    def _after_number(self, said: str) -> str:
        """Return which words behind a mark or a number begin a new name."""
        word, _, others = said.partition(" ")
        is_used = self._mark == "=" or word.lower() in _NOTHING  # set=gsm8k
        if self._may_count and _is_counter(word):
            self.entries[-1] = Entry(_counter(word), is_counter=True)
            is_used = True
        if self._mark or self._repeated:
            self._begin()
        self._may_count = False
        return others if is_used else said

    def _meet_number(self, place: str) -> None:
        if place == _SKIPPED[1]:
            self.entries.append(None)
            return
        words = self._words
        name = self._name or words
        if words and words[-1].lower() in _VERBS and any(map(_is_metric, name)):
            self._mark = self._mark or "is"
            name = self._name or words[:-1]
        aside = words if self._name else _aside(words)
        if aside and not self._mark:
            self._name = self._name or words[: -len(aside)]
            self._said = ""
            self.entries.append(Entry(_counter(aside[-1]), is_counter=True) if _is_counter(aside[-1]) else None)
            self._may_count = self.entries[-1] is None and aside[0].lower() in _PLACES
            return
        entry = self._entry(name, place)
        if entry is None and not words and self._repeated:
            self.entries[-1] = None
            entry = self._repeated
        self._begin()
        self.entries.append(entry)
        self._may_count = entry is None and bool(words) and words[-1].lower() in _PLACES
        if entry and not entry.is_counter and place == _SHARE[1]:
            self._repeated = entry

    def _entry(self, words: list[str], place: str) -> Entry | None:
        """Return what a number behind these words is; None where they do not name it."""
        if not words:
            is_counter = not self._mark and (place == _SHARE[1] or self._is_alone)
            return Entry("/[]" if self._is_alone else "", is_counter=True) if is_counter else None
        word = words[-1]
        if _is_counter(word):
            if place == _SHARE[1] or not self._mark:
                return Entry(_counter(word), is_counter=True)
            words = words if self._mark == ":" else [word]
        is_marked = bool(self._mark) or self._is_boxed or _is_metric(word)
        if not is_marked and not any(map(_is_metric, words)):
            return None
        return Entry(" ".join(words[-_MAX_NAME_WORDS:])[:MAX_WORD], is_counter=False, is_marked=is_marked)


def _counter(word: str) -> str:
    return _COUNTERS_IN_SHORT.get(word.lower(), word.lower())
