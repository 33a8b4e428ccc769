"""README.md is short and names what there is; the map of files is true. Its commands run in test_guide.py."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from commands import scalerl

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_make_demo_runs_the_command_that_readme_shows():
    shown = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "bin/scalerl train tiny-cpu --out runs/demo" in shown.stdout


CHECKS = ("lint", "test", "docs", "test-vllm")


def test_ci_runs_every_check(monkeypatch: pytest.MonkeyPatch):
    for given in ("MAKEFLAGS", "ARGS", "WORKERS"):  # to this run of the tests
        monkeypatch.delenv(given, raising=False)
    lines = re.findall(r"^make (.+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    ran = [word for line in lines for word in line.split() if word in CHECKS]
    assert sorted(ran) == sorted(CHECKS)
    shown = subprocess.run(["make", "--dry-run", *ran], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests = r"python -m pytest -n \d --dist worksteal"
    for command in ("ruff check .", "ruff format --check .", "pyright", tests, "mkdocs build"):
        assert re.search(rf"bin/{command} *$", shown, flags=re.MULTILINE), command
    assert 'pytest -m "vllm and not slow and not gpu"' in shown


def test_readme_names_extras_and_commands_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'pip install "scalerl\[([\w,]+)\]"', README)
    assert extras
    assert set(",".join(extras).split(",")) <= set(project["optional-dependencies"])
    listed = scalerl("--help").stdout
    rows = re.findall(r"^\| (`scalerl .*?) \|", README, flags=re.MULTILINE)
    for name in re.findall(r"`(?:scalerl )?(\w+)`", " ".join(rows)):
        assert re.search(rf"\b{name}\b", listed), name


def test_readme_is_short_and_the_map_is_true():
    assert README.count("\n") < 110
    (tree,) = re.findall(r"```\n(README\.md.*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)
    top, *rest = tree.splitlines()
    missing = [name for name in top.split() if not (ROOT / name).exists()]
    folder = ROOT
    for line in rest:
        name, names = line[:13].strip(), re.split(r"  +", line[13:])[0]
        folder = ROOT / name if name else folder
        missing += [f"{folder.name}/{entry}" for entry in names.split() if not (folder / entry).exists()]
    assert not missing
    package = {path.name for path in (ROOT / "src" / "scalerl").iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    unlisted = sorted(name for name in package if not re.search(rf"\b{re.escape(name)}\b", tree))
    assert not unlisted
