"""Steps of supervised fine-tuning against a reference without packing, chunks or caches of any kind."""

import contextlib
import copy
import math

import forked
import pytest
import torch
from unpacked_sft import examples, reference_loss

from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.training.run.sft.learner import batch_of, sft_learner, take_weights


def recipe_of(*changes: str) -> Recipe:
    fixed = ("sft.warmup_frac=0.25", "learner.micro_batch_tokens=100", "model.dtype=float32")
    return load_recipe("scalerl", [*fixed, *changes])


@pytest.fixture
def tiny_model():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(iter(["0123456789+=;"]), AnswerFormat())
    return build_model(tokenizer, TinyShape(hidden=32, intermediate=64, layers=2, heads=2, context=64))


def test_packed_training_equals_an_unpacked_reference(tiny_model):
    reference, vocabulary = copy.deepcopy(tiny_model), tiny_model.config.vocab_size
    num_steps = 6
    learner = sft_learner(tiny_model, recipe_of(), lr=3e-3, num_steps=num_steps)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(num_steps):
        batch = examples(9, vocabulary, seed=step)
        for group in optimizer.param_groups:
            group["lr"] = learner.lr
        optimizer.zero_grad()
        expected = reference_loss(reference, batch)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        assert learner.step(batch_of(batch, step))["loss/value"] == pytest.approx(expected.item(), abs=1e-5)
    for name, weight in reference.named_parameters():
        assert torch.allclose(tiny_model.get_parameter(name), weight, rtol=0, atol=1e-5), name
    heldout = examples(20, vocabulary, seed=99)
    assert learner.mean_loss(batch_of(heldout, num_steps)) == pytest.approx(
        reference_loss(reference, heldout).item(), abs=1e-5
    )


def test_ranks_imitate_as_one_process(tiny_model, monkeypatch):
    forked.children(monkeypatch)
    alone, vocabulary = copy.deepcopy(tiny_model), tiny_model.config.vocab_size
    expected = sft_learner(alone, recipe_of(), lr=3e-3, num_steps=6)
    two = recipe_of("learner.ranks=2", "learner.sharding=full")
    ranked = sft_learner(tiny_model, two, lr=3e-3, num_steps=6)
    with contextlib.closing(ranked):
        heldout = batch_of(examples(20, vocabulary, seed=99))
        for step in range(6):
            # One example: a rank has nothing to train on.
            batch = batch_of(examples(1 if step == 3 else 9, vocabulary, seed=step), step)
            loss = expected.step(batch)["loss/value"]
            assert ranked.step(batch)["loss/value"] == pytest.approx(loss, abs=1e-5)
            assert ranked.mean_loss(heldout) == pytest.approx(expected.mean_loss(heldout), abs=1e-5)
        take_weights(ranked, tiny_model)
    for name, weight in alone.named_parameters():
        torch.testing.assert_close(tiny_model.get_parameter(name), weight, rtol=0, atol=1e-5)


def test_learning_rate_rises_and_then_falls_along_a_cosine(tiny_model):
    learner = sft_learner(tiny_model, recipe_of("sft.warmup_frac=0.2"), lr=1.0, num_steps=10)
    rates = []
    for step in range(10):
        rates.append(learner.lr)
        learner.step(batch_of(examples(1, 5), step))
    falling = [0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * place / 8)) for place in range(8)]
    assert rates == pytest.approx([0.5, 1.0, *falling])
