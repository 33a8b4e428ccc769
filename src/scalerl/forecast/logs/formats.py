"""What lies at a path as a log: of a file the best of its tables, of a folder what it is as a whole, or its logs.

The readers know the containers of files; docs/logs.md lists what is read.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalerl.errors import InputError, UnclearLogError, UserError
from scalerl.forecast.logs.columns import are_splits, is_evaluation
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Frame, Item, Placed, Row, frame_of, grouped, objects
from scalerl.forecast.logs.names import FILE, without_split
from scalerl.forecast.logs.outliers import without_far_cells
from scalerl.forecast.logs.places import (
    MAX_LOGS,
    Group,
    files_of,
    find,
    logs_among,
    no_such_file,
    nothing_to_read,
    step_files,
    whole_kinds,
)
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.readers import budget
from scalerl.forecast.logs.readers.containers import tables_in
from scalerl.forecast.logs.readers.objects import flatten
from scalerl.forecast.logs.readers.projects import project_at, project_rows
from scalerl.forecast.logs.readers.source import Source, Table
from scalerl.forecast.logs.readers.tensorboard import event_rows
from scalerl.forecast.logs.readers.wandb import wandb_rows
from scalerl.forecast.logs.roles import decided, is_clean
from scalerl.forecast.logs.selection import Selection
from scalerl.forecast.logs.shapes import columns_asked, gathered, shaped, written_units
from scalerl.forecast.logs.tables import best_table, has_rewards, names_of
from scalerl.runfolder import store
from scalerl.runfolder.json_text import parse_or_none

Files = Sequence[Path]

# The last line of a traceback: RuntimeError: CUDA out of memory.
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)
_MAX_REASON = 120
# Lines that shells and launchers print after it.
_MOST_AFTER_ERROR = 30
# A line of a configuration: "lr": 1e-6, or lr = 1e-6.
_SETTING = re.compile(r"\s*+['\"]?[A-Za-z_][\w./-]{0,80}+['\"]?\s?[:=](?:\s.*)?")
# A file of evaluations with fewer says less about a run than its training rewards.
_ENOUGH_REWARDS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Log:
    """What was read from a path: rows, and facts about the reading."""

    path: Path
    kind: str
    """The name of the format; `run` for what our own runs wrote."""
    frame: Frame
    facts: tuple[Fact, ...] = ()

    def plan(self, selection: Selection | None = None, name: str = "") -> Plan:
        """Take every decision about the columns; InputError where one cannot be taken."""
        options = selection or Selection()
        frame, facts = self.frame, list[Fact]()
        asked = columns_asked(frame, options.y) if options.y else {}
        if asked:
            frame, made = gathered(frame, asked)
            facts += made
            options = replace(options, y=next(metric for _, metric in asked.values()))
        is_known = self.kind == "run" or (self.kind != "console" and not self.facts and is_clean(frame, options))
        if not is_known:
            frame, changes = shaped(frame, options, is_printed=self.kind == "console")
            facts += changes
        file = {} if FILE in frame else {FILE: objects([name] * len(frame))}
        plan = Plan(
            path=self.path,
            kind=self.kind,
            frame=frame.having(file),
            options=options,
            facts=(*self.facts, *facts),
            units={} if is_known else written_units(self.frame, options),
            is_ours=self.kind == "run",
            is_clean=is_known and self.kind != "run",
        )
        return without_far_cells(decided(plan))

    def best_guess(self) -> Plan:
        """Return the plan without options; where the reward is not clear, that of the first candidate."""
        try:
            return self.plan()
        except UnclearLogError as question:
            return self.plan(Selection(y=question.candidates[0].name))

    @property
    def num_rewards(self) -> int:
        """The number of rewards that are read without options; 0 where something is not recognised."""
        try:
            plan = self.best_guess()
        except InputError:
            return 0
        return int(plan.frame.known(plan["y"]).sum())


def read_log(path: str | Path) -> Log:
    """Return the rows of a log of any known format."""
    logs = read_logs([path])
    if len(logs) != 1:
        raise InputError(nothing_to_read(Path(path), [log.path for log in logs]))
    return logs[0]


def read_logs(paths: Sequence[str | Path]) -> list[Log]:
    """Read several logs, in the order given; patterns such as runs/*.jsonl and folders of logs stand for the logs."""
    logs: list[Log] = []
    for path in paths:
        groups = find(path)
        if len(groups) == 1 == len(groups[0]):
            logs.append(read_place(groups[0][0].path))
        else:
            logs += _read_all(Path(path), groups)
    return logs


def _read_all(path: Path, groups: list[Group]) -> list[Log]:
    """Read what lies at a path. Of files that the user did not name, those that make no curve are left out."""
    places = [place for group in groups for place in group[:MAX_LOGS]]
    read: dict[Path, Log] = {}
    for place in places:
        try:
            read[place.path] = read_place(place.path)
        except InputError:
            if place.is_named:
                raise
    curves = {
        place.path for place in places if place.path in read and (place.is_named or read[place.path].num_rewards > 1)
    }
    used = curves or {*read}
    if not used:
        raise InputError(nothing_to_read(path, ()))
    unused = [place.path for place in places if place.path not in used]
    num_beyond = sum(len(group[MAX_LOGS:]) for group in groups)
    inside = (file.relative_to(path) if file.is_relative_to(path) else file for file in unused)
    facts = facts_of("files_unused", names=tuple(map(str, inside)))
    if any(place.kind == "run" and place.path.parent == path for group in groups for place in group):
        facts += facts_of("files_beside", names=tuple(file.name for file in logs_among(path, sorted(path.iterdir()))))
    facts += facts_of("files_beyond", num=num_beyond, most=MAX_LOGS)
    logs = [[read[place.path] for place in group if place.path in used] for group in groups]
    return [replace(log, facts=(*log.facts, *facts)) for group in logs for log in _of_one_run(group, path)]


def _of_one_run(logs: list[Log], folder: Path) -> list[Log]:
    """Return the logs of a folder; of those that are one run, the best one.

    They are one run if no two of them have one format, or if their names differ in a word, train or eval.
    """
    if len({log.kind for log in logs}) == len(logs):
        return [_best(logs, folder)] if logs else []
    families = grouped(logs, lambda log: (log.path.parent, *without_split(log.path.name)))
    return [_best(family, folder if len(families) == 1 else family[0].path) for family in families]


def _best(logs: list[Log], path: Path) -> Log:
    """Return the log of a run that has evaluations, or a file for each step, or the most rewards; as that of `path`."""
    if len(logs) == 1:
        return logs[0]

    def worth(log: Log) -> tuple[bool, int]:
        is_named = is_evaluation(log.path.stem) and log.num_rewards >= _ENOUGH_REWARDS
        is_evaluated = is_named or log.best_guess().roles["y"].rule == "evaluation"
        return log.path.is_dir() or is_evaluated, log.num_rewards

    best = max(logs, key=worth)
    others = tuple(log.path.name for log in logs if log is not best)
    choice = fact("other_logs", file=best.path.name, num=best.num_rewards, y=best.best_guess()["y"], others=others)
    return replace(best, path=path, facts=(choice, *best.facts))


# One log


def read_place(path: Path) -> Log:
    """Read one log. This is the one place that turns whatever a reader raises into a sentence."""
    try:
        return _recognised(Source(path))
    except InputError:
        raise
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except UserError as fault:  # from the run folder, whose readers know nothing of logs
        raise InputError(f"{fault}; repair it or give another file.") from None
    except Exception as fault:
        reason = str(fault) if isinstance(fault, ValueError) else f"{type(fault).__name__}: {fault}"
        where = "" if str(path) in reason else f"{path} "
        raise InputError(f"{where}cannot be read ({reason}): it is damaged, or not a log.") from None


def _recognised(source: Source) -> Log:
    """Return what lies at a path, read by the first format that recognises it."""
    path = source.path
    if project := project_at(path):
        return _log(source, Table(project.tracker, project_rows(project, source)))
    if not path.exists():
        raise InputError(no_such_file(path))
    if path.is_dir():
        kinds = whole_kinds(path)
        if not kinds:
            raise InputError(nothing_to_read(path, ()))
        return _first_readable(kinds, lambda kind: FOLDERS[kind](Source(path), files_of(path, kind)))
    if path.name in (store.EVALS, store.METRICS) and store.is_run_folder(path.parent):
        return _log(source, Table("run", _our_rows(path)))
    table = best_table(tables_in(source))
    if table is None or (table.kind == "console" and not has_rewards(table)):
        _refuse_crash(source)
    if table is None:
        raise InputError(_no_step(source))
    return _log(source, table)


def _no_step(source: Source) -> str:
    """Say that no line of a text records a step, and whether it is a configuration."""
    lines = [line for line in source.text.splitlines() if any(map(str.isalnum, line))]
    num_settings = sum(_SETTING.fullmatch(line) is not None for line in lines)
    if 2 * num_settings > len(lines):
        return (
            f"{source.path} is a configuration, and no line after it records a training step: if the run ended there, "
            "give the log of one that trained, and if it logs elsewhere, give that file."
        )
    return (
        f"{source.path} is text in which no line records a training step: give CSV (a tracker, a notebook or a data "
        "frame exports it), JSON lines, console output with lines such as 'step:12 - reward:0.5' or {'reward': 0.5}, "
        "or one table with a column of steps, or of checkpoints such as ckpt-100 in their order."
    )


def _refuse_crash(source: Source) -> None:
    """Raise InputError for a text that ends in the traceback of a program, unless it says much more after it."""
    _, traceback, after = source.text.rpartition("Traceback (most recent call last)")
    reason = _ERROR_LINE.search(after)
    num_after = after[reason.end() if reason else 0 :].count("\n")
    if traceback and num_after <= _MOST_AFTER_ERROR:
        said = f" ({reason[0].strip()[:_MAX_REASON]})" if reason else ""
        raise InputError(
            f"{source.path} is the output of a program that failed{said} before it logged a reward: give the log of a "
            "run that trained."
        )


def _first_readable(items: Sequence[Item], read: Callable[[Item], Log]) -> Log:
    """Return the first log that can be read; raise the first fault if none can."""
    faults: list[InputError] = []
    for item in items:
        try:
            return read(item)
        except InputError as fault:  # still being written, or damaged
            faults.append(fault)
    raise faults[0]


def _log(source: Source, table: Table) -> Log:
    """Return a table of a source as a log; InputError for no rows, or for too many columns."""
    if not table.rows:
        raise InputError(f"{source.path} holds no rows yet: wait until the run has logged something.")
    num_columns = len(names_of(table))
    source.budget.limit(num_columns, budget.MAX_COLUMNS, "columns")
    source.budget.limit(num_columns * len(table.rows), budget.MAX_CELLS, "cells")
    return Log(path=source.path, kind=table.kind, frame=frame_of(table.rows), facts=table.facts)


def log_of_rows(path: Path, rows: Placed) -> Log:
    """Return rows of our runs as a log."""
    return _log(Source(path), Table("run", rows))


def _run_log(source: Source, files: Files) -> Log:
    """Return the evaluations of one of our runs."""
    if not (rows := _our_rows(source.path / store.EVALS)):
        raise InputError(f"{source.path} has no rows in {store.EVALS}: a run has a curve once it is evaluated.")
    return _log(source, Table("run", rows))


def _our_rows(file: Path) -> Placed:
    return [(place, flatten(row)) for place, row in store.labelled_rows(file)]


def _study_log(source: Source, files: Files) -> Log:
    table = Table("run", [(place, flatten(row)) for place, row in store.study_rows(source.path)])
    if (store.read_study(source.path) or {}).get("shared_device"):
        table = table.with_fact("shared_hours")
    return _log(source, table)


def _longest(source: Source, files: Files) -> Log:
    """Read the largest file that can be read, since each checkpoint repeats those before it."""
    log = _first_readable(
        sorted(files, key=lambda file: (file.name != store.METRICS, -file.stat().st_size)), read_place
    )
    are_alike = len({file.name for file in files}) == 1 < len(files)
    facts = facts_of("longest_history", num_files=len(files) * are_alike, file=log.path.parent.name)
    return replace(log, path=source.path, facts=(*facts, *log.facts))


def _wandb_log(source: Source, files: Files) -> Log:
    return _log(source, Table("wandb", wandb_rows(source, files)))


def _event_log(source: Source, files: Files) -> Log:
    """Return the scalars of event files. Sub-folders are runs, or training and its evaluations where named so."""
    rows = event_rows(source, files)
    folders = {row["run"] for _, row in rows}
    if len(folders) > 1 and are_splits(folder.rpartition("/")[2] for folder in folders):
        rows = [(place, {"split": row.pop("run"), **row}) for place, row in rows]
    return _log(source, Table("tensorboard", rows))


def _step_log(source: Source, files: Files) -> Log:
    """Return a row for each step whose evaluation is a file; several files of a step put their names before columns."""
    contents: dict[tuple[str, int], Row] = {}
    for file, step in step_files(source.path).items():
        value = parse_or_none(Source(file).data)
        if isinstance(value, dict):  # else it is still being written
            name = "/".join(file.relative_to(source.path).with_suffix("").parts[1:])
            contents.setdefault(step, {})[name.replace(str(step[1]), "").strip("-_ ")] = value
    # The name of a step's only file says nothing.
    is_only = all(len(parts) == 1 for parts in contents.values())
    rows: Placed = []
    for (run, step), parts in contents.items():
        values = flatten(next(iter(parts.values())) if is_only else parts)
        rows.append((f"step {step}", {**({"run": run} if run else {}), "step": step, **values}))
    return _log(source, Table("json", rows))


FOLDERS: dict[str, Callable[[Source, Files], Log]] = {
    "study": _study_log,
    "run": _run_log,
    "trainer folder": _longest,
    "wandb": _wandb_log,
    "file inside": _longest,
    "tensorboard": _event_log,
    "a file each step": _step_log,
}
