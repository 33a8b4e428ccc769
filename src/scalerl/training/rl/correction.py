"""Corrections for a generator that differs from the learner: change the loss of tokens whose ratio is far from 1.

    rho_t = pi_train(y_t) / pi_gen(y_t),   s = product of rho_t over the trained tokens of a completion

The ratio in every loss (rl/losses.py) already corrects the difference for a token. A correction leaves tokens out, or
gives the gradient of a token another importance weight, that of its completion. The weight stands outside the loss: the
loss's clip or cap still sees the loss's own ratio, as in the sources. A correction is a function of `LossInputs` whose
keyword-only arguments are its settings. Denominators do not change: a token that is left out still counts in the
average, as in the papers.

The ratio has two sources: weights that have changed since sampling (lag), and different arithmetic (another engine,
rounded weights, other experts). Only their product is known for a completion that was sampled with several versions, so
bounds that suit a small lag cut more at a large lag. `loss/corrected_frac` is the share of corrected tokens.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scalerl.training.rl.losses import LossInputs
from scalerl.training.rl.segments import dense_index, segment_count, segment_sum

_LARGEST_LOG_RATIO = 80.0
"""A ratio above exp(80) overflows in FP32, so no other weight can take its place: the token is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    trained: Bool[Tensor, " tokens"]
    """The tokens that the loss trains on."""
    changed: Bool[Tensor, " tokens"]
    """Trained tokens that were left out or whose weight was bounded."""
    importance: Float[Tensor, " tokens"] | None = None
    """The importance weight of each token's gradient, in place of the loss's own; None keeps the loss's own."""


def none(inputs: LossInputs) -> Corrected:
    """No correction except the ratio in the loss: ScaleRL's choice."""
    return Corrected(trained=inputs.trained, changed=torch.zeros_like(inputs.trained))


def band(inputs: LossInputs, *, low: float = 0.5, high: float = 5.0) -> Corrected:
    """Leave out tokens whose ratio is outside a band: if engines disagree this much, a token teaches nothing.

    l_t = 0 where rho_t < low or rho_t > high   (IcePop, Ring-1T, arXiv 2510.18855; its band is 0.5 to 5)
    """
    outside = _is_outside(_log_ratio(inputs), low, high) & inputs.trained
    return Corrected(trained=inputs.trained & ~outside, changed=outside)


def sequence_truncate(inputs: LossInputs, *, cap: float = 2.0, length_normalised: bool = False) -> Corrected:
    """Weigh every token by the ratio of its whole completion, at most `cap` (truncated importance sampling).

    gradient of l_t = -min(s, cap) A_t grad log pi, unless the loss clips the token   (Liu et al. 2025, "When speed
    kills stability"; TRL's sequence_truncate, verl's rollout_is = sequence)
    With CISPO's loss this is the truncated estimator of the sequence's gradient. length_normalised=True uses the
    geometric mean of token ratios instead of their product, which is far from 1 for long completions.
    """
    log_ratio = _sequence_log_ratio(inputs, length_normalised)
    overflows = _overflows(inputs)
    bounded = (log_ratio > _log(cap)) & inputs.trained
    return Corrected(
        trained=inputs.trained & ~overflows,
        changed=bounded | overflows,
        importance=log_ratio.clamp(max=_log(cap)).exp(),
    )


def sequence_mask(
    inputs: LossInputs, *, low: float = 0.0, high: float = 2.0, length_normalised: bool = False
) -> Corrected:
    """Weigh every token by the ratio of its whole completion, and leave out completions outside a band.

    gradient of l_t = -s A_t grad log pi, unless the loss clips the token;  l_t = 0 where s < low or s > high   (masked
    importance sampling: Liu et al. 2025; TRL's sequence_mask, verl's rollout_rs)
    """
    log_ratio = _sequence_log_ratio(inputs, length_normalised)
    left_out = _overflows(inputs) | (_is_outside(log_ratio, low, high) & inputs.trained)
    return Corrected(
        trained=inputs.trained & ~left_out,
        changed=left_out,
        importance=log_ratio.clamp(max=_log(high)).exp(),
    )


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf


def _is_outside(log_ratio: Float[Tensor, " tokens"], low: float, high: float) -> Bool[Tensor, " tokens"]:
    return (log_ratio < _log(low)) | (log_ratio > _log(high))


def _overflows(inputs: LossInputs) -> Bool[Tensor, " tokens"]:
    return (_log_ratio(inputs) > _LARGEST_LOG_RATIO) & inputs.trained


def _log_ratio(inputs: LossInputs) -> Float[Tensor, " tokens"]:
    """Return log rho without gradient, 0 where a token is not trained."""
    return torch.where(inputs.trained, inputs.log_probs.detach() - inputs.generator_log_probs.detach(), 0.0)


def _sequence_log_ratio(inputs: LossInputs, length_normalised: bool) -> Float[Tensor, " tokens"]:
    index, num = dense_index(inputs.completion_of_token)
    total = segment_sum(_log_ratio(inputs), index, num)
    if length_normalised:
        total = total / segment_count(inputs.trained, index, num).clamp(min=1)
    return total[index]


CORRECTIONS = {
    "none": none,
    "band": band,
    "sequence_truncate": sequence_truncate,
    "sequence_mask": sequence_mask,
}
