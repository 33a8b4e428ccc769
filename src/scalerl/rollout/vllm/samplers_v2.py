"""Our sampler for vLLM's second model runner, its default on GPUs. vLLM imports this module by name.

There is one row of logits per request (no speculative decoding). How many tokens a request has is known on the host;
the tokens are on the device, so that is where the end of thinking is looked for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor  # pyright: ignore[reportMissingImports]

from scalerl.rollout.vllm.choice import FREE, KEY, RowSettings, leave_one_choice, marker_token


class OwnSampler(LogitsProcessor):
    """Leaves one token per row: the one that our sampling chose."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)
        self._states = req_states
        slots = req_states.max_num_reqs
        self._asked: list[dict[str, Any] | None] = [None] * slots
        self._searched = np.zeros(slots, dtype=np.int64)
        """Tokens of each slot's completion in which the end of thinking has been looked for."""
        self._ended = torch.zeros(slots, dtype=torch.bool, device=req_states.device)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        if KEY in (sampling_params.extra_args or {}) and (sampling_params.temperature, sampling_params.top_p) != (1, 1):
            raise ValueError("temperature and top_p of a request are in extra_args: leave those of vLLM at 1")

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        asked = (sampling_params.extra_args or {}).get(KEY)
        self._asked[req_idx] = asked
        # Also after a preemption, when there are tokens already: they are searched again.
        self._searched[req_idx] = 0
        self._ended[req_idx] = False
        return asked is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        slots = ctx.idx_mapping_np
        rows = [row for row, slot in enumerate(slots) if self._asked[slot] is not None]
        if not rows:
            return logits
        slots = slots[rows]
        asked = [each for slot in slots if (each := self._asked[slot]) is not None]
        # Negative within a prompt that is computed in parts, where the token is thrown away.
        counts = ctx.seq_lens_upper_bound_np[rows] - self._states.prompt_len.np[slots]
        counts = np.maximum(counts, 0).astype(np.int64)
        settings = RowSettings.of(asked, logits.device)
        forced = self._forced(asked, slots, counts)
        if len(rows) == logits.shape[0]:
            return leave_one_choice(logits, settings, counts, forced)
        places = torch.tensor(rows, device=logits.device)
        logits[places] = leave_one_choice(logits[places], settings, counts, forced)
        return logits

    def _forced(self, asked: Sequence[dict[str, Any]], slots: np.ndarray, counts: np.ndarray) -> Tensor | None:
        """Return the token that each row must take, or FREE; None if there is no such token."""
        given = []
        for each, slot, count in zip(asked, slots.tolist(), counts.tolist(), strict=True):
            if each["budget"] is not None and each["end"]:
                self._search(each, slot, count)
            given.append(marker_token(each, count))
        if max(given) == FREE:
            return None
        tokens = torch.tensor(given, device=self._ended.device)
        return torch.where(self._ended[torch.from_numpy(slots.astype(np.int64)).to(tokens.device)], FREE, tokens)

    def _search(self, asked: dict[str, Any], slot: int, count: int) -> None:
        """Look for the end of thinking in the tokens that are new since the last call."""
        width, last = len(asked["end"]), min(count, asked["budget"])
        first, self._searched[slot] = max(int(self._searched[slot]) + 1, width), last
        if first > last:
            return
        start = int(self._states.prompt_len.np[slot])
        tokens = self._states.all_token_ids.gpu[slot, start + first - width : start + last]
        end = torch.tensor(asked["end"], device=tokens.device, dtype=tokens.dtype)
        self._ended[slot] |= (tokens.unfold(0, width, 1) == end).all(dim=1).any().to(self._ended.device)
