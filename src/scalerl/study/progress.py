"""A run of a study as it stands, read from its folder: last step, latest reward, the ceiling of its fitted curve."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalerl import store
from scalerl.curves import Decision, Value
from scalerl.logs import Selection
from scalerl.logs.axes import Axis
from scalerl.report.outlook import outlooks_of
from scalerl.study.folder import first_set, last_row
from scalerl.study.plan import PlannedRun

State = Literal["waiting", "running", "paused", "done", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A snapshot of a run; a field is None until the run has such a value."""

    step: int | None = None
    reward: float | None = None
    """Reward of the latest evaluation, on the first set."""
    ceiling: Value | None = None
    """None too where nothing has risen, or the run is past its peak."""
    decision: Decision | None = None
    evals_size: int = field(default=-1, compare=False)
    """Bytes of evaluations that were read: the curve is fitted again when there are more."""


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """One run of the study as it stands."""

    run: PlannedRun
    folder: Path
    state: State
    reason: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Time that this study has spent on it."""
    progress: Progress = field(default_factory=Progress)
    process: subprocess.Popen[bytes] | None = None
    """Its command, while it runs."""
    began: float = 0.0
    """When it would have begun, had it run without a break; on the monotonic clock."""
    slot: int = 0
    """Which of the jobs that run at the same time it is."""
    log_start: int = 0
    """Size of its log when the command began."""
    status_before: Mapping[str, Any] = field(default_factory=dict)
    """Its status.json then."""


def read_progress(folder: Path, axis: Axis, before: Progress) -> Progress:
    """Return a run as it stands; its curve is fitted again only after a new evaluation."""
    evals, step = folder / store.EVALS, last_row(folder).get("step")
    size = evals.stat().st_size if evals.is_file() else 0
    if size == before.evals_size:
        return replace(before, step=step)
    rows = first_set(folder)
    now = Progress(step=step, reward=rows[-1]["reward"] if rows else None, evals_size=size)
    first = tuple(("set", str(row["set"])) for row in rows[:1])
    for outlook in outlooks_of(folder, Selection(x=axis, where=first)).values():
        return replace(now, ceiling=outlook.ceiling, decision=outlook.decision)
    return now
