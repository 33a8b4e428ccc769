"""Read the progress of a run from its folder: last step, latest reward, and the ceiling of its fitted curve."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scalerl import store
from scalerl.analysis.results import FitOptions
from scalerl.curves import Fit, fit
from scalerl.curves.verdicts import Verdict
from scalerl.errors import InputError, RunFolderError
from scalerl.logs.read import read_table
from scalerl.logs.series import Selection, series_from

_TAIL_BYTES = 1 << 16  # holds the last row of metrics.jsonl, however long the run
_NOT_KNOWN: Verdict = "ceiling not identifiable yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The ceiling of a run's fitted curve with its 90% interval, and the verdict on the fit."""

    value: float
    low: float
    high: float
    verdict: Verdict

    @classmethod
    def of(cls, fit: Fit) -> Self:
        low, high = fit.interval("ceiling")
        return cls(value=fit.params["ceiling"], low=low, high=high, verdict=fit.verdict)

    @property
    def cell(self) -> str:
        """The text for a table cell under the heading "ceiling": the numbers if the verdict is ok, else the verdict."""
        if self.verdict == "ok":
            return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return "not known yet" if self.verdict == _NOT_KNOWN else self.verdict

    @property
    def words(self) -> str:
        """The same for running text: "ceiling 0.7 [0.6, 0.8]", "ceiling not known yet" or "curve VERDICT".

        It says "curve" because such a verdict judges the whole curve.
        """
        return f"{'ceiling' if self.verdict in ('ok', _NOT_KNOWN) else 'curve'} {self.cell}"


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
            self._reward, self._ceiling = _reward(self._folder), _ceiling(self._folder, self._axis)
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


def _reward(folder: Path) -> float | None:
    try:
        rows = store.read_evals(folder)
    except RunFolderError:
        return None
    return next((row.get("reward") for row in reversed(rows) if row.get("set") == rows[0].get("set")), None)


def _ceiling(folder: Path, axis: str) -> Ceiling | None:
    try:
        series = series_from([read_table(str(folder))], Selection(x=axis))[0]
    except (InputError, RunFolderError):
        return None
    if series.problem is not None:
        return None
    curve = fit(series.compute, series.reward, **FitOptions().of(series))
    return Ceiling.of(curve) if curve.usable else None
