"""Convert groups to flat arrays (for safetensors) and JSON types for a checkpoint, and back.

In JSON, the first item of a list names its kind: a class and its fields, a tuple, a problem by its number, or the
next entries of an array.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.training.types import Completion, Episode, Group, LengthPlan, Problem, Request

_PROMPTS = ("prompt_tokens", "hint_tokens")
"""Fields of a request that are stored as arrays."""
_KINDS = {kind.__name__: kind for kind in (Completion, Episode, Group, LengthPlan, Problem, Request)}


def pack_groups(groups: Sequence[Group]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays of all groups, joined by dtype and shape, and everything else as JSON types."""
    arrays: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    problems: dict[Problem, int] = {}

    def packed(value: Any) -> Any:
        if isinstance(value, Problem):
            return ["problem", problems.setdefault(value, len(problems))]
        if is_dataclass(value):
            return fields_of(value)
        if isinstance(value, np.ndarray):
            name = "x".join([value.dtype.name, *map(str, value.shape[1:])])
            arrays[name].append(value)
            return ["array", name, len(value)]
        if isinstance(value, Mapping):
            return {name: packed(each) for name, each in value.items()}
        return ["tuple", *map(packed, value)] if isinstance(value, tuple) else value

    def fields_of(value: Any) -> Any:
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Request):
            values |= {name: np.asarray(values[name], np.int32) for name in _PROMPTS}
        if isinstance(value, LengthPlan):
            # The table that recognises the end of thinking is large, and a finished completion does not need it.
            values["ending"] = None
        return [type(value).__name__, {name: packed(each) for name, each in values.items()}]

    meta = {"groups": [packed(group) for group in groups], "problems": list(map(fields_of, problems))}
    return {name: np.concatenate(parts) for name, parts in arrays.items()}, meta


def unpack_groups(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> tuple[Group, ...]:
    """Return groups equal to the ones that were passed to pack_groups."""
    taken: Counter[str] = Counter()

    def unpacked(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: unpacked(each) for name, each in value.items()}
        if not isinstance(value, list):
            return value
        kind, *rest = value
        if kind == "tuple":
            return tuple(map(unpacked, rest))
        if kind == "problem":
            return problems[rest[0]]
        if kind == "array":
            name, num = rest
            taken[name] += num
            return arrays[name][taken[name] - num : taken[name]]
        values = unpacked(rest[0])
        if kind == "Request":
            values |= {name: tuple(values[name].tolist()) for name in _PROMPTS if name in values}
        return _KINDS[kind](**values)

    problems: list[Problem] = list(map(unpacked, meta["problems"]))
    groups = tuple(map(unpacked, meta["groups"]))
    if taken != (held := {name: len(array) for name, array in arrays.items()}):
        raise ValueError(f"the groups have {dict(taken)} tokens, but their arrays hold {held}")
    return groups
