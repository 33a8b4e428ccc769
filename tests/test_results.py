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

QUICK = r"^`python benchmarks/study_table\.py ((?:reach|grid|column|score) .*?)`"
COMMANDS = [
    pytest.param(page, command, id=f"{page.stem}-{place}")
    for page in sorted((ROOT / "docs/results").glob("*.md"))
    for place, command in enumerate(re.findall(QUICK, page.read_text(), re.MULTILINE))
]


def as_a_shell_has_it(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_page_has_what_the_command_above_it_prints(page, command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, *words = shlex.split(command)
    getattr(study_table, name)(*(word for words_of in map(as_a_shell_has_it, words) for word in words_of))
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("|")]
    assert len(rows) > 3
    missing = set(rows) - set(page.read_text().splitlines())
    assert not missing


def test_commands_are_found():
    assert {test.values[0].stem for test in COMMANDS} == {"forward", "lag-rate", "principles"}  # pyright: ignore
    assert len(COMMANDS) >= 9
