"""What a run reports while it trains, and to whom: a terminal, a test, or nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scalerl.report.alarms import Alarm
from scalerl.report.outlook import Outlook

if TYPE_CHECKING:
    from scalerl.run.run import Run

Outlooks = Mapping[str, Outlook | None]
"""The forecast of each evaluation set, None before there is one."""


class RunObserver(Protocol):
    """Is told what happens in a run, and may ask it to stop."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], outlooks: Outlooks, alarms: Sequence[Alarm]) -> None: ...
    def hung(self, reason: str) -> None:
        """Called from another thread, immediately before the process ends."""
        ...

    def stopping(self) -> bool | Literal["now"]:
        """Return whether the run should stop after this step, without an evaluation, or "now": within a step."""
        ...


class NullObserver:
    """Ignores everything and never asks the run to stop."""

    def started(self, run: "Run") -> None: ...
    def stepped(self, row: Mapping[str, Any]) -> None: ...
    def evaluating(self, finished: int, total: int) -> None: ...
    def evaluated(self, rows: Sequence[Mapping[str, Any]], outlooks: Outlooks, alarms: Sequence[Alarm]) -> None: ...
    def hung(self, reason: str) -> None: ...
    def stopping(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended."""

    kind: Literal["budget", "data", "stopped", "paused"]
    """The budget is spent, the data is exhausted, the observer asked it to stop, or it came to where it pauses."""
    reason: str
