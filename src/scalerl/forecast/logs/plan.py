"""`Plan`: every decision about the columns of a log, each with the rule that made it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalerl.forecast.logs.columns import AXES, Unit, with_role
from scalerl.forecast.logs.facts import Fact
from scalerl.forecast.logs.frame import Floats, Frame, Names, Rows
from scalerl.forecast.logs.selection import Selection

BUILT = ("per_step", "per_row", "elapsed", "clock", "times_gpus", "counted")
"""Rules whose column is not an amount of compute itself, but what the amount is counted from."""


class Choice(NamedTuple):
    """What was chosen for a role."""

    columns: Names
    rule: str = ""
    """Why: what a reward is, how an amount is counted, or the name of the rule."""
    others: Names = ()
    """What else could have been chosen."""
    rivals: Names = ()
    """What is as likely as what was chosen, for all that names and values say."""
    too_few: Mapping[str, int] = {}
    """Columns that would have come first if they had values at more steps, and at how many they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions about a log so far."""

    path: Path
    kind: str
    """The name of the format."""
    frame: Frame
    options: Selection
    facts: tuple[Fact, ...] = ()
    """What the reader and the reshaping of the frame decided."""
    units: Mapping[str, Unit] = field(default_factory=dict)
    """The unit in which the log writes a column, where it says one."""
    roles: Mapping[str, Choice] = field(default_factory=dict)
    is_ours: bool = False
    """Whether one of our runs wrote it: the store knows what a row is, and nothing is guessed."""
    is_clean: bool = False
    """Whether the names of its columns say all, so that nothing is guessed."""

    def __getitem__(self, role: str) -> str:
        """Return the first column of a role; "" if it has none."""
        return self.roles[role].columns[0] if role in self.roles else ""

    def steps(self, frame: Frame) -> Floats:
        """Return the step of each row of a run; rows are counted where the log has none."""
        return frame.numbers(self["step"]) if self["step"] in frame else np.arange(1.0, len(frame) + 1)

    def progress(self, frame: Frame) -> Floats:
        """Return what rises along a run: the step, else compute or time; NaN where nothing is logged."""
        is_counted = "step" in self.roles and self.roles["step"].rule == "counted"
        named = [] if is_counted else [self["step"], *self.named(*AXES, "elapsed", "wall_clock")]
        return frame.numbers(next((name for name in named if name in frame), ""))

    def runs(self, frame: Frame) -> Rows:
        """Return a number for each row, equal for rows of one run."""
        label = self.roles["label"]
        return frame.groups([*label.columns, *label.others])

    def axis(self, name: str) -> str:
        """Return the column of an axis of compute, or the axis's own name if it is `BUILT`; "" if there is neither."""
        is_logged = name in self.roles and self.roles[name].rule not in BUILT
        return self[name] if is_logged else name if name in self.roles else ""

    def named(self, *roles: str) -> Names:
        """Return the columns whose names have one of these roles, if they hold any number."""
        return [name for name in with_role(self.frame.columns, *roles) if self.frame.known(name).any()]


Rule = Callable[[Plan], Choice | None]
"""A rule sees the decisions before its own, and returns a choice; None, or one without columns, if it has none."""
