"""Read and search the samples of a run straight from its file: newest first, a page at a time, within a time limit."""

import json
import os
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.report.files import MAX_LINE, Root, json_object, open_inside

PAGE = 20
MAX_PAGE = 100
MAX_TEXT = 6000
"""Characters of one text in a list; the rest is shown when a sample is opened."""
MAX_WHOLE = 400_000
SECONDS = 1.5
"""Time after which a search returns what it has, and where to go on."""
_CHUNK = 1 << 24
# Inode of each file and where the lines begin that were found in it: only what was added since is read.
_OFFSETS: dict[Path, tuple[int, "array[int]"]] = {}
_KNOWN = ("step", "attempt", "problem", "prompt", "completion", "answer", "correct", "reward", "conversation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which samples are asked for."""

    text: str = ""
    """Words that prompt, completion, answer or the graders' words must contain, in any case."""
    problem: str | None = None
    verdict: str = ""
    """"correct", "wrong" or "none" for those without a verdict; empty for all."""
    before: int | None = None
    """Number of the sample before which to go on; None begins with the newest."""
    num: int = PAGE


def search(path: Path, root: Root, query: Query) -> dict[str, Any]:
    """Return a page of samples, newest first, and `next`, from which the search goes on (None at the end)."""
    offsets = line_offsets(path, root)
    num = max(len(offsets) - 1, 0)
    end = num if query.before is None else min(max(query.before, 0), num)
    words, until = query.text.casefold().split(), time.monotonic() + SECONDS
    rows: list[dict[str, Any]] = []
    next_place: int | None = None
    for place, row in _rows(path, root, offsets, end):
        if _matches(row, query, words):
            if len(rows) == min(query.num, MAX_PAGE):
                next_place = place + 1
                break
            rows.append(sample_json(place, row, MAX_TEXT))
        if time.monotonic() > until and place > 0:
            next_place = place
            break
    return {"samples": rows, "next": next_place, "total": num}


def one_sample(path: Path, root: Root, place: int) -> dict[str, Any] | None:
    """Return one sample with its whole texts; None if there is no such sample."""
    offsets = line_offsets(path, root)
    if not 0 <= place < len(offsets) - 1:
        return None
    numbered = next(_rows(path, root, offsets, place + 1), None)
    return None if numbered is None or numbered[0] != place else sample_json(place, numbered[1], MAX_WHOLE)


def line_offsets(path: Path, root: Root) -> "array[int]":
    """Return where the whole lines of a file begin, in bytes, and last where they end; empty without a file."""
    descriptor = open_inside(path, root)
    if descriptor is None:
        return array("Q")
    with os.fdopen(descriptor, "rb") as file:
        inode, before = _OFFSETS.get(path, (0, array("Q", [0])))
        # A file that was written anew is not the one whose lines are known.
        file.seek(max(before[-1] - 1, 0))
        is_longer = inode == os.fstat(descriptor).st_ino and file.read(1) == b"\n"
        offsets = before[:] if is_longer else array("Q", [0])
        begin = file.seek(offsets[-1])
        while data := file.read(_CHUNK):
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
            offsets.extend((ends + begin + 1).tolist())
            begin += len(data)
        _OFFSETS[path] = os.fstat(descriptor).st_ino, offsets
    return offsets


def _rows(path: Path, root: Root, offsets: Sequence[int], end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row) backwards from the sample before `end`."""
    descriptor = open_inside(path, root)
    if descriptor is None:
        return
    try:
        for place in range(end - 1, -1, -1):
            size = offsets[place + 1] - offsets[place]
            row, fault = json_object(os.pread(descriptor, size, offsets[place])) if size <= MAX_LINE else ({}, "long")
            if not fault:
                yield place, row
    finally:
        os.close(descriptor)


def _matches(row: Mapping[str, Any], query: Query, words: Sequence[str]) -> bool:
    if query.problem is not None and _text(row.get("problem"))[:MAX_TEXT] != query.problem[:MAX_TEXT]:
        return False
    if query.verdict and query.verdict != _verdict(row):
        return False
    if not words:
        return True
    content = "\n".join(_text(value) for key, value in row.items() if key not in ("step", "attempt")).casefold()
    return all(word in content for word in words)


def _verdict(row: Mapping[str, Any]) -> str:
    correct = row.get("correct")
    return "none" if correct is None else "correct" if correct else "wrong"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def sample_json(place: int, row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a sample with its texts cut to `most` characters; what else the row holds are the graders' words."""
    texts = {key: _text(row[key]) for key in ("prompt", "completion", "answer") if row.get(key) is not None}
    words = {str(key): _text(value)[:most] for key, value in row.items() if key not in _KNOWN and value is not None}
    reward = row.get("reward")
    return {
        "number": place,
        "step": row.get("step") if isinstance(row.get("step"), int | float) else None,
        "problem": _text(row.get("problem", ""))[:MAX_TEXT],
        **{key: text[:most] for key, text in texts.items()},
        "cut": sum(max(len(text) - most, 0) for text in texts.values()),
        "verdict": _verdict(row),
        "reward": reward if isinstance(reward, int | float) and not isinstance(reward, bool) else None,
        "words": words,
        **_conversation(row.get("conversation"), most),
    }


def _conversation(parts: Any, most: int) -> dict[str, Any]:
    """Return who said what in a conversation, in order, up to `most` characters in all; nothing if it is not one."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return {}
    said, left = [], most
    for part in parts:
        text = _text(part.get("text", ""))
        said.append({"by": "model" if part.get("by") == "model" else "environment", "text": text[:left]})
        left -= len(text[:left])
        if not left:
            break
    return {"conversation": said}
