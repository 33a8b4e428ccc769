"""Run programs against their tests, each in its own sandbox, and decide the outcome.

runner = Runner()
runner.run("def f(x): return x", Reference(asserts=("assert f(1) == 1",)), RunLimits())      # -> Outcome
runner.close()
"""

import os
import signal
import socket
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any

from scalerl.errors import SandboxError
from scalerl.processes import TimeLimit
from scalerl.training.graders.sandbox.box import Box, BoxDied, NotBegun, can_read
from scalerl.training.graders.sandbox.job import Kind, Outcome, Reference, RunLimits

_LONGEST_NUMBER = 100
_MOST_STARTS = 3
_MOST_OUTPUT = 2**20
"""Largest number of bytes that a program may write to stdout in one case."""


class Runner:
    """Two sandboxes: one for programs, one for tests. Runs one program at a time."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._boxes: tuple[Box, ...] = ()

    def start(self) -> None:
        """Prepare everything for the first program; SandboxError if that fails."""
        if os.getpid() != self._owner:
            # A fork has a copy of the runner, but its sandboxes belong to the parent.
            self._boxes = ()
            self._owner = os.getpid()
        self._boxes = self._boxes or (Box(), Box())

    def run(self, code: str, reference: Reference, limits: RunLimits) -> Outcome:
        """Run a program; SandboxError, and so no verdict, if it could not be started after several attempts."""
        for attempt in range(1, _MOST_STARTS + 1):
            try:
                self.start()
                run = self._run_streams if reference.streams else self._run_asserts
                return run(code, reference, limits)
            except (NotBegun, SandboxError) as error:
                self.close()
                if attempt == _MOST_STARTS:
                    raise SandboxError(f"a program could not be started in {attempt} sandboxes: {error}") from error
                warnings.warn(f"a sandbox ended before its program began: {error}", stacklevel=2)
            except BoxDied as error:
                # A program may have damaged its sandbox, so the next one gets a new one.
                self.close()
                return Outcome(kind="crash", num_checks=reference.num_tests, detail=str(error))
            except BaseException:
                # What the sandboxes still answer is of this program: the next one must not be graded by it.
                self.close()
                raise
        raise AssertionError

    def close(self) -> None:
        for box in self._boxes:
            box.close()
        self._boxes = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the sandboxes' processes."""
        return tuple(box.pid for box in self._boxes)

    def _run_asserts(self, code: str, reference: Reference, limits: RunLimits) -> Outcome:
        program_box, test_box = self._boxes
        programs_end, tests_end = socket.socketpair()
        # Tests get everything but the program: they must not depend on its source.
        tests = {
            "setup": reference.setup,
            "asserts": reference.asserts,
            "entry_point": reference.entry_point,
            "names": reference.names,
        }
        with programs_end, tests_end:
            program_box.start(program_job("calls", code, reference, limits), [programs_end.fileno()])
            test_box.start({"kind": "tests", "limits": asdict(limits), **tests}, [tests_end.fileno()])
        program_box.begun()
        test_box.begun()
        limit = TimeLimit(limits.timeout_s, program_box.pid, test_box.pid)
        report = test_box.result(limit)
        is_late = limit.left_s() <= 0
        # End both in any case: the next program must find both sandboxes empty.
        over: list[Kind | None] = [_over_limit(each, limits) for each in _ended_by_force(program_box, test_box)]
        if report is None:
            stopped: Kind = "timeout" if is_late else over[0] or over[1] or "crash"
            return Outcome(kind=stopped, num_checks=reference.num_tests)
        summaries = _summaries(report, len(reference.asserts))
        if summaries is None:
            return Outcome(kind="bad_tests", detail=_fault_of(report))
        num_passed = sum(num_met for num_met, _, _ in summaries)
        num_checks = sum(num for _, num, _ in summaries)
        faults = [error for _, _, error in summaries if error is not None]
        kind: Kind = "failed" if faults else "passed"
        if "ProgramGone" in faults:
            kind = over[0] or "crash"
        elif "MemoryError" in faults:
            kind = "memory"
        return Outcome(kind=kind, num_passed=num_passed, num_checks=num_checks, detail=faults[0] if faults else "")

    def _run_streams(self, code: str, reference: Reference, limits: RunLimits) -> Outcome:
        left_s = limits.timeout_s
        kinds: list[Kind] = []
        for given, wanted in reference.streams:
            if left_s <= 0:
                kinds.append("timeout")
                continue
            job = program_job("script", code, reference, limits)
            output, kind, seconds = _run_script(self._boxes[0], job, given, limits, left_s)
            kinds.append(kind or ("passed" if same_output(output, wanted) else "failed"))
            left_s -= seconds
        faults: list[Kind] = [kind for kind in kinds if kind != "passed"]
        return Outcome(kind=faults[0] if faults else "passed", num_passed=kinds.count("passed"), num_checks=len(kinds))


def program_job(kind: str, code: str, reference: Reference, limits: RunLimits) -> dict[str, Any]:
    given = {"code": code, "prefix": reference.prefix, "entry_point": reference.entry_point}
    return {"kind": kind, "limits": asdict(limits), **given}


def _summaries(report: Any, num: int) -> list[tuple[int, int, str | None]] | None:
    """Return the checks met, the checks and the error of each of `num` tests; None if the tests have none to report.

    The code of the tests can send any report.
    """
    tests = report.get("tests") if isinstance(report, dict) else None
    if not isinstance(tests, list) or len(tests) != num:
        return None
    if not all(_is_summary(test) for test in tests):
        return None
    return [tuple(test) for test in tests]


def _is_summary(test: Any) -> bool:
    if not isinstance(test, list) or len(test) != 3:
        return False
    num_met, num_checks, error = test
    if type(num_met) is not int or type(num_checks) is not int or not isinstance(error, str | None):
        return False
    return 0 <= num_met <= num_checks and (num_met == num_checks) == (error is None)


def _fault_of(report: Any) -> str:
    unusable = report.get("unusable") if isinstance(report, dict) else None
    return unusable if isinstance(unusable, str) else "they sent a report of their own"


def _ended_by_force(*boxes: Box) -> list[Mapping[str, Any]]:
    """End the jobs in these sandboxes; return how each ended."""
    for box in boxes:
        box.order_end()
    ended = [box.ended() for box in boxes]
    if None in ended:
        raise BoxDied("it does not answer")
    return ended  # type: ignore[return-value]


def _over_limit(ended: Mapping[str, Any], limits: RunLimits) -> Kind | None:
    """Return the limit that ended a process, or None."""
    if not os.WIFSIGNALED(ended["status"]):
        return None
    out_of_cpu = os.WTERMSIG(ended["status"]) == signal.SIGXCPU or ended["cpu_s"] >= limits.cpu_limit_s
    return "cpu" if out_of_cpu else None


def _run_script(
    box: Box, job: Mapping[str, Any], given: str, limits: RunLimits, left_s: float
) -> tuple[bytes, Kind | None, float]:
    """Run a program once; return its output, the kind of failure or None, and the seconds it took."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as stdout:
        stdin = _read_only(given)
        try:
            box.start(job, [stdin, write_end])
        finally:
            os.close(stdin)
            os.close(write_end)
        box.begun()
        limit = TimeLimit(left_s, box.pid)
        output, kind = _read(stdout.fileno(), limit)
        # It may have closed stdout and still be running.
        ended = box.ended(limit.left_s()) if kind is None else None
        seconds = left_s - limit.left_s()
        if ended is None:
            _ended_by_force(box)
            return output, kind or "timeout", seconds
    if not ended["status"]:
        return output, None, seconds
    return output, _over_limit(ended, limits) or ("failed" if os.WIFEXITED(ended["status"]) else "crash"), seconds


def _read_only(text: str) -> int:
    """Return a descriptor of an unnamed, read-only file with this text."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode("utf-8", errors="surrogateescape"))
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def _read(descriptor: int, limit: TimeLimit) -> tuple[bytes, Kind | None]:
    """Return all bytes read in time, up to a limit, and the kind of limit that was reached, if any."""
    received = bytearray()
    while len(received) <= _MOST_OUTPUT:
        if not can_read(descriptor, limit):
            return bytes(received), "timeout"
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return bytes(received), None
        received += chunk
    return bytes(received), "output"


def same_output(output: bytes, wanted: str) -> bool:
    """Compare output with the expected text by line, ignoring spaces at the ends, and numbers by value."""
    try:
        lines = output.decode().strip().split("\n")
    except UnicodeDecodeError:
        return False
    expected = wanted.strip().split("\n")
    if len(lines) != len(expected):
        return False
    return all(_same_line(line, other) for line, other in zip(lines, expected, strict=True))


def _same_line(line: str, wanted: str) -> bool:
    words = line.split()
    expected = wanted.split()
    if len(words) != len(expected):
        return False
    return all(_same_word(word, other) for word, other in zip(words, expected, strict=True))


def _same_word(text: str, wanted: str) -> bool:
    if text == wanted or max(len(text), len(wanted)) > _LONGEST_NUMBER:
        return text == wanted
    try:
        return Decimal(text) == Decimal(wanted)
    except InvalidOperation:
        return False
