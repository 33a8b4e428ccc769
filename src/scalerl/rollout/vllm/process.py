"""An Engine that runs vLLM in a child process. This module is the trainer's side and never imports vllm.

    trainer                                        child (child.py), a session of its own
    submit, push_weights, close --- socket --->    takes them between two steps, and samples freely
    poll                        <-- socket ----    completions, work done, a sign of life every half second
    push_weights                --- parcel --->    weights through shared memory or CUDA IPC (parcels.py)

Two threads write and read the socket, so that neither side waits for the other. A child that ends or falls silent is an
EngineError with the reason; it and all processes that it started are then killed.
"""

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from scalerl.errors import EngineError, RecipeError
from scalerl.rollout.requests import check_request
from scalerl.rollout.vllm.parcels import CudaSender, HostSender
from scalerl.rollout.vllm.session import end_session, mapped_files, session_members
from scalerl.rollout.vllm.spec import EngineSpec, engine_arguments, environment, visible_devices
from scalerl.rollout.vllm.wire import (
    Close,
    Done,
    Failed,
    Pause,
    Push,
    Pushed,
    Ready,
    Resume,
    Submit,
    WireRequest,
)
from scalerl.types import Completion, Request, Work

START_S = 900.0  # most time until vLLM has loaded a model; compilation for a GPU takes minutes
POLL_S = 0.05  # how long a poll waits for a completion
SILENT_S = 10.0  # a child that gives no sign of life for this long is hung or stopped
SILENT_START_S = 60.0  # while it starts, importing a library can keep its other thread waiting
CLOSE_S = 5.0  # how long a child may take to end by itself
_CLOSED = "the engine is closed"


class _Ended:
    """The socket is closed: there will be no further message."""


class VllmProcess:
    """An Engine whose vLLM runs in a child process."""

    def __init__(self, spec: EngineSpec, *, names: frozenset[str] = frozenset(), start_s: float = START_S) -> None:
        """Start the child and wait until it has loaded the model. `names` are the weights that every push must have."""
        if spec.slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {spec.slots}")
        engine_arguments(spec, cache_bytes=None)  # so that a wrong setting fails at once
        self._max_length, self._names = spec.context, names
        self._version, self._work, self._eval_work = spec.version, Work(), Work()
        self._pending: dict[int, Request] = {}
        self._held: dict[int, Request] = {}
        self._done: list[Completion] = []
        self._held_done: list[Completion] = []
        self._num_submitted, self._pushed = 0, -1
        self._ready: Ready | None = None
        self._failure: str | None = None
        self._by_user = False
        self._heard, self._silent_s, self._silent_limit_s = 0, 0.0, SILENT_START_S
        self._host_sender: HostSender | None = None
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._shared_files: list[str] = []
        with ExitStack() as opened:
            self._log: IO[bytes] = opened.enter_context(tempfile.TemporaryFile())
            ours, theirs = map(opened.enter_context, socket.socketpair())
            folder = tempfile.mkdtemp(prefix="scalerl-vllm-", dir=_short(tempfile.gettempdir()))
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            self._process = _start(spec, theirs.fileno(), self._log, folder)
            theirs.close()
            connection = Connection(ours.detach())
            opened.pop_all()  # what is open now is closed with the engine
        # Also when this object is dropped and when the interpreter ends.
        self._kill: Callable[[], object] = weakref.finalize(self, _kill_all, self._process, self._shared_files, folder)
        for work in (self._write, self._read):
            threading.Thread(target=work, args=(connection,), daemon=True, name="vllm").start()
        self._outbox.put(spec)
        self.vocabulary = self._wait_until_ready(start_s)
        self._silent_limit_s = SILENT_S

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_pending(self) -> int:
        return len(self._pending) + len(self._done)

    @property
    def work(self) -> Work:
        return self._work

    @property
    def eval_work(self) -> Work:
        return self._eval_work

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_usable()
        for request in requests:
            check_request(request, max_length=self._max_length, vocabulary=self.vocabulary)
        numbered = {self._num_submitted + place: request for place, request in enumerate(requests)}
        self._num_submitted += len(requests)
        self._pending |= numbered
        self._outbox.put(Submit([WireRequest.of(number, request) for number, request in numbered.items()]))

    def poll(self) -> list[Completion]:
        """Return what has finished; wait a moment if nothing has."""
        self._require_usable()
        self._receive(POLL_S if self._pending and not self._done else 0.0, lambda: bool(self._done))
        done, self._done = self._done, []
        return done

    def push_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Send weights, named as in the model's state_dict, and wait until the child samples with them."""
        self._require_usable()
        if version < self._version:
            raise ValueError(f"versions only rise: {version} was pushed after {self._version}")
        if missing := sorted(self._names - weights.keys()):
            raise ValueError(f"push_weights was not given {missing[0]}: all weights of a version arrive together")
        self._pushed = -1
        self._outbox.put(Push(self._sender_of(weights).send(weights), version))
        while self._pushed != version:
            self._receive(POLL_S, lambda: self._pushed == version)
        self._version = version

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all pending requests aside, with their caches, and serve what is submitted inside."""
        self._require_usable()
        self._outbox.put(Pause())
        self._held, self._pending = self._pending, {}
        self._held_done, self._done = self._done, []
        try:
            yield
        finally:
            if self._failure is None:
                self._outbox.put(Resume())
                self._pending, self._held = self._held, {}
                self._done, self._held_done = self._held_done, []

    def close(self) -> None:
        if self._failure == _CLOSED:
            return
        if self._failure is None:
            self._outbox.put(Close())
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
        self._end(_CLOSED)

    def _sender_of(self, weights: Mapping[str, Tensor]) -> HostSender | CudaSender:
        """Return what sends these weights; those that a learner over ranks gathers are in host memory."""
        if all(weight.is_cuda for weight in weights.values()):
            return CudaSender()
        self._host_sender = self._host_sender or HostSender()
        return self._host_sender

    def _wait_until_ready(self, start_s: float) -> int:
        deadline = time.monotonic() + start_s
        while self._ready is None:
            self._receive(POLL_S, lambda: self._ready is not None)
            if self._ready is None and time.monotonic() > deadline:
                self._fail(f"vLLM has not started within {start_s:.0f} s{self._last_line()}")
        # Noted now: a child that is killed, with its workers, leaves these files and can no longer be asked.
        self._shared_files.extend(mapped_files(session_members(self.pid)))
        return self._ready.vocabulary

    def _write(self, connection: Connection) -> None:
        try:
            while True:
                message = self._outbox.get()
                if isinstance(message, _Ended):
                    return
                connection.send(message)
        except OSError:  # The reader says that the child has ended.
            pass

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                message = connection.recv()
                self._heard += 1
                self._inbox.put(message)
        except (EOFError, OSError):
            self._inbox.put(_Ended())
        finally:
            self._outbox.put(_Ended())
            connection.close()

    def _receive(self, wait_s: float, enough: Callable[[], bool]) -> None:
        """Handle the messages that have arrived; wait up to `wait_s` until `enough` is true."""
        heard, start = self._heard, time.monotonic()
        while True:
            left = start + wait_s - time.monotonic()
            try:
                message = self._inbox.get(block=left > 0 and not enough(), timeout=max(left, 0.001))
            except queue.Empty:
                break
            self._take(message)
        # Counted while waiting, not by a clock: this process may have been busy, or stopped itself.
        self._silent_s = 0.0 if self._heard != heard else self._silent_s + min(time.monotonic() - start, 2 * wait_s)
        if self._silent_s > self._silent_limit_s:
            self._fail(f"the vLLM process has given no sign of life for {self._silent_s:.0f} s{self._state()}")

    def _take(self, message: Any) -> None:
        match message:
            case Done(completions=completions, work=work, eval_work=eval_work):
                self._work, self._eval_work = work, eval_work
                for each in completions:
                    # During a pause, completions of requests that were put aside can still be under way; and after it,
                    # those of requests that were dropped.
                    if (request := self._pending.pop(each.number, None)) is not None:
                        self._done.append(each.completion(request))
                    elif (request := self._held.pop(each.number, None)) is not None:
                        self._held_done.append(each.completion(request))
            case Pushed(version=version):
                self._pushed = version
            case Ready():
                self._ready = message
            case Failed(sentence=sentence, by_user=by_user):
                self._by_user = by_user
                self._fail(sentence)
            case _Ended():
                self._fail(self._reason_of_end())

    def _reason_of_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        code = self._process.returncode
        if code is None:
            return f"the vLLM process closed its connection{self._last_line()}"
        if code >= 0:
            return f"the vLLM process ended with code {code}{self._last_line()}"
        name = signal.Signals(-code).name
        hint = ", as a system does that runs out of memory" if code == -signal.SIGKILL else ""
        return f"the vLLM process was ended by {name}{hint}{self._last_line()}"

    def _last_line(self) -> str:
        """Return the last line that the child printed, as the end of a sentence."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - 4000, 0))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f" (its last line: {lines[-1][:300]})" if lines else ""

    def _state(self) -> str:
        """Return the state of the child process according to the system, as the end of a sentence."""
        with suppress(OSError, IndexError):
            letter = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return {"T": ": it was stopped (SIGSTOP)", "Z": ": it has died"}.get(letter, ": it hangs")
        return ""

    def _fail(self, reason: str) -> None:
        self._end(reason)
        raise RecipeError(reason) if self._by_user else EngineError(reason)

    def _end(self, reason: str) -> None:
        """Kill the child and its remaining processes, and drop all requests."""
        self._failure = reason
        self._kill()
        self._outbox.put(_Ended())
        for requests in (self._pending, self._held):
            requests.clear()
        self._done, self._held_done = [], []
        if self._host_sender is not None:
            self._host_sender.close()
        self._log.close()

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)


def _short(folder: str) -> str:
    """Return a folder for temporary files with a path short enough for sockets, which may have 107 characters."""
    return folder if len(folder) <= 48 else "/tmp"


def _start(spec: EngineSpec, descriptor: int, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
    """Start the child, with `folder` for its sockets and other temporary files."""
    chosen = environment(on_gpu=spec.on_gpu, compiled=spec.settings.eager is False)
    variables = {**os.environ, **chosen, "TMPDIR": folder}
    if (devices := visible_devices(spec.settings, os.environ, learner=0 if spec.on_gpu else None)) is not None:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    python = spec.settings.python or sys.executable
    try:
        return subprocess.Popen(
            [python, "-m", "scalerl.rollout.vllm.child", str(descriptor)],
            pass_fds=(descriptor,),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that all its processes can be killed at once, and Ctrl-C is ours alone
        )
    except OSError as error:
        raise RecipeError(f"rollout.vllm.python is {python}, which cannot be started: {error.strerror}") from error


def _kill_all(process: subprocess.Popen[bytes], shared_files: Sequence[str], folder: str) -> None:
    """Kill the child and every process of its session, and remove the files that such an end leaves behind."""
    end_session(process.pid, files=shared_files, folder=folder)
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()
