"""A value that may be missing elsewhere and is not here."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value
