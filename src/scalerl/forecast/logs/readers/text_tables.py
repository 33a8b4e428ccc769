"""Tables between the other lines of a text: with bars, as Markdown has them, or aligned by blanks."""

import re
from collections.abc import Iterator, Sequence

from scalerl.forecast.logs.frame import number, steps_of_names
from scalerl.forecast.logs.readers.delimited import Line, is_header, is_number, named_rows
from scalerl.forecast.logs.readers.lines import Printed
from scalerl.forecast.logs.readers.source import Table

_MIN_ROWS = 3
_NUMBERS = re.compile(r"[-+.,%eE\d\s\u2212]+")
_COUNT = re.compile(r"(\d{1,12})\s?[kKMBT]?")
# Cells that are aligned have two blanks between them.
_BLANKS = re.compile(r"\s{2,}")


def longest_table(printed: Sequence[Printed]) -> Table | None:
    """Return the longest table whose rows go on; None if there is none. Tables with the same header are one."""
    tables: dict[tuple[str, ...], list[Line]] = {}
    header: tuple[str, ...] = ()
    above: list[str] = []
    for at, cells in _cells_of_lines(printed):
        if header and len(cells) == len(header) and not is_header(above, [cells]) and any(map(is_number, cells)):
            tables[header].append((at, cells))
        elif above and is_header(above, [cells]):
            header = tuple(above)
            tables.setdefault(header, []).append((at, cells))
        above = cells
    logs = [(header, rows) for header, rows in tables.items() if len(rows) >= _MIN_ROWS and _goes_on(rows)]
    if not logs:
        return None
    header, rows = max(logs, key=lambda table: len(table[1]))
    return Table("csv", named_rows(header, rows))


def _cells_of_lines(printed: Sequence[Printed]) -> Iterator[Line]:
    """Yield the lines that may be part of a table, as cells; a rule is none."""
    before: Printed | None = None
    for line in printed:
        text = line.text.strip().lstrip("#")
        if "|" in text:
            if any(map(str.isalnum, text)):
                yield (
                    line.at,
                    [cell.strip().strip("*`_$ ") for cell in text.removeprefix("|").removesuffix("|").split("|")],
                )
        elif _NUMBERS.fullmatch(text) and any(map(str.isdigit, text)):
            if before is not None:
                yield before.at, before.text.split()
            yield line.at, text.split()
        elif _is_named_row(text):
            if before is not None:
                yield before.at, _BLANKS.split(before.text.strip())
            yield line.at, _BLANKS.split(text)
        elif any(map(str.isalnum, text)):
            before = line
            continue
        else:
            continue
        before = None


def _is_named_row(text: str) -> bool:
    """Return whether a line is a name and aligned numbers behind it, as 'ckpt-20   34.5%   50.4%' is."""
    name, *cells = _BLANKS.split(text)
    return bool(cells) and not is_number(name) and all(map(is_number, cells))


def _goes_on(rows: Sequence[Line]) -> bool:
    """Return whether a column of whole numbers rises from row to row; those of runs may begin anew after some rows.

    The table in an answer begins anew after one or two. Without such a column the first one counts, if the rows stand
    in one piece; of names that differ in one number, that is the step.
    """
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    are_near = rows[-1][0] - rows[0][0] < 2 * len(rows)
    for at, column in enumerate(columns):
        is_counted = all(_COUNT.fullmatch(cell.replace(",", "")) for cell in column)
        if (is_counted or (are_near and at == 0)) and _is_rising([number(cell.rstrip("kKMBT ")) for cell in column]):
            return True
    return steps_of_names(columns[0]) is not None


def _is_rising(steps: list[float]) -> bool:
    num_rises = sum(map(float.__lt__, steps, steps[1:]))
    num_falls = sum(map(float.__gt__, steps, steps[1:]))
    return num_rises > 2 * num_falls
