"""The embedded engine: continuous batching over fixed slots with torch, on a CPU or a GPU.

    requests -> scheduler -> prefill -> decode a chunk -> progress (budgets, markers, stops) -> completions
                slots        cache      body, sampling    plain numpy

    poll:  refill slots, prefill their prompts, sample a chunk for all slots, apply length plans, return completions

A completion depends only on its request and the weights. Noise is keyed by (seed, token index). The shape in which a
prompt is computed depends only on that prompt, and the shape of a decode step does not change the result of a row: a
GPU computes a fixed number of rows, a CPU a multiple of 16. (The last bit can still change if attention has a masked
tail of another length, or if a GPU computes half of 128 or more slots because few are in use.)

On a GPU the next chunk is launched before a poll returns, so that the device does not wait for the host. New weights
and requests therefore take effect one chunk later.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.errors import NonFiniteLogits
from scalerl.training.models.lora import is_adapter
from scalerl.training.models.nf4 import num_weights
from scalerl.training.rollout.engine import EngineBase
from scalerl.training.rollout.noise import uniforms
from scalerl.training.rollout.progress import ChunkResult, Flags, Ints, SlotProgress
from scalerl.training.rollout.torch.body import check_model, own_copy
from scalerl.training.rollout.torch.decoder import Chunk, Decoder
from scalerl.training.rollout.torch.head import OutputHead
from scalerl.training.rollout.torch.scheduler import Admitted, PromptBatch, SlotScheduler, plan_prompts
from scalerl.training.rollout.torch.stopwatch import Stopwatch
from scalerl.training.types import Completion, Request, Work

_PASS_PRODUCTS = 1.5e12
"""Parameters x tokens of a pass over prompts on a GPU, about 4 ms on an H200. A pass is padded to its full size, and
most polls have one or two new prompts of a width, so a larger pass mostly computes padding: with passes of 2,048 tokens
at 1.5B, prompts took 0.41 s of the 1.62 s for which a step sampled (GSM8K, 16 completions per prompt)."""


class _Slots:
    """The state of the slots on the host: their requests, positions and completions so far."""

    def __init__(self, num: int, stop_tokens: Iterable[int], room: int) -> None:
        """`room` is the largest number of tokens in a completion."""
        self.scheduler = SlotScheduler(num)
        self.progress = SlotProgress(num, stop_tokens)
        self.early: list[Completion] = []
        """Completions of a chunk that was collected early, for a pause; the next poll returns them."""
        self.token = np.zeros(num, dtype=np.int64)
        self.prompt_length = np.ones(num, dtype=np.int64)
        self.temperature = np.ones(num, dtype=np.float32)
        self.top_p = np.ones(num, dtype=np.float32)
        self.seeds = np.zeros(num, dtype=np.uint64)
        self.columns: dict[str, NDArray[Any]] = {
            "tokens": np.zeros((num, room), dtype=np.int32),
            "log_probs": np.zeros((num, room), dtype=np.float32),
            "versions": np.zeros((num, room), dtype=np.int32),
            "forced": np.zeros((num, room), dtype=np.bool_),
        }
        """The fields of the completions."""

    def start(self, admitted: Sequence[Admitted]) -> None:
        """Put requests into their slots."""
        slots = [entry.slot for entry in admitted]
        requests = [entry.request for entry in admitted]
        self.progress.start(slots, [request.length for request in requests])
        self.token[slots] = [request.prompt_tokens[-1] for request in requests]
        self.prompt_length[slots] = [len(request.prompt_tokens) for request in requests]
        self.temperature[slots] = [request.temperature for request in requests]
        self.top_p[slots] = [request.top_p for request in requests]
        self.seeds[slots] = np.array([request.seed & 0xFFFFFFFFFFFFFFFF for request in requests], dtype=np.uint64)

    def advance(self, tokens: NDArray, result: ChunkResult) -> None:
        """Make the last token of each slot the next input."""
        last = tokens[np.maximum(result.num_kept - 1, 0), np.arange(len(self.token))]
        self.token = np.where(result.num_kept > 0, last, self.token)

    def written(self, slot: int, tokens: NDArray, result: ChunkResult, running: "_RunningChunk") -> list[int]:
        """Return the tokens of a slot's completion, including those of a chunk that is not recorded yet."""
        before = self.columns["tokens"][slot, : running.start[slot]]
        return [*before.tolist(), *tokens[: result.num_kept[slot], slot].tolist()]

    def record(self, tokens: NDArray, log_probs: NDArray, result: ChunkResult, running: "_RunningChunk") -> None:
        """Store a whole chunk. Tokens that are not kept lie beyond the count and are never read."""
        num_slots, room = self.columns["tokens"].shape
        places = (np.arange(num_slots) * room + running.start)[:, None] + np.arange(len(tokens))
        values = (tokens.T, log_probs.T, running.version, result.forced.T)
        for column, new in zip(self.columns.values(), values, strict=True):
            # One index instead of two takes half the time.
            column.reshape(-1)[places] = new

    def completions(
        self,
        finished: Sequence[Admitted],
        counts: Ints,
        stopped: Flags,
        experts: Sequence[NDArray[np.int16] | None],
    ) -> list[Completion]:
        """Return the completions of finished slots; `counts` and `stopped` have an entry for every slot.

        The completions of a poll are copied at once and share memory: single copies take longer than the rest of a
        poll.
        """
        slots = np.array([entry.slot for entry in finished], dtype=np.int64)
        nums = counts[slots]
        kept = np.arange(self.columns["tokens"].shape[1]) < nums[:, None]
        forced = self.columns["forced"][slots] & kept
        interrupted = np.where(forced.any(axis=1), forced.argmax(axis=1), -1).tolist()
        ends = np.cumsum(nums).tolist()
        columns = (_parts(column[slots][kept], ends) for column in self.columns.values())
        return [
            Completion(
                request=entry.request,
                finish="stop" if stopped[entry.slot] else "length",
                interrupted_at=None if at < 0 else at,
                experts=routed,
                **dict(zip(self.columns, fields, strict=True)),
            )
            for entry, at, routed, *fields in zip(finished, interrupted, experts, *columns, strict=True)
        ]


def _pushed_names(model: Any) -> frozenset[str]:
    """Return the names of the weights that change: of the adapters, if there are any."""
    names = frozenset(dict(model.named_parameters()))
    return frozenset(filter(is_adapter, names)) or names


class _RunningChunk(NamedTuple):
    """A chunk that was launched and is not collected yet."""

    version: int
    """Version of the weights that sample it."""
    start: Ints
    """Number of tokens in each slot before the chunk."""


class TorchEngine(EngineBase):
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
        cuda_graphs: bool = True,
        fused: bool = True,
        records_experts: bool = False,
    ) -> None:
        """Copy the model and allocate the slots.

        `max_length` is the context: prompt and completion together. A poll samples `chunk` tokens per slot; up to
        `prefill_tokens` tokens of padded prompts go through the model at once. dtype and device default to the model's.
        A GPU uses longer chunks by default (16 instead of 4), and CUDA graphs unless `cuda_graphs` is false.
        `fused=False` selects the slower, general body. With `records_experts`, completions contain the experts to which
        their tokens were routed.
        """
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        check_model(model, max_length)
        self._model = own_copy(model, dtype=dtype, device=device)
        head = self._model.get_output_embeddings().weight
        super().__init__(
            "the torch engine",
            max_length=max_length,
            vocabulary=int(head.shape[0]),
            version=version,
            weights=_pushed_names(self._model),
        )
        on_gpu = head.device.type == "cuda"
        self.launches_ahead = on_gpu
        self._running: _RunningChunk | None = None
        self._chunk = chunk or (16 if on_gpu else 4)
        self._prefill_tokens = prefill_tokens or (pass_tokens(num_weights(self._model)) if on_gpu else 32)
        with torch.no_grad():
            self.decoder = Decoder(
                self._model,
                head=OutputHead(self._model, model, fp32=fp32_head),
                slots=slots,
                max_length=max_length,
                chunk=self._chunk,
                prefill_tokens=self._prefill_tokens,
                fused=fused,
                cuda_graphs=on_gpu and cuda_graphs,
                records_experts=records_experts,
            )
        self.weights = self._model.state_dict(keep_vars=True)
        self._shape = slots, tuple(stop_tokens), max_length + self._chunk
        self._slots = _Slots(*self._shape)
        self._stopwatch = Stopwatch(head.device)

    def device_times(self) -> Mapping[str, float]:
        """Return the seconds of prompts and of chunks so far; those of evaluations are counted separately."""
        return self._stopwatch.seconds

    @property
    def num_pending(self) -> int:
        return self._slots.scheduler.num_pending + len(self._slots.early)

    @torch.inference_mode()
    def _put_aside(self) -> tuple[_Slots, Ints, list[Tensor]]:
        """Put all requests aside, with their caches in host memory."""
        held = self._slots
        if self._running is not None:
            held.early += self._collect()
        in_use = np.flatnonzero(held.progress.active)
        filled = int((held.prompt_length + held.progress.count)[in_use].max(initial=0))
        cache = self.decoder.hold(in_use, filled)
        # Caches of free slots are not copied.
        held.scheduler.kept.clear()
        self._slots = _Slots(*self._shape)
        return held, in_use, cache

    @torch.inference_mode()
    def _bring_back(self, held: tuple[_Slots, Ints, list[Tensor]]) -> None:
        if self._running is not None:
            self.decoder.collect()
        self._running = None
        self._slots, in_use, cache = held
        self.decoder.restore(in_use, cache)

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._slots.scheduler.submit(requests)

    def _load(self, weights: Mapping[str, Tensor], version: int) -> None:
        current = self.weights
        if unknown := sorted(weights.keys() - current.keys()):
            raise ValueError(f"push_weights: the engine's model has no weight {unknown[0]}")
        for name, weight in weights.items():
            if weight.shape != current[name].shape:
                raise ValueError(f"push_weights: {name} is {tuple(weight.shape)}, not {tuple(current[name].shape)}")
        with torch.inference_mode():
            torch._foreach_copy_([current[name] for name in weights], list(weights.values()))  # pyright: ignore[reportPrivateImportUsage]
            self.decoder.head.update(weights)

    def _drop_all(self) -> None:
        self._slots = _Slots(*self._shape)
        del self._model, self.weights, self.decoder

    @torch.inference_mode()
    def _advance(self) -> list[Completion]:
        if early := self._slots.early:
            self._slots.early = []
            self._launch()
            return early
        if self._running is None:
            self._launch()
        return [] if self._running is None else self._collect(launch_next=self.launches_ahead)

    def _collect(self, *, launch_next: bool = False) -> list[Completion]:
        """Wait for the running chunk and return the completions that it finishes.

        The device waits until the next chunk is launched, so work that this chunk does not need comes after the launch.
        """
        slots = self._slots
        running = self._running
        assert running is not None
        tokens, log_probs = self.decoder.collect()
        prefix = "eval_" if self._is_paused else ""
        self._stopwatch.read(prefix=prefix)
        result = slots.progress.apply(tokens)
        self._check_finite(log_probs, result, running)
        slots.advance(tokens, result)
        finished = slots.scheduler.release(np.flatnonzero(result.finished).tolist())
        counts = running.start + result.num_kept
        prompt_length = slots.prompt_length.copy()
        # Read them before the launch, which may reuse the slots. The last token was not an input of the model.
        for entry in finished:
            if entry.request.environment and result.stopped[entry.slot]:
                written = slots.written(entry.slot, tokens, result, running)
                slots.scheduler.keep(entry, (*entry.request.prompt_tokens, *written))
        num_fed = (prompt_length + counts - 1).tolist()
        experts = [self.decoder.experts(entry.slot, num_fed[entry.slot]) for entry in finished]
        self._running = None
        if launch_next:
            self._launch()
        slots.record(tokens, log_probs, result, running)
        self._count_decode(result, running.start, prompt_length)
        return slots.completions(finished, counts, result.stopped, experts) if finished else []

    def _launch(self) -> None:
        """Fill the free slots and launch a chunk, if there is anything to sample."""
        slots = self._slots
        admitted = slots.scheduler.admit()
        if admitted:
            slots.start(admitted)
        progress = slots.progress
        if not progress.active.any():
            return
        position = np.where(progress.active, slots.prompt_length - 1 + progress.count, 0)
        held = progress.active.copy()
        held[[entry.slot for entry in admitted if not entry.num_held]] = False
        for slot, kept in slots.scheduler.kept.items():
            # An unused slot is computed with the others, and must not overwrite the turn that it holds.
            position[slot] = len(kept.tokens) - 1
            held[slot] = True
        self._stopwatch.begin()
        self.decoder.arrange(position, progress.active, held)
        for batch in plan_prompts(admitted, batch_tokens=self._prefill_tokens, max_length=self._max_length):
            self.decoder.prefill(batch)
            self._count_prefill(batch)
        self._stopwatch.lap("prefill")
        greedy = slots.temperature == 0
        self.decoder.launch(
            Chunk(
                token=slots.token,
                position=position,
                temperature=np.where(progress.active & ~greedy, slots.temperature, np.float32(1)),
                greedy=progress.active & greedy,
                top_p=np.where(progress.active, slots.top_p, np.float32(1)),
                noise=uniforms(slots.seeds, progress.count + np.arange(self._chunk)[:, None]),
                forced=progress.forced(self._chunk),
            )
        )
        self._stopwatch.lap("decode")
        self._running = _RunningChunk(self._version, progress.count.copy())

    def _check_finite(self, log_probs: NDArray, result: ChunkResult, running: _RunningChunk) -> None:
        finite = np.isfinite(log_probs)
        if finite.all():
            return
        bad = np.argwhere(~finite & (np.arange(self._chunk)[:, None] < result.num_kept))
        if len(bad):
            step, slot = bad[0].tolist()
            request = self._slots.scheduler.running[slot].request
            raise NonFiniteLogits(token=int(running.start[slot] + step), request=request.key, version=running.version)

    def _count_prefill(self, batch: PromptBatch) -> None:
        for start, tokens in zip(batch.starts, batch.tokens, strict=True):
            end = start + len(tokens)
            attended = end * (end + 1) // 2 - start * (start + 1) // 2
            self._done[self._is_paused] += Work(prefilled=len(tokens), attended=attended)

    def _count_decode(self, result: ChunkResult, start: Ints, prompt_length: Ints) -> None:
        kept = result.num_kept
        attended = kept * (prompt_length + start) + kept * (kept - 1) // 2
        self._done[self._is_paused] += Work(decoded=int(kept.sum()), attended=int(attended.sum()))


def _parts(joined: NDArray[Any], ends: Sequence[int]) -> list[NDArray[Any]]:
    """Make an array read-only and split it at `ends`."""
    joined.setflags(write=False)
    return [joined[start:end] for start, end in itertools.pairwise([0, *ends])]


def pass_tokens(num_params: int) -> int:
    """Return how many tokens of padded prompts a GPU computes at once: a power of two from 256 to 4096."""
    return 1 << min(max(int(math.log2(_PASS_PRODUCTS / num_params)), 8), 12)
