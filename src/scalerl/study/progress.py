"""The progress of a run, read from its folder: last step, latest reward and the ceiling of its fitted curve."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalerl.forecast.curves import Decision, Value
from scalerl.forecast.logs import Selection
from scalerl.forecast.logs.axes import Axis
from scalerl.forecast.report.outlook import outlooks_of
from scalerl.runfolder import store
from scalerl.study.folder import evals_of_first_set, last_row
from scalerl.study.plan import PlannedRun

State = Literal["waiting", "running", "paused", "done", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run; a field is None until it is known."""

    step: int | None = None
    reward: float | None = None
    """Reward of the latest evaluation, on the first set."""
    ceiling: Value | None = None
    """Also None if the reward has not risen, or is past its peak."""
    decision: Decision | None = None
    evals_size: int = field(default=-1, compare=False)
    """Size of the file of evaluations at the last fit: the curve is fitted again when it has grown."""


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """A run of the study and its current state."""

    run: PlannedRun
    folder: Path
    state: State
    reason: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Time that this study has spent on the run."""
    progress: Progress = field(default_factory=Progress)
    process: subprocess.Popen[bytes] | None = None
    """Its process, while it runs."""
    began: float = 0.0
    """Monotonic time at which it would have started if it had run without breaks."""
    slot: int = 0
    """Number of its place among the runs at the same time."""
    log_start: int = 0
    """Size of its log when the process started."""
    status_before: Mapping[str, Any] = field(default_factory=dict)
    """Its status.json when the process started."""


def read_progress(folder: Path, axis: Axis, before: Progress) -> Progress:
    """Return the progress of a run; its curve is fitted again only after a new evaluation."""
    evals, step = folder / store.EVALS, last_row(folder).get("step")
    size = evals.stat().st_size if evals.is_file() else 0
    if size == before.evals_size:
        return replace(before, step=step)
    rows = evals_of_first_set(folder)
    now = Progress(step=step, reward=rows[-1]["reward"] if rows else None, evals_size=size)
    first = tuple(("set", str(row["set"])) for row in rows[:1])
    for outlook in outlooks_of(folder, Selection(x=axis, where=first)).values():
        return replace(now, ceiling=outlook.ceiling, decision=outlook.decision)
    return now
