"""Made-up tokens for losses."""

import torch

from scalerl.training.rl.losses import LossInputs


def some_tokens(seed: int, num_completions: int = 7, spread: float = 0.4):
    """A packed batch of completions of 1 to 9 tokens."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (num_completions,), generator=rng)
    completion = torch.repeat_interleave(torch.arange(num_completions), lengths)
    num_tokens = int(lengths.sum())
    log_probs = -3 * torch.rand(num_tokens, generator=rng, dtype=torch.float64) - 0.01
    generator = log_probs + spread * torch.randn(num_tokens, generator=rng, dtype=torch.float64)
    advantages = torch.randn(num_completions, generator=rng, dtype=torch.float64)[completion]
    trained = torch.rand(num_tokens, generator=rng) < 0.8
    return LossInputs(
        log_probs=log_probs,
        generator_log_probs=generator,
        advantages=advantages,
        completion_of_token=completion,
        trained=trained,
    )
