"""Cells that spreadsheets write become the numbers they mean, and nothing else does."""

import pytest

from scalerl.logs.units import ABSENT, as_numbers, has_decimal_commas


@pytest.mark.parametrize(
    "delimiter, columns, values",
    [
        (",", [["0.25", "", "3e2"]], [[0.25, None, 300.0]]),
        (",", [["1,200,000", "900", "1,000.5"]], [[1.2e6, 900.0, 1000.5]]),
        (",", [["30.4%", "25 %", "n/a"]], [[0.304, 0.25, None]]),
        (";", [["900", "1.000"], ["0,25", "1.234,5"]], [[900.0, 1000.0], [0.25, 1234.5]]),
        (";", [["19,76 %", "20 %"], ["100", "1.100"]], [[0.1976, 0.2], [100.0, 1100.0]]),
        # A dot is a decimal point where no comma is, and before 250 behind a zero.
        (";", [["1.000", "2.000"], ["a", "b"]], [[1.0, 2.0], ["a", "b"]]),
        (";", [["0.250", "0.300"], ["0,5", "1,5"]], [[0.25, 0.3], [0.5, 1.5]]),
        # Groups of thousands beside decimal points, as in a table of tabs; without these they are decimals.
        ("\t", [["900", "1,200"], ["0.25", "0.3"]], [[900.0, 1200.0], [0.25, 0.3]]),
        (";", [["1,200", "1,250"], ["1", "2"]], [[1.2, 1.25], [1.0, 2.0]]),
        # Not numbers: a label beside one, a mix of shares and percentages, a range.
        (",", [["3e7", "base"], ["30%", "0.3"], ["1,2", "3,4"]], [["3e7", "base"], ["30%", "0.3"], ["1,2", "3,4"]]),
    ],
)
def test_cells_are_read_as_written(
    delimiter: str, columns: list[list[str]], values: list[list[float | str | None]]
) -> None:
    has_commas = delimiter != "," and has_decimal_commas(cell for column in columns for cell in column)
    for column, expected in zip(columns, values, strict=True):
        texts = [cell for cell in column if cell not in ABSENT]
        known = [cell for cell in expected if cell is not None]
        found = as_numbers(texts, decimal_comma=has_commas)
        assert (texts if None in found else found) == pytest.approx(known)
