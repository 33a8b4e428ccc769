"""Algorithms: how much each token of a rollout counts in each part of the loss.

    loss = sum over tokens of  policy_t l_t(rho_t, A_t)  -  imitation_t log pi(y_t)  +  kl_t KL_t(pi, reference)

An algorithm is a function of a `Rollout` that returns a `WeightedRollout`. It sees the whole batch before this is
split, so a micro-batch or a rank sums its own tokens, and any split gives the same gradient. The learner knows only the
sum above (training/rl/objective.py).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from scalerl.training.rl import advantages
from scalerl.training.rl import credit as crediting
from scalerl.training.rl import entropy as controls
from scalerl.training.rl import imitation as imitations
from scalerl.training.rl.credit import CreditInputs, Turns
from scalerl.training.rl.entropy import Controlled, PolicyTokens
from scalerl.training.rl.filters import EffectiveBatch, trained_tokens
from scalerl.training.rl.weights import token


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A batch of graded completions as flat arrays."""

    group: Int[Tensor, " completions"]
    value: Real[Tensor, " completions"]
    """The graders' value, from 0 to 1; ignored without a verdict."""
    correct: Bool[Tensor, " completions"]
    has_verdict: Bool[Tensor, " completions"]
    rewards: Float[Tensor, " completions"]
    truncated: Bool[Tensor, " completions"]
    completion_of_token: Int[Tensor, " tokens"]
    """Index of each token's completion."""
    generator_log_probs: Float[Tensor, " tokens"]
    trainable: Bool[Tensor, " tokens"]
    """Whether a token was sampled and has a finite generator log-prob."""
    version: int = 0
    """The version of the policy in training, which seeds random choices."""
    turns: Turns | None = None
    """The turns of conversations; None if every completion is a single turn."""
    critic: Float[Tensor, " tokens"] | None = None
    """The critic's value before each trainable token; None without a critic."""

    @property
    def num_trainable(self) -> Int[Tensor, " completions"]:
        return torch.zeros_like(self.group).index_add(0, self.completion_of_token, self.trainable.long())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """The weight of each token in each part of the loss; 0 for tokens that are not trained."""

    policy: Float[Tensor, " tokens"]
    """Weight of the policy-gradient loss."""
    advantages: Float[Tensor, " tokens"]
    imitation: Float[Tensor, " tokens"] | None = None
    """Weight of -log pi; None if all are 0."""
    kl: Float[Tensor, " tokens"] | None = None
    """Weight of the KL term; None if all are 0."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "TokenWeights":
        """Return the weights with a function applied to every vector."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: change(part) for name, part in parts.items() if part is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRollout:
    """A rollout after an algorithm: kept completions and token weights."""

    effective: EffectiveBatch
    """Which completions are trained on."""
    trained: Bool[Tensor, " tokens"]
    weights: TokenWeights
    metrics: Mapping[str, float] = field(default_factory=dict)


Algorithm = Callable[[Rollout], WeightedRollout]
Average = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of training/rl/weights.py."""


def reinforce(
    rollout: Rollout,
    *,
    effective: Callable[..., EffectiveBatch],
    average: Average,
    normalise: Callable[[Tensor, Tensor], Tensor] = advantages.batch,
    credit: Callable[[CreditInputs], Tensor] = crediting.completion,
    entropy: Callable[[PolicyTokens], Controlled] = controls.none,
    imitation: Callable[..., Tensor | None] = imitations.none,
    kl: float = 0.0,
) -> WeightedRollout:
    """Reinforcement learning: compute the advantages of kept completions and distribute them over their tokens.

    `effective` is rl.filters.effective_batch, `normalise` a function of rl/advantages.py, `credit` one of rl/credit.py,
    `entropy` of rl/entropy.py and `imitation` of rl/imitation.py, with their settings bound; `kl` is the coefficient of
    the KL term.
    """
    owner = rollout.completion_of_token
    batch = filtered(rollout, functools.partial(effective, normalise=normalise))
    trained = trained_tokens(rollout.trainable, owner, batch.kept)
    weigh = functools.partial(average, rollout.group.index_select(0, owner), owner)
    weights = weigh(trained)
    controlled = entropy(
        PolicyTokens(
            policy=weights,
            advantages=credit(credit_inputs(rollout, batch, trained, normalise)),
            generator_log_probs=rollout.generator_log_probs,
            trained=trained,
            seed=rollout.version,
        )
    )
    return WeightedRollout(
        effective=batch,
        trained=trained,
        weights=TokenWeights(
            policy=controlled.policy,
            advantages=controlled.advantages,
            imitation=imitation(rollout.correct.index_select(0, owner), trained, weigh),
            kl=kl * weights if kl else None,
        ),
        metrics=controlled.metrics,
    )


def filtered(rollout: Rollout, effective: Callable[..., EffectiveBatch]) -> EffectiveBatch:
    return effective(
        rollout.group,
        rollout.value,
        rollout.has_verdict,
        rollout.rewards,
        rollout.truncated,
        rollout.num_trainable,
    )


def credit_inputs(
    rollout: Rollout,
    batch: EffectiveBatch,
    trained: Tensor,
    normalise: Callable[[Tensor, Tensor], Tensor] = advantages.none,
) -> CreditInputs:
    return CreditInputs(
        value=rollout.value,
        rewards=rollout.rewards,
        advantages=batch.advantages,
        group=rollout.group,
        completion_of_token=rollout.completion_of_token,
        trained=trained,
        turns=rollout.turns,
        critic=rollout.critic,
        normalise=normalise,
    )


def foresee(
    rollout: Rollout, *, effective: Callable[..., EffectiveBatch], returns: Callable[[CreditInputs], Tensor]
) -> WeightedRollout:
    """The regression of a critic: all trainable tokens of graded completions have equal weight, and their returns take
    the place of advantages. `returns` is rl.credit.returns with its settings bound."""
    owner = rollout.completion_of_token
    batch = filtered(rollout, effective)
    trained = trained_tokens(rollout.trainable, owner, batch.kept)
    weights = TokenWeights(
        policy=token(rollout.group.index_select(0, owner), owner, trained),
        advantages=returns(credit_inputs(rollout, batch, trained)),
    )
    return WeightedRollout(effective=batch, trained=trained, weights=weights)


def imitate(rollout: Rollout) -> WeightedRollout:
    """Supervised fine-tuning: imitate all trainable tokens with equal weight."""
    owner = rollout.completion_of_token
    num = rollout.group.numel()
    kept = torch.ones_like(rollout.has_verdict)
    trained = trained_tokens(rollout.trainable, owner, kept)
    nothing = torch.zeros_like(rollout.generator_log_probs)
    return WeightedRollout(
        effective=EffectiveBatch(
            kept=kept,
            advantages=torch.zeros_like(rollout.rewards),
            **dict.fromkeys(("num_completions", "num_groups", "num_kept", "num_kept_groups"), num),
            **dict.fromkeys(("num_truncated", "num_no_verdict", "num_zero_variance"), 0),
        ),
        trained=trained,
        weights=TokenWeights(
            policy=nothing,
            advantages=nothing,
            imitation=token(rollout.group.index_select(0, owner), owner, trained),
        ),
    )
