"""The process that vLLM runs in: `python -m scalerl.rollout.vllm.child SOCKET`, started by process.py.

It samples without waiting for the trainer: between two steps it reads the trainer's messages and sends what has
finished. A second thread reports every half second that the process is alive. When the trainer's end of the socket
closes, the process ends at once.
"""

import os
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from scalerl.errors import EngineError, UserError
from scalerl.rollout.vllm.install import require_vllm
from scalerl.rollout.vllm.session import end_session
from scalerl.rollout.vllm.wire import (
    Beat,
    Close,
    Done,
    Failed,
    Pause,
    Push,
    Pushed,
    Ready,
    Resume,
    Submit,
    WireCompletion,
)

if TYPE_CHECKING:
    from scalerl.rollout.vllm.engine import VllmEngine

BEAT_S = 0.5
REPORT_S = 0.05
"""Longest time for which the trainer's count of the work done is out of date while something is sampled."""
_ENDING = threading.Lock()


class _Outbox:
    """Sends messages from two threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, message: Any) -> None:
        with self._lock:
            self._connection.send(message)

    def beat_forever(self) -> None:
        try:
            while True:
                self.send(Beat())
                time.sleep(BEAT_S)
        except OSError:  # The trainer has ended, and whatever the main thread is doing is of no use to anyone.
            _end(1, orphaned=True)


def main() -> NoReturn:
    connection = Connection(int(sys.argv[1]))
    outbox = _Outbox(connection)
    threading.Thread(target=outbox.beat_forever, daemon=True).start()
    code, orphaned = 1, False
    try:
        spec = connection.recv()
        require_vllm()
        from scalerl.rollout.vllm.engine import VllmEngine

        engine = VllmEngine(spec)
        if spec.has_weights:
            engine.warm_up()
        outbox.send(Ready(engine.vocabulary))
        _serve(engine, connection, outbox, is_warm=spec.has_weights)
        code = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        orphaned = True
    except BaseException as error:
        orphaned = not _report(outbox, error)
    _end(code, orphaned=orphaned)


def _serve(engine: "VllmEngine", connection: Connection, outbox: _Outbox, *, is_warm: bool) -> None:
    numbers: dict[int, int] = {}
    """The trainer's number of each request, by the identity of the request here."""
    reported = time.monotonic()
    while True:
        while not engine.num_pending or connection.poll():
            match connection.recv():
                case Submit(requests=requests):
                    taken = [(each.number, each.request()) for each in requests]
                    numbers.update((id(request), number) for number, request in taken)
                    engine.submit([request for _, request in taken])
                case Push(parcel=parcel, version=version):
                    engine.push_parcel(parcel, version)
                    if not is_warm:  # these are the first weights that are not random
                        engine.warm_up()
                        is_warm = True
                    outbox.send(Pushed(version))
                case Pause():
                    engine.pause()
                case Resume():
                    for request in engine.resume():
                        del numbers[id(request)]
                case Close():
                    return
        finished = engine.step()
        now = time.monotonic()
        if finished or now - reported >= REPORT_S:
            rows = [WireCompletion.of(numbers.pop(id(each.request)), each) for each in finished]
            outbox.send(Done(rows, engine.work, engine.eval_work))
            reported = now


def _end(code: int, *, orphaned: bool) -> NoReturn:
    """End this process at once: interpreters with vLLM in them take seconds to end and sometimes hang.

    Without a trainer, which does so otherwise, end the session's other processes and remove their files before.
    """
    _ENDING.acquire()  # and never released: the other thread must not end the process in the middle of this
    if orphaned:
        end_session(os.getpid(), files=(), folder=os.environ["TMPDIR"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report(outbox: _Outbox, error: BaseException) -> bool:
    """Send the reason of a failure, and return whether the trainer is still there to read it."""
    if isinstance(error, UserError):
        message = Failed(str(error), True)
    elif isinstance(error, EngineError):
        message = Failed(str(error), False)
    else:
        lines = [line for line in str(error).splitlines() if line.strip()]
        message = Failed(f"{type(error).__name__}: {' '.join(lines[:3])}".removesuffix(": "), False)
    try:
        outbox.send(message)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
