"""One line of console output: the values and the counters that it names.

Three dialects:

    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)          verl
    {'loss': 0.1, 'reward': '0.4'}     Global step 12: {'reward': 0.4}            dicts, as transformers prints them
    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     - Avg Reward: 0.27

A counter is a step, an epoch, N/M of a progress bar, or a value that counts, such as total_timesteps.
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

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
# verl's records; what it prints beside them are prompts and answers.
VERL = re.compile(r"(?<![\w/])step:\d{1,12} - ")
# np.float64(0.5) and Array(0.5, dtype=float32), as values.
_WRAPPED = re.compile(rf"((?<=[:=,(\[])\s?){CALL}")
_IN_JSON = {"None": "null", "True": "true", "False": "false", "nan": "NaN"}
_DIGIT = re.compile(r"\d")
_DICT_BEGINS = re.compile(r"\{\s*+['\"]")
_PYTHON = re.compile(r"\b(?:None|True|False|nan)\b")
_ITEM = re.compile(r"""['"]([^'"]{1,200})['"]\s*+:\s*+['"]?([-+\w.]{1,64})""")
# A remark between a name and its value: average return (64 episodes): 0.7, mean reward over the last 64 episodes: 0.7.
_REMARK = re.compile(
    r"\s?(?:\((?=[^()]{0,60}[A-Za-z])[^()]{1,60}\)"
    r"|(?<=\w )(?:of|over|on|across|from|in|for|per)\s(?:the\s)?(?:last\s)?\d[\d,]{0,12}"
    r"\s(?:[A-Za-z-]{1,20}\s){0,2}[A-Za-z-]{1,20}s)"
    r"(?=(?:\s(?:at|after)\s(?:[A-Za-z]{2,10}\s\d{1,12}|\d{1,12}\s[A-Za-z]{2,10}))?\s?[:=]\s?[-+]?\.?\d)",
    re.IGNORECASE,
)
# A verb between what was measured and its value: the mean reward over 64 problems was 0.7.
_IS = re.compile(
    r"(?<![\w./@-])((?:rewards?|accuracy|acc|scores?|returns?|rate|pass@\d{1,4})\b[^:=|,;{}\n]{0,80}?)"
    r"\s(?:is|was|are|were|equals)\s(?=[-+]?\.?\d)",
    re.IGNORECASE,
)
_HAS_REMARK = re.compile(r"\(|\s(?:of|over|on|across|from|in|for|per)\s", re.IGNORECASE)
_HAS_VERB = re.compile(r"\s(?:is|was|are|were|equals)\s", re.IGNORECASE)
_HAS_PLACE = re.compile(r"\s(?:at|after)\s", re.IGNORECASE)
# A counter between a name and its value: reward at step 100: 0.7, return after 100 episodes = 0.7.
_AT = re.compile(
    r"(?<![\w./@-])(?P<name>[A-Za-z][\w./@-]{0,60}(?:\s[A-Za-z][\w./@-]{0,60}){0,2}?)\s(?:at|after)\s"
    r"(?:(?P<counter>[A-Za-z]{2,10})\s(?P<count>\d{1,12})|(?P<num>\d{1,12})\s(?P<counted>[A-Za-z]{2,10}))(?=\s?[:=]\s?[-+]?\.?\d)",
    re.IGNORECASE,
)
# A printed list of pairs: [('reward', 0.7), ('kl', 0.1)].
_PAIR = re.compile(r"[(\[]\s?['\"]([A-Za-z][^'\"()]{0,100})['\"]\s?,\s?([-+]?\.?\d[-+.\w]{0,40})\s?[)\]]")
# A list or an array of numbers under a name.
_LIST = re.compile(r"(?P<name>[\w./@-]\s{0,2}[:=]\s{0,2})\[(?P<cells>\s{0,8}[-+.\d][^\[\]A-DF-Za-df-z]{0,10000})\]")
# 50%|###   | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]: after a bar only 'name=value' is a value.
_BAR = re.compile(r"\d{1,3}%\|[^|]*+\|\s*+(\d{1,12})/(\d{1,12})")
_ASSIGNED = re.compile(r"[\w./@-]{1,200}=\s?[^\s,\]=]{1,64}")
WORD = re.compile(r"(?<!\w)[^\W\d][\w./@#+'-]*+")
# A word, and the number behind it.
_TAG = re.compile(rf"({WORD.pattern})(?:[ =:#]{{1,3}}+(\d{{1,12}})(?:/\d{{1,12}})?+(?![.:/-]?\w))?+")
# A name of up to four words and its number; they may have '|' between them, in a box, or 128/512 before a share.
_DIGITS = re.compile(r"(?<=[\w-])\d+")
_GAP = r"[^\w.+:=|\u2502;,\]-]*+"
_ENTRY = re.compile(
    r"\[(?P<step>\d{1,12})\]|(?<!\w)"
    rf"(?:(?P<name>(?:[^\W\d][\w./@#+'-]*+\s?+[^\w\s.+:=|\u2502;,\]-]*+){{1,4}}){_GAP}"
    rf"(?P<mark>[:=]|[|\u2502](?=\s*+[-+.\d]))?+{_GAP}(?:(?P<count>\d+/\d+) (?:= |(?=\()))?+{_GAP})?+"
    r"(?P<number>[-+]?(?:\.?\d(?:\s?/\s{0,12}(?=\d)|[\w.:/+-]|,(?=\d))*+(?:\s?%)?|(?:nan|inf)(?!\w)))(?:\s[sS]\b\.?)?",
    re.IGNORECASE,
)
# A row of a table of prompts and answers; a row of metrics is a name and its value.
_TEXT_TABLE = re.compile(r"\s*([|\u2502\u2503\u2506])(?:[^|\u2502\u2503\u2506]*+\1){3,}\s*")
# | loss | 0.1 | reward | 0.5 |
_PAIRS = re.compile(
    r"\s*([|\u2502\u2503])(?:\s*+[^\W\d][^|\u2502\u2503]*+\1\s*+[-+]?\d[\d.e+-]*+\s*+\1)++\s*", re.IGNORECASE
)
# The folder of a step: global_step_100, checkpoint-100.
_FOLDER = re.compile(r"(?<![^\W_])(?:step|iter|checkpoint|ckpt)[-_](\d{1,12})(?![\w.-])", re.IGNORECASE)
_OF = re.compile(r"(\d{1,12})\s*+/\s*+(\d{1,12})")
_COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(_COUNTED, re.IGNORECASE)
# total_timesteps: a value that counts.
_COUNTING = re.compile(rf"(?:.*[/_. ])?{_COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_METRIC = re.compile(
    r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|success|pass@\d+|loss|time)s?(?:[/_].*)?", re.IGNORECASE
)
_EVALUATING = re.compile(
    r"\b(?:evaluat|validat|testing)|\[eval\]|(?:^|[\]|>-]\s)[\s\[#*>=-]{0,8}+(?:eval|val|test)\b(?!/)", re.IGNORECASE
)
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
_CORRECT = re.compile(r"correct\b", re.IGNORECASE)


# What tells that a value, or what is said above it, is of an evaluation.
_NAMES_EVALUATION = re.compile(
    r"(?<![A-Za-z])(?:[Ee]val(?:s|uation)?|EVAL|[Vv]al(?:idation)?|VAL|[Tt]est|TEST|[Hh]eld_?out)(?![a-z])|^[Vv]alid(?![a-z])"
)
_BETWEEN_WORDS = re.compile(r"[^\w@]+")
_COUNTERS_IN_SHORT = {"ep": "episode", "iter": "iteration"}


@dataclass(eq=False)
class Line:
    """What a line says."""

    text: str
    counters: Counters
    values: Values
    is_dict: bool = False
    """Whether its values stand in a dict."""
    at: int = 0
    """Its number in the file."""
    speaker: str = ""
    """The process that printed it, if it says so."""
    counting: Counters = field(default_factory=dict)
    """The values that count."""
    shape: str = ""
    """Its words without the numbers: lines that a loop prints are alike. Dicts and lines of verl are anyway."""
    is_verl: bool = False

    @property
    def named(self) -> Counters:
        """All that counts."""
        return self.counters | self.counting

    @property
    def is_whole(self) -> bool:
        """Whether it needs no line above it: it is a dict, or names a step."""
        return self.is_dict or bool(self.counters or self.counting)

    @property
    def is_in_box(self) -> bool:
        return self.text.lstrip()[:1] in ("|", "\u2502")

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


def names_evaluation(name: str) -> bool:
    return _NAMES_EVALUATION.search(name) is not None


@lru_cache(maxsize=8192)
def plainly(name: str) -> str:
    """Return a name in lower case, with an underscore between its words."""
    return _BETWEEN_WORDS.sub("_", name).strip("_").lower()


def read_line(text: str, at: int = 0, speaker: str = "", is_cut: bool = False) -> Line:
    """Return what a line says; where it may be cut, its last value is left out."""
    line = _said(text, is_cut)
    line.at = at
    line.speaker = speaker
    if line.values:
        line.counting = {plainly(name): int(value) for name, value in line.values.items() if _counts(name, value)}
        if not line.is_dict and not line.is_verl:
            line.shape = " ".join(WORD.findall(_DIGITS.sub("", text)))
    return line


def _said(text: str, is_cut: bool) -> Line:
    if not _DIGIT.search(text):
        return Line(text, {}, {})
    if "{" in text and len(text) <= MAX_RECORD:
        line = _with_dict(text)
        if line:
            return line
    verl = VERL.search(text) if "step:" in text else None
    if verl:
        return Line(text, {}, _items(text[verl.start() : MAX_RECORD], is_cut), is_verl=True)
    if len(text) > _MAX_PROSE or (_TEXT_TABLE.fullmatch(text) and not _PAIRS.fullmatch(text)):
        return Line(text, {}, {})
    line = _behind_bars(text, is_cut) if "%|" in text else _entries(text, is_cut)
    line.text = text
    of_set = _EVALUATED.search(text) if "valuated" in text else None
    if of_set:
        line.values = {f"{of_set[1]}/{name.lower()}": value for name, value in line.values.items()}
    return line


def _with_dict(text: str) -> Line | None:
    """Return what a line with a dict says; None where it has no dict of numbers."""
    begin = text.find("{")
    end = text.rfind("}") + 1
    values = _dict_values(text[begin:end])
    if not values:
        return None
    before = text[max(begin - 200, 0) : begin]
    counters = _entries(before).counters if _DIGIT.search(before) else Counters()
    if text[begin - 1 : begin] == "=":  # one of several values, as in step=3 metrics={...} hours=2
        beside = _entries(" | ".join(_ASSIGNED.findall(f"{text[:begin]},{text[end:]}")))
        counters |= beside.counters
        values = beside.values | values
    return Line(text, counters, values, is_dict=True)


def _items(record: str, is_cut: bool) -> Values:
    """Return the values of a record of verl, as in 'step:12 - actor/loss:0.1'."""
    values = Values()
    items = record.split(" - ")
    for item in items[:-1] if is_cut else items:
        name, _, written = item.strip().rpartition(":")
        value = number(written)
        if value == value and name and " " not in name:
            values.setdefault(name[:MAX_WORD], value)
    return values


def _behind_bars(text: str, is_cut: bool) -> Line:
    """Return what stands around progress bars, and how far they are; behind one only 'name=value' is a value."""
    bars: Counters = {}
    rest = ""
    begin = 0
    for bar in _BAR.finditer(text):
        bars[f"/{bar[2]}"] = int(bar[1])
        rest += f"{text[begin : bar.start()]} | "
        begin = bar.end()
    if not bars:
        return _entries(text, is_cut)
    line = _entries(rest + " | ".join(_ASSIGNED.findall(text[begin:])), is_cut)
    line.counters = bars | line.counters
    return line


def _entries(text: str, is_cut: bool = False) -> Line:
    """Return counters and values in a text, the first of a name."""
    text = _said_plainly(text)
    line = Line(text, Counters(), Values())
    folder = _FOLDER.search(text) if "-" in text or "_" in text else None
    if folder:
        line.counters["checkpoint"] = int(folder[1])
    for entry in _ENTRY.finditer(text):
        step, name, mark, count, written = entry.groups()
        if step:
            line.counters.setdefault("/[]", int(step))  # [2000] loss=0.1
            continue
        words = _words(name or "")
        if words and text[entry.start() - 1 : entry.start()] == "=":
            words = words[1:]  # a=word b=0.1
        if mark == "=" and words and _is_counter(words[-1]):
            words = words[-1:]
        is_last = is_cut and entry.end() == len(text.rstrip())
        _take(line, words, mark or "", count or "", written.rstrip(".,: "), is_last)
    return line


def _take(line: Line, words: tuple[str, ...], mark: str, count: str, written: str, is_last: bool) -> None:
    """Take a name and its number as a counter or a value of a line; the last one of a cut line only as a counter."""
    name = words[-1] if words else ""
    is_counter = _is_counter(name)
    share = _OF.fullmatch(count if is_counter and count else written) if count or "/" in written else None
    if share and (is_counter or not name):
        line.counters.setdefault(_counter(name) or f"/{share[2]}", int(share[1]))
        return
    value = number(written) if written[-1:].isdigit() else _value(written)
    if share and int(share[2]):
        value = int(share[1]) / int(share[2])
    if is_last or not words or value != value:
        return
    if is_counter and value.is_integer() and not mark:
        line.counters.setdefault(_counter(name), int(value))
    elif mark or (line.counters and any(map(_is_metric, words))) or _is_metric(name) or _counts(name, value):
        line.values.setdefault(" ".join(words)[:MAX_WORD], value)


@lru_cache(maxsize=8192)
def _words(name: str) -> tuple[str, ...]:
    return tuple(WORD.findall(name))


@lru_cache(maxsize=8192)
def _is_counter(word: str) -> bool:
    return _COUNTER.fullmatch(word) is not None


@lru_cache(maxsize=8192)
def _is_metric(word: str) -> bool:
    return _METRIC.fullmatch(word) is not None


def _said_plainly(text: str) -> str:
    """Return a line in which lists, pairs, remarks and verbs are written as 'name: value'.

    Each pattern is tried only where a mark or a word of it stands: most lines of a long log have none.
    """
    if "[" in text:
        text = _LIST.sub(_mean_of_list, text)
    if "(" in text or "[" in text:
        text = _PAIR.sub(r" \1=\2", _WRAPPED.sub(r"\1\2", text))
    if _HAS_VERB.search(text):
        text = _IS.sub(r"\1: ", text)
    if _HAS_REMARK.search(text):
        text = _REMARK.sub("", text)
    if _HAS_PLACE.search(text):
        text = _AT.sub(_counter_first, text)
    return text


def _mean_of_list(match: re.Match[str]) -> str:
    """Return 'rewards=0.5' for 'rewards=[1.0, 0.0]', as lists and arrays print their numbers; other lists stay."""
    numbers = [number(cell) for cell in match["cells"].replace(",", " ").split()]
    if not numbers or any(each != each for each in numbers):
        return match[0]
    return f"{match['name']}{sum(numbers) / len(numbers):.10g}"


def _counter_first(match: re.Match[str]) -> str:
    """Return 'step 100 reward' for 'reward at step 100', where that is a counter."""
    counter = match["counter"] or match["counted"]
    count = match["count"] or match["num"]
    return f"{counter} {count} {match['name']}" if _COUNTER.fullmatch(counter) else match[0]


def _counter(word: str) -> str:
    return _COUNTERS_IN_SHORT.get(word.lower(), word.lower())


def _counts(name: str, value: float) -> bool:
    return value.is_integer() and is_counting(name)


@lru_cache(maxsize=8192)
def is_counting(name: str) -> bool:
    """Return whether a name is that of something that counts, such as total_timesteps."""
    return _COUNTING.fullmatch(name) is not None


def _value(word: str) -> float:
    """Return a number, milliseconds as seconds; NaN for a time of day, a date or a version."""
    word = word[:MAX_WORD].lower()
    if word.endswith("ms"):
        return number(word[:-2]) / 1000
    return number(word.removesuffix("s"))


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict; a tally of answers is the share of correct ones."""
    if not _DICT_BEGINS.match(text):
        return {}
    parsed = parse_or_none(text)
    values = Values()
    for name, value in (metrics_of(parsed) if isinstance(parsed, dict) else _python_items(text)).items():
        cell = number(value) if not isinstance(value, bool) else float("nan")
        if cell == cell:
            values[name] = cell
    return _share_of(values) or values


def _python_items(text: str) -> dict[str, Any]:
    """Return the items of a dict as Python prints it, or as many of them as can be told."""
    plain = _WRAPPED.sub(r"\1\2", text) if "(" in text else text
    parsed = parse_or_none(_PYTHON.sub(lambda word: _IN_JSON[word[0]], plain.replace("'", '"')))
    return metrics_of(parsed) if isinstance(parsed, dict) else dict(_ITEM.findall(plain))


def _share_of(tally: Values) -> Values:
    """Return the share of correct answers in a tally such as {'correct': 3, 'wrong': 1}; {} for other values."""
    correct = [count for name, count in tally.items() if _CORRECT.match(name)]
    total = sum(tally.values())
    if (
        not correct
        or not 1 < len(tally) < total
        or any(count < 0 or not count.is_integer() for count in tally.values())
    ):
        return {}
    return {"accuracy": sum(correct) / total, "num_samples": total}
