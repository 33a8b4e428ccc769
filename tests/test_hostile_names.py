"""Names in logs, run folders and paths are text: no terminal, Markdown viewer or browser obeys them."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from commands import scalerl
from run_folders import write_run, write_study

TITLE, COLOUR, C1, BIDI = "\x1b]0;owned\x07", "\x1b[8m", "\x9b31m", "\u202e"
HOSTILE = f"a{TITLE}{COLOUR}{C1}{BIDI}\rb"
MARKUP = "<img src=x onerror=alert(1)>[a](javascript:alert(1))"
SEQUENCES = (TITLE, COLOUR, "\x9b", BIDI, "\r")


def csv(folder: Path) -> list[object]:
    rows = "".join(f"{HOSTILE}{run},{at},{0.1 * at}\n" for run in (1, 2) for at in range(1, 8))
    (folder / "log.csv").write_text(f"run,step,eval/reward/{HOSTILE}\n{rows}", encoding="utf-8", newline="")
    return ["fit", folder / "log.csv"]


def run(folder: Path) -> list[object]:
    return ["fit", write_run(folder / HOSTILE, sets=(HOSTILE,))]


def recipe(folder: Path) -> list[object]:
    text = f"base = 'tiny-cpu'\ndescription = {json.dumps(HOSTILE)}\n"
    (folder / f"{HOSTILE}.toml").write_text(text)
    return ["recipe", "show", folder / f"{HOSTILE}.toml"]


def missing(folder: Path) -> list[object]:
    return ["report", folder / HOSTILE / "nothing"]


def study(folder: Path) -> list[object]:
    name = json.dumps(HOSTILE)
    (folder / "study.toml").write_text(f"base = 'tiny-cpu'\ndescription = {name}\n[arms.{name}]\nlos = 'dapo'\n")
    return ["study", folder / "study.toml", "--dry-run"]


COMMANDS = """
import json, sys
from scalerl.cli import main
for words in map(json.loads, sys.argv[1:]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        print("-----", flush=True)
"""


def test_terminal_gets_no_sequence_of_a_name(tmp_path: Path) -> None:
    lines = [make(tmp_path) for make in (csv, run, recipe, missing, study)]
    words = [json.dumps([str(word) for word in line]) for line in lines]
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    command = [sys.executable, "-c", COMMANDS, *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    process.wait()
    os.close(ours)
    # The terminal itself ends each line with both.
    *texts, rest = shown.decode().replace("\r\n", "\n").split("-----\n")
    assert (len(texts), rest) == (len(lines), "")
    for text in texts:
        assert "owned" in text
        assert [mark for mark in SEQUENCES if mark in text] == []


def test_report_holds_no_markup_of_a_name(tmp_path: Path) -> None:
    name = f"{MARKUP}|{HOSTILE}"
    folder = write_study(
        tmp_path / "study", sets=(name,), plan={"name": name, "description": name}, num=8,
        status={"status": "failed", "reason": name},
    )  # fmt: skip
    done = scalerl("report", folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "onerror" in page
    assert "<img" not in page
    # And the page may run no script at all.
    head, _, _ = page.partition("</head>")
    policy = head.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "script-src" not in rules
    assert "<script" not in page
