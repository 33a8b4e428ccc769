"""Write a log in any of its forms, read it, and show what was read as plain values."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import Candidate, InputError, UnclearLogError
from scalerl.forecast import logs
from scalerl.forecast.logs import Selection, Series
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.plan import Plan

Content = str | bytes | list[dict[str, Any]] | tuple[str, Sequence[Sequence[Any]]]
"""A text, bytes, rows for JSON lines, or a header and rows for CSV."""


def write(path: Path, content: Content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, tuple):
        header, rows = content
        content = header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    elif isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    return path


def read(*paths: str | Path, **options: Any) -> list[Series]:
    return logs.read(paths, Selection(**options))


def fault(*paths: str | Path, **options: Any) -> str:
    """Return the sentence of what cannot be read."""
    with pytest.raises(InputError) as caught:
        read(*paths, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


def candidates(*paths: str | Path, **options: Any) -> tuple[Candidate, ...]:
    """Return what the reward of a log may be, where that is asked."""
    with pytest.raises(UnclearLogError) as caught:
        read(*paths, **options)
    assert str(caught.value).isprintable()
    return caught.value.candidates


def kinds(series: Series) -> list[str]:
    return [fact.kind for fact in series.facts]


def names(curves: Sequence[Series]) -> list[str]:
    return [series.name for series in curves]


def runs(series: Series) -> list[str]:
    """Return the names of its runs; none where it is one."""
    return [] if series.run is None else sorted(set(series.run.tolist()))


def rows(frame: Frame) -> list[dict[str, Any]]:
    """Return the rows of a frame, each with what it holds."""
    columns = {name: cells.tolist() for name, cells in frame.columns.items() if name != "file"}
    there = {name: (frame.words(name) != "").tolist() for name in columns}
    return [{name: cells[at] for name, cells in columns.items() if there[name][at]} for at in range(len(frame))]


def column(frame: Frame, name: str) -> list[Any]:
    """Return a column, None where a row has nothing."""
    return [row.get(name) for row in rows(frame)]


def planned(path: Path, **options: Any) -> Plan:
    return logs.read_log(path).plan(Selection(**options))
