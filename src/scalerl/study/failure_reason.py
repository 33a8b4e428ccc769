"""Why a command failed, from what it printed and how it ended."""

import signal

_ERROR = "error: "
# Sent by another process, or by the kernel when memory runs out: the last line printed is not the reason then.
# By name, since not every platform has them all.
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"})


def last_words(printed: str) -> str:
    """The sentences of its last error on one line; without one the last line, which is where a traceback has it."""
    lines = printed.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(_ERROR)]
    said = lines[errors[-1] :] if errors else lines[-1:]
    if any(line.startswith("Traceback") for line in said):
        said = lines[-1:]
    return "; ".join(line.strip() for line in said if line.strip()).removeprefix(_ERROR)


def why_ended(printed: str, code: int, step: int | None) -> str:
    """Why a run ended that left no reason in its folder; `code` is as subprocess has it, `step` the last one done."""
    if code >= 0:
        ended = f"exit code {code}"
    else:
        name = signal.Signals(-code).name
        ended = f"killed by {name}" + (f" after step {step}" if step else "")
        if name in _FROM_OUTSIDE:
            return ended
    words = last_words(printed)
    return f"{words} ({ended})" if words else ended
