"""Commands on pages of docs/, and what they print.

    python benchmarks/pages.py again docs/results/*.md     run them, and put what they print on the page
    python benchmarks/pages.py check docs/results/*.md     say which pages are out of date (exit status 1)
    python benchmarks/pages.py draw docs/results/*.md      draw the pictures of the pages again

A script of benchmarks/ stands alone in backticks below the table that it prints, a scalerl command above its block of
text. The command that draws a picture is anywhere on its page and ends in the picture's path.
"""

import contextlib
import errno
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ON_PAGE = re.compile(
    r"^`(?P<command>scalerl .*?)`.*\n\n(?P<text>```text\n[\s\S]*?^```)"
    r"|(?P<table>^\|.*(?:\n+\|.*)*)\n\n`(?P<script>python benchmarks/\w+\.py .*?)`",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Example:
    """A command on a page, what the page says that it prints, and where."""

    command: str
    printed: str
    span: tuple[int, int]


def examples(page: Path) -> list[Example]:
    return [
        Example(match["command"] or match["script"], match[kind], match.span(kind))
        for match in ON_PAGE.finditer(page.read_text())
        for kind in ("text" if match["text"] else "table",)
    ]


def again(*pages: str) -> None:
    for page in map(Path, pages):
        text = page.read_text()
        for example in reversed(examples(page)):
            start, end = example.span
            text = text[:start] + anew(example) + text[end:]
        page.write_text(text)


def anew(example: Example) -> str:
    """Return what the command prints; what stands there where a file that it needs is not part of the repository."""
    try:
        return printed_by(example.command)
    except FileNotFoundError as error:
        print(f"kept as it is, since {error.filename} is not here: {example.command}", file=sys.stderr)
        return example.printed


def check(*pages: str) -> None:
    on_pages = [(page, example) for page in pages for example in examples(Path(page))]
    old = [f"{page}: {each.command}" for page, each in on_pages if anew(each).split() != each.printed.split()]
    print(*old, sep="\n")
    raise SystemExit(bool(old))


def draw(*pages: str) -> None:
    for page in map(Path, pages):
        for picture, command in pictures(page).items():
            if command is None:
                raise SystemExit(f"{page} has no command that draws {picture}")
            program, *words = shlex.split(command)
            subprocess.run([sys.executable, *(["-m", "scalerl"] if program == "scalerl" else []), *words], check=True)
            shrink(Path(picture))


def shrink(picture: Path) -> None:
    """Store a picture with 256 colours, which takes a third of the space."""
    from PIL import Image

    with Image.open(picture) as full:
        # MAXCOVERAGE keeps rare colours apart, such as those of lines; the means then restore the common ones.
        full.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3).save(picture, optimize=True)


def pictures(page: Path) -> dict[str, str | None]:
    """Return the paths of a page's pictures, from the root of the repository, and the commands that draw them."""
    text, root = page.read_text(), Path(__file__).parents[1]
    paths = [
        (page.parent / linked).resolve().relative_to(root).as_posix()
        for linked in re.findall(r"!\[.*?\]\((.+?)\)", text)
    ]
    commands = re.findall(r"`((?:scalerl|python benchmarks/\w+\.py) [^`]+)`", text)
    return {path: next((each for each in commands if each.split()[-1] == path), None) for path in paths}


def printed_by(command: str) -> str:
    """Return what a command on a page prints, as the page has it."""
    program, *words = shlex.split(command)
    words = expanded(words)
    for word in words:
        if word.endswith(".csv") and not Path(word).exists():
            raise FileNotFoundError(errno.ENOENT, "not part of the repository", word)
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


COMMANDS = {"again": again, "check": check, "draw": draw}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
