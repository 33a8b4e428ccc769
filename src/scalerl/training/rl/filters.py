"""Choose the completions to train on, once per batch, before it is split. The order of the steps:

    no verdict, truncated, no trainable token -> groups of fewer than two -> baseline -> zero variance -> normalisation

Token weights (rl/weights.py) are computed afterwards, over the kept completions. The paper does not say whether the
filter comes before or after the std and the denominators, and frameworks differ; here, all of them include only kept
completions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from scalerl.training.rl import advantages as adv
from scalerl.training.rl.segments import dense_index, segment_count, segment_max, segment_min


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveBatch:
    """Which completions are trained on, their advantages, and counts of what was dropped."""

    kept: Bool[Tensor, " completions"]
    advantages: Float[Tensor, " completions"]
    """Advantage of each completion; 0 if it is not kept."""
    num_completions: int
    num_truncated: int
    """Number of truncated completions, whether or not they are dropped."""
    num_no_verdict: int
    num_groups: int
    """Number of groups with enough remaining completions to compare."""
    num_zero_variance: int
    """Number of these groups whose verdicts are all equal; also counted if the filter is off."""
    num_kept: int
    num_kept_groups: int


def effective_batch(
    group: Int[Tensor, " completions"],
    value: Real[Tensor, " completions"],
    has_verdict: Bool[Tensor, " completions"],
    rewards: Float[Tensor, " completions"],
    truncated: Bool[Tensor, " completions"],
    num_trainable: Int[Tensor, " completions"],
    *,
    drop_truncated: bool,
    zero_variance: bool,
    fewest: int = 2,
    baseline: Callable[[Tensor, Tensor], Tensor] = adv.mean,
    normalise: Callable[[Tensor, Tensor], Tensor] = adv.batch,
) -> EffectiveBatch:
    """Filter a batch and compute its advantages, in the order given above.

    The zero-variance filter drops a group whose values are all exactly equal; binary groups are kept if
    0 < mean(value) < 1 (ScaleRL paper, section 3; no refill). It compares values, not rewards, so that a length
    penalty cannot revive an all-correct group, and not a float std as NeMo-RL and OpenRLHF do. With the filter off,
    such groups are kept and counted in every denominator: the paper's leave-one-out arm. Truncated completions are
    dropped as in its appendix A.16. A group needs `fewest` completions: two, or one with a critic. `value` and
    `rewards` are ignored without a verdict. If nothing is kept, there is no update.
    """
    index, num = dense_index(group)
    left = has_verdict & (num_trainable > 0)
    if drop_truncated:
        left = left & ~truncated
    comparable = segment_count(left, index, num) >= fewest
    left = left & comparable[index]

    advantages = torch.zeros_like(rewards)
    advantages[left] = rewards[left] - baseline(rewards[left], group[left])

    equal = segment_min(value[left], index[left], num) == segment_max(value[left], index[left], num)
    equal_verdicts = comparable & equal
    kept = left & ~equal_verdicts[index] if zero_variance else left
    advantages[left & ~kept] = 0.0
    advantages[kept] = normalise(advantages[kept], group[kept])

    kept_groups = comparable & ~equal_verdicts if zero_variance else comparable
    counted = (truncated, ~has_verdict, comparable, equal_verdicts, kept, kept_groups)
    num_truncated, num_no_verdict, *of_groups = torch.stack([mask.sum() for mask in counted]).tolist()
    return EffectiveBatch(
        kept=kept,
        advantages=advantages,
        num_completions=group.numel(),
        num_truncated=num_truncated,
        num_no_verdict=num_no_verdict,
        num_groups=of_groups[0],
        num_zero_variance=of_groups[1],
        num_kept=of_groups[2],
        num_kept_groups=of_groups[3],
    )


def trainable_tokens(
    sampled: Bool[Tensor, " tokens"], generator_log_probs: Float[Tensor, " tokens"]
) -> Bool[Tensor, " tokens"]:
    """Mark tokens that were sampled (not prompt, forced or padding) and have a finite generator log-prob.

    The sum per completion is num_trainable. A sampled token without a finite log-prob has no ratio: it is left out and
    counted by `num_nonfinite`.
    """
    return sampled & generator_log_probs.isfinite()


def num_nonfinite(sampled: Bool[Tensor, " tokens"], generator_log_probs: Float[Tensor, " tokens"]) -> int:
    """Count sampled tokens without a ratio; a value above 0 means that the generator is broken."""
    return int((sampled & ~generator_log_probs.isfinite()).sum())


def trained_tokens(
    trainable: Bool[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    kept: Bool[Tensor, " completions"],
) -> Bool[Tensor, " tokens"]:
    """Return the mask for loss, weights and metrics. `completion_of_token` indexes `kept`; -1 stands for padding."""
    # Index -1 refers to the appended entry, which is False and exists even without completions.
    return trainable & torch.cat([kept, kept.new_zeros(1)])[completion_of_token]
