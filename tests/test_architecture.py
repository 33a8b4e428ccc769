"""The shape of the code: which room may import which, and that the documents agree with it.

Each test looks at all files and reports every offender at once.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scalerl"
FILES = sorted(SOURCE.rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# A room and the rooms it may import. Imports only point down; docs/architecture.md has the same tables.
VALUES = {"errors", "json_text", "import_path", "answer_format", "types", "atomic_files", "store", "config", "choose"}
PARTS = VALUES | {"rl", "graders", "models"}
LAYERS: dict[str, set[str]] = {
    # values that both halves share
    "errors": set(),
    "json_text": set(),
    "import_path": {"errors"},
    "answer_format": set(),
    "types": set(),
    "atomic_files": {"errors"},
    "store": {"errors", "json_text", "atomic_files"},
    "config": {"errors", "json_text", "import_path", "types"},
    "choose": {"errors", "import_path", "config"},
    "web_server": {"web_client"},
    "web_client": {"json_text"},
    "notify": {"errors", "config", "web_client"},
    # what a run is made of
    "rl": VALUES,
    "graders": VALUES | {"web_client"},
    "models": VALUES | {"rl"},
    "tasks": PARTS,
    "remote": {"errors"},
    "loop": PARTS | {"tasks"},
    "environments": PARTS | {"tasks", "loop", "web_server", "web_client"},
    "rollout": PARTS | {"tasks", "remote"},
    "learner": PARTS | {"tasks", "remote", "web_client"},
    "run": PARTS | {"tasks", "remote", "loop", "environments", "rollout", "learner", "curves", "report"},
    # what is said about runs
    "curves": {"errors"},
    "joint": {"errors", "json_text", "curves"},
    "logs": {"errors", "json_text", "store", "config", "curves"},
    "report": {"errors", "json_text", "atomic_files", "store", "config", "curves", "joint", "logs", "web_server"},
    "study": {"errors", "json_text", "atomic_files", "store", "config", "curves", "joint", "logs", "report"},
    "callbacks": {"errors", "store", "config", "curves", "logs", "report"},
}
LAYERS["api"] = set(LAYERS)
LAYERS["cli"] = set(LAYERS)
PREDICTIVE = {"curves", "joint", "logs", "report", "study"}
NO_TORCH = VALUES | PREDICTIVE | {"loop", "environments", "cli"}

VAGUE = {"utils", "util", "common", "helpers", "misc", "manager", "base"}
DATA_FOLDERS = {"recipes", "studies", "assets"}


def shown(offenders: list[str]) -> str:
    return "\n" + "\n".join(offenders)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    pieces = module.replace(".__main__", ".cli").split(".")
    return pieces[1] if pieces[0] == "scalerl" and len(pieces) > 1 else None


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a block, with those of its branches; expressions, which import nothing, are left out."""
    for block in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, block, ())


@functools.cache
def imported(path: Path, *, in_functions: bool = True, for_types: bool = False) -> frozenset[str]:
    """Return every module that a file imports; `for_types` adds what only the type checker reads."""
    modules: set[str] = set()
    pending: list[ast.AST] = [tree_of(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not for_types:
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not in_functions:
            continue
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: imports must be absolute"
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(statements_in(node))
    return frozenset(modules)


def rooms_on_disk() -> set[str]:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()} - DATA_FOLDERS - {"__pycache__"}
    return folders | {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}


def test_rooms_are_the_ones_in_the_drawing():
    assert rooms_on_disk() == set(LAYERS)
    documented: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        if row := re.fullmatch(r"\| `(\w+)` \| .* \| ([a-z_ ]+) \|", line):
            name, imports = row.groups()
            groups = {"nothing": set(), "values": VALUES, "parts": PARTS, "everything above": set(documented)}
            rooms = [imports] if imports in groups else imports.split()
            documented[name] = set().union(*(groups.get(room, {room}) for room in rooms))
    assert documented == LAYERS


def test_imports_only_point_down():
    offenders = []
    for path in FILES:
        room = room_of(module_name(path))
        used = {other for module in imported(path) if (other := room_of(module)) in LAYERS and other != room}
        if room is not None and used - LAYERS.get(room, set()):
            offenders.append(f"{relative(path)} imports {', '.join(sorted(used - LAYERS.get(room, set())))}")
    assert not offenders, shown(offenders)


def test_predictive_half_and_settings_never_import_torch():
    offenders = []
    for path in FILES:
        room = room_of(module_name(path))
        if room in NO_TORCH:
            # A command that trains needs torch, but only once it runs.
            names = {name.split(".")[0] for name in imported(path, in_functions=room != "cli")}
            offenders += [f"{relative(path)} imports {name}" for name in names & {"torch", "transformers"}]
    assert not offenders, shown(offenders)


def test_imports_have_no_cycle_not_even_for_types():
    modules = {module_name(path): path for path in FILES}
    edges = {
        # A package's __init__ re-exports its modules: a module does not depend on the package that holds it.
        name: {
            other
            for other in imported(path, for_types=True)
            if other in modules and other != name and not name.startswith(f"{other}.")
        }
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def test_source_is_ascii():
    offenders = [relative(path) for path in FILES if not path.read_text().isascii()]
    assert not offenders, shown(offenders)


def test_no_module_has_a_vague_name():
    offenders = [relative(path) for path in FILES if path.stem in VAGUE]
    assert not offenders, shown(offenders)


def test_every_recipe_loads():
    from scalerl.config import list_recipes, load_recipe

    names = list_recipes()
    assert {"scalerl", "base", "grpo", "dapo", "gspo", "magistral", "minimax"} <= set(names)
    for name in names:
        load_recipe(name)


def test_files_named_in_documents_exist():
    """Paths from the root (`src/...`), and paths within the package (`loop/lag.py`), in backticks."""
    from_root = re.compile(r"`((?:src|docs|tests|benchmarks|examples)/[\w./-]+)`")
    in_package = re.compile(rf"`((?:{'|'.join(LAYERS)})/[\w/]+\.py)`")
    offenders = []
    for path in DOCUMENTS:
        text = path.read_text()
        offenders += [f"{relative(path)}: {name}" for name in from_root.findall(text) if not (ROOT / name).exists()]
        offenders += [f"{relative(path)}: {name}" for name in in_package.findall(text) if not (SOURCE / name).exists()]
    assert not offenders, shown(offenders)


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from scalerl.cli import app; from typer.main import get_command; get_command(app);"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'scipy', 'pydantic', 'matplotlib'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
