"""Signals and closed outputs in commands that train."""

import os
import signal
from collections.abc import Iterator

import pytest

from scalerl.cli.console import RunTerminal, StopSignals, ended_by_ctrl_c

pytestmark = pytest.mark.usefixtures("terminal_signals")


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    handled = StopSignals(lambda number: None)
    handled.install()
    yield handled
    handled.restore()


def test_only_the_second_of_many_signals_interrupts(signals: StopSignals):
    signal.raise_signal(signal.SIGINT)
    assert signals.number == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)


def test_signal_long_after_the_second_interrupts_again(signals: StopSignals, monkeypatch: pytest.MonkeyPatch):
    signal.raise_signal(signal.SIGINT)
    for clock_s in (100.0, 200.0):
        monkeypatch.setattr("scalerl.cli.console.time.monotonic", lambda clock_s=clock_s: clock_s)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_end_of_the_terminal_may_be_reported_twice(signals: StopSignals):
    for _ in range(2):
        signal.raise_signal(signal.SIGHUP)
    assert signals.number == signal.SIGHUP
    assert signals.stops_now


def test_signal_after_the_output_is_gone_still_leaves_time(signals: StopSignals):
    signals.number = signal.SIGPIPE
    signal.raise_signal(signal.SIGTERM)
    assert signals.number == signal.SIGTERM
    assert signals.stops_now


def test_run_started_with_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handled = StopSignals(lambda number: None)
    handled.install()
    signal.raise_signal(signal.SIGHUP)
    handled.restore()
    assert handled.number is None


def test_report_of_a_signal_may_fail_while_a_line_is_printed(signals: StopSignals, monkeypatch: pytest.MonkeyPatch):
    def reentrant(number: int) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    monkeypatch.setattr(signals, "_on_first", reentrant)
    signal.raise_signal(signal.SIGTERM)
    assert signals.number == signal.SIGTERM


def test_closed_pipe_asks_to_stop(monkeypatch: pytest.MonkeyPatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        terminal = RunTerminal()
        terminal.print("a line")
        terminal.print("another")
    assert terminal.stopped_by == signal.SIGPIPE
    assert terminal.stopping() is True


def test_ctrl_c_ends_imports_without_a_traceback():
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with ended_by_ctrl_c():
                signal.raise_signal(signal.SIGINT)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT


def test_ctrl_c_works_as_before_after_imports():
    with ended_by_ctrl_c():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
