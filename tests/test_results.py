"""Pages of docs/results say what the commands on them print."""

import importlib
import re
from pathlib import Path

import pytest

study_table = importlib.import_module("study_table")

ROOT = Path(__file__).parents[1]
FOUND = [
    (page.stem, found["command"], found["printed"])
    for page in sorted((ROOT / "docs/results").glob("*.md"))
    for found in study_table.ON_PAGE.finditer(page.read_text())
]
COUNTED = re.compile(
    r"python benchmarks/study_table\.py (reach|cost|factors|subsets|grid|column|kinds|measured|score|transferred) "
)
"""Counts and means; the others fit curves, whose last digits may differ on another machine."""


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        pytest.param(command, printed, id=page, marks=[] if COUNTED.match(command) else pytest.mark.slow)
        for page, command, printed in FOUND
    ],
)
def test_page_has_what_the_command_above_it_prints(command, printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert study_table.printed_by(command).split() == printed.split()


def test_commands_are_found():
    counted = {page for page, command, _ in FOUND if COUNTED.match(command)}
    assert counted == {"algorithms", "forward", "interactions", "lag-rate", "principles", "seeds", "smollm2", "tools"}
    assert {page for page, *_ in FOUND} > counted
