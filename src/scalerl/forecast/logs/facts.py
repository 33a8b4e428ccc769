"""What was decided about a log that the user did not ask for: each decision is a `Fact`, a kind with its values.

Code reads the kind and the values. They become English in `forecast/report/words.py`, as everything that is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One decision, or one thing worth knowing, about a log."""

    kind: str
    """What is said of it stands under this name in the table of sentences."""
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.values}


def fact(kind: str, **values: Any) -> Fact:
    return Fact(kind=kind, values=values)


def facts_of(kind: str, **values: Any) -> tuple[Fact, ...]:
    """Return a fact alone in a tuple; none where its first value is 0 or empty, since there is nothing to say."""
    return (fact(kind, **values),) if next(iter(values.values())) else ()
