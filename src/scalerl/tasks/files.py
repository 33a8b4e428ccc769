"""Tasks from a user's own problems: in a file, in a Hugging Face data set, or returned by a function."""

import functools
import gzip
import inspect
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import TaskError, not_utf8
from scalerl.tasks.rows import Fields, Row, numbered, rows_task
from scalerl.tasks.task import Task

_COMPRESSED = ".gz"
DEFAULT_EVALUATION = 1000
"""Problems of an evaluation set that a task generates, where a recipe does not set how many."""

_MOST_ROWS = 5_000_000
"""More rows than any set of problems has; a function that yields more is assumed never to end."""


def _problems(
    name: str,
    num_evaluation: int | None,
    evaluation_seed: int,
    /,
    *,
    path: str = "",
    evaluation_path: str = "",
    dataset: str = "",
    subset: str = "",
    split: str = "train",
    evaluation_split: str = "",
    prompt_field: str = "prompt",
    answer_field: str = "answer",
    id_field: str = "id",
    demonstration_field: str = "",
    answer_pattern: str = "",
) -> Task:
    """Problems of a file, or of a Hugging Face data set; `num_evaluation` of them, or of a second one, are withheld.

    `name` is the task's in a recipe. `answer_pattern` extracts the answer from a longer reference, e.g. "#### (.+)" for
    GSM8K.
    """
    source = Source(path, evaluation_path, dataset, subset, split, evaluation_split)
    fields = Fields(
        prompt=prompt_field,
        answer=answer_field,
        id=id_field,
        demonstration=demonstration_field,
        answer_pattern=answer_pattern,
    )
    rows, evaluation_rows = source.read(name)
    return rows_task(name, num_evaluation, evaluation_seed, rows=rows, fields=fields, evaluation_rows=evaluation_rows)


file = functools.partial(_problems, "file")
hub = functools.partial(_problems, "hub")


class Source(NamedTuple):
    """Where the rows of a task are: in a file, or in a data set by its name on the hub or the folder that has it."""

    path: str = ""
    evaluation_path: str = ""
    dataset: str = ""
    subset: str = ""
    split: str = "train"
    evaluation_split: str = ""

    def read(self, task: str) -> tuple[Sequence[Row], Sequence[Row] | None]:
        """Return the rows, and those to evaluate on where they are apart."""
        if bool(self.path) == bool(self.dataset):
            raise TaskError(f"{task}: set either path (a file) or dataset (of the Hugging Face hub), and not both")
        source, other = ("path", "dataset") if self.path else ("dataset", "path")
        for name in ("subset", "split", "evaluation_split") if self.path else ("evaluation_path",):
            if getattr(self, name) != self._field_defaults[name]:
                raise TaskError(f"{task}: {name} is set, but it belongs to {other}, and the problems are of {source}")
        if self.path:
            return read_rows(Path(self.path)), read_rows(Path(self.evaluation_path)) if self.evaluation_path else None
        held = load_rows(self.dataset, self.subset, self.evaluation_split) if self.evaluation_split else None
        return load_rows(self.dataset, self.subset, self.split), held


def function_task(function: Callable[..., Any], name: str, num_evaluation: int | None, evaluation_seed: int) -> Task:
    """Build a task from a user's function with its settings bound; `name` is its import path.

    A function without positional arguments returns or yields rows: {"prompt": ..., "answer": ...}, optionally with "id"
    and "demonstration". A function of (num_evaluation, evaluation_seed) returns a Task.
    """
    num_arguments = _num_arguments(function)
    if num_arguments not in (0, 2):
        raise TaskError(
            f'"{name}" takes {num_arguments} positional arguments but must take none and return rows, or take '
            f"(num_evaluation, evaluation_seed) and return a Task; settings come after a *"
        )
    try:
        num = DEFAULT_EVALUATION if num_evaluation is None else num_evaluation
        result = function(num, evaluation_seed) if num_arguments else function()
        # A generator runs only now, so its errors appear here.
        values = result if isinstance(result, Task) else _listed(name, result)
    except TaskError:
        raise
    # A script that was meant to be run by itself may call sys.exit.
    except (Exception, SystemExit) as error:
        raise TaskError(f'"{name}" raised {type(error).__name__}: {" ".join(str(error).split())}') from error
    if isinstance(values, Task):
        return values
    if num_arguments:
        raise TaskError(f'"{name}" takes (num_evaluation, evaluation_seed), so it must return a Task, not rows')
    rows = numbered(name, "row", enumerate(values, start=1))
    has_demonstrations = "demonstration" in rows[0].values
    fields = Fields(demonstration="demonstration" if has_demonstrations else "", settable=False)
    return rows_task(name, num_evaluation, evaluation_seed, rows=rows, fields=fields)


def read_rows(path: Path) -> Sequence[Row]:
    """Read the rows of a file, in the format of its suffix; of text, also compressed (.jsonl.gz)."""
    suffix = path.with_suffix("").suffix if path.suffix == _COMPRESSED else path.suffix
    if suffix not in READERS or (path.suffix == _COMPRESSED and READERS[suffix] is not _read_json_lines):
        raise TaskError(
            f'{path} has the suffix "{path.suffix}"; problems are read from {", ".join(READERS)}, .jsonl.gz'
        )
    return READERS[suffix](path)


def _read_json_lines(path: Path) -> Sequence[Row]:
    try:
        # With or without the byte-order mark that some editors and spreadsheets write.
        open_file = gzip.open if path.suffix == _COMPRESSED else open
        with open_file(path, "rt", encoding="utf-8-sig") as opened:
            text = opened.read()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TaskError(f"{path} is not a complete gzip file") from None
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TaskError(not_utf8(path, error)) from None
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return numbered(str(path), "entry", enumerate(_from_json(path, 1, text), start=1))
    # Not splitlines: that also splits at characters which JSON allows inside a string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    values = [(number, _from_json(path, number, line, " (each line must be one object)")) for number, line in lines]
    return numbered(str(path), "line", values)


def _from_json(path: Path, line: int, text: str, remedy: str = "") -> Any:
    """Return the value of a text that begins in this line; TaskError says what is wrong with it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # Some of its messages end in "at".
        fault = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        raise TaskError(f"{path}, line {line + error.lineno - 1}: not valid JSON: {fault}{remedy}") from None
    # A number with thousands of digits, or very deeply nested brackets.
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}, line {line}: cannot be read: {_first_line(error)}") from None


def _read_parquet(path: Path) -> Sequence[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise TaskError(f'{path} needs pyarrow to be read: pip install "scalerl[data]"') from None
    try:
        with path.open("rb") as opened:
            table = pyarrow.parquet.read_table(opened)
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or _first_line(error)}") from None
    except pyarrow.ArrowException as error:
        raise TaskError(f"{path} is not a parquet file: {_first_line(error)}") from None
    return numbered(str(path), "row", enumerate(table.to_pylist(), start=1))


def load_rows(dataset: str, subset: str, split: str) -> Sequence[Row]:
    """Load the rows of one split of a data set, downloading it if necessary."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise TaskError(f'the data set "{dataset}" needs datasets to be loaded: pip install "scalerl[data]"') from None
    where = f'the data set "{dataset}", split "{split}"'
    try:
        with hide_hub_warnings():
            loaded = datasets.load_dataset(dataset, subset or None, split=split)
    # No network, unknown name or split, a broken file: each has its own kind of error, and the user must see all.
    except Exception as error:
        raise TaskError(f"{where}, cannot be loaded: {_first_line(error)}") from error
    return numbered(where, "row", enumerate(loaded, start=1))


@contextmanager
def hide_hub_warnings() -> Iterator[None]:
    """Hide the warnings that the hub's client logs for each failed attempt; the final error is enough."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


READERS: Mapping[str, Callable[[Path], Sequence[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json_lines,
    ".parquet": _read_parquet,
}


def _num_arguments(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())


def _listed(name: str, result: Any) -> list[Any]:
    if isinstance(result, str | Mapping) or not isinstance(result, Iterable):
        raise TaskError(
            f'"{name}" returned {type(result).__name__} but must return rows: {{"prompt": ..., "answer": ...}}'
        )
    rows = list(islice(result, _MOST_ROWS + 1))
    if len(rows) > _MOST_ROWS:
        raise TaskError(f'"{name}" returned more than {_MOST_ROWS} rows: does it ever end?')
    return rows


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
