"""A learner whose ranks do the work, with the same interface to the loop as any other: step, weights, state."""

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from scalerl.config.parts import LearnerSettings
from scalerl.errors import LearnerError, RankLost, RunFailure, UserError
from scalerl.learner.ranks.buckets import Bucket
from scalerl.learner.ranks.rank import DONE, FAILED, LearnerRank, RankFacts, RankSpec
from scalerl.learner.saved import SavedTensors
from scalerl.models.shape import ModelShape
from scalerl.types import Batch

_POLL_S = 0.05
_CHECK_S = 0.5
"""Shortest time between two checks of ranks that are not being waited for."""

Publish = Callable[[LearnerRank], Mapping[str, Any] | None]
"""Called on every rank, for its weights: rank 0 returns what stands for them, such as references to where they are."""


class Rank(Protocol):
    """A rank, wherever it runs. `receive` raises what the rank raised, or RankLost if it died."""

    rank: int

    def send(self, message: bytes) -> None: ...
    def receive(self, timeout_s: float) -> tuple[str, Any] | None: ...
    def check(self) -> None:
        """Raise what the rank raised while another one was waited for, or RankLost if it died."""
        ...

    def kill(self) -> None: ...
    def join(self) -> None: ...


def ranked_learner(
    start: Callable[[RankSpec], Sequence[Rank]],
    learner: LearnerSettings,
    *,
    address: str,
    cause_s: float = 1.0,
    publish: Publish | None = None,
    **fields: Any,
) -> "RankedLearner":
    """Return a learner over the ranks that `start` starts. They meet at a port of this process, at `address`.

    `fields` are those of RankSpec that do not follow from the settings; the others are arguments of RankedLearner.
    """
    import torch.distributed as dist

    assert learner.sharding != "none"
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    spec = RankSpec(
        num_ranks=learner.ranks,
        address=address,
        port=store.port,
        sharding=learner.sharding,
        shard_size=learner.shard_size or 0,
        **fields,
    )
    return RankedLearner(
        lambda: start(spec), start_s=learner.start_s, cause_s=cause_s, publish=publish, meeting_place=store
    )


def collect(ranks: Sequence[Rank], *, limit_s: float, fault: str) -> list[Any]:
    """Return one answer of each rank, in their order; RankLost with the `fault` if one takes longer than `limit_s`."""
    waiting = list(ranks)
    answers: dict[int, Any] = {}
    deadline = time.monotonic() + limit_s
    while waiting:
        for rank in list(waiting):
            # All are looked at in turn, so that the failure of any is noticed while others wait for it.
            answer = _received(rank, _POLL_S if rank is waiting[0] else 0.0, deadline, fault)
            if answer is not None:
                answers[rank.rank] = answer[1]
                waiting.remove(rank)
    return [answers[number] for number in sorted(answers)]


def _received(rank: Rank, wait_s: float, deadline: float, fault: str) -> tuple[str, Any] | None:
    answer = rank.receive(wait_s)
    if answer is None and time.monotonic() > deadline:
        raise RankLost(f"rank {rank.rank} of the learner {fault}")
    return answer


class RankedLearner:
    """A learner whose work is divided among ranks. If one dies, all are ended, and so is the run."""

    def __init__(
        self,
        start: Callable[[], Sequence[Rank]],
        *,
        timeout_s: float = 1800.0,
        start_s: float = 3600.0,
        cause_s: float = 1.0,
        publish: Publish | None = None,
        meeting_place: Any = None,
    ) -> None:
        """`start` starts the ranks; an answer that takes longer than `timeout_s` counts as a dead rank.

        The first one, when a rank has loaded the model, may take `start_s`. A rank that fails may have lost another
        one, whose death is noticed up to `cause_s` later. `publish` is how ranks hand out their weights; without it
        they send them to this process. `meeting_place` is kept until the learner is closed.
        """
        self._timeout_s, self._cause_s = timeout_s, cause_s
        self._publish, self._meeting_place = publish, meeting_place
        self._lock = threading.Lock()
        self._check_at = 0.0
        self._failure: BaseException | None = None
        self._ranks = list(start())
        self._on_close: list[Callable[[], None]] = []
        with self._ending_all():
            fault = f"is not ready after {start_s:g} s (learner.start_s): it hangs, or needs longer to load the model"
            facts: list[RankFacts] = collect(self._ranks, limit_s=start_s, fault=fault)
        self._version, self._shape = facts[0].version, facts[0].shape

    @property
    def version(self) -> int:
        return self._version

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch and return its metrics, which are the same on every rank."""
        metrics = self._call("step", batch)[0]
        self._version += 1
        return metrics

    def weights(self) -> Mapping[str, Any]:
        """Return all weights, adapters merged in, those of the body in its dtype. Use them before the next step."""
        return StreamedWeights(self) if self._publish is None else self._call(self._publish)[0]

    def weight_buckets(self) -> Iterator[Bucket]:
        """Yield all weights in buckets, as rank 0 gathers them; it waits while a bucket is not taken."""
        with self._lock, self._ending_all():
            self._send("weight_buckets")
            # Rank 0 sends; the others answer when they have taken part in gathering all.
            try:
                while (answer := self._next(self._ranks[0]))[0] == "item":
                    yield answer[1]
            except GeneratorExit:
                # The rest is not wanted, but the ranks are in the middle of it.
                while self._next(self._ranks[0])[0] == "item":
                    pass
                self._collect(self._ranks[1:])
                raise
            self._collect(self._ranks[1:])

    def state_dict(self) -> "RankState":
        """Return the state, copied by each rank into host memory: training can go on while it is written."""
        has_part = self._call("snapshot")
        return RankState(self, [rank.rank for rank, writes in zip(self._ranks, has_part, strict=True) if writes])

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the state of a checkpoint's folder; each rank reads its own rows."""
        assert isinstance(state, SavedTensors), "ranks read their state from files"
        self._version = self._call("load", str(state.folder.absolute()))[0]

    def rank_facts(self) -> list[RankFacts]:
        return self._call("facts")

    def check(self) -> None:
        """Raise if a rank has died; for use while no rank has anything to do. Does nothing if called again at once."""
        if time.monotonic() < self._check_at or not self._lock.acquire(blocking=False):
            # Whoever has the lock waits for ranks, and notices it.
            return
        try:
            self._check_at = time.monotonic() + _CHECK_S
            with self._ending_all():
                for rank in self._ranks:
                    rank.check()
        finally:
            self._lock.release()

    def check_folder(self, folder: Path) -> None:
        """Raise RunFolderError if a rank does not see a file that is written into a folder here."""
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ranks-") as file:
            self._call("see", str(Path(file.name).absolute()))

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a function to call when the learner is closed."""
        self._on_close.append(callback)

    def close(self) -> None:
        """End the ranks."""
        ranks, self._ranks, self._failure = self._ranks, [], None
        try:
            for rank in ranks:
                rank.send(pickle.dumps(("close", ())))
            for rank in ranks:
                rank.join()
        except LearnerError:
            pass
        finally:
            for rank in ranks:
                rank.kill()
            for callback in self._on_close:
                callback()
            self._on_close, self._meeting_place = [], None

    def start_writing(self, folder: Path) -> None:
        """Let the ranks write their last snapshots into a folder."""
        self._call("write", str(folder.absolute()))

    def _call(self, command: str | Publish, *arguments: Any) -> list[Any]:
        """Give a command to all ranks and return their answers."""
        with self._lock, self._ending_all():
            self._send(command, *arguments)
            return self._collect()

    def _send(self, command: str | Publish, *arguments: Any) -> None:
        if not self._ranks:
            raise self._failure or LearnerError("the learner is closed")
        message = pickle.dumps((command, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        for rank in self._ranks:
            rank.send(message)

    def _collect(self, ranks: Sequence[Rank] | None = None) -> list[Any]:
        """Return one answer of each rank, in their order."""
        return collect(self._ranks if ranks is None else ranks, limit_s=self._timeout_s, fault=self._silence)

    def _next(self, rank: Rank) -> tuple[str, Any]:
        """Return the next answer of one rank, while no other fails."""
        deadline = time.monotonic() + self._timeout_s
        while (answer := _received(rank, _POLL_S, deadline, self._silence)) is None:
            for other in self._ranks:
                other.check()
        return answer

    @property
    def _silence(self) -> str:
        return f"did not answer for {self._timeout_s:g} s"

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        """End all ranks if the block fails: the remaining ranks would wait for the failed one."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            # A rank that lost another one fails as well, and its message may come first.
            is_effect = isinstance(error, LearnerError) and not isinstance(error, RankLost)
            cause = self._loss() if is_effect else None
            for rank in self._ranks:
                rank.kill()
            self._ranks, self._failure = [], cause or error
            if cause is not None:
                raise cause from error
            raise

    def _loss(self) -> RankLost | None:
        """Return the loss of a rank, if one is noticed in time; the failures of other ranks follow from the first."""
        for _ in range(round(self._cause_s / _POLL_S)):
            for rank in self._ranks:
                try:
                    rank.check()
                except RankLost as error:
                    return error
                except (UserError, RunFailure):
                    continue
            time.sleep(_POLL_S)
        return None


class StreamedWeights(Mapping[str, Tensor]):
    """The weights of a learner over ranks, of one version.

    `items()` streams them from the ranks bucket by bucket without keeping any, so that a sender never holds the whole
    model. Any other access gathers all of them in host memory.
    """

    def __init__(self, learner: RankedLearner) -> None:
        self._learner, self._version = learner, learner.version
        self._held: dict[str, Tensor] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, name: str) -> Tensor:
        return self._all()[name]

    def items(self) -> ItemsView[str, Tensor]:
        return _StreamedItems(self)

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights one by one."""
        if self._held is not None:
            yield from self._held.items()
            return
        assert self._learner.version == self._version, "the weights have changed since they were asked for"
        for bucket in self._learner.weight_buckets():
            yield from bucket.tensors()

    def _all(self) -> dict[str, Tensor]:
        if self._held is None:
            self._held = dict(self.stream())
        return self._held


class _StreamedItems(ItemsView[str, Tensor]):
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        weights: Any = self._mapping
        return weights.stream()


class RankState:
    """A state that ranks hold in host memory until it is written."""

    def __init__(self, learner: RankedLearner, writers: Sequence[int]) -> None:
        self._learner, self._writers = learner, writers

    def write(self, folder: Path) -> None:
        """Write every rank's part into the folder and wait for the last; RunFailure if a rank could not."""
        self._learner.start_writing(folder)
        waiting = {rank: folder / DONE.format(rank=rank) for rank in self._writers}
        while waiting:
            for rank, done in list(waiting.items()):
                failed = folder / FAILED.format(rank=rank)
                if failed.exists():
                    raise LearnerError(f"rank {rank} could not write its part of the checkpoint: {failed.read_text()}")
                if done.exists():
                    os.unlink(done)
                    del waiting[rank]
            self._learner.check()
            if waiting and not self._learner.num_ranks:
                raise LearnerError("the ranks of the learner ended while they wrote a checkpoint")
            time.sleep(_POLL_S if waiting else 0.0)
