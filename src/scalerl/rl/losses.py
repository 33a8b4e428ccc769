"""Policy losses, per token and unreduced. A weight per token (rl/weights.py) turns them into one number.

Every loss takes the same five flat vectors: the trainer's log-probs (with gradient), the log-probs the generator stored
when it sampled, the advantage of the token's completion, the completion's id and the trained mask; its keyword
arguments are its settings.

    rho_t = pi_train(y_t) / pi_gen(y_t)                                              (ScaleRL paper, section 2)

The denominator is always the generator's own stored log-prob, never a recomputed one, also across an in-flight update:
so the ratio corrects staleness and the numerical mismatch of the two backends at once. Peers that anchor on a
recomputed "old" policy (SkyRL by default, verl) have rho = 1 at one step a batch, and no clip or cap there ever acts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scalerl.rl.segments import dense_index, segment_count, segment_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """What a loss returns, one entry a token; at tokens that are not trained: 0, 1 and False."""

    loss: Float[Tensor, " tokens"]
    ratio: Float[Tensor, " tokens"]
    """The ratio the loss looked at (GSPO: the sequence's), without gradient."""
    clipped: Bool[Tensor, " tokens"]
    """Whether the clip or cap acted on this token."""


def cispo(
    log_probs: Float[Tensor, " tokens"],
    generator_log_probs: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    trained: Bool[Tensor, " tokens"],
    *,
    cap: float = 5.0,
) -> TokenLoss:
    """CISPO: REINFORCE with a truncated importance weight; every token keeps its gradient, capped ones too.

    l_t = -sg(min(rho_t, cap)) A_t log pi_train(y_t)   (MiniMax-M1; ScaleRL paper, section 3; cap insensitive in 4 .. 8)
    The cap is absolute: 5.0 means rho <= 5, and there is no lower one (as TRL). verl, slime, SkyRL, open-instruct and
    NeMo-RL clamp at 1 + eps: their setting for the same loss is 4.0 (with a lower eps of 1), and 5.0 there caps at 6.
    """
    log_ratio, advantages = _of_trained(log_probs, generator_log_probs, advantages, trained)
    ratio = log_ratio.detach().exp()
    loss = -ratio.clamp(max=cap) * advantages * log_probs
    return _token_loss(loss, ratio, ratio > cap, trained)


def tis(
    log_probs: Float[Tensor, " tokens"],
    generator_log_probs: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    trained: Bool[Tensor, " tokens"],
    *,
    cap: float = 2.0,
) -> TokenLoss:
    """Truncated importance sampling of the objective: capped tokens lose their gradient.

    l_t = -min(rho_t, cap) A_t, differentiated through rho_t   (Ionides 2008, the truncated estimator of E_train[A])
    Below the cap its gradient, rho A d log pi, is CISPO's; above it, it is zero. So against CISPO at an equal cap this
    arm isolates one thing: whether capped tokens keep a gradient. What verl and slime call TIS truncates the weight in
    the gradient instead: with the generator as the only anchor that is CISPO, cap 2.0, and is chosen here by that name.
    """
    log_ratio, advantages = _of_trained(log_probs, generator_log_probs, advantages, trained)
    ratio = log_ratio.detach().exp()
    capped = ratio > cap
    loss = -advantages * _bounded(log_ratio, capped, ratio.clamp(max=cap))
    return _token_loss(loss, ratio, capped, trained)


def dapo(
    log_probs: Float[Tensor, " tokens"],
    generator_log_probs: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    trained: Bool[Tensor, " tokens"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.26,
) -> TokenLoss:
    """DAPO's asymmetric clip; with clip_low = clip_high = 0.2 it is GRPO's (and PPO's).

    l_t = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)   (ScaleRL paper, sections 2 and 3)
    The paper uses 0.26 above, DAPO's own paper 0.28. No KL term, as in both.
    """
    log_ratio, advantages = _of_trained(log_probs, generator_log_probs, advantages, trained)
    return _clipped_surrogate(log_ratio, advantages, trained, clip_low, clip_high)


def gspo(
    log_probs: Float[Tensor, " tokens"],
    generator_log_probs: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    trained: Bool[Tensor, " tokens"],
    *,
    clip_low: float = 3e-3,
    clip_high: float = 4e-3,
    length_normalised: bool = True,
) -> TokenLoss:
    """GSPO: the clip of DAPO on one ratio a completion. A completion must not be split over two calls.

    s = exp((1/|y|) sum_t log rho_t),   l_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)   (GSPO, section 4)
    length_normalised=False drops 1/|y|: the ratio pi_train(y)/pi_gen(y) as the ScaleRL paper prints it. Clips of 1e-3
    only suit the normalised one; the other grows with length and overflows FP32 past a log-ratio of 88.
    Only trained tokens enter the sum and |y|. Each of a completion's tokens holds the completion's loss, so a sample
    average gives exactly the papers' mean over completions. With equal weights w on its tokens, the gradient at s = 1
    is -w A a token (REINFORCE); unnormalised it is |y| times that, the REINFORCE of a whole sequence.
    """
    log_ratio, advantages = _of_trained(log_probs, generator_log_probs, advantages, trained)
    index, num = dense_index(completion_of_token)
    sequence_log_ratio = segment_sum(log_ratio, index, num)
    if length_normalised:
        sequence_log_ratio = sequence_log_ratio / segment_count(trained, index, num).clamp(min=1)
    return _clipped_surrogate(sequence_log_ratio[index], advantages, trained, clip_low, clip_high)


def _of_trained(
    log_probs: Tensor, generator_log_probs: Tensor, advantages: Tensor, trained: Tensor
) -> tuple[Tensor, Tensor]:
    """log rho and A, and 0 where a token is not trained: what stands there (padding, -inf, NaN) must not reach a sum,
    nor, times a gradient of 0, become NaN."""
    log_ratio = torch.where(trained, log_probs - generator_log_probs.detach(), 0.0)
    return log_ratio, torch.where(trained, advantages, 0.0)


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, trained: Tensor, clip_low: float, clip_high: float
) -> TokenLoss:
    """-min(rho A, clip(rho) A): the clip binds above for good completions and below for bad ones."""
    ratio = log_ratio.detach().exp()
    binds = ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))
    loss = -advantages * _bounded(log_ratio, binds, ratio.clamp(1 - clip_low, 1 + clip_high))
    return _token_loss(loss, ratio, binds, trained)


def _bounded(log_ratio: Tensor, binds: Tensor, bound: Tensor) -> Tensor:
    """The ratio, or its bound (no gradient) where that binds.

    The exponent is masked before exp, because an overflowing exp has the gradient 0 * inf = NaN even where it is not
    used.
    """
    return torch.where(binds, bound, log_ratio.masked_fill(binds, 0.0).exp())


def _token_loss(loss: Tensor, ratio: Tensor, clipped: Tensor, trained: Tensor) -> TokenLoss:
    return TokenLoss(
        loss=torch.where(trained, loss, 0.0), ratio=torch.where(trained, ratio, 1.0), clipped=clipped & trained
    )


LOSSES = {"cispo": cispo, "dapo": dapo, "gspo": gspo, "tis": tis}
