"""An object in a child process on this machine: `python -m scalerl.training.remote.child SOCKET`, with any interpreter.

The child leads a new session, so that only the driver gets Ctrl-C, and everything that the child starts can be ended
with it. Its temporary files are in a folder that is removed with it. No port is opened: the child inherits one end of a
socket pair. When the driver's end closes, the child ends at once and cleans up by itself.
"""

import gc
import os
import pickle
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any, NoReturn

from scalerl.errors import RecipeError
from scalerl.processes import end_process, how_it_ended, session_members, start
from scalerl.training.remote.peer import CLOSE_S, Lost, Message
from scalerl.training.remote.serve import Command, DriverGone, ObjectServer
from scalerl.training.remote.session import end_session, mapped_files

BEAT_S = 0.5
"""Seconds between two signs of life."""


class ChildLink:
    """A link to a child process."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        python: str = "",
        variables: Mapping[str, str] | None = None,
        has_log: bool = False,
    ) -> None:
        """Start a process that serves what `make` returns.

        `python` is another interpreter whose environment must have this package. With `has_log`, the output of the
        process is not shown, but kept to explain its death.
        """
        first = _pickled(make)
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._files: list[str] = []
        self._ending = threading.Lock()
        self._connection, theirs = Pipe()
        with ExitStack() as opened:
            self._log: IO[bytes] | None = opened.enter_context(tempfile.TemporaryFile()) if has_log else None
            folder = tempfile.mkdtemp(prefix="scalerl-", dir=_short(tempfile.gettempdir()))
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            others = {**(variables or {}), "TMPDIR": folder}
            self._process = start_process(python or sys.executable, theirs, others, self._log)
            opened.pop_all()  # everything open is closed with the process
        theirs.close()
        # This also runs when the object is garbage-collected and when the interpreter exits.
        self._end: Callable[[], object] = weakref.finalize(self, _end, self._process, self._files, folder)
        if self._log is not None:
            weakref.finalize(self, self._log.close)
        threading.Thread(target=_write, args=(self._connection, self._to_send), daemon=True, name="child").start()
        self._to_send.put(pickle.dumps(None if python else sys.path))
        self._to_send.put(first)

    where = ""
    is_placed = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_left(self) -> bool:
        return False

    def packed(self, name: Any, arguments: tuple[Any, ...]) -> bytes:
        return _dumps((name, arguments))

    def write(self, command: bytes) -> None:
        self._to_send.put(command)

    def read(self) -> list[Message]:
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise Lost("died", self._reason_of_end()) from None
        if message[0] == "ready":
            # Record the files now: a child that is killed leaves them and cannot be asked.
            self._files.extend(mapped_files(session_members(self.pid)))
        return [message]

    def kill(self) -> None:
        self._to_send.put(None)
        with self._ending:  # a second caller waits until everything has ended
            self._end()

    def _reason_of_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        code = self._process.returncode
        if code is None:
            return f"closed its connection{self._last_line()}"
        return f"{how_it_ended(code)}{self._last_line()}"

    def _last_line(self) -> str:
        """Return the last line of the process's output, as the end of a sentence."""
        if self._log is None:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - 4000, 0))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f" (its last line: {lines[-1][:300]})" if lines else ""


def _pickled(make: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RecipeError(
            f"this run starts other processes, but one of its functions cannot be sent to them ({error}): put it into "
            f"a module"
        ) from None


def start_process(
    python: str, connection: Connection, variables: Mapping[str, str], log: IO[bytes] | None
) -> "subprocess.Popen[bytes]":
    descriptor = connection.fileno()
    try:
        return start(
            [python, "-P", "-m", "scalerl.training.remote.child", str(descriptor)],
            environment=variables,
            descriptors=[descriptor],
            stdout=log,
            stderr=log,
        )
    except OSError as error:
        raise RecipeError(f"{python} cannot be started: {error.strerror}") from error


def _dumps(message: Any) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _write(connection: Connection, to_send: "queue.SimpleQueue[bytes | None]") -> None:
    with suppress(OSError):  # The listener reports that the child has ended.
        while (message := to_send.get()) is not None:
            connection.send_bytes(message)


def _end(process: "subprocess.Popen[bytes]", files: list[str], folder: str) -> None:
    """Kill the child and all processes of its session, and remove their files."""
    end_session(process.pid, files=files, folder=folder)
    end_process(process)


def _short(folder: str) -> str:
    """Return a folder for temporary files with a short path: paths of sockets may have at most 107 characters."""
    return folder if len(folder) <= 48 else "/tmp"


# In the child ---------------------------------------------------------------------------------------------------------


_ENDING = threading.Lock()


def serve(connection: Connection) -> NoReturn:
    """Serve the object that the first messages describe until the driver closes it or ends."""
    inbox = queue.SimpleQueue[bytes]()
    sending = threading.Lock()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True, name="driver").start()

    def receive(wait: bool) -> Command | None:
        try:
            return pickle.loads(inbox.get(block=wait))
        except queue.Empty:
            return None

    def send(kind: str, value: Any) -> None:
        message = _dumps((kind, value))
        try:
            with sending:
                connection.send_bytes(message)
        except OSError:
            raise DriverGone from None

    server = ObjectServer(receive, send)
    threading.Thread(target=_beat, args=(server, send), daemon=True, name="beat").start()
    try:
        path = pickle.loads(inbox.get())
        if path is not None:
            sys.path[:] = path
        server.run(lambda: _made(inbox))
    except DriverGone:
        _exit(1, orphaned=True)
    except BaseException:
        # The driver has the reason and ends this process. If it ended by itself, other objects that depend on it would
        # fail, too, and their failures might be noticed first.
        threading.Event().wait()
    _exit(0)


def _made(inbox: "queue.SimpleQueue[bytes]") -> Any:
    """Create the object without garbage collection, which takes a seventh of the time to import vLLM."""
    gc.disable()
    made = pickle.loads(inbox.get())()
    # Collect once, to free weights that a model's loader has left in reference cycles.
    gc.collect()
    gc.freeze()
    gc.enable()
    return made


def _read(connection: Connection, inbox: "queue.SimpleQueue[bytes]") -> None:
    with suppress(EOFError, OSError):
        while True:
            inbox.put(connection.recv_bytes())
    _exit(1, orphaned=True)


def _beat(server: ObjectServer, send: Callable[[str, Any], None]) -> None:
    with suppress(DriverGone):
        while True:
            send("beat", server.busy_s)
            time.sleep(BEAT_S)


def _exit(code: int, *, orphaned: bool = False) -> NoReturn:
    """End this process at once: a normal exit takes a while after loading torch, and with vLLM it may hang.

    If the driver has ended, first end the session's other processes and remove their files.
    """
    _ENDING.acquire()  # never released: another thread must not end the process meanwhile
    if orphaned:
        end_session(os.getpid(), files=(), folder=os.environ["TMPDIR"])
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
