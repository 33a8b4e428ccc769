"""References of the KL term, with which the policy's log-probs are compared.

    start      the model at the start of the run
    teacher    another model in this process, by folder or name
    server     another model, at a server with OpenAI's interface
    self       the policy itself, with a hint in the prompt or at a lower temperature

REFERENCES has what builds each; keyword-only arguments are the settings.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scalerl.errors import LearnerError
from scalerl.recipe.secrets import from_environment
from scalerl.training.learner.batch import MicroBatch, PreparedBatch, forward_inputs
from scalerl.training.learner.policy import LocalPolicy, Policy
from scalerl.training.learner.share import Sizes
from scalerl.training.models.load import load_model
from scalerl.training.models.shape import ModelShape, forward_flops
from scalerl.training.types import Completion
from scalerl.web.client import ask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PER_REQUEST = 8
"""Completions per request to a server."""
_MOST_BYTES = 2**28


class Reference(ABC):
    """Log-probs of the tokens that are trained on."""

    def begin(self, micro_batches: Sequence[MicroBatch]) -> None:  # noqa: B027
        """Announce the micro-batches of a step, so that a server can begin to compute them."""

    @abstractmethod
    def log_probs(self, micro: MicroBatch, policy: Policy) -> Tensor:
        """Return the log-prob of every target of a micro-batch; `policy` is the policy in training."""

    @abstractmethod
    def flops(self, prepared: PreparedBatch, shape: ModelShape) -> float:
        """Return the FLOPs of these log-probs for a whole batch; `shape` is the policy's shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The model before training, and the settings with which its passes are computed."""

    model: "PreTrainedModel"
    dtype: torch.dtype
    fp32_head: bool

    def freeze(self, model: "PreTrainedModel") -> LocalPolicy:
        """Return a policy of another model that is computed in the same way and never trained."""
        return LocalPolicy(model.requires_grad_(False), dtype=self.dtype, fp32_head=self.fp32_head, compiled=False)


class FrozenModel(Reference):
    """A model in this process that does not change."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._shape = ModelShape.from_config(policy.model.config)

    @torch.no_grad()
    def log_probs(self, micro: MicroBatch, policy: Policy) -> Tensor:
        return self._policy.run(micro.inputs)[0]

    def flops(self, prepared: PreparedBatch, shape: ModelShape) -> float:
        return forward_flops(self._shape, prepared.lengths, _num_logits(prepared), shared=prepared.shared)


class SelfReference(Reference):
    """The policy in training, with a hint in the prompt or a lower temperature, for self-distillation."""

    def __init__(self, trained: Trained | None, *, temperature_frac: float = 1.0, hint: str = "") -> None:
        self._temperature_frac = temperature_frac
        self._hinted = bool(hint)

    @torch.no_grad()
    def log_probs(self, micro: MicroBatch, policy: Policy) -> Tensor:
        inputs = micro.inputs
        if self._hinted:
            completions = list(map(_hinted, micro.completions))
            inputs = forward_inputs(completions, Sizes.of(completions), np.arange(len(completions)), micro.trained)
        return policy.run(replace(inputs, temperature=self._temperature_frac * inputs.temperature))[0]

    def flops(self, prepared: PreparedBatch, shape: ModelShape) -> float:
        lengths = prepared.lengths
        shared = prepared.shared
        if self._hinted:
            lengths = Sizes.of(list(map(_hinted, prepared.completions))).length
            shared = 0
        return forward_flops(shape, lengths, _num_logits(prepared), shared=shared)


class ServerReference(Reference):
    """A model with the same vocabulary, at a server that returns log-probs of a prompt (OpenAI's completions with
    `echo`, as vLLM has them)."""

    def __init__(
        self,
        trained: Trained | None,
        *,
        url: str,
        model: str,
        api_key: str = "",
        params: float = 0.0,
        num_parallel: int = 16,
    ) -> None:
        self._url = f"{url.rstrip('/')}/completions"
        self._model = model
        self._params = params
        self._api_key = from_environment({"api_key": api_key, "url": url}, "kl.reference.api_key")["api_key"]
        self._threads = ThreadPoolExecutor(num_parallel, thread_name_prefix="teacher")
        self._asked: dict[int, list[Future[np.ndarray]]] = {}
        """Requests that were sent, by the id of the micro-batch."""

    def begin(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._asked = {id(micro): list(self._ask(micro.completions)) for micro in micro_batches}

    def log_probs(self, micro: MicroBatch, policy: Policy) -> Tensor:
        asked = self._asked.pop(id(micro), None) or list(self._ask(micro.completions))
        log_probs = np.concatenate([future.result() for future in asked])
        return torch.from_numpy(log_probs[micro.trained]).to(policy.device)

    def flops(self, prepared: PreparedBatch, shape: ModelShape) -> float:
        num_tokens = sum(len(each.request.prompt_tokens) + len(each) for each in prepared.completions)
        return 2 * self._params * num_tokens

    def _ask(self, completions: Sequence[Completion]) -> Iterator[Future[np.ndarray]]:
        for first in range(0, len(completions), _PER_REQUEST):
            yield self._threads.submit(self._asked_now, completions[first : first + _PER_REQUEST])

    def _asked_now(self, completions: Sequence[Completion]) -> np.ndarray:
        """Return the log-probs of the tokens of all completions."""
        prompts = [[*each.request.prompt_tokens, *each.tokens.tolist()] for each in completions]
        # Sample one token and discard it: not every server accepts 0.
        body = {"model": self._model, "prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 1}
        options = {"api_key": self._api_key, "most_bytes": _MOST_BYTES}
        reply = ask(self._url, body, server="the teacher's server", error=LearnerError, **options)
        return np.concatenate([_token_log_probs(reply, number, each) for number, each in enumerate(completions)])


def _token_log_probs(reply: Any, number: int, completion: Completion) -> np.ndarray:
    """Return the log-probs of a completion in a server's reply to several."""
    first = len(completion.request.prompt_tokens)
    try:
        (choice,) = [choice for choice in reply["choices"] if choice["index"] == number]
        values = np.array(choice["logprobs"]["token_logprobs"][first : first + len(completion)], dtype=np.float32)
    except (LookupError, TypeError, ValueError):
        values = np.zeros(0, np.float32)
    if len(values) != len(completion) or not np.isfinite(values).all():
        raise LearnerError(
            "the teacher's server returned no log-probs of the prompt: it must support echo, logprobs and prompts of "
            "token numbers at /completions"
        )
    return values


def _hinted(completion: Completion) -> Completion:
    """Return a completion with the hinted prompt in place of its prompt."""
    request = completion.request
    assert request.hint_tokens, "a request without a hint"
    return replace(completion, request=replace(request, prompt_tokens=request.hint_tokens), experts=None)


def _num_logits(prepared: PreparedBatch) -> int:
    return int(prepared.facts["batch/trained_tokens"])


def start(trained: Trained) -> Reference:
    """Return a copy of the model at the start of the run."""
    return FrozenModel(trained.freeze(copy.deepcopy(trained.model)))


def teacher(trained: Trained, *, path: str) -> Reference:
    """Return another model with the same vocabulary, by folder or name."""
    return FrozenModel(trained.freeze(load_model(path, dtype=trained.dtype, device=trained.model.device).model))


REFERENCES: dict[str, Callable[..., Reference]] = {
    "start": start,
    "teacher": teacher,
    "server": ServerReference,
    "self": SelfReference,
}
