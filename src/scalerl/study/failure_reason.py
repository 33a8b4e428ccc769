"""Why a command failed, from what it printed and how it ended."""

import signal

_ERROR = "error: "
# Sent by somebody else, as the kernel does when memory runs out: the last line printed is no more than the last news.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU})


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
        ended = f"killed by {signal.Signals(-code).name}" + (f" after step {step}" if step else "")
        if -code in _FROM_OUTSIDE:
            return ended
    words = last_words(printed)
    return f"{words} ({ended})" if words else ended
