"""Run a command that dies with its parent: `python -m scalerl.study.die_with_parent PARENT_PID COMMAND...`.

A killed study cannot end its runs, and a run that continued alone would write into a folder that a resumed study uses.
Linux kills the child; on other systems the study's lock, which the child also holds, keeps the resumed study out.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def dying_with_parent(command: list[str]) -> list[str]:
    """Return a command line that runs `command` and kills it when this process dies."""
    return [sys.executable, "-P", "-m", "scalerl.study.die_with_parent", str(os.getpid()), *command]


def _main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # If the parent died before this call, there was no signal.
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _main()
