"""Commands on pages of docs/, and what they print.

    python benchmarks/pages.py again docs/results/*.md     run them, and put what they print below them
    python benchmarks/pages.py check docs/results/*.md     say which pages are out of date (exit status 1)

A command stands alone in backticks at the start of a line; below it is a table (scripts of benchmarks/) or a block of
text (scalerl).
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ON_PAGE = re.compile(
    r"(?P<above>^`(?P<command>(?:(?P<text>scalerl)|python benchmarks/\w+\.py) .*?)`.*\n\n)"
    r"(?P<printed>(?(text)```text\n[\s\S]*?^```|\|.*(?:\n+\|.*)*))",
    re.MULTILINE,
)


def again(*pages: str) -> None:
    for page in map(Path, pages):
        page.write_text(ON_PAGE.sub(lambda match: match["above"] + anew(match), page.read_text()))


def anew(match: re.Match[str]) -> str:
    """Return what the command prints; what stands there where a file that it needs is not part of the repository."""
    try:
        return printed_by(match["command"])
    except FileNotFoundError as error:
        print(f"kept as it is, since {error.filename} is not here: {match['command']}", file=sys.stderr)
        return match["printed"]


def check(*pages: str) -> None:
    matches = [(page, match) for page in pages for match in ON_PAGE.finditer(Path(page).read_text())]
    old = [f"{page}: {match['command']}" for page, match in matches if anew(match).split() != match["printed"].split()]
    print(*old, sep="\n")
    raise SystemExit(bool(old))


def printed_by(command: str) -> str:
    """Return what a command on a page prints, as the page has it."""
    program, *words = shlex.split(command)
    words = expanded(words)
    if program == "scalerl":
        done = [sys.executable, "-m", "scalerl", *words]
        printed = subprocess.run(done, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "155"})
        # Without the last line, which says how the log was read.
        lines = [line.rstrip() for line in printed.stdout.rstrip().splitlines() if not line.startswith("compute: ")]
        return "\n".join(["```text", *lines, "```"])
    script = importlib.import_module(Path(words[0]).stem)
    if not hasattr(script, "run"):
        printed = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
        # Tables alone: some scripts say how long they took.
        return "\n".join(line for line in printed.splitlines() if line.startswith("|") or not line).strip()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        script.run(*words[1:])
    return out.getvalue().rstrip()


def expanded(words: Sequence[str]) -> list[str]:
    """Return the words as a shell has them."""
    return [file for word in words for file in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]


COMMANDS = {"again": again, "check": check}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
