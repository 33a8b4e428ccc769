"""Adapters: what trains, and what the rest of the program sees of it."""

import copy
from typing import Any

import pytest
import torch
from batches import VERSION, random_batch
from tiny_models import VOCAB, tiny_model

from scalerl.errors import LoraError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import LoraSettings
from scalerl.training.models.load import head, hidden_states
from scalerl.training.models.lora import AdaptedLinear, merged_weights, num_adapter_params, wrap
from scalerl.training.run.learners import build_learner

FAMILIES = ("smollm", "llama_with_biases")
IDS = torch.randint(2, VOCAB, (3, 7), generator=torch.Generator().manual_seed(0))


def trained(model: Any, steps: int = 3) -> Any:
    """A few steps on a loss over the logits as the learner takes them: hidden states, then the head."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        parts = head(model)
        logits = torch.nn.functional.linear(hidden_states(model, IDS), parts.weight, parts.bias)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_model_has_the_logits_of_the_adapted_one(family):
    model = tiny_model(family)
    weights, before = {name: weight.clone() for name, weight in model.named_parameters()}, model(IDS).logits.detach()
    adapted = wrap(model, LoraSettings(rank=4, alpha=8.0))
    merged = merged_weights(adapted)
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights), "they start as the model's own"
    trained(adapted)
    plain = copy.deepcopy(model)
    plain.load_state_dict(merged_weights(adapted), strict=False)
    logits = adapted(IDS).logits
    assert (logits - before).abs().max() > 0.1
    torch.testing.assert_close(plain(IDS).logits, logits, rtol=0, atol=1e-5)
    # The model itself has no adapters and has not moved.
    assert torch.equal(model(IDS).logits, before)


def test_adapter_adds_its_scaled_product():
    layer = torch.nn.Linear(2, 2)
    adapted = AdaptedLinear(layer, rank=1, alpha=3.0)
    inputs = torch.tensor([[1.0, 2.0]])
    assert torch.equal(adapted(inputs), layer(inputs)), "B is zero at first"
    adapted.lora_A.weight.data.copy_(torch.tensor([[2.0, -0.5]]))
    adapted.lora_B.weight.data.copy_(torch.tensor([[1.0], [4.0]]))
    # A x = 2 - 1 = 1, and alpha / rank = 3.
    torch.testing.assert_close(adapted(inputs) - layer(inputs), torch.tensor([[3.0, 12.0]]))


def test_a_step_counts_the_work_of_adapters_alone():
    batch = random_batch(0)
    rows = {}
    for rank in (0, 2):
        recipe = load_recipe("scalerl", ["budget.steps=1", f"model.lora.rank={rank}"])
        learner = build_learner(tiny_model(), recipe, version=VERSION)
        rows[rank] = learner.step(batch)["batch/flops"]
    # Two products with every matrix instead of three, and a few small ones.
    assert 0.6 * rows[0] < rows[2] < rows[0]


def test_only_the_adapters_are_trained_and_they_are_float32():
    adapted = trained(wrap(tiny_model(), LoraSettings(rank=2, targets=("q_proj", "down_proj"))), steps=1)
    learned = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name for name, p in adapted.named_parameters() if p.grad is not None} == learned.keys()
    assert all(".lora_" in name and p.dtype == torch.float32 for name, p in learned.items())
    assert {name.split(".")[4] for name in learned} == {"q_proj", "down_proj"}
    num_params = sum(p.numel() for p in learned.values())
    assert num_params == num_adapter_params(adapted) == 2 * (2 * (16 + 16) + 2 * (24 + 16))
    assert num_adapter_params(tiny_model()) == 0


def test_a_tied_head_stays_tied_and_untouched():
    model = tiny_model("smollm")
    adapted = trained(wrap(model, LoraSettings(rank=4)))
    assert head(adapted).weight is adapted.get_input_embeddings().weight
    merged = merged_weights(adapted)
    assert "lm_head.weight" not in merged
    assert torch.equal(merged["model.embed_tokens.weight"], model.get_input_embeddings().weight)


def test_rank_zero_is_the_model_itself():
    model = tiny_model()
    assert wrap(model, load_recipe("tiny-cpu").model.lora) is model
    weights = merged_weights(model)
    assert all(weights[name].data_ptr() == p.data_ptr() for name, p in model.named_parameters())


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "qproj"])
def test_unknown_adapter_target_is_named(target):
    with pytest.raises(
        LoraError,
        match=rf'^model.lora.targets names "{target}", but the layers of this model are down_proj, gate_proj, k_proj, ',
    ):
        wrap(tiny_model(), LoraSettings(rank=4, targets=("q_proj", target)))
