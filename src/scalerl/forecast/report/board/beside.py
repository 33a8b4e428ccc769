"""Start a board next to a run, in a separate process that the run neither waits for nor depends on."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalerl.processes import end_process, start_module


@contextmanager
def board_beside(path: Path, announce: Callable[[str], None]) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run a board during the block. A failure of the board does not affect the block."""
    try:
        process = start_module("scalerl", "watch", str(path), "--wait", "--no-open", "--beside")
    except OSError as fault:
        announce(f"The board did not start: {fault.strerror or fault}")
        yield None
        return

    assert process.stdin is not None
    assert process.stdout is not None
    where = process.stdout

    def say_where() -> None:
        announce(where.readline().decode().strip() or "The board did not start: scalerl watch says why")

    reader = threading.Thread(target=say_where, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        with suppress(OSError):
            process.stdin.close()  # it ends when its input does
        end_process(process, patience_s=5.0)
        reader.join(timeout=5)
        where.close()
