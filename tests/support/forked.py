"""Processes that are forked from one that has imported torch, where a test needs several: starting Python takes 5 s."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

# Imported only: the server has one thread and has computed nothing when it forks.
_IMPORTED = (
    "scalerl.cli.train",
    "scalerl.training.run.run",
    "transformers.models.llama.modeling_llama",
    "torch.distributed.fsdp",
)


def context(*more: str) -> ForkServerContext:
    """Return where such processes are started; the server starts with the first and ends with the tests.

    It imports `more` too, if it is not running yet.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([*_IMPORTED, *more])
    forkserver.ensure_running()
    return server


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


def children(monkeypatch: Any, *more: str) -> None:
    """Let objects in child processes (training/remote/child.py) start in such processes, which have imported `more`."""
    context(*more)
    monkeypatch.setattr("scalerl.training.remote.child.start_process", Child)


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
    from scalerl.training.remote.child import serve

    os.setsid()
    os.environ.update(variables)
    tempfile.tempdir = None  # it is looked up again, in these variables
    # A tracker of its own, which removes the shared memory of a child that was killed; that of the server does not end.
    resource_tracker._resource_tracker.__init__()
    serve(connection)
