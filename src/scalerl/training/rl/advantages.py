"""Group advantages: a baseline is subtracted from each reward, and the difference is normalised.

    advantage = normalise(reward - baseline(reward, group), group)

Arrays have one entry per completion; completions of the same problem have the same `group`. A recipe picks one
function from BASELINES and one from NORMALISATIONS.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scalerl.training.rl.segments import dense_index, segment_count, segment_min, segment_sum

Rewards = Float[Tensor, " completions"]
Groups = Int[Tensor, " completions"]

EPS = 1e-6
"""Added to a group's standard deviation."""


def mean(rewards: Rewards, group: Groups) -> Rewards:
    """Baseline: the group's mean reward.

    b_i = (1/G) sum_j r_j   (ScaleRL paper, section 2; GRPO, without its division)
    """
    lowest, _, total, size = _group_sums(rewards, group)
    return lowest + total / size


def leave_one_out(rewards: Rewards, group: Groups) -> Rewards:
    """Baseline: the mean reward of the other completions of the group.

    b_i = (1/(G-1)) sum_{j != i} r_j, so r_i - b_i = G/(G-1) (r_i - mean(r))   (RLOO, Ahmadian et al. 2024)
    If a completion is alone in its group, its baseline is its own reward, so its advantage is 0. Only the factor
    G/(G-1) differs from `mean`. Normalisation by `prompt` cancels it (up to eps), and so does `batch` if all kept
    groups have the same size. It matters without normalisation, or with `batch` and groups of different sizes.
    """
    lowest, above, total, size = _group_sums(rewards, group)
    return lowest + (total - above) / (size - 1).clamp(min=1)


def batch(advantages: Rewards, group: Groups) -> Rewards:
    """Normalisation: divide by the standard deviation over the whole batch (ddof 0).

    A_i / std({A_j : j in batch})   (ScaleRL paper, section 4: the recipe's choice)
    The batch includes only completions of kept groups. Frameworks that include dropped groups (the paper does not say)
    get a smaller std. If all advantages are zero, they stay zero.
    """
    std = advantages.std(correction=0) if advantages.numel() else advantages.new_ones(())
    return advantages / torch.where(std > 0, std, 1.0)


def prompt(advantages: Rewards, group: Groups) -> Rewards:
    """Normalisation: divide by the standard deviation within the group (ddof 0) plus eps.

    A_i / (std({A_j : j in group of i}) + eps)   (GRPO; ScaleRL paper, section 2)
    With the mean baseline this is the std of the rewards. TRL and verl use ddof 1, which gives advantages smaller by a
    factor of sqrt((G-1)/G).
    """
    index, num = dense_index(group)
    size = segment_count(torch.ones_like(group, dtype=torch.bool), index, num)
    centre = (segment_sum(advantages, index, num) / size)[index]
    variance = segment_sum((advantages - centre).square(), index, num) / size
    return advantages / (variance.sqrt()[index] + EPS)


def none(advantages: Rewards, group: Groups) -> Rewards:
    """Return the advantages unchanged.   (Dr. GRPO; an arm of the ScaleRL paper, section 3)"""
    return advantages


def _group_sums(rewards: Rewards, group: Groups) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return per completion: its group's lowest reward, its excess over that, the group's total excess and its size.

    Summing the excess instead of rewards makes the advantage exactly 0 in a group of equal rewards. (The mean of 0.1,
    0.1 and 0.1 is not 0.1 in floating point, and dividing by the batch's std could make the difference large.)
    """
    index, num = dense_index(group)
    lowest = segment_min(rewards, index, num)[index]
    above = rewards - lowest
    size = segment_count(torch.ones_like(group, dtype=torch.bool), index, num)
    return lowest, above, segment_sum(above, index, num)[index], size[index]


BASELINES = {"mean": mean, "leave_one_out": leave_one_out}
NORMALISATIONS = {"batch": batch, "prompt": prompt, "none": none}
