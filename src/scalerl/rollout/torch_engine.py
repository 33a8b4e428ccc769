"""The embedded engine: continuous batching over fixed slots with torch, on a CPU or a GPU.

    poll:  refill free slots -> prefill their prompts -> sample a chunk for all slots -> apply plans, give the finished

A completion depends on its request and the weights alone: noise is keyed by (seed, token index), and every prompt and
every step is computed in a shape that does not depend on what else is being sampled. (Attention to a longer or shorter
masked tail can still differ in the last bit of a float.)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.rollout.body import check_model, own_copy
from scalerl.rollout.decoder import Chunk, Decoder
from scalerl.rollout.engine import EngineError, Work, check_request
from scalerl.rollout.noise import uniforms
from scalerl.rollout.progress import Progress, Taken
from scalerl.rollout.scheduler import Admitted, PrefillBatch, SlotScheduler, plan_prefill
from scalerl.types import Completion, Request

_CLOSED = "the engine is closed"


class TorchEngine:
    """An Engine in this process, with a copy of the model's weights of its own."""

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        max_length: int,
        stop_tokens: Iterable[int],
        chunk: int | None = None,
        fp32_head: bool = True,
        pad_token: int = 0,
        version: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        prefill_tokens: int | None = None,
        cuda_graphs: bool | None = None,
        fused: bool = True,
    ) -> None:
        """`max_length` is the context: prompt and completion together. `chunk` tokens a slot are sampled in a poll, and
        `prefill_tokens` of padded prompts go through the model at once.

        dtype and device are the model's unless given. A GPU waits for the host between chunks, so its default is a
        longer one (16, not 4), and it decodes by CUDA graphs; `fused=False` keeps to the slower, general body.
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
        if cuda_graphs and not on_gpu:
            raise ValueError(f"cuda_graphs needs a CUDA device, and the model is on {head.device}")
        self._vocabulary, self._max_length, self._pad_token = int(head.shape[0]), max_length, pad_token
        self._chunk = chunk or (16 if on_gpu else 4)
        self._prefill_tokens = prefill_tokens or (4096 if on_gpu else 64)
        with torch.no_grad():
            self._decoder = Decoder(
                self._model,
                slots=slots,
                max_length=max_length,
                chunk=self._chunk,
                fp32_head=fp32_head,
                fused=fused,
                cuda_graphs=on_gpu if cuda_graphs is None else cuda_graphs,
            )
        self._progress = Progress(slots, stop_tokens)
        self._version, self._work = version, Work()
        self._failure: str | None = None
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        """The host's record of every slot: what the next chunk starts from, and the completion so far."""
        self._token, self._prompt_length = np.zeros(slots, dtype=np.int64), np.ones(slots, dtype=np.int64)
        self._temperature, self._top_p = np.ones(slots, dtype=np.float32), np.ones(slots, dtype=np.float32)
        self._seeds = np.zeros(slots, dtype=np.uint64)
        room = (slots, self._max_length + self._chunk)
        self._tokens, self._versions = np.zeros(room, dtype=np.int32), np.zeros(room, dtype=np.int32)
        self._log_probs, self._forced = np.zeros(room, dtype=np.float32), np.zeros(room, dtype=np.bool_)

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_pending(self) -> int:
        return self._scheduler.num_pending

    @property
    def work(self) -> Work:
        return self._work

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_life()
        for request in requests:
            check_request(request, max_length=self._max_length, vocabulary=self._vocabulary)
        self._scheduler.submit(requests)

    def poll(self) -> list[Completion]:
        self._require_life()
        try:
            with torch.inference_mode():
                return self._advance()
        except EngineError as error:
            self._failure = str(error)
            raise
        except Exception as error:  # Whatever it was (memory, a device fault), the slots are not to be trusted now.
            self._failure = f"the torch engine failed: {error}"
            raise EngineError(self._failure) from error

    def push_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Names as in the model's state_dict; a tied head may be left out. All are checked before any is copied."""
        self._require_life()
        if version < self._version:
            raise ValueError(f"versions only rise: {version} was pushed after {self._version}")
        own = self._model.state_dict(keep_vars=True)
        if unknown := sorted(weights.keys() - own.keys()):
            raise ValueError(f"push_weights was given {unknown[0]}, which the engine's model does not have")
        if missing := sorted({name for name, _ in self._model.named_parameters()} - weights.keys()):
            raise ValueError(f"push_weights was not given {missing[0]}: all weights of a version arrive together")
        for name, weight in weights.items():
            if weight.shape != own[name].shape:
                raise ValueError(f"push_weights: {name} is {tuple(weight.shape)}, not {tuple(own[name].shape)}")
        with torch.inference_mode():
            for name, weight in weights.items():
                own[name].copy_(weight)
            self._decoder.weights_changed()
        self._version = version

    def close(self) -> None:
        if self._failure == _CLOSED:
            return
        self._failure = _CLOSED
        self._scheduler = SlotScheduler(len(self._token))
        del self._model, self._decoder

    def _require_life(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)

    def _advance(self) -> list[Completion]:
        admitted = self._scheduler.admit()
        for entry in admitted:
            self._start(entry)
        for batch in plan_prefill(admitted, batch_tokens=self._prefill_tokens, max_length=self._max_length):
            self._decoder.prefill(batch, self._pad_token)
            self._count_prefill(batch)
        if not self._progress.active.any():
            return []
        active, start = self._progress.active.copy(), self._progress.count.copy()
        tokens, log_probs = self._decoder.decode(self._next_chunk())
        taken = self._progress.take(tokens)
        self._check_finite(log_probs, taken, start)
        self._record(tokens, log_probs, taken, start)
        self._count_decode(taken, start)
        last = self._tokens[np.arange(len(active)), np.maximum(self._progress.count - 1, 0)]
        self._token = np.where(active & (taken.num_kept > 0), last, self._token)
        return self._finish(taken)

    def _start(self, entry: Admitted) -> None:
        request, slot = entry.request, entry.slot
        self._progress.start(slot, request.length)
        self._token[slot] = request.prompt_tokens[-1]
        self._prompt_length[slot] = len(request.prompt_tokens)
        self._temperature[slot], self._top_p[slot] = request.temperature, request.top_p
        self._seeds[slot] = request.seed & 0xFFFFFFFFFFFFFFFF

    def _next_chunk(self) -> Chunk:
        progress = self._progress
        position = np.where(progress.active, self._prompt_length - 1 + progress.count, 0)
        index = progress.count + np.arange(self._chunk)[:, None]
        return Chunk(
            token=self._token,
            position=position,
            temperature=np.where(progress.active, self._temperature, np.float32(1)),
            top_p=np.where(progress.active, self._top_p, np.float32(1)),
            noise=uniforms(self._seeds, index),
            forced=progress.forced(self._chunk),
            filled=min(int(position.max()) + self._chunk, self._max_length),
        )

    def _check_finite(self, log_probs: np.ndarray, taken: Taken, start: np.ndarray) -> None:
        kept = np.arange(self._chunk)[:, None] < taken.num_kept
        bad = np.argwhere(kept & ~np.isfinite(log_probs))
        if len(bad):
            step, slot = bad[0]
            holder = self._scheduler.running(int(slot))
            assert holder is not None
            raise EngineError(
                f"non-finite logits at token {start[slot] + step} of request {holder.request.key},"
                f" sampled with version {self._version}"
            )

    def _record(self, tokens: np.ndarray, log_probs: np.ndarray, taken: Taken, start: np.ndarray) -> None:
        """Write the whole chunk; what is not kept lies beyond the count and is overwritten or never read."""
        rows, columns = np.arange(len(start))[:, None], start[:, None] + np.arange(self._chunk)
        self._tokens[rows, columns] = tokens.T
        self._log_probs[rows, columns] = log_probs.T
        self._versions[rows, columns] = self._version
        self._forced[rows, columns] = taken.forced.T

    def _finish(self, taken: Taken) -> list[Completion]:
        completions = []
        for entry in self._scheduler.release(np.flatnonzero(taken.finished).tolist()):
            slot, count = entry.slot, int(self._progress.count[entry.slot])
            forced = self._forced[slot, :count]
            completions.append(
                Completion(
                    request=entry.request,
                    tokens=self._tokens[slot, :count],
                    log_probs=self._log_probs[slot, :count],
                    versions=self._versions[slot, :count],
                    forced=forced,
                    finish="stop" if taken.stopped[slot] else "length",
                    interrupted_at=int(forced.argmax()) if forced.any() else None,
                )
            )
        return completions

    def _count_prefill(self, batch: PrefillBatch) -> None:
        attended = sum(len(prompt) * (len(prompt) + 1) // 2 for prompt in batch.prompts)
        self._add_work(prefilled=batch.num_tokens, attended=attended)

    def _count_decode(self, taken: Taken, start: np.ndarray) -> None:
        kept = taken.num_kept
        attended = kept * (self._prompt_length + start) + kept * (kept - 1) // 2
        self._add_work(decoded=int(kept.sum()), attended=int(attended.sum()))

    def _add_work(self, *, prefilled: int = 0, decoded: int = 0, attended: int = 0) -> None:
        self._work = Work(
            prefilled=self._work.prefilled + prefilled,
            decoded=self._work.decoded + decoded,
            attended=self._work.attended + attended,
        )
