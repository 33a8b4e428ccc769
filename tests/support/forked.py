"""Processes that are forked from one that has imported torch, where a test needs several: starting Python takes 5 s."""

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch


def serve_from_here() -> None:
    """Fork the server from this process, before its first test; processes that are forked later use it too.

    The one of Python would be started anew by each of them and import everything again.
    """
    server: Any = forkserver._forkserver
    # Semaphores of the processes that tests kill are removed in the end, which is not worth a warning.
    with patch.dict(os.environ, PYTHONWARNINGS="ignore"):
        resource_tracker.ensure_running()
    alive, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address := f"\0scalerl tests {os.getpid()}")
        listener.listen()
        if not os.fork():
            os.close(ours)
            try:
                _as_started()
                forkserver.main(os.dup(listener.fileno()), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    server._forkserver_address, server._forkserver_alive_fd = address, ours
    server.ensure_running = resource_tracker.ensure_running


def _as_started() -> None:
    """Undo what pytest has set up in this process."""
    warnings.resetwarnings()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)


def context() -> ForkServerContext:
    """Return where such processes are started; the server ends with the tests."""
    return multiprocessing.get_context("forkserver")


def start(words: list[str], *, output: Path, prepare: Callable[[], object] | None = None) -> ForkServerProcess:
    """Start `scalerl` with these words; `prepare` is called first, in that process."""
    process = context().Process(target=_run, args=(words, output, prepare))
    process.start()
    return process


def _run(words: list[str], output: Path, prepare: Callable[[], object] | None) -> None:
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare:
        prepare()
    from scalerl.cli import main

    sys.argv = ["scalerl", *words]
    main()


def children(monkeypatch: Any) -> None:
    """Let objects in child processes (scalerl.remote.child) start in such processes."""
    monkeypatch.setattr("scalerl.remote.child.start_process", Child)


class Child:
    """As much of subprocess.Popen as is used of a child."""

    def __init__(self, python: str, connection: Connection, variables: Mapping[str, str], log: Any) -> None:
        self._process = context().Process(target=_serve, args=(connection, dict(variables)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _serve(connection: Connection, variables: dict[str, str]) -> None:
    from scalerl.remote.child import serve

    os.setsid()
    os.environ.update(variables)
    serve(connection)
