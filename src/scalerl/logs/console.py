"""Console output of trainers: the records in it, picked out of everything else that is printed.

Three dialects:

    step:12 - actor/loss:0.1 - val-core/gsm8k/acc/mean@1:np.float64(0.5)          verl: where it is spoken, alone
    {'loss': 0.1, 'reward': '0.4'}     Global step 12: {'reward': 0.4}            dicts, as transformers prints them
    Step 12 | Reward: 0.35     [12/50] acc=50.0%     iter 12 loss 0.1     • Avg Reward: 0.27

A line gives values, names counters (step, epoch, N/M of a progress bar) or speaks of evaluation. Values that follow
each other belong to one record until a name comes again or a named counter moves; a progress bar ends nothing. Which
counter is the step of the log is decided once, by what it does: it rises from record to record. Without one the records
are counted. Lines whose words come only once are prose. Colours, NUL bytes and the prefixes of Ray are ignored.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.columns import ROLES, is_evaluation, plain, reward_rank
from scalerl.logs.frame import Placed, number
from scalerl.logs.objects import metrics_of
from scalerl.logs.source import MAX_WORD, Source

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RAY = re.compile(r"\s*+\((?:\S+ )?pid=\d+[^)]{0,80}\)\s?")
_NO_RUN = r"debug|info|warn(?:ing)?|error|critical|rank\S*|train|eval|val|test"
_TAG = re.compile(rf"\s*+\[(?!(?:{_NO_RUN})\])([A-Za-z_][\w.-]*+)\]", re.IGNORECASE)
_WRAPPER = re.compile(r"\b(?:(?:np|numpy|torch|jnp)\.\w{1,16}|tensor)\(")
_VERL = re.compile(r"(?<![\w/])step:(\d{1,12}) - ")
_ITEM = re.compile(r"""['"]([^'"]{1,200})['"]\s*+:\s*+['"]?([-+\w.]{1,64})""")
# 50%|###   | 12/24 [00:10<00:10, 2.0s/it, reward=0.35]: after a bar only 'name=value' is a value.
_BAR = re.compile(r"\d{1,3}%\|[^|]*+\|\s*+(\d{1,12})/(\d{1,12})")
_ASSIGNED = re.compile(r"[\w./@-]{1,200}=\s?[^\s,\]=]{1,64}")
_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:\.?\d(?:[\w.:/+-]|,(?=\d))*+(?:\s?%)?|(?:nan|inf)(?!\w)))"
    r"|(?P<word>[^\W\d][\w./@#+'-]*+)|(?P<mark>[:=])|(?P<end>[|\u2502;,\]]|\s-\s|\s\s(?!\s*+[-+.\d]))",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf))\s?(%|ms|s|)", re.IGNORECASE)
_OF = re.compile(r"(\d{1,12})/(\d{1,12})")
_UNITS = {"%": 100.0, "ms": 1000.0}
_COUNTED = "(?:step|iteration|iter|update|batch|rollout|episode|ep|epoch|timestep)s?"
_COUNTER = re.compile(_COUNTED, re.IGNORECASE)
# total_timesteps: a value that counts.
_COUNTING = re.compile(rf"(?:.*[/_. ])?{_COUNTED}(?:_total|/max_steps)?", re.IGNORECASE)
_METRIC = re.compile(r"(?:^|.*[/_])(?:reward|rew|accuracy|acc|score|return|loss|time)s?(?:[/_].*)?", re.IGNORECASE)
# eval 12: {...} has the number of whatever the log counts.
_NUMBERED = re.compile(r"\b(?:eval|evaluation|perf|train|training)\s*+[:#=]?\s*+(\d{1,12})\s*+[:|=>,-]*+\s*+$", re.IGNORECASE)
_EVALUATING = re.compile(r"\b(?:evaluat|validat|testing)|\[eval\]", re.IGNORECASE)
_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
_EVALUATED = re.compile(r"\bevaluated (\S{1,200}) in\b", re.IGNORECASE)
_CORRECT = re.compile(r"correct\b", re.IGNORECASE)

_MAX_WORDS = 4  # in a name
_MIN_RECORDS_PER_TAG = 3
# The share of records at which a counter that they do not name themselves rises, if it is their step.
_MIN_RISES = 0.2
# Longer lines are prompts and answers; a record of many metrics has some ten thousand characters.
_MAX_RECORD = 60_000
_MAX_PROSE = 2_000
_STEPS = {name: place for place, name in enumerate((*ROLES["step"], *ROLES["coarse"]))}

Line = tuple[int, str]
Values = dict[str, float]
Counters = dict[str, int]


@dataclass(slots=True)
class Record:
    """Values that belong together, and where every counter stood."""

    line: int
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far; those of bars are named by their end, as '/250'."""
    own: set[str]
    """Counters that its own lines name; "" is whatever the log counts."""
    words: str
    """The words of its first line, which tell prose from records."""
    tag: str = ""


def console_rows(source: Source) -> Placed | None:
    """Return one row per record, with its step; None if the text holds no dict and not two other records."""
    lines = list(_lines(source))
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    records = list(_verl_records(lines, is_open)) or _of_the_run(list(_records(lines, is_open, source)))
    if len(records) > 1 or any(record.words == "" for record in records):
        return _as_rows(records, source, num_lines=lines[-1][0])
    longest = max((len(word) for _, line in lines for word in line.split()), default=0)
    if longest > MAX_WORD:
        raise InputError(f"{source.path} holds a word of {longest:,} characters, and {MAX_WORD:,} is the limit.")
    return None


def _lines(source: Source) -> Iterator[Line]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for at, line in enumerate(source.text.replace("\0", "").split("\n"), start=1):
        source.spend()
        for part in (_ESCAPES.sub("", line) if "\x1b" in line else line).split("\r"):
            if part.strip():
                yield at, _RAY.sub("", part, count=1) if "pid=" in part[:200] else part


# Which records are taken, and their steps


def _of_the_run(records: Sequence[Record]) -> list[Record]:
    """Return the records without prose: without lines of which there is only one, if most lines have others like them.

    Of the rest, evaluations and what shares a name with the records of the most frequent reward are kept.
    """
    like = Counter(record.words for record in records)
    common = [record for record in records if like[record.words] > 1 or not record.words]
    kept = common if 2 * len(common) > len(records) else records
    rewards = Counter(name for record in kept for name in record.values if reward_rank(name))
    main = max(rewards, key=lambda name: rewards[name], default="")
    shared = {name for record in kept if main in record.values for name in record.values} - set(ROLES["coarse"])
    return [
        record
        for record in kept
        if not main or "" in record.own or not shared.isdisjoint(record.values) or _evaluates(record.values)
    ]


def _evaluates(names: Iterable[str]) -> bool:
    return any(is_evaluation(name) and reward_rank(name) for name in names)


def _as_rows(records: Sequence[Record], source: Source, num_lines: int) -> Placed:
    steps, origin = _steps(records)
    tags = Counter(record.tag for record in records)
    has_runs = len(tags) > 1 and min(tags.values()) >= _MIN_RECORDS_PER_TAG
    source.note("lines_taken", num=len(records), num_lines=num_lines, origin=origin)
    if origin == "counted":
        source.note("rows_counted", num=max(steps))
    rows: Placed = []
    for record, step in zip(records, steps, strict=True):
        run = {"run": record.tag} if has_runs else {}
        coarse = {name: float(record.counters[name]) for name in ROLES["coarse"] if name in record.counters}
        rows.append((f"line {record.line}", {**run, **coarse, **record.values, "step": step}))
    return rows


def _steps(records: Sequence[Record]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from: the counter that rises from record to record.

    Only records of training are asked: those with the value that most of them have, such as 'loss'.
    """
    names = Counter(name for record in records for name in record.values if not is_evaluation(name))
    main = max((name for name in names if not _COUNTING.fullmatch(name)), key=lambda name: names[name], default="")
    is_training = [not main or main in record.values for record in records]
    training = list(itertools.compress(records, is_training))
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

    def preference(name: str) -> tuple[bool, int, bool]:
        return 2 * own[name] > len(training), -_STEPS.get(plain(name), len(_STEPS)), not name.startswith("/")

    step = max(usable, key=preference)
    given = [record.counters.get("" if "" in record.own and step not in record.own else step) for record in records]
    steps = itertools.accumulate(given, lambda before, at: before if at is None else at, initial=0)
    context = "that of the progress bar" if step.startswith("/") else "that of the line before"
    return list(map(int, steps))[1:], "in the line" if 2 * own[step] > len(training) else context


# Records


def _verl_records(lines: Sequence[Line], is_open: bool) -> Iterator[Record]:
    """Yield the records of verl's dialect. Where the last line may be cut, its last value is left out."""
    for at, (line_number, line) in enumerate(lines):
        head = _VERL.search(line)
        if head and len(line) <= _MAX_RECORD:
            is_cut = is_open and at == len(lines) - 1
            parts = [part.rpartition(":") for part in line[head.end() :].split(" - ")][: -1 if is_cut else None]
            values = {name.strip(): _unwrapped(text) for name, _, text in parts if 0 < len(name) <= MAX_WORD}
            known = {name: value for name, value in values.items() if value == value}
            if known:
                step = {"step": int(head[1])}
                yield Record(line_number, known, step, {"step"}, "")


def _unwrapped(text: str) -> float:
    return number(_WRAPPER.sub("", text).rstrip(") \t"))


def _records(lines: Sequence[Line], is_open: bool, source: Source) -> Iterator[Record]:
    """Yield what the lines record. Where the last line may be cut, its last value and its block are left out."""
    record, context, in_block, evaluates, is_bare = None, Counters(), False, False, False
    for at, (line_number, line) in enumerate(lines):
        source.spend()
        if len(line) > (_MAX_RECORD if "{" in line else _MAX_PROSE):
            continue
        is_bar = _BAR.search(line) is not None
        is_cut = is_open and at == len(lines) - 1
        counters, values, is_bare = _read(line, in_block, is_cut)
        before, context = context, context | {name: value for name, value in counters.items() if name}
        if not values:
            if not is_bar:
                # A heading that repeats the step, as in the box of an evaluation, ends nothing.
                evaluates = (evaluates and context == before) or bool(_EVALUATING.search(line))
                evaluates = evaluates and not _TRAINING.search(line)
                in_block = in_block or bool(counters) or evaluates
            continue
        values = _as_evaluation(values) if evaluates and not counters else values
        own = counters | {name: int(value) for name, value in values.items() if _counts(name, value)}
        context |= {name: value for name, value in own.items() if name}
        if record and is_bar and record.own == own.keys() and record.counters == context:
            record.values |= values  # a bar is drawn again and again while its step stays
        elif record and record.values.keys().isdisjoint(values) and _agree(record.counters, context, values):
            record.values |= values
            record.own |= own.keys()
            record.counters |= context
        else:
            if record:
                yield record
            tag = _TAG.match(line)
            words = "" if "{" in line and not is_bar else _words_of(line)
            record = Record(line_number, values, context | own, set(own), words, tag[1] if tag else "")
        if not is_bare:
            evaluates = in_block = False
    if record and not (is_open and is_bare):
        yield record


def _words_of(line: str) -> str:
    return " ".join(token[0] for token in _TOKEN.finditer(line) if token.lastgroup == "word")


def _agree(then: Counters, now: Counters, values: Values) -> bool:
    """Return whether no named counter has moved, except those that are values themselves."""
    return all(
        now.get(name, count) == count for name, count in then.items() if name not in values and name[:1] != "/"
    )


def _counts(name: str, value: float) -> bool:
    return float(value).is_integer() and _COUNTING.fullmatch(name) is not None


def _as_evaluation(values: Mapping[str, float]) -> Values:
    return {name if is_evaluation(name) else f"eval/{name}": value for name, value in values.items()}


# One line


def _read(line: str, in_block: bool, is_cut: bool) -> tuple[Counters, Values, bool]:
    """Return the counters that a line names, the values that it records, and whether it holds nothing else."""
    begin = line.find("{")
    if begin >= 0 and (values := _dict_values(line[begin:])):
        prefix = line[max(begin - 200, 0) : begin]
        counters, _, _ = _tokens(prefix)
        if (match := _NUMBERED.search(prefix)) and not counters:
            counters[""] = int(match[1])
        return counters, values, False
    *before, last = _BAR.split(line)[::3]
    bars = {f"/{end}": int(at) for at, end in _BAR.findall(line)}
    text = " | ".join([*before, *_ASSIGNED.findall(last)]) if bars else _unboxed(line)
    counters, values, num_words = _tokens(text, is_cut)
    is_boxed = not bars and text != line
    if is_boxed and not values and num_words == 0:
        counters, values = {}, {name: float(count) for name, count in counters.items()}
    counters = bars | counters
    is_bare = not counters and num_words == 0 and len(values) == 1
    if values and _EVALUATING.search(line) and (not counters or _EVALUATING.search(line.partition(min(values))[0])):
        of_set = _EVALUATED.search(line)
        values = _as_evaluation({f"{of_set[1]}/{name.lower()}" if of_set else name: v for name, v in values.items()})
    has_counter = bool(counters) or (not is_bare and any(_counts(name, value) for name, value in values.items()))
    is_record = has_counter or (is_bare and (in_block or is_boxed)) or _evaluates(values)
    return counters, values if is_record and not (is_bare and is_cut) else {}, is_bare


def _unboxed(line: str) -> str:
    """Return a line of a box, `| name | value |`, as `name : value`; any other as it is."""
    cells = [cell.strip() for cell in re.split(r"[|\u2502]", line.strip(" \t|\u2502"))]
    return " : ".join(cells) if line.lstrip()[:1] in ("|", "\u2502") and len(cells) <= 2 else line


def _tokens(text: str, is_cut: bool = False) -> tuple[Counters, Values, int]:
    """Return counters and values in a text, the first of a name, and the number of words that name neither."""
    counters, values, num_words = Counters(), Values(), 0
    words: list[str] = []
    is_marked = False
    for token in _TOKEN.finditer(_WRAPPER.sub("", text)):
        kind, word = token.lastgroup, token[0].strip(" .,:")
        if kind == "mark":
            is_marked = bool(words)
            continue
        if kind == "word":
            num_words += len(words) * is_marked
            words = [word] if is_marked else [*words, word]
            is_marked = False
            continue
        name, count = (words[-1] if words else ""), _OF.fullmatch(word)
        value = None if is_cut and token.end() == len(text.rstrip()) else _value(word)
        if kind == "number" and count and name and not _COUNTER.fullmatch(name):
            continue  # 128/512 (25.0%): the share follows
        if count and kind == "number":
            counters.setdefault(_counter_name(name) or f"/{count[2]}", int(count[1]))
        elif kind == "number" and value is not None and _COUNTER.fullmatch(name) and value.is_integer():
            counters.setdefault(_counter_name(name), int(value))
        elif kind == "number" and value is not None and (is_marked or _is_metric(words, value)):
            values.setdefault(" ".join(words[-_MAX_WORDS:])[:MAX_WORD], value)
            num_words += len(words[:-_MAX_WORDS])
        else:
            num_words += len(words)
        words, is_marked = [], False
    return counters, values, num_words + len(words)


def _is_metric(words: Sequence[str], value: float) -> bool:
    """Return whether words name a value without a mark between them: 'loss 0.12', 'num_env_steps 4000'."""
    return any(map(_METRIC.fullmatch, words)) or (bool(words) and _counts(words[-1], value))


def _counter_name(word: str) -> str:
    return {"ep": "episode", "iter": "iteration"}.get(word.lower(), word.lower())


def _value(word: str) -> float | None:
    """Return a number with its unit as 1 and seconds; None for a time of day, a date or a version."""
    match = _NUMBER.fullmatch(word) if len(word) <= 64 else None
    value = number(match[1].replace(",", "")) if match else float("nan")
    is_named = match is not None and "n" in match[1].lower()
    return value / _UNITS.get(match[2].lower(), 1.0) if match and (is_named or value == value) else None


def _dict_values(text: str) -> Values:
    """Return the numbers of a Python or JSON dict that begins here, also those written as strings."""
    text = text[: text.rfind("}") + 1]
    if not re.match(r"\{\s*+['\"]", text):
        return {}
    try:
        items: Iterable[tuple[str, Any]] = metrics_of(json.loads(text)).items()
    except (ValueError, RecursionError):
        items = _ITEM.findall(_WRAPPER.sub("", text))
    values = {name: number(value) for name, value in items if not isinstance(value, bool)}
    return _share_correct({name: value for name, value in values.items() if value == value})


def _share_correct(values: Values) -> Values:
    """Return a tally of answers, such as {'correct': 3, 'wrong': 5}, as the share of correct ones; else the values."""
    correct = [value for name, value in values.items() if _CORRECT.match(name)]
    total = sum(values.values())
    is_tally = correct and len(values) > 1 and all(value >= 0 and value.is_integer() for value in values.values())
    return {"accuracy": sum(correct) / total, "num_samples": total} if is_tally and total > 1 else values
