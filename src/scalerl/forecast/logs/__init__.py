"""Read logs of any trainer: rows of any format, one plan of what they mean, and the series to fit.

    path --places--> files --readers--> tables --formats--> Log (rows) --plan--> Plan (decisions) --series--> Series

`read` does all of it. It is a function of paths and options alone, and its result can be pickled: a worker that is
ended when a log takes too long can call it.
"""

from collections.abc import Sequence
from pathlib import Path

from scalerl.forecast.logs.curves import series_from
from scalerl.forecast.logs.formats import Log, read_log, read_logs
from scalerl.forecast.logs.selection import Selection
from scalerl.forecast.logs.series import Series

__all__ = ["Log", "Selection", "Series", "read", "read_log", "read_logs", "series_from"]


def read(paths: Sequence[str | Path], selection: Selection | None = None) -> list[Series]:
    """Return the curves of logs; InputError says what cannot be read, or was not recognised."""
    return series_from(read_logs(paths), selection or Selection())
