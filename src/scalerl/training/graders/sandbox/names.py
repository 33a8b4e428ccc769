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
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return set()
    symbols = [symbol for source in sources for table in _tables(source) for symbol in table.get_symbols()]
    used = {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}
    return used.difference(*map(defined_names, sources), dir(builtins), ["__name__"])


def module_names(*sources: str) -> set[str]:
    """Return the names of Python's own modules of which pieces of code use attributes: `math` in `math.isclose`."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    owners = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    names = {owner.id for owner in owners if isinstance(owner, ast.Name)}
    return names & sys.stdlib_module_names


def defined_names(source: str) -> set[str]:
    """Return the names that a piece of code defines as a module."""
    symbols = [symbol for table in _tables(source) for symbol in table.get_symbols()]
    bound = (symbol for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
    return {symbol.get_name() for symbol in bound if symbol.is_global()}


def _tables(source: str) -> Iterator[symtable.SymbolTable]:
    """Yield the symbol tables of a module and of everything in it."""
    tables = [symtable.symtable(source, "<code>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        yield table
