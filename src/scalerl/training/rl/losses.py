"""Policy losses, per token and unreduced. Token weights (training/rl/weights.py) reduce them to one number.

A loss is a function of `LossInputs` whose keyword-only arguments are its settings; it returns a `TokenLoss`.

    rho_t = pi_train(y_t) / pi_gen(y_t)                                              (ScaleRL paper, section 2)

The denominator is always the log-prob that the generator stored when it sampled, never a recomputed one, even across an
in-flight weight update. So the ratio corrects both staleness and the numerical mismatch of the two backends.
Frameworks that anchor on a recomputed "old" policy (SkyRL by default, verl) have rho = 1 with one step per batch, so
their clip or cap never acts.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scalerl.errors import RecipeError
from scalerl.recipe.import_path import one_line, own_place
from scalerl.training.rl.segments import dense_index, segment_count, segment_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The inputs of a loss: flat vectors with one entry per token."""

    log_probs: Float[Tensor, " tokens"]
    """Log-probs under the weights in training, with gradient."""
    generator_log_probs: Float[Tensor, " tokens"]
    """Log-probs that the generator stored when it sampled."""
    advantages: Float[Tensor, " tokens"]
    """The advantage of the token's completion."""
    completion_of_token: Int[Tensor, " tokens"]
    """An id of each token's completion; ids may be any integers."""
    trained: Bool[Tensor, " tokens"]
    """Tokens with a loss. Entries of other tokens may have any value, even NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The result of a loss, with one entry per token. For tokens that are not trained, it is 0, 1 and False."""

    loss: Float[Tensor, " tokens"]
    ratio: Float[Tensor, " tokens"]
    """The ratio in the loss (GSPO: of the sequence), without gradient."""
    clipped: Bool[Tensor, " tokens"]
    """Whether the clip or cap acted on the token."""
    importance: Float[Tensor, " tokens"] | None = None
    """The importance weight in the gradient of a token, if it is not the ratio."""


def cispo(inputs: LossInputs, *, cap: float = 5.0) -> TokenLoss:
    """CISPO: REINFORCE with a truncated importance weight; capped tokens keep their gradient.

    l_t = -sg(min(rho_t, cap)) A_t log pi_train(y_t)   (MiniMax-M1; ScaleRL paper, section 3; cap insensitive in 4 .. 8)
    The cap is absolute: 5.0 means rho <= 5, and there is no lower cap (as in TRL). verl, slime, SkyRL, open-instruct
    and NeMo-RL clamp at 1 + eps: for the same loss set 4.0 there (with a lower eps of 1); 5.0 would cap at 6.
    """
    log_ratio, advantages = _log_ratio_and_advantages(inputs)
    ratio = log_ratio.detach().exp()
    importance = ratio.clamp(max=cap)
    loss = -importance * advantages * inputs.log_probs
    return replace(_token_loss(loss, ratio, ratio > cap, inputs.trained), importance=importance)


def tis(inputs: LossInputs, *, cap: float = 2.0) -> TokenLoss:
    """Truncated importance sampling of the objective: capped tokens lose their gradient.

    l_t = -min(rho_t, cap) A_t, differentiated through rho_t   (Ionides 2008, the truncated estimator of E_train[A])
    Below the cap its gradient is that of CISPO, rho A d log pi; above the cap it is zero. Compared with CISPO at an
    equal cap, this isolates whether capped tokens keep a gradient. What verl and slime call TIS truncates the weight in
    the gradient instead: with the generator as the only anchor, that is `cispo` with cap 2.0.
    """
    log_ratio, advantages = _log_ratio_and_advantages(inputs)
    ratio = log_ratio.detach().exp()
    capped = ratio > cap
    loss = -advantages * _bounded(log_ratio, capped, ratio.clamp(max=cap))
    return _token_loss(loss, ratio, capped, inputs.trained)


def dapo(inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.26) -> TokenLoss:
    """DAPO's asymmetric clip; with clip_low = clip_high = 0.2 it is GRPO's (and PPO's).

    l_t = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)   (ScaleRL paper, sections 2 and 3)
    The paper uses 0.26 above, DAPO's own paper 0.28. No KL term, as in both.
    """
    log_ratio, advantages = _log_ratio_and_advantages(inputs)
    return _clipped_surrogate(log_ratio, advantages, inputs.trained, clip_low, clip_high)


def gspo(
    inputs: LossInputs, *, clip_low: float = 3e-3, clip_high: float = 4e-3, length_normalised: bool = True
) -> TokenLoss:
    """GSPO: DAPO's clip on one ratio per completion. A completion must not be split over two calls.

    s = exp((1/|y|) sum_t log rho_t),   l_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)   (GSPO, section 4)
    length_normalised=False drops 1/|y|: the ratio pi_train(y)/pi_gen(y) as the ScaleRL paper prints it. Clips of 1e-3
    suit only the normalised ratio; the other grows with length and overflows FP32 past a log-ratio of 88.
    Only trained tokens enter the sum and |y|. Each token of a completion holds the completion's loss, so a sample
    average gives exactly the papers' mean over completions. With equal weights w on its tokens, the gradient at s = 1
    is -w A per token (REINFORCE); unnormalised it is |y| times that, the REINFORCE gradient of a whole sequence.
    """
    log_ratio, advantages = _log_ratio_and_advantages(inputs)
    index, num = dense_index(inputs.completion_of_token)
    sequence_log_ratio = segment_sum(log_ratio, index, num)
    if length_normalised:
        sequence_log_ratio = sequence_log_ratio / segment_count(inputs.trained, index, num).clamp(min=1)
    return _clipped_surrogate(sequence_log_ratio[index], advantages, inputs.trained, clip_low, clip_high)


def squared_error(inputs: LossInputs) -> TokenLoss:
    """The loss of a critic: values take the place of log-probs, and returns that of advantages.

    l_t = (V_t - R_t)^2 / 2
    """
    nothing = torch.zeros_like(inputs.advantages)
    loss = (inputs.log_probs - inputs.advantages).square() / 2
    return _token_loss(loss, nothing, nothing.bool(), inputs.trained)


def none(inputs: LossInputs) -> TokenLoss:
    """No policy gradient: rewards are reported but not trained on, as in distillation.   l_t = 0"""
    log_ratio, _ = _log_ratio_and_advantages(inputs)
    nothing = torch.zeros_like(log_ratio)
    return _token_loss(nothing, log_ratio.detach().exp(), nothing.bool(), inputs.trained)


def check_signature(function: Callable[..., TokenLoss], name: str) -> None:
    """Raise a RecipeError unless `function` can be called with one positional argument, its LossInputs."""
    signature = inspect.signature(function)
    try:
        signature.bind(None)
    except TypeError:
        positional = [
            argument.name for argument in signature.parameters.values() if argument.kind < argument.KEYWORD_ONLY
        ]
        raise RecipeError(
            f'loss "{name}" takes ({", ".join(positional)}) but must take one positional argument, inputs: LossInputs, '
            f"whose fields are {', '.join(field.name for field in fields(LossInputs))} (see scalerl.training.rl.losses)"
        ) from None


def check_result(function: Callable[..., TokenLoss], name: str) -> None:
    """Call a user's loss on a few tokens; RecipeError if it fails or returns no differentiable value per token."""
    log_probs = torch.tensor([-0.5, -1.0, -2.0, -0.1], requires_grad=True)
    inputs = LossInputs(
        log_probs=log_probs,
        generator_log_probs=torch.tensor([-0.6, -1.0, -1.5, -0.2]),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        completion_of_token=torch.tensor([0, 0, 1, 1]),
        trained=torch.ones(4, dtype=torch.bool),
    )
    try:
        result = function(inputs)
    except Exception as error:
        place = own_place(error)
        raise RecipeError(
            f'loss "{name}" fails on a few tokens: {one_line(error)}{f" ({place})" if place else ""}'
        ) from error
    if not isinstance(result, TokenLoss):
        raise RecipeError(
            f'loss "{name}" returns {type(result).__name__} but must return a TokenLoss, whose fields are '
            f"{', '.join(field.name for field in fields(TokenLoss))} (see scalerl.training.rl.losses)"
        )
    for field in fields(TokenLoss):
        value = getattr(result, field.name)
        if value is None and field.name == "importance":
            continue
        if not isinstance(value, Tensor) or value.shape != log_probs.shape:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RecipeError(
                f'loss "{name}" returns {what} as {field.name} for {len(log_probs)} tokens: return one value per token'
            )
    if not result.loss.requires_grad:
        raise RecipeError(f'loss "{name}" has no gradient: compute it from inputs.log_probs without detaching them')


def _log_ratio_and_advantages(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return log rho and A, both 0 for tokens that are not trained.

    The entries of such tokens (padding, -inf, NaN) must not reach a sum, and must not become NaN when multiplied by a
    gradient of 0.
    """
    log_ratio = torch.where(inputs.trained, inputs.log_probs - inputs.generator_log_probs.detach(), 0.0)
    return log_ratio, torch.where(inputs.trained, inputs.advantages, 0.0)


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, trained: Tensor, clip_low: float, clip_high: float
) -> TokenLoss:
    """Return -min(rho A, clip(rho) A). The clip binds above for positive advantages and below for negative ones."""
    ratio = log_ratio.detach().exp()
    binds = ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))
    loss = -advantages * _bounded(log_ratio, binds, ratio.clamp(1 - clip_low, 1 + clip_high))
    return _token_loss(loss, ratio, binds, trained)


def _bounded(log_ratio: Tensor, binds: Tensor, bound: Tensor) -> Tensor:
    """Return the ratio or, if `binds`, its bound, which has no gradient.

    The exponent is masked before exp, because an overflowing exp has the gradient 0 * inf = NaN even if it is unused.
    """
    return torch.where(binds, bound, log_ratio.masked_fill(binds, 0.0).exp())


def _token_loss(loss: Tensor, ratio: Tensor, clipped: Tensor, trained: Tensor) -> TokenLoss:
    return TokenLoss(
        loss=torch.where(trained, loss, 0.0), ratio=torch.where(trained, ratio, 1.0), clipped=clipped & trained
    )


LOSSES = {"cispo": cispo, "dapo": dapo, "gspo": gspo, "tis": tis, "none": none}
