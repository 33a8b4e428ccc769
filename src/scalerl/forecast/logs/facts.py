"""What was decided about a log that the user did not ask for: each decision is a `Fact`, a kind with its values.

Code reads the kind and the values. `sentence` is the only place where they become English.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalerl.errors import option
from scalerl.forecast.logs.frame import listed


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
    return SENTENCES[fact.kind].format(**{**fact.values, **listing, "option": option})


SENTENCES = {
    # which lines and files were taken
    "lines_taken": "{num} of {num_lines} lines record a step; the step is {origin}.",
    "cut_lines": "{num} lines are cut off or hold no row and are left out; the first is line {line}.",
    "rows_counted": "The log does not name its steps, so compute is the number of the record, from 1 to {num}.",
    "compute_unread": "Compute may stand in {columns}, but the values there are not understood as amounts.",
    "longest_history": "{file} is read, the longest of {num_files} histories.",
    "other_logs": "The folder holds one run in several logs: {file} is read, with {num} values of {y}; not {others}.",
    "contained": "{files} are left out: they repeat the first part of {file}.",
    "evaluations_apart": "Rows are marked as training or evaluation: the evaluations are read as {columns}.",
    "units": "{columns}: read in the unit that its name says.",
    "one_column_per_run": "The table has one column per run: {columns}.",
    "columns_beside_runs": "{columns} are not read as runs: their names or values tell of something else.",
    "siblings": "{columns} may be runs, one column each; the log has other columns beside them, so one is read.",
    "one_column_per_step": "The table has one column per step: {columns}.",
    "one_column": "{others} and {column} are one column: no row has both.",
    # what is a run
    "attempts": (
        "{place} holds {num} attempts that each start over: they are separate curves (keep one with --where "
        "attempt=N, or pool with {option:seed attempt})."
    ),
    "short_attempts": "Short attempts of {place} ({num_rows} rows) are left out: the run started over after them.",
    "superseded": (
        "The step goes back from {from_step:g} to {to_step:g} at {place}, as when a run resumes (restarts: {times}): "
        "{num} rows are left out. If they belong to another run, name the column of runs with {option:seed} or "
        "{option:by}."
    ),
    "steps_come_back": (
        "The step of {place} does not rise at {num} of {num_rows} values, which are read as further measurements of "
        "a step. If several runs wrote this log, pass the log of each."
    ),
    "files_unused": "Files without a curve are left out: {names}.",
    "files_beside": "Logs beside run folders are not read: {names}.",
    "files_beyond": "{num} files are not read: at most {most} are read per folder. Name the others, or give a pattern.",
    "files_joined": "{names} are one run: each continues the one before ({option:by file} keeps them apart).",
    "seeds_by_name": "By their names, {names} are runs of one curve ({option:by {column}} keeps them apart).",
    "steps_per_epoch": "{step} starts again in each of {num} values of {coarse}, so the steps are counted on.",
    "runs_joined": "{names} of column {column} are one run: each starts at a later step than the one before it.",
    "reward_by_values": "No name says which column is the reward: {y} is read, the only one that can be scores.",
    "reward_of_all": "{y} is read, since all logs have it.",
    "rewards_differ": "The logs have no reward in common ({names}): their answers cannot be compared.",
    "no_reward": "{names} have no {y} and are left out.",
    "runs_apart": "Each value of {columns} is a curve of its own ({option:seed COLUMN} makes them runs of one).",
    # which rows count
    "held_values": "{num} of {num_rows} rows repeat the value of the row before; each value counts once.",
    "start_at_zero": (
        "The start is {start:.4g}, the mean at compute {compute:g} ({num} rows), taken as the model before training; "
        "{option:start} sets another."
    ),
    "start_is_late": (
        "The first row is at compute {compute:g}, not before training, so it counts as a point and the start is fitted."
    ),
    "start_from_evaluation": "The start, {start:.4g}, is {column} before training ({option:start fit} leaves it out).",
    "far_cells": "{y} is {value:.4g} at {place}, far outside all other values: {num} cells are left out as mistakes.",
    "answers_averaged": ("{num} rows are single answers ({per_step:g} per step): the reward of a step is their mean."),
    "lower_is_better": "By its name, lower {y} is better, but larger values are taken for better: give 1 - {y}.",
    "values_fall": "{y} falls while compute grows: if lower is better, give 1 - {y} instead.",
    # in which unit
    "percent": "{y} runs from {low:.4g} to {high:.4g} and is read as per cent.",
    "own_scale": "{y} runs from {low:.4g} to {high:.4g} and is fitted without limits ({option:y-scale} sets some).",
    "cpu_time": "The run had no GPU: gpu_hours are hours of CPU time.",
    "shared_hours": "Runs of the study shared a device, so their hours cannot be trusted.",
    "counted_in_flops": (
        "Time per FLOP changed during the run: compute is counted in FLOPs ({option:x gpu_hours}: in hours)."
    ),
}
