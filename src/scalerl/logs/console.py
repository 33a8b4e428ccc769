"""Console output of trainers: the records in it, picked out of everything else that is printed.

    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)
    {'loss': 0.1, 'reward': '0.4', 'epoch': 0.31}     Global step 12: {'reward': 0.4}     eval 12: {...}
    Step 12 | Reward: 0.35     [run] 12/50 | loss=-0.9 | acc=50.0%     Episode 12: mean reward 0.35
    50%|#####     | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]
    Step 12 on a line of its own, or a box, then 'name: value' or '| name | value |' on each line

A line gives values, names counters (step, epoch, N/M of a progress bar) or speaks of evaluation. Values that follow
each other belong to one record until a name comes again or a counter moves. Which counter is the step of the log is
decided once, by what it does: it rises from record to record. Without one the records are counted. In Markdown the
fenced lines are read, if they record anything. Colours, NUL bytes and the prefixes of Ray and of loggers are ignored.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.logs import units
from scalerl.logs.columns import ROLES, is_evaluation, plain, rank_of
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, flatten

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RAY = re.compile(r"\s*\((?:\S+ )?pid=\d+[^)]{0,80}\)\s?")
_FENCE = re.compile(r"\s*(```|~~~)")
_NO_RUN = r"debug|info|warn(?:ing)?|error|critical|rank\S*|train|eval|val|test"
_TAG = re.compile(rf"\s*\[(?!(?:{_NO_RUN})\])([A-Za-z_][\w.-]*)\]", re.IGNORECASE)

# 0.1, 1,234.5, nan, 'np.float64(0.1)', tensor(0.1, device='cuda'), 30 %, 12ms
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan\b|[-+]?inf(?:inity)?\b"
_VALUE = rf"""['"]?(?:(?:np|numpy|torch|jnp)\.\w{{1,16}}\(|tensor\()?\s*({_NUMBER})\s?(%|ms\b|s\b)?(?![\w/:]|\.\d)"""
_NAME = r"[A-Za-z_][\w./@()#+-]*"
_NAMES = rf"(?:{_NAME} ){{0,3}}{_NAME}"
_ITEM = re.compile(rf"""['"]([^'"]{{1,200}})['"]\s*:\s*{_VALUE}""", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?<![\w/.@-])(?:({_NAME})=\s?|({_NAMES})(?:\s*[:|\u2502]|\s+=)\s*"
    rf"|((?:{_NAME} )?[\w/]*(?:reward|accuracy|acc|score|return|loss)s?(?:[_/]\w+)?)\s+"
    rf"|^\W*({_NAMES})\s+(?=\S*[\w%)]\s*$)){_VALUE}",
    re.IGNORECASE | re.MULTILINE,
)
# A line that says nothing but one name and one value; the name of a group of them in a box.
_BARE = re.compile(rf"(?:[^\w+-]*({_NAMES})\s*[:=|\u2502]\s*|\s*[|\u2502]\s*({_NAME})\s+){_VALUE}\W*", re.IGNORECASE)
_GROUP = re.compile(r"\s*[|\u2502]\s*([\w.-]+/)\s*[|\u2502]\s*[|\u2502]\s*")
_RULE = re.compile(r"\W*")
_SEPARATOR = re.compile(r"\s*[|;\t\u2502]\s*|,\s+|\s{2,}|\s-\s")

# 1,000 is a thousand.
_COUNT = r"(\d{1,3}(?:,\d{3})+|\d+)"
_WORDS = r"(?:global|train|training)?[ _]?(step|iteration|iter|update|batch|rollout|episode|ep|epoch)|(timestep)"
_ALIASES = {"ep": "episode"}
_NAMED = re.compile(
    rf"(?<![\w/.])(?:{_WORDS})s?\b\s*[:=#]?\s*\[?\s*{_COUNT}(?:\s*/\s*[\d,]+)?(?![\w%]|\.\d)", re.IGNORECASE
)
# Counters without a name: N/M, alone or in a progress bar, whose pace in brackets is not a value.
_BAR = re.compile(r":?\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)(?:\s*\[[^\],]*(?:,[^\],=]*(?=[\],]|$))?)?")
_OF = re.compile(r"(?:^|(?<=[\s\]\[|)(]))(\d+)/(\d+)(?=\s*(?:[|,;:\])-]|$)|\s+[^\w\s])")
# 128/512 (25.0%) is a share.
_SHARE = re.compile(r"\d+/\d+\s*\(\s*([\d.]+\s?%)\s*\)")
# eval 12: {...} has the number of whatever the log counts.
_ANY = re.compile(r"\b(?:eval|evaluation|perf|train|training)\s*[:#=]?\s*(\d+)\s*[:|=>,-]*\s*$", re.IGNORECASE)
_COUNTER = r"(?:step|iteration|iter|update|timestep|episode|epoch)s?(?:_total|/max_steps)?"
_COUNTER_NAME = re.compile(rf"(.*[/_. ])?{_COUNTER}", re.IGNORECASE)
# What a line without a counter of its own must hold to be looked at.
_MAY_RECORD = re.compile(rf"_{_COUNTER}['\"]?\s*[=:|]\s*\d|val|test", re.IGNORECASE)
_LONG_RECORD = re.compile(r"(?<![\w/])step:\d+ - ")
_EVALUATING = re.compile(r"\b(evaluat\w+|validat\w+|testing)\b|\[eval\]", re.IGNORECASE)
_TRAINING = re.compile(r"\btraining (results|metrics)\b", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S+) in\b", re.IGNORECASE)
_MIN_RECORDS_PER_TAG = 3
# The share of records at which a counter that they do not name themselves rises, if it is their step.
_MIN_RISES = 0.2
# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
_MAX_RECORD = 60_000
_MAX_PROSE = 2_000

_STEP, _COARSE = ROLES["trainer_step"], ROLES["coarse"]

Line = tuple[int, str]
Values = dict[str, float]
Counters = dict[str, int]


@dataclass(slots=True)
class Record:
    """Values that belong together, and where every counter stood."""

    line: int
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far."""
    own: set[str]
    """Counters that its own lines name; "" is whatever the log counts."""
    style: str
    """dict | bar | line | block"""
    tag: str


def console_rows(source: Source, files: Sequence[Path]) -> list[Placed] | None:
    """Return one row per record, with its step; there must be a dict or two other records."""
    lines = list(_lines(source.text, source))
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    for part in (_fenced(lines), lines):
        records = _of_the_run(list(_records(part, is_open and part is lines, source)))
        if len(records) > 1 or any(record.style == "dict" for record in records):
            return _as_rows(records, source, num_lines=lines[-1][0])
    return None


# Which records are taken, and their steps


def _of_the_run(records: Sequence[Record]) -> list[Record]:
    """Keep evaluations and what shares a name with the records of the most frequent reward: not prose, not titles."""
    rewards = Counter(name for record in records for name in record.values if rank_of(name))
    main = max(rewards, key=lambda name: rewards[name], default="")
    shared = {name for record in records if main in record.values for name in record.values} - set(_COARSE)
    return [
        record
        for record in records
        if not main or "" in record.own or not shared.isdisjoint(record.values) or _evaluates(record.values)
    ]


def _evaluates(names: Iterable[str]) -> bool:
    return any(is_evaluation(name) and rank_of(name) for name in names)


def _as_rows(records: Sequence[Record], source: Source, num_lines: int) -> list[Placed]:
    steps, origin = _steps(records)
    tags = Counter(record.tag for record in records)
    has_runs = len(tags) > 1 and min(tags.values()) >= _MIN_RECORDS_PER_TAG
    rows: list[dict[str, Any]] = []
    for record, step in zip(records, steps, strict=True):
        coarse = {name: float(record.counters[name]) for name in _COARSE if name in record.counters}
        rows.append({**({"run": record.tag} if has_runs else {}), **coarse, **record.values, "step": step})
    _name_times(rows)
    source.note("lines_taken", num=len(records), num_lines=num_lines, origin=origin)
    if origin == "counted":
        source.note("rows_counted", num=max(steps))
    return [(f"line {record.line}", row) for record, row in zip(records, rows, strict=True)]


def _steps(records: Sequence[Record]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from: the counter that rises from record to record.

    Only records of training are asked: those with the value that most of them have, such as 'loss'.
    """
    names = Counter(name for record in records for name in record.values if not is_evaluation(name))
    main = max((name for name in names if name not in _COARSE), key=lambda name: names[name], default="")
    is_training = [not main or main in record.values for record in records]
    training = [record for record, flag in zip(records, is_training, strict=True) if flag]
    own = Counter(name for record in training for name in record.own)
    rises = Counter[str]()
    for name in {name for record in training for name in record.counters if name}:
        seen = [record.counters[name] for record in training if name in record.counters]
        rises[name] = sum(before < after for before, after in itertools.pairwise(seen))
    # A bar that is drawn after the first record lags behind.
    known = {name for record in training[:1] for name, at in record.counters.items() if at > 0 or name[:1] != "/"}
    often = {name for name in known if rises[name] >= _MIN_RISES * len(training)}
    usable = [name for name in sorted(rises) if name in often or 2 * own[name] > len(training)]
    usable = [name for name in usable if 2 * rises[name] >= max(rises[other] for other in usable)]
    if not usable:
        return list(itertools.accumulate(map(int, is_training))), "counted"
    order = {name: place for place, name in enumerate((*_STEP, *_COARSE))}
    last = len(_STEP)

    def preference(name: str) -> tuple[bool, int, bool]:
        return 2 * own[name] > len(training), -order.get(plain(name), last), not name.startswith("/")

    step = max(usable, key=preference)
    given = [record.counters.get("" if "" in record.own and step not in record.own else step) for record in records]
    steps = itertools.accumulate(given, lambda before, number: before if number is None else number, initial=0)
    context = "that of the progress bar" if step.startswith("/") else "that of the line before"
    return list(map(int, steps))[1:], "in the line" if 2 * own[step] > len(training) else context


def _name_times(rows: Sequence[dict[str, Any]]) -> None:
    """Name a column 'time' for what it is: seconds since the beginning if it only rises, else seconds per step."""
    for name in {name for row in rows for name in row if name.lower() in ("time", "elapsed")}:
        seconds = [row[name] for row in rows if name in row]
        rises = len(seconds) > 2 and all(a < b for a, b in itertools.pairwise(seconds))
        new = "elapsed_s" if rises or name.lower() == "elapsed" else "step_time"
        for row in rows:
            if name in row and new not in row:
                row[new] = row.pop(name)


# Lines


def _lines(text: str, source: Source) -> Iterator[Line]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for number, line in enumerate(text.replace("\0", "").split("\n"), start=1):
        if number % 1000 == 0:
            source.spend()
        for part in (_ESCAPES.sub("", line) if "\x1b" in line else line).split("\r"):
            if part.strip():
                yield number, _RAY.sub("", part, count=1) if "pid=" in part[:200] else part


def _fenced(lines: Sequence[Line]) -> list[Line]:
    """Return the lines between fences of Markdown."""
    is_inside, inside = False, []
    for line in lines:
        if _FENCE.match(line[1]):
            is_inside = not is_inside
        elif is_inside:
            inside.append(line)
    return inside


def _records(lines: Sequence[Line], is_open: bool, source: Source) -> Iterator[Record]:
    """Yield what the lines record. Where the last line may be cut, its last value and its block are left out."""
    record, context, group = None, Counters(), ""
    evaluates = in_block = False
    for at, (number, line) in enumerate(lines):
        source.spend(0) if number % 100 == 0 else None
        if len(line) > (_MAX_RECORD if "{" in line or _LONG_RECORD.search(line) else _MAX_PROSE):
            continue
        style, counters, values = _read(line, in_block, is_cut=is_open and at == len(lines) - 1)
        before, context = context, context | {name: value for name, value in counters.items() if name}
        if heading := _GROUP.fullmatch(line):
            group = heading[1]
        if not values:
            if style != "bar":
                # A heading that repeats the step, as in the box of an evaluation, ends nothing.
                evaluates = (evaluates and context == before) or bool(_EVALUATING.search(line))
                evaluates = evaluates and not _TRAINING.search(line)
                in_block = in_block or bool(counters) or evaluates
            continue
        if evaluates and not counters:
            values = _as_evaluation(values)
        elif style == "block":
            values = {f"{group}{name}": value for name, value in values.items()}
        own = {**counters, **{name: int(value) for name, value in values.items() if _is_counter(name, value)}}
        context |= {name: value for name, value in own.items() if name}
        repeats = record is not None and not record.values.keys().isdisjoint(values)
        if record and style == "bar" == record.style and record.own == own.keys() and record.counters == context:
            record.values |= values  # a bar is drawn again and again while its step stays
        elif record and not repeats and _agree(record.counters, context, values):
            record.values |= values
            record.own |= own.keys()
            record.counters |= context
        else:
            if record:
                yield record
            tag = _TAG.match(line)
            record = Record(number, values, context | own, set(own), style, tag[1] if tag else "")
        if style != "block":
            evaluates, in_block, group = False, False, ""
    if record and not (is_open and record.style == "block"):
        yield record


def _agree(then: Counters, now: Counters, values: Values) -> bool:
    """Return whether no counter has moved, except those that are values themselves."""
    return all(now.get(name, number) == number for name, number in then.items() if name not in values)


def _is_counter(name: str, value: float) -> bool:
    return float(value).is_integer() and _COUNTER_NAME.fullmatch(name) is not None


def _as_evaluation(values: Mapping[str, float]) -> Values:
    return {name if is_evaluation(name) else f"eval/{name}": value for name, value in values.items()}


# One line


def _read(line: str, in_block: bool, *, is_cut: bool) -> tuple[str, Counters, Values]:
    """Return the style of a line, the counters that it names and its values; no values for what records nothing."""
    begin = line.find("{")
    if begin >= 0 and (values := _dict_values(line[begin:])):
        counters, prefix = _named(line[max(begin - 200, 0) : begin])
        if (match := _ANY.search(prefix)) and not counters:
            counters[""] = int(match[1][:12])
        return "dict", counters, _share_correct(values) if "histogram" in prefix.lower() else values
    counters, text = _named(line)
    style = "bar" if _BAR.search(line) else "line"
    if not counters and (in_block or "|" in line or "\u2502" in line) and (bare := _BARE.fullmatch(line)):
        return "block", {}, {} if is_cut else _values([bare])
    is_said = _EVALUATING.search(text)
    if not counters and not is_said and not _MAY_RECORD.search(line):
        return style, counters, {}
    text = _SEPARATOR.sub("\n", text)
    pairs = [pair for pair in _PAIR.finditer(text) if not is_cut or pair.end() < len(text.rstrip())]
    values = _values(pairs)
    if values and is_said and (not counters or _EVALUATING.search(text, 0, pairs[0].start())):
        of_set = _EVALUATED.search(line)
        values = _as_evaluation({f"{of_set[1]}/{name.lower()}" if of_set else name: v for name, v in values.items()})
    is_record = bool(counters) or _evaluates(values) or any(_is_counter(name, v) for name, v in values.items())
    return style, counters, values if is_record else {}


def _named(line: str) -> tuple[Counters, str]:
    """Return the counters that a line names, the first of a name, and the line without them."""
    counters: Counters = {}

    def take(match: re.Match[str]) -> str:
        *words, number = (group for group in match.groups() if group)
        name = f"/{number}" if match.re is not _NAMED else _ALIASES.get(words[0].lower(), words[0].lower())
        counters.setdefault(name, _count(words[0] if match.re is not _NAMED else number))
        return " | "

    for pattern in (_BAR, _NAMED, _OF):
        line = pattern.sub(take, _SHARE.sub(r"\1", line) if pattern is _OF else line)
    return counters, line


def _values(pairs: Iterable[re.Match[str]]) -> Values:
    """Return names and numbers; the first of a name counts. Units become 1 and seconds."""
    values: Values = {}
    for match in pairs:
        *names, number, unit = match.groups("")
        value = float(number.replace(",", "")) / {"%": 100, "ms": 1000}.get(unit.lower(), 1)
        # 'Avg. Reward' is 'Avg Reward'.
        values.setdefault(re.sub(r"\.(?=\s|$)", "", max(names)).strip(), value)
    return values


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict that begins here, also those written as strings."""
    text = text[: text.rfind("}") + 1]
    if not re.match(r"\{\s*['\"]", text):
        return {}
    try:
        loaded = flatten(json.loads(text))
    except (ValueError, RecursionError):
        return _values(_ITEM.finditer(text))
    values = {name: units.number(value) for name, value in loaded.items() if not isinstance(value, bool)}
    return {name: value for name, value in values.items() if value is not None}


def _share_correct(counts: Mapping[str, float]) -> Values:
    """Return the share of correct answers in a dict of counts; empty where none is said to be correct."""
    correct = [count for name, count in counts.items() if re.match(r"correct\b", name, re.IGNORECASE)]
    total = sum(counts.values())
    return {"accuracy": sum(correct) / total, "num_samples": total} if correct and total > 0 else {}


def _count(digits: str) -> int:
    return int(digits.replace(",", "")[:12])
