"""Tables between the other lines of a text: with bars, as Markdown has them, or aligned by blanks."""

import re
from collections.abc import Sequence

from scalerl.forecast.logs.frame import number, steps_of_names
from scalerl.forecast.logs.readers.delimited import Line, is_header, is_number, named_rows
from scalerl.forecast.logs.readers.lines import Printed
from scalerl.forecast.logs.readers.source import Table

_MIN_ROWS = 3
_COUNT = re.compile(r"(\d{1,12})\s?[kKMBT]?")
# Numbers, behind a name or not. Cells that are aligned have two blanks between them.
_ALIGNED = re.compile(r"(\S++(?: \S++)*+\s{2,})?+[-+.,%eE\d\s\u2212]*[\d%]")
_BLANKS = re.compile(r"\s{2,}")
_ANYTHING = re.compile(r"[^\W_]")


def longest_table(printed: Sequence[Printed]) -> Table | None:
    """Return the longest table whose rows go on; None if there is none. Tables with the same header are one."""
    tables: dict[tuple[str, ...], list[Line]] = {}
    header: tuple[str, ...] = ()
    above = ""
    for line in printed:
        text = line.text.strip().lstrip("#")
        if not _ANYTHING.search(text):  # a rule
            continue
        cells = _cells(text)
        if any(map(is_number, cells)):
            names = _names(above, cells)
            if is_header(names, [cells]):
                header = tuple(names)
                tables.setdefault(header, []).append((line.at, cells))
            elif len(cells) == len(header):
                tables[header].append((line.at, cells))
        above = text
    logs = [(header, rows) for header, rows in tables.items() if len(rows) >= _MIN_ROWS and _goes_on(rows)]
    if not logs:
        return None
    header, rows = max(logs, key=lambda table: len(table[1]))
    return Table("csv", named_rows(header, rows))


def _cells(text: str) -> list[str]:
    """Return the cells of a row; none for another line."""
    if "|" in text:
        cells = text.removeprefix("|").removesuffix("|").split("|")
        return [cell.strip().strip("*`_$ ") for cell in cells]
    row = _ALIGNED.fullmatch(text)
    if row is None:
        return []
    return _BLANKS.split(text) if row[1] else text.split()


def _names(above: str, cells: list[str]) -> list[str]:
    """Return the cells of the line above a row as the names of its columns."""
    if "|" in above:
        return _cells(above)
    names = _BLANKS.split(above.strip())
    return names if len(names) == len(cells) else above.split()


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
