"""The lines of console output, as the program printed them: without colours, the names of processes, and wrapping.

Dicts and records of verl are one line however a terminal has wrapped them. A part of a line that a carriage return
overwrites is a line of its own.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from scalerl.forecast.logs.readers.printed import MAX_RECORD, VERL
from scalerl.forecast.logs.readers.source import Source

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# (TaskRunner pid=31337), as Ray puts before the lines of a process.
_RAY = re.compile(r"\s{0,20}\(((?:\S{1,80} )?pid=\d{1,12})[^)]{0,80}\)\s?|")
# | eval/ |  |, and | mean_reward | 1.5 | under it
_SECTION = re.compile(r"\|\s+(\w+/)\s*\|\s*\|\s*")
_IN_SECTION = re.compile(r"\|\s{2,}(?=\w)")
# A dict that goes on in the next line, and the end of one with something behind it.
_OPEN_DICT = re.compile(r"\{\s*+['\"][^{}]*+$")
_BEHIND_DICT = re.compile(r"(?<=\})(?!\s*+[,}\])])(?=[^{}]*+\{['\"])")
# The rest of a record of verl.
_MORE_ITEMS = re.compile(r"\S*\s?- [\w@./-]+:[^\s:]+(?: - |$)|\s?\S+:\S+ - [\w@./-]+:")
_MAX_WRAPPED = 60
# A terminal that wraps lines fills at least so many.
_MIN_FULL = 3


class Printed(NamedTuple):
    """A line as it was printed."""

    at: int
    """Its number in the file."""
    speaker: str
    """The process that printed it, if the line says so."""
    text: str
    is_full: bool = False
    """Whether it is as long as the terminal is wide, so that the next one may go on in the middle of a word."""


def printed_lines(source: Source) -> Iterator[Printed]:
    """Yield the lines that hold something."""
    begun, whole = list[Printed](), ""
    for line in _as_written(source):
        joint = _joint(begun, whole, line) if len(begun) < _MAX_WRAPPED and len(whole) < MAX_RECORD else None
        if joint is None:
            yield from _records_in(begun, whole)
            begun, whole = [], ""
        begun.append(line)
        whole += (joint or "") + line.text
    yield from _records_in(begun, whole)


def _joint(begun: list[Printed], whole: str, line: Printed) -> str | None:
    """Return what stands between the lines that have begun and one that goes on with them; None if it does not."""
    if not begun:
        return None
    is_wrapped = begun[-1].is_full and "%|" not in line.text and not (line.speaker and begun[0].speaker)
    if _OPEN_DICT.search(whole) and line.text.lstrip()[0] != "{":
        return "" if is_wrapped else " "
    is_verl = VERL.search(whole) and not VERL.search(line.text)
    return "" if is_verl and (is_wrapped or _MORE_ITEMS.match(line.text)) else None


def _records_in(lines: list[Printed], whole: str) -> Iterator[Printed]:
    """Yield the records in lines that belong together; the lines as they are where a dict is never closed."""
    is_closed = lines and not _OPEN_DICT.search(whole)
    yield from (lines[0]._replace(text=part) for part in _BEHIND_DICT.split(whole)) if is_closed else lines


def _as_written(source: Source) -> Iterator[Printed]:
    """Yield the lines of the file, and each part of them that a carriage return overwrites."""
    lines = [_ESCAPES.sub("", line.rstrip("\r")) for line in source.text.replace("\0", "").split("\n")]
    width, num_full = max(Counter(map(len, lines)).items())
    section = ""
    for at, line in enumerate(lines, start=1):
        source.spend()
        is_full = len(line) == width and num_full >= _MIN_FULL
        for part in line.split("\r"):
            prefix = _RAY.match(part[:200])
            speaker, head = ((prefix[1] or ""), part[prefix.end() : 200]) if prefix else ("", part[:200])
            title = _SECTION.fullmatch(head)
            section = title[1] if title else "" if head[:1] == "-" else section
            text = (_IN_SECTION.sub(f"| {section}", head, count=1) if section else head) + part[200:]
            if text.strip():
                yield Printed(at, speaker, text, is_full)
