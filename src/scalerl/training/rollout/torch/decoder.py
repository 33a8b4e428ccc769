"""The part of the torch engine that runs on the device: it prefills prompts and samples chunks of tokens.

The host reads results only after a chunk, and then applies stop tokens and budgets. On a GPU every step is a CUDA graph
of one of few shapes (layout.py). On a CPU a step computes only the rows in use.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.training.models.routers import RouterRecorder
from scalerl.training.rollout.progress import Flags, Ints
from scalerl.training.rollout.sampling import sample
from scalerl.training.rollout.torch.body import FusedBody, make_body
from scalerl.training.rollout.torch.cache import DecodePass, ExtendPass, KernelPass, PrefillPass, SlotCache
from scalerl.training.rollout.torch.head import OutputHead
from scalerl.training.rollout.torch.layout import ROW_STEP, HalvedRows, RowLayout, RowSpan, rounded_length
from scalerl.training.rollout.torch.scheduler import PromptBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The inputs of a chunk, as arrays over slots or over steps and slots."""

    token: Ints
    """The last token of each slot, which is not in the cache yet."""
    position: Ints
    """Position of this token in the context; 0 for an unused slot."""
    temperature: NDArray[np.float32]
    greedy: Flags
    """Whether to take the likeliest token; the temperature is then 1."""
    top_p: NDArray[np.float32]
    noise: NDArray[np.float32]
    forced: Ints
    """The token to take instead of a sampled one, or -1."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Everything that determines the operations of a step; one CUDA graph is recorded per shape."""

    rows: int
    """Number of rows that are computed."""
    spans: tuple[RowSpan, ...]
    """Empty if the attention kernel reads the position of each row itself."""
    greedy: bool
    top_p: bool
    forced: bool


class Decoder:
    """Fixed buffers, and the decode step that advances them."""

    def __init__(
        self,
        model: Any,
        *,
        head: OutputHead,
        slots: int,
        max_length: int,
        chunk: int,
        prefill_tokens: int,
        fused: bool,
        cuda_graphs: bool,
        records_experts: bool = False,
    ) -> None:
        config = model.config
        weight = model.get_output_embeddings().weight
        self._device = weight.device
        self.head = head
        self._body = make_body(model, max_length, fused=fused)
        self._kernels = isinstance(self._body, FusedBody) and self._body.has_kernels
        self._recorder = RouterRecorder(model) if records_experts else None
        num_routed = 0 if self._recorder is None else self._recorder.num_routed
        prompt_tokens = max(prefill_tokens, max_length)
        self._cache = SlotCache(
            config,
            slots=slots,
            max_length=max_length,
            prompt_tokens=prompt_tokens,
            dtype=weight.dtype,
            device=self._device,
            num_routed=num_routed,
        )
        self._slots = slots
        self._chunk = chunk
        self._max_length = max_length
        if self._device.type == "cpu":
            # Only in FP32 does the product of a row not depend on the number of rows.
            row_step = ROW_STEP if weight.dtype == torch.float32 else slots
            self._layout = RowLayout(slots, max_length=max_length, row_step=row_step)
        else:
            self._layout = HalvedRows(slots, max_length=max_length)
        self._spans: tuple[RowSpan, ...] = ()
        self.num_rows = slots
        """Number of rows of the next chunk; see `arrange`."""
        self._pass: DecodePass | None = None
        self.graphs: dict[_Shape | tuple[int, int], torch.cuda.CUDAGraph] | None = {} if cuda_graphs else None
        """CUDA graphs of decode steps by shape, and of prefill passes by rows and width."""
        self._seen_shapes: set[tuple[int, int]] = set()
        # Use one stream for all recordings: torch keeps a workspace for every stream that has run a product.
        self._side_stream = torch.cuda.Stream() if cuda_graphs else None
        self._buffers(slots, chunk, prompt_tokens)

    def _buffers(self, slots: int, chunk: int, prompt_tokens: int) -> None:
        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        self._inputs = {
            "token": buffer(slots),
            "position": buffer(slots),
            "temperature": buffer(slots, dtype=torch.float32),
            "greedy": buffer(slots, dtype=torch.bool),
            "top_p": buffer(slots, dtype=torch.float32),
            "noise": buffer(chunk, slots, dtype=torch.float32),
            "forced": buffer(chunk, slots),
        }
        """Buffers for the fields of a Chunk; a step advances tokens and positions."""
        self._tokens = buffer(chunk, slots)
        self._log_probs = buffer(chunk, slots, dtype=torch.float32)
        self._step = buffer(1)
        self._prompts = buffer(prompt_tokens)
        self._on_host: tuple[Tensor, Tensor] | None = None
        """Host memory to which a GPU copies a chunk's results; waiting for it does not wait for later work."""
        if self._device.type == "cuda":
            tokens, log_probs = (
                torch.zeros(chunk, slots, dtype=dtype, pin_memory=True) for dtype in (torch.int64, torch.float32)
            )
            self._on_host = tokens, log_probs
            self._done = torch.cuda.Event()

    def arrange(self, position: Ints, active: Flags, held: Flags) -> None:
        """Choose the rows of the next chunk; call this before the prefill.

        `position` is where each slot continues; `active` marks slots in use, `held` slots whose cache is needed.
        """
        needed = np.where(active, np.minimum(position + self._chunk, self._max_length), 0)
        before = self._layout.row.copy()
        moved, spans = self._layout.arrange(needed)
        self._spans = () if self._kernels else spans
        self.num_rows = spans[-1].stop
        moved = moved[held[moved]]
        if len(moved):
            rows = (self._sent(row[moved]) for row in (before, self._layout.row))
            self._cache.move(*rows, filled=int(position[moved].max()))

    def hold(self, slots: Ints, filled: int) -> list[Tensor]:
        """Copy the cache of these slots, up to position `filled`, to the host; `restore` copies it back."""
        return self._cache.copy_out(self._rows_of(slots), filled)

    def restore(self, slots: Ints, held: list[Tensor]) -> None:
        """Copy back the result of `hold`, each slot to its current row."""
        self._cache.copy_in(held, self._rows_of(slots))

    def _rows_of(self, slots: Ints) -> Tensor:
        return self._sent(self._layout.row[slots])

    def prefill(self, batch: PromptBatch) -> None:
        """Write the keys and values of the batch's tokens into their slots."""
        follows = any(batch.starts)
        num_rows = len(batch.tokens) if follows else batch.rows
        tokens = np.zeros((num_rows, batch.width), dtype=np.int64)
        for row, some in enumerate(batch.tokens):
            tokens[row, : len(some)] = some
        places = np.array(batch.places, dtype=np.int64)
        places[:, 1] = self._layout.row[places[:, 1]]
        if follows:
            self._extend(tokens, np.array(batch.starts), places[:, 1])
            return
        self.send(tokens.reshape(-1), self._prompts[: tokens.size])
        self.run_prompts((batch.rows, batch.width))
        rows, slots = self._sent(places.T.copy())
        self._cache.keep(self._cache.computed(batch.rows, batch.width), rows, slots)

    def _extend(self, tokens: Ints, starts: Ints, rows: Ints) -> None:
        """Write the keys and values of tokens that follow the content of rows."""
        # Padding is written after the prompt; the mask hides it until it is overwritten.
        position = np.minimum(starts[:, None] + np.arange(tokens.shape[1]), self._max_length - 1)
        filled = rounded_length(int(position.max()) + 1, self._max_length)
        given, at, into = map(self._sent, (tokens, position, rows))
        if self._recorder is not None:
            self._recorder.into(*self._cache.routed(into, at))
        self._body(given, at, ExtendPass(self._cache, into, filled).at(at))

    def run_prompts(self, shape: tuple[int, int]) -> None:
        """Compute the prompts, with a CUDA graph from the second time on: recording takes as long as several passes."""
        # Without the kernels, layers may read values back from the device, which a graph cannot contain.
        if self.graphs is None or not self._kernels or shape not in self._seen_shapes:
            self._seen_shapes.add(shape)
            self._compute_prompts(*shape)
            return
        if shape not in self.graphs:
            self.graphs[shape] = self._record(lambda: self._compute_prompts(*shape))
        self.graphs[shape].replay()

    def _compute_prompts(self, rows: int, width: int) -> None:
        tokens = self._prompts[: rows * width].view(rows, width)
        positions = torch.arange(width, device=self._device).expand(rows, -1)
        if self._recorder is not None:
            self._recorder.into(*self._cache.computed_routed(rows * width))
        self._body(tokens, positions, PrefillPass(self._cache.computed(rows, width)))

    def launch(self, chunk: Chunk) -> None:
        """Sample a chunk; on a GPU this returns before the chunk is done."""
        slot = self._layout.slot[: self.num_rows]
        # Do not use [..., slot]: its result is column-major, and a GPU would wait for a copy of it.
        chunk = Chunk(**{name: getattr(chunk, name).take(slot, axis=-1) for name in Chunk.__slots__})
        shape = _Shape(
            rows=self.num_rows,
            spans=self._spans,
            greedy=not self._kernels and bool(chunk.greedy.any()),
            top_p=bool((chunk.top_p < 1).any()),
            forced=not self._kernels and bool((chunk.forced >= 0).any()),
        )
        self._load(chunk)
        if self.graphs is None:
            for _ in range(self._chunk):
                self._advance(shape)
        else:
            if shape not in self.graphs:
                # The steps that warm up are harmless: the chunk computes the same positions again.
                self.graphs[shape] = self._record(lambda: self._advance(shape), before=self._step.zero_)
                self._load(chunk)
            for _ in range(self._chunk):
                self.graphs[shape].replay()
        if self._on_host is not None:
            for host, results in zip(self._on_host, (self._tokens, self._log_probs), strict=True):
                _first_rows(host, self.num_rows).copy_(_first_rows(results, self.num_rows), non_blocking=True)
            self._done.record()

    def collect(self) -> tuple[Ints, NDArray[np.float32]]:
        """Return tokens and log-probs, [chunk, slots]. Entries after the end of a completion have no meaning."""
        results = self._tokens, self._log_probs
        if self._on_host is not None:
            self._done.synchronize()
            results = self._on_host
        slot = self._layout.slot[: self.num_rows]
        # Return copies, because the next chunk overwrites these.
        tokens, log_probs = (np.zeros(part.shape, dtype=part.numpy().dtype) for part in results)
        for target, part in zip((tokens, log_probs), results, strict=True):
            target[:, slot] = _first_rows(part, self.num_rows).numpy()
        return tokens, log_probs

    def experts(self, slot: int, num: int) -> NDArray[np.int16] | None:
        """Return the experts of the first `num` tokens of a slot; None if they are not recorded."""
        if self._recorder is None:
            return None
        return self._cache.experts(int(self._layout.row[slot]), num).cpu().numpy().copy()

    def _load(self, chunk: Chunk) -> None:
        for name, target in self._inputs.items():
            self.send(getattr(chunk, name), _first_rows(target, self.num_rows))
        self._step.zero_()

    def send(self, values: NDArray[Any], target: Tensor) -> Tensor:
        """Copy to the device without waiting for its queue; a copy from pageable memory would wait."""
        source = torch.from_numpy(values)
        if target.is_cuda:
            source = source.pin_memory()
        return target.copy_(source, non_blocking=True)

    def _sent(self, values: Ints) -> Tensor:
        return self.send(values, torch.empty(values.shape, dtype=torch.int64, device=self._device))

    def _advance(self, shape: _Shape) -> None:
        """Sample one token for every row in use."""
        rows = slice(shape.rows)
        token = self._inputs["token"][rows]
        position = self._inputs["position"][rows]
        if shape.spans:
            if self._pass is None or self._pass.spans != shape.spans:
                self._pass = DecodePass(self._cache, shape.spans)
            view = self._pass.at(position[:, None])
        else:
            view = KernelPass(self._cache, position)
        if self._recorder is not None:
            self._recorder.into(*self._cache.routed(rows, position[:, None]))
        logits = self.head.logits(self._body(token[:, None], position[:, None], view)[:, 0])
        if not shape.spans and not shape.top_p:
            self._sample_by_kernel(logits, shape.rows)
        else:
            self._sample(logits, shape)
        self._step.add_(1)

    def _sample(self, logits: Tensor, shape: _Shape) -> None:
        """Sample with torch. If kernels are available, only chunks with top_p are sampled here."""
        inputs = {name: _first_rows(buffer, shape.rows) for name, buffer in self._inputs.items()}
        tokens, log_probs = sample(
            logits,
            inputs["noise"].index_select(0, self._step)[0],
            inputs["temperature"],
            top_p=inputs["top_p"] if shape.top_p else None,
            greedy=inputs["greedy"] if shape.greedy or not shape.spans else None,
        )
        if shape.forced or not shape.spans:
            forced = inputs["forced"].index_select(0, self._step)[0]
            tokens = torch.where(forced >= 0, forced, tokens)
            log_probs = log_probs.masked_fill(forced >= 0, 0.0)
        _first_rows(self._tokens, shape.rows).index_copy_(0, self._step, tokens[None])
        _first_rows(self._log_probs, shape.rows).index_copy_(0, self._step, log_probs[None].float())
        inputs["token"].copy_(tokens)
        # A finished slot may continue to the end of the cache, where it overwrites only itself.
        inputs["position"].add_(1).clamp_(max=self._max_length - 1)

    def _sample_by_kernel(self, logits: Tensor, rows: int) -> None:
        from scalerl.training.rollout.torch import kernels

        kernels.sample_step(
            logits,
            step=self._step,
            tokens=_first_rows(self._tokens, rows),
            log_probs=_first_rows(self._log_probs, rows),
            last_position=self._max_length - 1,
            **{name: _first_rows(buffer, rows) for name, buffer in self._inputs.items() if name != "top_p"},
        )

    def _record(self, work: Callable[[], None], before: Callable[[], Any] = lambda: None) -> torch.cuda.CUDAGraph:
        """Record `work` as a graph, after two warm-up runs; `before` is called before each run and not recorded."""
        assert self.graphs is not None
        assert self._side_stream is not None
        self._side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side_stream):
            for _ in range(2):
                before()
                work()
        torch.cuda.current_stream().wait_stream(self._side_stream)
        graph = torch.cuda.CUDAGraph()
        # All graphs share a memory pool: the memory of a graph is never read after another graph has run.
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        # Another thread may allocate host memory or wait for copies meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
        return graph


def _first_rows(buffer: Tensor, rows: int) -> Tensor:
    """Return the first rows of a buffer over slots, or over steps and slots."""
    shape = (*buffer.shape[:-1], rows)
    return buffer.view(-1)[: math.prod(shape)].view(shape)
