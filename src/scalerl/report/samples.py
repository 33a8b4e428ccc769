"""Read and search the samples of a run straight from its file: newest first, a page at a time, within a time limit."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.report.document import say
from scalerl.report.inside import Lines, Root
from scalerl.report.metrics import number

PAGE = 20
MAX_PAGE = 100
MAX_TEXT = 6000
"""Characters of one text in a list; the rest is shown when a sample is opened."""
MAX_WHOLE = 400_000
SECONDS = 1.5
"""Time after which a search returns what it has, and where to go on."""
ERROR = re.compile(r"^[^\S\n]*+(\w*(error|exception)\b|traceback)", re.IGNORECASE | re.MULTILINE)
_LINES: dict[Path, Lines] = {}
_KNOWN = ("step", "attempt", "problem", "prompt", "completion", "answer", "correct", "reward", "conversation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which samples are asked for."""

    text: str = ""
    """Words that prompt, completion, answer or the graders' words must contain, in any case."""
    problem: str | None = None
    verdict: str = ""
    """"correct", "wrong", "none" for those without a verdict, "error" for those with an error of a tool; or all."""
    turns: int | None = None
    """The least number of turns that the model took in a conversation."""
    before: int | None = None
    """Number of the sample before which to go on; None begins with the newest."""
    num: int = PAGE


def search(path: Path, root: Root, query: Query) -> dict[str, Any]:
    """Return a page of samples, newest first, and `next`, from which the search goes on (None at the end)."""
    lines = lines_of(path, root)
    num = len(lines)
    end = num if query.before is None else min(max(query.before, 0), num)
    words, until = query.text.casefold().split(), time.monotonic() + SECONDS
    rows: list[dict[str, Any]] = []
    next_place: int | None = None
    for place, row in lines.rows(range(end - 1, -1, -1)):
        if row is not None and _matches(row, query, words):
            if len(rows) == min(query.num, MAX_PAGE):
                next_place = place + 1
                break
            rows.append(sample_json(place, row, MAX_TEXT))
        if time.monotonic() > until and place > 0:
            next_place = place
            break
    kind = "samples_shown" if rows else "no_sample" if next_place is None else "search_goes_on"
    status = say(kind, num=len(rows), total=num).text
    return {"samples": rows, "next": next_place, "total": num, "status": status}


def one_sample(path: Path, root: Root, place: int) -> dict[str, Any] | None:
    """Return one sample with its whole texts; None if there is no such sample."""
    lines = lines_of(path, root)
    _, row = next(lines.rows([place] if 0 <= place < len(lines) else ()), (place, None))
    return None if row is None else sample_json(place, row, MAX_WHOLE)


def lines_of(path: Path, root: Root) -> Lines:
    """Return the lines of a file as it is now; those that were known before are not read again."""
    lines = _LINES.setdefault(path, Lines(path, root))
    lines.refresh()
    return lines


def _matches(row: Mapping[str, Any], query: Query, words: Sequence[str]) -> bool:
    if query.problem is not None and _text(row.get("problem"))[:MAX_TEXT] != query.problem[:MAX_TEXT]:
        return False
    if query.verdict and not (_has_error(row) if query.verdict == "error" else query.verdict == _verdict(row)):
        return False
    if query.turns is not None and num_turns(row) < query.turns:
        return False
    if not words:
        return True
    content = "\n".join(_text(value) for key, value in row.items() if key not in ("step", "attempt")).casefold()
    return all(word in content for word in words)


def _verdict(row: Mapping[str, Any]) -> str:
    correct = row.get("correct")
    return "none" if correct is None else "correct" if correct else "wrong"


def _parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a conversation; empty where a sample is none."""
    parts = row.get("conversation")
    return parts if isinstance(parts, list) and all(isinstance(part, dict) for part in parts) else []


def num_turns(row: Mapping[str, Any]) -> int:
    """Return how often the model spoke."""
    return sum(part.get("by") == "model" for part in _parts(row)) or 1


def _has_error(row: Mapping[str, Any]) -> bool:
    """Return whether a tool, or the environment, answered with an error."""
    observed = [_text(part.get("text", "")) for part in _parts(row) if part.get("by") != "model"]
    return bool(row.get("error")) or any(ERROR.search(text) for text in observed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


LABELS = {"correct": "correct", "wrong": "wrong", "none": "no verdict"}


def sample_json(place: int, row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a sample as a page shows it, with its texts cut to `most` characters."""
    whole = {key: _text(row[key]) for key in ("prompt", "completion", "answer") if row.get(key) is not None}
    others = [(str(key), _text(value)[:most], "") for key, value in row.items()
              if key not in _KNOWN and value is not None]  # fmt: skip
    spoken = _conversation(row, most) or [("Answer", whole.get("completion", "")[:most], "model")]
    answer, verdict = whole.get("answer"), _verdict(row)
    step, reward = number(row.get("step")), number(row.get("reward"))
    cut = sum(max(len(text) - most, 0) for text in whole.values())
    return {
        "number": place,
        "step": row["step"] if math.isfinite(step) else None,
        "problem": _text(row.get("problem", ""))[:MAX_TEXT],
        "verdict": verdict,
        "label": LABELS[verdict],
        "reward_text": f"reward {reward:.2f}" if math.isfinite(reward) else "",
        "answer_text": "" if answer is None else f"expected {answer[:80]}",
        "turns": num_turns(row),
        "cut": cut,
        "texts": [("Prompt", whole.get("prompt", "")[:most], ""), *spoken, *others],
    }


def _conversation(row: Mapping[str, Any], most: int) -> list[tuple[str, str, str]]:
    """Return who spoke in a conversation, in order, up to `most` characters in all; empty if it is not one."""
    shown, left = [], most
    for part in _parts(row):
        text, is_model = _text(part.get("text", "")), part.get("by") == "model"
        shown.append(("Model" if is_model else "Environment", text[:left], "model" if is_model else "environment"))
        left -= len(text[:left])
        if not left:
            break
    return shown
