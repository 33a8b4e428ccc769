"""What a grader returns, read as one number. Standard library only: processes that grade import this."""

import numbers
from typing import Any


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
