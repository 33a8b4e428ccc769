"""Read and search the samples of a run straight from its file: newest first, a page at a time, within a time limit."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.forecast.report.document import say
from scalerl.forecast.report.inside import Root, newest_lines
from scalerl.forecast.report.metrics import number

PAGE = 20
MAX_TEXT = 40_000
"""Characters of one text that are shown; the file has the rest."""
MAX_PROBLEM = 6000
"""Characters by which a problem is recognised."""
SECONDS = 1.5
"""Time after which a search returns what it has, and where to go on."""
ERROR = re.compile(r"^[^\S\n]*+(\w*(error|exception)\b|traceback)", re.IGNORECASE | re.MULTILINE)
_KNOWN = ("step", "attempt", "problem", "prompt", "completion", "answer", "correct", "reward", "conversation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which samples are asked for."""

    text: str = ""
    """Words that prompt, completion, answer or the graders' words must contain, in any case."""
    problem: str | None = None
    verdict: str = ""
    """"correct", "wrong", "none" for those without a verdict, "error" for those with an error of a tool; or all."""
    before: int | None = None
    """Place in the file before which to go on; None begins with the newest."""
    num: int = PAGE


def search(path: Path, root: Root, query: Query) -> dict[str, Any]:
    """Return a page of samples, newest first, and `next`, from which the search goes on (None at the end)."""
    words = query.text.casefold().split()
    until = time.monotonic() + SECONDS
    rows: list[dict[str, Any]] = []
    before = query.before
    next_place: int | None = None
    for place, row in newest_lines(path, root, query.before):
        if row is not None and _matches(row, query, words):
            if len(rows) == query.num:
                next_place = before
                break
            rows.append(sample_json(row))
        before = place
        if time.monotonic() > until and place > 0:
            next_place = place
            break
    kind = "samples_shown" if rows else "no_sample" if next_place is None else "search_goes_on"
    return {"samples": rows, "next": next_place, "status": say(kind, num=len(rows)).text}


def _matches(row: Mapping[str, Any], query: Query, words: Sequence[str]) -> bool:
    if query.problem is not None and _text(row.get("problem"))[:MAX_PROBLEM] != query.problem[:MAX_PROBLEM]:
        return False
    if query.verdict and not (_has_error(row) if query.verdict == "error" else query.verdict == _verdict(row)):
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


def _has_error(row: Mapping[str, Any]) -> bool:
    """Return whether a tool, or the environment, answered with an error."""
    observed = [_text(part.get("text", "")) for part in _parts(row) if part.get("by") != "model"]
    return bool(row.get("error")) or any(ERROR.search(text) for text in observed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


LABELS = {"correct": "correct", "wrong": "wrong", "none": "no verdict"}


def sample_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample as a page shows it, with long texts cut."""
    others = [(str(key), _cut(value), "") for key, value in row.items() if key not in _KNOWN and value is not None]
    verdict = _verdict(row)
    step = number(row.get("step"))
    reward = number(row.get("reward"))
    return {
        "step": row["step"] if math.isfinite(step) else None,
        "step_text": f"step {row['step']}" if math.isfinite(step) else "",
        "problem": _text(row.get("problem", ""))[:MAX_PROBLEM],
        "verdict": verdict,
        "label": LABELS[verdict],
        "reward_text": f"reward {reward:.2f}" if math.isfinite(reward) else "",
        "answer_text": "" if row.get("answer") is None else f"expected {_text(row['answer'])[:80]}",
        "texts": [("Prompt", _cut(row.get("prompt")), ""), *_spoken(row), *others],
    }


def _cut(value: Any) -> str:
    text = "" if value is None else _text(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def _spoken(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return who spoke, in order, up to MAX_TEXT characters in all; the answer alone if it is not a conversation."""
    shown = []
    left = MAX_TEXT
    for part in _parts(row):
        text = _text(part.get("text", ""))[:left]
        is_model = part.get("by") == "model"
        if left:
            shown.append(("Model" if is_model else "Environment", text, "model" if is_model else "environment"))
        left -= len(text)
    return shown or [("Answer", _cut(row.get("completion")), "model")]
