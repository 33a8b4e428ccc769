import json
import math
from collections import Counter, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.training.graders.sandbox.values import Malformed, NotData, decode, encode

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
DATA = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
        | st.lists(inner, max_size=3).map(deque)
    ),
    max_leaves=20,
)


def no_references(number: int) -> Any:
    raise Malformed("there are none")


def crossed(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))), no_references)


def types(value: Any) -> Any:
    """Return the types within a value, where an equal value may have others: 1 == 1.0 == True."""
    if isinstance(value, list | tuple | deque):
        return type(value), [types(item) for item in value]
    if isinstance(value, dict):
        return dict, Counter(str(types(item)) for pair in value.items() for item in pair)
    return type(value)


@given(DATA)
def test_data_arrive_as_they_were(value: Any):
    arrived = crossed(value)
    assert arrived == value
    assert types(arrived) == types(value)


def test_special_values_arrive():
    for value in (math.inf, -math.inf, 7**20000, Fraction(1, 3), range(1, 9, 2), "\ud800"):
        assert crossed(value) == value
    assert str(crossed(Decimal("1.10"))) == "1.10"
    assert math.isnan(crossed(math.nan))
    assert list(crossed(iter([1, (2,)]))) == [1, (2,)]
    assert crossed({"a": 1}.keys()) == {"a"}


def test_subclasses_arrive_as_their_data():
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert type(crossed(Liar(7))) is int
    assert crossed(Liar(7)) != 8
    assert crossed(namedtuple("Pair", "a b")(1, 2)) == (1, 2)
    assert crossed(Counter("aab")) == {"a": 2, "b": 1}
    assert crossed(defaultdict(int, x=1)) == {"x": 1}


def test_other_objects_are_references():
    kept: list[object] = []
    thing = object()

    def refer(value: object) -> int:
        kept.append(value)
        return len(kept) - 1

    assert encode([thing], refer) == ["list", [["ref", 0]]]
    assert decode(["list", [["ref", 0]]], kept.__getitem__) == [thing]
    with pytest.raises(NotData, match="object"):
        encode(thing)


MALFORMED = """
{}, [], ["list"], ["list", 3], ["list", null], ["unknown", []], [["list"], []], ["int", "x"], ["int", []],
["float", "1"], ["set", [["list", []]]], ["dict", [[1]]], ["dict", [[["list", []], 1]]], ["range", [1, 2, 0]],
["range", ["x"]], ["fraction", [1, 0]], ["decimal", "x"], ["bytes", "zz"], ["complex", [1, 2, 3]], ["items", [1]],
["ref", 0], ["__import__", ["os"]]
"""


def test_anything_else_is_malformed():
    nested: Any = 1
    for _ in range(100_000):
        nested = ["list", [nested]]
    for encoded in (*json.loads(f"[{MALFORMED}]"), nested):
        with pytest.raises(Malformed):
            decode(encoded, no_references)
