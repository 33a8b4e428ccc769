"""Write the rows of a run: one per step to metrics.jsonl, one per evaluation and set to evals.jsonl."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.runfolder import store
from scalerl.runfolder.store import Row
from scalerl.training.learner.late import LateMetrics
from scalerl.training.loop.pipeline import StepDone
from scalerl.training.run.hooks import Hook, RunEnd


@dataclass
class Rows(Hook):
    """Writes rows, and keeps the rows of earlier attempts that this one continues.

    On a GPU, the metrics of a step are known only when its kernels are done. So that the host need not wait, the row is
    written after the next step, or by `flush`.
    """

    folder: Path
    attempt: int = 1
    metrics: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    spent: Callable[[], Mapping[str, float]] = dict
    columns: Callable[[StepDone], Mapping[str, Any]] = lambda done: {}
    """These two return columns that are known as soon as a step ends."""
    on_row: Callable[[Row], None] = lambda row: None
    """Called with each row."""

    def __post_init__(self) -> None:
        self.samples: list[Row] = []
        """Samples written at the last evaluation."""
        self._pending: Callable[[], Row] | None = None

    def after_step(self, done: StepDone | None, end: RunEnd | None) -> None:
        self.flush()
        if done is None:
            return
        known = {"step": done.version, "attempt": self.attempt, **self.spent()}
        others = self.columns(done)
        self._pending = lambda: {**known, **done.metrics, **step_times(done), **others}
        if not isinstance(done.metrics, LateMetrics):
            self.flush()

    def flush(self) -> None:
        """Write the row of the last step if it is not written yet; this may wait for the device."""
        make = self._pending
        self._pending = None
        if make is not None:
            row = make()
            store.append_row(self.folder / store.METRICS, row)
            self.metrics.append(row)
            self.on_row(row)

    def add_evaluation(self, step: int, rows: Iterable[Row], samples: Iterable[Row]) -> list[Row]:
        """Write the rows of an evaluation, and samples for people to read; return the rows."""
        first_columns = {"step": step, "attempt": self.attempt}
        new = [{**first_columns, **row} for row in rows]
        self.samples = [{**first_columns, **row} for row in samples]
        for file, written in ((store.EVALS, new), (store.SAMPLES, self.samples)):
            for row in written:
                store.append_row(self.folder / file, row)
        self.evals += new
        return new


def step_times(done: StepDone) -> dict[str, float]:
    """Return the columns for the time of each part of a step; on a GPU this waits for the step."""
    timings = done.timings
    step_s = timings.step_s
    wait_s = timings.wait_s
    if isinstance(done.metrics, LateMetrics):
        # The host only launched the step: the device measured its time.
        step_s = done.metrics.get("time/step_s", step_s)
        wait_s = max(timings.total_s - step_s - timings.push_s, 0.0)
    return {"time/step_s": step_s, "time/wait_s": wait_s, "time/push_s": timings.push_s}
