"""The formats of logs: two tables, of folders and of files, of how each is recognised and how its rows are found.

Content decides, not the name of a file; the first format that recognises it reads it. docs/logs.md lists what is read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs import binary, text
from scalerl.logs.console import console_rows
from scalerl.logs.facts import Fact
from scalerl.logs.source import LOG_SUFFIXES, Source, matches, no_such_file, nothing_to_read
from scalerl.logs.table import Placed, Table, flatten, make_table

Recognise = Callable[[Source], Any]
"""Returns what the reader needs, or something false."""
Read = Callable[[Source, Any], Table]

_MAX_LOGS = 64
_MAX_LOGS_OF_A_RUN = 8
_BATCH = ("completions_per_group", "groups_per_batch")  # what `scalerl plan --allocate` asks about
# Of rows in which these columns are equal the latest counts.
_RUN_KEYS = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}


def read_table(path: str | Path) -> Table:
    """Return the rows of a log of any known format, with its columns recognised.

    This is the one place that turns whatever a reader raises into a sentence.
    """
    path = Path(path)
    try:
        return _read(path)
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


def read_tables(paths: Sequence[str | Path]) -> list[Table]:
    """Read several logs, in the order given; patterns such as runs/*.jsonl and folders of logs stand for the logs."""
    tables: list[Table] = []
    for path in (match for given in paths for match in matches(Path(given))):
        own = [read_table(log) for log in _logs_of(path)]
        tables += [_best_of(own, path)] if _is_one_run(own) else own
    return tables


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Return the logs that paths stand for: matches of a pattern, logs of a folder."""
    return [log for given in paths for path in matches(Path(given)) for log in _logs_of(path)]


def logs_inside(folder: Path) -> list[Path]:
    """Return the logs directly inside a folder that is not a log itself: run folders, else folders, else files."""
    entries = sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))
    runs = [item for item in entries if store.is_run_folder(item)]
    return runs or [item for item in entries if _is_log(item) or len(_log_files(item)) == 1] or _log_files(folder)


def _log_files(folder: Path) -> list[Path]:
    files = [item for item in folder.iterdir() if item.suffix in LOG_SUFFIXES and not item.name.startswith(".")]
    return [file for file in sorted(files)[:_MAX_LOGS] if file.is_file() and _is_log(file)]


def _read(path: Path) -> Table:
    if not path.exists():
        raise InputError(no_such_file(path))
    source = Source(path)
    if (read := _reader(source)) is not None:
        return read()
    if not source.is_folder:
        raise InputError(
            f"{path} is text in which no line records a training step: give CSV, JSON lines, or console output with "
            "lines such as 'step:12 - reward:0.5' or {'reward': 0.5, 'epoch': 0.1}."
        )
    logs = logs_inside(path)
    tables = read_tables([path]) if 0 < len(logs) <= _MAX_LOGS_OF_A_RUN else []
    if len(tables) != 1:
        raise InputError(nothing_to_read(path, logs))
    return tables[0]


def _reader(source: Source) -> Callable[[], Table] | None:
    """Return what reads a path, None for what no format recognises."""
    for name, (recognise, read) in (FOLDERS if source.is_folder else FILES).items():
        if found := recognise(source):
            if source.bad_byte is not None and name != "console":
                line = source.data.count(b"\n", 0, source.bad_byte) + 1
                raise InputError(
                    f"{source.path} is not UTF-8 text (byte {source.bad_byte}, line {line}): save it as UTF-8."
                )
            return partial(read, source, found)
    return None


def _logs_of(path: Path) -> list[Path]:
    if not path.is_dir() or _reader(Source(path)) is not None:
        return [path]
    return logs_inside(path) or [path]


def _is_log(path: Path) -> bool:
    try:
        return _reader(Source(path)) is not None
    except (InputError, OSError):
        return False


# One run in several logs


def _is_one_run(tables: Sequence[Table]) -> bool:
    """Return whether the files of a folder are one run written in several formats: no two have the same format."""
    kinds = [table.kind for table in tables]
    return len(set(kinds)) == len(kinds) > 1 and all(table.path.is_file() for table in tables)


def _best_of(tables: Sequence[Table], folder: Path) -> Table:
    """Return the table with an evaluation, or with most values of its reward, and name the others."""

    def rank(table: Table) -> tuple[bool, int]:
        is_evaluation = table.reward is not None and table.x is not None and table.reward.kind == "evaluation"
        return is_evaluation, sum(row.get(table.y or "") is not None for row in table.rows)

    best = max(tables, key=rank)
    others = tuple(table.path.name for table in tables if table is not best)
    values = {"file": best.path.name, "num": rank(best)[1], "y": best.y, "others": others}
    return replace(best, path=folder, facts=(Fact(kind="other_logs", values=values), *best.facts))


# Our own folders


def _is_run(source: Source) -> tuple[Path, str] | None:
    """Return the folder and the file to read: its evaluations, or the file that was named."""
    folder, name = (source.path, store.EVALS) if source.is_folder else (source.path.parent, source.path.name)
    return (folder, name) if name in _RUN_KEYS and store.is_run_folder(folder) else None


def _read_run(_: Source, found: tuple[Path, str]) -> Table:
    folder, name = found
    placed = _run_rows(folder, name)
    if not placed:
        raise InputError(f"the run folder {folder} has no rows in {name} yet: wait for its first evaluation.")
    is_evals = name == store.EVALS
    return make_table(folder, "run", placed, y="reward" if is_evals else None, apart=("set",) if is_evals else ())


def _read_study(source: Source, _: object) -> Table:
    """Read the evaluations of all runs of a study so far: arms are separate curves, seeds are runs of one curve."""
    folder, placed = source.path, []
    for run in (store.read_study(folder) or {}).get("runs", []):
        labels = {key: run.get(key) for key in ("arm", "seed", "folder")} if isinstance(run, Mapping) else {}
        run_folder = folder / store.portable(str(labels.pop("folder", None)))
        if store.is_run_folder(run_folder):
            rows = _run_rows(run_folder, store.EVALS)
            placed += [(f"{run_folder.name}, {place}", {**row, **labels}) for place, row in rows]
    if not placed:
        raise InputError(f"no run of the study {folder} has been evaluated yet: wait for the first evaluation.")
    return make_table(folder, "run", placed, y="reward", seed="seed", apart=("arm", "set"))


def _run_rows(folder: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows that count, each with the run's seed and its batch; empty while there are none."""
    try:
        recipe = flatten(store.read_recipe(folder) or {})
    except RunFolderError:
        recipe = {}  # only labels are taken from it
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    labels = {"seed": recipe[seeds[0]]} if seeds else {}
    labels |= {key: recipe[f"pipeline/{key}"] for key in _BATCH if f"pipeline/{key}" in recipe}
    rows = store.latest_rows(folder / name, _RUN_KEYS[name])
    return [(f"{name} line {line}", {**labels, **flatten(row)}) for line, row in rows]


# Folders of others


def _read_trainer_folder(source: Source, files: Sequence[Path]) -> Table:
    """Read the state with the longest history: each checkpoint repeats what was logged before it."""
    tables, faults = [], []
    for file in files:
        try:
            tables.append(read_table(file))
        except InputError as fault:  # still being written, or damaged
            faults.append(fault)
    if not tables:
        raise faults[0]
    best = max(reversed(tables), key=lambda table: len(table.rows))
    values = {"file": best.path.relative_to(source.path).as_posix(), "num_rows": len(best.rows)}
    fact = Fact(kind="longest_history", values=values | {"num_files": len(files), "num_unreadable": len(faults)})
    return replace(best, path=source.path, facts=(*((fact,) if len(files) > 1 else ()), *best.facts))


def _file_inside(source: Source) -> Path | None:
    """Return the file that a trainer or wandb is known to write into its folder."""
    files = [source.path / name for name in (store.METRICS, "files/output.log", "output.log")]
    return next((file for file in files if file.is_file() and (file.name == store.METRICS or _is_log(file))), None)


def _read_wandb(source: Source, found: Sequence[Path]) -> Table:
    files = sorted({file.resolve() for file in found})
    placed = list(binary.wandb_rows(files, source.budget))
    printed = files[0].parent / "files" / "output.log"
    if not placed and len(files) == 1 and printed.is_file():
        return replace(read_table(printed), path=source.path)
    return _of_runs(source, "wandb", placed)


def _read_events(source: Source, files: Sequence[Path]) -> Table:
    folder = source.path if source.is_folder else source.path.parent
    return _of_runs(source, "tensorboard", list(binary.event_rows(folder, files, source.budget)))


def _read_mlflow(source: Source, files: Sequence[Path]) -> Table:
    return _of_runs(source, "mlflow", list(binary.mlflow_rows(files, source.budget)))


def _read_sqlite(source: Source, _: object) -> Table:
    return _of_runs(source, "sqlite", binary.sqlite_rows(source.path, source.data, source.budget))


def _of_runs(source: Source, kind: str, rows: Iterable[Placed]) -> Table:
    """Return a table of rows that each name their run; the name of an only run says nothing."""
    placed = text.reshaped(list(rows))[0]
    if not placed:
        raise InputError(f"{source.path} holds no logged values yet: wait until the run has logged something.")
    if len({row.get("run") for _, row in placed}) > 1:
        return make_table(source.path, kind, placed, apart=("run",), budget=source.budget)
    placed = [(place, {key: value for key, value in row.items() if key != "run"}) for place, row in placed]
    return make_table(source.path, kind, placed, budget=source.budget)


# Text


def _of_text(kind: str, source: Source, found: tuple[Sequence[Placed], Sequence[Fact]], **more: Any) -> Table:
    """Return a table of rows that may have one metric per row, or one column per run."""
    rows, built = text.with_evaluations(found[0])
    rows, only, wide = text.reshaped(rows)
    apart = ("run",) if wide or (kind == "console" and any("run" in row for _, row in rows)) else ()
    kind = "wandb" if wide and kind == "csv" else kind
    apart_facts = [Fact(kind="evaluations_apart", values={"columns": built})] if built else []
    more |= {"y": only, "apart": apart, "facts": (*found[1], *wide, *apart_facts), "built": built}
    return make_table(source.path, kind, rows, budget=source.budget, **more)


def _read_csv(source: Source, _: object) -> Table:
    rows, decimal_comma = text.csv_rows(source.path, source.text)
    return _of_text("csv", source, (rows, ()), decimal_comma=decimal_comma)


def _read_json(source: Source, found: tuple[list[Placed], tuple[Fact, ...]]) -> Table:
    return _of_text("trainer_state" if '"log_history"' in source.text else "jsonl", source, found)


def _read_json_lines(source: Source, _: object) -> Table:
    return _of_text("jsonl", source, text.jsonl_rows(source.path, source.text))


def _named_as_table(source: Source) -> bool:
    return source.path.suffix.lower() in (".csv", ".tsv", ".gz")


def _has(*patterns: str) -> Recognise:
    return lambda source: source.files(*patterns)


def _begins(head: bytes) -> Recognise:
    return lambda source: source.data.startswith(head) and [source.path]


FOLDERS: dict[str, tuple[Recognise, Read]] = {
    "run": (_is_run, _read_run),
    "study": (_has(store.STUDY), _read_study),
    "trainer folder": (_has("trainer_state.json", "checkpoint-*/trainer_state.json"), _read_trainer_folder),
    "wandb": (_has("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb"), _read_wandb),
    "mlflow": (binary.mlflow_files, _read_mlflow),
    "file inside": (_file_inside, lambda _, file: read_table(file)),
    "tensorboard": (_has("**/*tfevents*"), _read_events),
}
FILES: dict[str, tuple[Recognise, Read]] = {
    "run": (_is_run, _read_run),
    "wandb": (_begins(binary.WANDB_HEAD), _read_wandb),
    "tensorboard": (
        lambda source: b"\0" in source.data[:12] and binary.is_event_file(source.data) and [source.path],
        _read_events,
    ),
    "sqlite": (_begins(binary.SQLITE_HEAD), _read_sqlite),
    "json": (lambda source: text.json_document(source.path, source.text.lstrip()), _read_json),
    "jsonl": (lambda source: text.is_json_lines(source.text.lstrip()), _read_json_lines),
    "csv": (lambda source: text.is_table(source.text), _read_csv),
    "console": (lambda source: console_rows(source.text, source.budget), partial(_of_text, "console")),
    "drawn table": (
        lambda source: not _named_as_table(source) and (rows := text.drawn_rows(source.text)) and (rows, ()),
        partial(_of_text, "csv"),
    ),
    "csv, by its suffix": (_named_as_table, _read_csv),
}
