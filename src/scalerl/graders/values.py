"""What a grader returns, read as one number. Standard library only: processes that grade import this."""

import numbers
import re
from dataclasses import dataclass
from typing import Any

_OUTCOME = re.compile(r"[a-z][a-z0-9_]{0,39}|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a grader returns to have its outcomes counted by name, as outcome/NAME in a run's rows."""

    value: bool | float | None
    """A verdict, as a grader returns it otherwise."""
    outcome: str = ""
    """Such as "timeout": lower-case letters, digits and underscores, at most 40."""


def read_score(returned: Any) -> Score:
    """Return a grader's verdict with its value as a number, or None where it has no verdict; see read_value."""
    if not isinstance(returned, Score):
        return Score(value=read_value(returned))
    if not isinstance(returned.outcome, str) or not _OUTCOME.fullmatch(returned.outcome):
        raise TypeError(
            f"the grader returned the outcome {returned.outcome!r:.60}, but an outcome is a name of lower-case "
            f"letters, digits and underscores, at most 40"
        )
    return Score(value=read_value(returned.value), outcome=returned.outcome)


def read_value(returned: Any) -> float | None:
    """Return a grader's verdict as a number from 0 (wrong) to 1 (right); None where it has no verdict.

    True, False, numpy's bools and real numbers from 0 to 1 are values. TypeError says what else was returned.
    """
    if returned is None:
        return None
    if isinstance(returned, bool) or _is_numpy_bool(returned):
        return float(bool(returned))
    if isinstance(returned, numbers.Real) and 0 <= float(returned) <= 1:
        return float(returned)
    text = repr(returned)
    raise TypeError(
        f"the grader returned {text if len(text) <= 60 else text[:60] + '...'}, but a grader returns True, False, None "
        f"or a number from 0 to 1"
    )


def _is_numpy_bool(value: Any) -> bool:
    # By name: a worker must not import numpy for a grader that does without. The type was called bool_ before numpy 2.
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
