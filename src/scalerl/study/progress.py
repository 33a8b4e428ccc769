"""Read the progress of a run from its folder: last step, latest reward, and the ceiling of its fitted curve."""

import json
from dataclasses import dataclass
from pathlib import Path

from scalerl import store
from scalerl.curves import fit
from scalerl.errors import InputError, RunFolderError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, series_from
from scalerl.report.outlook import Ceiling
from scalerl.report.results import FitOptions
from scalerl.study.folder import first_set

_TAIL_BYTES = 1 << 16  # holds the last row of metrics.jsonl, however long the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A snapshot of a run; a field is None until the run has such a value."""

    step: int | None = None
    reward: float | None = None
    """Reward of the latest evaluation, on the first set."""
    ceiling: Ceiling | None = None


class ProgressReader:
    """Reads the progress of one run repeatedly; fits its curve again only after a new evaluation."""

    def __init__(self, folder: Path, axis: str) -> None:
        self._folder, self._axis = folder, axis
        self._evals_size = -1
        self._reward: float | None = None
        self._ceiling: Ceiling | None = None

    def read(self) -> Progress:
        evals = self._folder / store.EVALS
        size = evals.stat().st_size if evals.is_file() else 0
        if size != self._evals_size:
            self._evals_size = size
            rows = first_set(self._folder)
            self._reward = rows[-1]["reward"] if rows else None
            self._ceiling = _ceiling(self._folder, self._axis)
        return Progress(step=_last_step(self._folder), reward=self._reward, ceiling=self._ceiling)


def _last_step(folder: Path) -> int | None:
    """Return the last logged step; reads only the end of the file, since this is called every second."""
    path = folder / store.METRICS
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _ceiling(folder: Path, axis: str) -> Ceiling | None:
    try:
        series = series_from([read_table(str(folder))], Selection(x=axis))[0]
    except (InputError, RunFolderError):
        return None
    if series.problem is not None:
        return None
    curve = fit(series.compute, series.reward, **FitOptions().of(series))
    return Ceiling.of(curve) if curve.usable else None
