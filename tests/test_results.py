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

PAGES = sorted((ROOT / "docs/results").glob("*.md"))
FOUND = [(page, found) for page in PAGES for found in re.finditer(study_table.ON_PAGE, page.read_text(), re.MULTILINE)]
SLOW = re.compile(r"arms (?!docs/results/tools/)")
"""Fits every arm of a study: a minute, where the tables of the tool take three seconds."""


@pytest.mark.parametrize(
    ("command", "tables"),
    [
        pytest.param(found["command"], found["tables"], id=f"{page.stem}-{found['command'].partition(' ')[0]}")
        for page, found in FOUND
        if not SLOW.match(found["command"])
    ],
)
def test_page_has_what_the_command_above_it_prints(command, tables, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    study_table.run(*shlex.split(command))
    assert capsys.readouterr().out.split() == tables.split()


def test_every_table_of_a_study_is_below_its_command():
    assert {page.stem for page, _ in FOUND} == {"forward", "lag-rate", "principles", "tools"}
    assert len(FOUND) == sum(page.read_text().count("\n`python benchmarks/study_table.py ") for page in PAGES)
