"""Console output of trainers: the records in it, picked out of everything else that is printed.

Three dialects:

    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)          verl: where it is spoken, alone
    {'loss': 0.1, 'reward': '0.4'}     Global step 12: {'reward': 0.4}            dicts, as transformers prints them
    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     - Avg Reward: 0.27

A line gives values, names counters (step, epoch, N/M of a progress bar) or speaks of evaluation. Values that follow
each other belong to one record until a name comes again or a named counter moves; a progress bar ends nothing. Which
counter is the step of the log is decided once, by what it does: it rises from record to record. Without one the records
are counted. Lines whose words come only once are prose. Colours, NUL bytes and the prefixes of Ray are ignored.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.columns import ROLES, is_evaluation, plain, reward_rank
from scalerl.logs.frame import Placed, number
from scalerl.logs.objects import metrics_of
from scalerl.logs.source import MAX_WORD, Source

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RAY = re.compile(r"\s{0,20}\((?:\S{1,80} )?pid=\d{1,12}[^)]{0,80}\)\s?|")
_WRAPPER = re.compile(r"\b(?:(?:np|numpy|torch|jnp)\.\w{1,16}|tensor)\(")
_VERL = re.compile(r"(?<![\w/])step:(\d{1,12}) - ")
_ITEM = re.compile(r"""['"]([^'"]{1,200})['"]\s*+:\s*+['"]?([-+\w.]{1,64})""")
# 50%|###   | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]: after a bar only 'name=value' is a value.
_BAR = re.compile(r"\d{1,3}%\|[^|]*+\|\s*+(\d{1,12})/(\d{1,12})")
_ASSIGNED = re.compile(r"[\w./@-]{1,200}=\s?[^\s,\]=]{1,64}")
# A name and its number may have '|' between them, in a box.
_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:\.?\d(?:[\w.:/+-]|,(?=\d))*+(?:\s?%)?|(?:nan|inf)(?!\w)))"
    r"|(?P<word>[^\W\d][\w./@#+'-]*+)|(?P<mark>[:=]|[|\u2502](?=\s*+[-+.\d]))"
    r"|(?P<end>[|\u2502;,\]]|\s-\s|\s\s(?!\s*+[-+.\d|\u2502]))",
    re.IGNORECASE,
)
_UNIT = re.compile(r"(.*?)(ms|s|)", re.IGNORECASE)
_OF = re.compile(r"(\d{1,12})/(\d{1,12})")
_COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(_COUNTED, re.IGNORECASE)
# total_timesteps: a value that counts.
_COUNTING = re.compile(rf"(?:.*[/_. ])?{_COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_METRIC = re.compile(r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|loss|time)s?(?:[/_].*)?", re.IGNORECASE)
_EVALUATING = re.compile(r"\b(?:evaluat|validat|testing)|\[eval\]", re.IGNORECASE)
_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
_CORRECT = re.compile(r"correct\b", re.IGNORECASE)

_MAX_WORDS = 4  # in a name
# The share of records at which a counter that they do not name themselves rises, if it is their step.
_MIN_RISES = 0.2
# A counter that rises less often than another by this is printed now and then, as in the title of a table.
_MANY_RISES = 0.8
# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
_MAX_RECORD = 60_000
_MAX_PROSE = 2_000
_ORDER = (*ROLES["step"], *ROLES["coarse"])

Lines = list[tuple[int, str]]
Values = dict[str, float]
Counters = dict[str, int]


@dataclass(slots=True)
class Record:
    """Values that belong together, and where every counter stood."""

    line: int
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far; those of bars are named by their end, as '/250'."""
    named: set[str]
    """Counters that its own lines name."""
    words: str = ""
    """The words of its first line, which tell prose from records; a dict has none."""


def console_rows(source: Source) -> Placed | None:
    """Return one row per record, with its step; None if the text holds no dict and not two other records."""
    lines = list(_lines(source))
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    records = [*_verl_records(lines, is_open)] or _without_prose([*_records(lines, is_open, source)])
    if len(records) > 1 or (records and not records[0].words):
        steps, origin = _steps(records)
        source.note("lines_taken", num=len(records), num_lines=lines[-1][0], origin=origin)
        return [(f"line {record.line}", _row(record, step)) for record, step in zip(records, steps, strict=True)]
    longest = max((len(word) for _, line in lines for word in line.split()), default=0)
    if longest > MAX_WORD:
        raise InputError(
            f"{source.path} holds a word of {longest:,} characters, and {MAX_WORD:,} is the limit: remove it."
        )
    return None


def _row(record: Record, step: int) -> dict[str, float]:
    coarse = {name: float(record.counters[name]) for name in ROLES["coarse"] if name in record.counters}
    return {**coarse, **record.values, "step": step}


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for at, line in enumerate(source.text.replace("\0", "").split("\n"), start=1):
        source.spend()
        for part in _ESCAPES.sub("", line).split("\r"):
            if part.strip():
                yield at, _RAY.sub("", part[:200], count=1) + part[200:]


def _without_prose(records: list[Record]) -> list[Record]:
    """Return the records without lines that have no other like them, if most lines have."""
    like = Counter(record.words for record in records)
    common = [record for record in records if like[record.words] > 1 or not record.words]
    return common if 2 * len(common) > len(records) else records


def _steps(records: list[Record]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from: the counter that rises from record to record.

    Only records of training are asked: those with the reward, or else the value, that most of them have.
    """
    names = Counter(
        name
        for record in records
        for name in record.values
        if not is_evaluation(name) and not _COUNTING.fullmatch(name)
    )
    main = max(names, key=lambda name: (reward_rank(name) is not None, names[name]), default="")
    training = [record for record in records if main in record.values] or records
    named = Counter(name for record in training for name in record.named)
    seen = {name: [record.counters.get(name, 0) for record in training] for name in training[-1].counters}
    rises = {name: sum(map(int.__lt__, each, each[1:])) for name, each in seen.items()}
    # A bar that is drawn after the first record lags behind.
    usable = [
        name
        for name in rises
        if 2 * named[name] > len(training)
        or (rises[name] >= _MIN_RISES * len(training) and seen[name][0] > (name[0] != "/") - 1)
    ]
    usable = [name for name in usable if rises[name] >= _MANY_RISES * max(map(rises.__getitem__, usable))]
    if not usable:
        return [*itertools.accumulate(int(main in record.values) for record in records)], "the number of the record"
    order = {name: _ORDER.index(plain(name)) if plain(name) in _ORDER else len(_ORDER) for name in usable}
    step = min(usable, key=lambda name: (2 * named[name] <= len(training), order[name], name))
    given = [record.counters.get(step, 0) for record in records]
    context = "that of the progress bar" if step[0] == "/" else "that of the line before"
    return given, "in the line" if 2 * named[step] > len(training) else context


# Records


def _verl_records(lines: Lines, is_open: bool) -> Iterator[Record]:
    """Yield the records of verl's dialect. Where the last line may be cut, its last value is left out."""
    for at, (line_number, line) in enumerate(lines):
        head = _VERL.search(line[:_MAX_RECORD])
        parts = line[head.end() : _MAX_RECORD].split(" - ") if head else []
        pairs = [part.rpartition(":") for part in parts[: -1 if is_open and at == len(lines) - 1 else None]]
        values = {
            name.strip(): number(_WRAPPER.sub("", text).rstrip(") \t"))
            for name, _, text in pairs
            if 0 < len(name) <= MAX_WORD
        }
        known = {name: value for name, value in values.items() if value == value}
        if head and known:
            yield Record(line_number, known, {"step": int(head[1])}, {"step"})


def _records(lines: Lines, is_open: bool, source: Source) -> Iterator[Record]:
    """Yield what the lines record. Where the last line may be cut, its last value and its block are left out."""
    record, context, in_block, evaluates, is_bare = None, Counters(), False, False, False
    for at, (line_number, line) in enumerate(lines):
        source.spend()
        if len(line) > (_MAX_RECORD if "{" in line else _MAX_PROSE):
            continue
        is_bar, is_cut = "%|" in line, is_open and at == len(lines) - 1
        counters, values, num_words = _read(line, is_cut)
        is_bare = not counters and num_words == 0 and len(values) == 1
        counting = {plain(name): int(value) for name, value in values.items() if _counts(name, value)}
        speaks = _EVALUATING.search(line.partition(next(iter(values)))[0] if values else line) is not None
        is_block = is_bare and (in_block or line.lstrip()[:1] in "|\u2502")
        if "{" not in line and not (counters or is_block or speaks or (counting and not is_bare) or _evaluates(values)):
            values = {}
        before, context = context, context | counters | counting
        if not values:
            # A bar ends nothing, and neither does a heading that repeats the step, as in the box of an evaluation.
            is_heading = not is_bar or any(name[0] != "/" for name in counters)
            begins = ((evaluates and context == before) or speaks) and not _TRAINING.search(line)
            evaluates = begins if is_heading else evaluates
            in_block = in_block or evaluates or (is_heading and bool(counters))
            continue
        if speaks or (evaluates and not counters):
            values = {name if is_evaluation(name) else f"eval/{name}": value for name, value in values.items()}
        named = {*counters, *counting}
        if record and is_bar and record.named == named and record.counters == context:
            record.values |= values  # a bar is drawn again and again while its step stays
        elif record and record.values.keys().isdisjoint(values) and _agree(record, context, counting):
            record.values |= values
            record.named |= named
            record.counters |= context
        else:
            yield from [record] if record else []
            words = [token[0] for token in _TOKEN.finditer(line) if token.lastgroup == "word"]
            record = Record(line_number, values, context, named, " ".join(words) if "{" not in line else "")
        in_block, evaluates = in_block and is_bare, evaluates and is_bare
    if record and not (is_open and is_bare):
        yield record


def _agree(record: Record, now: Counters, counting: Counters) -> bool:
    """Return whether no named counter has moved since a record began, except those that it has not named itself."""
    moved = [name for name, count in record.counters.items() if now[name] != count and name[0] != "/"]
    return all(name in counting and name not in record.named for name in moved)


def _counts(name: str, value: float) -> bool:
    return value.is_integer() and _COUNTING.fullmatch(name) is not None


def _evaluates(names: Iterable[str]) -> bool:
    return any(is_evaluation(name) and reward_rank(name) for name in names)


# One line


def _read(line: str, is_cut: bool) -> tuple[Counters, Values, int]:
    """Return the counters that a line names, its values, and the number of words that name neither."""
    begin = line.find("{")
    if begin >= 0 and (values := _dict_values(line[begin:])):
        return _tokens(line[max(begin - 200, 0) : begin])[0], values, 1
    if len(line) > _MAX_PROSE:
        return {}, {}, 1
    *before, after = _BAR.split(line)[::3]
    bars = {f"/{end}": int(at) for at, end in _BAR.findall(line)}
    counters, values, num_words = _tokens(" | ".join([*before, *_ASSIGNED.findall(after)]) if bars else line, is_cut)
    if of_set := _EVALUATED.search(line):
        values = {f"{of_set[1]}/{name.lower()}": value for name, value in values.items()}
    return bars | counters, values, num_words


def _tokens(text: str, is_cut: bool = False) -> tuple[Counters, Values, int]:
    """Return counters and values in a text, the first of a name, and the number of words that name neither."""
    counters, values, num_words = Counters(), Values(), 0
    words: list[str] = []
    is_marked = False
    text = _WRAPPER.sub("", text)
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token[0].strip(" .,:")
        if kind == "mark":
            is_marked = bool(words)
            continue
        if kind == "word":
            num_words += len(words) * is_marked
            words = [word] if is_marked else [*words, word]
            is_marked = False
            continue
        name, count = words[-1] if words else "", _OF.fullmatch(word)
        is_bracketed = text[token.start() - 1 : token.start()] == "[" and text[token.end() : token.end() + 1] == "]"
        if not words and is_bracketed and word.isdecimal():
            counters.setdefault("/[]", int(word[:12]))  # [2000] loss=0.1
        is_counter = _COUNTER.fullmatch(name) is not None
        value = (
            _value(word) if kind == "number" and not (is_cut and token.end() == len(text.rstrip())) else float("nan")
        )
        if count and name and not is_counter:
            continue  # 128/512 (25.0%): the share follows
        if count:
            counters.setdefault(_counter(name) or f"/{count[2]}", int(count[1]))
        elif value != value or not words:
            num_words += len(words)
        elif is_counter and value.is_integer() and not is_marked:
            counters.setdefault(_counter(name), int(value))
        elif is_marked or any(map(_METRIC.fullmatch, words)) or _counts(name, value):
            values.setdefault(" ".join(words[-_MAX_WORDS:])[:MAX_WORD], value)
        words, is_marked = [], False
    return counters, values, num_words + len(words)


def _counter(word: str) -> str:
    return {"ep": "episode", "iter": "iteration"}.get(word.lower(), word.lower())


def _value(word: str) -> float:
    """Return a number, milliseconds as seconds; NaN for a time of day, a date or a version."""
    match = _UNIT.fullmatch(word[:MAX_WORD])
    return number(match[1]) / (1000 if match[2].lower() == "ms" else 1) if match else float("nan")


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict that begins here; a tally of answers is the share of correct ones."""
    text = text[: text.rfind("}") + 1]
    if not re.match(r"\{\s*+['\"]", text):
        return {}
    try:
        items: Iterable[tuple[str, Any]] = metrics_of(json.loads(text)).items()
    except (ValueError, RecursionError):
        items = _ITEM.findall(_WRAPPER.sub("", text))
    values = {name: number(value) for name, value in items if not isinstance(value, bool)}
    values = {name: value for name, value in values.items() if value == value}
    correct = [value for name, value in values.items() if _CORRECT.match(name)]
    total = sum(values.values())
    is_tally = (
        correct
        and len(values) > 1
        and total > 1
        and all(value.is_integer() and value >= 0 for value in values.values())
    )
    return {"accuracy": sum(correct) / total, "num_samples": total} if is_tally else values
