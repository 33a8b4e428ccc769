"""The shape of the code, kept by a test: what may import what, how long things get, and that the docs speak true."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scalerl"
FILES = sorted(SOURCE.rglob("*.py"))

# A room and the rooms it may import. Imports only point down; see docs/architecture.md.
VALUES = {"errors", "types", "store", "config", "choose"}
LAYERS: dict[str, set[str]] = {
    # values that both halves share
    "errors": set(),
    "types": set(),
    "store": {"errors"},
    "config": {"errors", "types"},
    "choose": {"errors", "config"},
    # what a run is made of
    "rl": VALUES,
    "graders": VALUES,
    "models": VALUES,
    "tasks": VALUES | {"rl", "graders", "models"},
    "loop": VALUES | {"rl", "graders", "models", "tasks"},
    "rollout": VALUES | {"rl", "graders", "models", "tasks"},
    "learner": VALUES | {"rl", "graders", "models", "tasks"},
    "run": VALUES | {"rl", "graders", "models", "tasks", "loop", "rollout", "learner", "curves", "analysis"},
    # what is said about runs, ours or anyone's
    "curves": {"errors"},
    "logs": {"errors", "store", "config", "curves"},
    "analysis": {"errors", "store", "config", "curves", "logs"},
    "report": {"errors", "store", "config", "curves", "logs", "analysis"},
    "study": {"errors", "store", "config", "curves", "logs", "analysis"},
}
LAYERS["cli"] = set(LAYERS)
NO_TORCH = (
    "errors",
    "types",
    "store",
    "config",
    "choose",
    "loop",
    "curves",
    "logs",
    "analysis",
    "report",
    "study",
    "cli",
)
VAGUE = {"utils", "util", "common", "helpers", "misc", "manager", "base"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, *, everywhere: bool = True) -> set[str]:
    """Every module a file imports; inside functions too, or only on import."""
    found = set()
    tree = ast.parse(path.read_text())
    # What only the type checker reads is never loaded.
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def part_of(module: str) -> str | None:
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "scalerl" and len(pieces) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_point_down(path: Path):
    own = part_of(module_name(path))
    if own is None:
        return
    assert own in LAYERS, f"{own} is not in the picture: add it to LAYERS and docs/architecture.md"
    used = {part for module in imported(path) if (part := part_of(module)) in LAYERS and part != own}
    assert used <= LAYERS[own], f"{path.name} imports {used - LAYERS[own]}, which {own} may not"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_predictive_half_and_the_settings_never_import_torch(path: Path):
    part = part_of(module_name(path))
    if part in NO_TORCH:
        # The commands that train need torch, but only once they run.
        names = imported(path, everywhere=part != "cli")
        assert not {name for name in names if name.split(".")[0] in ("torch", "transformers")}


def test_no_module_imports_itself_through_others():
    modules = {module_name(path): path for path in FILES}
    # A package's __init__ re-exports its modules; what imports from it depends on what it re-exports.
    edges = {
        name: {other for other in imported(path) if other in modules and other != name}
        for name, path in modules.items()
    }
    edges = {name: {other for other in others if not name.startswith(other + ".")} for name, others in edges.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*trail, name))
            done.add(name)

    # The command table imports the commands, and `example` calls the table: the one knot, inside a function.
    edges["scalerl.cli.curves"].discard("scalerl.cli")
    for name in modules:
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_short(path: Path):
    text = path.read_text()
    assert text.isascii(), "plain ASCII in code"
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, f"{node.name} is {node.end_lineno - node.lineno + 1} lines long"


def test_modules_are_named_for_what_they_hold():
    assert not {path.stem for path in FILES} & VAGUE


def test_every_recipe_loads():
    from scalerl.config import list_recipes, load_recipe

    names = list_recipes()
    assert {"scalerl", "base", "grpo", "dapo", "gspo", "magistral", "minimax"} <= set(names)
    for name in names:
        load_recipe(name)


def test_the_readme_is_short_and_its_file_map_is_true():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") < 150
    (tree,) = re.findall(r"```\n(README\.md.*?)```", text, flags=re.DOTALL)
    folder = ROOT
    for line in tree.splitlines():
        name = line.strip().split("  ")[0].strip()
        if not name:
            continue
        if line.startswith("  "):
            for entry in name.split(" "):
                assert (folder / entry).exists(), f"README names {entry}, which {folder} does not hold"
        else:
            for entry in name.split(" "):
                assert (ROOT / entry).exists(), f"README names {entry}, which does not exist"
            folder = ROOT / name.split(" ")[0]


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_files_that_the_docs_name_exist(path: Path):
    for name in re.findall(r"`((?:src|docs|tests|benchmarks|examples)/[\w./-]+)`", path.read_text()):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; from scalerl.cli import app; from typer.main import get_command; get_command(app);"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'scipy', 'pydantic', 'matplotlib', 'plotly'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
