"""The compute axis: FLOPs from a model's shape and the tokens processed, and the clock that counts GPU-hours.

One token that attends to c tokens (itself included), with N the parameters it is multiplied by in the body:

    forward   2 N + 4 x layers x attention_width x c         and 2 x head_params where its logits are wanted
    training  3 x forward: the backward pass costs two forward passes, one for activations and one for weights
    with adapters (LoRA) of A parameters: frozen matrices have no gradient, so 4 N and 4 x head_params, and 6 A

A product with a matrix is 2 FLOPs a parameter; queries with keys and probabilities with values are 2 x attention_width
each. Embedding look-ups, norms and softmax are left out, as in every such count (Kaplan et al. 2020, section 2.1). Only
useful work is credited: no padding, no recomputation (gradient checkpointing, the head's second pass).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

# What a second can be spent on; only training is on the compute axis.
TRAINING = "training"
START_UP = "start_up"
ASIDE = ("evaluation", "compilation", "checkpoint", START_UP)

_SECONDS = {kind: f"time/{kind}_s" for kind in (TRAINING, *ASIDE)}
_COUNTED = ("gpu_hours", "flops", "flops/generator", "flops/learner", "tokens", *_SECONDS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the FLOPs of a token depend on."""

    body_params: int
    """Parameters a token is multiplied by before the head; of a mixture of experts only those it is routed to."""
    head_params: int
    layers: int
    attention_width: int
    """Heads x head size."""

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """The shape of any causal language model that transformers knows, without making its weights.

        Every matrix counts that is no embedding: built on the meta device and counted, no family needs its own
        formula. Attention counts as full and causal in every layer.
        """
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        body = 0
        for module in model.modules():
            if module is head or isinstance(module, torch.nn.Embedding):
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 3:
                    # The experts of a layer are one block: experts x rows x columns.
                    body += parameter.numel() * config.num_experts_per_tok // parameter.shape[0]
                elif parameter.ndim == 2:
                    body += parameter.numel()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            body_params=body,
            head_params=config.hidden_size * config.vocab_size,
            layers=config.num_hidden_layers,
            attention_width=config.num_attention_heads * head_size,
        )


def forward_flops(shape: ModelShape, lengths: ArrayLike, num_logits: int) -> float:
    """One pass over sequences of these lengths, with the head at `num_logits` positions.

    A causal sequence of n tokens attends to 1 + 2 + ... + n = n (n + 1) / 2. It is the same whether the tokens go
    through at once or one by one from a cache, so it serves the learner and the generator. A prompt and a completion
    take prompt + completion - 1 tokens in: nothing follows the last.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    attended = float((tokens * (tokens + 1) / 2).sum())
    body = 2.0 * shape.body_params * float(tokens.sum())
    return body + 4.0 * shape.layers * shape.attention_width * attended + 2.0 * shape.head_params * num_logits


def training_flops(shape: ModelShape, lengths: ArrayLike, num_logits: int, *, adapters: int = 0) -> float:
    """Forward and backward over the same. Where there are `adapters`, so many parameters, they alone are trained."""
    full = 3.0 * forward_flops(shape, lengths, num_logits)
    if not adapters:
        return full
    tokens = float(np.sum(lengths))
    return full - 2.0 * (shape.body_params * tokens + shape.head_params * num_logits) + 6.0 * adapters * tokens


def devices_held(names: Iterable[str]) -> int:
    """How many devices a run pays for: a shared one once, the host of a GPU not at all, a machine without one as one.

    devices_held(["cuda:0", "cuda:1", "cuda:0", "cpu"]) is 2.
    """
    accelerators = {name for name in names if name.split(":")[0] != "cpu"}
    return max(len(accelerators), 1)


class Clock:
    """What a run has spent so far: cumulative, never running backwards, and a plain dict in every row and checkpoint.

    gpu_hours is devices x wall time of training, idle time included. It runs from `start_training` on, except inside
    `aside(kind)`, whose seconds go into that kind's own field; until then everything is start-up.
    """

    def __init__(
        self,
        *,
        devices: int = 1,
        now: Callable[[], float] = time.monotonic,
        since: float | None = None,
        spent: Mapping[str, float] | None = None,
    ) -> None:
        """`since` is when the start-up began, if before now; `spent` what a resumed run starts from (see `larger`)."""
        self._devices = devices
        self._now = now
        self._kind = START_UP
        self._spent = dict.fromkeys(_COUNTED, 0.0) | {key: float((spent or {}).get(key, 0.0)) for key in _COUNTED}
        self._since = now() if since is None else since

    @property
    def gpu_hours(self) -> float:
        return self.row()["gpu_hours"]

    @property
    def flops(self) -> float:
        return self._spent["flops"]

    def start_training(self) -> None:
        """The end of start-up."""
        self._settle()
        self._kind = TRAINING

    @contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """Time that is not training: "evaluation", "compilation", "checkpoint" or "start_up". The innermost counts."""
        if kind not in ASIDE:
            raise ValueError(f"no time is counted as {kind!r}; the kinds are {', '.join(ASIDE)}")
        self._settle()
        outer, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._settle()
            self._kind = outer

    def recount(self, kind: str, seconds: float) -> None:
        """Of the training so far, these seconds were of another kind: known only afterwards, as of a compiler's."""
        if kind not in ASIDE:
            raise ValueError(f"no time is counted as {kind!r}; the kinds are {', '.join(ASIDE)}")
        self._settle()
        seconds = min(max(seconds, 0.0), self._spent[_SECONDS[TRAINING]])
        self._spent[_SECONDS[TRAINING]] -= seconds
        self._spent["gpu_hours"] -= self._devices * seconds / 3600
        self._spent[_SECONDS[kind]] += seconds

    def add(self, *, generator_flops: float = 0.0, learner_flops: float = 0.0, tokens: int = 0) -> None:
        """Work of training done, tokens being sampled ones: what filters drop is paid for too, evaluations are not."""
        added = {
            "flops": generator_flops + learner_flops,
            "flops/generator": generator_flops,
            "flops/learner": learner_flops,
            "tokens": tokens,
        }
        for key, value in added.items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{key} grows by {value}, which is no amount of work")
            self._spent[key] += value

    def row(self) -> dict[str, float]:
        """All that was spent so far: the fields of a row and of a checkpoint."""
        self._settle()
        return dict(self._spent)

    def _settle(self) -> None:
        now = self._now()
        # A source that steps back (a suspended machine, a bad clock) must not take back what was spent.
        elapsed = max(now - self._since, 0.0)
        self._since = now
        self._spent[_SECONDS[self._kind]] += elapsed
        if self._kind == TRAINING:
            self._spent["gpu_hours"] += self._devices * elapsed / 3600


def larger(*spent: Mapping[str, Any]) -> dict[str, float]:
    """Field by field the largest, of a checkpoint and the last rows.

    What was spent after the checkpoint was spent, though its steps are repeated.
    """
    return {key: max((float(row[key]) for row in spent if key in row), default=0.0) for key in _COUNTED}
