"""What every engine does, whatever samples and wherever: refuse what cannot be served, stay failed once failed, count
versions and work."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import EngineError, UserError
from scalerl.rollout.requests import check_requests
from scalerl.types import Completion, Request, Work

_CLOSED = "the engine is closed"


class AnyEngine(ABC):
    """An Engine (loop/seams.py) over the methods below that begin with an underscore."""

    def __init__(
        self, name: str, *, max_length: int, vocabulary: int, version: int, weights: frozenset[str] = frozenset()
    ) -> None:
        """`name` begins the sentence of a failure; `weights` are those that every push must have."""
        self._name, self._max_length, self.vocabulary, self._needed = name, max_length, vocabulary, weights
        self._version, self._failure = version, ""
        self._is_paused = False
        self._done = {False: Work(), True: Work()}
        """Work outside and inside of pauses."""

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

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_usable()
        check_requests(requests, max_length=self._max_length, vocabulary=self.vocabulary)
        self._enqueue(requests)

    def poll(self) -> list[Completion]:
        with self._failing(f"{self._name} failed"):
            return self._advance()

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights, named as in the model's state_dict, from now on. A tied head may be left out."""
        self._require_usable()
        if version < self._version:
            raise ValueError(f"versions only rise: {version} was pushed after {self._version}")
        if missing := sorted(self._needed - weights.keys()):
            raise ValueError(f"push_weights was not given {missing[0]}: all weights of a version arrive together")
        self._load(weights, version)
        self._version = version

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all pending requests aside, with their caches, and serve what is submitted inside."""
        self._require_usable()
        assert not self._is_paused, "a pause within a pause"
        held, self._is_paused = self._put_aside(), True
        try:
            yield
        finally:
            # After a failure the requests are lost anyway.
            if not self._failure:
                self._bring_back(held)
            self._is_paused = False

    def close(self) -> None:
        if self._failure != _CLOSED:
            self._failure = _CLOSED
            self._drop_all()

    def _work(self, *, paused: bool) -> Work:
        """Return the work so far, outside or inside of pauses."""
        return self._done[paused]

    @abstractmethod
    def _enqueue(self, requests: Sequence[Request]) -> None:
        """Take requests that can be served."""

    @abstractmethod
    def _advance(self) -> list[Completion]:
        """Sample, and return what is complete."""

    @abstractmethod
    def _load(self, weights: Mapping[str, Any], version: int) -> None:
        """Take all weights or raise ValueError; any other error must be within `_failing`."""

    @abstractmethod
    def _put_aside(self) -> Any:
        """Begin with no requests, and return what `_bring_back` needs to go on with those that were pending."""

    @abstractmethod
    def _bring_back(self, held: Any) -> None:
        """Drop all requests, and go on with those that were put aside."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Free the model and forget all requests."""

    def _require_usable(self) -> None:
        if self._failure:
            raise EngineError(self._failure)

    @contextmanager
    def _failing(self, sentence: str) -> Iterator[None]:
        """Turn any error into an EngineError that every later call repeats: the engine's state is unknown then.

        A mistake of the user stays one.
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
