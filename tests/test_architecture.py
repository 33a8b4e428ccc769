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
SHARED = {"errors", "processes", "runfolder", "recipe", "web"}
PARTS = SHARED | {"training.types", "training.answer_format", "training.rl", "training.graders", "training.models"}
LAYERS: dict[str, set[str]] = {
    # what both halves know
    "errors": set(),
    "processes": set(),
    "runfolder": {"errors"},
    "recipe": {"errors", "runfolder"},
    "web": {"errors", "runfolder", "recipe"},
    # training: from a recipe to a run folder
    "training.types": set(),
    "training.answer_format": set(),
    "training.rl": SHARED,
    "training.graders": SHARED | {"training.answer_format"},
    "training.models": SHARED | {"training.types", "training.answer_format", "training.rl"},
    "training.tasks": PARTS,
    "training.remote": {"errors", "processes"},
    "training.loop": PARTS | {"training.tasks"},
    "training.environments": PARTS | {"training.tasks", "training.loop"},
    "training.rollout": PARTS | {"training.tasks", "training.remote"},
    "training.learner": PARTS | {"training.tasks", "training.remote"},
    "training.run": PARTS
    | {
        "training.tasks",
        "training.remote",
        "training.loop",
        "training.environments",
        "training.rollout",
        "training.learner",
    },
    # forecast: from any log to a decision
    "forecast.curves": {"errors"},
    "forecast.several": {"errors", "runfolder", "forecast.curves"},
    "forecast.logs": {"errors", "runfolder", "forecast.curves"},
    "forecast.report": SHARED | {"forecast.curves", "forecast.several", "forecast.logs"},
    # study: arms and seeds, run as commands
    "study": SHARED | {"forecast.curves", "forecast.several", "forecast.logs", "forecast.report"},
    "callbacks": SHARED | {"forecast.curves", "forecast.logs", "forecast.report"},
}
DOORS = {"api", "config", "curves", "joint", "cli"}
"""Public names of what is below; they may import everything."""
LAYERS |= {door: set(LAYERS) | DOORS - {door} for door in DOORS}
LOADS_TORCH = {"callbacks"} | {room for room in LAYERS if room.startswith("training.")}
NO_TORCH = LAYERS.keys() - LOADS_TORCH | {"training.loop", "training.environments"}

VAGUE = {"utils", "util", "common", "helpers", "misc", "manager", "base"}
HALVES = {"training", "forecast"}
DATA_FOLDERS = {"assets"}


def shown(offenders: list[str]) -> str:
    return "\n" + "\n".join(offenders)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    pieces = module.replace(".__main__", ".cli").split(".")
    if pieces[0] != "scalerl" or len(pieces) == 1 or pieces[1:] in [[half] for half in HALVES]:
        return None
    return ".".join(pieces[1:3]) if pieces[1] in HALVES else pieces[1]


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
    rooms: set[str] = set()
    for path in FILES:
        rooms.add(room_of(module_name(path)) or "")
    return rooms - {""}


def test_rooms_are_the_ones_in_the_drawing():
    assert rooms_on_disk() == set(LAYERS)
    documented: dict[str, set[str]] = {}
    page = (ROOT / "docs" / "architecture.md").read_text()
    for line in page[page.index("## Rooms") : page.index("## Processes")].splitlines():
        if row := re.fullmatch(r"\| `([\w.]+)` \| .* \| ([a-z_. ]+) \|", line):
            name, imports = row.groups()
            groups = {"nothing": set(), "shared": SHARED, "parts": PARTS}
            rooms = imports.split()
            documented[name] = set().union(*(groups.get(room, {room}) for room in rooms)) - {name}
    assert documented == {room: LAYERS[room] for room in LAYERS.keys() - DOORS}


def test_readers_of_logs_know_nothing_of_meaning():
    """They turn bytes into rows: what a name means is decided by other modules of the room."""
    readers = "scalerl.forecast.logs.readers"
    known = {"scalerl.forecast.logs.frame", "scalerl.forecast.logs.facts"}
    offenders = []
    for path in (SOURCE / "forecast" / "logs" / "readers").glob("*.py"):
        for module in sorted(imported(path)):
            is_known = any(module == name or module.startswith(f"{name}.") for name in (readers, *known))
            if module.startswith("scalerl.forecast") and not is_known:
                offenders.append(f"{relative(path)} imports {module}")
    assert not offenders, shown(offenders)


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


def test_one_layer_starts_processes():
    """What is imported from `subprocess` elsewhere are names of streams, types and errors."""
    starts = re.compile(
        r"subprocess\.(Popen|run|call|check_call|check_output|getoutput)(\[\w+\])?\(|os\.(system|popen|spawn)"
    )
    assert [relative(path) for path in FILES if starts.search(path.read_text())] == [relative(SOURCE / "processes.py")]


def test_source_is_ascii():
    offenders = [relative(path) for path in FILES if not path.read_text().isascii()]
    assert not offenders, shown(offenders)


def test_no_module_has_a_vague_name():
    offenders = [relative(path) for path in FILES if path.stem in VAGUE]
    assert not offenders, shown(offenders)


def test_every_recipe_loads():
    from scalerl.recipe.load import list_recipes, load_recipe

    names = list_recipes()
    assert {"scalerl", "base", "grpo", "dapo", "gspo", "magistral", "minimax"} <= set(names)
    for name in names:
        load_recipe(name)


def test_files_named_in_documents_exist():
    """Paths from the root (`src/...`), and paths within the package (`training/loop/lag.py`), in backticks."""
    from_root = re.compile(r"`((?:src|docs|tests|benchmarks|examples)/[\w./-]+)`")
    in_package = re.compile(rf"`((?:{'|'.join(room.replace('.', '/') for room in LAYERS)})/[\w/]+\.py)`")
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
