"""A rank as a child process of this one: commands and answers over a pipe.

A rank whose parent is gone ends at once, wherever it is; the parent notices the end of a rank while it waits for it.
A thread of the rank counts up a number in shared memory every half second. A thread of the parent kills a rank that no
longer does, so that whoever waits for the rank gets the reason, also in the middle of a message.
"""

import functools
import math
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scalerl.config.parts import LearnerSettings
from scalerl.errors import RankLost, RecipeError
from scalerl.learner.ranks.driver import RankedLearner, ranked_learner
from scalerl.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.learner.ranks.serve import DriverGone, no_progress_bars, obey
from scalerl.learner.ranks.silence import RUNNING_S, Silence, is_stopped

_CLOSE_S = 5.0
_BEAT_S = 0.5
"""Time between two signs of life of a rank."""


def process_learner(
    model: Any,
    *,
    settings: Callable[[], Mapping[str, Any]],
    learner: LearnerSettings,
    seed: int,
    version: int = 0,
    **others: Any,
) -> RankedLearner:
    """Return a learner over `learner.ranks` processes of this machine, on the model's kind of device.

    `settings` is what RankSpec.settings is; `others` are further fields of RankSpec. The model is read from its folder;
    one that has none is written to a temporary folder first.
    """
    import torch

    num_gpus = torch.cuda.device_count()
    if model.device.type == "cuda" and learner.ranks > num_gpus:
        raise RecipeError(
            f"learner.ranks is {learner.ranks}, one GPU each, but this machine has {num_gpus}: set learner.ranks to "
            f"{num_gpus} or less"
        )
    with ExitStack() as opened:
        folder = opened.enter_context(_model_folder(model))
        ranked = ranked_learner(
            functools.partial(_start, silent_s=learner.silent_s),
            learner,
            address="127.0.0.1",
            folder=str(folder),
            settings=settings,
            device="cuda" if model.device.type == "cuda" else "cpu",
            seed=seed,
            version=version,
            threads=_threads(model.device, learner.ranks),
            **others,
        )
        ranked.on_close(opened.pop_all().close)
    return ranked


def _start(spec: RankSpec, *, silent_s: float) -> "list[ProcessRank]":
    _check_picklable(spec)
    with ExitStack() as started:
        ranks = []
        for rank in range(spec.num_ranks):
            ranks.append(ProcessRank(spec, rank, silent_s=silent_s))
            started.callback(ranks[-1].kill)
        started.pop_all()
    return ranks


def _threads(device: Any, num_ranks: int) -> int:
    """Return torch's threads in each rank; 0 for its own number. On the host of a GPU one is the fastest."""
    import torch

    if device.type == "cpu":
        return max(torch.get_num_threads() // num_ranks, 1)
    return 0 if "OMP_NUM_THREADS" in os.environ else 1


@contextmanager
def _model_folder(model: Any) -> Iterator[Path]:
    """Yield the folder that a model was loaded from, or a temporary one with its weights."""
    source, names = Path(model.name_or_path), ("model.safetensors", "model.safetensors.index.json")
    if model.name_or_path and any((source / name).is_file() for name in names):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="scalerl-model-") as folder:
        with no_progress_bars():
            model.save_pretrained(folder)
        yield Path(folder)


def _check_picklable(spec: RankSpec) -> None:
    try:
        pickle.dumps(spec)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RecipeError(
            f"learner.sharding starts other processes, and a function of this run cannot be sent to them ({error}): "
            f"put it into a module"
        ) from None


class ProcessRank:
    """A rank in a child process, as its driver sees it."""

    def __init__(self, spec: RankSpec, rank: int, *, silent_s: float) -> None:
        """Start the process; it is killed if it is stopped for longer than `silent_s`."""
        import torch.multiprocessing as multiprocessing

        context = multiprocessing.get_context("spawn")
        self.rank, self._silent_s = rank, silent_s
        self._ready = self._failed = False
        self._silence = ""
        """Why the process was killed, if it was silent for too long."""
        self._unread: tuple[str, Any] | None = None
        self._pipe, theirs = context.Pipe()
        self._beats: Any = context.RawValue("Q", 0)
        name = f"learner-rank-{rank}"
        self._process = context.Process(target=serve, args=(theirs, self._beats, spec, rank), name=name, daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._watch, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Give a pickled (command, arguments)."""
        try:
            self._pipe.send_bytes(message)
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float) -> tuple[str, Any] | None:
        """Return the next answer, or None if there is none yet; raise what the rank raised, RankLost if it died."""
        if self._unread is None:
            ready = wait([self._pipe, self._process.sentinel], timeout_s)
            if not ready:
                return None
            if not self._read():
                raise self._death()
        assert self._unread is not None
        (kind, value), self._unread = self._unread, None
        if kind == "error":
            self._failed = True
            raise value
        self._ready = self._ready or kind == "ready"
        return kind, value

    def check(self) -> None:
        """Raise what the rank raised while another one was waited for, or RankLost if it died without an answer."""
        if self._failed:
            return
        if not self._read() and not self._process.is_alive() and not self._read():
            raise self._death()
        if self._unread is not None and self._unread[0] == "error":
            self.receive(0.0)

    def _read(self) -> bool:
        """Read an answer if there is one; return whether one is unread. The end of the pipe does not count as one."""
        if self._unread is None:
            try:
                message = self._pipe.recv_bytes() if self._pipe.poll() else b""
            except (EOFError, OSError):
                message = b""
            self._unread = pickle.loads(message) if message else None
        return self._unread is not None

    def kill(self) -> None:
        """End the process, at once."""
        self._process.kill()
        self._process.join(_CLOSE_S)
        self._pipe.close()

    def join(self) -> None:
        """Wait a moment for a process that was asked to close, then kill it."""
        self._process.join(_CLOSE_S)
        self.kill()

    def _watch(self) -> None:
        """Kill the process if it falls silent, until it ends."""
        silence, last = Silence(), 0
        while not wait([self._process.sentinel], _BEAT_S):
            beats = self._beats.value
            silence.listen(beats != last)
            last = beats
            if silence.seconds > self._silent_s:
                stopped = is_stopped(self.pid)
                # Until a rank is ready, imports may hold Python's lock for long, and learner.start_s limits the time.
                limit_s = self._silent_s if stopped else max(self._silent_s, RUNNING_S if self._ready else math.inf)
                if silence.seconds > limit_s:
                    state = "it was stopped (SIGSTOP)" if stopped else "it hangs (learner.silent_s waits longer)"
                    self._silence = f"has given no sign of life for {limit_s:g} s: {state}"
                    self._process.kill()
                    return

    def _death(self) -> RankLost:
        self._process.join(_CLOSE_S)
        code = self._process.exitcode
        ending = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        ending = self._silence or ending
        return RankLost(f"rank {self.rank} of the learner {ending}; --resume continues from the last checkpoint")


def serve(pipe: Connection, beats: Any, spec: RankSpec, rank: int) -> None:
    """Run a rank until its driver closes it or is gone; count up `beats` all the time."""
    _die_with_parent()
    threading.Thread(target=_beat, args=(beats,), daemon=True).start()
    # Ctrl-C, and the end of a terminal, reach every process in it; the driver decides what they mean.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        obey(lambda: LearnerRank(spec, rank), rank, pipe.recv_bytes, functools.partial(_answer, pipe))
    except DriverGone:
        os._exit(1)
    except BaseException:
        # The driver has the reason, and ends all ranks. If this one ended by itself, others would fail for lack of it,
        # and their failures might be noticed first.
        threading.Event().wait()
    # Nothing is left to be tidied up, and the end of an interpreter that has loaded torch takes a while.
    os._exit(0)


def _beat(beats: Any) -> None:
    while True:
        beats.value += 1
        time.sleep(_BEAT_S)


def _answer(pipe: Connection, kind: str, value: Any) -> None:
    pipe.send_bytes(pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL))


def _die_with_parent() -> None:
    """End this process when its parent ends, also within an exchange that would wait for other ranks."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    assert parent is not None, "a rank is a child process"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
