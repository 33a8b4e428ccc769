"""Run tests in several processes: `pytest --workers 3`.

They are forked from the process that collected the tests. So torch is imported and tests are collected once, not once
a process, and what a test needs forked from a clean process (support/forked.py) costs no import either.
"""

import atexit
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import forked
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; without it, tests run in one process."""
    parser.addoption("--workers", type=int, default=0, help="run tests in this many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in workers; None where pytest's own loop is to go on."""
    num = min(int(session.config.getoption("workers") or 0), len(session.items))
    if session.config.option.collectonly or session.testsfailed:
        return None
    forked.serve_from_here()
    if num < 1:
        return None
    _Run(session).run(num)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Schedule:
    """Which test a worker runs next: those of one part in order, since they share fixtures; parts in order.

    A worker without a part of its own takes over half of what is left of the longest, except of those in `whole`.
    """

    def __init__(self, parts: dict[str, list[int]], whole: Iterable[str] = ()) -> None:
        self._waiting = deque((name, deque(part)) for name, part in parts.items())
        self._taken: dict[object, tuple[str, deque[int]]] = {}
        self._whole = set(whole)

    def after(self, worker: object) -> int | None:
        """Return the test that a worker runs after those that it was given; None at the end."""
        name, mine = self._taken.get(worker, ("", deque[int]()))
        if not mine:
            name, mine = self._waiting.popleft() if self._waiting else self._half_of_the_longest()
            self._taken[worker] = name, mine
        return mine.popleft() if mine else None

    def give_back(self, worker: object, tests: Iterable[int]) -> None:
        """Let others run what a lost worker was given, and the rest of its part."""
        name, mine = self._taken.pop(worker)
        self._waiting.appendleft((name, deque([*tests, *mine])))

    def _half_of_the_longest(self) -> tuple[str, deque[int]]:
        divisible = [taken for taken in self._taken.values() if taken[0] not in self._whole]
        name, longest = max(divisible, key=lambda taken: len(taken[1]), default=("", deque[int]()))
        half = [longest.pop() for _ in range((len(longest) + 1) // 2)]
        return name, deque(reversed(half))


class _Run:
    def __init__(self, session: pytest.Session) -> None:
        session.config._tmp_path_factory.getbasetemp()  # pyright: ignore[reportAttributeAccessIssue]
        self._session, self._hook = session, session.config.hook
        parts, whole = dict[str, list[int]](), set[str]()
        # Whole commands are tested at the top of the tests. They take longest, so they are begun first.
        for number, item in sorted(enumerate(session.items), key=lambda each: len(each[1].path.parts)):
            mark = item.get_closest_marker("one_process")
            name = str(mark.args[0] if mark else item.path)
            parts.setdefault(name, []).append(number)
            whole |= {name} if mark else set()
        self._schedule = Schedule(parts, whole)
        self._given: dict[Connection, deque[int]] = {}
        """The test that a worker runs, and the one after it, which says what fixtures stay."""
        self._pids: dict[Connection, int] = {}
        self._num_started = 0

    def run(self, num: int) -> None:
        try:
            for _ in range(num):
                self._start()
            while self._given:
                for connection in wait(list(self._given), timeout=1.0):
                    assert isinstance(connection, Connection)
                    self._receive(connection)
                # Not by the end of the connection: what a worker has started may keep it open.
                for connection, pid in list(self._pids.items()):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        self._finish(connection, os.waitstatus_to_exitcode(status))
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._num_started += 1
        if not (pid := os.fork()):
            try:
                ours.close()
                for other in self._pids:
                    other.close()
                _work(self._session, self._num_started, theirs)
                atexit._run_exitfuncs()
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        theirs.close()
        self._pids[ours], self._given[ours] = pid, deque()
        self._give(ours)
        self._give(ours)

    def _give(self, connection: Connection) -> None:
        stops = self._session.shouldfail or self._session.shouldstop
        test = None if stops else self._schedule.after(connection)
        if test is not None:
            self._given[connection].append(test)
        with suppress(ConnectionError):
            connection.send(test)

    def _receive(self, connection: Connection) -> bool:
        """Take a report, or that a test is over; return whether anything came."""
        try:
            message = connection.recv()
        except (EOFError, ConnectionError):
            return False
        if message is not None:
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=message)
            self._hook.pytest_runtest_logreport(report=report)
            return True
        given = self._given[connection]
        item = self._session.items[given.popleft()]
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if given:
            self._give(connection)
        return True

    def _finish(self, connection: Connection, code: int) -> None:
        """Read the last words of a worker that has ended. If it was running a test, that test has failed."""
        while connection.poll() and self._receive(connection):
            pass
        given = self._given.pop(connection)
        del self._pids[connection]
        connection.close()
        if not given:
            return
        item = self._session.items[given.popleft()]
        ended = f"the process of this test ended with {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", ended, "call")
        self._hook.pytest_runtest_logreport(report=report)
        self._schedule.give_back(connection, given)
        self._start()


class _Reporter:
    """Takes the place of what writes to the terminal: it hands reports to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._tw = config.get_terminal_writer()  # of the terminal: stacks are written there when the time is up

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._connection.send(hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(session: pytest.Session, number: int, connection: Connection) -> None:
    """Run the tests whose numbers come in."""
    config: Any = session.config
    plugins = config.pluginmanager
    reporter = _Reporter(config, connection)
    plugins.unregister(name="terminalreporter")
    plugins.register(reporter, "terminalreporter")
    # What is printed goes to a file, and workers must not share its position.
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folder = config._tmp_path_factory.getbasetemp() / f"worker{number}"
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder
    test, following = connection.recv(), connection.recv()
    while test is not None:
        item = session.items[test]
        nextitem = None if following is None else session.items[following]
        config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        if following is None:
            # Garbage that is collected may hold an error, e.g. a file that was left open.
            call = pytest.CallInfo.from_call(lambda: config.hook.pytest_unconfigure(config=config), "teardown")
            if call.excinfo:
                reporter.pytest_runtest_logreport(pytest.TestReport.from_item_and_call(item, call))
        connection.send(None)
        test, following = following, None if following is None else connection.recv()
