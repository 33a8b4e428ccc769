"""Values as JSON: what crosses between a program and its tests.

None, booleans, strings, finite floats and small integers are themselves. Anything else is [tag, payload], so that
tuples, sets, bytes and large integers arrive as what they were. Decoding builds only these types and runs no code of
the sender's. Iterators are sent as their items; an object of any other class is sent as a reference.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

_LARGEST_PLAIN = 2**53

# More items than a test compares. An iterator that goes on beyond them is sent as a reference.
_MOST_ITEMS = 100_000

_KEYS, _VALUES, _ITEMS = type({}.keys()), type({}.values()), type({}.items())


class NotData(TypeError):
    """A value cannot be sent as data, and the sender has no way to refer to it."""


class Malformed(ValueError):
    """What was received is not an encoded value."""


def encode(value: Any, refer: Callable[[Any], int | str] | None = None) -> Any:
    """Return `value` as something that JSON can hold; `refer` numbers the objects that are not data."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        plain = int.__index__(value)
        return plain if -_LARGEST_PLAIN <= plain <= _LARGEST_PLAIN else ["int", hex(plain)]
    if isinstance(value, float):
        plain = float.__float__(value)
        return plain if math.isfinite(plain) else ["float", repr(plain)]
    for kind, tag in _SEQUENCES:
        if isinstance(value, kind):
            return [tag, [encode(item, refer) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(key, refer), encode(item, refer)] for key, item in dict.items(value)]]
    if isinstance(value, bytes | bytearray):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    return _encode_rare(value, refer)


_SEQUENCES: tuple[tuple[type, str], ...] = (
    (list, "list"),
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "frozenset"),
    (deque, "deque"),
    (_KEYS, "keys"),
    (_VALUES, "values"),
    (_ITEMS, "items"),
)


def _encode_rare(value: Any, refer: Callable[[Any], int | str] | None) -> Any:
    if isinstance(value, complex):
        return ["complex", [encode(value.real), encode(value.imag)]]
    if isinstance(value, range):
        return ["range", [encode(value.start), encode(value.stop), encode(value.step)]]
    if isinstance(value, Fraction):
        return ["fraction", [encode(value.numerator), encode(value.denominator)]]
    if isinstance(value, Decimal):
        return ["decimal", str(value)]
    if isinstance(value, Iterator):
        items = list(islice(value, _MOST_ITEMS + 1))
        if len(items) <= _MOST_ITEMS:
            return ["iterator", [encode(item, refer) for item in items]]
    if refer is None:
        raise NotData(f"a value of type {type(value).__name__} cannot be sent to another process")
    return ["ref", refer(value)]


def decode(encoded: Any, resolve: Callable[[Any], Any]) -> Any:
    """Return the value that was encoded; `resolve` gives the object for a reference. Malformed for anything else."""
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
    if tag in _FROM_TEXT:
        return _FROM_TEXT[tag](payload)
    if tag == "dict":
        return {_decode(key, resolve): _decode(item, resolve) for key, item in payload}
    return _FROM_ITEMS[tag]([_decode(item, resolve) for item in payload])


def _number(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise Malformed("not a special float")
    return float(text)


_FROM_TEXT: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": _number,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "decimal": Decimal,
}

_FROM_ITEMS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": lambda items: items,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
    "keys": lambda items: dict.fromkeys(items).keys(),
    "values": lambda items: dict(enumerate(items)).values(),
    "items": lambda items: dict(items).items(),
    "complex": lambda items: complex(*items),
    "range": lambda items: range(*items),
    "fraction": lambda items: Fraction(*items),
}
