"""Projects of trackers, read by name: `wandb:ENTITY/PROJECT` through wandb's package, `trackio:PROJECT` without one."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import InputError, first_line
from scalerl.forecast.logs.frame import Placed, listed
from scalerl.forecast.logs.readers.source import Source
from scalerl.forecast.logs.readers.sqlite import sqlite_rows
from scalerl.forecast.logs.readers.wandb import numbers_of

_TIMEOUT_S = 60


class Project(NamedTuple):
    """A project of a tracker."""

    tracker: str
    name: str

    def __str__(self) -> str:
        return f"{self.tracker}:{self.name}"


def project_at(path: str | Path) -> Project | None:
    """Return the project that `wandb:ENTITY/PROJECT` or `trackio:PROJECT` names; None for a path."""
    tracker, _, name = Path(path).as_posix().partition(":")
    return Project(tracker, name) if tracker in PROJECTS and name and not Path(path).exists() else None


def project_rows(project: Project, source: Source) -> Placed:
    """Return what the runs of a project logged, with their names in the column `run`."""
    return PROJECTS[project.tracker](project, source)


def imported(project: Project, action: str) -> Any:
    """Return the package of a project's tracker; InputError where it is not installed."""
    import importlib

    try:
        return importlib.import_module(project.tracker)
    except ModuleNotFoundError:
        raise InputError(f"{project} is {action} through its package: pip install {project.tracker}.") from None


def _wandb_rows(project: Project, source: Source) -> Placed:
    """Return the histories of a project's runs; ENTITY/PROJECT/RUN is one of them."""
    wandb = imported(project, "read")
    try:
        api = wandb.Api(timeout=_TIMEOUT_S)
        runs = [api.run(project.name)] if project.name.count("/") == 2 else [*api.runs(project.name)]
        num = Counter(run.name for run in runs)
        placed: Placed = []
        for run in runs:
            label = {"run": run.name if num[run.name] == 1 else f"{run.name} {run.id}"}
            for at, row in enumerate(run.scan_history(), start=1):
                source.budget.spend(len(row) + 1)
                placed.append((f"row {at}", label | numbers_of(row)))
    except InputError:
        raise
    except Exception as fault:  # wandb has errors of its own, and those of the network
        reason = first_line(fault)
        raise InputError(f"{project} cannot be read ({reason}): check the name, or 'wandb login' first.") from None
    return placed


def _trackio_rows(project: Project, source: Source) -> Placed:
    """Return the rows of a project in trackio's folder, which holds a database for each."""
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    folder = Path(os.environ.get("TRACKIO_DIR") or home / "trackio")
    # trackio names files so.
    name = "".join(letter for letter in project.name if (letter.isascii() and letter.isalnum()) or letter in "-_")
    file = folder / f"{name}.db"
    if not file.is_file():
        there = listed(sorted(path.stem for path in folder.glob("*.db"))) or "none"
        raise InputError(f"trackio has no project {project.name!r} in {folder} (TRACKIO_DIR): it has {there}.")
    return sqlite_rows(Source(file))


PROJECTS: dict[str, Callable[[Project, Source], Placed]] = {"wandb": _wandb_rows, "trackio": _trackio_rows}
