"""The device's part of the torch engine: prefill prompts into slots, and sample a chunk of tokens for all slots.

Every step computes all slots in one fixed shape, whether they are in use or not, and nothing is read back before the
chunk ends. What the tokens mean (stops, budgets) is the host's business, after the chunk.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from scalerl.rl.logprobs import head_logits
from scalerl.rollout.body import make_body
from scalerl.rollout.cache import DecodePass, PrefillPass, SlotCache
from scalerl.rollout.sampling import sample
from scalerl.rollout.scheduler import PrefillBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a chunk starts from; arrays over slots, or over steps and slots."""

    token: NDArray[np.int64]
    """The last token of each slot, not yet in the cache."""
    position: NDArray[np.int64]
    """Its place in the context."""
    temperature: NDArray[np.float32]
    """0 is greedy."""
    top_p: NDArray[np.float32]
    noise: NDArray[np.float32]
    forced: NDArray[np.int64]
    """The token to take whatever is sampled, or -1."""
    filled: int
    """Positions of the cache that some slot in use attends to before the chunk ends."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What decides which operations a step consists of; a CUDA graph is recorded for each."""

    filled: int
    greedy: bool
    top_p: bool
    forced: bool


class Decoder:
    """Fixed buffers and the step that advances them."""

    def __init__(
        self, model: Any, *, slots: int, max_length: int, chunk: int, fp32_head: bool, fused: bool, cuda_graphs: bool
    ) -> None:
        config, head = model.config, model.get_output_embeddings()
        self._device, dtype = head.weight.device, head.weight.dtype
        self._body = make_body(model, max_length, fused=fused)
        self._head, self._fp32_head = head, fp32_head
        # Kept in FP32 beside a bf16 model, since turning it into FP32 at every token would cost more than using it.
        self._head_weight = head.weight if not fp32_head or dtype.itemsize >= 4 else head.weight.float()
        heads = config.num_attention_heads
        self._cache = SlotCache(
            num_layers=config.num_hidden_layers,
            slots=slots,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            max_length=max_length,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
            device=self._device,
        )
        self._max_length = max_length
        self._granularity = 64 if cuda_graphs else 16
        self._graphs: dict[_Shape, torch.cuda.CUDAGraph] | None = {} if cuda_graphs else None
        self._buffers(slots, chunk)

    def _buffers(self, slots: int, chunk: int) -> None:
        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        self._token, self._position, self._step = buffer(slots), buffer(slots), buffer(1)
        self._temperature, self._top_p = (buffer(slots, dtype=torch.float32) for _ in range(2))
        self._greedy = buffer(slots, dtype=torch.bool)
        self._noise, self._log_probs = (buffer(chunk, slots, dtype=torch.float32) for _ in range(2))
        self._forced, self._tokens = buffer(chunk, slots), buffer(chunk, slots)

    def weights_changed(self) -> None:
        """To be called after new weights were copied into the model."""
        if self._head_weight is not self._head.weight:
            self._head_weight.copy_(self._head.weight)

    def prefill(self, batch: PrefillBatch, pad_token: int) -> None:
        """Write the keys and values of the batch's prompts into their slots."""
        tokens = np.full((batch.rows, batch.width), pad_token, dtype=np.int64)
        for row, prompt in enumerate(batch.prompts):
            tokens[row, : len(prompt)] = prompt
        positions = torch.arange(batch.width, device=self._device).expand(batch.rows, -1)
        rows, slots = zip(*batch.places, strict=True)
        self._body(torch.from_numpy(tokens).to(self._device), positions, PrefillPass(self._cache, rows, slots))

    def decode(self, chunk: Chunk) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and log-probs, [chunk, slots]; rows past their end hold garbage, which the next chunk overwrites."""
        filled = -(-chunk.filled // self._granularity) * self._granularity
        shape = _Shape(
            filled=min(filled, self._max_length),
            greedy=bool((chunk.temperature == 0).any()),
            top_p=bool((chunk.top_p < 1).any()),
            forced=bool((chunk.forced >= 0).any()),
        )
        self._load(chunk)
        if self._graphs is None:
            for _ in range(len(chunk.noise)):
                self._advance(shape)
        else:
            if shape not in self._graphs:
                self._graphs[shape] = self._record(shape)
                self._load(chunk)
            for _ in range(len(chunk.noise)):
                self._graphs[shape].replay()
        return self._tokens.cpu().numpy().copy(), self._log_probs.cpu().numpy().copy()

    def _load(self, chunk: Chunk) -> None:
        greedy = chunk.temperature == 0
        self._token.copy_(torch.from_numpy(chunk.token))
        self._position.copy_(torch.from_numpy(chunk.position))
        self._temperature.copy_(torch.from_numpy(np.where(greedy, np.float32(1), chunk.temperature)))
        self._greedy.copy_(torch.from_numpy(greedy))
        self._top_p.copy_(torch.from_numpy(chunk.top_p))
        self._noise.copy_(torch.from_numpy(chunk.noise))
        self._forced.copy_(torch.from_numpy(chunk.forced))
        self._step.zero_()

    def _advance(self, shape: _Shape) -> None:
        """One token for every slot."""
        view = DecodePass(self._cache, self._position, shape.filled)
        hidden = self._body(self._token[:, None], self._position[:, None], view)[:, 0]
        tokens, log_probs = sample(
            self._logits(hidden),
            self._noise.index_select(0, self._step)[0],
            self._temperature,
            top_p=self._top_p if shape.top_p else None,
            greedy=self._greedy if shape.greedy else None,
        )
        if shape.forced:
            forced = self._forced.index_select(0, self._step)[0]
            tokens = torch.where(forced >= 0, forced, tokens)
            log_probs = log_probs.masked_fill(forced >= 0, 0.0)
        self._tokens.index_copy_(0, self._step, tokens[None])
        self._log_probs.index_copy_(0, self._step, log_probs[None].float())
        self._token.copy_(tokens)
        # A slot past its end may run on to the end of the cache, where it spoils nothing but itself.
        self._position.add_(1).clamp_(max=self._max_length - 1)
        self._step.add_(1)

    def _logits(self, hidden: Tensor) -> Float[Tensor, "slots vocab"]:
        if self._fp32_head:
            return head_logits(hidden, self._head_weight, bias=self._head.bias)
        return self._head(hidden).float()

    def _record(self, shape: _Shape) -> torch.cuda.CUDAGraph:
        """A graph of one step. Running ahead to warm up is harmless: the chunk computes the same positions again."""
        assert self._graphs is not None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step.zero_()
                self._advance(shape)
        torch.cuda.current_stream().wait_stream(stream)
        self._step.zero_()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._advance(shape)
        return graph
