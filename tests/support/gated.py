"""A fake engine whose polls wait until a test allows them, and which can be killed or made to hang from outside."""

import threading
from typing import Any

from fake_engine import FakeEngine

from scalerl.errors import EngineError
from scalerl.training.types import Completion

_PATIENCE_S = 20.0


class GatedEngine(FakeEngine):
    """Every poll takes one of the polls that `allow` gave, and hangs while there is none; `break_down` ends it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._changed = threading.Condition()
        self._allowed = 0
        self._waits = False
        self._broken = False

    def allow(self, num_polls: int) -> None:
        with self._changed:
            self._allowed += num_polls
            self._waits = False
            self._changed.notify_all()

    def break_down(self) -> None:
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def wait_idle(self) -> None:
        """Wait until every allowed poll was taken and the next one waits."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waits and not self._allowed, _PATIENCE_S)

    def poll(self) -> list[Completion]:
        with self._changed:
            self._waits = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allowed or self._broken or self.closed)
            if self._broken:
                raise EngineError("the gated engine broke down")
            self._allowed -= 1
            return super().poll()
