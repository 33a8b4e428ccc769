"""Console output of trainers: the lines that record a step, picked out of everything else that is printed.

    verl       (main_task pid=9260) step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:0.5
    dict       {'loss': 0.1, 'reward': '0.4', 'epoch': 0.31}     Global step 12: {'reward': 0.4}     eval 12: {...}
    counts     histogram: {'correct ...': 321, 'wrong ...': 998}, of which the share of correct ones is taken
    pairs      Step 12 | Time: 5.23s | Reward: 0.35     [run]  12/50 | loss=-0.9 | acc=50.0%
               Evaluated math500 in 33.22s (Avg@4=0.6123, ...), of the step before it
    block      Step 12 on a line of its own, then one 'name: value' or '| name | value |' per line

A record without a step of its own belongs to the progress bar's step, to the step that a line before it names, or is
counted. A line before it that speaks of evaluation makes it an evaluation. Of several styles in one log the one with
most rewards is taken; of the others only evaluations. In Markdown the fenced lines are read, if they record anything.
Colours, NUL bytes and the prefixes of Ray and of loggers are ignored.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalerl.logs import units
from scalerl.logs.columns import TRAINER_STEP, choose_y, find
from scalerl.logs.facts import Fact
from scalerl.logs.table import Budget, Placed, flatten

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan\b|[-+]?inf\b"
_LEADING_NUMBER = re.compile(rf"\s*(?:(?:np|numpy|torch|jnp)\.\w+\(|tensor\()?\s*({_NUMBER})", re.IGNORECASE)
# 'name': 0.1, "name": '0.1', 'name': np.float64(0.1), 'name': tensor(0.1, device='cuda'), 'name': '30 %'
_ITEM = re.compile(
    rf"""(['"])([^'"]+)\1\s*:\s*(?:['"]|[a-z.\d]{{1,24}}\()?\s*({_NUMBER})(?:inity)?\s*(%?)(?=[\s'")]*[,}}\]])""",
    re.IGNORECASE,
)
_VERL = re.compile(r"(?<![\w/])step:(\d+)(?= - )")
_EVALUATED = re.compile(rf"\bEvaluated (\S+) in [\d.]+s \((Avg(?:@\d+)?)[=:]\s*({_NUMBER})", re.IGNORECASE)
_BEFORE_DICT = re.compile(
    r"\b(?P<counter>step|iteration|iter|update|batch|rollout|eval|evaluation|perf|train|training)\s*[:#=]?\s*(?P<step>\d+)"
    r"(?:\s*/\s*\d+)?\s*[:|=>,-]*\s*(?:metrics|logs?|stats)?\s*[:=]?\s*$",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?<![\w/.])((?:global|train(?:ing)?)?[ _]?(?:step|iteration|iter|update|batch|rollout))\b\s*[:=#]?\s*\[?\s*(\d+)"
    r"(?:\s*/\s*\d+)?(?![\w.%])",
    re.IGNORECASE,
)
_COUNTER = re.compile(r"(?:^|[\s\]|)(])(\d+)/(\d+)(?=\s*(?:[|,;:\])-]|$))")
_PROGRESS_BAR = re.compile(r"\d+%\|[^|]*\|")
_TRAINER_BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[")
_SEGMENTS = re.compile(r"\s*[|;\t\u2502]\s*|,\s+|\s{2,}")
_NAME = r"[A-Za-z_][\w./@()#+-]*"
_UNIT = r"(%|ms\b|s\b)?"
_PAIRS = re.compile(rf"({_NAME})=({_NUMBER})(?![\w.]*=)\s?{_UNIT}", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?:.*?[\s\]])??({_NAME}(?: {_NAME}){{0,3}})\s*[:=]\s*({_NUMBER})\s*{_UNIT}(?:\s.*)?", re.IGNORECASE
)
_METRIC = re.compile(rf"\W*({_NAME}(?: {_NAME}){{0,3}})\s*[:=|\u2502]\s*({_NUMBER})\s*(%|ms|s)?\W*", re.IGNORECASE)
_EVALUATING = re.compile(r"\b(evaluat\w+|validat\w+|testing)\b", re.IGNORECASE)
_TRAINING = re.compile(r"\btraining (results|metrics)\b", re.IGNORECASE)
_EVALUATION_NAME = re.compile(r"eval|val[-_/]|valid|test", re.IGNORECASE)
_TAG = re.compile(r"\[([A-Za-z_][\w.-]*)\]")
_LEVELS = re.compile(r"(debug|info|warn(ing)?|error|critical|rank.*)", re.IGNORECASE)
_RAY = re.compile(r"\s*\((?:\S+ )?pid=\d+[^)]{0,80}\)\s?")
_FENCE = re.compile(r"\s*(```|~~~)")
_MIN_RECORDS_PER_TAG = 3
# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
_MAX_RECORD = 60_000
_MAX_PROSE = 2_000

Line = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The values of one printed step."""

    line: int
    style: str
    """verl | dict | pairs | block"""
    step: int | None
    values: dict[str, float]
    context: int | None = None
    """The step that a line before it names."""
    counter: str = ""
    """The word before the number of a dict's step."""
    tag: str = ""
    """The name in square brackets that the line begins with."""

    @property
    def has_reward(self) -> bool:
        return choose_y(list(self.values), [self.values]) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The records of a text, of the styles that are taken."""

    records: list[Record]
    lines: list[Line]
    num_lines: int


def find_records(text: str, budget: Budget) -> Console | None:
    """Return the lines that record steps, None where a text has none: one of verl's or a dict, or two of any other."""
    lines = list(_lines(text, budget))
    num_lines = lines[-1][0] if lines else 0
    is_open = not text.rstrip("\0").endswith(("\n", "\r"))
    for part in (_fenced(lines), lines):
        records = list(_records(part, is_open and part is lines, budget))
        if len(records) > 1 or any(record.style in ("verl", "dict") for record in records):
            return Console(records=_one_style(records), lines=part, num_lines=num_lines)
    return None


def console_rows(console: Console) -> tuple[list[Placed], tuple[Fact, ...]]:
    """Return one row per record, with its step, and how the records were found."""
    records = _one_counter(console.records)
    steps, origin = _steps(records, console.lines)
    tags = Counter(record.tag for record in records)
    has_runs = len(tags) > 1 and min(tags.values()) >= _MIN_RECORDS_PER_TAG
    rows: list[dict[str, Any]] = []
    for record, step in zip(records, steps, strict=True):
        values = {name: value for name, value in record.values.items() if name != "step"}
        rows.append({"step": step, **({"run": record.tag} if has_runs else {}), **values})
    _name_times(rows)
    styles = tuple(dict.fromkeys(record.style for record in records))
    values = {"num": len(records), "num_lines": console.num_lines, "styles": styles, "origin": origin}
    facts = [Fact(kind="lines_taken", values=values)]
    if origin == "counted":
        facts.append(Fact(kind="rows_counted", values={"num": max(steps)}))
    return [(f"line {record.line}", row) for record, row in zip(records, rows, strict=True)], tuple(facts)


# Which records are taken, and their steps


def _one_style(records: Sequence[Record]) -> list[Record]:
    """Keep the style with most rewards, and of the others what evaluates: titles of tables are not steps."""
    rewards = Counter(record.style for record in records if record.has_reward)
    main = max(("verl", "dict", "pairs", "block"), key=lambda style: rewards[style])
    if not rewards:
        return list(records)
    return [record for record in records if record.style == main or any(map(_EVALUATION_NAME.match, record.values))]


def _one_counter(records: Sequence[Record]) -> list[Record]:
    """Drop the steps that count updates where a log counts rollouts too: slime makes several updates per rollout."""
    rollouts = [record.step for record in records if record.counter == "rollout" and record.step is not None]
    updates = [record.step for record in records if record.counter == "step" and record.step is not None]
    if not rollouts or not updates or max(updates) <= max(rollouts) + 1:
        return list(records)
    return [replace(record, step=None) if record.counter == "step" else record for record in records]


def _steps(records: Sequence[Record], lines: Sequence[Line]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from."""
    if any(record.step is not None for record in records):
        return _carried([record.step for record in records]), "in the line"
    # Only records of training count: those with the value that most of them have, such as 'loss'.
    training = [record for record in records if not any(map(_EVALUATION_NAME.match, record.values))]
    names = Counter(name for record in training for name in record.values if name != "epoch")
    main = names.most_common(1)[0][0] if names else ""
    is_training = [main in record.values for record in records]
    positions = _bar_positions(lines, [record.line for record, flag in zip(records, is_training, strict=True) if flag])
    if positions:
        known = iter(positions)
        return _carried([next(known) if flag else None for flag in is_training]), "that of the progress bar"
    if any(record.context is not None for record in records):
        return _carried([record.context for record in records]), "that of the line before"
    return list(itertools.accumulate(map(int, is_training))), "counted"


def _carried(steps: Iterable[int | None]) -> list[int]:
    """Fill in the step before for records that have none."""
    return list(itertools.accumulate(steps, lambda latest, step: latest if step is None else step, initial=0))[1:]


def _bar_positions(lines: Sequence[Line], wanted: Sequence[int]) -> list[int]:
    """Return the position of the trainer's progress bar at each of these lines; empty where no bar follows them.

    The trainer's bar moves with the records: it rises from one to the next, and falls only where training begins anew.
    """
    bars: dict[str, list[tuple[int, int]]] = {}
    for number, line in lines:
        if bar := _TRAINER_BAR.match(line):
            bars.setdefault(bar[2], []).append((number, int(bar[1])))
    for _, seen in sorted(bars.items(), key=lambda item: -len(item[1])):
        positions, ahead, current = [], 0, 0
        for line in wanted:
            while ahead < len(seen) and seen[ahead][0] <= line:
                current, ahead = seen[ahead][1], ahead + 1
            positions.append(current)
        stays = [after for before, after in itertools.pairwise(positions) if after <= before]
        if (
            positions
            and positions[0] > 0
            and all(after <= positions[0] for after in stays)
            and 10 * len(stays) <= len(positions)
        ):
            return positions
    return []


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


def _lines(text: str, budget: Budget) -> Iterator[Line]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for number, line in enumerate(text.replace("\0", "").split("\n"), start=1):
        if number % 1000 == 0:
            budget.spend()
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


def _records(lines: Sequence[Line], is_open: bool, budget: Budget) -> Iterator[Record]:
    """Yield what the lines record. The last line may be cut where `is_open`: its last value is left out."""
    headings = Counter(heading[0] for _, line in lines if (heading := _heading(line)))
    main = max(headings, key=lambda word: headings[word], default="")
    block: dict[str, float] = {}
    block_step: int | None = None
    block_line = 0
    context: int | None = None
    evaluates = False
    for at, (number, line) in enumerate(lines):
        budget.spend(0) if number % 100 == 0 else None
        is_cut = is_open and at == len(lines) - 1
        record = _record(number, line, is_cut=is_cut) if len(line) <= _MAX_RECORD else None
        heading = _heading(line) if record is None else None
        if (record or heading) and block and block_step is not None:
            yield Record(line=block_line, style="block", step=block_step, values=block)
            block = {}
        if record is not None:
            block_step = None
            if record.step is None:
                names = record.values if not evaluates else _as_evaluation(record.values)
                record = replace(record, values=names, context=context)
            yield record
            evaluates = False
        elif heading is not None:
            block_line, block_step, context = number, heading[1], heading[1]
            evaluates = heading[0] != main
        elif len(line) > _MAX_PROSE:
            continue
        elif block_step is not None and not is_cut and (metric := _METRIC.fullmatch(line.strip())):
            name = _clean_name(metric[1])
            block.setdefault(f"eval/{name}" if evaluates else name, _value(metric[2], metric[3]))
        elif not _PROGRESS_BAR.search(line):
            if named := _STEP.search(line):
                context, evaluates = int(named[2][:12]), False
            evaluates = (evaluates or bool(_EVALUATING.search(line))) and not _TRAINING.search(line)
    if block and block_step is not None:
        yield Record(line=block_line, style="block", step=block_step, values=block)


def _heading(line: str) -> tuple[str, int] | None:
    """Return (word, N) of a line that says nothing but 'Step N' or 'Step N/M', in a frame of other signs."""
    match = _STEP.search(line) if len(line) <= _MAX_PROSE else None
    if match is None or re.search(r"\w", line[: match.start()] + line[match.end() :]):
        return None
    return match[1].lower(), int(match[2][:12])


def _as_evaluation(values: Mapping[str, float]) -> dict[str, float]:
    return {name if _EVALUATION_NAME.match(name) else f"eval/{name}": value for name, value in values.items()}


def _record(number: int, line: str, *, is_cut: bool) -> Record | None:
    """Return what a line records, None for any other line."""
    tag = _TAG.match(line.lstrip())
    tag_name = tag[1] if tag and not _LEVELS.fullmatch(tag[1]) else ""
    if match := _VERL.search(line):
        values = _verl_values(line[match.end() :], is_cut=is_cut)
        return (
            Record(line=number, style="verl", step=int(match[1][:12]), values=values, tag=tag_name) if values else None
        )
    begin = line.find("{")
    if begin >= 0:
        values = _dict_values(line[begin:])
        if "histogram" in line[:begin].lower():
            values = _share_correct(values)
        if not values:
            return None
        before = _BEFORE_DICT.search(line[max(begin - 200, 0) : begin])
        step, counter = (int(before["step"][:12]), before["counter"].lower()) if before else (None, "")
        own = find(TRAINER_STEP, list(values))
        if own is not None and float(values[own]).is_integer():
            step, counter = int(values[own]), ""
        return Record(line=number, style="dict", step=step, counter=counter, values=values, tag=tag_name)
    if len(line) > _MAX_PROSE:
        return None
    if evaluated := _EVALUATED.search(line):
        average = evaluated[2].lower() if "@" in evaluated[2] else "reward"
        values = {f"eval/{evaluated[1]}/{average}": _value(evaluated[3], None)}
        return Record(line=number, style="pairs", step=None, values=values, tag=tag_name)
    return None if _PROGRESS_BAR.search(line) else _pairs_record(number, line, tag_name, is_cut=is_cut)


# Styles


def _verl_values(text: str, *, is_cut: bool) -> dict[str, float]:
    values = {}
    for name, _, value in [part.rpartition(":") for part in text.split(" - ")][: -1 if is_cut else None]:
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
        loaded = flatten(json.loads(text))
    except (ValueError, RecursionError):
        return {match[2]: _value(match[3], match[4]) for match in _ITEM.finditer(text)}
    values = {name: units.number(value) for name, value in loaded.items() if not isinstance(value, bool)}
    return {name: value for name, value in values.items() if value is not None}


def _share_correct(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the share of correct answers in a dict of counts; empty where none is said to be correct."""
    correct = [count for name, count in counts.items() if re.match(r"correct\b", name, re.IGNORECASE)]
    total = sum(counts.values())
    return {"accuracy": sum(correct) / total, "num_samples": total} if correct and total > 0 else {}


def _pairs_record(number: int, line: str, tag: str, *, is_cut: bool) -> Record | None:
    """Return a record of 'name=value' or 'name: value' parts, if the line says of which step it is."""
    match = _STEP.search(line)
    counters = [] if match else [(int(found[2][:12]), found) for found in _COUNTER.finditer(line)]
    if match is None and not counters:
        return None
    # 'Epoch:[1/1](12/9751)': the finer counter is the step.
    named = match or max(counters, key=lambda pair: pair[0])[1]
    step = int((match[2] if match else named[1])[:12])
    rest = line[: named.start()] + " | " + line[named.end() :]
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
    value = float(text.replace(",", ""))
    if unit == "%":
        return value / 100
    return value / 1000 if unit and unit.lower() == "ms" else value


def _clean_name(name: str) -> str:
    """Remove full stops at the ends of words: 'Avg. Reward' becomes 'Avg Reward'."""
    return re.sub(r"\.(?=\s|$)", "", name).strip()
