"""Run `scalerl` as a user would, inside the test's own process: starting Python and importing takes seconds."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from scalerl.cli import main


def scalerl(*words: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one command; return its exit code and what it printed, as `subprocess.run` does.

    An error that is not meant for users propagates, so a bug fails the test with its own traceback.
    """
    argv = ["scalerl", *map(str, words)]
    stdout, stderr = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = argv
    try:
        with (
            contextlib.chdir(cwd or Path.cwd()),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            code = _exit_code()
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(argv, code, stdout.getvalue(), stderr.getvalue())


def _exit_code() -> int:
    try:
        main()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    return 0
