"""Pages of docs/results say what the commands on them print, and sentences of docs/results.md have their numbers."""

import importlib
import re
from pathlib import Path

import pytest

pages = importlib.import_module("pages")

ROOT = Path(__file__).parents[1]
ON_PAGES = [
    (page.stem, example.command, example.printed)
    for page in sorted([*(ROOT / "docs/results").glob("*.md"), ROOT / "docs/accuracy.md"])
    for example in pages.examples(page)
    if "benchmarks/gpu.py" not in example.command
]
"""What pages show, but for measurements of a GPU."""
COUNTED = re.compile(
    r"python benchmarks/(trust\.py |release\.py |ablations\.py |"
    r"study_table\.py (at|cost|sealed) )"
)
"""Quick counts and means. Others fit curves, whose last digits may differ on another machine, or take seconds."""
PAGES = sorted((ROOT / "docs/results").glob("*.md"))
WITHOUT_PICTURE = ("real-model", "speed", "transfer")
"""Predictions, figures of machines, and of ends alone, have no curve."""
SENTENCES = [
    (match["sentence"], match["command"])
    for match in re.finditer(
        r"^\*\*(?P<sentence>.+?)\*\* .*\n\n`(?P<command>python .*?)`$",
        (ROOT / "docs/results.md").read_text(),
        flags=re.MULTILINE,
    )
]
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?!\w)|\d+(?:\.\d+)?(?= ?%)")


def marks(command: str) -> list[pytest.MarkDecorator]:
    return [] if COUNTED.match(command) else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("command", "printed"),
    [pytest.param(command, printed, id=page, marks=marks(command)) for page, command, printed in ON_PAGES],
)
def test_page_has_what_the_command_prints(command, printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    try:
        assert pages.printed_by(command).split() == printed.split()
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not part of the repository")


def test_commands_are_found():
    counted = {page for page, command, _ in ON_PAGES if COUNTED.match(command)}
    assert counted == {"ablations", "accuracy", "mimo", "reuse", "seeds", "smollm2", "tools"}
    assert {page for page, *_ in ON_PAGES} > counted


@pytest.mark.parametrize(
    ("sentence", "command"),
    [pytest.param(*pair, id=pair[1].split("/")[-1][:40], marks=marks(pair[1])) for pair in SENTENCES],
)
def test_sentence_has_the_numbers_of_its_command(sentence, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    try:
        printed = set(re.findall(r"\d+(?:\.\d+)?", pages.printed_by(command)))
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not part of the repository")
    assert not set(NUMBER.findall(sentence)) - printed


EFFECT = re.compile(r"[+-]?\d\.\d+ \[.+?\]")
MEASURED = [
    (row.split("|")[1].strip(), row.split("|")[-2])
    for row in (ROOT / "docs/recipes.md").read_text().splitlines()
    if row.startswith("|") and EFFECT.search(row)
]


@pytest.mark.parametrize(("setting", "cell"), MEASURED, ids=[setting for setting, _ in MEASURED])
def test_measured_effect_is_on_its_page(setting, cell):
    linked = re.findall(r"\((results/[\w-]+\.md)", cell) or ["results/ablations.md"]
    text = " ".join("".join((ROOT / "docs" / page).read_text() for page in linked).split())
    assert not [effect for effect in EFFECT.findall(cell) if effect not in text]


def test_effects_are_found():
    assert len(MEASURED) > 15


def sentences_with_commands() -> list[tuple[str, str, list[str]]]:
    """Return the sentences of the pages that name a quick command, by page."""
    found = []
    for page in PAGES:
        for block in re.split(r"\n\n|\n(?=- |\d\. )", page.read_text()):
            for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z*])", "" if block[:1] in "`|!#" else block):
                commands = re.findall(r"`(python benchmarks/[^`]+)`", sentence)
                commands = [each for each in commands if COUNTED.match(each) and " NAME" not in each]
                if commands:
                    found.append((page.stem, " ".join(re.sub(r"`[^`]+`", "", sentence).split()), commands))
    return found


@pytest.mark.parametrize(("page", "sentence", "commands"), sentences_with_commands())
def test_sentence_has_what_its_command_prints(page, sentence, commands, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = set(re.findall(r"\d+(?:\.\d+)?", "".join(map(pages.printed_by, commands))))
    assert not set(re.findall(r"(?<![\w.])\d+\.\d{2,}(?!\w)", sentence)) - printed


def test_every_result_has_its_command():
    text = (ROOT / "docs/results.md").read_text()
    assert len(SENTENCES) == len(re.findall(r"^\*\*", text, flags=re.MULTILINE)) - 1  # speed was measured on a GPU
    assert sum(bool(NUMBER.search(sentence)) for sentence, _ in SENTENCES) >= len(SENTENCES) - 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_verdict_picture_table_and_command(page):
    title, _, verdict, *rest = page.read_text().split("\n")
    rest = "\n".join(rest)
    assert title.startswith("# ")
    assert verdict.startswith("**")
    marks = [r"^!\[", r"^\|", r"^`"][page.stem in WITHOUT_PICTURE :]
    places = [match.start() if (match := re.search(mark, rest, flags=re.MULTILINE)) else -1 for mark in marks]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_verdict_says_no_number_that_its_page_lacks(page):
    verdict, _, rest = page.read_text().partition("\n\n")[2].partition("\n\n")
    written = {number.rstrip("0") for number in re.findall(r"\d+\.\d+", rest)}
    assert not {
        number for number in re.findall(r"(?<![\w.])\d+\.\d+(?!\w)", verdict) if number.rstrip("0") not in written
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_picture_has_its_command(page):
    drawn = pages.pictures(page)
    assert not [path for path, command in drawn.items() if command is None]
    assert all((ROOT / path).is_file() for path in drawn)
