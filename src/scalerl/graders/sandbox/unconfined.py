"""No sandbox at all, for machines without bubblewrap and for programs that are trusted.

Programs still run in processes of their own, apart from their tests and within limits on time and memory, but with all
rights of the user: they can read, write and send whatever the user can.
"""

import os
import sys
from pathlib import Path

HARNESS = str(Path(__file__).parents[3])


def command(python: tuple[str, ...]) -> list[str]:
    """Return the command line that starts the interpreter; `python` is what it is given."""
    return [os.path.realpath(sys.executable), *python]
