"""What a runner is given and gives back: tests for a program, limits, and how it went."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one program may take with all of its tests; confine.py has the limits that nobody sets."""

    timeout_s: float = 6.0
    """Seconds on the wall, from its start to the last test's end."""
    cpu_limit_s: float = 4.0
    """Seconds of computing of one process; the kernel counts whole seconds."""
    memory_limit_mb: int = 512
    """Address space of one process, with the interpreter's own 50 MB."""


Kind = Literal["passed", "failed", "timeout", "cpu", "memory", "crash", "output", "no_program", "bad_tests"]
"""passed: every check was met. failed: the program ran, and some were not. timeout, cpu, memory, output: it went beyond
that limit. crash: its process ended before all tests did. no_program: the answer holds none. bad_tests: the tests
themselves cannot be used, so there is no verdict."""


KINDS: tuple[Kind, ...] = get_args(Kind)
STOPPED: tuple[Kind, ...] = ("timeout", "cpu", "memory", "output", "crash")
"""Programs that the sandbox ended, or that ended before their tests did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program did."""

    kind: Kind
    num_passed: int = 0
    num_checks: int = 0
    detail: str = ""
    """For people: an exception's name, what is wrong with the tests."""

    @property
    def correct(self) -> bool | None:
        """True where every check was met, None where the tests cannot be used."""
        return None if self.kind == "bad_tests" else self.kind == "passed"

    @property
    def share(self) -> float:
        """The share of checks met, 1 only where the program is correct."""
        return self.num_passed / self.num_checks if self.num_checks else 0.0


class BadTests(ValueError):
    """Tests cannot be used; one sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a code problem's `answer` holds: tests of either kind, and what else is needed to run a program."""

    asserts: tuple[str, ...] = ()
    """Pieces of Python that call what the program defines, and raise where it is wrong."""
    setup: str = ""
    """Code that the asserts need. It runs on their side: a program cannot replace what it defines."""
    streams: tuple[tuple[str, str], ...] = ()
    """Texts for the program's stdin, each with what it must write to stdout."""
    prefix: str = ""
    """Code that stands before the program, such as a prompt that ends inside a function; see program_side.assemble."""
    entry_point: str = ""
    """The function that is asked for, where its name is known."""
    names: tuple[str, ...] = ()
    """What else the program is asked to define. Any other name that tests use and do not define is a fault of theirs;
    where neither this nor the entry point is known, it is the program's."""
    solution: str = field(default="", compare=False)

    @property
    def num_tests(self) -> int:
        return len(self.asserts) + len(self.streams)

    @classmethod
    def of_calls(cls, function: str, cases: Iterable[tuple[Sequence[Any], Any]], *, solution: str = "") -> "Reference":
        """Return the tests that a function returns certain values for certain arguments; all as JSON values."""
        asserts = tuple(
            f"assert _as_json(candidate(*_loads({json.dumps(given)!r}))) == _loads({json.dumps(value)!r})"
            for given, value in cases
        )
        return cls(asserts=asserts, setup=_AS_JSON, entry_point=function, solution=solution)

    def to_text(self) -> str:
        """Return the reference as the text of a problem's answer; the solution is left out."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "solution"})

    @staticmethod
    def from_text(text: str) -> "Reference":
        """Return the reference that `to_text` wrote. BadTests where the text is something else."""
        try:
            values = json.loads(text)
            asserts, names = (tuple(map(str, values.pop(name, ()))) for name in ("asserts", "names"))
            pairs = tuple((str(given), str(wanted)) for given, wanted in values.pop("streams"))
            others = {name: str(value) for name, value in values.items()}
            made = Reference(asserts=asserts, names=names, streams=pairs, **others)
            if made.num_tests:
                return made
            raise ValueError("there are no tests")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadTests(f"the reference is not a set of tests: {type(error).__name__}: {error}") from None


_AS_JSON = """
from json import loads as _loads


def _as_json(value):
    # What is written in JSON has no tuples.
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return {key: _as_json(item) for key, item in value.items()} if isinstance(value, dict) else value
"""
