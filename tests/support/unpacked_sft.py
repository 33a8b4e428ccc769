"""A loss of supervised fine-tuning without packing, chunks or caches of any kind, and examples to compare it on."""

import numpy as np
import torch
from torch.nn import functional

from scalerl.training.run.sft.demonstrations import imitated
from scalerl.training.types import Completion


def examples(num: int, vocabulary: int, seed: int = 0) -> list[Completion]:
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        num_prompt, num_completion = draw.integers(1, 20), draw.integers(1, 30)
        prompt, tokens = np.split(draw.integers(0, vocabulary, num_prompt + num_completion), [num_prompt])
        # Every other one is a conversation, which ends with a turn of the model.
        observed = range(2, 5) if len(made) % 2 and len(tokens) > 6 else ()
        made.append(imitated(prompt.tolist(), tokens.tolist(), [place in observed for place in range(len(tokens))]))
    return made


def reference_loss(model: torch.nn.Module, batch: list[Completion]) -> torch.Tensor:
    """Return the mean over completion tokens, from the full logits of one sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for example in batch:
        prompt = example.request.prompt_tokens
        ids = torch.tensor([*prompt, *example.tokens.tolist()])
        logits = model(input_ids=ids[None, :-1]).logits[0].double()
        wanted = [place + len(prompt) - 1 for place, forced in enumerate(example.forced) if not forced]
        total = total + functional.cross_entropy(logits[wanted], ids[1:][wanted], reduction="sum")
    return total / sum(example.num_trained_tokens for example in batch)
