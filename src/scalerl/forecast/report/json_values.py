"""Values as JSON types, and a document as `--json` prints it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.forecast.report.document import Json, Say, Section
from scalerl.forecast.report.wording import Lookup


def plain(value: Any) -> Any:
    """Return JSON types: an enum by its value, a dataclass by its fields, null for a number that is not finite."""
    match value:
        case Enum():
            return value.value
        case float():
            if math.isfinite(value):
                return float(value)
            return None
        case np.generic():
            return plain(value.item())
        case np.ndarray():
            return rounded(value)
        case Say():
            return {"kind": value.kind, "level": value.level.value, "text": value.text, "values": plain(value.values)}
        case Mapping():
            return {f"{key:g}" if isinstance(key, float) else str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case Path():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


def picked(names: Iterable[str], *objects: Any) -> Json:
    """Return values by name as JSON types, from the first object that has each; null where none has it."""
    values = Lookup(*objects)
    return {name: plain(values.get(name)) for name in names}


def to_json(document: Sequence[Section]) -> list[Json]:
    """Return the sections: each block with its type, and each sentence with its kind and its values."""
    made: list[Json] = []
    for section in document:
        blocks = [{"type": type(block).__name__.lower(), **plain(block)} for block in section.blocks]
        made.append({"key": section.key, "title": section.title, "blocks": blocks})
    return made


def rounded(values: np.ndarray, digits: int = 6) -> list[Any]:
    """Return an array as a list: numbers rounded to significant digits, None where not finite; words as they are."""
    if values.dtype.kind != "f":
        return values.tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
