"""Problems that someone else wrote: in a file, in a data set of the Hugging Face hub, or made by a function."""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.errors import TaskError
from scalerl.tasks.rows import Fields, Row, numbered, rows_task
from scalerl.tasks.task import Task

# More rows than any set of problems has: a function that goes on past this never ends.
_MOST_ROWS = 5_000_000


def file(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    path: str,
    evaluation_path: str = "",
    prompt_field: str = "prompt",
    answer_field: str = "answer",
    id_field: str = "id",
    demonstration_field: str = "",
    answer_pattern: str = "",
) -> Task:
    """Problems from a file of JSON lines or of parquet; `num_evaluation` of them, or of a second file, are withheld.

    `answer_pattern` finds the answer in a longer reference: "#### (.+)" in GSM8K's.
    """
    fields = Fields(
        prompt=prompt_field,
        answer=answer_field,
        id=id_field,
        demonstration=demonstration_field,
        answer_pattern=answer_pattern,
    )
    return rows_task(
        "file",
        num_evaluation,
        evaluation_seed,
        rows=read_rows(Path(path)),
        fields=fields,
        evaluation_rows=read_rows(Path(evaluation_path)) if evaluation_path else None,
    )


def hub(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    dataset: str,
    subset: str = "",
    split: str = "train",
    evaluation_split: str = "",
    prompt_field: str = "prompt",
    answer_field: str = "answer",
    id_field: str = "id",
    demonstration_field: str = "",
    answer_pattern: str = "",
) -> Task:
    """Problems from a Hugging Face data set, by its name there or by a folder; otherwise as `file`."""
    fields = Fields(
        prompt=prompt_field,
        answer=answer_field,
        id=id_field,
        demonstration=demonstration_field,
        answer_pattern=answer_pattern,
    )
    return rows_task(
        "hub",
        num_evaluation,
        evaluation_seed,
        rows=load_rows(dataset, subset, split),
        fields=fields,
        evaluation_rows=load_rows(dataset, subset, evaluation_split) if evaluation_split else None,
    )


def function_task(function: Callable[..., Any], name: str, num_evaluation: int, evaluation_seed: int) -> Task:
    """What a function of the user's own gives, its settings being bound; `name` is its import path.

    A function without positional arguments gives rows, as a list or one after another: {"prompt": ..., "answer": ...},
    with "id" and "demonstration" if it likes. One of (num_evaluation, evaluation_seed) gives a whole Task.
    """
    num_arguments = _num_arguments(function)
    if num_arguments not in (0, 2):
        raise TaskError(
            f'"{name}" takes {num_arguments} positional arguments but must take none and give rows, or take '
            f"(num_evaluation, evaluation_seed) and give a Task; its settings stand after a *"
        )
    try:
        made = function(num_evaluation, evaluation_seed) if num_arguments else function()
        # A generator runs only now, and raises here what it raises.
        values = made if isinstance(made, Task) else _listed(name, made)
    except TaskError:
        raise
    # A script that was meant to be run by itself may well leave.
    except (Exception, SystemExit) as error:
        raise TaskError(f'"{name}" raised {type(error).__name__}: {" ".join(str(error).split())}') from error
    if isinstance(values, Task):
        return values
    if num_arguments:
        raise TaskError(f'"{name}" takes (num_evaluation, evaluation_seed), so it must give a Task, not rows')
    rows = numbered(name, "row", enumerate(values, start=1))
    taught = "demonstration" in rows[0].values
    fields = Fields(demonstration="demonstration" if taught else "", settable=False)
    return rows_task(name, num_evaluation, evaluation_seed, rows=rows, fields=fields)


def read_rows(path: Path) -> Sequence[Row]:
    """The rows of a file, by its suffix."""
    if path.suffix not in READERS:
        raise TaskError(f'{path} has the suffix "{path.suffix}"; problems are read from {", ".join(READERS)}')
    return READERS[path.suffix](path)


def _read_json_lines(path: Path) -> Sequence[Row]:
    try:
        # With or without the mark that some editors and spreadsheets put first.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not UTF-8 text") from None
    values: list[tuple[int, Any]] = []
    # Not splitlines: that also splits at characters which JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                values.append((number, json.loads(line)))
            except json.JSONDecodeError as error:
                raise TaskError(
                    f"{path}, line {number}: not valid JSON: {error.msg} at column {error.colno} (each line must be an "
                    f"object of its own)"
                ) from None
            # A number with thousands of digits, brackets in brackets without end.
            except (ValueError, RecursionError) as error:
                raise TaskError(f"{path}, line {number}: cannot be read: {_first_line(error)}") from None
    return numbered(str(path), "line", values)


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
        raise TaskError(f"{path} is no parquet file: {_first_line(error)}") from None
    return numbered(str(path), "row", enumerate(table.to_pylist(), start=1))


def load_rows(dataset: str, subset: str, split: str) -> Sequence[Row]:
    """The rows of one split of a data set, which is fetched where it is not here yet."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise TaskError(f'the data set "{dataset}" needs datasets to be loaded: pip install "scalerl[data]"') from None
    where = f'the data set "{dataset}", split "{split}"'
    try:
        with quiet_hub():
            loaded = datasets.load_dataset(dataset, subset or None, split=split)
    # No network, no such name, no such split, a broken file: each has errors of its own, all of them the user's to see.
    except Exception as error:
        raise TaskError(f"{where}, cannot be loaded: {_first_line(error)}") from error
    return numbered(where, "row", enumerate(loaded, start=1))


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Without the two lines that the hub's client logs for each try to reach it: the last one's error says it all."""
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


def _listed(name: str, made: Any) -> list[Any]:
    if isinstance(made, str | Mapping) or not isinstance(made, Iterable):
        raise TaskError(f'"{name}" gave {type(made).__name__} but must give rows: {{"prompt": ..., "answer": ...}}')
    rows = list(islice(made, _MOST_ROWS + 1))
    if len(rows) > _MOST_ROWS:
        raise TaskError(f'"{name}" gave more than {_MOST_ROWS} rows: does it ever end?')
    return rows


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
