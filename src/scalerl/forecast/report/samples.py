"""The last samples of a run as a page shows them: who said what, with the verdict."""

import json
import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.forecast.report.metrics import number
from scalerl.forecast.report.safe_files import Root, newest_objects

MAX_TEXT = 40_000
"""Characters of one text that are shown; the file has the rest."""
KNOWN = ("step", "attempt", "problem", "prompt", "completion", "answer", "correct", "reward", "conversation")
"""Keys with a place of their own; others are shown under their names."""
LABELS = {"correct": "correct", "wrong": "wrong", "none": "no verdict"}


def newest_samples(path: Path, root: Root, num: int) -> list[dict[str, Any]]:
    """Return the last samples of a file, the newest first."""
    return [sample_json(row) for row in islice(newest_objects(path, root), num)]


def sample_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample as a page shows it, with long texts cut."""
    verdict = _verdict(row)
    step = number(row.get("step"))
    reward = number(row.get("reward"))
    texts = [("Prompt", _cut(row.get("prompt")), ""), *_spoken(row)]
    for key, value in row.items():
        if key not in KNOWN and value is not None:
            texts.append((str(key), _cut(value), ""))
    return {
        "step_text": f"step {row['step']}" if math.isfinite(step) else "",
        "verdict": verdict,
        "label": LABELS[verdict],
        "reward_text": f"reward {reward:.2f}" if math.isfinite(reward) else "",
        "answer_text": "" if row.get("answer") is None else f"expected {_text(row['answer'])[:80]}",
        "texts": texts,
    }


def _verdict(row: Mapping[str, Any]) -> str:
    correct = row.get("correct")
    if correct is None:
        return "none"
    if correct:
        return "correct"
    return "wrong"


def _spoken(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return who spoke, in order, up to MAX_TEXT characters in all; the answer alone if it is not a conversation."""
    parts = row.get("conversation")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        parts = []
    shown: list[tuple[str, str, str]] = []
    left = MAX_TEXT
    for part in parts:
        text = _text(part.get("text", ""))[:left]
        left -= len(text)
        if part.get("by") == "model":
            shown.append(("Model", text, "model"))
        else:
            shown.append(("Environment", text, "environment"))
        if left <= 0:
            break
    return shown or [("Answer", _cut(row.get("completion")), "model")]


def _cut(value: Any) -> str:
    text = ""
    if value is not None:
        text = _text(value)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} ..."


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
