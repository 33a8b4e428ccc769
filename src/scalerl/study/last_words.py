"""Why a command failed, from what it printed."""

_ERROR = "error: "


def last_words(printed: str) -> str:
    """The sentences of its last error on one line; without one the last line, which is where a traceback has it."""
    lines = printed.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(_ERROR)]
    said = lines[errors[-1] :] if errors else lines[-1:]
    if any(line.startswith("Traceback") for line in said):
        said = lines[-1:]
    return "; ".join(line.strip() for line in said if line.strip()).removeprefix(_ERROR)
