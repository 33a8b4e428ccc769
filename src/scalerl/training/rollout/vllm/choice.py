"""Our own sampling inside vLLM: sample a token per row, and leave vLLM only that one. Used by samplers.py.

vLLM then samples the only token left and reports its logit, which is the log-prob of our distribution. So noise is
keyed by request, forced tokens and top_p work as in the torch engine, and tokens do not depend on the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.training.rollout.noise import uniforms
from scalerl.training.rollout.progress import FREE
from scalerl.training.rollout.sampling import sample
from scalerl.training.types import LengthPlan, Request

KEY = "scalerl"
"""Name of our arguments in SamplingParams.extra_args."""
NOT_FINITE = 1.0
"""Reported instead of a non-finite log-prob. (Log-probs are never above 0.)"""


class SamplerRequest(NamedTuple):
    """The fields of a request that the sampler needs."""

    seed: int
    temperature: float
    top_p: float
    length: LengthPlan

    @classmethod
    def of(cls, request: Request) -> "SamplerRequest":
        return cls(request.seed & 0xFFFFFFFFFFFFFFFF, request.temperature, request.top_p, request.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """Sampling settings of each row; constant while the same requests are in the batch."""

    seeds: NDArray[np.uint64]
    temperature: Tensor
    top_p: Tensor | None
    greedy: Tensor | None

    @classmethod
    def of(cls, requests: Sequence[SamplerRequest], device: torch.device) -> "RowSettings":
        temperature = np.array([each.temperature for each in requests], dtype=np.float32)
        top_p = np.array([each.top_p for each in requests], dtype=np.float32)
        greedy = temperature == 0

        def on_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device, non_blocking=True)

        return cls(
            seeds=np.array([each.seed for each in requests], dtype=np.uint64),
            temperature=on_device(np.where(greedy, np.float32(1), temperature)),
            top_p=on_device(top_p) if (top_p < 1).any() else None,
            greedy=on_device(greedy) if greedy.any() else None,
        )


def leave_one_choice(
    logits: Tensor, rows: RowSettings, counts: NDArray[np.int64], forced: Tensor | None = None
) -> Tensor:
    """Sample a token per row; return logits with the log-prob at that token and -inf elsewhere.

    `counts` are the numbers of tokens in each completion so far; `forced` has the forced token of each row, or FREE.
    """
    noise = torch.from_numpy(uniforms(rows.seeds, counts)).to(logits.device, non_blocking=True)
    if logits.is_cuda and rows.top_p is None:
        tokens, log_probs = _sample_by_kernel(logits.contiguous(), noise, rows)
    else:
        tokens, log_probs = sample(logits, noise, rows.temperature, top_p=rows.top_p, greedy=rows.greedy)
    log_probs = torch.where(log_probs.isfinite(), log_probs, NOT_FINITE)
    if forced is not None:
        log_probs = torch.where(forced == FREE, log_probs, 0.0)
        tokens = torch.where(forced == FREE, tokens, forced)
    left = torch.full_like(logits, -torch.inf)
    return left.scatter_(1, tokens[:, None], log_probs[:, None].to(left.dtype))


def _sample_by_kernel(logits: Tensor, noise: Tensor, rows: RowSettings) -> tuple[Tensor, Tensor]:
    """Sample as `sample` does without top_p, in one pass over the logits."""
    from scalerl.training.rollout.torch import kernels

    num = len(logits)
    tokens = noise.new_empty(num, dtype=torch.int64)
    log_probs = torch.empty_like(noise)
    not_greedy = noise.new_zeros(num, dtype=torch.bool)
    zeros = noise.new_zeros(num + 1, dtype=torch.int64)
    kernels.sample_step(
        logits,
        step=zeros[num:],
        noise=noise,
        temperature=rows.temperature,
        greedy=not_greedy if rows.greedy is None else rows.greedy,
        forced=noise.new_full((num,), FREE, dtype=torch.int64),
        tokens=tokens,
        log_probs=log_probs,
        # The torch engine's next step would read these.
        token=torch.empty_like(tokens),
        position=zeros[:num],
        last_position=0,
    )
    return tokens, log_probs
