"""Signals and closed outputs in commands that train."""

import os
import signal
from collections.abc import Iterator

import pytest

from scalerl.cli.console import RunTerminal, ended_by_ctrl_c

pytestmark = pytest.mark.usefixtures("terminal_signals")


@pytest.fixture
def terminal() -> Iterator[RunTerminal]:
    shown = RunTerminal()
    with shown.running(lambda: ""):
        yield shown


def test_only_the_second_of_many_signals_interrupts(terminal: RunTerminal, monkeypatch: pytest.MonkeyPatch):
    clock_s = 100.0
    monkeypatch.setattr("scalerl.cli.console.time.monotonic", lambda: clock_s)
    signal.raise_signal(signal.SIGINT)
    assert (terminal.stopped_by, terminal.stopping()) == (signal.SIGINT, True)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    clock_s = 200.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("earlier", [None, signal.SIGPIPE])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_kills_soon_leaves_no_time_for_the_step(terminal: RunTerminal, number: int, earlier: int | None):
    terminal.stopped_by = earlier  # output that is gone does not count
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGHUP)  # the end of the terminal may be reported twice
    assert (terminal.stopped_by, terminal.stopping()) == (number, "now")


def test_log_file_gets_a_line_of_progress_now_and_then(
    terminal: RunTerminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock_s = 100.0
    monkeypatch.setattr("scalerl.cli.console.time.monotonic", lambda: clock_s)
    terminal.print("begun")
    terminal.show_bar("step {task.fields[step]}", total=50, step=0)
    for step in range(1, 51):
        clock_s += 0.9
        terminal.update(completed=step, step=step, description=f"train {step / 100:.2f}")
        if step == 20:
            terminal.print("evaluated")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "begun",
        "  step 12, 24%  train 0.12",
        "evaluated",
        "  step 32, 64%  train 0.32",
        "  step 44, 88%  train 0.44",
    ]


def test_run_started_with_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    terminal = RunTerminal()
    with terminal.running(lambda: ""):
        signal.raise_signal(signal.SIGHUP)
    assert terminal.stopped_by is None


def test_report_of_a_signal_may_fail_while_a_line_is_printed(terminal: RunTerminal, monkeypatch: pytest.MonkeyPatch):
    def reentrant(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    monkeypatch.setattr(terminal, "print", reentrant)
    signal.raise_signal(signal.SIGTERM)
    assert terminal.stopped_by == signal.SIGTERM


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
