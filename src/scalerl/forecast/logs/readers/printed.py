"""One line of console output: the values and the counters that it names.

Three dialects:

    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)          verl
    {'loss': 0.1, 'reward': '0.4'}     Global step 12: {'reward': 0.4}            dicts, as transformers prints them
    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     - Avg Reward: 0.27

A counter is a step, an epoch, N/M of a progress bar, or a value that counts, such as total_timesteps.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scalerl.forecast.logs.columns import is_evaluation, is_rate, plain, reward_rank, with_role
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
_IN_JSON = {"'": '"', "None": "null", "True": "true", "False": "false", "nan": "NaN"}
_PYTHON = re.compile(r"'|\b(?:None|True|False|nan)\b")
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
# A cell of such a table that names what was evaluated; a prompt has blanks.
_TASK = re.compile(r"[A-Za-z][\w./@+-]{0,60}")
_ROW = re.compile(r"\s*[|\u2502\u2503](.*)[|\u2502\u2503\u2506]\s*")
_FRAME = re.compile(r"[|\u2502\u2503\u2506]")
# | loss | 0.1 | reward | 0.5 |
_PAIRS = re.compile(
    r"\s*([|\u2502\u2503])(?:\s*+[^\W\d][^|\u2502\u2503]*+\1\s*+[-+]?\d[\d.e+-]*+\s*+\1)++\s*", re.IGNORECASE
)
# The folder of a step: global_step_100, checkpoint-100.
_FOLDER = re.compile(r"(?<![^\W_])(?:step|iter|checkpoint|ckpt)[-_](\d{1,12})(?![\w.-])", re.IGNORECASE)
_UNIT = re.compile(r"(.*?)(ms|s|)", re.IGNORECASE)
_OF = re.compile(r"(\d{1,12})\s*+/\s*+(\d{1,12})")
_COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(_COUNTED, re.IGNORECASE)
# total_timesteps: a value that counts.
COUNTING = re.compile(rf"(?:.*[/_. ])?{_COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_METRIC = re.compile(
    r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|success|pass@\d+|loss|time)s?(?:[/_].*)?", re.IGNORECASE
)
_EVALUATING = re.compile(
    r"\b(?:evaluat|validat|testing)|\[eval\]|(?:^|[\]|>-]\s)[\s\[#*>-]{0,8}+(?:eval|val|test)\b(?!/)", re.IGNORECASE
)
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
_CORRECT = re.compile(r"correct\b", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def counting(self) -> Counters:
        """The values that count."""
        return {plain(name): int(value) for name, value in self.values.items() if _counts(name, value)}

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
    def shape(self) -> str:
        """Its words without the numbers: lines that a loop prints are alike. Dicts and lines of verl are anyway."""
        return "" if self.is_dict or VERL.search(self.text) else " ".join(WORD.findall(_DIGITS.sub("", self.text)))

    @property
    def head(self) -> tuple[str, ...]:
        """Who printed it, and its words before the first value, as [trial 3] with a number that is not a step's."""
        tags = ((word, "" if COUNTING.fullmatch(word) else number) for word, number in _TAG.findall(self._before))
        return (self.speaker, *(f"{word} {number}".rstrip() for word, number in tags))

    def of_evaluation(self) -> "Line":
        """Return the line with its values named as evaluations."""
        values = {name if is_evaluation(name) else f"eval/{name}": value for name, value in self.values.items()}
        return replace(self, values=values)


def read_line(text: str, at: int = 0, speaker: str = "", is_cut: bool = False) -> Line:
    """Return what a line says; where it may be cut, its last value is left out."""
    return replace(_said(text, is_cut), at=at, speaker=speaker)


def cells_of(text: str) -> list[str]:
    """Return the cells of a row of a table; [] for another line."""
    row = _ROW.fullmatch(text) if len(text) <= _MAX_PROSE else None
    return [cell.strip(" *`") for cell in _FRAME.split(row[1])] if row else []


def evaluated(names: list[str], cells: list[str]) -> str:
    """Return the row of a table of an evaluation as 'gsm8k/accuracy: 0.5, ...'; "" for one of another table.

    Its first cell names what was evaluated, and one word more may name the metric of a column of values.
    """
    if len(names) != len(cells) or len(cells) < 3 or not _TASK.fullmatch(cells[0]):
        return ""
    said = dict(zip(names, cells, strict=True))
    metrics, values = with_role(names, "metric"), with_role(names, "value")
    if metrics[:1] and values[:1]:
        said = {said[metrics[0]]: said[values[0]]}
    said = {name: value for name, value in said.items() if reward_rank(name) and number(value) == number(value)}
    return ", ".join(f"{cells[0]}/{name.replace(' ', '_')}: {value}" for name, value in said.items())


def _said(text: str, is_cut: bool) -> Line:
    if not re.search(r"\d", text):
        return Line(text, {}, {})
    begin, verl = text.find("{"), VERL.search(text)
    if begin >= 0 and len(text) <= MAX_RECORD and (values := _dict_values(text[begin:])):
        before = _entries(text[max(begin - 200, 0) : begin])
        # An object that is one of several values, as in step=3 metrics={...} hours=2, stands among them.
        around = text[:begin] + "," + text[text.rfind("}") + 1 :] if text[begin - 1 : begin] == "=" else ""
        beside = _entries(" | ".join(_ASSIGNED.findall(around)))
        return Line(text, before.counters | beside.counters, {**beside.values, **values}, is_dict=True)
    if len(text) > (MAX_RECORD if verl else _MAX_PROSE) or (_TEXT_TABLE.fullmatch(text) and not _PAIRS.fullmatch(text)):
        return Line(text, {}, {})
    *before, after = _BAR.split(text)[::3]
    bars = {f"/{end}": int(at) for at, end in _BAR.findall(text)}
    plainly = text[verl.start() :] if verl else " | ".join([*before, *_ASSIGNED.findall(after)]) if bars else text
    line = _entries(plainly, is_cut)
    of_set = _EVALUATED.search(text)
    values = {f"{of_set[1]}/{name.lower()}": value for name, value in line.values.items()} if of_set else line.values
    return Line(text, bars | line.counters, values)


def _entries(text: str, is_cut: bool = False) -> Line:
    """Return counters and values in a text, the first of a name."""
    text = _said_plainly(text)
    counters, values = Counters(), Values()
    if folder := _FOLDER.search(text):
        counters["checkpoint"] = int(folder[1])
    for entry in _ENTRY.finditer(text):
        if entry["step"]:
            counters.setdefault("/[]", int(entry["step"]))  # [2000] loss=0.1
            continue
        words = WORD.findall(entry["name"] or "")
        words = words[1:] if text[entry.start() - 1 : entry.start()] == "=" else words  # a=word b=0.1
        words = words[-1:] if entry["mark"] == "=" and words and _COUNTER.fullmatch(words[-1]) else words
        name, written = (words or [""])[-1], entry["number"].rstrip(".,: ")
        is_counter = _COUNTER.fullmatch(name) is not None
        count = _OF.fullmatch((is_counter and entry["count"]) or written)
        if count and (is_counter or not name):
            counters.setdefault(_counter(name) or f"/{count[2]}", int(count[1]))
        is_last = is_cut and entry.end() == len(text.rstrip())
        is_share = count and words and is_rate(words[-1]) and int(count[2]) > 0
        share = int(count[1]) / int(count[2]) if count and is_share else float("nan")
        value = float("nan") if is_last else share if count else _value(written)
        if value != value or not words:
            continue
        if is_counter and value.is_integer() and not entry["mark"]:
            counters.setdefault(_counter(name), int(value))
        elif entry["mark"] or any(map(_METRIC.fullmatch, words)) or _counts(name, value):
            values.setdefault(" ".join(words)[:MAX_WORD], value)
    return Line(text, counters, values)


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
    text = _REMARK.sub("", text)
    if _HAS_PLACE.search(text):
        text = _AT.sub(_counter_first, text)
    return text


def _mean_of_list(match: re.Match[str]) -> str:
    """Return 'rewards=0.5' for 'rewards=[1.0, 0.0]', as lists and arrays print their numbers; other lists stay."""
    cells = match["cells"].replace(",", " ").split()
    numbers = [number(cell) for cell in cells]
    if not cells or any(each != each for each in numbers):
        return match[0]
    return f"{match['name']}{sum(numbers) / len(numbers):.10g}"


def _counter_first(match: re.Match[str]) -> str:
    """Return 'step 100 reward' for 'reward at step 100', where that is a counter."""
    counter, count = match["counter"] or match["counted"], match["count"] or match["num"]
    return f"{counter} {count} {match['name']}" if _COUNTER.fullmatch(counter) else match[0]


def _counter(word: str) -> str:
    return {"ep": "episode", "iter": "iteration"}.get(word.lower(), word.lower())


def _counts(name: str, value: float) -> bool:
    return value.is_integer() and COUNTING.fullmatch(name) is not None


def _value(word: str) -> float:
    """Return a number, milliseconds as seconds; NaN for a time of day, a date or a version."""
    match = _UNIT.fullmatch(word[:MAX_WORD])
    return number(match[1]) / (1000 if match[2].lower() == "ms" else 1) if match else float("nan")


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict that begins here; a tally of answers is the share of correct ones."""
    text = text[: text.rfind("}") + 1]
    if not re.match(r"\{\s*+['\"]", text):
        return {}
    plainly = _WRAPPED.sub(r"\1\2", text)
    parsed = parse_or_none(text) or parse_or_none(_PYTHON.sub(lambda word: _IN_JSON[word[0]], plainly))
    items: Iterable[tuple[str, Any]] = metrics_of(parsed).items() if parsed else _ITEM.findall(plainly)
    values = {name: number(value) for name, value in items if not isinstance(value, bool)}
    values = {name: value for name, value in values.items() if value == value}
    correct = [value for name, value in values.items() if _CORRECT.match(name)]
    counts, total = [*values.values()], sum(values.values())
    is_tally = correct and len(counts) > 1 < total and all(count.is_integer() and count >= 0 for count in counts)
    return {"accuracy": sum(correct) / total, "num_samples": total} if is_tally else values
