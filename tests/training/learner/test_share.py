"""Prompts that are computed once for all their completions."""

import pytest
import torch
from batches import VERSION, random_batch
from learners import gradients_of, recipe_of
from rank_checks import exact_norms
from tiny_models import MIXTURES, tiny_model

from scalerl.training.learner.packed_attention import attend_packed, pack, packed_hidden_states
from scalerl.training.run.learners import build_learner


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        *(("smollm", f"learner.micro_batch_tokens={tokens}") for tokens in (30, 100_000)),
        *((family, "learner.micro_batch_tokens=60") for family in ("llama_with_biases", "qwen3", "qwen3_moe", "olmoe")),
        ("smollm", "learner.gradient_checkpointing=true"),
        ("smollm", "model.lora.rank=2"),
    ],
)
def test_gradient_is_that_of_a_prompt_per_completion(family, setting):
    # Experts have no products in float64.
    dtype, digits = (torch.float32, 1e-6) if family in MIXTURES else (torch.float64, 1e-13)
    batch, results = random_batch(1, prompt=9, longest=7, temperatures=(1.0, 0.7), clean=True), []
    for shares in ("true", "false"):
        torch.manual_seed(0)
        recipe = recipe_of("loss=gspo", setting, f"learner.share_prompts={shares}")
        learner = build_learner(exact_norms(tiny_model(family, dtype=dtype)), recipe, version=VERSION)
        exact_norms(learner.policy.body)
        results.append(gradients_of(learner, batch))
    (shared, row), (alone, row_alone) = results
    torch.testing.assert_close(shared, alone, rtol=10 * digits, atol=digits)
    assert row["batch/flops"] < 0.75 * row_alone["batch/flops"]
    assert row["loss/value"] == pytest.approx(row_alone["loss/value"], abs=digits)


@pytest.mark.parametrize("window", [None, 3, 6])
def test_a_continued_sequence_gives_what_it_gives_alone(window):
    """Two sequences continue the first 4 tokens of a third."""
    model = tiny_model("qwen2")
    for layer in model.model.layers:
        layer.self_attn.sliding_window = window
    attend_packed(model)
    ids = torch.randint(2, 23, (7 + 3 + 2,), generator=torch.Generator().manual_seed(0))
    together = packed_hidden_states(model, ids, pack([7, 3, 2], [0, 0, 0], [0, 4, 4]))
    first, *others = ids.split([7, 3, 2])
    whole = packed_hidden_states(model, first, pack([7]))
    torch.testing.assert_close(together[:7], whole, rtol=1e-5, atol=1e-5)
    for states, rest in zip(together[7:].split([3, 2]), others, strict=True):
        alone = packed_hidden_states(model, torch.cat([first[:4], rest]), pack([4 + len(rest)]))
        torch.testing.assert_close(states, alone[4:], rtol=1e-5, atol=1e-5)
