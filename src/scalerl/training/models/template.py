"""Render a model's chat template within limits: it comes with the model, so it may be anybody's, and may loop."""

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import ModelError

_LIMIT_S = 10.0
"""A template takes milliseconds."""
_CHECK_S = 0.1
"""Seconds between two looks at the time."""
_LONGEST = 10**7
"""Largest number of characters of a conversation, far more than any context."""


class _TooSlow(Exception):
    """The template has taken longer than its limit."""


def rendered(tokenizer: Any, turns: Sequence[Any], **settings: Any) -> str:
    """Return the text that a tokenizer's chat template makes of these turns; ModelError if it needs too much for it."""
    try:
        with _interrupted_after(_LIMIT_S):
            text = tokenizer.apply_chat_template(list(turns), tokenize=False, **settings)
    except _TooSlow:
        fault = f"takes more than {_LIMIT_S:g} s"
    except (MemoryError, RecursionError):
        fault = "needs more memory than there is"
    else:
        if len(text) <= _LONGEST:
            return text
        fault = f"makes {len(text):,} characters"
    name = getattr(tokenizer, "name_or_path", "") or "the model"
    raise ModelError(
        f'the chat template of "{name}" {fault} for {len(turns)} turns: put a chat_template.jinja that ends into the '
        f"model's folder"
    )


@contextmanager
def _interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise _TooSlow in this thread if the block takes longer than this, within a tenth of a second.

    A signal would reach the main thread only, and a template gives its own code no place for a check. One thread
    watches all blocks: a data set has thousands of prompts, and a thread for each would take longer than its template.
    """
    thread = threading.get_ident()
    _WATCH.begin(thread, time.monotonic() + limit_s)
    try:
        yield
    finally:
        _WATCH.end(thread)


class _Watch:
    """A thread that interrupts others at their deadlines; it ends when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        """By thread."""
        self._thread: threading.Thread | None = None

    def begin(self, thread: int, deadline: float) -> None:
        with self._lock:
            self._deadlines[thread] = deadline
            # A forked process has no threads of its parent.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="template-limit", daemon=True)
                self._thread.start()

    def end(self, thread: int) -> None:
        with self._lock:
            self._deadlines.pop(thread, None)

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_S)
            with self._lock:
                if not self._deadlines:
                    self._thread = None
                    return
                now = time.monotonic()
                for thread in [each for each, deadline in self._deadlines.items() if deadline < now]:
                    del self._deadlines[thread]
                    error = ctypes.py_object(_TooSlow)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


_WATCH = _Watch()
