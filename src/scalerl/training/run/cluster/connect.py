"""Connect to Ray, or raise ClusterError with the reason.

A Ray for this machine alone ("local") is a child process: remote/child.py ends it, with everything it started, when it
is closed or when this process is killed. `ray` is imported inside functions, here, in `ranks` and in remote/.
"""

import importlib
import importlib.util
import logging
import os
import re
import secrets
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import ClusterError
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Lost

ANSWER_S = 10.0
"""Seconds within which a cluster must answer."""
LOCAL = "local"
AUTO = "auto"


class Node(NamedTuple):
    """A living node of a cluster."""

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
    """Start Ray on this machine ("local") or join a cluster; raise ClusterError with the reason if that fails.

    `on_lost` is called with the reason, from another thread, if the local Ray dies: Ray's own code would abort this
    process at the next call.
    """
    check_address(address)
    # Before ray is imported.
    _set_variables(address)
    import ray

    # If ray was imported earlier, it read the variable then.
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = address != LOCAL
    if ray.is_initialized():
        raise ClusterError("this process is already connected to Ray: a run makes its own connection")
    with ExitStack() as opened:
        if address == LOCAL:
            opened.enter_context(_token_of_this_run())
        # Ray reads its settings and its token once per process: make it read those of this connection.
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        if address == LOCAL:
            error = _join(opened.enter_context(_local_ray(on_lost)))
        else:
            error = _join_within(ANSWER_S, address)
        if error is not None:
            raise ClusterError(_sentence(address, error))
        opened.callback(ray.shutdown)
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = tuple(Node(each.get("CPU", 0.0), each.get("GPU", 0.0)) for each in resources)
        return Connection(address=address, nodes=nodes, close=opened.pop_all().close)


def _set_variables(address: str) -> None:
    """Set the environment variables that Ray reads when it is imported."""
    # No usage reports, and no check for a newer version.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray would hide the GPUs from actors that reserve none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would give ranks and generators a lower priority than all other processes of the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address == LOCAL:
        # No other node can join, as on macOS and Windows: the ports are open to this machine alone.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


@contextmanager
def _token_of_this_run() -> Iterator[None]:
    """Require a new token at Ray's ports; this process and its children have it in their environment.

    Only the user who owns a process can see its environment. Ray would write the token to a file in the user's home
    folder that other users may read.
    """
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class LocalRay:
    """Ray on this machine alone, in a child process; it fails when one of Ray's servers, its own children, ends.

    It has the methods of an object in another process (training/remote/serve.py).
    """

    def __init__(self) -> None:
        import ray

        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(LOCAL, _temp_dir=tempfile.gettempdir(), **quiet)

    def facts(self) -> str:
        """Return Ray's address on this machine; called once, when Ray has started."""
        import ray

        return ray.get_runtime_context().gcs_address

    def advance(self, send: object) -> None:
        """Wait until a server ends; called again and again."""
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        raise ClusterError("has lost a server: it was killed, ran out of memory or crashed")


@contextmanager
def _local_ray(on_lost: Callable[[str], None]) -> Iterator[str]:
    """Run a LocalRay and yield its address; call `on_lost` if it dies meanwhile."""
    link = ChildLink(LocalRay, has_log=True)
    is_closing = threading.Event()

    def next_message() -> Any:
        """Return its next message that is not a sign of life; raise its error, or Lost."""
        # Nothing is dropped by returning the first: only the address is sent, and later an error.
        while True:
            for kind, value in link.read():
                if kind == "error":
                    raise value
                if kind != "beat":
                    return value

    def watch() -> None:
        """Call `on_lost` when Ray dies, unless it is being closed."""
        try:
            next_message()
        except (ClusterError, Lost) as error:
            if is_closing.is_set():
                return
            if isinstance(error, Lost):
                # A child that reported an error ends Ray's servers itself, when this process has ended.
                link.kill()
            on_lost(f"Ray on this machine {error}; --resume continues from the last checkpoint")

    try:
        try:
            address = next_message()
        except Exception as error:
            raise ClusterError(_sentence(LOCAL, error)) from None
        threading.Thread(target=watch, name="local-ray", daemon=True).start()
        yield address
    finally:
        is_closing.set()
        link.kill()


def check_address(address: str) -> None:
    """Check within seconds, without importing Ray, that a cluster can be joined; "auto" is left to Ray."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError('cluster.address needs the cluster extra: pip install "scalerl[cluster]"')
    if address == LOCAL:
        return
    _check_token_is_private()
    if address == AUTO:
        return
    if not re.fullmatch(r"\[?[\w.:-]+\]?:\d{1,5}", address):
        raise ClusterError(f'cluster.address is "{address}": it must be "auto", "local" or HOST:PORT')
    _check_answers(address)


def _check_token_is_private() -> None:
    """Raise ClusterError if other users can read the file with the token of a cluster."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if path.is_file() and _others_can_read(path):
        raise ClusterError(
            f"other users can read Ray's token, {path}, and use the cluster with it: chmod 600 {path}, and replace the "
            f"token on all nodes if somebody may have read it"
        )


def _others_can_read(path: Path) -> bool:
    """Return whether the permissions of a file and of its parent folders let other users read it."""
    real = path.resolve()
    # A folder's group need not be the file's.
    can_enter = all(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for folder in real.parents)
    return can_enter and bool(real.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _check_answers(address: str) -> None:
    """Raise ClusterError if nothing listens at the address; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S / 2).close()
    except (OSError, OverflowError) as error:
        if isinstance(error, TimeoutError):
            reason = "the connection timed out"
        else:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(f"cluster.address {address} does not answer: {reason}") from None


def _join(address: str) -> BaseException | None:
    """Join Ray; return the error if that fails."""
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except BaseException as error:
        return error
    return None


def _join_within(limit_s: float, address: str) -> BaseException | None:
    """Join a cluster in another thread, because Ray may wait for minutes; return the error if that fails."""
    results: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: results.append(_join(address)), name="ray-init", daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else TimeoutError(f"it does not answer as a Ray cluster within {limit_s:g} s")


def _sentence(address: str, error: BaseException) -> str:
    """Return one line that says why Ray cannot be used: Ray's own error, which names both versions if they differ."""
    return f"Ray at {address} cannot be used: {' '.join(str(error).split()) or type(error).__name__}"
