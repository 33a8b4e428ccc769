"""What documents name in backticks and blocks of code exists: settings, commands with their options, and names.

Files are checked in test_architecture.py. CHANGELOG.md and docs/log.md speak of what is gone as well.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from scalerl.cli import app

ROOT = Path(__file__).parents[1]
HISTORY = {"CHANGELOG.md", "log.md"}
PAGES = [page for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]) if page.name not in HISTORY]
CODE = re.compile(r"^```\w*\n(.*?)^```|`([^`\n]+)`", flags=re.DOTALL | re.MULTILINE)
SETTINGS = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "settings.md").read_text(), flags=re.MULTILINE))
TABLES = sorted({key.split(".")[0] for key in SETTINGS if "." in key})
SETTING = re.compile(rf"(?<![\w./\[-])((?:{'|'.join(TABLES)})(?:\.[a-z]\w*)+\b)(?!\()")
FILE = re.compile(r"\.(py|toml|jsonl?|md|safetensors)$")
COMMAND = re.compile(r"\bscalerl ((?:more |recipe )?[a-z-]+)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])(?![\w-])")

# Names of other programs, and settings of functions that a page defines itself.
FOREIGN = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "TrainClientConfig", "RayPPOTrainer", "_validate", "task.most"}
FOREIGN |= {"custom_reward_function", "max_prompt_length", "securityContext", "seccompProfile"}


def spans(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield what is in backticks, and whether it is a block."""
    for found in CODE.finditer(page.read_text()):
        yield found[1] or found[2], found[1] is not None


@cache
def options() -> dict[str, set[str]]:
    """Return the options of each command; all of them, those of benchmarks too, under the empty name."""
    scripts = " ".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    found: dict[str, set[str]] = {}
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        found[name] = {option for each in command.params for option in each.opts} | {"--help", "--help-all"}
        waiting += [(f"{name} {key}".strip(), each) for key, each in getattr(command, "commands", {}).items()]
    return {**found, "": set(OPTION.findall(scripts)).union(*found.values())}


@cache
def names() -> set[str]:
    """Return every word of the code and its data, and of the names of files."""
    files = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".toml", ".html", ".js")]
    texts += [(ROOT / name).read_text() for name in ("Makefile", "pyproject.toml", "docs/settings.md")]
    return set(re.findall(r"[A-Za-z_]\w*", " ".join([*texts, *(path.name for path in files)])))


def test_settings_exist():
    assert len(SETTINGS) > 150
    offenders = []
    for page in PAGES:
        for key in {key for text, _ in spans(page) for key in SETTING.findall(text)} - FOREIGN:
            named = re.sub(r"^(tasks|evaluation\.sets|task\.graders)\.\w+", r"\1.NAME", key)
            known = named in SETTINGS or any(each.startswith(f"{named}.") for each in SETTINGS)
            of_a_task = named.startswith("task") and named.rsplit(".", 1)[1] in SETTINGS
            if not (known or of_a_task or FILE.search(key)):
                offenders.append(f"{page.name}: {key}")
    assert not offenders


def unknown_options(line: str) -> list[str]:
    """Return the options that the command of a line does not have; those of other programs are not looked at."""
    known: set[str] = set()
    if command := COMMAND.search(line):
        line = line[command.start() :]
        known = options().get(command[1], {"none"})
    elif line.startswith("--") or "benchmarks/" in line:
        known = options()[""]
    return [option for option in OPTION.findall(line) if known and option not in known]


def test_commands_have_the_options():
    offenders = [
        f"{page.name}: {option}"
        for page in PAGES
        for text, _ in spans(page)
        for line in text.replace("\\\n", " ").splitlines()
        for option in unknown_options(line)
    ]
    assert not offenders


def test_recipes_and_studies_exist():
    shipped = {
        path.stem
        for name in ("recipe/recipes", "study/studies")
        for path in (ROOT / "src/scalerl" / name).glob("*.toml")
    }
    named = {
        (page.name, name)
        for page in PAGES
        for text, _ in spans(page)
        for name in re.findall(r"scalerl (?:train|study|sft|recipe show) ([a-z][\w-]*)(?![\w./-])", text)
    }
    assert len(named) > 7
    assert not {(page, name) for page, name in named if name not in shipped}


def test_messages_that_questions_are_about_exist():
    """What a message is about stands in it as a quoted word, a word in capitals or a number."""
    source = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs" / "faq.md").read_text()
    messages = re.findall(r"^\| [^|]*?`([^`]+)`[^|]*\|", page, flags=re.MULTILINE)
    parts = [part.strip() for text in messages for part in re.split(r'"[^"]*"|[A-Z]{2,}|[0-9]+|\.{3}', text)]
    assert len(messages) > 8
    assert not [part for part in parts if part not in source]


def test_names_exist():
    """A name has an underscore or a capital within; `my_...` stands for a reader's own."""
    offenders = [
        f"{page.name}: {word}"
        for page in PAGES
        for text, is_block in spans(page)
        if not is_block
        for word in set(re.findall(r"\b(?!my_)[A-Za-z_]\w*[A-Za-z]\b", text)) - FOREIGN - names()
        if "_" in word or re.search("[a-z][A-Z]", word)
    ]
    assert not offenders


def test_promises_name_tests_that_exist():
    promised = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(promised) > 30
    assert [name for path, name in promised if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_search_of_the_site_works_from_disk(tmp_path: Path, browser: Any):
    """The site's own worker loads more scripts, and answers what it is asked."""
    (tmp_path / "answers.js").write_text("const answers = {question: 'answer'};")
    (tmp_path / "worker.js").write_text(
        "const ready = importScripts('answers.js');"
        "addEventListener('message', async ({data}) => { await ready; postMessage(answers[data]); });"
    )
    (tmp_path / "iframe-worker.js").write_text((ROOT / "docs" / "assets" / "iframe-worker.js").read_text())
    (tmp_path / "page.html").write_text('<head><script src="iframe-worker.js"></script></head><body></body>')
    tab = browser.new_context(offline=True).new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    asked = (
        "new Promise((resolve) => { const worker = new Worker('worker.js');"
        "worker.addEventListener('message', ({data}) => resolve(data)); worker.postMessage('question'); })"
    )
    assert tab.evaluate(asked) == "answer"
