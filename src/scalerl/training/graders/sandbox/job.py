"""The values that a runner takes and returns: tests of a program, limits, and the outcome."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of one program with all of its tests; confine.py has the fixed limits."""

    timeout_s: float = 6.0
    """Seconds from the start of the program to the end of the last test, without waits for a core."""
    cpu_limit_s: float = 4.0
    """CPU seconds of one process; the kernel counts whole seconds."""
    memory_limit_mb: int = 512
    """Address space of one process, including 50 MB for the interpreter."""


Kind = Literal["passed", "failed", "timeout", "cpu", "memory", "crash", "output", "no_program", "bad_tests"]
"""passed: all checks succeeded. failed: the program ran, but some checks failed. timeout, cpu, memory, output: it
exceeded this limit. crash: its process ended before the tests. no_program: the answer contains no program. bad_tests:
the tests are unusable, so there is no verdict."""


KINDS: tuple[Kind, ...] = get_args(Kind)
STOPPED: tuple[Kind, ...] = ("timeout", "cpu", "memory", "output", "crash")
"""Outcomes of programs that the sandbox ended, or that ended before their tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of running a program."""

    kind: Kind
    num_passed: int = 0
    num_checks: int = 0
    detail: str = ""
    """Details for people: the name of an exception, or what is wrong with the tests."""

    @property
    def correct(self) -> bool | None:
        """True if all checks succeeded; None if the tests are unusable."""
        return None if self.kind == "bad_tests" else self.kind == "passed"

    @property
    def share(self) -> float:
        """The share of checks that succeeded; 1 only if the program is correct."""
        return self.num_passed / self.num_checks if self.num_checks else 0.0


class BadTests(ValueError):
    """Tests are unusable; the message says why in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The content of a code problem's `answer`: tests of either kind, and what is needed to run a program."""

    asserts: tuple[str, ...] = ()
    """Pieces of Python that call functions of the program, and raise an error if it is wrong."""
    setup: str = ""
    """Code that the asserts need. It runs in their process, so a program cannot replace its definitions."""
    streams: tuple[tuple[str, str], ...] = ()
    """Pairs of a text for stdin and the text that the program must write to stdout."""
    prefix: str = ""
    """Code before the program, such as a prompt that ends inside a function; see program_side.assemble."""
    entry_point: str = ""
    """Name of the function to be written, if it is known."""
    names: tuple[str, ...] = ()
    """Other names that the program must define. If tests use any other undefined name, the tests are at fault; if
    neither these nor the entry point are known, the program is."""
    solution: str = field(default="", compare=False)

    @property
    def num_tests(self) -> int:
        return len(self.asserts) + len(self.streams)

    @classmethod
    def of_calls(cls, function: str, cases: Iterable[tuple[Sequence[Any], Any]], *, solution: str = "") -> "Reference":
        """Return tests that a function returns the given values for the given arguments, all as JSON values."""
        asserts = tuple(
            f"assert _as_json(candidate(*_loads({json.dumps(given)!r}))) == _loads({json.dumps(value)!r})"
            for given, value in cases
        )
        return cls(asserts=asserts, setup=_AS_JSON, entry_point=function, solution=solution)

    def to_text(self) -> str:
        """Return the reference, without its solution, as the text of a problem's answer."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "solution"})

    @staticmethod
    def from_text(text: str) -> "Reference":
        """Return the reference from a text of `to_text`; BadTests if the text is anything else."""
        try:
            values = json.loads(text)
            asserts = tuple(str(test) for test in values.pop("asserts", ()))
            names = tuple(str(name) for name in values.pop("names", ()))
            streams = tuple((str(given), str(wanted)) for given, wanted in values.pop("streams"))
            others = {name: str(value) for name, value in values.items()}
            made = Reference(asserts=asserts, names=names, streams=streams, **others)
            if made.num_tests:
                return made
            raise ValueError("there are no tests")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadTests(f"the reference is not a set of tests: {type(error).__name__}: {error}") from None


_AS_JSON = """
from json import loads as _loads


def _as_json(value):
    # JSON has no tuples.
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return {key: _as_json(item) for key, item in value.items()} if isinstance(value, dict) else value
"""
