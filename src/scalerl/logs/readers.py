"""Logs of any trainer as one kind of value, a Table of rows.

Read are: CSV, wandb's CSV exports, JSON lines (tinker-cookbook, prime-rl, verl and others), also gzipped; our run
folders; transformers' trainer_state.json; tensorboard event files. The content decides, not the name. Which columns are
recognised, and in which order, stands in columns.py.
"""

import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, RunFolderError
from scalerl.logs import columns as names
from scalerl.logs.tensorboard import EventFile, active_seconds, is_event_file, read_events

_ABSENT = frozenset({"", "none", "null", "na", "n/a"})
_WANDB_SEPARATOR = " - "
_MOST_NAMES = 12
# Of rows in which these are equal the latest counts.
_ONE_ROW_FOR = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one log. A missing key or None is an absent value, which is not NaN."""

    path: Path
    kind: str
    """csv | wandb | jsonl | run | trainer_state | tensorboard"""
    columns: list[str]
    rows: list[dict[str, Any]]
    places: list[str]
    """Where each row stands, for messages: 'line 12'."""
    x: str | None = None
    y: str | None = None
    step: str | None = None
    num_samples: str | None = None
    seed: str | None = None
    """Its values are runs of one curve unless --seed names another column."""
    apart: tuple[str, ...] = ()
    """Columns whose values are curves of their own unless an option names them: a run folder's sets, wandb's runs."""
    built: tuple[str, ...] = ()
    """Columns that are not in the log but built from its times."""


def read_table(path: str | Path) -> Table:
    """The rows of a log of any known kind, its columns recognised."""
    path = Path(path)
    try:
        return with_gpus(_read_folder(path) if path.is_dir() else _read_file(path), None)
    except FileNotFoundError:
        raise InputError(_no_such_file(path)) from None
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except InputError:
        raise
    except UnicodeDecodeError as fault:
        raise InputError(f"{path} is not UTF-8 text (byte {fault.start}): save it as UTF-8.") from None
    except ValueError as fault:  # from store and events, which know nothing of users
        raise InputError(f"{fault}; mend it or give another file.") from None


def listed(items: Sequence[str]) -> str:
    """Names for a message: 'a, b, c', the twelve first of many."""
    shown = ", ".join(items[:_MOST_NAMES])
    return shown if len(items) <= _MOST_NAMES else f"{shown} and {len(items) - _MOST_NAMES} more"


def with_gpus(table: Table, gpus: float | None) -> Table:
    """The table with `hours`, and with `gpus` also `gpu_hours`, built from step time or clock where it has neither."""
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    hours = None if "hours" in table.columns else names.elapsed_hours(table.rows, table.columns)
    if hours is not None:
        table = _with_column(table, "hours", hours)
    if gpus is not None and "hours" in table.columns and names.find(names.GPU_HOURS, table.columns) is None:
        spent = [row.get("hours") for row in table.rows]
        table = _with_column(table, "gpu_hours", [None if value is None else value * gpus for value in spent])
    y = table.y or names.choose_y(table.columns, table.rows)
    x = names.choose_x(table.columns, table.rows, y=y, built=gpus is not None)
    return replace(table, y=y, x=x)


def _with_column(table: Table, name: str, values: Sequence[float | None]) -> Table:
    rows = [{**row, name: value} for row, value in zip(table.rows, values, strict=True)]
    return replace(table, columns=[*table.columns, name], rows=rows, built=(*table.built, name))


def _table(path: Path, kind: str, rows: Iterable[tuple[str, Mapping[str, Any]]], **fields: Any) -> Table:
    placed = [(place, dict(row)) for place, row in rows]
    if not placed:
        raise InputError(f"{path} holds no rows: wait until the run has logged something, or give another file.")
    columns = list(dict.fromkeys(column for _, row in placed for column in row))
    fields.setdefault("seed", names.find(names.SEED, columns))
    return Table(
        path=path,
        kind=kind,
        columns=columns,
        rows=[row for _, row in placed],
        places=[place for place, _ in placed],
        step=names.find(names.STEP, columns),
        num_samples=names.find(names.NUM_SAMPLES, columns),
        **fields,
    )


def _no_such_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: its folder {folder} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(item.name for item in folder.iterdir()), n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path."
    return f"there is no file {path}: {advice}"


# Folders


def _read_folder(path: Path) -> Table:
    if store.is_run_folder(path):
        return _read_run(path, store.EVALS)
    if (path / store.STUDY).is_file():
        return _read_study(path)
    for name, read in (("trainer_state.json", _read_file), (store.METRICS, _read_file)):
        if (path / name).is_file():
            return read(path / name)
    events = sorted(item for item in path.rglob("*tfevents*") if item.is_file())
    if events:
        return _read_event_files(path, events)
    held = sorted(path.iterdir())
    runs = [item.name for item in held if store.is_run_folder(item)]
    if runs:
        raise InputError(
            f"{path} is a folder of runs ({listed(runs)}): give the runs themselves, such as {path / runs[0]}."
        )
    what = f"holds {listed([item.name for item in held])}" if held else "is empty"
    raise InputError(
        f"the folder {path} {what}: give a log file, a run folder (with {store.EVALS}) or a folder of tensorboard "
        "event files."
    )


def _read_run(folder: Path, name: str) -> Table:
    placed = _run_rows(folder, name)
    if not placed:
        raise InputError(f"the run folder {folder} has no rows in {name} yet: wait for its first evaluation.")
    is_evals = name == store.EVALS
    return _table(folder, "run", placed, y="reward" if is_evals else None, apart=("set",) if is_evals else ())


def _run_rows(folder: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a run that count, with the run's seed; none where there are none yet."""
    try:
        recipe = _flat(store.read_recipe(folder) or {})
    except RunFolderError:
        # Its rows stand without it: all that is taken from it is the seed.
        recipe = {}
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    seed = {"seed": recipe[seeds[0]]} if seeds else {}
    rows = store.latest_rows(folder / name, _ONE_ROW_FOR[name])
    return [(f"{name} line {line}", {**seed, **_flat(row)}) for line, row in rows]


def _read_study(folder: Path) -> Table:
    """The evaluations of all its runs so far: arms are curves of their own, seeds the runs of one."""
    placed = []
    for run in (store.read_study(folder) or {}).get("runs", []):
        told = {key: run.get(key) for key in ("arm", "seed", "folder")} if isinstance(run, Mapping) else {}
        place = folder / str(told.pop("folder", None))
        if store.is_run_folder(place):
            placed += [(f"{place.name}, {where}", {**row, **told}) for where, row in _run_rows(place, store.EVALS)]
    if not placed:
        raise InputError(f"no run of the study {folder} has been evaluated yet: wait for the first evaluation.")
    return _table(folder, "run", placed, y="reward", seed="seed", apart=("arm", "set"))


def _read_event_files(path: Path, files: Sequence[Path]) -> Table:
    """Scalars by step; files of one folder are one run, restarted, and sub-folders are runs of their own."""
    folders: dict[str, list[EventFile]] = {}
    for file in files:
        folders.setdefault(file.parent.relative_to(path).as_posix() if file != path else ".", []).append(
            read_events(file)
        )
    placed = []
    for run, parts in folders.items():
        label = {"run": run} if len(folders) > 1 else {}
        steps: dict[int, dict[str, Any]] = {}
        for scalar in sorted(
            (scalar for part in parts for scalar in part.scalars), key=lambda scalar: scalar.wall_time
        ):
            row = steps.setdefault(scalar.step, {"step": scalar.step, **label})
            row |= {"wall_time": scalar.wall_time, scalar.tag: scalar.value}
        for step, row in sorted(steps.items()):
            row["elapsed_s"] = active_seconds(parts, row["wall_time"])
            placed.append((f"step {step}", row))
    return _table(path, "tensorboard", placed, apart=("run",) if len(folders) > 1 else ())


# Files


def _read_file(path: Path) -> Table:
    if path.name in _ONE_ROW_FOR and store.is_run_folder(path.parent):
        # The rows that count are the same whether the folder or the file in it is named.
        return _read_run(path.parent, path.name)
    data = path.read_bytes()
    if is_event_file(data[:12]):
        return _read_event_files(path, [path])
    text = _decoded(path, data)
    opening = text.lstrip()[:1]
    if opening == "[":
        return _read_json(path, text)
    if opening == "{":
        # One object over many lines is JSON; a whole first line, or a text that is nothing whole, is JSON lines.
        may_be_whole = '"log_history"' in text or not _parses(text.lstrip().split("\n", 1)[0])
        return _read_json(path, text) if may_be_whole and _parses(text) else _read_lines(path, text)
    return _read_csv(path, text)


def _decoded(path: Path, data: bytes) -> str:
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise InputError(f"{path} cannot be decompressed ({fault}): it is damaged or cut; copy it again.") from None
    if not data.strip():
        raise InputError(f"{path} is empty: give a file with at least a header and a few rows.")
    if b"\0" in data[:65536]:
        raise InputError(
            f"{path} is binary and no event file: give CSV, JSON lines, trainer_state.json, tensorboard event files or "
            "a run folder (text must be UTF-8)."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise InputError(f"{path} is not UTF-8 text (byte {fault.start}, line {line}): save it as UTF-8.") from None


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _read_json(path: Path, text: str) -> Table:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); mend or remove it.") from None
    rows, kind, unit = value, "jsonl", "row"
    if isinstance(value, dict):
        rows, kind, unit = value.get("log_history"), "trainer_state", "log_history row"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is JSON, but neither a list of rows nor a trainer_state.json with a log_history.")
    return _table(path, kind, ((f"{unit} {number}", _flat(row)) for number, row in enumerate(rows, start=1)))


def _read_lines(path: Path, text: str) -> Table:
    placed = []
    for line, row in store.parse_lines(text, path):
        if row.keys() == {"step", "data"} and isinstance(row["data"], dict):  # verl's file logger
            row = {"step": row["step"], **row["data"]}
        placed.append((f"line {line}", _flat(row)))
    return _table(path, "jsonl", placed)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# CSV


def _read_csv(path: Path, text: str) -> Table:
    header = next(line for line in text.splitlines() if line.strip())
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark))))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as fault:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({fault}); mend or remove it.") from None
    (first, header_cells), *body = lines
    columns = _header(path, first, header_cells)
    for line, cells in body:
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise InputError(
                f"{path}, line {line}: {len(cells)} values under {len(columns)} columns; quote values that hold "
                f"{delimiter!r}."
            )
    places = [f"line {line}" for line, _ in body]
    parsed = [
        _column_values([cells[at] if at < len(cells) else "" for _, cells in body], delimiter)
        for at in range(len(columns))
    ]
    rows: list[dict[str, Any]] = [
        {name: values[at] for name, values in zip(columns, parsed, strict=True) if values[at] is not None}
        for at in range(len(body))
    ]
    if not rows:
        raise InputError(
            f"{path} holds a header and no rows: wait until the run has logged something, or give another file."
        )
    series = _wandb_series(columns)
    if series:
        metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
        only = metrics.pop() if len(metrics) == 1 else None
        return _table(path, "wandb", _wandb_rows(columns, series, rows, places), y=only, apart=("run",))
    table = _table(path, "csv", zip(places, rows, strict=True))
    return replace(table, columns=columns)


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    if all(_float(cell) is not None for cell in cells):
        raise InputError(
            f"{path}, line {line}: numbers ({listed(cells)}) where column names belong; add a header line."
        )
    columns: list[str] = []
    for at, cell in enumerate(cells, start=1):
        name = cell.strip() or f"column {at}"
        # A name that comes twice keeps its first column; the others stay reachable.
        columns.append(name if name not in columns else f"{name}.{at}")
    return columns


def _column_values(cells: Sequence[str], delimiter: str) -> list[float | str | None]:
    """Numbers where every cell is one, else the text: a label such as 3e7 must not turn into a number by itself."""
    present = [None if cell.strip().lower() in _ABSENT else cell.strip() for cell in cells]
    convert: Callable[[str], float | None] = _float
    if delimiter == ";" and any(cell and "," in cell for cell in present):
        convert = _decimal_comma
    numbers = [None if cell is None else convert(cell) for cell in present]
    if all((number is None) == (cell is None) for number, cell in zip(numbers, present, strict=True)):
        return list(numbers)
    return list(present)


def _float(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _decimal_comma(text: str) -> float | None:
    return _float(text.replace(",", "."))


def _wandb_series(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Column -> (run, metric) in a wandb chart export: 'run - metric' beside its __MIN, or nothing but such columns."""
    found = {}
    for column in columns:
        run, separator, metric = column.rpartition(_WANDB_SEPARATOR)
        if separator and not metric.endswith(("__MIN", "__MAX")):
            found[column] = (run, metric)
    companions = [column for column in columns if column.endswith(("__MIN", "__MAX"))]
    has_companions = any(f"{column}__MIN" in companions for column in found)
    return found if has_companions or len(found) == len(columns) - 1 > 0 else {}


def _wandb_rows(
    columns: Sequence[str],
    series: Mapping[str, tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    places: Sequence[str],
) -> list[tuple[str, dict[str, Any]]]:
    shared = [column for column in columns if column not in series and not column.endswith(("__MIN", "__MAX"))]
    placed = []
    for place, row in zip(places, rows, strict=True):
        runs: dict[str, dict[str, Any]] = {}
        for column, (run, metric) in series.items():
            if column in row:
                runs.setdefault(run, {})[metric] = row[column]
        base = {column: row[column] for column in shared if column in row}
        placed.extend((place, {**base, "run": run, **metrics}) for run, metrics in runs.items())
    return placed
