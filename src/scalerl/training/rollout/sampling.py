"""Sample a token from logits and return its log-prob, for one row per slot and any engine that has the logits."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sample(
    logits: Float[Tensor, "slots vocab"],
    uniform: Float[Tensor, " slots"],
    temperature: Float[Tensor, " slots"],
    *,
    top_p: Float[Tensor, " slots"] | None = None,
    greedy: Bool[Tensor, " slots"] | None = None,
) -> tuple[Int[Tensor, " slots"], Float[Tensor, " slots"]]:
    """Invert the cumulative distribution at one uniform number per row: y = min {v : sum_(w <= v) p_w > u}.

    The log-prob is that of the whole distribution at the row's temperature, log p_y = z_y / T - logsumexp(z / T), even
    if top_p cuts off the tail. With top_p it is not the probability with which the token was drawn, so training does
    not allow top_p. Greedy rows take the likeliest token; set their temperature to 1. Non-finite logits give a
    non-finite log-prob and an arbitrary token.
    """
    log_probs = torch.log_softmax(logits / temperature[:, None], dim=-1)
    weights = log_probs.exp()
    if top_p is not None:
        weights = _nucleus(weights, top_p)
    cumulative = weights.cumsum(dim=-1)
    # Always below the total, since u <= 1 - 2^-24, so the chosen token has a weight above 0.
    threshold = uniform * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
    if greedy is not None:
        tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
    return tokens.squeeze(1), log_probs.gather(1, tokens).squeeze(1)


def _nucleus(probs: Tensor, top_p: Tensor) -> Tensor:
    """Set the probability of all tokens to zero except the smallest set of likeliest tokens that sums to top_p."""
    ordered, places = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p[:, None], 0.0)
    return torch.empty_like(probs).scatter_(1, places, ordered)
