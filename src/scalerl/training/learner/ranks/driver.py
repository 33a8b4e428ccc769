"""A learner that divides its work among ranks, with the interface of any other learner: step, weights, state."""

import functools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalerl.errors import LearnerError, RankLost, RunFailure, UserError
from scalerl.recipe.parts import LearnerSettings
from scalerl.training.learner.ranks.rank import LearnerRank, RankSpec
from scalerl.training.learner.saved import SavedTensors
from scalerl.training.learner.state import State
from scalerl.training.models.shape import ModelShape
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits, Link, Lost, Peer, close_all, send_all
from scalerl.training.remote.serve import RemoteFailure
from scalerl.training.types import Batch

LOOPBACK = "127.0.0.1"
_ANSWER_S = 1800.0
"""Time limit for a command; a rank that takes longer counts as dead."""
_POLL_S = 0.05
_CHECK_S = 0.5
"""Shortest time between two checks of idle ranks."""


def ranked_learner(
    start: Callable[[RankSpec], Sequence[Link]],
    learner: LearnerSettings,
    *,
    address: str = LOOPBACK,
    cause_s: float = 1.0,
    **fields: Any,
) -> "RankedLearner":
    """Return a learner over the ranks that `start` starts. They meet at this process, which they reach at `address`.

    `fields` are fields of RankSpec that do not follow from the settings.
    """
    assert learner.sharding != "none"
    place = LocalMeeting() if address == LOOPBACK else ClusterMeeting(address)
    spec = RankSpec(learner=learner, address=address, meeting=place.name, **fields)
    limits = Limits(silent_s=learner.silent_s, start_s=learner.start_s, stuck_s=_ANSWER_S)
    return RankedLearner(start(spec), limits=limits, cause_s=cause_s, meeting_place=place)


class LocalMeeting:
    """Where ranks of this machine meet: a file in memory that only processes of this user can open, and no port."""

    def __init__(self) -> None:
        self._file = os.memfd_create("scalerl-ranks")
        self.name = f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        os.close(self._file)


class ClusterMeeting:
    """Where ranks of several nodes meet: a port at this address only; by default torch would listen at all of them.

    Like the connections between ranks it is torch's own and asks for no secret: the network of a cluster is trusted.
    """

    def __init__(self, address: str) -> None:
        import torch.distributed as dist

        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            self._store: Any = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
            )
        self.name = f"{address}:{port}"

    def close(self) -> None:
        self._store = None


def child_ranks(spec: RankSpec) -> list[Link]:
    """Start ranks as processes on this machine, which communicate over the loopback interface."""
    variables = {name: os.environ.get(name, "lo") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    links: list[Link] = []
    try:
        for rank in range(spec.learner.ranks):
            links.append(ChildLink(functools.partial(LearnerRank, spec, rank), variables=variables))
    except BaseException:
        for link in links:
            link.kill()
        raise
    return links


class RankedLearner:
    """A learner whose work is divided among ranks. If a rank dies, all ranks and the run are ended."""

    def __init__(
        self,
        links: Sequence[Link],
        *,
        limits: Limits = Limits(),  # noqa: B008 -- frozen
        cause_s: float = 1.0,
        meeting_place: LocalMeeting | ClusterMeeting | None = None,
    ) -> None:
        """Use the ranks behind `links`.

        A rank may fail because another one died, which is noticed up to `cause_s` later. `meeting_place` is kept until
        the learner is closed.
        """
        self._cause_s = cause_s
        self._meeting_place = meeting_place
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._check_at = 0.0
        self._failure: BaseException | None = None
        self.ranks = [Peer(link, limits=limits, news=self._news) for link in links]
        with self._ending_all():
            facts: list[tuple[int, ModelShape]] = self._collect()
        self.version, self.shape = facts[0]

    @property
    def pids(self) -> list[int | None]:
        """Ids of the ranks' processes; None for one on another machine."""
        return [rank.link.pid for rank in self.ranks]

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch and return its metrics, which are equal on all ranks."""
        metrics = self.call("step", batch)[0]
        self.version += 1
        return metrics

    def mean_loss(self, batch: Batch) -> float:
        """Return the loss of a batch without training on it."""
        return self.call("mean_loss", batch)[0]

    def weights(self) -> Mapping[str, Any]:
        """Return all weights, with adapters merged in and the body in its dtype, where rank 0 has put them."""
        return self.call("publish")[0]

    def state_dict(self) -> "RankState":
        """Return the state; each rank has copied it to host memory, so that training can continue while it is
        written."""
        self.call("snapshot")
        return RankState(self.call)

    def load_state_dict(self, state: State) -> None:
        """Restore the state from a checkpoint's folder; each rank reads its own rows."""
        assert isinstance(state, SavedTensors), "ranks read their state from files"
        self.version = self.call("load", str(state.folder.absolute()))[0]

    def check(self) -> None:
        """Raise an error if a rank has died. Call this while ranks are idle; repeated calls at once do nothing."""
        if time.monotonic() < self._check_at or not self._lock.acquire(blocking=False):
            # The thread that has the lock waits for the ranks and notices a death.
            return
        try:
            self._check_at = time.monotonic() + _CHECK_S
            with self._ending_all():
                for rank, peer in enumerate(self.ranks):
                    _heard(rank, peer.check)
        finally:
            self._lock.release()

    def check_folder(self, folder: Path) -> None:
        """Raise RunFolderError if a rank cannot see a file that this process writes to a folder."""
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ranks-") as file:
            self.call("see", str(Path(file.name).absolute()))

    def close(self) -> None:
        """End the ranks."""
        ranks = self.ranks
        self.ranks = []
        self._failure = None
        close_all(ranks)
        if self._meeting_place is not None:
            self._meeting_place.close()
            self._meeting_place = None

    def call(self, command: Any, *arguments: Any) -> list[Any]:
        """Send a command to all ranks and return their answers."""
        with self._lock, self._ending_all():
            if not self.ranks:
                raise self._failure or LearnerError("the learner is closed")
            send_all(self.ranks, command, *arguments)
            return self._collect()

    def _collect(self) -> list[Any]:
        """Return one answer from each rank, in order."""
        ranks = self.ranks
        answers = dict[int, Any]()
        while True:
            self._news.clear()
            if self.ranks is not ranks:
                # Another thread closed it, so a checkpoint that is being written is incomplete.
                raise LearnerError("the learner is closed")
            for rank, peer in enumerate(ranks):
                # Check all ranks, to notice the failure of one for which the others wait.
                if rank in answers:
                    _heard(rank, peer.check)
                elif (message := _heard(rank, peer.receive)) is not None:
                    answers[rank] = message[1]
            if len(answers) == len(ranks):
                return [answers[rank] for rank in range(len(ranks))]
            self._news.wait(_POLL_S)

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        """End all ranks if the block fails, because the others would wait for the failed one."""
        try:
            yield
        except BaseException as error:
            # A rank also fails if it loses another one, and its message may come first.
            is_effect = isinstance(error, LearnerError) and not isinstance(error, RankLost)
            cause = self._loss() if is_effect else None
            for peer in self.ranks:
                peer.kill()
            self.ranks = []
            self._failure = cause or error
            if cause is not None:
                raise cause from error
            raise

    def _loss(self) -> RankLost | None:
        """Return the loss of a rank if one is noticed in time; it is the cause of the other ranks' failures."""
        deadline = time.monotonic() + self._cause_s
        while time.monotonic() < deadline:
            for rank, peer in enumerate(self.ranks):
                try:
                    _heard(rank, peer.check)
                except RankLost as error:
                    return error
                except (UserError, RunFailure):
                    continue
            time.sleep(_POLL_S)
        return None


def _heard(rank: int, listen: Callable[[], Any]) -> Any:
    """Return a rank's message, or raise its failure or loss with the number of the rank."""
    try:
        return listen()
    except Lost as loss:
        setting = " (learner.start_s)" if str(loss).startswith("is not ready after") else ""
        raise RankLost(
            f"rank {rank} of the learner{loss.where} {loss}{setting}; --resume continues from the last checkpoint"
        ) from None
    except RemoteFailure as failure:
        error = LearnerError(f"rank {rank} of the learner failed: {failure}")
        for note in getattr(failure, "__notes__", ()):
            error.add_note(note)
        raise error from None


class RankState:
    """A state that the ranks hold in host memory until it is written."""

    def __init__(self, call: Callable[..., list[Any]]) -> None:
        self._call = call

    def write(self, folder: Path) -> None:
        """Let every rank write its part to the folder and wait for all; RunFailure if a rank fails."""
        self._call("write", str(folder.absolute()))
        while not all(self._call("has_written")):
            time.sleep(_POLL_S)
