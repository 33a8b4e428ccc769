"""A rank of the learner as a Ray actor, and the driver's side of it. `ray` must be connected (connect.py does that).

    driver: RayRank --give (numbered commands)--> RankActor: a thread that obeys a LearnerRank's commands in order
                    <--take (answers; at least one call per second returns)--

A dead actor or node is an error of Ray's. A process that is stopped (SIGSTOP) gives none: its calls do not return, and
the driver's own clock notices that.
"""

import os
import re
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import LearnerError, ModelError, RankLost
from scalerl.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.learner.ranks.serve import obey
from scalerl.learner.ranks.silence import Silence

REPORT_S = 1.0
"""A living actor answers `take` at least this often."""
START_S = 600.0
"""Longest silence until a rank is ready: libraries that are imported may not let other threads run for long."""
THREADS = 4
"""Calls that an actor serves at a time: `take` waits while `give` goes on."""
_CLOSE_S = 5.0
_NODE_S = 3.0
"""How long the server of a node may take to accept a connection."""
_INLINE_BYTES = 100_000
"""Larger messages are put into Ray's object store, once for all ranks."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Codes with which Ray colours its tracebacks, for terminals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where an actor is, before it is a rank."""

    node: str
    """Ray's id of the node."""
    address: str
    pid: int
    gpus: tuple[str, ...]
    """Ray's ids of its GPUs: the node's numbers of them, or the names of parts of a GPU."""
    device_name: str = ""
    free_bytes: float = 0.0
    """Free memory of its GPU; 0 if it has none or torch sees none."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Its devices as "node/device"."""
        return tuple(f"{self.node}/gpu:{gpu}" for gpu in self.gpus) or (f"{self.node}/cpu",)


class RankActor:
    """A process that becomes a rank once it is told which."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._early: dict[int, bytes] = {}
        self._next_number = 0
        self._inbox: deque[bytes] = deque()
        self._outbox: list[tuple[str, Any]] = []

    def place(self) -> RankPlace:
        """Return where this process is and what it computes on."""
        import ray
        import torch

        context = ray.get_runtime_context()
        gpus = sorted(map(str, context.get_accelerator_ids().get("GPU", [])), key=_by_number)
        # On a machine with GPUs torch sees them also where Ray gave the process none.
        has_gpu = bool(gpus) and torch.cuda.is_available()
        return RankPlace(
            node=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            gpus=tuple(gpus),
            device_name=torch.cuda.get_device_name(0) if has_gpu else "",
            free_bytes=float(torch.cuda.mem_get_info(0)[0]) if has_gpu else 0.0,
        )

    def find_model(self, name: str, rank: int) -> None:
        """Answer with the folder that this node has the model of this name in; a hub name is downloaded first."""

        def find() -> None:
            from scalerl.models.load import model_folder

            where = f"rank {rank} of the learner, on {socket.gethostname()}"
            try:
                self._answer("found", str(model_folder(name)))
            except ModelError as error:
                self._answer("error", ModelError(f"{where}: {error}"))
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self._answer("error", LearnerError(f"{where}, cannot find the model {name}: {reason}"))
                raise

        self._in_thread(find, rank)

    def start(self, spec: RankSpec, rank: int) -> None:
        """Become a rank."""
        self._in_thread(lambda: obey(lambda: _made(spec, rank), rank, self._receive, self._answer), rank)

    def _in_thread(self, work: Callable[[], None], rank: int) -> None:
        def printed() -> None:
            try:
                work()
            except BaseException:
                # It has been answered; the traceback is for Ray's log of this process.
                traceback.print_exc()

        threading.Thread(target=printed, name=f"rank-{rank}", daemon=True).start()

    def give(self, number: int, message: bytes) -> None:
        """Queue a pickled command. Calls are numbered from 0; one that overtook another waits for it."""
        with self._changed:
            self._early[number] = message
            while self._next_number in self._early:
                self._inbox.append(self._early.pop(self._next_number))
                self._next_number += 1
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[tuple[str, Any]]:
        """Return the answers since the last call; wait up to `wait_s` for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox, wait_s)
            answers, self._outbox = self._outbox, []
            return answers

    def _receive(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._inbox)
            return self._inbox.popleft()

    def _answer(self, kind: str, value: Any) -> None:
        with self._changed:
            self._outbox.append((kind, value))
            self._changed.notify_all()


def _made(spec: RankSpec, rank: int) -> LearnerRank:
    import ray

    # gloo would look for the address of the host's name, which is often that of the loopback interface.
    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return LearnerRank(spec, rank)


class Parcels:
    """Messages for all ranks: a large one is stored once, and every rank gets a reference to it."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] = (b"", None)

    def pack(self, message: bytes) -> Any:
        import ray

        if len(message) <= _INLINE_BYTES:
            return message
        if self._last[0] is not message:
            self._last = (message, ray.put(message))
        return self._last[1]


class RayRank:
    """A rank in a Ray actor, as its driver sees it (learner/ranks/driver.Rank)."""

    def __init__(self, actor: Any, place: RankPlace, rank: int, *, silent_s: float, parcels: Parcels) -> None:
        self.rank, self.place = rank, place
        self._actor, self._parcels = actor, parcels
        self._limit_s = silent_s
        self._ready = self._failed = self._silent = False
        self._unread: deque[tuple[str, Any]] = deque()
        self._num_given = 0
        self._silence = Silence()
        self._begun: Any = None
        """The last call that began something whose answers come later."""
        self._report = actor.take.remote(REPORT_S)

    def find_model(self, name: str) -> None:
        """Let the process look for the model; its answer is the folder."""
        self._begun = self._actor.find_model.remote(name, self.rank)

    def start(self, spec: RankSpec) -> None:
        """Let the process become a rank; its first answer is RankFacts."""
        self._begun = self._actor.start.remote(spec, self.rank)

    def send(self, message: bytes) -> None:
        self._actor.give.remote(self._num_given, self._parcels.pack(message))
        self._num_given += 1

    def receive(self, timeout_s: float) -> tuple[str, Any] | None:
        """Return the next answer, or None if there is none yet; raise what the rank raised, RankLost if it is lost."""
        if not self._unread:
            self._listen(timeout_s)
        if not self._unread:
            return None
        kind, value = self._unread.popleft()
        if kind == "error":
            self._failed = True
            raise value
        self._ready = self._ready or kind == "ready"
        return kind, value

    def check(self) -> None:
        """Raise what the rank raised while another one was waited for, or RankLost if it is lost."""
        if self._failed:
            return
        self._listen(0.0)
        if self._unread and self._unread[0][0] == "error":
            self.receive(0.0)

    def kill(self) -> None:
        """End the process, at once and also if it is stopped."""
        import ray
        from ray.exceptions import RayError

        # It may be dead already, or its node may be.
        with suppress(RayError, ValueError):
            ray.kill(self._actor)
        if self._silent:
            end_process(self.place)

    def join(self) -> None:
        """Wait a moment for a rank that was asked to close, then kill it."""
        deadline = time.monotonic() + _CLOSE_S
        with suppress(RankLost):
            while time.monotonic() < deadline and not any(kind == "done" for kind, _ in self._unread):
                self._listen(0.1)
        self.kill()

    def _listen(self, timeout_s: float) -> None:
        """Read the answers that have come; RankLost if there has been none for too long."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            done, _ = ray.wait([self._report], timeout=timeout_s)
            answers = ray.get(self._report) if done else None
            if self._begun is not None and ray.wait([self._begun], timeout=0)[0]:
                ray.get(self._begun)
                self._begun = None
        except RayTaskError as error:
            raise LearnerError(f"rank {self.rank} of the learner cannot be started: {reason_of(error)}") from None
        except RayError as error:
            raise self._loss(error) from None
        self._silence.listen(answers is not None)
        if answers is not None:
            self._unread.extend(answers)
            self._report = self._actor.take.remote(REPORT_S)
            return
        limit_s = self._limit_s if self._ready else max(self._limit_s, START_S)
        if self._silence.seconds > limit_s:
            self._silent = True
            setting = " (learner.silent_s)" if self._ready else ", and is not ready yet"
            raise RankLost(self._sentence(f"has not answered for {limit_s:g} s{setting}"))

    def _loss(self, error: Exception) -> RankLost:
        from ray.exceptions import ActorUnavailableError

        if _is_lost(self.place.node):
            return RankLost(self._sentence("was lost with its node"))
        unreachable = isinstance(error, ActorUnavailableError)
        ending = "cannot be reached any more" if unreachable else "died: it was killed, ran out of memory or crashed"
        return RankLost(self._sentence(ending))

    def _sentence(self, ending: str) -> str:
        where = f"rank {self.rank} of the learner, process {self.place.pid} on node {self.place.address},"
        return f"{where} {ending}; --resume continues from the last checkpoint"


def reason_of(error: Exception) -> str:
    """Return the line of an error of Ray's that says why: the last of a traceback, or else the first."""
    from ray.exceptions import RayActorError, RayTaskError

    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    is_traceback = isinstance(error, RayTaskError) or (isinstance(error, RayActorError) and error.actor_init_failed)
    return lines[-1 if is_traceback else 0] if lines else type(error).__name__


def _is_lost(node: str) -> bool:
    """Return whether a node is dead. Ray itself takes up to half a minute to notice a node that is silent."""
    import ray

    entry = next((each for each in ray.nodes() if each["NodeID"] == node and each["Alive"]), None)
    if entry is None:
        return True
    try:
        socket.create_connection((entry["NodeManagerAddress"], entry["NodeManagerPort"]), timeout=_NODE_S).close()
    except OSError:
        return True
    return False


def end_process(place: RankPlace) -> None:
    """Kill a rank's process by a signal, on its node: one that is stopped obeys nothing else."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if place.node == ray.get_runtime_context().get_node_id():
        kill_rank(place.pid)
        return
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    task: Any = ray.remote(kill_rank).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    with suppress(RayError):
        ray.get(task.remote(place.pid), timeout=_CLOSE_S)


def kill_rank(pid: int) -> None:
    """Kill a process of this machine, if it is still a rank."""
    with suppress(OSError):
        if (Path("/proc") / str(pid) / "cmdline").read_bytes().startswith(f"ray::{RankActor.__name__}".encode()):
            os.kill(pid, signal.SIGKILL)


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with this IPv4 address; None if there is none."""
    import fcntl
    import struct

    get_address = 0x8915  # SIOCGIFADDR of Linux
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def ordered(places: Sequence[RankPlace], *, first: str) -> list[int]:
    """Return the indices of places by node, that of the id `first` in front: neighbouring ranks share a node.

    A replica of hybrid sharding is learner.shard_size ranks in a row, so it is within a node where the nodes have as
    many.
    """
    return sorted(
        range(len(places)),
        key=lambda i: (
            places[i].node != first,
            places[i].address,
            places[i].node,
            [_by_number(gpu) for gpu in places[i].gpus],
            i,
        ),
    )


def _by_number(gpu: str) -> tuple[int, str]:
    """Sort ids of GPUs as numbers, if they are some: 10 comes after 9."""
    return len(gpu), gpu
