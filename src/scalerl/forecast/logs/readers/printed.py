"""One line of console output: the values and the counters that it names.

A line is its numbers and what stands between them. What stands between them is the same in every line that a loop
prints, so it is read once for all of them:

    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     step:12 - actor/loss:0.1 - acc/mean@1:0.5

A name has up to four words; ':', '=' or a verb stands between it and its value. A counter is a step, an epoch, N/M of a
progress bar, or a value that counts, such as total_timesteps. What a line says in a dict is read as a dict.
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from scalerl.forecast.logs.frame import CALL, number
from scalerl.forecast.logs.readers.objects import metrics_of
from scalerl.forecast.logs.readers.source import MAX_WORD
from scalerl.runfolder.json_text import parse_or_none

Values = dict[str, float]
Counters = dict[str, int]
"""Names in lower case; the counter of a bar is named by its end, as '/250'."""

# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
MAX_RECORD = 60_000
_MAX_PROSE = 2_000
VERL = re.compile(r"(?<![\w/])step:\d{1,12} - ")
"""How verl's records begin."""
_MAX_NAME_WORDS = 4

# What is written around numbers

# np.float64(0.5) and Array(0.5, dtype=float32), as values.
_CALLED = re.compile(rf"((?<=[:=,(\[])\s?){CALL}")
# [('reward', 0.7), ('kl', 0.1)]
_PAIRED = re.compile(r"(?<=\w)['\"]\s?,\s?(?=[-+]?\.?\d)")
# A list or an array of numbers under a name.
_LIST = re.compile(r"(?P<name>[\w./@-]\s{0,2}[:=]\s{0,2})\[(?P<cells>\s{0,8}[-+.\d][^\[\]A-DF-Za-df-z]{0,10000})\]")
# 50%|###   | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]: behind a bar only 'name=value' is a value.
_BAR = re.compile(r"\d{1,3}%\|[^|]*+\|\s*+(\d{1,12})/(\d{1,12})")
_ASSIGNED = re.compile(r"[\w./@-]{1,200}=\s?[^\s,\]=]{1,64}")
# The folder of a step: global_step_100, checkpoint-100.
_FOLDER = re.compile(r"(?<![^\W_])(?:step|iter|checkpoint|ckpt)[-_](\d{1,12})(?![\w.-])", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
# The rows of a table of prompts and answers, unless each is a name and its value: | loss | 0.1 | reward | 0.5 |
_TEXT_TABLE = re.compile(r"\s*([|\u2502\u2503\u2506])(?:[^|\u2502\u2503\u2506]*+\1){3,}\s*")
_PAIRS = re.compile(
    r"\s*([|\u2502\u2503])(?:\s*+[^\W\d][^|\u2502\u2503]*+\1\s*+[-+]?\d[\d.e+-]*+\s*+\1)++\s*", re.IGNORECASE
)

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
    rf"\0(?P<place>[./-])(?:\s[sS]\b)?|(?P<word>{WORD.pattern})|(?P<mark>[:=]|[|\u2502](?=\s*+\0[./]))"
    r"|(?P<alone>\[(?=\0\.\]))|(?P<open>\()|(?P<end>[.,;\]+|\u2502-]|\)(?=\s?[^\W\d])|\s{2,}+(?=[\w(]))"
)
# A word, and the number behind it.
_TAG = re.compile(rf"((?<!\w){WORD.pattern})(?:[ =:#]{{1,3}}+(\d{{1,12}})(?:/\d{{1,12}})?+(?![.:/-]?\w))?+")
_DIGITS = re.compile(r"(?<=[\w-])\d+")
_VERBS = frozenset(("is", "was", "are", "were", "equals"))
_NOTHING = frozenset(("nan", "inf", "none"))
_PLACES = frozenset(("at", "after"))
_ASIDES = _PLACES | {"of", "over", "on", "across", "from", "in", "for", "per"}

# Names

_COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(_COUNTED, re.IGNORECASE)
# total_timesteps: a value that counts.
_COUNTING = re.compile(rf"(?:.*[/_. ])?{_COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_METRIC = re.compile(
    r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|success|rate|pass@\d+|loss|time)s?(?:[/_].*)?", re.IGNORECASE
)
_EVALUATING = re.compile(
    r"\b(?:evaluat|validat|testing)|\[eval\]|(?:^|[\]|>-]\s)[\s\[#*>=-]{0,8}+(?:eval|val|test)\b(?!/)", re.IGNORECASE
)
# What tells that a value is of an evaluation.
_NAMES_EVALUATION = re.compile(
    r"(?<![A-Za-z])(?:[Ee]val(?:s|uation)?|EVAL|[Vv]al(?:idation)?|VAL|[Tt]est|TEST|[Hh]eld_?out)(?![a-z])|^[Vv]alid(?![a-z])"
)
_BETWEEN_WORDS = re.compile(r"[^\w@]+")
_COUNTERS_IN_SHORT = {"ep": "episode", "iter": "iteration"}
_SOURCE_FILES = (".py", ".cc", ".cpp", ".rs", ".go")


@dataclass(eq=False, slots=True)
class Line:
    """What a line says."""

    text: str
    at: int = 0
    """Its number in the file."""
    speaker: str = ""
    """The process that printed it, if it says so."""
    counters: Counters = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    is_dict: bool = False
    """Whether its values stand in a dict."""
    is_verl: bool = False
    counting: Counters = field(default_factory=dict)
    """The values that count."""
    shape: str = ""
    """Its words without the numbers: lines that a loop prints are alike. Dicts and lines of verl are anyway."""

    @property
    def named(self) -> Counters:
        """All that counts."""
        return self.counters | self.counting

    @property
    def is_sure(self) -> bool:
        """Whether it can be nothing else than a record."""
        return self.is_dict or self.is_verl

    @property
    def is_whole(self) -> bool:
        """Whether it needs no line above it: it is a dict, or names a step."""
        return self.is_dict or bool(self.counters or self.counting)

    @property
    def is_in_box(self) -> bool:
        return self.text.lstrip()[:1] in ("|", "\u2502")

    @property
    def is_rule(self) -> bool:
        """Whether it is a line of dashes."""
        return not self.text.strip(" -")

    @property
    def is_bar(self) -> bool:
        return "%|" in self.text

    @property
    def evaluates(self) -> bool:
        """Whether it speaks of evaluation, before its first value."""
        return _EVALUATING.search(self._before) is not None

    @property
    def _before(self) -> str:
        return self.text.partition(next(iter(self.values), "\n"))[0]

    @property
    def head(self) -> tuple[str, ...]:
        """Who printed it, and its words before the first value, as [trial 3] with a number that is not a step's."""
        words = [self.speaker]
        for word, its_number in _TAG.findall(self._before):
            words.append(word if is_counting(word) else f"{word} {its_number}".rstrip())
        return tuple(words)

    def of_evaluation(self) -> "Line":
        """Return the line with its values named as evaluations."""
        values = {name if names_evaluation(name) else f"eval/{name}": value for name, value in self.values.items()}
        return replace(self, values=values)


@lru_cache(maxsize=8192)
def names_evaluation(name: str) -> bool:
    return _NAMES_EVALUATION.search(name) is not None


@lru_cache(maxsize=8192)
def plainly(name: str) -> str:
    """Return a name in lower case, with an underscore between its words."""
    return _BETWEEN_WORDS.sub("_", name).strip("_").lower()


@lru_cache(maxsize=8192)
def is_counting(name: str) -> bool:
    """Return whether a name is that of something that counts, such as total_timesteps."""
    return _COUNTING.fullmatch(name) is not None


@lru_cache(maxsize=8192)
def _is_counter(word: str) -> bool:
    return _COUNTER.fullmatch(word) is not None


@lru_cache(maxsize=8192)
def _is_metric(word: str) -> bool:
    return _METRIC.fullmatch(word) is not None


def read_line(text: str, at: int = 0, speaker: str = "", is_cut: bool = False) -> Line:
    """Return what a line says; where it may be cut, its last value is left out."""
    line = Line(text, at, speaker)
    begin = text.find("{")
    if begin >= 0 and len(text) <= MAX_RECORD:
        _take_dict(line, begin)
    if not line.is_dict:
        line.is_verl = "step:" in text and VERL.search(text) is not None
        is_table = _TEXT_TABLE.fullmatch(text) is not None and not _PAIRS.fullmatch(text)
        if not is_table and len(text) <= (MAX_RECORD if line.is_verl else _MAX_PROSE):
            line.shape = _take_entries(line, _without_bars(line), is_cut=is_cut)
    of_set = _EVALUATED.search(text) if "valuated" in text else None
    if of_set:
        line.values = {f"{of_set[1]}/{name.lower()}": value for name, value in line.values.items()}
    for name, value in line.values.items():
        if is_counting(name) and value.is_integer():
            line.counting[plainly(name)] = int(value)
    return line


# Entries: names with their numbers


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
    checkpoint: int | None
    """The step in the name of its folder."""


def _take_entries(line: Line, text: str, *, is_cut: bool = False) -> str:
    """Take the counters and values in a text, the first of a name; return its shape."""
    if "[" in text:
        text = _LIST.sub(_mean_of_list, text)
    if "(" in text:
        text = _PAIRED.sub("=", _CALLED.sub(r"\1\2", text))
    parts = _NUMERAL.split(text)
    numerals = parts[1::2]
    shares = [_OF.fullmatch(numeral) if "/" in numeral else None for numeral in numerals]
    parts[1::2] = [_SHARE if share else _NUMBER for share in shares]
    form = _form("".join(parts))
    if form.checkpoint is not None:
        line.counters["checkpoint"] = form.checkpoint
    last = len(numerals) - 1 if is_cut and not parts[-1].strip() else -1
    for at, entry in enumerate(form.entries):
        if entry is None:
            continue
        share = shares[at]
        value = float(share[1]) if share else _value(numerals[at].rstrip(".,: "))
        total = float(share[2]) if share else 1.0
        if entry.is_counter:
            if value.is_integer():
                line.counters.setdefault(entry.name or f"/{total:.0f}", int(value))
        elif at != last and value == value and total and (entry.is_marked or line.counters):
            line.values.setdefault(entry.name, value / total)
    return form.shape


@lru_cache(maxsize=4096)
def _form(between: str) -> Form:
    """Return what the numbers of a line are, from what stands between them."""
    reader = _Reader(is_boxed=between.lstrip()[:1] in ("|", "\u2502"))
    for token in _TOKEN.finditer(_REMARK.sub(_only_places, between)):
        kind = str(token.lastgroup)
        reader.meet(kind, token[kind])
    shape = " ".join(WORD.findall(_DIGITS.sub("", between)))
    return Form(tuple(reader.entries), shape, reader.checkpoint)


def _only_places(remark: re.Match[str]) -> str:
    """Return the places of the numbers in a remark before a value, as in 'accuracy (500 problems): 0.61'."""
    return _SKIPPED * remark[0].count("\0")


class _Reader:
    """Reads what stands between numbers, word by word."""

    def __init__(self, *, is_boxed: bool) -> None:
        self.entries: list[Entry | None] = []
        self.checkpoint: int | None = None
        self._is_boxed = is_boxed
        self._begin()

    def _begin(self) -> None:
        """Begin with a new name."""
        self._name: list[str] = []
        self._aside: list[str] = []
        """What follows 'over', 'at' and the like, as in: reward over 64 problems after step 20 was 0.7."""
        self._has_number = False
        """Whether a number stands there, so that it is no part of the name."""
        self._mark = ""
        self._is_alone = False
        """Whether the next number stands alone in its brackets."""
        self._repeated: Entry | None = None
        """What the last number was, if the next one may say it again, as in 12/512 (2.3%)."""
        self._may_count = False
        """Whether the next word may say what the last number counts, as in: return after 120 episodes."""

    def meet(self, kind: str, said: str) -> None:
        if kind == "word":
            self._meet_word(said)
        elif kind == "place":
            self._meet_number(said)
        elif kind == "mark":
            self._mark = said
        elif kind == "alone":
            self._is_alone = True
        elif kind == "end" or self._aside:
            self._begin()

    def _meet_word(self, word: str) -> None:
        if self._may_count and _is_counter(word):
            self.entries[-1] = Entry(_counter(word), is_counter=True)
        self._may_count = False
        is_value = self._mark == "="  # as in set=gsm8k
        if self._mark or self._repeated:
            self._begin()
        folder = _FOLDER.search(word)
        if folder:
            self.checkpoint = int(folder[1])
        if is_value or word.lower() in _NOTHING:
            return
        if word.lower() in _VERBS and any(map(_is_metric, self._name)):
            self._mark = word
        elif self._aside or (self._name and word.lower() in _ASIDES):
            self._aside.append(word)
        else:
            self._name.append(word)

    def _meet_number(self, place: str) -> None:
        if place == _SKIPPED[1]:
            self.entries.append(None)
        elif self._aside and not self._mark:
            self._meet_number_aside()
        else:
            words = self._name if self._has_number else self._name + self._aside
            entry = self._entry(words, place)
            if entry is None and not words and self._repeated:
                self.entries[-1] = None
                entry = self._repeated
            self._begin()
            self.entries.append(entry)
            if entry and not entry.is_counter and place == _SHARE[1]:
                self._repeated = entry

    def _meet_number_aside(self) -> None:
        word = self._aside[-1]
        self.entries.append(Entry(_counter(word), is_counter=True) if _is_counter(word) else None)
        self._may_count = self.entries[-1] is None and self._aside[0].lower() in _PLACES
        self._has_number = True

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


def _mean_of_list(match: re.Match[str]) -> str:
    """Return 'rewards=0.5' for 'rewards=[1.0, 0.0]', as lists and arrays print their numbers; other lists stay."""
    numbers = [number(cell) for cell in match["cells"].replace(",", " ").split()]
    if not numbers or any(each != each for each in numbers):
        return match[0]
    return f"{match['name']}{sum(numbers) / len(numbers):.10g}"


def _without_bars(line: Line) -> str:
    """Return a line without progress bars, which say how far it is; behind one only 'name=value' is kept."""
    rest = ""
    begin = 0
    for bar in _BAR.finditer(line.text) if line.is_bar else ():
        line.counters[f"/{bar[2]}"] = int(bar[1])
        rest += f"{line.text[begin : bar.start()]} | "
        begin = bar.end()
    return rest + " | ".join(_ASSIGNED.findall(line.text[begin:])) if begin else line.text


def _counter(word: str) -> str:
    return _COUNTERS_IN_SHORT.get(word.lower(), word.lower())


def _value(numeral: str) -> float:
    """Return a number, milliseconds as seconds; NaN for a time of day, a date or a version."""
    if numeral[-1:].isdigit():
        return number(numeral)
    word = numeral[:MAX_WORD].lower()
    if word.endswith("ms"):
        return number(word[:-2]) / 1000
    return number(word.removesuffix("s"))


# Dicts

_DICT_BEGINS = re.compile(r"\{\s*+['\"]")
_PYTHON = re.compile(r"\b(?:None|True|False|nan)\b")
_IN_JSON = {"None": "null", "True": "true", "False": "false", "nan": "NaN"}
_ITEM = re.compile(r"""['"]([^'"]{1,200})['"]\s*+:\s*+['"]?([-+\w.]{1,64})""")
# Characters before a dict that may name its step.
_MAX_TITLE = 200


def _take_dict(line: Line, begin: int) -> None:
    """Take the numbers in a dict, and the counters before it; what stands beside it, if it is one of several values."""
    text = line.text
    end = text.rfind("}") + 1
    if not _DICT_BEGINS.match(text, begin):
        return
    values = _dict_values(text[begin:end])
    if not values:
        return
    line.is_dict = True
    beside = Line(text)
    if text[begin - 1 : begin] == "=":  # step=3 metrics={...} hours=2
        _take_entries(beside, " | ".join(_ASSIGNED.findall(f"{text[:begin]},{text[end:]}")))
        line.values = beside.values
    else:
        _take_entries(beside, text[max(begin - _MAX_TITLE, 0) : begin])
    line.counters = beside.counters
    line.values |= values


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict; a tally of answers is the share of correct ones."""
    items = parse_or_none(text)
    if not isinstance(items, dict):
        plain = _CALLED.sub(r"\1\2", text) if "(" in text else text
        items = parse_or_none(_PYTHON.sub(lambda word: _IN_JSON[word[0]], plain.replace("'", '"')))
        items = items if isinstance(items, dict) else dict(_ITEM.findall(plain))
    values = Values()
    for name, cell in metrics_of(items).items():
        value = number(cell)
        if value == value and not isinstance(cell, bool):
            values[name] = value
    return _share_of(values) or values


def _share_of(tally: Values) -> Values:
    """Return the share of correct answers in a tally such as {'correct': 3, 'wrong': 1}; {} for other values."""
    correct = [count for name, count in tally.items() if name.lower().startswith("correct")]
    total = sum(tally.values())
    are_counts = all(count >= 0 and count.is_integer() for count in tally.values())
    if not correct or not are_counts or not 1 < len(tally) < total:
        return {}
    return {"accuracy": sum(correct) / total, "num_samples": total}
