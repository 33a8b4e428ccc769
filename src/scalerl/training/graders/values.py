"""Convert a grader's return value to a number. Standard library only, because grader processes import this."""

import math
import numbers
import re
from dataclasses import dataclass
from typing import Any

_OUTCOME = re.compile(r"[a-z][a-z0-9_]{0,39}|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A verdict with a named outcome; outcomes are counted as outcome/NAME in a run's rows."""

    value: bool | float | None
    """The verdict, as a grader may also return it directly."""
    outcome: str = ""
    """A name such as "timeout": at most 40 lower-case letters, digits and underscores."""


def read_score(returned: Any) -> Score:
    """Return a grader's verdict as a Score with a number from 0 (wrong) to 1 (right), or None without a verdict.

    TypeError for anything but a Score, True, False, None and real numbers from 0 to 1, numpy's too.
    """
    given = returned if isinstance(returned, Score) else Score(value=returned)
    if not isinstance(given.outcome, str) or not _OUTCOME.fullmatch(given.outcome):
        raise TypeError(
            f"the grader returned the outcome {given.outcome!r:.60}, but an outcome is a name of lower-case "
            f"letters, digits and underscores, at most 40"
        )
    value = None if given.value is None else real_number(given.value)
    if value is None or 0 <= value <= 1:
        return Score(value=value, outcome=given.outcome)
    raise TypeError(
        f"the grader returned {given.value!r:.60}, but a grader returns True, False, None or a number from 0 to 1"
    )


def real_number(value: Any) -> float:
    """Return a real number or a bool, numpy's too, as a float; NaN for anything else."""
    # Compare by name: processes must not import numpy needlessly.
    is_number = isinstance(value, numbers.Real) or type(value).__module__ == "numpy"
    return float(value) if is_number else math.nan
