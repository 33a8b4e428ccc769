"""A loss of supervised fine-tuning without packing, chunks or caches of any kind, and examples to compare it on."""

import numpy as np
import torch
from torch.nn import functional

from scalerl.run.sft.demonstrations import Example


def examples(num: int, vocabulary: int, seed: int = 0) -> list[Example]:
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        num_prompt, num_completion = draw.integers(1, 20), draw.integers(1, 30)
        tokens = draw.integers(0, vocabulary, num_prompt + num_completion)
        # Every other one is a conversation, which ends with a turn of the model.
        observed = ((int(num_prompt) + 2, int(num_prompt) + 5),) if len(made) % 2 and num_completion > 6 else ()
        made.append(Example(tokens=tokens, num_prompt=int(num_prompt), observed=observed))
    return made


def reference_loss(model: torch.nn.Module, batch: list[Example]) -> torch.Tensor:
    """Return the mean over completion tokens, from the full logits of one sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for example in batch:
        ids = torch.from_numpy(example.tokens)
        logits = model(input_ids=ids[None, :-1]).logits[0].double()
        wanted = [
            place - 1
            for place in range(example.num_prompt, len(ids))
            if not any(start <= place < end for start, end in example.observed)
        ]
        total = total + functional.cross_entropy(logits[wanted], ids[1:][wanted], reduction="sum")
    return total / sum(example.num_targets for example in batch)
