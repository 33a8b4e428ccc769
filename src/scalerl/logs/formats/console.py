"""Console output of trainers: the lines that record a training step, picked out of everything else that is printed.

    verl               (main_task pid=9260) step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:0.5
    TRL, transformers  {'loss': 0.1, 'reward': '0.4', 'epoch': 0.31}
    OpenRLHF, slime    Global step 12: {'reward': 0.4}     eval 12: {'eval/aime': 0.3}
    prime-rl, tinker   Step 12 | Time: 5.23s | Reward: 0.35     [run]  12/50 | loss=-0.9 | acc=50.0%
    prime-rl           Evaluated math500 in 33.22s (Avg@4=0.6123, Pass@4: 0.91, ...), of the step before it
    tables             Step 12 on a line of its own, then one 'name: value' or '| name | value |' per line

Colours, NUL bytes, progress bars and the prefixes of Ray and of loggers are ignored.
"""

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs import columns
from scalerl.logs.facts import Fact
from scalerl.logs.table import Table, flatten, make_table

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan\b|[-+]?inf\b"
_LEADING_NUMBER = re.compile(rf"\s*(?:(?:np|numpy|torch|jnp)\.\w+\(|tensor\()?\s*({_NUMBER})", re.IGNORECASE)
_WRAPPED = re.compile(r"\b(?:(?:np|numpy|torch|jnp)\.\w+|tensor|array)\(([^(),]*)[^()]*\)")
_BARE = re.compile(r"(?<=[:\[,\s])([-+]?(?:nan|inf|NaN|Infinity))(?=[,}\]\s])")
_STEP_WORDS = r"(?:global|train(?:ing)?)?[ _]?(?:step|iteration|iter|update|batch|rollout)"
_VERL = re.compile(r"(?<![\w/])step:(\d+)(?= - )")
_EVALUATED = re.compile(rf"\bEvaluated (\S+) in [\d.]+s \((Avg(?:@\d+)?)[=:]\s*({_NUMBER})", re.IGNORECASE)
_BEFORE_DICT = re.compile(
    r"\b(?P<counter>step|iteration|iter|update|batch|rollout|eval|evaluation|perf|train|training)\s*[:#=]?\s*(?P<step>\d+)"
    r"(?:\s*/\s*\d+)?\s*[:|=>,-]*\s*(?:metrics|logs?|stats)?\s*[:=]?\s*$",
    re.IGNORECASE,
)
_STEP = re.compile(rf"(?<![\w/.])({_STEP_WORDS})\b\s*[:=#]?\s*\[?\s*(\d+)(?:\s*/\s*\d+)?(?![\w.%])", re.IGNORECASE)
_COUNTER = re.compile(r"(?:^|[\s\]|)])(\d+)/\d+(?=\s*(?:[|,;:\])-]|$))")
_PROGRESS_BAR = re.compile(r"\d+%\|[^|]*\|")
_TRAINER_BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[")
_SEGMENTS = re.compile(r"\s*[|;\t\u2502]\s*|,\s+|\s{2,}")
_NAME = r"[A-Za-z_][\w./@()#+-]*"
_PAIRS = re.compile(rf"({_NAME})=({_NUMBER})(?![\w.]*=)\s?(%|ms\b|s\b)?", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?:.*?[\s\]])??({_NAME}(?: {_NAME}){{0,3}})\s*[:=]\s*({_NUMBER})\s*(%|ms\b|s\b)?(?:\s.*)?", re.IGNORECASE
)
_ONE_METRIC = re.compile(
    rf"[^\w]*({_NAME}(?: {_NAME}){{0,3}})\s*[:=|\u2502]\s*({_NUMBER})\s*(%|ms|s)?[^\w]*", re.IGNORECASE
)
_TAG = re.compile(r"\[([A-Za-z_][\w.-]*)\]")
_LEVELS = re.compile(r"(debug|info|warn(ing)?|error|critical|rank.*)", re.IGNORECASE)
_LEAST_RECORDS_PER_TAG = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The values of one printed step."""

    line: int
    style: str
    """verl | dict | pairs | block"""
    step: int | None
    values: dict[str, float]
    counter: str = ""
    """The word before the number of a dict's step."""
    tag: str = ""
    """The name in square brackets that the line begins with."""


def has_records(text: str) -> bool:
    """Return whether a text holds lines that record steps: one of verl's or a dict, or two of any other style."""
    return any(number > 1 or record.style in ("verl", "dict") for number, record in enumerate(_records(text), start=1))


def read_console(path: Path, text: str) -> Table:
    """Read the lines that record a step; evaluations printed without one belong to the step before them."""
    records = _with_one_counter(list(_records(text)))
    if not records:
        raise InputError(f"{path} holds no line that records a training step: wait, or give another file.")
    steps, is_counted = _steps(records, text)
    tags = Counter(record.tag for record in records)
    has_runs = len(tags) > 1 and min(tags.values()) >= _LEAST_RECORDS_PER_TAG
    placed = []
    for record, step in zip(records, steps, strict=True):
        values = {name: value for name, value in record.values.items() if name != "step"}
        row: dict[str, Any] = {"step": step, **({"run": record.tag} if has_runs else {}), **values}
        placed.append((f"line {record.line}", row))
    _name_times(records, [row for _, row in placed])
    facts = (Fact(kind="rows_counted", values={"num": max(steps)}),) if is_counted else ()
    return make_table(path, "console", placed, apart=("run",) if has_runs else (), facts=facts)


def _with_one_counter(records: Sequence[Record]) -> list[Record]:
    """Drop the steps that count updates where a log counts rollouts too: slime makes several updates per rollout.

    The updates then belong to the rollout before them.
    """
    rollouts = [record.step for record in records if record.counter == "rollout" and record.step is not None]
    updates = [record.step for record in records if record.counter == "step" and record.step is not None]
    if not rollouts or not updates or max(updates) <= max(rollouts) + 1:
        return list(records)
    return [replace(record, step=None) if record.counter == "step" else record for record in records]


def _steps(records: Sequence[Record], text: str) -> tuple[list[int], bool]:
    """Return the step of each record, and whether they are counted because none is printed."""
    if any(record.step is not None for record in records):
        steps, latest = [], 0
        for record in records:
            latest = latest if record.step is None else record.step
            steps.append(latest)
        return steps, False
    # Only records of training count: those with the value that most of them have, such as 'loss'.
    training = [record for record in records if not any(name.startswith(("eval", "test_")) for name in record.values)]
    names = Counter(name for record in training for name in record.values if name != "epoch")
    main = names.most_common(1)[0][0] if names else ""
    is_training = [main in record.values for record in records]
    positions = _bar_positions(text, [record.line for record, flag in zip(records, is_training, strict=True) if flag])
    steps, number = [], 0
    for flag in is_training:
        number += flag
        steps.append(positions[number - 1] if positions and number else number)
    return steps, not positions


def _bar_positions(text: str, lines: Sequence[int]) -> list[int]:
    """Return the position of the trainer's progress bar at each of these lines; empty where no bar tells it."""
    bars: dict[str, list[tuple[int, int]]] = {}
    for number, line in _lines(text):
        if bar := _TRAINER_BAR.match(line):
            bars.setdefault(bar[2], []).append((number, int(bar[1])))
    for _, seen in sorted(bars.items(), key=lambda item: -len(item[1])):
        positions, latest = [], iter(seen)
        ahead, current = next(latest, None), 0
        for line in lines:
            while ahead is not None and ahead[0] <= line:
                current, ahead = ahead[1], next(latest, None)
            positions.append(current)
        if positions and positions[0] > 0 and all(a < b for a, b in itertools.pairwise(positions)):
            return positions
    return []


def _name_times(records: Sequence[Record], rows: Sequence[dict[str, Any]]) -> None:
    """Name a column 'time' for what it is: seconds since the beginning if it only rises, else seconds per step."""
    names = {name for record in records for name in record.values if name.lower() in ("time", "elapsed")}
    for name in names:
        seconds = [row[name] for row in rows if name in row]
        rises = len(seconds) > 2 and all(a < b for a, b in itertools.pairwise(seconds))
        new = "elapsed_s" if rises or name.lower() == "elapsed" else "step_time"
        for row in rows:
            if name in row and new not in row:
                row[new] = row.pop(name)


# Lines


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for number, line in enumerate(text.replace("\0", "").split("\n"), start=1):
        for part in _ESCAPES.sub("", line).split("\r"):
            if part.strip():
                yield number, part


def _records(text: str) -> Iterator[Record]:
    block: dict[str, float] = {}
    block_step, block_line = None, 0
    is_terminated = text.rstrip("\0").endswith(("\n", "\r"))
    parts = list(_lines(text))
    for at, (number, line) in enumerate(parts):
        is_cut = at == len(parts) - 1 and not is_terminated
        record = _record(number, line, is_cut=is_cut)
        step = _header_step(line) if record is None else None
        metric = (
            _ONE_METRIC.fullmatch(line.strip()) if record is None and step is None and block_step is not None else None
        )
        if (record is not None or step is not None) and block and block_step is not None:
            yield Record(line=block_line, style="block", step=block_step, values=block)
            block = {}
        if record is not None:
            block_step = None
            yield record
        elif step is not None:
            block_step, block_line, block = step, number, {}
        elif metric is not None and not is_cut:
            block.setdefault(_clean_name(metric[1]), _value(metric[2], metric[3]))
    if block and block_step is not None:
        yield Record(line=block_line, style="block", step=block_step, values=block)


def _record(number: int, line: str, *, is_cut: bool) -> Record | None:
    """Return what a line records, None for any other line. Of a line that is still being written the last value may be
    cut, and is left out."""
    tag = _TAG.match(line.lstrip())
    tag_name = tag[1] if tag and not _LEVELS.fullmatch(tag[1]) else ""
    if match := _VERL.search(line):
        values = _verl_values(line[match.end() :], is_cut=is_cut)
        return Record(line=number, style="verl", step=int(match[1]), values=values, tag=tag_name) if values else None
    begin = line.find("{")
    if begin >= 0:
        values = _dict_values(line[begin:])
        if not values:
            return None
        before = _BEFORE_DICT.search(line[:begin])
        step, counter = (int(before["step"]), before["counter"].lower()) if before else (None, "")
        own = columns.find(columns.TRAINER_STEP, list(values))
        if own is not None and float(values[own]).is_integer():
            step, counter = int(values[own]), ""
        return Record(line=number, style="dict", step=step, counter=counter, values=values, tag=tag_name)
    if evaluated := _EVALUATED.search(line):
        average = evaluated[2].lower() if "@" in evaluated[2] else "reward"
        name = f"eval/{evaluated[1]}/{average}"
        return Record(line=number, style="pairs", step=None, values={name: _value(evaluated[3], None)}, tag=tag_name)
    return None if _PROGRESS_BAR.search(line) else _pairs_record(number, line, tag_name, is_cut=is_cut)


def _header_step(line: str) -> int | None:
    """Return N for a line that says nothing but 'Step N' or 'Step N/M', in a frame of other signs."""
    match = _STEP.search(line)
    rest = _STEP.sub("", line, count=1) if match else "x"
    return int(match[2]) if match and not re.search(r"\w", rest) else None


# Styles


def _verl_values(text: str, *, is_cut: bool) -> dict[str, float]:
    pairs = [part.rpartition(":") for part in text.split(" - ")]
    values = {}
    for name, _, value in pairs[: -1 if is_cut else None]:
        match = _LEADING_NUMBER.match(value)
        if name.strip() and match:
            values[name.strip()] = _value(match[1], None)
    return values


def _dict_values(text: str) -> dict[str, float]:
    """Return the numbers of a Python or JSON dict that begins here, also those written as strings."""
    text = text[: text.rfind("}") + 1]
    if not re.match(r"\{\s*['\"]", text):
        return {}
    try:
        loaded = json.loads(text)
    except ValueError:
        try:
            loaded = ast.literal_eval(_BARE.sub(r"'\1'", _WRAPPED.sub(r"\1", text)))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return {}
    if not isinstance(loaded, Mapping):
        return {}
    values = {str(name): _number(value) for name, value in flatten(loaded).items()}
    return {name: value for name, value in values.items() if value is not None}


def _pairs_record(number: int, line: str, tag: str, *, is_cut: bool) -> Record | None:
    """Return a record of 'name=value' or 'name: value' parts, if the line says of which step it is."""
    match = _STEP.search(line)
    counter = None if match else _COUNTER.search(line)
    if match is None and counter is None:
        return None
    step = int(match[2]) if match else int(counter[1]) if counter else 0
    rest = line[: match.start()] + " | " + line[match.end() :] if match else line
    values: dict[str, float] = {}
    for segment in _SEGMENTS.split(rest):
        pairs = [pair.groups() for pair in _PAIRS.finditer(segment)]
        if not pairs and (pair := _PAIR.fullmatch(segment.strip(" :-"))):
            pairs = [pair.groups()]
        for name, value, unit in pairs:
            values.setdefault(_clean_name(name), _value(value, unit))
    if is_cut and values:
        values.popitem()
    return Record(line=number, style="pairs", step=step, values=values, tag=tag) if values else None


# Numbers and names


def _value(text: str, unit: str | None) -> float:
    number = float(text.replace(",", ""))
    if unit == "%":
        return number / 100
    return number / 1000 if unit and unit.lower() == "ms" else number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        match = re.fullmatch(rf"\s*({_NUMBER})\s*%\s*", value) if isinstance(value, str) else None
        return _value(match[1], "%") if match else None


def _clean_name(name: str) -> str:
    """Remove full stops at the ends of words: 'Avg. Reward' becomes 'Avg Reward'."""
    return re.sub(r"\.(?=\s|$)", "", name).strip()
