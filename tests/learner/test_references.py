"""The KL term to the start."""

import pytest
import torch
from batches import VERSION, make_completion, make_group, random_batch
from learners import gradients_of, make_learner

from scalerl.types import Batch


def test_term_leaves_the_first_gradient_and_no_later_one():
    batch = random_batch(1, clean=True)
    plain, row = gradients_of(make_learner(), batch)
    assert "loss/reference_kl" not in row
    held, row = gradients_of(make_learner("kl.coefficient=0.5"), batch)
    assert row["loss/reference_kl"] == pytest.approx(0, abs=1e-9)
    for name in plain:
        torch.testing.assert_close(held[name], plain[name], rtol=1e-4, atol=1e-7)


def distance_after(steps: int, *settings: str) -> float:
    """Return how far the policy is from its start, in KL, after training on one preference."""
    learner = make_learner("optimizer.lr=3e-3", *settings)
    start = learner.policy.model(torch.tensor([[3, 2]])).logits[0, -1].log_softmax(-1).detach()
    completions = [make_completion("0/a", i, [3, 2], [4, 1] if i < 4 else [5, 1]) for i in range(8)]
    group = make_group(completions, [True] * 4 + [False] * 4)
    for step in range(steps):
        row = learner.step(Batch(version=VERSION + step, groups=[group]))
        assert ("loss/reference_kl" in row) == bool(settings)
    now = learner.policy.model(torch.tensor([[3, 2]])).logits[0, -1].log_softmax(-1).detach()
    return float((now.exp() * (now - start)).sum())


def test_term_holds_the_policy_near_its_start():
    assert distance_after(8, "kl.coefficient=5.0") < 0.5 * distance_after(8)


def test_start_is_the_first_model_also_after_a_resume():
    learner = make_learner("kl.coefficient=0.5", "optimizer.lr=3e-3")
    first = learner.step(random_batch(1, clean=True))
    resumed = make_learner("kl.coefficient=0.5", "optimizer.lr=3e-3")
    resumed.load_state_dict(learner.state_dict())
    rows = [made.step(random_batch(2, clean=True, version=VERSION + 1)) for made in (learner, resumed)]
    assert rows[0]["loss/reference_kl"] == pytest.approx(rows[1]["loss/reference_kl"], rel=1e-6)
    assert rows[1]["loss/reference_kl"] > first["loss/reference_kl"] + 1e-6
