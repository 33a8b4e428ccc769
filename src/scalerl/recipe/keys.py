"""Dotted keys of nested tables: "loss.cap", "advantage.baseline.name". Standard library only."""

from collections.abc import Iterator, Mapping
from typing import Any

Tree = Mapping[str, Any]
"""Settings by name; a table is a tree, too."""


def dotted(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def is_at(key: str, table: str) -> bool:
    """Return whether a key is this one, or in the table that it names."""
    return key == table or key.startswith(f"{table}.")


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the tree that holds `value` at this dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def leaves(tree: Mapping[Any, Any], table: str = "", *, numbered: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted key; with `numbered`, those of a list of tables by number."""
    for name, value in tree.items():
        key = dotted(table, str(name))
        if numbered and isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key, numbered=numbered)
        else:
            yield key, value
