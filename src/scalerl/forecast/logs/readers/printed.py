"""One line of console output: the values and the counters that it names.

A counter is a step, an epoch, N/M of a progress bar, or a value that counts, such as total_timesteps. What a line says
in a dict, as transformers prints them, is read as a dict; everything else by `readers/entries.py`.
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from scalerl.forecast.logs.frame import number
from scalerl.forecast.logs.readers.entries import COUNTED, WORD, Counters, Values, said_in, without_calls
from scalerl.forecast.logs.readers.objects import metrics_of
from scalerl.runfolder.json_text import parse_or_none

# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
MAX_RECORD = 60_000
_MAX_PROSE = 2_000
VERL = re.compile(r"(?<![\w/])step:\d{1,12} - ")
"""How verl's records begin."""
# 50%|###   | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]: behind a bar only 'name=value' is a value.
_BAR = re.compile(r"\d{1,3}%\|[^|]*+\|\s*+(\d{1,12})/(\d{1,12})")
_ASSIGNED = re.compile(r"[\w./@-]{1,200}=\s?[^\s,\]=]{1,64}")
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
# The rows of a table of prompts and answers, unless each is a name and its value: | loss | 0.1 | reward | 0.5 |
_TEXT_TABLE = re.compile(r"\s*([|\u2502\u2503\u2506])(?:[^|\u2502\u2503\u2506]*+\1){3,}\s*")
_PAIRS = re.compile(
    r"\s*([|\u2502\u2503])(?:\s*+[^\W\d][^|\u2502\u2503]*+\1\s*+[-+]?\d[\d.e+-]*+\s*+\1)++\s*", re.IGNORECASE
)

# A word, and the number behind it.
_TAG = re.compile(rf"((?<!\w){WORD.pattern})(?:[ =:#]{{1,3}}+(\d{{1,12}})(?:/\d{{1,12}})?+(?![.:/-]?\w))?+")
# total_timesteps: a value that counts.
_COUNTING = re.compile(rf"(?:.*[/_. ])?{COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_EVALUATING = re.compile(
    r"\b(?:evaluat|validat|testing)|\[eval\]|(?:^|[\]|>-]\s)[\s\[#*>=-]{0,8}+(?:eval|val|test)\b(?!/)", re.IGNORECASE
)
# What tells that a value is of an evaluation.
_NAMES_EVALUATION = re.compile(
    r"(?<![A-Za-z])(?:[Ee]val(?:s|uation)?|EVAL|[Vv]al(?:idation)?|VAL|[Tt]est|TEST|[Hh]eld_?out)(?![a-z])|^[Vv]alid(?![a-z])"
)
_BETWEEN_WORDS = re.compile(r"[^\w@]+")
_DICT_BEGINS = re.compile(r"\{\s*+['\"]")
_PYTHON = re.compile(r"\b(?:None|True|False|nan)\b")
_IN_JSON = {"None": "null", "True": "true", "False": "false", "nan": "NaN"}
_ITEM = re.compile(r"""['"]([^'"]{1,200})['"]\s*+:\s*+['"]?([-+\w.]{1,64})""")
# Characters before a dict that may name its step.
_MAX_TITLE = 200


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


def read_line(text: str, at: int = 0, speaker: str = "") -> Line:
    """Return what a line says."""
    line = _with_dict(text) or _with_entries(text)
    line.at = at
    line.speaker = speaker
    of_set = _EVALUATED.search(text) if "valuated" in text else None
    if of_set:
        line.values = {f"{of_set[1]}/{name.lower()}": value for name, value in line.values.items()}
    for name, value in line.values.items():
        if is_counting(name) and value.is_integer():
            line.counting[plainly(name)] = int(value)
    return line


def _with_entries(text: str) -> Line:
    """Return what a line says in names and numbers, and how far its progress bars are."""
    line = Line(text)
    line.is_verl = "step:" in text and VERL.search(text) is not None
    is_table = _TEXT_TABLE.fullmatch(text) is not None and not _PAIRS.fullmatch(text)
    if is_table or len(text) > (MAX_RECORD if line.is_verl else _MAX_PROSE):
        return line
    rest = ""
    begin = 0
    for bar in _BAR.finditer(text) if line.is_bar else ():
        line.counters[f"/{bar[2]}"] = int(bar[1])
        rest += f"{text[begin : bar.start()]} | "
        begin = bar.end()
    said = said_in(rest + (_assigned(text[begin:]) if rest else text))
    line.counters |= said.counters
    line.values = said.values
    line.shape = said.shape
    return line


def _assigned(text: str) -> str:
    """Return what is written as 'name=value' in a text, and nothing else."""
    return " | ".join(_ASSIGNED.findall(text))


def _with_dict(text: str) -> Line | None:
    """Return what a line says in a dict and before it, or beside it if it is one of several values; None without."""
    begin = text.find("{")
    end = text.rfind("}") + 1
    if begin < 0 or len(text) > MAX_RECORD or not _DICT_BEGINS.match(text, begin):
        return None
    values = _dict_values(text[begin:end])
    if not values:
        return None
    if text[begin - 1 : begin] == "=":  # step=3 metrics={...} hours=2
        beside = said_in(_assigned(f"{text[:begin]},{text[end:]}"))
        return Line(text, counters=beside.counters, values=beside.values | values, is_dict=True)
    title = said_in(text[max(begin - _MAX_TITLE, 0) : begin])
    return Line(text, counters=title.counters, values=values, is_dict=True)


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict; a tally of answers is the share of correct ones."""
    items = parse_or_none(text)
    if not isinstance(items, dict):
        plain = without_calls(text)
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
