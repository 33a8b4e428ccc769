"""Start a board next to a run, in a separate process that the run neither waits for nor depends on."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self


class BoardBeside:
    """A context manager that runs a board during its block. A failure of the board does not affect the block."""

    def __init__(self, paths: Sequence[Path], *, announce: Callable[[str], None]) -> None:
        self._paths, self._announce = paths, announce
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "scalerl", "watch", *map(str, self._paths)]
        try:
            # In a session of its own: Ctrl-C is for the run.
            self._process = subprocess.Popen(
                [*command, "--wait", "--no-open", "--beside"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as fault:
            self._announce(f"The board did not start: {fault.strerror or fault}")
            return self
        self._reader = threading.Thread(target=self._say_where, daemon=True)
        self._reader.start()
        return self

    def _say_where(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        self._announce(line or "The board did not start: scalerl watch says why")

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5)
        if self._process.stdout is not None:
            self._process.stdout.close()
