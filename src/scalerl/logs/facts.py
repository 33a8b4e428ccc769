"""What was decided about a log that the user did not ask for: each decision is a `Fact`, a kind with its values.

Code reads the kind and the values. `sentence` is the only place where they become English.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalerl.logs.frame import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One decision, or one thing worth knowing, about a log."""

    kind: str
    """A key of the table of sentences below."""
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.values}


def fact(kind: str, **values: Any) -> Fact:
    return Fact(kind=kind, values=values)


def facts_of(kind: str, **values: Any) -> tuple[Fact, ...]:
    """Return a fact alone in a tuple; none where its first value is 0 or empty, since there is nothing to say."""
    return (fact(kind, **values),) if next(iter(values.values())) else ()


def sentence(fact: Fact) -> str:
    """Return a fact in one or two sentences."""
    listing = {key: listed([*map(str, value)]) for key, value in fact.values.items() if isinstance(value, tuple)}
    return SENTENCES[fact.kind].format(**{**fact.values, **listing})


SENTENCES = {
    # which lines and files were taken
    "lines_taken": "{num} of {num_lines} lines record a step; the step is {origin}.",
    "cut_lines": "Lines that are cut or hold no row are left out: {num}, the first is line {line}.",
    "rows_counted": "The log does not name its steps: compute is the number of the record, 1 to {num}.",
    "longest_history": "{file} is read: the longest of {num_files} histories.",
    "other_logs": "The folder holds one run in several logs: {file} is read, with {num} values of {y}; not {others}.",
    "contained": "{files} hold the first part of {file} and are left out.",
    "evaluations_apart": "Rows are marked as training or evaluation: the evaluations are read as {columns}.",
    "units": "Amounts in {columns} are converted to single units.",
    "one_column_per_run": "The table has one column per run: {columns}.",
    "one_column_per_step": "The table has one column per step: {columns}.",
    "one_column": "{others} and {column} are one column: no row has both.",
    # what is a run
    "attempts": (
        "{place} holds {num} attempts that each begin anew: they are separate curves (keep one with --where "
        "attempt=N, or pool with --seed attempt)."
    ),
    "short_attempts": "Short attempts ({num_rows} rows) of {place} are left out: the run began anew after them.",
    "superseded": (
        "The step goes from {from_step:g} to {to_step:g} at {place}, as where a run is resumed (restarts: {times}): "
        "{num} rows are left out. If they belong to another run, name the column of runs with --seed or --by."
    ),
    "steps_come_back": (
        "The step of {place} does not rise at {num} of {num_rows} values: they are read as several measurements of a "
        "step. If several runs printed them, give the log of each."
    ),
    "files_unused": "Files without a curve are left out: {names}.",
    "files_beside": "Logs beside run folders are not read: {names}.",
    "files_beyond": "{num} files are not read: of a folder at most {most} are; name the others, or give a pattern.",
    "files_joined": "{names} are one run: each continues the one before (--by file keeps them apart).",
    "seeds_by_name": "{names} are runs of one curve by their names (--by {column} keeps them apart).",
    "steps_per_epoch": "{step} begins anew in each of {num} values of {coarse}: the steps are counted through.",
    "runs_joined": "{names} of column {column} are one run: each begins at a later step of the one before it.",
    "no_reward": "{names} have no {y} and are left out.",
    "runs_apart": "Each value of {columns} is a curve of its own (--seed COLUMN makes them runs of one).",
    # which rows count
    "held_values": "{num} of {num_rows} rows repeat the value of the row before: a value counts once.",
    "start_at_zero": (
        "The start is {start:.4g}, the mean at compute {compute:g} (rows: {num}), taken as the model before training; "
        "--start gives another."
    ),
    "start_is_late": (
        "The first row lies at compute {compute:g}, not before training: it is a point, and the start is fitted."
    ),
    "start_from_evaluation": "The start, {start:.4g}, is {column} before training (--start fit leaves it out).",
    # in which unit
    "percent": "{y} runs from {low:.4g} to {high:.4g} and is read as per cent.",
    "own_scale": "{y} runs from {low:.4g} to {high:.4g} and is fitted without limits (--y-scale names some).",
    "cpu_time": "The run had no GPU: gpu_hours are hours of CPU time.",
    "shared_hours": "Runs of the study shared a device, so that their hours are not to be trusted.",
    "counted_in_flops": "Time per FLOP changed during the run: compute is counted in FLOPs (--x gpu_hours: in time).",
}
