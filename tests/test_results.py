"""Pages of docs/results say what the commands on them print, where these take seconds."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
study_table = importlib.import_module("study_table")

QUICK = r"^`python benchmarks/study_table\.py ((?:reach|grid|score) .*?)`"
COMMANDS = [
    pytest.param(page, command, id=f"{page.stem}-{command.split()[0]}")
    for page in sorted((ROOT / "docs/results").glob("*.md"))
    for command in re.findall(QUICK, page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_page_has_what_the_command_above_it_prints(page, command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, *words = shlex.split(command)
    getattr(study_table, name)(*words)
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("|")]
    assert len(rows) > 3
    missing = set(rows) - set(page.read_text().splitlines())
    assert not missing


def test_every_quick_command_is_found():
    assert {test.id for test in COMMANDS} == {"forward-reach", "forward-score", "lag-rate-grid"}
