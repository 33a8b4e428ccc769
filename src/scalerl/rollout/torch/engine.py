"""The embedded engine: continuous batching over fixed slots with torch, on a CPU or a GPU.

    requests -> scheduler -> prefill -> decode a chunk -> progress (budgets, markers, stops) -> completions
                slots        cache      body, sampling    plain numpy

    poll:  refill slots, prefill their prompts, sample a chunk for all slots, apply length plans, return completions

A completion depends only on its request and the weights. Noise is keyed by (seed, token index). The shape in which a
prompt is computed depends on that prompt alone, and the shape of a decode step does not change a row's result: all
slots on a GPU, multiples of 16 rows on a CPU. (Attention over a masked tail of another length can still change the last
bit.)

On a GPU the next chunk is launched before a poll returns, so that the device does not wait for the host. New weights
and requests therefore take effect one chunk later.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.errors import EngineError, NonFiniteLogits
from scalerl.rollout.noise import uniforms
from scalerl.rollout.progress import ChunkResult, Progress
from scalerl.rollout.requests import check_request
from scalerl.rollout.torch.body import check_model, own_copy
from scalerl.rollout.torch.decoder import Chunk, Decoder
from scalerl.rollout.torch.head import Head
from scalerl.rollout.torch.scheduler import Admitted, PromptBatch, SlotScheduler, plan_prompts
from scalerl.types import Completion, Request, Work

_CLOSED = "the engine is closed"

_PASS_PRODUCTS = 5e12
"""Parameters x tokens of a pass over prompts on a GPU, about 10 ms on an H200. A pass is padded to its full size, and
most polls have a few new prompts: a larger pass would mostly compute padding."""

_SLOT_STATE = (
    *("_scheduler", "_progress", "_early", "_token", "_prompt_length", "_temperature", "_top_p", "_seeds"),
    *("_evaluates", "_tokens", "_versions", "_log_probs", "_forced"),
)
"""What the engine holds about its slots on the host; a pause puts it aside."""


@dataclass(frozen=True, slots=True)
class _RunningChunk:
    """A chunk that was launched and not collected yet."""

    version: int
    """Version of the weights it is sampled with."""
    start: NDArray[np.int64]
    """Number of tokens of each slot before the chunk."""


class TorchEngine:
    """An Engine in this process, with its own copy of the model's weights."""

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        max_length: int,
        stop_tokens: Iterable[int],
        chunk: int | None = None,
        fp32_head: bool = True,
        version: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        prefill_tokens: int | None = None,
        cuda_graphs: bool | None = None,
        fused: bool = True,
        records_experts: bool = False,
    ) -> None:
        """Copy the model and allocate the slots.

        `max_length` is the context: prompt and completion together. A poll samples `chunk` tokens per slot; up to
        `prefill_tokens` tokens of padded prompts go through the model at once. dtype and device default to the model's.
        A GPU uses longer chunks by default (16, not 4) and decodes by CUDA graphs. `fused=False` uses the slower,
        general body. With `records_experts`, completions have the experts that their tokens were routed to.
        """
        self._scheduler = SlotScheduler(slots)
        if min(1 if chunk is None else chunk, 1 if prefill_tokens is None else prefill_tokens, max_length) < 1:
            raise ValueError(
                f"max_length, chunk and prefill_tokens must be at least 1, got {max_length}, {chunk}, {prefill_tokens}"
            )
        check_model(model, max_length)
        self._model = own_copy(model, dtype=dtype, device=device)
        head = self._model.get_output_embeddings().weight
        on_gpu = head.device.type == "cuda"
        self._launches_ahead, self._running = on_gpu, None
        if cuda_graphs and not on_gpu:
            raise ValueError(f"cuda_graphs needs a CUDA device, and the model is on {head.device}")
        self._vocabulary, self._max_length = int(head.shape[0]), max_length
        self._chunk = chunk or (16 if on_gpu else 4)
        self._prefill_tokens = prefill_tokens or (pass_tokens(self._model.num_parameters()) if on_gpu else 32)
        with torch.no_grad():
            self._decoder = Decoder(
                self._model,
                head=Head(self._model, model, fp32=fp32_head),
                slots=slots,
                max_length=max_length,
                chunk=self._chunk,
                prefill_tokens=self._prefill_tokens,
                fused=fused,
                cuda_graphs=on_gpu if cuda_graphs is None else cuda_graphs,
                records_experts=records_experts,
            )
        self._own = self._model.state_dict(keep_vars=True)
        self._needed = {name for name, _ in self._model.named_parameters()}
        self._stop_tokens = tuple(stop_tokens)
        self._progress = Progress(slots, self._stop_tokens)
        self._version, self._work, self._eval_work = version, Work(), Work()
        self._early: list[Completion] | None = None
        """Completions of a chunk that was collected for a pause; the next poll returns them."""
        self._failure: str | None = None
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        """Allocate the host's record of every slot: where the next chunk starts, and the completion so far."""
        self._token, self._prompt_length = np.zeros(slots, dtype=np.int64), np.ones(slots, dtype=np.int64)
        self._temperature, self._top_p = np.ones(slots, dtype=np.float32), np.ones(slots, dtype=np.float32)
        self._seeds, self._evaluates = np.zeros(slots, dtype=np.uint64), np.zeros(slots, dtype=np.bool_)
        room = (slots, self._max_length + self._chunk)
        self._tokens, self._versions = np.zeros(room, dtype=np.int32), np.zeros(room, dtype=np.int32)
        self._log_probs, self._forced = np.zeros(room, dtype=np.float32), np.zeros(room, dtype=np.bool_)

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_pending(self) -> int:
        return self._scheduler.num_pending + len(self._early or ())

    @property
    def work(self) -> Work:
        return self._work

    @property
    def eval_work(self) -> Work:
        return self._eval_work

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_usable()
        for request in requests:
            check_request(request, max_length=self._max_length, vocabulary=self._vocabulary)
        self._scheduler.submit(requests)

    def poll(self) -> list[Completion]:
        self._require_usable()
        try:
            with torch.inference_mode():
                return self._advance()
        except EngineError as error:
            self._failure = str(error)
            raise
        except Exception as error:  # Out of memory, a device fault: the contents of the slots are unknown now.
            self._failure = f"the torch engine failed: {error}"
            raise EngineError(self._failure) from error

    def push_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights, named as in the model's state_dict, after checking all of them. A tied head may be left out."""
        self._require_usable()
        if version < self._version:
            raise ValueError(f"versions only rise: {version} was pushed after {self._version}")
        own = self._own
        if unknown := sorted(weights.keys() - own.keys()):
            raise ValueError(f"push_weights was given {unknown[0]}, which the engine's model does not have")
        if missing := sorted(self._needed - weights.keys()):
            raise ValueError(f"push_weights was not given {missing[0]}: all weights of a version arrive together")
        for name, weight in weights.items():
            if weight.shape != own[name].shape:
                raise ValueError(f"push_weights: {name} is {tuple(weight.shape)}, not {tuple(own[name].shape)}")
        with torch.inference_mode():
            torch._foreach_copy_([own[name] for name in weights], list(weights.values()))  # pyright: ignore[reportPrivateImportUsage]
            self._decoder.weights_changed(weights)
        self._version = version

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all pending requests aside, the caches in the host's memory, and serve what is submitted inside."""
        self._require_usable()
        with torch.inference_mode():
            if self._running is not None:
                self._early = [*(self._early or ()), *self._collect()]
            filled = int(np.where(self._progress.active, self._prompt_length + self._progress.count, 0).max())
            cache = self._decoder.hold(np.flatnonzero(self._progress.active), filled)
        # The caches of free slots are not copied.
        self._scheduler.kept.clear()
        held = {name: getattr(self, name) for name in _SLOT_STATE}
        slots = len(self._token)
        self._early, self._scheduler = None, SlotScheduler(slots)
        self._progress = Progress(slots, self._stop_tokens)
        self._allocate(slots)
        try:
            yield
        finally:
            # After a failure the slots are lost anyway.
            if self._failure is None:
                if self._running is not None:
                    self._decoder.collect()
                self._running = None
                for name, value in held.items():
                    setattr(self, name, value)
                with torch.inference_mode():
                    self._decoder.restore(cache)

    def close(self) -> None:
        if self._failure == _CLOSED:
            return
        self._failure = _CLOSED
        self._scheduler = SlotScheduler(len(self._token))
        del self._model, self._own, self._decoder

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)

    def _advance(self) -> list[Completion]:
        if self._early is not None:
            early, self._early = self._early, None
            self._launch()
            return early
        if self._running is None:
            self._launch()
        return [] if self._running is None else self._collect(launch_next=self._launches_ahead)

    def _collect(self, *, launch_next: bool = False) -> list[Completion]:
        """Wait for the running chunk and return what it completes."""
        running = self._running
        assert running is not None
        tokens, log_probs = self._decoder.collect()
        result = self._progress.apply(tokens)
        self._check_finite(log_probs, result, running)
        last = tokens[np.maximum(result.num_kept - 1, 0), np.arange(len(running.start))]
        self._token = np.where(result.num_kept > 0, last, self._token)
        self._count_decode(result, running.start)
        finished = self._scheduler.release(np.flatnonzero(result.finished).tolist())
        for entry in finished:
            if entry.request.environment and result.stopped[entry.slot]:
                num_tokens = self._prompt_length[entry.slot] + running.start[entry.slot] + result.num_kept[entry.slot]
                self._scheduler.keep(entry, int(num_tokens))
        # Now: the next chunk may reuse the slots. The last token of a completion was not fed to the model.
        num_fed = self._prompt_length + running.start + result.num_kept - 1
        experts = [self._decoder.experts(entry.slot, int(num_fed[entry.slot])) for entry in finished]
        self._running = None
        if launch_next:
            self._launch()
        self._record(tokens, log_probs, result, running)
        return self._completions(finished, result, running, experts)

    def _launch(self) -> None:
        """Fill the free slots and launch a chunk, if there is anything to sample."""
        admitted = self._scheduler.admit()
        self._start(admitted)
        progress = self._progress
        if not progress.active.any():
            return
        position = np.where(progress.active, self._prompt_length - 1 + progress.count, 0)
        held = progress.active.copy()
        held[[entry.slot for entry in admitted if not entry.num_held]] = False
        for slot, kept in self._scheduler.kept.items():
            # A slot that is not in use is computed along with the others, and must not write over what it holds.
            position[slot], held[slot] = kept.num_tokens - 1, True
        self._decoder.arrange(position, progress.active, held)
        for batch in plan_prompts(admitted, batch_tokens=self._prefill_tokens, max_length=self._max_length):
            self._decoder.prefill(batch)
            self._count_prefill(batch)
        self._decoder.launch(self._next_chunk(position))
        self._running = _RunningChunk(self._version, progress.count.copy())

    def _start(self, admitted: Sequence[Admitted]) -> None:
        if not admitted:
            return
        slots, requests = [entry.slot for entry in admitted], [entry.request for entry in admitted]
        self._progress.start(slots, [request.length for request in requests])
        self._token[slots] = [request.prompt_tokens[-1] for request in requests]
        self._prompt_length[slots] = [len(request.prompt_tokens) for request in requests]
        self._temperature[slots] = [request.temperature for request in requests]
        self._top_p[slots] = [request.top_p for request in requests]
        self._evaluates[slots] = [request.purpose == "evaluation" for request in requests]
        self._seeds[slots] = np.array([request.seed & 0xFFFFFFFFFFFFFFFF for request in requests], dtype=np.uint64)

    def _next_chunk(self, position: NDArray[np.int64]) -> Chunk:
        progress = self._progress
        return Chunk(
            token=self._token,
            position=position,
            temperature=np.where(progress.active, self._temperature, np.float32(1)),
            top_p=np.where(progress.active, self._top_p, np.float32(1)),
            noise=uniforms(self._seeds, progress.count + np.arange(self._chunk)[:, None]),
            forced=progress.forced(self._chunk),
        )

    def _check_finite(self, log_probs: np.ndarray, result: ChunkResult, running: _RunningChunk) -> None:
        finite = np.isfinite(log_probs)
        if finite.all():
            return
        bad = np.argwhere(~finite & (np.arange(self._chunk)[:, None] < result.num_kept))
        if len(bad):
            step, slot = bad[0]
            holder = self._scheduler.running(int(slot))
            assert holder is not None
            raise NonFiniteLogits(
                token=int(running.start[slot] + step), request=holder.request.key, version=running.version
            )

    def _record(self, tokens: np.ndarray, log_probs: np.ndarray, result: ChunkResult, running: _RunningChunk) -> None:
        """Store the whole chunk. Tokens that are not kept lie beyond the count and are never read."""
        width = self._tokens.shape[1]
        places = np.arange(len(running.start))[:, None] * width + running.start[:, None] + np.arange(self._chunk)
        self._tokens.reshape(-1)[places] = tokens.T
        self._log_probs.reshape(-1)[places] = log_probs.T
        self._versions.reshape(-1)[places] = running.version
        self._forced.reshape(-1)[places] = result.forced.T

    def _completions(
        self,
        finished: Sequence[Admitted],
        result: ChunkResult,
        running: _RunningChunk,
        experts: Sequence[NDArray[np.int16] | None],
    ) -> list[Completion]:
        if not finished:
            return []
        slots = np.array([entry.slot for entry in finished])
        counts = (running.start + result.num_kept)[slots]
        kept = np.arange(self._forced.shape[1]) < counts[:, None]
        forced = self._forced[slots] & kept
        interrupted = np.where(forced.any(axis=1), forced.argmax(axis=1), -1).tolist()
        ends = np.cumsum(counts)
        tokens, log_probs, versions, forced = (
            _parts(buffer[slots][kept], ends)
            for buffer in (self._tokens, self._log_probs, self._versions, self._forced)
        )
        for number, entry in enumerate(finished):
            if entry.request.environment:
                self._scheduler.returned(entry, (*entry.request.prompt_tokens, *tokens[number].tolist()))
        return [
            Completion(
                request=entry.request,
                tokens=tokens[number],
                log_probs=log_probs[number],
                versions=versions[number],
                forced=forced[number],
                finish="stop" if result.stopped[entry.slot] else "length",
                interrupted_at=None if at < 0 else at,
                experts=experts[number],
            )
            for number, (entry, at) in enumerate(zip(finished, interrupted, strict=True))
        ]

    def _count_prefill(self, batch: PromptBatch) -> None:
        # A prompt that requests of both kinds share counts for the one that comes last; evaluation's are withheld.
        evaluates = {row: bool(self._evaluates[slot]) for row, slot in batch.places}
        for row, (start, tokens) in enumerate(zip(batch.starts, batch.tokens, strict=True)):
            end = start + len(tokens)
            attended = end * (end + 1) // 2 - start * (start + 1) // 2
            self._add_work(Work(prefilled=len(tokens), attended=attended), for_evaluation=evaluates[row])

    def _count_decode(self, result: ChunkResult, start: np.ndarray) -> None:
        kept = result.num_kept
        attended = kept * (self._prompt_length + start) + kept * (kept - 1) // 2
        for_evaluation = self._evaluates & (kept > 0)
        for chosen in (~for_evaluation, for_evaluation):
            work = Work(decoded=int(kept[chosen].sum()), attended=int(attended[chosen].sum()))
            self._add_work(work, for_evaluation=chosen is for_evaluation)

    def _add_work(self, work: Work, *, for_evaluation: bool) -> None:
        self._work += work
        if for_evaluation:
            self._eval_work += work


def pass_tokens(num_params: int) -> int:
    """Return how many tokens of padded prompts a GPU computes at once: a power of two from 256 to 4096."""
    return 1 << min(max(int(math.log2(_PASS_PRODUCTS / num_params)), 8), 12)


def _parts(joined: NDArray, ends: NDArray[np.int64]) -> list[NDArray]:
    """Split a read-only array at `ends`. Completions share its memory instead of copying it."""
    joined.setflags(write=False)
    return [joined[start:end] for start, end in pairwise([0, *ends.tolist()])]
