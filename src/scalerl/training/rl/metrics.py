"""Metrics of a step: sums over each micro-batch, which add up, then one dict of floats.

Sums are unweighted. So the sums and the largest ratio of micro-batches and ranks give the
same metrics as the whole batch. `token_sums` does not wait for the device.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from scalerl.training.rl.filters import EffectiveBatch
from scalerl.training.rl.losses import LossInputs, TokenLoss

LARGEST_RATIO = 1e30
"""Larger ratios are recorded as this, which is far above any meaningful ratio and well within the range of FP32."""


SUMS = ("tokens", "tokens in the loss", "ratio", "clipped", "kl", "entropy")
"""What `token_sums` adds up, before further columns."""


@torch.no_grad()
def token_sums(
    token_loss: TokenLoss,
    inputs: LossInputs,
    entropy: Float[Tensor, " tokens"],
    columns: Sequence[Float[Tensor, " tokens"]] = (),
    *,
    in_loss: Bool[Tensor, " tokens"] | None = None,
) -> tuple[Float64[Tensor, " sums"], Float64[Tensor, ""]]:
    """Return sums over the tokens of a micro-batch (SUMS and the further columns, Objective.columns), and the largest
    ratio (-inf without tokens).

    Ratio and clipped are those of the tokens that the loss trains on, `in_loss`; by default, and for all other sums,
    those are the trained tokens. KL is the k3 estimate of KL(generator || trainer) on the generator's samples:

    k3_t = rho_t - 1 - log rho_t >= 0, with expectation KL(pi_gen || pi_train) over y_t ~ pi_gen   (Schulman 2020)
    It always uses the token's ratio, even if the loss uses the sequence's. At equal weights it measures the numerical
    mismatch of the two backends and should be near zero. Ratios above LARGEST_RATIO count as LARGEST_RATIO, so that a
    token with a generator log-prob of -100 shows in the row without making it infinite.
    """
    trained = inputs.trained
    counted = trained if in_loss is None else trained & in_loss
    log_ratio = inputs.log_probs.double() - inputs.generator_log_probs.double()
    ratio = token_loss.ratio.double().clamp(max=LARGEST_RATIO)
    one = torch.ones_like(log_ratio)
    kl = torch.expm1(log_ratio.clamp(max=math.log(LARGEST_RATIO))) - log_ratio
    of_loss = torch.where(counted, torch.stack([one, ratio, token_loss.clipped.double()]), 0.0)
    further = [column.double() for column in columns]
    of_trained = torch.where(trained, torch.stack([one, kl, entropy.double(), *further]), 0.0)
    sums = torch.cat([of_trained[:1], of_loss, of_trained[1:]]).sum(dim=1)
    lowest = torch.full((1,), -torch.inf, dtype=torch.float64, device=trained.device)
    ratios = torch.where(counted, ratio, -torch.inf)
    return sums, torch.cat([lowest, ratios]).amax()


def step_metrics(
    sums: Sequence[float],
    ratio_max: float,
    batch: EffectiveBatch,
    *,
    lag: Int[Tensor, " sampled"],
    num_nonfinite: int,
    columns: Sequence[str] = (),
) -> dict[str, float]:
    """Return one row of metrics. `sums` and `ratio_max` are those of `token_sums`, over all micro-batches, and
    `columns` the names of its further columns.

    `lag` is, for every sampled token of the batch, kept or not, the version that trains on it minus the version that
    sampled it; `max_lag` bounds its maximum or its mean (`loop/lag.py`). Means over nothing are left out: there are no
    `loss/` keys without a trained token, and no lag without a sampled one.
    `batch/zero_variance_frac` is the fraction of the groups that could be compared.
    """
    metrics = {
        "rollout/truncated_frac": batch.num_truncated / max(batch.num_completions, 1),
        "batch/no_verdict_frac": batch.num_no_verdict / max(batch.num_completions, 1),
        "batch/zero_variance_frac": batch.num_zero_variance / max(batch.num_groups, 1),
        "batch/effective": float(batch.num_kept),
        "batch/effective_groups": float(batch.num_kept_groups),
        "batch/nonfinite_tokens": float(num_nonfinite),
    }
    if lag.numel():
        lag_mean, lag_max = torch.stack([lag.double().mean(), lag.max().double()]).tolist()
        metrics |= {"rollout/lag_mean": lag_mean, "rollout/lag_max": lag_max}
    num_tokens, num_in_loss, ratio, clipped, kl, entropy, *others = sums
    if num_in_loss:
        metrics |= {
            "loss/ratio_mean": ratio / num_in_loss,
            "loss/ratio_max": ratio_max,
            "loss/clip_frac": clipped / num_in_loss,
        }
    if num_tokens:
        metrics |= {"loss/kl": kl / num_tokens, "loss/entropy": entropy / num_tokens}
        metrics |= {name: total / num_tokens for name, total in zip(columns, others, strict=True)}
    return metrics
