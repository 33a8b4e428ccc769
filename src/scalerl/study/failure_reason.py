"""Why a command failed, from what it printed and how it ended."""

import signal

_ERROR = "error: "
# Sent by another process, or by the kernel when memory runs out: the last line printed is not the reason then.
# By name, since not every platform has them all.
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"})


def last_error(printed: str) -> str:
    """Return the last error that a command printed, on one line; else its last line, as of a traceback."""
    lines = printed.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(_ERROR)]
    error_lines = lines[errors[-1] :] if errors else lines[-1:]
    if any(line.startswith("Traceback") for line in error_lines):
        error_lines = lines[-1:]
    return "; ".join(line.strip() for line in error_lines if line.strip()).removeprefix(_ERROR)


def failure_reason(printed: str, code: int, step: int | None) -> str:
    """Return why a run ended that left no reason in its folder, from its exit `code` and its last step."""
    if code >= 0:
        ended = f"exit code {code}"
    else:
        name = signal.Signals(-code).name
        ended = f"killed by {name}" + (f" after step {step}" if step else "")
        if name in _FROM_OUTSIDE:
            return ended
    words = last_error(printed)
    return f"{words} ({ended})" if words else ended
