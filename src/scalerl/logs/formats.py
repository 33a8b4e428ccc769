"""The formats of logs: two tables, of folders and of files, with a function each that finds the rows.

Content decides, not the name of a file; the first format that recognises it reads it. docs/logs.md lists what is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs import binary, text
from scalerl.logs.console import console_rows
from scalerl.logs.facts import Fact
from scalerl.logs.runs import make_table
from scalerl.logs.source import LOG_SUFFIXES, Source, matches, no_such_file, nothing_to_read
from scalerl.logs.table import Placed, Table, flatten
from scalerl.logs.units import logged

_MAX_LOGS = 64
# Folders below the one that is given, as in outputs/DATE/TIME/train.log.
_MAX_DEPTH = 3
_BATCH = ("completions_per_group", "groups_per_batch")  # what `scalerl plan --allocate` asks about


Found = Iterable[Placed] | Callable[[], Table] | None
"""Rows, which may be read lazily, or what reads another path in their place; None for another format."""


class Format(NamedTuple):
    """How a format is recognised, how its rows are found, and what is known of its columns."""

    mark: str | tuple[str, ...] | Callable[[Source], bool]
    """A pattern of the beginning of a file, or a question to it; for a folder, patterns of the names of files in it."""
    rows: Callable[[Source, Sequence[Path]], Found]
    """Takes the files that match: the file itself, or those in the folder."""
    kind: str
    is_whole: bool = True
    """Whether a folder of this format is a log as a whole, whatever else lies in it."""


class Reader(NamedTuple):
    """What reads a path: the format, the files that it takes, and the reading itself."""

    form: Format
    source: Source
    files: list[Path]
    read: Callable[[], Table]


def read_table(path: str | Path) -> Table:
    """Return the rows of a log of any known format, with its columns recognised."""
    tables = read_tables([path])
    if len(tables) != 1:
        raise InputError(nothing_to_read(Path(path), [table.path for table in tables]))
    return tables[0]


def read_tables(paths: Sequence[str | Path]) -> list[Table]:
    """Read several logs, in the order given; patterns such as runs/*.jsonl and folders of logs stand for the logs.

    If no two logs of a folder have the same format, they are one run that was logged several times.
    """
    tables: list[Table] = []
    for folder, logs in _groups(paths):
        own = [_read(log) for log in logs]
        is_one_run = len({table.kind for table in own}) == len(own) > 1
        tables += [_best_of(own, folder)] if is_one_run else own
    return tables


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Return the logs that paths stand for: matches of a pattern, logs of a folder."""
    return [log for _, logs in _groups(paths) for log in logs]


# The logs of a folder

Group = tuple[Path, list[Path]]
"""A folder, and logs in it that may be one run."""


def _groups(paths: Sequence[str | Path]) -> list[Group]:
    return [group for given in paths for path in matches(Path(given)) for group in _groups_of(path)]


def _groups_of(path: Path, depth: int = 0) -> list[Group]:
    """Return the logs that a path stands for: of a folder that is no log the run folders in it, else all logs.

    Of the files beside folders only those that make a curve count: a folder of runs holds results and notes, too.
    """
    if not path.is_dir():
        return [(path, [path])]
    if reader := _tried(path):
        return [(path, [path, *([] if reader.form.is_whole else _log_files(path, besides=reader.files))])]
    folders = _folders_in(path) if depth < _MAX_DEPTH else []
    runs = [folder for folder in folders if store.is_run_folder(folder)]
    groups = [group for folder in runs or folders for group in _groups_of(folder, depth + 1)]
    groups = [group for group in groups if not any(map(_is_one_object, group[1]))] or groups
    files = [] if runs else _log_files(path)
    if groups:
        files = [file for file in files if _makes_a_curve(file)]
    elif not depth:
        return [(path, files or [path])]
    if len(groups) == 1 and files:  # a folder of evaluations, perhaps, beside what training printed
        together = [*groups[0][1], *files]
        kinds = {reader.form.kind for log in together if (reader := _tried(log))}
        if len(kinds) == len(together):
            return [(path, together)]
    return [*groups, *([(path, files)] if files else [])]


def _makes_a_curve(file: Path) -> bool:
    try:
        return int(_read(file).is_measured.sum()) > 1
    except InputError:
        return False


def _folders_in(folder: Path) -> list[Path]:
    return sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))


def _log_files(folder: Path, besides: Sequence[Path] = ()) -> list[Path]:
    """Return the files of a folder that are logs, without those that its format reads."""
    files = [item for item in folder.iterdir() if item.suffix in LOG_SUFFIXES and not item.name.startswith(".")]
    return [file for file in sorted({*files} - {*besides})[:_MAX_LOGS] if file.is_file() and _tried(file)]


def _is_one_object(log: Path) -> bool:
    """Return whether a file is one object on one line: settings or a vocabulary, more likely than a run."""
    reader = _tried(log) if log.suffix == ".json" else None
    return reader is not None and reader.form.kind == "jsonl" and "\n" not in reader.source.text.strip()


def _tried(path: Path) -> Reader | None:
    """Return what reads a path; None for what cannot be read."""
    try:
        return _reader(path)
    except (InputError, OSError):
        return None


# One log


def _read(path: Path) -> Table:
    """Read one log. This is the one place that turns whatever a reader raises into a sentence."""
    try:
        if not path.exists():
            raise InputError(no_such_file(path))
        if (reader := _reader(path)) is not None:
            return reader.read()
    except InputError:
        raise
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except UserError as fault:  # from the run folder, whose readers know nothing of logs
        raise InputError(f"{fault}; repair it or give another file.") from None
    except Exception as fault:
        reason = str(fault) or type(fault).__name__
        where = "" if str(path) in reason else f"{path} "
        raise InputError(f"{where}cannot be read ({reason}): it is damaged, or not a log.") from None
    if path.is_dir():
        raise InputError(nothing_to_read(path, ()))
    raise InputError(
        f"{path} is text in which no line records a training step: give CSV, JSON lines, or console output with "
        "lines such as 'step:12 - reward:0.5' or {'reward': 0.5, 'epoch': 0.1}."
    )


def _reader(path: Path) -> Reader | None:
    """Return what reads a path, None for what no format recognises."""
    source = Source(path)
    for form in (FOLDERS if source.is_folder else FILES).values():
        files = source.matching(form.mark)
        rows = form.rows(source, files) if files else None
        if rows is not None:
            read = rows if callable(rows) else partial(make_table, source, form.kind, rows)
            return Reader(form, source, files, read)
    return None


def _best_of(tables: Sequence[Table], folder: Path) -> Table:
    """Return the table with an evaluation, or with most values of its reward, and name the others.

    A folder that is a log, as one with a file for each step, comes before what lies beside it.
    """

    def rank(table: Table) -> tuple[bool, int]:
        is_evaluation = table.reward is not None and (table.reward.kind == "evaluation" or table.path.is_dir())
        return is_evaluation and table.x is not None, int(logged(table[table.y]).sum())

    best = max(tables, key=rank)
    others = tuple(table.path.name for table in tables if table is not best)
    values = {"file": best.path.name, "num": rank(best)[1], "y": best.y, "others": others}
    return replace(best, path=folder, facts=(Fact(kind="other_logs", values=values), *best.facts))


# Our own folders


def _run_rows(source: Source, files: Sequence[Path]) -> Found:
    """Return the rows of a run folder's evaluations, or of the file of it that is asked for."""
    folder, name = (source.path, store.EVALS) if source.is_folder else (source.path.parent, source.path.name)
    return _rows_of_run(folder, name)


def _is_of_run(source: Source) -> bool:
    return source.path.name in _KEYS and store.is_run_folder(source.path.parent)


def _rows_of_run(folder: Path, name: str) -> Iterator[Placed]:
    """Yield the rows that count, of several with equal keys the latest, each with the run's seed and batch."""
    try:
        recipe = flatten(store.read_recipe(folder) or {})
    except RunFolderError:
        recipe = {}  # only labels are taken from it
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    labels = {"seed": recipe[seeds[0]]} if seeds else {}
    labels |= {key: recipe[f"pipeline/{key}"] for key in _BATCH if f"pipeline/{key}" in recipe}
    for line, row in store.latest_rows(folder / name, _KEYS[name]):
        yield f"{name} line {line}", {**labels, **flatten(row)}


def _study_rows(source: Source, files: Sequence[Path]) -> Iterator[Placed]:
    """Yield the evaluations of all runs of a study so far: arms are separate curves, seeds are runs of one curve."""
    for run in (store.read_study(source.path) or {}).get("runs", []):
        labels = {key: run.get(key) for key in ("arm", "seed", "folder")} if isinstance(run, Mapping) else {}
        folder = source.path / store.portable(str(labels.pop("folder", None)))
        for place, row in _rows_of_run(folder, store.EVALS) if store.is_run_folder(folder) else ():
            yield f"{folder.name}, {place}", {**row, **labels}


# Folders of others


def _file_inside(source: Source, files: Sequence[Path]) -> Found:
    """Return what reads the first file that can be read: the largest, since each checkpoint repeats those before it."""
    ordered = sorted(files, key=lambda file: (file.name != store.METRICS, -file.stat().st_size))
    logs = [file for file in ordered if file.name in (store.METRICS, _STATE) or _tried(file)]
    return partial(_read_first, source.path, logs) if logs else None


def _read_first(folder: Path, files: Sequence[Path]) -> Table:
    for file in files:
        try:
            table = _read(file)
        except InputError:  # still being written, or damaged
            if file == files[-1]:
                raise
            continue
        values = {"file": file.relative_to(folder).as_posix(), "num_rows": len(table), "num_files": len(files)}
        are_states = len({file.name for file in files}) == 1 < len(files)
        facts = [Fact(kind="longest_history", values=values)] if are_states else []
        return replace(table, path=folder, facts=(*facts, *table.facts))
    raise AssertionError("a folder is read for the files in it")


_STATE = "trainer_state.json"
_KEYS = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}
_ANY = ""
_STEP_FILES = ("*[0-9].json", "*[0-9]/*.json", "*[0-9]/*/*.json")
FOLDERS: dict[str, Format] = {
    "run": Format((store.RECIPE, store.EVALS), _run_rows, "run"),
    "study": Format((store.STUDY,), _study_rows, "run"),
    "trainer folder": Format((_STATE, f"checkpoint-*/{_STATE}"), _file_inside, ""),
    "wandb": Format(("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb"), binary.wandb_rows, "wandb"),
    "mlflow": Format(binary.MLFLOW_FILES, binary.mlflow_rows, "mlflow"),
    "file inside": Format((store.METRICS, "files/output.log", "output.log"), _file_inside, ""),
    "tensorboard": Format(("**/*tfevents*",), binary.event_rows, "tensorboard"),
    "a file each step": Format(_STEP_FILES, text.rows_of_step_files, "json", is_whole=False),
}
FILES: dict[str, Format] = {
    "run": Format(_is_of_run, _run_rows, "run"),
    "wandb": Format(":W&B", binary.wandb_rows, "wandb"),
    "tensorboard": Format(binary.holds_events, binary.event_rows, "tensorboard"),
    "sqlite": Format("SQLite format 3", binary.sqlite_rows, "sqlite"),
    "json": Format(r"\s*(\[\s*([{\[\]]|[-\d.]+\s*,)|\{)", text.json_rows, "json"),
    "jsonl": Format(r'\s*\{\s*("|\}|$)', text.jsonl_rows, "jsonl"),
    "csv": Format(text.is_table, text.csv_rows, "csv"),
    "console": Format(_ANY, console_rows, "console"),
    "drawn table": Format(_ANY, text.drawn_rows, "csv"),
    "csv, by its suffix": Format(text.is_named_as_table, text.csv_rows, "csv"),
}
