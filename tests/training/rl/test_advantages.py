import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.rl.advantages import BASELINES, NORMALISATIONS, batch, leave_one_out, mean, none, prompt

PAIRS = st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(0, 4)), min_size=1, max_size=24)
CHOICES = {
    "baseline": st.sampled_from(sorted(BASELINES)),
    "normalisation": st.sampled_from(sorted(NORMALISATIONS)),
}


def tensors(pairs):
    """Rewards in sixteenths: the tests are of formulas, not of differences in a reward's last bits."""
    rewards, group = zip(*pairs, strict=True)
    return (16 * torch.tensor(rewards, dtype=torch.float64)).round() / 16, torch.tensor(group)


def centred(name, rewards, group):
    return rewards - BASELINES[name](rewards, group)


@settings(deadline=None, max_examples=150)
@given(**CHOICES, pairs=PAIRS, shift=st.integers(-50, 50), seed=st.integers(0, 1000))
def test_advantages_sum_to_zero_and_depend_on_neither_shift_nor_order(baseline, normalisation, pairs, shift, seed):
    def advantages_of(rewards, group):
        return NORMALISATIONS[normalisation](centred(baseline, rewards, group), group)

    rewards, group = tensors(pairs)
    advantages = advantages_of(rewards, group)
    for member in group.unique():
        inside = advantages[group == member]
        assert abs(inside.sum().item()) <= 1e-10 * (1 + inside.abs().sum().item())
    torch.testing.assert_close(advantages_of(rewards + shift, group), advantages, rtol=1e-9, atol=1e-9)
    order = torch.randperm(group.numel(), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(advantages_of(rewards[order], group[order]), advantages[order], rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(pairs=PAIRS)
def test_leave_one_out_is_the_mean_of_the_others(pairs):
    rewards, group = tensors(pairs)
    baseline = leave_one_out(rewards, group).tolist()
    for i, own in enumerate(group.tolist()):
        others = [rewards[j].item() for j, g in enumerate(group.tolist()) if g == own and j != i]
        expected = sum(others) / len(others) if others else rewards[i].item()
        assert baseline[i] == pytest.approx(expected, rel=1e-12, abs=1e-10)


def test_by_hand():
    group = torch.tensor([7, 7, 7, 7, 2, 2])
    rewards = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    advantages = rewards - mean(rewards, group)
    assert advantages.tolist() == [0.5, 0.5, 0.5, -1.5, 1.0, -1.0]
    assert leave_one_out(rewards, group).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, -1.0, 1.0])
    # Batch: squares .25 x 3 + 2.25 + 1 + 1 = 5 over 6 completions. Prompt: sqrt(3/4) and 1, both ddof 0.
    assert batch(advantages, group).tolist() == pytest.approx((advantages / math.sqrt(5 / 6)).tolist())
    within = torch.tensor([math.sqrt(0.75)] * 4 + [1.0] * 2, dtype=torch.float64)
    assert prompt(advantages, group).tolist() == pytest.approx((advantages / (within + 1e-6)).tolist(), rel=1e-12)
    # The std is about the group's own mean, whatever the baseline left of it.
    assert prompt(rewards, group).tolist() == pytest.approx((rewards / (within + 1e-6)).tolist(), rel=1e-12)
    assert torch.equal(none(advantages, group), advantages)


@settings(deadline=None, max_examples=150)
@given(
    **CHOICES,
    reward=st.floats(-10, 10, width=32),
    size=st.integers(1, 17),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_have_an_advantage_of_exactly_zero(baseline, normalisation, reward, size, dtype):
    """Rounding noise in the mean, divided by a std that is the same noise, would be an advantage of 1."""
    rewards, group = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.long)
    assert (NORMALISATIONS[normalisation](centred(baseline, rewards, group), group) == 0).all()
