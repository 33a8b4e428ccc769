"""The formats of logs: one table of how each is recognised and how its rows are found.

Content decides, not the name of a file; the first format that recognises it reads it. docs/logs.md lists what is read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
_MAX_LOGS_OF_A_RUN = 8
# Of rows in which these columns are equal the latest counts.
_BATCH = ("completions_per_group", "groups_per_batch")  # what `scalerl plan --allocate` asks about
_RUN_KEYS = {store.EVALS: ("step", "set"), store.METRICS: ("step",)}


@dataclass(frozen=True, slots=True)
class Format:
    """One format. A folder has files that match `inside`; a file is what `recognise` returns something true for.

    `read` gets these files, or what `recognise` returned.
    """

    name: str
    recognised_by: str
    """For docs/logs.md, and so `row`."""
    row: str
    """What becomes a row."""
    read: Callable[[Source, Any], Table]
    recognise: Callable[[Source], Any] = lambda _: None
    inside: tuple[str, ...] = ()

    def found_in(self, source: Source) -> Any:
        return source.files(*self.inside) if source.is_folder and self.inside else self.recognise(source)


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
    entries = sorted(item for item in folder.iterdir() if not item.name.startswith("."))
    runs = [item for item in entries if store.is_run_folder(item)]
    folders = [item for item in entries if item.is_dir() and _is_log(item)] if not runs else []
    files = [item for item in entries if item.is_file() and item.suffix in LOG_SUFFIXES][:_MAX_LOGS]
    return runs or folders or [file for file in files if _is_log(file)]


def _read(path: Path) -> Table:
    if not path.exists():
        raise InputError(no_such_file(path))
    source = Source(path)
    if (found := _recognised(source)) is not None:
        return found[0].read(source, found[1])
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


def _recognised(source: Source) -> tuple[Format, Any] | None:
    for known in FORMATS:
        if found := known.found_in(source):
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
    files = [source.path / name for name in (store.METRICS, "files/output.log", "output.log") if source.is_folder]
    return next((file for file in files if file.is_file() and (file.name == store.METRICS or _is_log(file))), None)


def _read_wandb(source: Source, _: object) -> Table:
    files = source.files(*("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb")) or [source.path]
    files = sorted({file.resolve() for file in files})
    placed = list(binary.wandb_rows(files, source.budget))
    printed = files[0].parent / "files" / "output.log"
    if not placed and len(files) == 1 and printed.is_file():
        return replace(read_table(printed), path=source.path)
    return _of_runs(source, "wandb", placed)


def _read_events(source: Source, _: object) -> Table:
    folder = source.path if source.is_folder else source.path.parent
    files = source.files("**/*tfevents*") or [source.path]
    return _of_runs(source, "tensorboard", list(binary.event_rows(folder, files, source.budget)))


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


def _of_text(source: Source, kind: str, rows: Sequence[Placed], facts: Sequence[Fact] = (), **more: Any) -> Table:
    """Return a table of rows that may have one metric per row, or one column per run."""
    rows, built = text.with_evaluations(rows)
    rows, only, wide = text.reshaped(rows)
    apart = ("run",) if wide or (kind == "console" and any("run" in row for _, row in rows)) else ()
    kind = "wandb" if wide and kind == "csv" else kind
    apart_facts = [Fact(kind="evaluations_apart", values={"columns": built})] if built else []
    facts = (*facts, *wide, *apart_facts)
    more |= {"y": only, "apart": apart, "facts": facts, "budget": source.budget, "built": built}
    return make_table(source.path, kind, rows, **more)


def _read_csv(source: Source, _: object) -> Table:
    rows, decimal_comma = text.csv_rows(source.path, source.text)
    return _of_text(source, "csv", rows, decimal_comma=decimal_comma)


def _read_json(source: Source, found: tuple[list[Placed], tuple[Fact, ...]]) -> Table:
    return _of_text(source, "trainer_state" if '"log_history"' in source.body else "jsonl", *found)


def _named_as_table(source: Source) -> bool:
    return not source.is_folder and source.path.suffix.lower() in (".csv", ".tsv", ".gz")


FORMATS = (
    Format(
        "run",
        "`recipe.json` or `evals.jsonl` in a folder",
        "an evaluation; the last attempt of a step counts",
        _read_run,
        _is_run,
    ),
    Format("study", "`study.json` in a folder", "an evaluation of one of its runs", _read_study, inside=(store.STUDY,)),
    Format(
        "trainer folder",
        "`trainer_state.json`, also in `checkpoint-*`: transformers, TRL",
        "an entry of the longest `log_history`",
        _read_trainer_folder,
        inside=("trainer_state.json", "checkpoint-*/trainer_state.json"),
    ),
    Format(
        "wandb",
        "`run-*.wandb`, alone or in a folder of runs",
        "what was given to `wandb.log`; `output.log` where there is none",
        _read_wandb,
        lambda source: source.data[:4] == binary.WANDB_HEAD,
        inside=("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb"),
    ),
    Format(
        "mlflow",
        "a folder of runs with `meta.yaml` and a folder `metrics`",
        "a step of a run",
        lambda source, files: _of_runs(source, "mlflow", list(binary.mlflow_rows(files, source.budget))),
        binary.mlflow_files,
    ),
    Format(
        "file inside",
        "a folder with `metrics.jsonl` or an `output.log` that is read",
        "as in that file",
        lambda _, file: read_table(file),
        _file_inside,
    ),
    Format(
        "tensorboard",
        "event files in a folder and below it",
        "a step; sub-folders are runs or `train` and `eval`, files of one folder follow each other",
        _read_events,
        lambda source: binary.is_event_file(source.data[:12]),
        inside=("**/*tfevents*",),
    ),
    Format(
        "sqlite",
        "an SQLite database with a table `metrics`: trackio, MLflow",
        "what was logged",
        lambda source, _: _of_runs(source, "sqlite", binary.sqlite_rows(source.path, source.data, source.budget)),
        lambda source: source.data.startswith(binary.SQLITE_HEAD),
    ),
    Format(
        "json",
        "one document",
        "a row of a list, of `log_history` or of columns; `[step, value]`, `[wall time, step, value]`; lists or "
        "columns per run, or of `train` and `eval`",
        _read_json,
        lambda source: source.data and text.json_document(source.path, source.body),
    ),
    Format(
        "jsonl",
        "one object per line",
        "a line; `data`, `metrics`, `payload` and `values` are unwrapped, other objects become `outer/inner`",
        lambda source, _: _of_text(source, "jsonl", *text.jsonl_rows(source.path, source.text)),
        lambda source: source.data and text.is_json_lines(source.body),
    ),
    Format(
        "csv",
        "a header and rows of as many cells, with `,` `;` or tabs",
        "a row; a run and row where a table has one column per run; a step where it has one metric per row",
        _read_csv,
        lambda source: source.data and text.is_table(source.text),
    ),
    Format(
        "console",
        "lines such as those below, also between the fences of a Markdown file",
        "a line, or the lines under a heading `Step N` or in a box",
        lambda source, found: _of_text(source, "console", *console_rows(found)),
        lambda source: source.data and find_records(source.text, source.budget),
    ),
    Format(
        "drawn table",
        "cells between pipes or blanks, with a column of steps",
        "a row",
        lambda source, rows: _of_text(source, "csv", rows),
        lambda source: source.data and not _named_as_table(source) and text.drawn_rows(source.text),
    ),
    Format("csv", "the suffix of its name", "", _read_csv, _named_as_table),
)
