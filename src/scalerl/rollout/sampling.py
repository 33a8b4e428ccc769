"""From logits to a token and its log-prob, one row a slot."""

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
    """Invert the cumulative distribution at one uniform number a row: y = min {v : sum_(w <= v) p_w > u}.

    The log-prob is that of the whole distribution at the row's temperature, log p_y = z_y / T - logsumexp(z / T), also
    where top_p cut its tail off: then it is not the probability the token was drawn with, which is why training
    refuses top_p. Greedy rows give the likeliest token; their temperature is to be set to 1. Non-finite logits give a
    log-prob that is not finite and some token of the vocabulary.
    """
    log_probs = torch.log_softmax(logits / temperature[:, None], dim=-1)
    weights = log_probs.exp()
    if top_p is not None:
        weights = _nucleus(weights, top_p)
    cumulative = weights.cumsum(dim=-1)
    # Below the total in every case, since u <= 1 - 2^-24: the entry found has a weight above 0.
    threshold = uniform * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
    if greedy is not None:
        tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
    return tokens.squeeze(1), log_probs.gather(1, tokens).squeeze(1)


def _nucleus(probs: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the fewest likeliest tokens that hold top_p of the probability."""
    ordered, places = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p[:, None], 0.0)
    return torch.empty_like(probs).scatter_(1, places, ordered)
