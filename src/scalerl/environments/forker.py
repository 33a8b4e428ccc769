"""The process that environments are forked from, and what runs in each fork: one conversation, within limits.

    trainer --BEGIN, END--> forker --fork--> fork           trainer --turn (pickle)--> fork --reply (JSON)--> trainer

The forker imports an environment once and has one thread, so that a conversation begins with a fork of a few
milliseconds. Nothing in a fork is trusted: its replies are JSON of a bounded length, and it is killed with its process
group when it ends. Whatever left that group is killed at the latest with the forker.
"""

import contextlib
import dataclasses
import gc
import json
import os
import pickle
import select
import signal
import socket
import struct
from pathlib import Path
from typing import Any, NoReturn

from scalerl.config.parts import GradingSettings
from scalerl.environments.protocol import Session, Step
from scalerl.environments.start import EnvironmentSpec, Found, find
from scalerl.graders.workers import ADOPT_ORPHANS, kill_group, limit_process, set_option
from scalerl.import_path import one_line

ORDER = struct.Struct("!cQ")
"""What is to be done, and the number of the conversation; BEGIN comes with a descriptor."""
BEGIN, END, REPORT_END = b"B", b"E", b"R"
READY = b"+"
STATUS = struct.Struct("!i")
"""The wait status of a process, which REPORT_END is answered by."""

_CHECK_S = 1.0
"""How often to check that the trainer is alive, in case another process keeps its end of the socket open."""


def serve(file: int, parent: int, spec: EnvironmentSpec, limits: GradingSettings) -> None:
    """Fork and end conversations as ordered over the socket `file`, until the process `parent` closes it or ends."""
    # So that what a fork leaves behind becomes a child of this process.
    set_option(ADOPT_ORPHANS, 1)
    control = socket.socket(fileno=file)
    found = find(spec)
    # Forks share loaded memory until it is written to, as garbage collection would do.
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    pids: dict[int, int] = {}
    try:
        while os.getppid() == parent:
            if not select.select([control], [], [], _CHECK_S)[0]:
                continue
            order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1)
            if len(order) < ORDER.size:
                return
            kind, number = ORDER.unpack(order)
            if kind == BEGIN:
                pids[number] = _fork(control, socket.socket(fileno=descriptors[0]), found, limits)
            else:
                status = kill_group(pids.pop(number))
                if kind == REPORT_END:
                    control.sendall(STATUS.pack(status))
    finally:
        for pid in pids.values():
            kill_group(pid)
        _kill_orphans()


def _fork(control: socket.socket, end: socket.socket, found: Found, limits: GradingSettings) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            _converse(end, found, limits)
        finally:
            os._exit(1)
    # Both do this: whoever is first, the group exists before anything is to be killed.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    end.close()
    return pid


def _converse(end: socket.socket, found: Found, limits: GradingSettings) -> NoReturn:
    """Hold one conversation: a problem with a seed, then turns, then perhaps None, which closes the environment."""
    limit_process(limits.memory_limit_mb)
    turns, session, own_pid = end.makefile("rb"), None, os.getpid()
    for number in range(10**9):
        try:
            message = pickle.load(turns)
        except (EOFError, OSError):
            break
        # No handler: the system ends the process, even within a computation that never returns to Python.
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_limit_s)
        try:
            session, step = _take(message, session, found)
            reply: dict[str, Any] = {"step": dataclasses.asdict(step), "closes": session.closes}
        except BaseException as error:
            reply = {"reason": "memory" if isinstance(error, MemoryError) else "error", "error": one_line(error)}
            reply["closes"] = session is not None and session.closes
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if os.getpid() != own_pid:
            # A copy that the environment forked and that came back from its step.
            break
        end.sendall(json.dumps({"number": number, **reply}).encode() + b"\n")
    os._exit(0)


def _take(message: Any, session: Session | None, found: Found) -> tuple[Session, Step]:
    if session is None:
        session = found.session(*message)
        return session, session.opening
    if message is None:
        session.close()
        return session, Step(done=True)
    return session, session.step(message)


def _kill_orphans() -> None:
    """Kill all that forks have left behind, as far as the system says what that is."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    # What a killed one had started becomes a child of this process in turn.
    for _ in range(1000):
        pids = listed.read_text().split() if listed.exists() else []
        if not pids:
            return
        for pid in map(int, pids):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in map(int, pids):
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
