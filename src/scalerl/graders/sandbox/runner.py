"""Run programs against their tests, each in its own sandbox; the one place that decides how a program did.

runner = Runner("bubblewrap")
runner.run(Program(code=...), Asserts(tests=...), RunLimits())      # -> Outcome
runner.close()
"""

import os
import select
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from scalerl.errors import SandboxError
from scalerl.graders.sandbox.box import Box, BoxDied, NotBegun
from scalerl.graders.sandbox.job import Asserts, Kind, Outcome, Program, RunLimits, Streams, Tests

_LONGEST_NUMBER = 100
_MOST_STARTS = 3


class Runner:
    """Two sandboxes: one for programs, one for tests. Runs one program at a time."""

    def __init__(self, isolation: str = "bubblewrap") -> None:
        """Choose "bubblewrap", or "none" for programs that have all rights of the user."""
        self._isolation = isolation
        self._boxes: tuple[Box, ...] = ()
        self.num_failed_starts = 0
        """How often a sandbox ended before a program began, which is no fault of the program."""

    def start(self) -> None:
        """Have everything ready for a first program. SandboxError says why that cannot be done."""
        if self._boxes:
            return
        self._boxes = (Box(self._isolation), Box(self._isolation))
        if self._isolation == "bubblewrap" and not self._boxes[0].has_filter:
            warnings.warn("system calls of programs are not filtered on this machine", stacklevel=2)

    def run(self, program: Program, tests: Tests, limits: RunLimits) -> Outcome:
        """Run a program. SandboxError if it could not be begun several times: then there is no verdict."""
        for attempt in range(1, _MOST_STARTS + 1):
            try:
                self.start()
                run = self._run_streams if isinstance(tests, Streams) else self._run_calls
                return run(program, tests, limits)  # type: ignore[arg-type]
            except (NotBegun, SandboxError) as error:
                self.close()
                self.num_failed_starts += 1
                if attempt == _MOST_STARTS:
                    raise SandboxError(f"no program could be begun in {attempt} sandboxes: {error}") from error
                warnings.warn(f"sandbox {self.num_failed_starts} ended before its program began: {error}", stacklevel=2)
            except BoxDied as error:
                # Whatever a program did to its sandbox, the next one gets a new one.
                self.close()
                return Outcome(kind="crash", num_checks=_num_checks(tests), detail=str(error))
        raise AssertionError

    def close(self) -> None:
        for box in self._boxes:
            box.close()
        self._boxes = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes in which sandboxes run."""
        return tuple(box.pid for box in self._boxes)

    def _run_calls(self, program: Program, tests: Tests, limits: RunLimits) -> Outcome:
        program_box, test_box = self._boxes
        programs_end, tests_end = socket.socketpair()
        with programs_end, tests_end:
            program_box.start(job_of("calls", limits, program), [programs_end.fileno()])
            test_box.start(_tests_job(tests, program, limits), [tests_end.fileno()])
        program_box.begun()
        test_box.begun()
        deadline = time.monotonic() + limits.timeout_s
        report = test_box.result(limits.timeout_s)
        is_late = time.monotonic() >= deadline
        # Both, whatever happens in between: the next program must find both sandboxes empty.
        program_ended, tests_ended = _ended_by_force(program_box, test_box)
        if report is None:
            over = _over_limit(program_ended, limits) or _over_limit(tests_ended, limits)
            return Outcome(kind="timeout" if is_late else over or "crash", num_checks=_num_checks(tests))
        if "tests" not in report:
            return Outcome(kind="bad_tests", detail=str(report.get("unusable")))
        return _judged(report["tests"], program_ended, limits)

    def _run_streams(self, program: Program, tests: Streams, limits: RunLimits) -> Outcome:
        left_s = limits.timeout_s
        kinds: list[Kind] = []
        for given, wanted in tests.cases:
            if left_s <= 0:
                kinds.append("timeout")
                continue
            output, kind, seconds = _run_script(self._boxes[0], program, given, limits, left_s)
            kinds.append(kind or ("passed" if same_output(output, wanted) else "failed"))
            left_s -= seconds
        faults: list[Kind] = [kind for kind in kinds if kind != "passed"]
        return Outcome(kind=faults[0] if faults else "passed", num_passed=kinds.count("passed"), num_checks=len(kinds))


def job_of(kind: str, limits: RunLimits, program: Program) -> dict[str, Any]:
    return {"kind": kind, "limits": _fields(limits), **_fields(program)}


def _tests_job(tests: Tests, program: Program, limits: RunLimits) -> dict[str, Any]:
    # Everything but the program itself: the tests must not depend on what it says.
    return {"kind": "tests", "limits": _fields(limits), "entry_point": program.entry_point, **_fields(tests)}


def _fields(value: Program | Tests | RunLimits) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _num_checks(tests: Tests) -> int:
    return len(tests.tests) if isinstance(tests, Asserts) else len(tests.cases)


def _ended_by_force(*boxes: Box) -> list[Mapping[str, Any]]:
    """End what runs in these sandboxes; return how each ended."""
    for box in boxes:
        box.order_end()
    ended = [box.ended() for box in boxes]
    if None in ended:
        raise BoxDied("it does not answer")
    return ended  # type: ignore[return-value]


def _judged(tests: list[tuple[int, int, str | None]], ended: Mapping[str, Any], limits: RunLimits) -> Outcome:
    """Return the outcome of tests that all ran: checks met, checks, and an error for each."""
    num_passed, num_checks = sum(test[0] for test in tests), sum(test[1] for test in tests)
    errors = [error for _, _, error in tests if error is not None]
    kind: Kind = "failed" if errors else "passed"
    if "ProgramGone" in errors:
        kind = _over_limit(ended, limits) or "crash"
    elif "MemoryError" in errors:
        kind = "memory"
    return Outcome(kind=kind, num_passed=num_passed, num_checks=num_checks, detail=(errors or [""])[0])


def _over_limit(ended: Mapping[str, Any], limits: RunLimits) -> Kind | None:
    """Return which limit ended a process, if one did."""
    if not os.WIFSIGNALED(ended["status"]):
        return None
    out_of_cpu = os.WTERMSIG(ended["status"]) == signal.SIGXCPU or ended["cpu_s"] >= limits.cpu_limit_s
    return "cpu" if out_of_cpu else None


def _run_script(
    box: Box, program: Program, given: str, limits: RunLimits, left_s: float
) -> tuple[bytes, Kind | None, float]:
    """Run a program once; return what it wrote, how it ended where that was not as it should, and its seconds."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as stdout:
        stdin = _read_only(given)
        try:
            box.start(job_of("script", limits, program), [stdin, theirs])
        finally:
            os.close(stdin)
            os.close(theirs)
        box.begun()
        began = time.monotonic()
        output, kind = _read(stdout.fileno(), began + left_s, limits.output_limit_kb * 1024)
        # It may have closed stdout itself and still be at work.
        ended = box.ended(began + left_s - time.monotonic()) if kind is None else None
        seconds = time.monotonic() - began
        if ended is None:
            _ended_by_force(box)
            return output, kind or "timeout", seconds
    if not ended["status"]:
        return output, None, seconds
    return output, _over_limit(ended, limits) or ("failed" if os.WIFEXITED(ended["status"]) else "crash"), seconds


def _read_only(text: str) -> int:
    """Return a descriptor of a file with this text that no longer has a name and cannot be written to."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode("utf-8", errors="surrogateescape"))
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def _read(descriptor: int, deadline: float, most: int) -> tuple[bytes, Kind | None]:
    """Return all that comes before the deadline, up to a number of bytes, and which limit it met."""
    received = bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while len(received) <= most:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poller.poll(1e3 * left_s):
            return bytes(received), "timeout"
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return bytes(received), None
        received += chunk
    return bytes(received), "output"


def same_output(output: bytes, wanted: str) -> bool:
    """Return whether a program wrote what it should: line by line, apart from spaces at the ends, numbers by value."""
    try:
        lines = output.decode().strip().split("\n")
    except UnicodeDecodeError:
        return False
    expected = wanted.strip().split("\n")
    return len(lines) == len(expected) and all(map(_same_line, lines, expected))


def _same_line(line: str, wanted: str) -> bool:
    if line.strip() == wanted.strip():
        return True
    parts, expected = line.split(), wanted.split()
    return len(parts) == len(expected) and all(map(_same_number, parts, expected))


def _same_number(text: str, wanted: str) -> bool:
    if text == wanted:
        return True
    if max(len(text), len(wanted)) > _LONGEST_NUMBER:
        return False
    try:
        return Decimal(text) == Decimal(wanted)
    except InvalidOperation:
        return False
