"""Entropy control: keep a policy from becoming certain too early. A control is a function of a batch's token vectors.

Policy gradients lower the entropy by the covariance of log-probs and advantages (Cui et al. 2025, arXiv 2505.22617).
A control changes the advantages or the weights of the policy-gradient part. It reads the generator's log-probs, which
are known for the whole batch before it is split, so that any split gives the same gradient. Its keyword-only arguments
are its settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Vector = Float[Tensor, " tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The tokens of the policy-gradient part of a batch."""

    policy: Vector
    """Weight of each token; 0 if it is not trained."""
    advantages: Vector
    generator_log_probs: Vector
    trained: Bool[Tensor, " tokens"]
    seed: int = 0
    """Seed of random choices, equal on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controlled:
    policy: Vector
    advantages: Vector
    metrics: Mapping[str, float] = field(default_factory=dict)


def none(tokens: PolicyTokens) -> Controlled:
    """No control: ScaleRL's choice."""
    return Controlled(policy=tokens.policy, advantages=tokens.advantages)


def bonus(tokens: PolicyTokens, *, coefficient: float = 1e-3) -> Controlled:
    """Reward unlikely tokens: the policy gradient of an entropy bonus.

    A_t <- A_t - coefficient (log pi_gen(y_t) - b),   b the mean log-prob of the batch
    At each place its mean over samples is the gradient of coefficient x H(pi), whatever b is. (The gradient of the
    exact entropy, which verl and others add to the loss, has the same mean and less noise, and needs a second gradient
    of the head.)
    """
    if not tokens.trained.any():
        return none(tokens)
    log_probs = torch.where(tokens.trained, tokens.generator_log_probs, 0.0)
    surprise = log_probs.sum() / tokens.trained.sum() - log_probs
    added = torch.where(tokens.trained, coefficient * surprise, 0.0)
    return Controlled(policy=tokens.policy, advantages=tokens.advantages + added.to(tokens.advantages.dtype))


def clip_cov(tokens: PolicyTokens, *, fraction: float = 2e-4, low: float = 1.0, high: float = 5.0) -> Controlled:
    """Leave out a few of the tokens that lower the entropy most.

    cov_t = (log pi_gen(y_t) - mean log pi_gen) (A_t - mean A)   (Clip-Cov, arXiv 2505.22617, section 4.2)
    Of the tokens with low < cov_t < high, drawn at random, `fraction` of all trained tokens (at least one) lose their
    policy gradient. entropy/clipped_frac is the share that did.
    """
    trained = tokens.trained
    num = int(trained.sum())
    if not num:
        return none(tokens)
    log_probs = torch.where(trained, tokens.generator_log_probs, 0.0)
    advantages = torch.where(trained, tokens.advantages, 0.0)
    covariance = (log_probs - log_probs.sum() / num) * (advantages - advantages.sum() / num)
    candidates = torch.nonzero(trained & (covariance > low) & (covariance < high)).squeeze(1)
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(tokens.seed))
    clipped = candidates[order[: max(int(fraction * num), 1)]]
    return Controlled(
        policy=tokens.policy.index_fill(0, clipped, 0.0),
        advantages=tokens.advantages,
        metrics={"entropy/clipped_frac": len(clipped) / num},
    )


CONTROLS = {"none": none, "bonus": bonus, "clip_cov": clip_cov}
