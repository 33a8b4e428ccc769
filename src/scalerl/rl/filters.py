"""What is trained on, decided once a batch before it is split, in one order of statistics:

    no verdict, truncated, nothing to train on -> groups of fewer than two -> baseline -> zero variance -> normalisation

Weights (rl/weights.py) come after, over what is kept. Whether the filter is applied before or after the std and the
denominators is left open by the paper and differs between peers; here everything counts only what is kept.
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
    """The completions that are trained on, their advantages, and what became of the rest."""

    kept: Bool[Tensor, " completions"]
    advantages: Float[Tensor, " completions"]
    """0 where not kept."""
    num_completions: int
    num_truncated: int
    """Of all completions, whether dropped for it or not."""
    num_no_verdict: int
    num_groups: int
    """Groups with two or more completions left to compare."""
    num_zero_variance: int
    """Of those, the groups of one verdict; counted with the filter off too."""
    num_kept: int
    num_kept_groups: int


def effective_batch(
    group: Int[Tensor, " completions"],
    correct: Real[Tensor, " completions"],
    has_verdict: Bool[Tensor, " completions"],
    rewards: Float[Tensor, " completions"],
    truncated: Bool[Tensor, " completions"],
    num_trainable: Int[Tensor, " completions"],
    *,
    drop_truncated: bool,
    zero_variance: bool,
    baseline: Callable[[Tensor, Tensor], Tensor] = adv.mean,
    normalise: Callable[[Tensor, Tensor], Tensor] = adv.batch,
) -> EffectiveBatch:
    """Filter a batch and compute its advantages (the order above).

    The zero-variance filter drops a group whose `correct` are all exactly equal, 0 < mean(correct) < 1 for a binary one
    (ScaleRL paper, section 3; no refill). It looks at `correct`, not at the reward, so that a length penalty cannot
    revive an all-correct group; and not at a float std, as NeMo-RL and OpenRLHF do. Off, such groups are kept and
    counted in every denominator: the paper's leave-one-out arm. Truncated completions are left out as in its appendix
    A.16. `correct` and `rewards` are not read where there is no verdict. Nothing kept is a valid answer: no step is
    due then.
    """
    index, num = dense_index(group)
    left = has_verdict & (num_trainable > 0)
    if drop_truncated:
        left = left & ~truncated
    comparable = segment_count(left, index, num) >= 2
    left = left & comparable[index]

    advantages = torch.zeros_like(rewards)
    advantages[left] = rewards[left] - baseline(rewards[left], group[left])

    equal = segment_min(correct[left], index[left], num) == segment_max(correct[left], index[left], num)
    one_verdict = comparable & equal
    kept = left & ~one_verdict[index] if zero_variance else left
    advantages[left & ~kept] = 0.0
    advantages[kept] = normalise(advantages[kept], group[kept])

    kept_groups = comparable & ~one_verdict if zero_variance else comparable
    counted = (truncated, ~has_verdict, comparable, one_verdict, kept, kept_groups)
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
    """Sampled (not prompt, forced or padding) with a finite generator log-prob; its sum per completion is
    num_trainable.

    A sampled token whose stored log-prob is not finite has no ratio: it is left out, and `num_nonfinite` counts it.
    """
    return sampled & generator_log_probs.isfinite()


def num_nonfinite(sampled: Bool[Tensor, " tokens"], generator_log_probs: Float[Tensor, " tokens"]) -> int:
    """Sampled tokens that have no ratio; anything but 0 is the generator's fault and worth an alarm."""
    return int((sampled & ~generator_log_probs.isfinite()).sum())


def trained_tokens(
    trainable: Bool[Tensor, " tokens"],
    completion_of_token: Int[Tensor, " tokens"],
    kept: Bool[Tensor, " completions"],
) -> Bool[Tensor, " tokens"]:
    """The mask of loss, weights and metrics. `completion_of_token` indexes `kept`; padding carries -1."""
    # -1 is the entry put last, which is not kept; there is one also where no completion is.
    return trainable & torch.cat([kept, kept.new_zeros(1)])[completion_of_token]
