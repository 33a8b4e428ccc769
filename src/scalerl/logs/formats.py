"""The formats of logs: one table of how each is recognised and how its rows are found.

Content decides, not the name of a file; the first format that recognises it reads it. docs/logs.md lists what is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs import binary, text
from scalerl.logs.console import console_rows, find_records
from scalerl.logs.facts import Fact
from scalerl.logs.source import LOG_SUFFIXES, Source, matches, no_such_file, nothing_to_read
from scalerl.logs.table import Placed, Table, flatten, make_table

_MAX_LOGS = 64
_TRAINER_STATE = "trainer_state.json"
# Of rows in which these columns are equal the latest counts.
_RUN_KEYS = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: `recognise` returns what it found, which `read` turns into a table, or something false."""

    name: str
    recognise: Callable[[Source], Any]
    read: Callable[[Source, Any], Table]


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
        logs = _logs_of(path)
        own = [read_table(log) for log in logs]
        tables += [best_of(own, path)] if len(own) > 1 and _is_one_run(own) else own
    return tables


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Return the logs that paths stand for: matches of a pattern, logs of a folder."""
    return [log for given in paths for path in matches(Path(given)) for log in _logs_of(path)]


def logs_inside(folder: Path) -> list[Path]:
    """Return the logs directly inside a folder that is not a log itself: run folders, else folders, else files."""
    entries = sorted(item for item in folder.iterdir() if not item.name.startswith("."))
    runs = [item for item in entries if store.is_run_folder(item)]
    if runs:
        return runs
    folders = [item for item in entries if item.is_dir() and _recognised(Source(item)) is not None]
    files = [item for item in entries if item.is_file() and item.suffix in LOG_SUFFIXES][:_MAX_LOGS]
    return folders or [file for file in files if _is_log(file)]


def _read(path: Path) -> Table:
    if not path.exists():
        raise InputError(no_such_file(path))
    source = Source(path)
    found = _recognised(source)
    if found is not None:
        return found[0].read(source, found[1])
    if not source.is_folder:
        raise InputError(
            f"{path} is text in which no line records a training step: give CSV, JSON lines, or console output with "
            "lines such as 'step:12 - reward:0.5' or {'reward': 0.5, 'epoch': 0.1}."
        )
    logs = logs_inside(path)
    if not logs:
        raise InputError(nothing_to_read(path, logs))
    tables = [read_table(log) for log in logs] if len(logs) <= 8 else []
    if len(logs) == 1:
        return tables[0]
    if tables and _is_one_run(tables):
        return best_of(tables, path)
    raise InputError(nothing_to_read(path, logs))


def _recognised(source: Source) -> tuple[Format, Any] | None:
    for known in FORMATS:
        if found := known.recognise(source):
            if source.bad_byte is not None and known.name != "console":
                line = source.data.count(b"\n", 0, source.bad_byte) + 1
                raise InputError(
                    f"{source.path} is not UTF-8 text (byte {source.bad_byte}, line {line}): save it as UTF-8."
                )
            return known, found
    return None


def _logs_of(path: Path) -> list[Path]:
    if not path.is_dir() or _recognised(Source(path)) is not None:
        return [path]
    return logs_inside(path) or [path]


def _is_log(path: Path) -> bool:
    try:
        return _recognised(Source(path)) is not None
    except (InputError, OSError):
        return False


# One run in several logs


def _is_one_run(tables: Sequence[Table]) -> bool:
    """Return whether the files of a folder are one run written in several formats: no two have the same format."""
    kinds = [table.kind for table in tables]
    return len(set(kinds)) == len(kinds) and all(table.path.is_file() for table in tables)


def best_of(tables: Sequence[Table], folder: Path) -> Table:
    """Return the table with an evaluation, or with most values of its reward, and name the others."""

    def num(table: Table) -> int:
        return sum(row.get(table.y or "") is not None for row in table.rows)

    def rank(table: Table) -> tuple[bool, int]:
        return table.reward is not None and table.x is not None and table.reward.kind == "evaluation", num(table)

    best = max(tables, key=rank)
    others = tuple(table.path.name for table in tables if table is not best)
    values = {"file": best.path.name, "num": num(best), "y": best.y, "others": others}
    return replace(best, path=folder, facts=(Fact(kind="other_logs", values=values), *best.facts))


# Our own folders


def _is_run(source: Source) -> tuple[Path, str] | None:
    """Return the folder and the file to read: its evaluations, or the file that was named."""
    if source.is_folder:
        return (source.path, store.EVALS) if store.is_run_folder(source.path) else None
    name = source.path.name
    return (source.path.parent, name) if name in _RUN_KEYS and store.is_run_folder(source.path.parent) else None


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
    """Return the rows that count, each with the run's seed; empty while there are none."""
    try:
        recipe = flatten(store.read_recipe(folder) or {})
    except RunFolderError:
        recipe = {}  # only the seed is taken from it
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    seed = {"seed": recipe[seeds[0]]} if seeds else {}
    rows = store.latest_rows(folder / name, _RUN_KEYS[name])
    return [(f"{name} line {line}", {**seed, **flatten(row)}) for line, row in rows]


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
    names = (store.METRICS, "files/output.log", "output.log")
    found = [source.path / name for name in names if source.is_folder and (source.path / name).is_file()]
    return next((file for file in found if file.name == store.METRICS or _is_log(file)), None)


def _wandb_files(source: Source) -> list[Path]:
    if not source.is_folder:
        return [source.path] if source.data[:4] == binary.WANDB_HEAD else []
    files = source.files("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb")
    return sorted({file.resolve() for file in files})


def _read_wandb(source: Source, files: Sequence[Path]) -> Table:
    placed = list(binary.wandb_rows(files, source.budget))
    printed = [file.parent / "files" / "output.log" for file in files]
    if not placed and len(printed) == 1 and printed[0].is_file():
        return replace(read_table(printed[0]), path=source.path)
    return _of_runs(source, "wandb", placed)


def _event_files(source: Source) -> list[Path]:
    if source.is_folder:
        return source.files("**/*tfevents*")
    return [source.path] if binary.is_event_file(source.data[:12]) else []


def _read_events(source: Source, files: Sequence[Path]) -> Table:
    folder = source.path if source.is_folder else source.path.parent
    placed = list(binary.event_rows(folder, files, source.budget))
    has_runs = any("run" in row for _, row in placed)
    return make_table(source.path, "tensorboard", placed, apart=("run",) if has_runs else (), budget=source.budget)


def _of_runs(source: Source, kind: str, placed: list[Placed]) -> Table:
    """Return a table of rows that each name their run; the name of an only run says nothing."""
    if not placed:
        raise InputError(f"{source.path} holds no logged values yet: wait until the run has logged something.")
    if len({row["run"] for _, row in placed}) > 1:
        return make_table(source.path, kind, placed, apart=("run",))
    rows = ((place, {key: value for key, value in row.items() if key != "run"}) for place, row in placed)
    return make_table(source.path, kind, rows)


# Text


def _read_csv(source: Source, _: object) -> Table:
    rows, only, facts = text.reshaped(text.csv_rows(source.path, source.text))
    kind, apart = ("wandb", ("run",)) if facts else ("csv", ())
    return make_table(source.path, kind, rows, y=only, apart=apart, facts=facts, budget=source.budget)


def _read_aligned(source: Source, found: str) -> Table:
    rows = [("row " + place.removeprefix("line "), row) for place, row in text.csv_rows(source.path, found)]
    return make_table(source.path, "csv", rows, budget=source.budget)


def _read_json(source: Source, _: object) -> Table:
    rows, facts = text.json_rows(source.path, source.text)
    kind = "trainer_state" if '"log_history"' in source.body else "jsonl"
    return make_table(source.path, kind, rows, facts=facts, budget=source.budget)


def _read_lines(source: Source, _: object) -> Table:
    rows, facts = text.jsonl_rows(source.path, source.text)
    rows, only, more = text.reshaped(rows)
    apart = ("run",) if more else ()
    return make_table(source.path, "jsonl", rows, y=only, apart=apart, facts=(*facts, *more), budget=source.budget)


def _read_console(source: Source, found: Any) -> Table:
    rows, facts = console_rows(found)
    apart = ("run",) if any("run" in row for _, row in rows) else ()
    return make_table(source.path, "console", rows, apart=apart, facts=facts, budget=source.budget)


def _named_as_table(source: Source) -> bool:
    return not source.is_folder and source.path.suffix.lower() in (".csv", ".tsv", ".gz")


FORMATS = (
    Format(name="run", recognise=_is_run, read=_read_run),
    Format(name="study", recognise=lambda source: source.files(store.STUDY), read=_read_study),
    Format(
        name="trainer folder",
        recognise=lambda source: source.files(_TRAINER_STATE, f"checkpoint-*/{_TRAINER_STATE}"),
        read=_read_trainer_folder,
    ),
    Format(name="wandb", recognise=_wandb_files, read=_read_wandb),
    Format(name="file inside", recognise=_file_inside, read=lambda _, file: read_table(file)),
    Format(name="tensorboard", recognise=_event_files, read=_read_events),
    Format(
        name="trackio",
        recognise=lambda source: source.data.startswith(binary.SQLITE_HEAD),
        read=lambda source, _: _of_runs(source, "trackio", list(binary.trackio_rows(source.path, source.budget))),
    ),
    Format(name="json", recognise=lambda source: source.data and text.is_json_document(source.body), read=_read_json),
    Format(name="jsonl", recognise=lambda source: source.data and text.is_json_lines(source.body), read=_read_lines),
    Format(name="csv", recognise=lambda source: source.data and text.is_table(source.text), read=_read_csv),
    Format(
        name="console",
        recognise=lambda source: source.data and find_records(source.text, source.budget),
        read=_read_console,
    ),
    Format(
        name="aligned",
        recognise=lambda source: source.data and not _named_as_table(source) and text.aligned(source.text),
        read=_read_aligned,
    ),
    Format(name="csv", recognise=_named_as_table, read=_read_csv),
)
