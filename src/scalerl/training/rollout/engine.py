"""The part of an engine that does not depend on how it samples: it rejects requests that cannot be served, keeps
failing after a failure, and counts versions and work."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import EngineError, UserError
from scalerl.training.rollout.requests import check_requests
from scalerl.training.types import Completion, Request, Work

_CLOSED = "the engine is closed"


class EngineBase(ABC):
    """An Engine (training/loop/seams.py) that implements its public methods with the private ones below."""

    def __init__(
        self, name: str, *, max_length: int, vocabulary: int, version: int, weights: frozenset[str] = frozenset()
    ) -> None:
        """`name` is the subject of error messages; `weights` are the names that every push must contain."""
        self._name = name
        self._max_length = max_length
        self.vocabulary = vocabulary
        self._needed = weights
        self._version = version
        self._failure = ""
        self._is_paused = False
        self._done = {False: Work(), True: Work()}
        """Work outside and inside pauses."""

    @property
    def version(self) -> int:
        return self._version

    @property
    @abstractmethod
    def num_pending(self) -> int: ...

    @property
    def work(self) -> Work:
        return self._work(paused=False)

    @property
    def eval_work(self) -> Work:
        return self._work(paused=True)

    def device_times(self) -> Mapping[str, float]:
        """Return the seconds for which the device has worked so far, by kind of work; empty if they are unknown."""
        return {}

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_usable()
        check_requests(requests, max_length=self._max_length, vocabulary=self.vocabulary)
        self._enqueue(requests)

    def poll(self) -> list[Completion]:
        with self._failing(f"{self._name} failed"):
            return self._advance()

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on; names are those of the model's state_dict. A tied head may be left
        out."""
        self._require_usable()
        if version < self._version:
            raise ValueError(f"versions must rise: {version} was pushed after {self._version}")
        if missing := sorted(self._needed - weights.keys()):
            raise ValueError(f"push_weights needs all weights of a version, but {missing[0]} is missing")
        self._load(weights, version)
        self._version = version

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all pending requests aside, with their caches, and serve requests submitted inside this context."""
        self._require_usable()
        assert not self._is_paused, "a pause within a pause"
        held = self._put_aside()
        self._is_paused = True
        try:
            yield
        finally:
            # After a failure, the requests are lost anyway.
            if not self._failure:
                self._bring_back(held)
            self._is_paused = False

    def close(self) -> None:
        if self._failure != _CLOSED:
            self._failure = _CLOSED
            self._drop_all()

    def _work(self, *, paused: bool) -> Work:
        """Return the work so far, outside or inside pauses."""
        return self._done[paused]

    @abstractmethod
    def _enqueue(self, requests: Sequence[Request]) -> None:
        """Queue requests, which can be served."""

    @abstractmethod
    def _advance(self) -> list[Completion]:
        """Sample, and return finished completions."""

    @abstractmethod
    def _load(self, weights: Mapping[str, Any], version: int) -> None:
        """Load the weights or raise ValueError; code that may raise other errors must be inside `_failing`."""

    @abstractmethod
    def _put_aside(self) -> Any:
        """Remove all pending requests, and return what `_bring_back` needs to continue them."""

    @abstractmethod
    def _bring_back(self, held: Any) -> None:
        """Drop all requests, and continue those that were put aside."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Free the model and forget all requests."""

    def _require_usable(self) -> None:
        if self._failure:
            raise EngineError(self._failure)

    @contextmanager
    def _failing(self, sentence: str) -> Iterator[None]:
        """Turn any error into an EngineError, which every later call raises again: the engine's state is unknown.

        A UserError is passed on unchanged.
        """
        self._require_usable()
        try:
            yield
        except (EngineError, UserError) as error:
            self._failure = self._failure or str(error)
            raise
        except Exception as error:  # Out of memory, a device fault, a bug.
            self._failure = f"{sentence}: {type(error).__name__}: {error}".removesuffix(": ")
            raise EngineError(self._failure) from error
