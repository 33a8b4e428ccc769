"""The interface through which the terminal, or any program, follows a run."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal


class RunObserver:
    """Follows a run of RL or SFT, and may ask it to stop. Override the methods you need."""

    def started(self, run: Any) -> None:
        """Called with the `TrainingRun` when everything is loaded, before its folder is written."""

    def stepped(self, row: Mapping[str, Any]) -> None:
        """Called with the row of each step."""

    def evaluating(self, finished: int, total: int) -> None:
        """Called during an evaluation with the number of graded completions and their total number."""

    def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Called with the rows of an evaluation, one per set. `scalerl.callbacks.RunHealth` forecasts from them."""

    def checkpoint_failed(self, reason: str) -> None:
        """Called once if a checkpoint cannot be written, as on a full disk. Training continues."""

    def hung(self, reason: str) -> None:
        """Called from another thread, immediately before the process ends."""

    def stopping(self) -> bool | Literal["now"]:
        """Return whether to stop after this step, without an evaluation; "now" means within the step."""
        return False

    def drawing(self, num: int) -> None:
        """Called before SFT draws up to this many demonstrations."""

    def planned(self, plan: Any) -> None:
        """Called with the `SftPlan` before the first step of SFT."""

    def measured(self, progress: Any) -> None:
        """Called with the `SftProgress` of each measurement of the held-out loss."""
