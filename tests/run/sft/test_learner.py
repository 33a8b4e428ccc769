"""Steps of supervised fine-tuning against a reference without packing, chunks or caches of any kind."""

import copy
import math

import pytest
import torch
from unpacked_sft import examples, reference_loss

from scalerl.answer_format import AnswerFormat
from scalerl.config.parts import LearnerSettings, SftSettings
from scalerl.models.tiny import TinyShape, build_model, build_tokenizer
from scalerl.run.sft.learner import SftLearner, rows, schedule

SETTINGS = SftSettings(lr=3e-3, warmup_frac=0.25)


def test_packed_training_equals_an_unpacked_reference():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(iter(["0123456789+=;"]), AnswerFormat())
    model = build_model(tokenizer, TinyShape(hidden=32, intermediate=64, layers=2, heads=2, context=64))
    reference = copy.deepcopy(model)
    num_steps = 12
    learner = SftLearner(
        model,
        SETTINGS,
        LearnerSettings(micro_batch_tokens=100),
        lr=3e-3,
        num_steps=num_steps,
        dtype=torch.float32,
    )
    optimizer = torch.optim.AdamW(reference.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(num_steps):
        batch = examples(9, len(tokenizer), seed=step)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * schedule(step, num_steps, SETTINGS)
        optimizer.zero_grad()
        expected = reference_loss(reference, batch)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        assert learner.step(batch).item() == pytest.approx(expected.item(), abs=1e-5)
    for name, weight in reference.named_parameters():
        assert torch.allclose(model.get_parameter(name), weight, rtol=0, atol=1e-5), name
    heldout = examples(20, len(tokenizer), seed=99)
    assert learner.loss(heldout) == pytest.approx(reference_loss(reference, heldout).item(), abs=1e-5)


def test_rows_hold_every_example_once_within_the_budget():
    made = examples(50, 9)
    cut = list(rows(made, 64))
    assert sorted(id(example) for row in cut for example in row) == sorted(map(id, made))
    assert all(len(row) == 1 or sum(example.num_inputs for example in row) <= 64 for row in cut)
    # Full, but for the gap at the end of each row.
    longest = max(example.num_inputs for example in made)
    assert len(cut) <= 1 + sum(example.num_inputs for example in made) / (64 - longest)


def test_learning_rate_rises_and_then_falls_along_a_cosine():
    shares = [schedule(step, 100, SftSettings(warmup_frac=0.1)) for step in range(100)]
    assert shares[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert shares[10] == 1.0
    assert shares[55] == pytest.approx(0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] == pytest.approx(0.02, abs=1e-3)
