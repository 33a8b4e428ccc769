"""Group advantages on two axes: what is subtracted from a reward (baseline) and what the difference is divided by.

One entry a completion; `group` says which completions answer the same problem. A recipe picks one function of each
table: advantage = normalise(reward - baseline(reward, group), group).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scalerl.rl.segments import dense_index, segment_count, segment_min, segment_sum

Rewards = Float[Tensor, " completions"]
Groups = Int[Tensor, " completions"]


def mean(rewards: Rewards, group: Groups) -> Rewards:
    """Baseline: the group's mean reward.

    b_i = (1/G) sum_j r_j   (ScaleRL paper, section 2; GRPO, without its division)
    """
    lowest, _, total, size = _group_sums(rewards, group)
    return lowest + total / size


def leave_one_out(rewards: Rewards, group: Groups) -> Rewards:
    """Baseline: the mean reward of the other completions of the group.

    b_i = (1/(G-1)) sum_{j != i} r_j, so r_i - b_i = G/(G-1) (r_i - mean(r))   (RLOO, Ahmadian et al. 2024)
    A completion alone in its group has no others: its baseline is its own reward, its advantage 0.
    The factor G/(G-1) is all that differs from `mean`, so `prompt` divides it out (up to eps), and so does `batch`
    where all kept groups are of one size; it acts without normalisation, or in `batch` where sizes differ.
    """
    lowest, above, total, size = _group_sums(rewards, group)
    return lowest + (total - above) / (size - 1).clamp(min=1)


def batch(advantages: Rewards, group: Groups) -> Rewards:
    """Normalisation: divide by the standard deviation over all completions given (ddof 0).

    A_i / std({A_j : j in batch})   (ScaleRL paper, section 4: the recipe's own)
    Only completions of kept groups are given, so dropped groups do not count. Peers that include them (the paper
    leaves it open) get a smaller std. All advantages zero: they stay zero.
    """
    std = advantages.std(correction=0) if advantages.numel() else advantages.new_ones(())
    return advantages / torch.where(std > 0, std, 1.0)


def prompt(advantages: Rewards, group: Groups, *, eps: float = 1e-6) -> Rewards:
    """Normalisation: divide by the standard deviation within the group (ddof 0) plus eps.

    A_i / (std({A_j : j in group of i}) + eps)   (GRPO; ScaleRL paper, section 2)
    With the mean baseline this std is that of the rewards. TRL and verl use ddof 1 here: smaller by sqrt((G-1)/G).
    """
    index, num = dense_index(group)
    size = segment_count(torch.ones_like(group, dtype=torch.bool), index, num)
    centre = (segment_sum(advantages, index, num) / size)[index]
    variance = segment_sum((advantages - centre).square(), index, num) / size
    return advantages / (variance.sqrt()[index] + eps)


def none(advantages: Rewards, group: Groups) -> Rewards:
    """Normalisation: none.   (Dr. GRPO; an arm of the ScaleRL paper, section 3)"""
    return advantages


def _group_sums(rewards: Rewards, group: Groups) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per completion: the group's lowest reward, the height above it, the group's sum of heights, the group's size.

    Sums are of heights, not of rewards, so that a group of equal rewards has an advantage of exactly 0 (the mean of
    three times 0.1 is not 0.1), which a division by the batch's std would otherwise blow up.
    """
    index, num = dense_index(group)
    lowest = segment_min(rewards, index, num)[index]
    above = rewards - lowest
    size = segment_count(torch.ones_like(group, dtype=torch.bool), index, num)
    return lowest, above, segment_sum(above, index, num)[index], size[index]


BASELINES = {"mean": mean, "leave_one_out": leave_one_out}
NORMALISATIONS = {"batch": batch, "prompt": prompt, "none": none}
