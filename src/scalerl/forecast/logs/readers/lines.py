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
_RAY = re.compile(r"\s{0,20}\(((?:\S{1,80} )?pid=\d{1,12})[^)]{0,80}\)\s?")
# | eval/ |  |, and | mean_reward | 1.5 | under it
_SECTION = re.compile(r"\|\s+(\w+/)\s*\|\s*\|\s*")
_IN_SECTION = re.compile(r"\|\s{2,}(?=\w)")
# A dict that goes on in the next line, and the end of one with something behind it.
_OPEN_DICT = re.compile(r"\{\s*+['\"][^{}]*+$")
_BEHIND_DICT = re.compile(r"(?<=\})(?!\s*+[,}\])])(?=[^{}]*+\{['\"])")
# The rest of a record of verl.
_MORE_ITEMS = re.compile(r"\S*\s?- [\w@./-]+:[^\s:]+(?: - |$)|\s?\S+:\S+ - [\w@./-]+:")
_MAX_WRAPPED = 60
# Characters that may hold the name of a process, or the title of a section.
_MAX_TITLE = 200
_LINES_BETWEEN_LOOKS = 1_000
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
    begun: list[Printed] = []
    whole = ""
    for line in _as_written(source):
        between = _between(begun, whole, line) if begun else None
        if between is None:
            yield from _records_in(begun, whole)
            begun = []
            whole = ""
        if begun or "{" in line.text or "step:" in line.text:
            begun.append(line)
            whole += (between or "") + line.text
        else:
            yield line
    yield from _records_in(begun, whole)


def _between(begun: list[Printed], whole: str, line: Printed) -> str | None:
    """Return what stands between the lines that have begun and one that goes on with them; None if it does not."""
    if len(begun) == _MAX_WRAPPED or len(whole) >= MAX_RECORD:
        return None
    is_wrapped = begun[-1].is_full and "%|" not in line.text and not (line.speaker and begun[0].speaker)
    if _OPEN_DICT.search(whole) and line.text.lstrip()[0] != "{":
        return "" if is_wrapped else " "
    if VERL.search(whole) and not VERL.search(line.text) and (is_wrapped or _MORE_ITEMS.match(line.text)):
        return ""
    return None


def _records_in(lines: list[Printed], whole: str) -> Iterator[Printed]:
    """Yield the records in lines that belong together; the lines as they are where a dict is never closed."""
    if _OPEN_DICT.search(whole):
        yield from lines
    elif lines:
        for part in _BEHIND_DICT.split(whole):
            yield lines[0]._replace(text=part)


def _as_written(source: Source) -> Iterator[Printed]:
    """Yield the lines of the file, and each part of them that a carriage return overwrites."""
    text = source.text.replace("\0", "")
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if "\x1b" in text:
        lines = [_ESCAPES.sub("", line) for line in lines]
    width, num_full = max(Counter(map(len, lines)).items())
    section = ""
    for at, line in enumerate(lines, start=1):
        if at % _LINES_BETWEEN_LOOKS == 0:
            source.budget.spend()
        is_full = len(line) == width and num_full >= _MIN_FULL
        for part in line.split("\r"):
            ray = _RAY.match(part[:_MAX_TITLE]) if "pid=" in part else None
            said = part[ray.end() :] if ray else part
            title = _SECTION.fullmatch(said) if said[:1] == "|" else None
            if title:
                section = title[1]
            elif said[:1] == "-":
                section = ""
            elif section:
                said = _IN_SECTION.sub(f"| {section}", said, count=1)
            if said and not said.isspace():
                yield Printed(at, ray[1] if ray else "", said, is_full)
