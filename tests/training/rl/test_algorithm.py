"""What algorithms make of a rollout: weights of each part, over the tokens that are trained on."""

import functools
from typing import Any

import pytest
import torch

from scalerl.training.rl.algorithm import Rollout, imitate, reinforce
from scalerl.training.rl.entropy import CONTROLS
from scalerl.training.rl.filters import effective_batch
from scalerl.training.rl.imitation import IMITATIONS
from scalerl.training.rl.weights import WEIGHTS

EFFECTIVE = functools.partial(effective_batch, drop_truncated=True, zero_variance=True)
AVERAGES = [name for name in WEIGHTS if name != "constant"]


def a_rollout(**changes: Any) -> Rollout:
    """Three groups of two completions; the last group is all correct. One token is forced, one has no log-prob."""
    lengths = torch.tensor([2, 3, 4, 1, 2, 2])
    owner = torch.repeat_interleave(torch.arange(6), lengths)
    correct = torch.tensor([True, False, False, True, True, True])
    trainable = torch.ones(len(owner), dtype=torch.bool)
    trainable[3] = False
    fields: dict[str, Any] = {
        "group": torch.tensor([0, 0, 1, 1, 2, 2]),
        "value": correct.float(),
        "correct": correct,
        "has_verdict": torch.ones(6, dtype=torch.bool),
        "rewards": 2 * correct.float() - 1,
        "truncated": torch.zeros(6, dtype=torch.bool),
        "completion_of_token": owner,
        "generator_log_probs": -torch.arange(1.0, len(owner) + 1) / 4,
        "trainable": trainable,
        "version": 3,
    }
    return Rollout(**fields | changes)


@pytest.mark.parametrize("average", AVERAGES)
def test_reinforce_weighs_the_kept_completions(average):
    rollout = a_rollout()
    made: Any = reinforce(rollout, effective=EFFECTIVE, average=WEIGHTS[average], kl=0.5)
    owner = rollout.completion_of_token
    kept = rollout.trainable & (owner < 4)
    assert torch.equal(made.trained, kept)
    expected = WEIGHTS[average](rollout.group[owner], owner, kept)
    assert torch.equal(made.weights.policy, expected)
    assert made.weights.policy.sum() == pytest.approx(1.0)
    assert torch.equal(made.weights.kl, 0.5 * expected)
    assert made.weights.imitation is None
    assert torch.equal(made.weights.advantages, torch.tensor([1.0, -1, -1, 1, 0, 0])[owner])
    assert made.metrics == {}


@pytest.mark.parametrize("average", AVERAGES)
def test_correct_completions_are_imitated_beside_it(average):
    rollout = a_rollout()
    imitation = functools.partial(IMITATIONS["correct"], coefficient=0.2)
    made: Any = reinforce(rollout, effective=EFFECTIVE, average=WEIGHTS[average], imitation=imitation)
    owner = rollout.completion_of_token
    # Completions 0 and 3: correct ones of groups that are kept.
    imitated = (owner == 0) | (owner == 3)
    assert torch.equal(made.weights.imitation > 0, imitated)
    assert made.weights.imitation.sum() == pytest.approx(0.2)
    if average == "token":
        assert made.weights.imitation[imitated].tolist() == pytest.approx([0.2 / 3] * 3)


def test_entropy_control_changes_the_policy_part_alone():
    control = functools.partial(CONTROLS["clip_cov"], fraction=1.0, low=0.0, high=1e9)
    plain: Any = reinforce(a_rollout(), effective=EFFECTIVE, average=WEIGHTS["token"], kl=1.0)
    made: Any = reinforce(a_rollout(), effective=EFFECTIVE, average=WEIGHTS["token"], entropy=control, kl=1.0)
    assert 0 < int((made.weights.policy == 0).sum() - (plain.weights.policy == 0).sum()) < 9
    assert torch.equal(made.weights.kl, plain.weights.kl)
    assert made.metrics.keys() == {"entropy/clipped_frac"}


def test_imitate_weighs_every_token_the_same():
    rollout = a_rollout(has_verdict=torch.zeros(6, dtype=torch.bool))
    made: Any = imitate(rollout)
    assert torch.equal(made.trained, rollout.trainable)
    assert made.weights.imitation.tolist() == pytest.approx([float(each) / 13 for each in rollout.trainable])
    assert not made.weights.policy.any()
    assert made.effective.num_kept == 6


def test_weights_are_mapped_part_by_part():
    made: Any = reinforce(a_rollout(), effective=EFFECTIVE, average=WEIGHTS["token"], kl=0.5).weights
    some = made.map(lambda vector: vector[2:5])
    assert torch.equal(some.policy, made.policy[2:5])
    assert torch.equal(some.kl, made.kl[2:5])
    assert some.imitation is None
