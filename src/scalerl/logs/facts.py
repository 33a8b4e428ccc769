"""What was decided about a log that the user did not ask for: each decision is a `Fact`, a kind with its values.

Code reads the kind and the values; `sentence` is the only place where they become English.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FactKind = Literal[
    "attempts",
    "short_attempts",
    "first_step_again",
    "superseded",
    "event_files_continue",
    "longest_history",
    "rows_counted",
    "cut_lines",
    "nan_rows",
    "repeated_rows",
    "several_per_compute",
    "start_at_zero",
    "start_is_a_mean",
    "start_is_late",
    "runs_apart",
    "runs_by_column",
    "seed_has_too_many_values",
    "mixed",
    "uneven_time",
    "binned",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One decision, or one thing worth knowing, about a log."""

    kind: FactKind
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.values}


def sentence(fact: Fact) -> str:
    """Return a fact in one or two sentences."""
    return _SENTENCES[fact.kind](fact.values)


def _attempts(values: Mapping[str, Any]) -> str:
    differ = values.get("differ") or ()
    advice = (
        f"they differ in {', '.join(differ)}: name the curves with --by {','.join(differ)}"
        if differ
        else ("keep one with --where attempt=N, or make them runs of one curve with --seed attempt")
    )
    return (
        f"{values['place']} holds {values['num']} {values['unit']} that each begin anew; they are separate curves "
        f"({advice})."
    )


def _superseded(values: Mapping[str, Any]) -> str:
    more = f" (and {values['times'] - 1} times more)" if values["times"] > 1 else ""
    return (
        f"The step falls from {values['from_step']:g} to {values['to_step']:g} at {values['place']}{more}, as where a "
        f"run is resumed: {values['num']} earlier rows of the steps from there on are left out (if they are of another "
        "run, name what tells runs apart with --seed or --by)."
    )


def _longest_history(values: Mapping[str, Any]) -> str:
    damaged = f" {values['num_unreadable']} of them cannot be read." if values["num_unreadable"] else ""
    return (
        f"Of {values['num_files']} trainer_state.json files the one with the longest history is read: "
        f"{values['file']}, {values['num_rows']} rows.{damaged}"
    )


def _start_at_zero(values: Mapping[str, Any]) -> str:
    rows = f"the mean of {values['num']} rows" if values["num"] > 1 else "the row"
    return (
        f"The start, {values['start']:g}, is {rows} at {values['x']} {values['compute']:g}, taken for the model before "
        "training (give another with --start)."
    )


_SENTENCES: dict[FactKind, Callable[[Mapping[str, Any]], str]] = {
    "attempts": _attempts,
    "short_attempts": lambda values: (
        f"{values['num']} short attempts ({values['num_rows']} rows in all) of {values['place']} are left out: the run "
        "began anew after them."
    ),
    "first_step_again": lambda values: (
        f"The resumed run evaluated step {values['step']:g} again: {values['num']} repeated rows are left out."
    ),
    "superseded": _superseded,
    "event_files_continue": lambda values: (
        f"Event files continue the run of the file before them: {values['num']} earlier values of the steps from there "
        "on are left out."
    ),
    "longest_history": _longest_history,
    "rows_counted": lambda values: (
        f"The log does not print its steps: compute is the number of the printed record, 1 to {values['num']}."
    ),
    "cut_lines": lambda values: (
        f"{values['num']} lines (the first is line {values['line']}) were cut while they were written and are left out."
    ),
    "nan_rows": lambda values: (
        f"{' or '.join(values['columns'])} is NaN in {values['num']} of {values['num_rows']} rows ({values['place']}): "
        "they count as not measured. If training itself gave NaN there, the run has diverged and the rest says little."
    ),
    "repeated_rows": lambda values: (
        f"{values['num']} of {values['num_rows']} rows repeat another one, compute and reward: each counts once."
    ),
    "several_per_compute": lambda values: (
        f"Most values of {values['x']} have {values['num']:g} rows or more, taken as evaluations of one run: if they "
        "are of several runs, name what tells these apart with --seed or --by."
    ),
    "start_at_zero": _start_at_zero,
    "start_is_a_mean": lambda values: (
        f"The start, {values['start']:g}, is the mean of {values['num']} rows: a run has several at its least compute."
    ),
    "start_is_late": lambda values: (
        f"The first row lies at compute {values['compute']:g}, not before training: it is fitted as a point, and the "
        "start is fitted too."
    ),
    "runs_apart": lambda values: (
        f"Column {values['column']} names {values['num']} runs: they are separate curves (make them repeats of one "
        f"curve with --seed {values['column']}, or name curves with --by)."
    ),
    "runs_by_column": lambda values: f"Runs are told apart by column {', '.join(values['columns'])}.",
    "seed_has_too_many_values": lambda values: (
        f"Column {', '.join(values['columns'])} has too many values to tell runs apart: all rows count as one run."
    ),
    "uneven_time": lambda values: (
        f"Time per FLOP changed during the run: device-hours and FLOPs differ by up to {values['share']:.0%} of it. "
        + (
            "Compute is counted in FLOPs (give --x gpu_hours for time)."
            if values["used"] == "flops"
            else "A run's own curve is better fitted over FLOPs (--x flops)."
        )
    ),
    "binned": lambda values: (
        f"{values['num_points']:,} rewards are averaged in {values['num_bins']} bins along compute: the standard error "
        f"of a mean is {values['error']:.2g}, with an autocorrelation of {values['autocorrelation']:.2f} between "
        "neighbouring rewards."
    ),
    "mixed": lambda values: (
        f"Rows over the same compute differ in {', '.join(values['columns'])} but are taken as one curve: name what "
        "tells curves apart with --by, or keep one of them with --where."
    ),
}
