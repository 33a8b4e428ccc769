"""Follow the log of any tracker or framework while it is written, and forecast whenever it has new points."""

import time
from collections.abc import Iterator
from pathlib import Path

from scalerl.callbacks.forecast import Forecast, describe
from scalerl.callbacks.live_forecast import FIRST_FIT
from scalerl.errors import InputError
from scalerl.forecast.logs import Selection, Series, read
from scalerl.forecast.report.analyse import fitted_curve, with_end
from scalerl.forecast.report.options import FitOptions


def follow(
    path: str | Path,
    *,
    end_compute: float | None = None,
    x: str | None = None,
    y: str | None = None,
    every_s: float = 10.0,
    until_quiet_s: float | None = None,
) -> Iterator[Forecast]:
    """Yield a forecast each time a log has new points; end after `until_quiet_s` without new points, or never.

    `path` is anything that `scalerl fit` reads: a wandb run's folder or .wandb file, a trackio database, tensorboard
    event files, a trainer's output folder, JSON lines, CSV or console output. It need not exist yet. `x` and `y` name
    the columns of compute and reward; by default they are detected. `end_compute` has the unit of `x`.

    >>> for forecast in follow("wandb/latest-run", x="_step", end_compute=2000):
    ...     print(forecast.text)
    """
    known = -1
    quiet_since = time.monotonic()
    while True:
        series = _read(Path(path), Selection(x=x, y=y))
        if series is not None and len(series.compute) != known:
            known = len(series.compute)
            quiet_since = time.monotonic()
            if known >= FIRST_FIT:
                yield describe(with_end(fitted_curve(series, FitOptions()), end_compute))
        elif until_quiet_s is not None and time.monotonic() - quiet_since > until_quiet_s:
            return
        time.sleep(every_s)


def _read(path: Path, selection: Selection) -> Series | None:
    """Return the first usable curve of the log; None if there is none yet."""
    try:
        return next((data for data in read([path], selection) if not data.problem), None)
    except InputError:
        return None
