"""Console output of trainers: the lines that record a step, picked out of everything else that is printed.

    verl    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)
    dict    {'loss': 0.1, 'reward': '0.4', 'epoch': 0.31}     Global step 12: {'reward': 0.4}     eval 12: {...}
    line    Step 12 | Reward: 0.35     [run] 12/50 | loss=-0.9 | acc=50.0%     Episode 12: mean reward 0.35
    bar     50%|#####     | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]
    block   Step 12 on a line of its own, or a box of '| name | value |' with a step in it, then one value per line

A record without a step of its own has that of the progress bar, of the line before it that names one, or is counted. A
line before it that speaks of evaluation makes it an evaluation, and so does its own text. Of several styles in one log
the one with most rewards is taken; of the others only evaluations. In Markdown the fenced lines are read, if they
record anything. Colours, NUL bytes and the prefixes of Ray and of loggers are ignored.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalerl.logs import units
from scalerl.logs.columns import TRAINER_STEP, find, is_evaluation, rank_of
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, flatten

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RAY = re.compile(r"\s*\((?:\S+ )?pid=\d+[^)]{0,80}\)\s?")
_FENCE = re.compile(r"\s*(```|~~~)")

# 0.1, 1,234.5, nan, 'np.float64(0.1)', tensor(0.1, device='cuda'), 30 %, 12ms
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan\b|[-+]?inf(?:inity)?\b"
_VALUE = rf"""['"]?(?:(?:np|numpy|torch|jnp)\.\w{{1,16}}\(|tensor\()?\s*({_NUMBER})\s?(%|ms\b|s\b)?(?![\w/:]|\.\d)"""
_NAME = r"[A-Za-z_][\w./@()#+-]*"
_ITEM = re.compile(rf"""['"]([^'"]{{1,200}})['"]\s*:\s*{_VALUE}""", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?<![\w/.@-])(?:({_NAME})=\s?|((?:{_NAME} ){{0,3}}{_NAME})(?:\s*[:|\u2502]|\s+=)\s*"
    rf"|((?:{_NAME} )?(?:reward|accuracy|acc|score|return|loss))\s+){_VALUE}",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"\s*[|;\t\u2502]\s*|,\s+|\s{2,}|\s-\s")
_VERL = re.compile(r"(?<![\w/])(step):(\d+)(?= - )")
# 1,000 is a thousand.
_COUNT = r"(\d{1,3}(?:,\d{3})+|\d+)"
_WORDS = r"(?:(?:global|train(?:ing)?)?[ _]?(?:step|iteration|iter|update|batch|rollout)|(?:total )?timestep)"
_STEP = re.compile(rf"(?<![\w/.])({_WORDS})s?\b\s*[:=#]?\s*\[?\s*{_COUNT}(?:\s*/\s*[\d,]+)?(?![\w.%])", re.IGNORECASE)
_COUNTER = re.compile(r"(?:^|[\s\]|)(])()(\d+)/\d+(?=\s*(?:[|,;:\])-]|$))")
_COARSE = re.compile(r"(?<![\w/.])(episode|epoch)\b\s*[:=#]?\s*\[?\s*(\d+)(?:\s*/\s*\d+)?(?![\w.%])", re.IGNORECASE)
_BEFORE_DICT = re.compile(
    rf"\b({_WORDS}|eval|evaluation|perf|train|training)\s*[:#=]?\s*(\d+)(?:\s*/\s*\d+)?"
    r"\s*[:|=>,-]*\s*(?:metrics|logs?|stats)?\s*[:=]?\s*$",
    re.IGNORECASE,
)
_PROGRESS_BAR = re.compile(r"\d+%\|[^|]*\|")
_TRAINER_BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[")
_BAR_VALUES = re.compile(r"\d+%\|[^|]*\|()\s*(\d+)/\d+\s*\[[^\],]*(?:,[^\],]*,([^\]]*=[^\]]*))?")
_RULE = re.compile(r"\W*")
_EVALUATING = re.compile(r"\b(evaluat\w+|validat\w+|testing)\b", re.IGNORECASE)
_TRAINING = re.compile(r"\btraining (results|metrics)\b", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S+) in\b", re.IGNORECASE)
_TAG = re.compile(r"\[(?!(?:debug|info|warn(?:ing)?|error|critical|rank\S*)\])([A-Za-z_][\w.-]*)\]", re.IGNORECASE)
_GROUP = re.compile(r"[|\u2502]\s*([\w.-]+/)\s*[|\u2502]\s*[|\u2502]")
_MIN_RECORDS_PER_TAG = 3
_MIN_ALIKE = 3
# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
_MAX_RECORD = 60_000
_MAX_PROSE = 2_000

Line = tuple[int, str]
Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The values of one printed step."""

    line: int
    style: str
    """verl | dict | line | bar | block"""
    step: int | None
    values: Values
    context: int | None = None
    """The step that a line before it names."""
    counter: str = ""
    """The word before the number of its step."""
    tag: str = ""
    """The name in square brackets that the line begins with."""

    @property
    def evaluates(self) -> bool:
        return any(map(is_evaluation, self.values))


def console_rows(source: Source) -> list[Placed] | None:
    """Return one row per record, with its step; it needs one dict or line of verl's, or two other records."""
    text = source.text
    lines = list(_lines(text, source))
    is_open = not text.rstrip("\0").endswith(("\n", "\r"))
    for part in (_fenced(lines), lines):
        records = list(_records(part, is_open and part is lines, source))
        if len(records) > 1 or any(record.style in ("verl", "dict") for record in records):
            return _as_rows(_one_counter(_one_style(records)), part, source, num_lines=lines[-1][0])
    return None


def _as_rows(records: Sequence[Record], lines: Sequence[Line], source: Source, num_lines: int) -> list[Placed]:
    steps, origin = _steps(records, lines)
    tags = Counter(record.tag for record in records)
    has_runs = len(tags) > 1 and min(tags.values()) >= _MIN_RECORDS_PER_TAG
    rows: list[dict[str, Any]] = []
    for record, step in zip(records, steps, strict=True):
        run = {"run": record.tag} if has_runs else {}
        rows.append({**run, **record.values, "step": step})
    _name_times(rows)
    styles = tuple(dict.fromkeys(record.style for record in records))
    source.note("lines_taken", num=len(records), num_lines=num_lines, origin=origin, styles=styles)
    if origin == "counted":
        source.note("rows_counted", num=max(steps))
    return [(f"line {record.line}", row) for record, row in zip(records, rows, strict=True)]


# Which records are taken, and their steps


def _one_style(records: Sequence[Record]) -> list[Record]:
    """Keep the style with most rewards, and of the others what evaluates: titles of tables are not steps.

    A record shares a name with others of its style: a sentence in an answer that the log shows does not.
    """
    # A bar is drawn again and again, also while its step stays.
    ends = [at for at, (a, b) in enumerate(itertools.pairwise(records)) if a.style != "bar" or a.step != b.step]
    records = [records[at] for at in (*ends, len(records) - 1)]
    rewards = Counter(record.style for record in records if any(map(rank_of, record.values)))
    if not rewards:
        return list(records)
    main = max(("verl", "dict", "line", "block", "bar"), key=lambda style: rewards[style])
    names = Counter(name for record in records if record.style == main for name in record.values)
    least = min(_MIN_ALIKE, max(names.values()))
    return [
        record
        for record in records
        if record.evaluates or (record.style == main and max(names[name] for name in record.values) >= least)
    ]


def _one_counter(records: Sequence[Record]) -> list[Record]:
    """Drop the steps of other counters than the one that counts: of epochs beside steps, of slime's updates."""
    most = Counter[str]()
    for record in (record for record in records if record.step is not None):
        most[record.counter] = max(most[record.counter], record.step or 0)
    others = {"episode", "epoch"} if most.keys() - {"episode", "epoch"} else set[str]()
    if "rollout" in most and most["step"] > most["rollout"] + 1:  # slime makes several updates per rollout
        others.add("step")
    return [replace(record, step=None) if record.counter in others else record for record in records]


def _steps(records: Sequence[Record], lines: Sequence[Line]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from."""
    if any(record.step is not None for record in records):
        return _carried(record.step for record in records), "in the line"
    # Only records of training count: those with the value that most of them have, such as 'loss'.
    names = Counter(name for record in records if not record.evaluates for name in record.values if name != "epoch")
    main = names.most_common(1)[0][0] if names else ""
    is_training = [main in record.values for record in records]
    positions = _bar_positions(lines, [record.line for record, flag in zip(records, is_training, strict=True) if flag])
    if positions:
        known = iter(positions)
        return _carried(next(known) if flag else None for flag in is_training), "that of the progress bar"
    if any(record.context is not None for record in records):
        return _carried(record.context for record in records), "that of the line before"
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
            bars.setdefault(bar[2], []).append((number, int(bar[1][:12])))
    for seen in sorted(bars.values(), key=len, reverse=True):
        positions, ahead, current = [], 0, 0
        for line in wanted:
            while ahead < len(seen) and seen[ahead][0] <= line:
                current, ahead = seen[ahead][1], ahead + 1
            positions.append(current)
        stays = [after for before, after in itertools.pairwise(positions) if after <= before]
        begins_anew = positions and positions[0] > 0 and all(after <= positions[0] for after in stays)
        if begins_anew and 10 * len(stays) <= len(positions):
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


class _Block:
    """The lines under a heading 'Step N', or between the rules of a box, that give one value each."""

    def __init__(self, line: int, step: int | None = None, context: int | None = None) -> None:
        self.line, self.step, self.context, self.group = line, step, context, ""
        self.values: Values = {}

    def add(self, line: str, evaluates: bool) -> None:
        if group := _GROUP.search(line):
            self.group = group[1]
        for name, value in _values(line).items():
            self.values.setdefault(f"eval/{name}" if evaluates else f"{self.group}{name}", value)

    def records(self) -> Iterator[Record]:
        own = _whole(self.values.get(find(TRAINER_STEP, list(self.values)) or ""))
        step = next((step for step in (self.step, own, self.context) if step is not None), None)
        if self.values and step is not None:
            yield Record(line=self.line, style="block", step=step, values=self.values)


def _records(lines: Sequence[Line], is_open: bool, source: Source) -> Iterator[Record]:
    """Yield what the lines record. The last line may be cut where `is_open`: its last value is left out."""
    headings = Counter(heading[0] for _, line in lines if (heading := _heading(line)))
    main = max(headings, key=lambda word: headings[word], default="")
    block = _Block(0)
    context: int | None = None
    evaluates = False
    for at, (number, line) in enumerate(lines):
        source.spend(0) if number % 100 == 0 else None
        is_cut = is_open and at == len(lines) - 1
        is_metric = len(line) <= _MAX_PROSE and (block.step is not None or "|" in line or "\u2502" in line)
        is_metric = is_metric and not is_cut and _is_metric(line)
        record = None if is_metric or len(line) > _MAX_RECORD else _record(number, line, is_cut=is_cut)
        heading = None if is_metric or record else _heading(line)
        is_rule = len(line) <= _MAX_PROSE and _RULE.fullmatch(line) and block.step is None
        if record or heading or is_rule:
            yield from block.records()
            block = _Block(number, heading[1] if heading else None, context)
        if record is not None:
            if record.step is None:
                values = _as_evaluation(record.values) if evaluates else record.values
                record = replace(record, values=values, context=context)
            yield record
            evaluates = False
        elif heading is not None:
            context, evaluates = heading[1], heading[0] != main
        elif is_metric:
            block.add(line, evaluates)
        elif len(line) <= _MAX_PROSE and not _PROGRESS_BAR.search(line):
            if named := _STEP.search(line):
                context, evaluates = _count(named[2]), False
            evaluates = (evaluates or bool(_EVALUATING.search(line))) and not _TRAINING.search(line)
    # The step of a box may be in a line that is still to come.
    yield from block.records() if not is_open or block.step is not None else ()


def _heading(line: str) -> tuple[str, int] | None:
    """Return (word, N) of a line that says nothing but 'Step N' or 'Step N/M', in a frame of other signs."""
    match = _STEP.search(line) if len(line) <= _MAX_PROSE else None
    if match is None or re.search(r"\w", line[: match.start()] + line[match.end() :]):
        return None
    return match[1].lower(), _count(match[2])


def _is_metric(line: str) -> bool:
    """Return whether a line says nothing but one 'name: value' or '| name | value |', or names a group of them."""
    match = _PAIR.search(line)
    return bool(_GROUP.search(line) or (match and not re.search(r"\w", line[: match.start()] + line[match.end() :])))


def _as_evaluation(values: Mapping[str, float]) -> Values:
    return {name if is_evaluation(name) else f"eval/{name}": value for name, value in values.items()}


# One line


def _record(number: int, line: str, *, is_cut: bool) -> Record | None:
    """Return what a line records, None for any other line."""
    match = _TAG.match(line.lstrip())
    tag = match[1] if match else ""
    begin = line.find("{")
    if begin >= 0 and (values := _dict_values(line[begin:])):
        if "histogram" in line[:begin].lower():
            values = _share_correct(values)
        before = _BEFORE_DICT.search(line[max(begin - 200, 0) : begin])
        counter, step = (before[1].lower(), int(before[2][:12])) if before else ("", None)
        if (own := find(TRAINER_STEP, list(values))) and (whole := _whole(values[own])) is not None:
            counter, step = "", whole
        return Record(line=number, style="dict", step=step, counter=counter, values=values, tag=tag) if values else None
    if bar := _BAR_VALUES.search(line):
        values = _values(_SEPARATOR.sub("\n", line[: bar.start()])) | _values((bar[3] or "").replace(", ", "\n"))
        if is_cut and values and "]" not in line[bar.start() :]:
            values.popitem()
        values |= _epoch(line[: bar.start()]) if values else {}
        return Record(line=number, style="bar", step=_count(bar[2]), values=values, tag=tag) if values else None
    named = _VERL.search(line)
    style = "verl" if named else "line"
    if named is None and len(line) <= _MAX_PROSE and not _PROGRESS_BAR.search(line):
        named = _STEP.search(line) or _finest(line) or _COARSE.search(line)
    if named is None and (len(line) > _MAX_PROSE or not _EVALUATING.search(line)):
        return None
    text = _SEPARATOR.sub("\n", f"{line[: named.start()]} | {line[named.end() :]}" if named else line)
    values = _values(text)
    if is_cut and values:
        values.popitem()
    if (first := _PAIR.search(text)) and _EVALUATING.search(text, 0, first.start() if named else len(text)):
        of_set = _EVALUATED.search(line)
        values = _as_evaluation({f"{of_set[1]}/{name.lower()}" if of_set else name: v for name, v in values.items()})
    if not values or (named is None and not any(map(rank_of, values))):
        return None
    counter, step = (named[1].lower(), _count(named[2])) if named else ("", None)
    values = (_epoch(line) | values) if counter not in ("epoch", "episode") else values
    return Record(line=number, style=style, step=step, counter=counter, values=values, tag=tag)


def _epoch(line: str) -> Values:
    match = _COARSE.search(line)
    return {match[1].lower(): float(_count(match[2]))} if match else {}


def _finest(line: str) -> re.Match[str] | None:
    """Return the largest counter N/M: in 'Epoch:[1/1](12/9751)' the finer one is the step."""
    return max(_COUNTER.finditer(line), key=lambda match: int(match[0].rpartition("/")[2][:12]), default=None)


def _values(text: str, pattern: re.Pattern[str] = _PAIR) -> Values:
    """Return the pairs of name and number in a text; the first of a name counts. Units become 1 and seconds."""
    values: Values = {}
    for match in pattern.finditer(text):
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
        return _values(text, _ITEM)
    values = {name: units.number(value) for name, value in loaded.items() if not isinstance(value, bool)}
    return {name: value for name, value in values.items() if value is not None}


def _share_correct(counts: Mapping[str, float]) -> Values:
    """Return the share of correct answers in a dict of counts; empty where none is said to be correct."""
    correct = [count for name, count in counts.items() if re.match(r"correct\b", name, re.IGNORECASE)]
    total = sum(counts.values())
    return {"accuracy": sum(correct) / total, "num_samples": total} if correct and total > 0 else {}


def _count(digits: str) -> int:
    return int(digits.replace(",", "")[:12])


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and float(value).is_integer() else None
