"""Find out why a command failed, from its output and exit code."""

import signal

_ERROR = "error: "
# Signals from another process, or from the kernel if memory runs out: the last printed line is not the reason then.
# Names, because some platforms lack some of them.
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"})


def last_error(printed: str) -> str:
    """Return the last error that a command printed, in one line; without one, its last line, such as a traceback's."""
    lines = printed.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(_ERROR)]
    error_lines = lines[errors[-1] :] if errors else lines[-1:]
    if any(line.startswith("Traceback") for line in error_lines):
        error_lines = lines[-1:]
    return "; ".join(line.strip() for line in error_lines if line.strip()).removeprefix(_ERROR)


def failure_reason(printed: str, code: int, step: int | None) -> str:
    """Return why a run ended, from its output, exit `code` and last step, if its folder has no reason."""
    if code >= 0:
        ended = f"exit code {code}"
    else:
        name = signal.Signals(-code).name
        ended = f"killed by {name}"
        if step:
            ended += f" after step {step}"
        if name in _FROM_OUTSIDE:
            return ended
    words = last_error(printed)
    return f"{words} ({ended})" if words else ended
