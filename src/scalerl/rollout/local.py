"""What every engine in this process does, whatever samples: refuse what cannot be served, stay failed once failed,
count versions and work."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import EngineError
from scalerl.rollout.requests import check_request
from scalerl.types import Completion, Purpose, Request, Work

_CLOSED = "the engine is closed"


class LocalEngine(ABC):
    """An Engine (loop/seams.py) over the methods below that begin with an underscore."""

    def __init__(
        self, name: str, *, max_length: int, vocabulary: int, version: int, weights: frozenset[str] = frozenset()
    ) -> None:
        """`name` begins the sentence of a failure; `weights` are those that every push must have."""
        self._name, self._max_length, self.vocabulary, self._needed = name, max_length, vocabulary, weights
        self._version, self._failure = version, ""
        self._done: dict[Purpose, Work] = {"training": Work(), "evaluation": Work()}
        """Work by what it was for."""

    @property
    def version(self) -> int:
        return self._version

    @property
    @abstractmethod
    def num_pending(self) -> int: ...

    @property
    def work(self) -> Work:
        return self._work("training") + self._work("evaluation")

    @property
    def eval_work(self) -> Work:
        return self._work("evaluation")

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_usable()
        for request in requests:
            check_request(request, max_length=self._max_length, vocabulary=self.vocabulary)
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

    def close(self) -> None:
        if self._failure != _CLOSED:
            self._failure = _CLOSED
            self._drop_all()

    @abstractmethod
    def _work(self, purpose: Purpose) -> Work:
        """Return the work so far that was done for this."""

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
    def _drop_all(self) -> None:
        """Free the model and forget all requests."""

    def _require_usable(self) -> None:
        if self._failure:
            raise EngineError(self._failure)

    @contextmanager
    def _failing(self, sentence: str) -> Iterator[None]:
        """Turn any error into an EngineError that every later call repeats: the engine's state is unknown then."""
        self._require_usable()
        try:
            yield
        except EngineError as error:
            self._failure = str(error)
            raise
        except Exception as error:  # Out of memory, a device fault, a bug.
            self._failure = f"{sentence}: {type(error).__name__}: {error}".removesuffix(": ")
            raise EngineError(self._failure) from error
