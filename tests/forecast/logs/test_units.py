"""The unit in which a log writes its amounts is a value on the series."""

from pathlib import Path
from typing import Any

import pytest
from read_logs import read, write

ROWS = [(10 * at, 0.3 + 0.05 * at) for at in range(1, 9)]
BILLION = 1e9


@pytest.mark.parametrize(
    ("header", "options", "axis", "unit"),
    [
        ("tokens (B),acc", {}, "tokens", ("B", BILLION, BILLION)),
        ("tokens (B),acc", {"x": "tokens (B)"}, "tokens (B)", ("B", BILLION, 1.0)),
        ("time (min),acc", {}, "hours", ("min", 1 / 60, 1 / 60)),
        ("step,acc", {}, "step", None),
    ],
)
def test_units_of_axes(
    tmp_path: Path, header: str, options: dict[str, Any], axis: str, unit: tuple[str, float, float] | None
) -> None:
    log = write(tmp_path / "a.csv", (header, ROWS))
    [series] = read(log, **options)
    assert series.units.get(axis) == unit
    assert series.units.get(series.x_label) == unit
