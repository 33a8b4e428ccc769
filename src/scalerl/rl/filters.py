"""Choose what is trained on, once per batch and before it is split. The order of the steps:

    no verdict, truncated, no trainable token -> groups of fewer than two -> baseline -> zero variance -> normalisation

Token weights (rl/weights.py) are computed afterwards, over the kept completions. The paper leaves open whether the
filter comes before or after the std and the denominators, and frameworks differ; here all of them count only what is
kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from scalerl.rl import advantages as adv
from scalerl.rl.segments import dense_index, segment_count, segment_max, segment_min


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveBatch:
    """Which completions are trained on, their advantages, and counts of what was dropped."""

    kept: Bool[Tensor, " completions"]
    advantages: Float[Tensor, " completions"]
    """0 where not kept."""
    num_completions: int
    num_truncated: int
    """Truncated completions, dropped or not."""
    num_no_verdict: int
    num_groups: int
    """Groups with enough completions left to compare."""
    num_zero_variance: int
    """Groups among them whose verdicts are all equal; counted with the filter off too."""
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
    dropped as in its appendix A.16. A group needs `fewest` completions: two, or one where a critic is what it is
    compared with. `value` and `rewards` are not read where there is no verdict. If nothing is kept, there is no update
    to make.
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

    The sum per completion is num_trainable. A sampled token without a finite log-prob has no ratio: it is left out, and
    `num_nonfinite` counts it.
    """
    return sampled & generator_log_probs.isfinite()


def num_nonfinite(sampled: Bool[Tensor, " tokens"], generator_log_probs: Float[Tensor, " tokens"]) -> int:
    """Count sampled tokens that have no ratio; a value above 0 means that the generator is broken."""
    return int((sampled & ~generator_log_probs.isfinite()).sum())


def trained_tokens(
    trainable: Bool[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    kept: Bool[Tensor, " completions"],
) -> Bool[Tensor, " tokens"]:
    """Return the mask of loss, weights and metrics. `completion_of_token` indexes `kept`, with -1 for padding."""
    # Index -1 is the entry appended here, which is False; it exists even if there is no completion.
    return trainable & torch.cat([kept, kept.new_zeros(1)])[completion_of_token]
