"""What one recipe changes against another, for studies that plan arms and reports that read them back."""

from collections.abc import Mapping
from typing import Any

PER_RUN = ("description", "seed")  # settings in which runs of one arm may differ


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two recipes differ, by dotted key: (old value, new value), None if there is none.

    Seed and description are left out, since they differ between runs of one arm.
    """
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in PER_RUN]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
