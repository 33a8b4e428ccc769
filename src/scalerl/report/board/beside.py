"""Start a board next to a run, in a separate process that the run neither waits for nor depends on."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def board_beside(path: Path, announce: Callable[[str], None]) -> Iterator[subprocess.Popen[str] | None]:
    """Run a board during the block. A failure of the board does not affect the block."""
    command = [sys.executable, "-P", "-m", "scalerl", "watch", str(path), "--wait", "--no-open", "--beside"]
    try:
        # In a session of its own: Ctrl-C is for the run.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as fault:
        announce(f"The board did not start: {fault.strerror or fault}")
        yield None
        return

    assert process.stdin is not None
    assert process.stdout is not None
    where = process.stdout

    def say_where() -> None:
        announce(where.readline().strip() or "The board did not start: scalerl watch says why")

    reader = threading.Thread(target=say_where, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        with suppress(OSError):
            process.stdin.close()  # it ends when its input does
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(timeout=5)
        where.close()
