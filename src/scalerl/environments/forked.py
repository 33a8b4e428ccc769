"""Environments in processes of their own, one per conversation: a step that hangs, crashes or lies costs one verdict.

Limits are those of [grading]: seconds, seconds of CPU time, and memory. They apply to each step. forker.py has the
other side.
"""

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.config.parts import GradingSettings
from scalerl.environments.forker import BEGIN, END, ORDER, READY, REPORT_END, STATUS
from scalerl.environments.protocol import LONGEST_OBSERVATION, Step, read_step
from scalerl.environments.start import EnvironmentSpec
from scalerl.environments.steps import Stepped, environment_seed
from scalerl.errors import GraderPoolError
from scalerl.graders.pool import end_server, start_server
from scalerl.types import Request

_LONGEST_REPLY = 12 * LONGEST_OBSERVATION + 10_000
"""Bytes: a character outside the basic plane is 12 in JSON."""
_CLOSE_S = 5.0
"""For the environment's own `close`, after the conversation."""
_LOAD_S = 120.0
"""For importing the environment and its packages on a busy machine."""
_MOST_DESCRIPTORS = 65536
_END_S = 60.0
"""For the system to end a process that was killed."""


@dataclass(slots=True, eq=False)
class _Fork:
    """The process of one conversation."""

    key: str
    number: int
    end: socket.socket
    deadline: float = 0.0
    submitted: float = 0.0
    num_sent: int = 0
    received: bytearray = field(default_factory=bytearray)
    closes: bool = False
    """Whether the environment has a `close`."""
    closing: bool = False

    def send(self, message: Any) -> None:
        self.num_sent += 1
        # A process that is gone is noticed when its reply is awaited.
        with contextlib.suppress(OSError):
            self.end.sendall(pickle.dumps(message))

    def reply(self) -> dict[str, Any] | None:
        """Return the reply to the last message, if all of it is here; EOFError or ValueError if there will be none."""
        chunk = self.end.recv(1 << 20, socket.MSG_DONTWAIT)
        self.received += chunk
        if not chunk:
            raise EOFError
        line, newline, rest = self.received.partition(b"\n")
        if len(line) > _LONGEST_REPLY or rest:
            raise ValueError("the process of the environment did not keep to one reply per turn")
        if not newline:
            return None
        self.received.clear()
        reply = json.loads(line)
        if reply["number"] != self.num_sent - 1:
            raise ValueError("the process of the environment replied to another turn")
        return reply


class ForkedSteps:
    """Takes the turns of conversations, each in a process of its own."""

    def __init__(
        self, spec: EnvironmentSpec, limits: GradingSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._limits, self._clock = spec.settings.name, limits, clock
        self.first_errors: dict[str, str] = {}
        self._forks: dict[str, _Fork] = {}
        self._awaited: dict[int, _Fork] = {}
        """By descriptor, those whose reply is awaited."""
        self._poller = select.poll()
        self._num_begun = 0
        self._process, self._control = start_server("scalerl.environments.forker:serve", spec, limits)
        _allow_descriptors()
        self._close = weakref.finalize(self, _stop, self._process, self._control, os.getpid())

    @property
    def pid(self) -> int:
        """The process that conversations are forked from; also the session id of all of them."""
        return self._process.pid

    @property
    def num_pending(self) -> int:
        return sum(not fork.closing for fork in self._awaited.values())

    def submit(self, key: str, request: Request, texts: Sequence[str]) -> None:
        fork = self._forks[key] if texts else self._begin(key)
        self._await(fork, texts[-1] if texts else (request.problem, environment_seed(request)), self._limits.timeout_s)

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        ready = self._poller.poll(1e3 * wait_s)
        stepped = [each for descriptor, _ in ready for each in self._received(self._awaited[descriptor])]
        now = self._clock()
        for fork in [fork for fork in self._awaited.values() if fork.deadline <= now]:
            limit = self._limits.timeout_s
            stepped += self._given_up(fork, "timeout", f"a step took more than {limit:g} s (grading.timeout_s)")
        return stepped

    def end(self, key: str) -> None:
        fork = self._forks.pop(key, None)
        if fork is None:
            return
        fork.closing = True
        if fork.closes and fork.end.fileno() not in self._awaited:
            self._await(fork, None, _CLOSE_S)
        else:
            self._kill(fork)

    def close(self) -> None:
        """End every process."""
        # If the forker is gone, so are the processes.
        with contextlib.suppress(GraderPoolError):
            for key in list(self._forks):
                self.end(key)
            while self._awaited and self._close.alive:
                self.poll(0.1)
        for fork in self._awaited.values():
            fork.end.close()
        self._close()

    def _begin(self, key: str) -> _Fork:
        if not self._num_begun:
            # Its imports do not count against the first step.
            self._heard(len(READY), _LOAD_S)
        ours, theirs = socket.socketpair()
        ours.settimeout(_END_S)
        fork = self._forks[key] = _Fork(key, self._num_begun, ours)
        self._num_begun += 1
        with theirs:
            self._order(BEGIN, fork, [theirs.fileno()])
        return fork

    def _order(self, kind: bytes, fork: _Fork, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._control, [ORDER.pack(kind, fork.number)], descriptors)
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> GraderPoolError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        return GraderPoolError(f'the process of the environment "{self._name}" ended, with exit status {status}')

    def _await(self, fork: _Fork, message: Any, limit_s: float) -> None:
        fork.submitted = self._clock()
        fork.deadline = fork.submitted + limit_s
        fork.send(message)
        self._awaited[fork.end.fileno()] = fork
        self._poller.register(fork.end, select.POLLIN)

    def _received(self, fork: _Fork) -> list[Stepped]:
        """Take what has come from a process; return the step if it is complete."""
        try:
            reply = fork.reply()
            if reply is None:
                return []
            step = Step(done=True) if "reason" in reply else _read(reply["step"])
            reason, error = reply.get("reason"), str(reply.get("error"))
            fork.closes = bool(reply.get("closes"))
        except (EOFError, OSError):
            return self._given_up(fork, "crash", "its process died")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as failure:
            return self._given_up(fork, "crash", str(failure))
        self._forget(fork)
        if fork.closing:
            self._kill(fork)
            return []
        if reason is not None:
            self.first_errors.setdefault(self._name, error)
        return [Stepped(key=fork.key, step=step, reason=reason, seconds=self._clock() - fork.submitted)]

    def _given_up(self, fork: _Fork, reason: str, error: str) -> list[Stepped]:
        """Kill a process; return what that means for its conversation, if it is not over already."""
        status = self._status(fork)
        self._forks.pop(fork.key, None)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            reason = "timeout"
            error = f"a step took more than {self._limits.cpu_limit_s:g} s of CPU time (grading.cpu_limit_s)"
        if fork.closing:
            return []
        self.first_errors.setdefault(self._name, error)
        seconds = self._clock() - fork.submitted
        return [Stepped(key=fork.key, step=Step(done=True), reason=reason, seconds=seconds)]

    def _forget(self, fork: _Fork) -> None:
        if self._awaited.pop(fork.end.fileno(), None) is not None:
            self._poller.unregister(fork.end)

    def _kill(self, fork: _Fork, order: bytes = END) -> None:
        """End a process and all of its group."""
        self._forget(fork)
        fork.end.close()
        self._order(order, fork)

    def _status(self, fork: _Fork) -> int:
        """End a process and return its wait status, which says whether a limit had ended it."""
        self._kill(fork, REPORT_END)
        return STATUS.unpack(self._heard(STATUS.size, _END_S))[0]

    def _heard(self, num_bytes: int, limit_s: float) -> bytes:
        self._control.settimeout(limit_s)
        try:
            heard = self._control.recv(num_bytes)
        except OSError as error:
            raise self._gone() from error
        if len(heard) < num_bytes:
            raise self._gone()
        return heard


def _allow_descriptors() -> None:
    """Raise this process's own limit of open files, as far as it may: each conversation has a socket."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _read(fields: dict[str, Any]) -> Step:
    """Return a step of another process; ValueError, TypeError or KeyError if it is not one."""
    messages = tuple((role, content) for role, content in fields.pop("messages"))
    return read_step(Step(**fields, messages=messages))


def _stop(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    control.close()
    # A copy of the trainer does not own the processes.
    if os.getpid() == owner:
        end_server(process)
