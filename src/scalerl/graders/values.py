"""Convert a grader's return value to a number. Standard library only, because grader processes import this."""

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
    """Return a grader's verdict as a Score with a numeric value, or None without a verdict; see read_value."""
    if not isinstance(returned, Score):
        return Score(value=read_value(returned))
    if not isinstance(returned.outcome, str) or not _OUTCOME.fullmatch(returned.outcome):
        raise TypeError(
            f"the grader returned the outcome {returned.outcome!r:.60}, but an outcome is a name of lower-case "
            f"letters, digits and underscores, at most 40"
        )
    return Score(value=read_value(returned.value), outcome=returned.outcome)


def read_value(returned: Any) -> float | None:
    """Return a grader's verdict as a number from 0 (wrong) to 1 (right); None without a verdict.

    True, False, numpy's bools and real numbers from 0 to 1 are allowed; TypeError for anything else.
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
    # Compare by name: workers must not import numpy needlessly. The type was called bool_ before numpy 2.
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
