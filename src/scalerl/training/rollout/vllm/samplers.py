"""Our sampler for vLLM's first model runner. vLLM imports this module by name."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor  # pyright: ignore[reportMissingImports]
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # pyright: ignore[reportMissingImports]

from scalerl.training.rollout.progress import FREE, CompletionProgress
from scalerl.training.rollout.vllm.choice import KEY, RowSettings, SamplerRequest, leave_one_choice


class _Row:
    """A request in the batch. `output` is vLLM's own list of its tokens so far, which grows in place."""

    __slots__ = ("output", "progress", "request")

    def __init__(self, request: SamplerRequest, output: list[int]) -> None:
        self.request = request
        self.output = output
        self.progress = CompletionProgress(request.length)

    def forced(self) -> int:
        """Return the forced next token, or FREE."""
        for token in self.output[self.progress.count :]:
            if token < 0:
                # A placeholder of vLLM for a token of a step that has not ended.
                break
            self.progress.take(token)
        return self.progress.forced(len(self.output))


class OwnSampler(LogitsProcessor):
    """Leaves only the token of our own sampling in each row."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._changed = True

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._new_row)
        self._changed |= batch_update is not None

    @staticmethod
    def _new_row(params: Any, prompt: list[int] | None, output: list[int]) -> _Row | None:
        request = (params.extra_args or {}).get(KEY)
        return None if request is None else _Row(request, output)

    def apply(self, logits: Tensor) -> Tensor:
        if not self._rows:
            return logits
        if self._changed:
            self._gather()
        counts = np.array([len(row.output) for row in self._ordered], dtype=np.int64)
        forced = [row.forced() for row in self._ordered] if self._has_plans else []
        forced_tokens = None
        if any(token != FREE for token in forced):
            # Do not wait for the device, which still computes the logits.
            forced_tokens = torch.tensor(forced).to(logits.device, non_blocking=True)
        if self._places == list(range(logits.shape[0])):
            return leave_one_choice(logits, self._settings, counts, forced_tokens)
        logits[self._places] = leave_one_choice(logits[self._places], self._settings, counts, forced_tokens)
        return logits

    def _gather(self) -> None:
        self._places = sorted(self._rows)
        self._ordered = [self._rows[place] for place in self._places]
        self._settings = RowSettings.of([row.request for row in self._ordered], self._device)
        self._has_plans = any(row.request.length.thinking_budget is not None for row in self._ordered)
        self._changed = False
