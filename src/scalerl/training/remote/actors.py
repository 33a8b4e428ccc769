"""An object in a Ray actor, on any node of a cluster. `ray` must be connected (run/cluster/connect.py does this).

    driver: ActorLink --give (numbered commands)--> RemoteActor: a thread that serves the object
                      <--take (messages; at least one call per second returns)--

If an actor or node dies, Ray raises an error. If a process is stopped (SIGSTOP), there is no error, but its calls do
not return, and the silence is noticed. Ray does not guarantee the order of concurrent calls, so commands are numbered.
"""

import os
import pickle
import re
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.training.remote.peer import CLOSE_S, Lost, Message
from scalerl.training.remote.serve import Command, ObjectServer

REPORT_S = 1.0
"""Time within which a living actor answers `take`."""
_THREADS = 4
"""Number of concurrent calls of an actor: `take` may wait while `give` runs."""
_LISTEN_S = 0.5
"""Time for which a driver waits for a message at once."""
_NODE_S = 3.0
"""Time limit for the server of a node to accept a connection."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal codes with which Ray colours its tracebacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPlace:
    """The node, process and GPUs of an actor."""

    node: str
    """Ray's id of the node."""
    address: str
    pid: int
    gpus: tuple[str, ...] = ()
    """Ray's ids of its GPUs: their numbers on the node, or the names of parts of a GPU."""
    device_name: str = ""
    free_bytes: float = 0.0
    """Free memory of its first GPU; 0 if it has no GPU or torch finds none."""


def here(*, looks_at_gpu: bool = False) -> ActorPlace:
    """Return the place of this actor; with `looks_at_gpu`, torch is asked about its GPU."""
    import ray

    context = ray.get_runtime_context()
    gpus = sorted((str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])), key=by_number)
    device_name = ""
    free_bytes = 0.0
    # On a machine with GPUs, torch may find them even if Ray gave the process none.
    if gpus and looks_at_gpu:
        import torch

        if torch.cuda.is_available():
            device_name = torch.cuda.get_device_name(0)
            free_bytes = float(torch.cuda.mem_get_info(0)[0])
    return ActorPlace(
        node=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        pid=os.getpid(),
        gpus=tuple(gpus),
        device_name=device_name,
        free_bytes=free_bytes,
    )


def by_number(gpu: str) -> tuple[int, str]:
    """Sort ids of GPUs as numbers, if possible: 10 comes after 9."""
    return len(gpu), gpu


class RemoteActor:
    """A process that serves an object after `start`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._early: dict[int, Any] = {}
        self._next_number = 0
        self._inbox: deque[Command] = deque()
        self._outbox: list[Message] = []
        self._server = ObjectServer(self.receive, self.send)

    def place(self, looks_at_gpu: bool = False) -> ActorPlace:
        return here(looks_at_gpu=looks_at_gpu)

    def start(self, make: Callable[[], Any]) -> None:
        """Serve what `make` returns."""

        def run() -> None:
            try:
                self._server.run(make)
            except BaseException:
                # The driver has received the error; the traceback is for Ray's log.
                traceback.print_exc()

        self.send("place", here())
        threading.Thread(target=run, name="serve", daemon=True).start()

    def give(self, number: int, command: Command) -> None:
        """Queue a command. Calls are numbered from 0; a call that arrives early waits for the ones before."""
        with self._changed:
            self._early[number] = command
            while self._next_number in self._early:
                self._inbox.append(self._early.pop(self._next_number))
                self._next_number += 1
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Message]:
        """Return a sign of life and the messages since the last call; wait up to `wait_s` for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox, wait_s)
            messages = self._outbox
            self._outbox = []
        return [("beat", self._server.busy_s), *messages]

    def receive(self, wait: bool) -> Command | None:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._inbox)
            return self._inbox.popleft() if self._inbox else None

    def send(self, kind: str, value: Any) -> None:
        # Pickle reports here: arrays returned by Ray would keep a block of its object store in use.
        if kind == "report":
            value = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with self._changed:
            self._outbox.append((kind, value))
            self._changed.notify_all()


def start_actor(role: str, **options: Any) -> Any:
    """Start a process for an object; Ray shows it by its role. `options` are Ray's."""
    import ray

    actor: Any = ray.remote(type(role, (RemoteActor,), {}))
    return actor.options(max_restarts=0, max_concurrency=_THREADS, **options).remote()


class ActorLink:
    """A link to an actor."""

    def __init__(self, actor: Any, make: Callable[[], Any], place: ActorPlace | None = None) -> None:
        """Let the actor serve what `make` returns; the actor reports its place unless it is known already."""
        self.place = place
        self._actor = actor
        self._num_given = 0
        self._is_silent = False
        self._begun: Any = actor.start.remote(make)
        self._report = actor.take.remote(REPORT_S)

    @property
    def where(self) -> str:
        return "" if self.place is None else f", process {self.place.pid} on node {self.place.address},"

    @property
    def pid(self) -> int | None:
        return self.place.pid if self.place is not None and _is_here(self.place) else None

    @property
    def is_placed(self) -> bool:
        return self.place is not None

    def has_left(self) -> bool:
        return self.place is not None and _is_lost(self.place.node)

    def packed(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        import ray

        # It is stored only once, even if many actors get it.
        return ray.put((name, arguments))

    def write(self, command: Any) -> None:
        self._actor.give.remote(self._num_given, command)
        self._num_given += 1

    def read(self) -> list[Message]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            self._is_silent = not ray.wait([self._report], timeout=_LISTEN_S)[0]
            if self._is_silent:
                return []
            # Read it only after it has returned, which may be late: only an error matters.
            ray.get(ray.wait([self._begun], timeout=0)[0])
            messages = ray.get(self._report)
        except RayTaskError as error:
            raise Lost("start", f"cannot be started: {reason_of(error)}") from None
        except RayError as error:
            raise Lost("died", self._reason_of_death(error)) from None
        self._report = self._actor.take.remote(REPORT_S)
        read: list[Message] = []
        for kind, value in messages:
            if kind == "place":
                self.place = value
            elif kind == "report":
                read.append((kind, pickle.loads(value)))
            else:
                read.append((kind, value))
        return read

    def kill(self) -> None:
        import ray
        from ray.exceptions import RayError

        # The actor or its node may be dead already.
        with suppress(RayError, ValueError):
            ray.kill(self._actor)
        if self._is_silent and self.place is not None:
            end_process(self.place)

    def _reason_of_death(self, error: Exception) -> str:
        from ray.exceptions import ActorUnavailableError, RayActorError

        if self.has_left():
            return "was lost with its node"
        if isinstance(error, ActorUnavailableError):
            return "cannot be reached any more"
        if isinstance(error, RayActorError) and error.actor_init_failed:
            return f"cannot be started: {reason_of(error)}"
        return "died: it was killed, ran out of memory or crashed"


def reason_of(error: Exception) -> str:
    """Return the line with the reason in an error of Ray: the last line of a traceback, or else the first line."""
    from ray.exceptions import RayActorError, RayTaskError

    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    is_traceback = isinstance(error, RayTaskError) or (isinstance(error, RayActorError) and error.actor_init_failed)
    if not lines:
        return type(error).__name__
    return lines[-1] if is_traceback else lines[0]


def _is_lost(node: str) -> bool:
    """Return whether a node is dead. Ray itself takes up to half a minute to notice this."""
    import ray

    living = [entry for entry in ray.nodes() if entry["NodeID"] == node and entry["Alive"]]
    if not living:
        return True
    entry = living[0]
    try:
        socket.create_connection((entry["NodeManagerAddress"], entry["NodeManagerPort"]), timeout=_NODE_S).close()
    except OSError:
        return True
    return False


def _is_here(place: ActorPlace) -> bool:
    """Return whether a place is on this process's node."""
    import ray

    return place.node == ray.get_runtime_context().get_node_id()


def end_process(place: ActorPlace) -> None:
    """Kill an actor's process with a signal on its node: a stopped process reacts to nothing else."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if _is_here(place):
        kill_actor(place.pid)
        return
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    task: Any = ray.remote(kill_actor).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    with suppress(RayError):
        ray.get(task.remote(place.pid), timeout=CLOSE_S)


def kill_actor(pid: int) -> None:
    """Kill a process on this machine if it still belongs to Ray."""
    with suppress(OSError):
        if (Path("/proc") / str(pid) / "cmdline").read_bytes().startswith(b"ray::"):
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


def variables_of(place: ActorPlace, *, is_only_node: bool) -> Mapping[str, str]:
    """Return the environment for ranks to communicate over the interface of their node's address, or over loopback."""
    interface = "lo" if is_only_node else interface_of(place.address)
    # gloo would use the address of the host's name, which is often the loopback interface.
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
