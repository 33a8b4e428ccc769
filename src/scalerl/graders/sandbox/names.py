"""Find the names that Python code binds, and those that it uses without binding them, ignoring scopes."""

import ast
import builtins


def free_names(*sources: str) -> set[str]:
    """Return the names that pieces of code use but that neither they nor Python define.

    If the code has a star import, the names are unknown, and none are returned.
    """
    trees = [node for source in sources for node in ast.walk(ast.parse(source))]
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in trees):
        return set()
    used = {node.id for node in trees if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - {name for node in trees for name in bound_by(node)} - set(dir(builtins)) - {"__name__"}


def bound_by(node: ast.AST) -> list[str]:
    """Return the names that a node of a syntax tree binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
    return []
