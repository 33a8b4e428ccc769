"""Find the names that Python code defines, and those that it uses without defining them."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator


def free_names(*sources: str) -> set[str]:
    """Return the global names that pieces of code use but that neither they nor Python define.

    If the code has a star import, the names are unknown, and none are returned.
    """
    used: set[str] = set()
    defined = {"__name__", *dir(builtins)}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                return set()
        for symbol in _symbols(source):
            if symbol.is_global() and symbol.is_referenced():
                used.add(symbol.get_name())
        defined |= defined_names(source)
    return used - defined


def module_names(*sources: str) -> set[str]:
    """Return the names of Python's own modules of which pieces of code use attributes: `math` in `math.isclose`."""
    names: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.add(node.value.id)
    return names & sys.stdlib_module_names


def defined_names(source: str) -> set[str]:
    """Return the names that a piece of code defines as a module."""
    names: set[str] = set()
    for symbol in _symbols(source):
        is_bound = symbol.is_assigned() or symbol.is_imported()
        if is_bound and symbol.is_global():
            names.add(symbol.get_name())
    return names


def _symbols(source: str) -> Iterator[symtable.Symbol]:
    """Yield the symbols of a module and of everything in it."""
    tables = [symtable.symtable(source, "<code>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        yield from table.get_symbols()
