"""docs/math.md points to the code of each formula: its files and names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scalerl"
TEXT = (ROOT / "docs" / "math.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^#{2,3} ", TEXT, flags=re.MULTILINE)[1:]}
POINTER = re.compile(r"`([\w/]+\.py)`((?:,? (?:and )?`\w+`)*)")


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the functions, classes and tables of a file, and the names in its tables."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Dict):
            names |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    return frozenset(names)


def test_files_and_names_exist():
    pointers = [(path, re.findall(r"`(\w+)`", names)) for path, names in POINTER.findall(TEXT)]
    assert len(pointers) > 40
    missing = [path for path, _ in pointers if not (SOURCE / path).is_file()]
    assert not missing
    unknown = [f"{path}: {name}" for path, names in pointers for name in names if name not in names_in(path)]
    assert not unknown


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "| name in the code |" in text])
def test_names_in_tables_exist(section: str):
    text = SECTIONS[section]
    rows = re.findall(r"^\| (?:\w+ )?`(\w+)[(`]", text.partition("| name in the code |")[2], flags=re.MULTILINE)
    known = frozenset[str]().union(*(names_in(path) for path, _ in POINTER.findall(text)))
    assert rows
    assert not set(rows) - known


def test_links_of_the_index_lead_to_sections():
    index = TEXT.partition("Where each formula of the paper is:")[2].partition("\n## ")[0]
    anchors = {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in SECTIONS}
    links = re.findall(r"\]\(#([\w-]+)\)", index)
    assert len(links) > 10
    assert not set(links) - anchors
