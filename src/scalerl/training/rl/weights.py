"""Loss reductions as token weights: batch loss = sum over tokens of weight x token loss.

The weights are computed once for the whole batch, before it is split. A micro-batch or a rank then sums its own tokens,
and any split gives the same gradient by construction. (If a framework averages gradients over ranks, as FSDP does,
multiply the loss by the number of ranks.) Only trained tokens count: other tokens weigh 0 and are in no denominator.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scalerl.training.rl.segments import dense_index, segment_count

Ids = Int[Tensor, " tokens"]
Trained = Bool[Tensor, " tokens"]
Weights = Float[Tensor, " tokens"]


def prompt(group_of_token: Ids, completion_of_token: Ids, trained: Trained) -> Weights:
    """Equal weight for every prompt, with its tokens pooled: the choice of ScaleRL, and of DAPO in its paper.

    w_t = 1 / (num_prompts x num_tokens of t's prompt)   (ScaleRL paper, sections 3 and 4)
    Each group of the batch counts as one prompt. TRL, NeMo-RL and verl do not have this average; they have `token` or
    `sample`.
    """
    return _segment_average(group_of_token, trained)


def sample(group_of_token: Ids, completion_of_token: Ids, trained: Trained) -> Weights:
    """Equal weight for every completion: GRPO's choice, and the paper's baseline.

    w_t = 1 / (num_completions x num_tokens of t's completion)   (ScaleRL paper, sections 2 and 3)
    """
    return _segment_average(completion_of_token, trained)


def token(group_of_token: Ids, completion_of_token: Ids, trained: Trained) -> Weights:
    """Equal weight for every token in the batch: most frameworks call this DAPO's average.

    w_t = 1 / num_tokens   (ScaleRL paper, section 3)
    """
    return _segment_average(torch.zeros_like(group_of_token), trained)


def constant(group_of_token: Ids, completion_of_token: Ids, trained: Trained, *, denominator: float) -> Weights:
    """The same denominator for every batch, however many tokens are kept.

    w_t = 1 / denominator   (Dr. GRPO, Liu et al. 2025)
    Set it to completions per batch x longest completion, e.g. 768 x 14336. A short or heavily filtered batch then gives
    a smaller step.
    """
    return trained / denominator


def _segment_average(segment: Ids, trained: Trained) -> Weights:
    """1 / (segments with a trained token x trained tokens of the segment)."""
    index, num = dense_index(segment)
    num_tokens = segment_count(trained, index, num)
    num_segments = (num_tokens > 0).sum()
    # Counts are integers, so the quotient has torch's default dtype; tests set it to float64.
    return trained / (num_segments * num_tokens).index_select(0, index).clamp(min=1)


WEIGHTS = {"prompt": prompt, "sample": sample, "token": token, "constant": constant}
