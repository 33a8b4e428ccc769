"""Run programs against their tests, each in its own sandbox; the one place that decides how a program did.

runner = ISOLATIONS["bubblewrap"]()
runner.run(Program(code=...), Asserts(tests=...), RunLimits())      # -> Outcome
runner.close()

Another isolation (a container, a service elsewhere) is another function in ISOLATIONS that returns a Runner.
"""

import os
import select
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from scalerl.graders.sandbox.box import Box, BoxDied
from scalerl.graders.sandbox.job import Asserts, Kind, Outcome, Program, RunLimits, Streams, Tests
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive

_LONGEST_NUMBER = 100


class Runner(Protocol):
    """What runs programs. One program at a time; any number of runners may work side by side."""

    def start(self) -> None:
        """Have everything ready for a first program. SandboxError says why that cannot be done."""
        ...

    def run(self, program: Program, tests: Tests, limits: RunLimits) -> Outcome: ...

    def close(self) -> None: ...


class LocalRunner:
    """Two sandboxes on this machine: one for programs, one for tests. Both are started when first needed."""

    def __init__(self, isolation: str) -> None:
        self._isolation = isolation
        self._boxes: dict[str, Box] = {}

    def start(self) -> None:
        for side in ("program", "tests"):
            self._box(side)

    def run(self, program: Program, tests: Tests, limits: RunLimits) -> Outcome:
        # Starting a sandbox is not the program's time.
        self.start()
        deadline = time.monotonic() + limits.timeout_s
        try:
            if isinstance(tests, Streams):
                return self._run_streams(program, tests, limits, deadline)
            return self._run_calls(program, tests, limits, deadline)
        except BoxDied as error:
            # Whatever a program did to its sandbox, the next one gets a new one.
            self.close()
            return Outcome(kind="crash", num_checks=_num_checks(tests), detail=str(error))

    def close(self) -> None:
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes in which sandboxes run."""
        return tuple(box.pid for box in self._boxes.values())

    def _box(self, side: str) -> Box:
        if side not in self._boxes:
            self._boxes[side] = Box(self._isolation)
            if self._isolation == "bubblewrap" and not self._boxes[side].has_filter:
                warnings.warn("system calls of programs are not filtered on this machine", stacklevel=2)
        return self._boxes[side]

    def _run_calls(self, program: Program, tests: Tests, limits: RunLimits, deadline: float) -> Outcome:
        program_box, test_box = self._box("program"), self._box("tests")
        programs_end, tests_end = socket.socketpair()
        results, results_end = socket.socketpair()
        with results:
            with programs_end, tests_end, results_end:
                program_box.run(_job("calls", limits, program), [programs_end.fileno()])
                test_box.run(_tests_job(tests, program, limits), [tests_end.fileno(), results_end.fileno()])
            try:
                report = _receive_by(results, deadline)
            finally:
                # Both, whatever happens in between: the next program must find both sandboxes empty.
                program_box.order_end()
                test_box.order_end()
                program_status, test_status = program_box.ended()["status"], test_box.ended()["status"]
        if report is not None and "tests" in report:
            return _judged(report["tests"], program_status)
        if report is not None:
            return Outcome(kind="bad_tests", detail=str(report.get("unusable")))
        is_late = time.monotonic() >= deadline
        kind = "timeout" if is_late else _ending(program_status, _ending(test_status, "crash"))
        return Outcome(kind=kind, num_checks=_num_checks(tests))

    def _run_streams(self, program: Program, tests: Streams, limits: RunLimits, deadline: float) -> Outcome:
        box = self._box("program")
        num_passed, first_kind = 0, None
        for given, wanted in tests.cases:
            kind: Kind = "timeout"
            if time.monotonic() < deadline:
                output, ending = _run_script(box, program, given, limits, deadline)
                kind = ending or ("passed" if same_output(output, wanted) else "failed")
            num_passed += kind == "passed"
            first_kind = first_kind or (kind if kind != "passed" else None)
        return Outcome(kind=first_kind or "passed", num_passed=num_passed, num_checks=len(tests.cases))


def _job(kind: str, limits: RunLimits, program: Program) -> dict[str, Any]:
    return {"kind": kind, "limits": asdict(limits), **asdict(program)}


def _tests_job(tests: Tests, program: Program, limits: RunLimits) -> dict[str, Any]:
    # Everything but the program itself: the tests must not depend on what it says.
    return {"kind": "tests", "limits": asdict(limits), "entry_point": program.entry_point, **asdict(tests)}


def _num_checks(tests: Tests) -> int:
    return len(tests.tests) if isinstance(tests, Asserts) else len(tests.cases)


def _receive_by(end: socket.socket, deadline: float) -> Any:
    """Return the message that arrives before the deadline, else None."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        return None
    end.settimeout(left_s)
    try:
        return receive(end)
    except (OSError, Closed, BadMessage):
        return None


def _judged(tests: list[list[Any]], program_status: int | None) -> Outcome:
    """Return the outcome of tests that all ran: [least number of checks, passed, failed, error] for each."""
    num_passed = num_checks = 0
    errors = []
    for least, passed, failed, error in tests:
        if error is None and not failed:
            num_passed += max(least, passed)
            num_checks += max(least, passed)
            continue
        num_passed += passed
        num_checks += max(least, passed + failed + (error is not None))
        errors.append(error or "AssertionError")
    if not errors:
        return Outcome(kind="passed", num_passed=num_passed, num_checks=num_checks)
    kind: Kind = "memory" if "MemoryError" in errors else "failed"
    if "ProgramGone" in errors:
        kind = _ending(program_status, "crash")
    return Outcome(kind=kind, num_passed=num_passed, num_checks=num_checks, detail=errors[0])


def _ending(status: int | None, otherwise: Kind) -> Kind:
    """Return which limit ended a process, by its wait status."""
    if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return "cpu"
    return otherwise


def _run_script(
    box: Box, program: Program, given: str, limits: RunLimits, deadline: float
) -> tuple[bytes, Kind | None]:
    """Run a program once; return what it wrote, and how it ended where that was not as it should."""
    ours, theirs = os.pipe()
    try:
        with _file_with(given) as stdin:
            box.run(_job("script", limits, program), [stdin.fileno(), theirs])
        os.close(theirs)
        theirs = -1
        output, kind = _read_by(ours, deadline, limits.output_limit_kb * 1024)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
        # Where it has closed stdout itself it may still be at work: there is no more to be had from it.
        box.order_end()
        status = box.ended()["status"]
    if kind is not None:
        return output, kind
    if status is None or status == 0:
        return output, None
    return output, _ending(status, "failed" if os.WIFEXITED(status) else "crash")


def _file_with(text: str) -> Any:
    opened = tempfile.TemporaryFile()  # noqa: SIM115
    opened.write(text.encode("utf-8", errors="surrogateescape"))
    opened.flush()
    opened.seek(0)
    return opened


def _read_by(descriptor: int, deadline: float, most: int) -> tuple[bytes, Kind | None]:
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


ISOLATIONS: Mapping[str, Callable[[], Runner]] = {
    "bubblewrap": lambda: LocalRunner("bubblewrap"),
    "none": lambda: LocalRunner("none"),
}
