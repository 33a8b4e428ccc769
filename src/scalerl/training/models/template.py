"""Render a model's chat template within a time limit: it comes with the model, so it may be anybody's, and may loop."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import ModelError

_LIMIT_S = 10.0
"""A template takes milliseconds."""


class _TooSlow(Exception):
    """The template has taken longer than its limit."""


def rendered(tokenizer: Any, turns: Sequence[Any], **settings: Any) -> str:
    """Return the text that a tokenizer's chat template makes of these turns; ModelError if it does not end."""
    try:
        with _interrupted_after(_LIMIT_S):
            return tokenizer.apply_chat_template(list(turns), tokenize=False, **settings)
    except _TooSlow:
        name = getattr(tokenizer, "name_or_path", "") or "the model"
        raise ModelError(
            f'the chat template of "{name}" takes more than {_LIMIT_S:g} s for {len(turns)} turns: put a '
            f"chat_template.jinja that ends into the model's folder"
        ) from None


@contextmanager
def _interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise _TooSlow in this thread if the block takes longer than this.

    A signal would reach the main thread only, and a template gives its own code no place for a check.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    is_over = False
    deciding = threading.Lock()

    def interrupt() -> None:
        with deciding:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TooSlow))

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with deciding:
            is_over = True
        timer.cancel()
