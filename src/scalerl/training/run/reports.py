"""Tell the observer of a run about each evaluation."""

from typing import Any

from scalerl.training.run.clock import Clock
from scalerl.training.run.hooks import Hook, RunEnd
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.rows import Rows


class Reports(Hook):
    """Reports the rows of each evaluation to the observer; its time counts as that of the evaluation."""

    def __init__(self, rows: Rows, clock: Clock, observer: RunObserver) -> None:
        self._rows, self._clock, self._observer = rows, clock, observer
        self._num_reported = len(rows.evals)

    def after_step(self, done: Any, end: RunEnd | None) -> None:
        new = self._rows.evals[self._num_reported :]
        if new:
            self._num_reported += len(new)
            with self._clock.aside("evaluation"):
                self._observer.evaluated(new)
