"""Connect to Ray, or raise ClusterError with the reason.

`ray` is imported here, in `ranks` beside this module, and in remote/, inside functions.
"""

import importlib.util
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scalerl.errors import ClusterError
from scalerl.run.cluster.cleanup import Cleanup, servers

ANSWER_S = 10.0
"""How long a cluster may take to answer."""
LOCAL = "local"
AUTO = "auto"


class Node(NamedTuple):
    """A living node of a cluster."""

    id: str
    """Ray's."""
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection to Ray."""

    address: str
    nodes: tuple[Node, ...]
    close: Callable[[], None]

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return int(sum(node.gpus for node in self.nodes))


def connect(address: str, *, on_lost: Callable[[str], None] = lambda reason: None) -> Connection:
    """Start Ray on this machine ("local") or join a cluster; ClusterError says why that cannot be done.

    `on_lost` is called with the reason, from another thread, if a server of the local Ray dies: this process could then
    not even end as usual, because Ray's own code would abort it at the next call.
    """
    check_address(address)
    # Before ray is imported: no usage reports, no hook that looks for a newer version.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address == LOCAL:
        # A node that no other can join, as Ray has them on macOS and Windows: its ports are open to this machine alone.
        # Other users of the machine need the token in this user's home folder, which Ray itself sees to.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # Ranks and generators matter as much as the driver; Ray would let every other process of the machine go first.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        raise ClusterError("this process is connected to Ray already: a run makes its own connection")
    cleanup = Cleanup() if address == LOCAL else None
    # Ray's processes end with the thread that started them, so a local Ray is started in this one.
    error = _attempt(include_dashboard=False, _temp_dir=cleanup.folder) if cleanup else _within(ANSWER_S, address)
    if error is not None:
        if cleanup is not None:
            cleanup.close(kills=True)
        raise ClusterError(_sentence(address, error))
    is_closing = threading.Event()
    if cleanup is not None:
        watched = (servers(cleanup.folder), is_closing, on_lost)
        threading.Thread(target=_watch, args=watched, name="ray-servers", daemon=True).start()

    def close() -> None:
        is_closing.set()
        ray.shutdown()
        if cleanup is not None:
            cleanup.close()

    found = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    nodes = tuple(Node(name, held.get("CPU", 0.0), held.get("GPU", 0.0)) for name, held in found)
    return Connection(address=address, nodes=nodes, close=close)


def _watch(found: Mapping[int, str], is_closing: threading.Event, on_lost: Callable[[str], None]) -> None:
    """Wait for the death of any of these processes."""
    waiting, names = select.poll(), {}
    for pid, name in found.items():
        file = os.pidfd_open(pid)
        names[file] = name
        waiting.register(file, select.POLLIN)
    died = [names[file] for file, _ in waiting.poll()]
    if not is_closing.is_set():
        on_lost(
            f"Ray's {died[0]} process on this machine has died: it was killed, ran out of memory or crashed; --resume "
            f"continues from the last checkpoint"
        )


def check_address(address: str) -> None:
    """Check in seconds, without importing Ray, that a cluster can be joined; "auto" is left to Ray."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError('cluster.address needs the cluster extra: pip install "scalerl[cluster]"')
    if address in (LOCAL, AUTO):
        return
    if not re.fullmatch(r"\[?[\w.:-]+\]?:\d{1,5}", address):
        raise ClusterError(f'cluster.address is "{address}": it must be "auto", "local" or HOST:PORT')
    _check_answers(address)


def _check_answers(address: str) -> None:
    """Raise ClusterError if nothing listens at the address: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S / 2).close()
    except (OSError, OverflowError) as error:
        timed_out = isinstance(error, TimeoutError)
        reason = "the connection timed out" if timed_out else (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"cluster.address {address} does not answer: {reason}") from None


def _attempt(address: str = LOCAL, **settings: Any) -> BaseException | None:
    """Start or join Ray; return the error, if any."""
    import ray

    settings |= {"log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(address=address, **settings)
    except BaseException as error:
        return error
    return None


def _within(limit_s: float, address: str) -> BaseException | None:
    """Join a cluster in a separate thread, since Ray may wait for minutes; return the error, if any."""
    results: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: results.append(_attempt(address)), name="ray-init", daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else TimeoutError(f"it does not answer as a Ray cluster within {limit_s:g} s")


def _sentence(address: str, error: BaseException) -> str:
    """Say why Ray cannot be used, in one line: where versions differ, Ray names both."""
    return f"Ray at {address} cannot be used: {' '.join(str(error).split()) or type(error).__name__}"
