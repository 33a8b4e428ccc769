"""Encode values that a program and its tests exchange as JSON.

None, booleans, strings, finite floats and small integers are encoded as themselves. Everything else is [tag, payload],
so that tuples, sets, bytes and large integers keep their types. Decoding creates only these types and runs no code of
the sender. Iterators are sent as their items; objects of any other class are sent as references.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

Pointer = int | str | list[Any]
"""A reference to an object in a message."""
_LARGEST_PLAIN = 2**53

# More items than a test compares. Longer iterators are sent as references.
_MOST_ITEMS = 100_000


class NotData(TypeError):
    """A value can be sent neither as data nor as a reference."""


class Malformed(ValueError):
    """The received message is not an encoded value."""


def encode(value: Any, refer: Callable[[Any], Pointer] | None = None) -> Any:
    """Return `value` in JSON types; `refer` returns references to objects that are not data."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and -_LARGEST_PLAIN <= int.__index__(value) <= _LARGEST_PLAIN:
        return int.__index__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__float__(value)
    for tag, (kind, to_payload, _) in _KINDS.items():
        if isinstance(value, kind):
            payload = to_payload(value)
            return [tag, payload if isinstance(payload, str) else [encode(item, refer) for item in payload]]
    if isinstance(value, Iterator):
        items = list(islice(value, _MOST_ITEMS + 1))
        if len(items) <= _MOST_ITEMS:
            return ["iterator", [encode(item, refer) for item in items]]
    if refer is None:
        raise NotData(f"a value of type {type(value).__name__} cannot be sent to another process")
    return ["ref", refer(value)]


def decode(encoded: Any, resolve: Callable[[Any], Any]) -> Any:
    """Return the decoded value; `resolve` returns the object of a reference. Malformed if it is not encoded."""
    try:
        return _decode(encoded, resolve)
    except Malformed:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from None


def _decode(encoded: Any, resolve: Callable[[Any], Any]) -> Any:
    if encoded is None or isinstance(encoded, bool | int | float | str):
        return encoded
    if not isinstance(encoded, list) or len(encoded) != 2:
        raise Malformed("not a tagged value")
    tag, payload = encoded
    if tag == "ref":
        return resolve(payload)
    content = payload if isinstance(payload, str) else [_decode(item, resolve) for item in payload]
    return iter(content) if tag == "iterator" else _KINDS[tag][2](content)


_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

# Types that are sent as lists of values or as texts, by tag: the type, its encoder and its decoder.
_KINDS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (dict, dict.items, dict),
    "list": (list, iter, list),
    "tuple": (tuple, iter, tuple),
    "set": (set, iter, set),
    "frozenset": (frozenset, iter, frozenset),
    "deque": (deque, iter, deque),
    "keys": (type({}.keys()), iter, lambda items: dict.fromkeys(items).keys()),
    "values": (type({}.values()), iter, lambda items: dict(enumerate(items)).values()),
    "items": (type({}.items()), iter, lambda items: dict(items).items()),
    "complex": (complex, lambda value: (value.real, value.imag), lambda items: complex(*items)),
    "range": (range, lambda value: (value.start, value.stop, value.step), lambda items: range(*items)),
    "fraction": (Fraction, Fraction.as_integer_ratio, lambda items: Fraction(*items)),
    "int": (int, lambda value: hex(int.__index__(value)), lambda text: int(text, 16)),
    "float": (float, lambda value: repr(float.__float__(value)), _SPECIAL.__getitem__),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "decimal": (Decimal, str, Decimal),
}
