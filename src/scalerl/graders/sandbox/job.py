"""What a runner is given and gives back: a program, its tests, limits, and how it went."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a model wrote."""

    code: str
    prefix: str = ""
    """Code that stands before it, such as a prompt that ends inside a function; see program_side.assemble."""
    entry_point: str = ""
    """The function that is asked for, where its name is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asserts:
    """Pieces of Python that call what the program defines, and raise where it is wrong."""

    tests: tuple[str, ...]
    setup: str = ""
    """Code that the tests need. It runs on their side: a program cannot replace what it defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Arguments of one function, each with the value it must return; all as JSON values."""

    function: str
    cases: tuple[tuple[Sequence[Any], Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Texts for the program's stdin, each with what it must write to stdout."""

    cases: tuple[tuple[str, str], ...]


Tests = Asserts | Calls | Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one program may take with all of its tests."""

    timeout_s: float = 6.0
    """Seconds on the wall, from its start to the last test's end."""
    cpu_limit_s: float = 4.0
    """Seconds of computing of one process; the kernel counts whole seconds."""
    memory_limit_mb: int = 512
    """Address space of one process, with the interpreter's own 50 MB."""
    output_limit_kb: int = 1024
    """What it may write to stdout in one case."""
    file_size_mb: int = 16
    num_files: int = 64
    """Open at the same time."""
    num_processes: int = 64
    """Threads and processes, where a system call filter does not forbid new processes anyway."""


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
    """What a code problem's `answer` holds: the tests, and what else is needed to run a program against them."""

    tests: Tests
    prefix: str = ""
    entry_point: str = ""
    solution: str = field(default="", compare=False)

    def to_text(self) -> str:
        """Return the reference as the text of a problem's answer; the solution is left out."""
        kind = {Asserts: "asserts", Calls: "calls", Streams: "streams"}[type(self.tests)]
        tests = {name: getattr(self.tests, name) for name in self.tests.__slots__}
        return json.dumps({"kind": kind, "prefix": self.prefix, "entry_point": self.entry_point, **tests})

    @staticmethod
    def from_text(text: str) -> "Reference":
        """Return the reference that `to_text` wrote. BadTests where the text is something else."""
        try:
            values = json.loads(text)
            return Reference(
                tests=_TESTS[values["kind"]](values),
                prefix=str(values.get("prefix", "")),
                entry_point=str(values.get("entry_point", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadTests(f"the reference is not a set of tests: {type(error).__name__}: {error}") from None


def _asserts(values: Mapping[str, Any]) -> Tests:
    return Asserts(tests=tuple(map(str, _some(values["tests"]))), setup=str(values.get("setup", "")))


def _calls(values: Mapping[str, Any]) -> Tests:
    cases = tuple((list(arguments), expected) for arguments, expected in _some(values["cases"]))
    return Calls(function=str(values["function"]), cases=cases)


def _streams(values: Mapping[str, Any]) -> Tests:
    return Streams(cases=tuple((str(given), str(wanted)) for given, wanted in _some(values["cases"])))


def _some(tests: Any) -> Any:
    if not isinstance(tests, list) or not tests:
        raise ValueError("there are no tests")
    return tests


_TESTS = {"asserts": _asserts, "calls": _calls, "streams": _streams}
