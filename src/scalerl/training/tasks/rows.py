"""Read rows of data from a file or a Hugging Face data set. Errors name the place of the row.

A row is a mapping: a line of a file, a row of a table or a value that a function returned.
"""

import gzip
import json
import math
import numbers
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

from scalerl.errors import TaskError, first_line, not_utf8
from scalerl.runfolder.json_text import parse_json

Problem = TypeVar("Problem")
Turns = tuple[tuple[str, str], ...]
"""A chat: (role, content) of each turn."""

ROLES = ("system", "developer", "user", "assistant", "tool")

_LONE_SURROGATE = re.compile("[\\ud800-\\udfff]")
_COMPRESSED = ".gz"
_LONGEST_FAULT = 1000
_MOST_CHARACTERS = 2**31
"""Largest size of a text, above that of any set of problems: a small compressed file can unpack to terabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row and its origin."""

    where: str
    """The file, data set or function."""
    unit: str
    """The word for a row there: "line" or "row"."""
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        return f"{self.unit} {self.number}"

    def fault(self, what: str) -> TaskError:
        """Return an error about the row."""
        shortened = what if len(what) <= _LONGEST_FAULT else f"{what[:_LONGEST_FAULT]} ..."
        return TaskError(f"{self.where}, {self.place}: {shortened}")

    def text(self, field: str, hint: str = "") -> str:
        """Return a field with text or a number; if it is missing, `hint` is added to the error."""
        if field not in self.values:
            has = ", ".join(map(str, self.values)) or "no fields"
            raise self.fault(f'the field "{field}" is missing; it has {has}{hint}')
        if not _is_text(value := self.values[field]):
            raise self.fault(f'the field "{field}" must be text or a number, not {shown(value)}')
        return str(value)

    def turns(self, field: str) -> Turns:
        """Return a field with a list of messages, {"role": ..., "content": ...}; () for anything else."""
        messages = self.values.get(field)
        if not _is_list(messages):
            return ()
        if not messages:
            raise self.fault(f'the field "{field}" is an empty list, but a chat has at least one message')
        turns = []
        for number, message in enumerate(messages, start=1):
            given = message if isinstance(message, Mapping) else {}
            role = given.get("role")
            content = cast(Any, given.get("content"))
            if _is_list(content) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
                content = "".join(str(part.get("text", "")) for part in content)
            if role not in ROLES or not (isinstance(content, str) and _is_text(content)):
                raise self.fault(
                    f'message {number} in the field "{field}" must have a "role" ({", ".join(ROLES)}) and text as its '
                    f'"content", but it is {shown(message)}'
                )
            turns.append((role, content))
        return tuple(turns)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_text(value: Any) -> bool:
    """Return whether a value is text or a number, and not a list, null, boolean or NaN (null in some tables)."""
    if isinstance(value, str):
        # A lone surrogate, which JSON can write as \ud800, is not a character; no tokenizer accepts it.
        return bool(value.strip()) and not _LONE_SURROGATE.search(value)
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real | Decimal) and math.isfinite(value)


def shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"


def numbered(where: str, unit: str, values: Iterable[tuple[int, Any]]) -> Sequence[Row]:
    """Return rows from (number, value) pairs; TaskError if there are none or a value is not a mapping."""
    rows = [Row(where=where, unit=unit, number=number, values=value) for number, value in values]
    for row in rows:
        if not isinstance(row.values, Mapping):
            raise row.fault(f"it must be an object with fields, not {type(row.values).__name__}")
    if not rows:
        raise TaskError(f"{where} has no problems: it is empty")
    return rows


def read_all(read: Callable[[Row], Problem], rows: Iterable[Row]) -> list[Problem]:
    """Return `read(row)` for each row; TaskError names the first row that is nested too deeply."""
    problems: list[Problem] = []
    for row in rows:
        try:
            problems.append(read(row))
        except RecursionError:
            raise row.fault("it is nested too deeply") from None
    return problems


def read_rows(
    task: str, path: str, evaluation_path: str, dataset: str, subset: str, split: str, evaluation_split: str
) -> tuple[Sequence[Row], Sequence[Row] | None]:
    """Return the rows of a task, and those for evaluation if they are separate.

    They are in files, or in splits of a data set on the hub or in a folder. Files replace the data set: recipes that
    name a data set can also be used with a copy of its problems.
    """
    if not path and not dataset:
        raise TaskError(f"{task}: set path (a file) or dataset (of the Hugging Face hub)")
    if path:
        return _read_file(Path(path)), _read_file(Path(evaluation_path)) if evaluation_path else None
    if evaluation_path:
        raise TaskError(f"{task}: evaluation_path is set, but it belongs to path; the problems come from dataset")
    held = _load(dataset, subset, evaluation_split) if evaluation_split else None
    return _load(dataset, subset, split), held


def _load(dataset: str, subset: str, split: str) -> Sequence[Row]:
    """Load the rows of one split of a data set, downloading it if necessary."""
    where = f'the data set "{dataset}", split "{split}"'
    try:
        import datasets
    except ModuleNotFoundError:
        raise TaskError(f'{where}, needs datasets to be loaded: pip install "scalerl[data]"') from None
    try:
        with hide_hub_warnings():
            loaded = datasets.load_dataset(dataset, subset or None, split=split)
    # No network, unknown names and broken files raise different errors, and the user must see all of them.
    except Exception as error:
        raise TaskError(f"{where}, cannot be loaded: {first_line(error)}") from error
    return numbered(where, "row", enumerate(loaded, start=1))


def _read_file(path: Path) -> Sequence[Row]:
    """Read the rows of a file in the format of its suffix; text may be compressed (.jsonl.gz)."""
    suffix = path.with_suffix("").suffix if path.suffix == _COMPRESSED else path.suffix
    if suffix not in _READERS:
        read = ", ".join(_READERS)
        raise TaskError(f'{path} has the suffix "{path.suffix}"; problems are read from {read}, .jsonl.gz')
    try:
        return _READERS[suffix](path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TaskError(f"{path} is not a complete gzip file") from None
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None
    except UnicodeDecodeError as error:
        raise TaskError(not_utf8(path, error)) from None


def _read_json(path: Path) -> Sequence[Row]:
    # Accept the byte-order mark that some editors and spreadsheets write.
    open_file = gzip.open if path.suffix == _COMPRESSED else open
    with open_file(path, "rt", encoding="utf-8-sig") as opened:
        text = opened.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise TaskError(f"{path} has more than {_MOST_CHARACTERS >> 30} GiB of text: give a part of it")
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return numbered(str(path), "entry", enumerate(_from_json(path, 1, text), start=1))
    # Do not use splitlines, which also splits at characters that JSON allows inside strings.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return numbered(str(path), "line", [(number, _from_json(path, number, line)) for number, line in lines])


def _from_json(path: Path, line: int, text: str) -> Any:
    """Return the value of a JSON text that begins in line `line`."""
    try:
        return parse_json(text)
    except JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, column {error.colno}"
        raise TaskError(f"{path}, {place}: not valid JSON: {error.msg}") from None


def _read_parquet(path: Path) -> Sequence[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise TaskError(f'{path} needs pyarrow to be read: pip install "scalerl[data]"') from None
    try:
        with path.open("rb") as opened:
            table = pyarrow.parquet.read_table(opened)
    except pyarrow.ArrowException as error:
        raise TaskError(f"{path} is not a parquet file: {first_line(error)}") from None
    return numbered(str(path), "row", enumerate(table.to_pylist(), start=1))


_READERS: Mapping[str, Callable[[Path], Sequence[Row]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


@contextmanager
def hide_hub_warnings() -> Iterator[None]:
    """Hide the warnings that the hub's client logs for failed attempts; the final error is enough."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
