import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.rl import advantages as adv
from scalerl.training.rl.filters import effective_batch, num_nonfinite, trainable_tokens, trained_tokens


def a_batch(group, correct, *, no_verdict=(), truncated=(), empty=(), rewards=None, dtype=torch.float64):
    num = len(group)
    mask = lambda places: torch.tensor([i in places for i in range(num)], dtype=torch.bool)  # noqa: E731
    return {
        "group": torch.tensor(group, dtype=torch.long),
        "correct": torch.tensor(correct, dtype=dtype),
        "has_verdict": ~mask(no_verdict),
        "rewards": torch.tensor([2.0 * c - 1 for c in correct] if rewards is None else rewards, dtype=torch.float64),
        "truncated": mask(truncated),
        "num_trainable": torch.where(mask(empty), 0, 1),
    }


def run(batch, *, drop_truncated=True, zero_variance=True, **functions):
    return effective_batch(*batch.values(), drop_truncated=drop_truncated, zero_variance=zero_variance, **functions)


def test_the_order_of_statistics_by_hand():
    group = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    correct = [1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0]
    # Group 0: completion 3 has no verdict: 1, 0, 1 left. Group 1: the only wrong one is truncated: all correct.
    # Group 2: all wrong, dropped. Group 3: one has no verdict, so one is left: dropped before anything is compared.
    result = run(a_batch(group, correct, no_verdict={3, 11}, truncated={6}))
    assert result.kept.tolist() == [True] * 3 + [False] * 9
    # Group mean of +1, -1, +1 is 1/3; advantages 2/3, -4/3, 2/3; batch std sqrt((4 + 16 + 4)/27) = sqrt(8)/3.
    std = math.sqrt(8) / 3
    assert result.advantages.tolist() == pytest.approx([2 / 3 / std, -4 / 3 / std, 2 / 3 / std] + [0] * 9)
    assert (result.num_completions, result.num_truncated, result.num_no_verdict) == (12, 1, 2)
    assert (result.num_groups, result.num_zero_variance) == (3, 2)
    assert (result.num_kept, result.num_kept_groups) == (3, 1)


def test_truncated_completions_stay_by_setting():
    batch = a_batch([0, 0, 1, 1], [1, 0, 1, 0], truncated={1})
    assert run(batch).kept.tolist() == [False, False, True, True]
    kept = run(batch, drop_truncated=False)
    assert kept.kept.all()
    assert kept.num_truncated == 1


def test_without_filter_zero_variance_groups_count():
    batch = a_batch([0, 0, 1, 1], [1, 0, 1, 1])
    off, on = run(batch, zero_variance=False), run(batch)
    assert (off.num_kept, on.num_kept) == (4, 2)
    assert off.num_zero_variance == on.num_zero_variance == 1
    # The advantages are 1, -1, 0, 0: the std over all four is sqrt(1/2), over the kept two 1.
    assert off.advantages.tolist() == pytest.approx([math.sqrt(2), -math.sqrt(2), 0, 0])
    assert on.advantages.tolist() == pytest.approx([1, -1, 0, 0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float64])
def test_a_length_penalty_cannot_revive_an_all_correct_group(dtype):
    batch = a_batch([0, 0, 1, 1], [1, 1, 1, 0], rewards=[1.0, 0.4, 0.9, -1.0], dtype=dtype)
    for normalise in adv.NORMALISATIONS.values():
        result = run(batch, normalise=normalise)
        assert result.kept.tolist() == [False, False, True, True]
        # The penalty made a difference inside the dropped group, and nothing of it may be left.
        assert result.advantages[:2].tolist() == [0.0, 0.0]
        assert (result.advantages[2:] != 0).all()
    # Nor can it hide a mixed group: equal rewards, unequal verdicts.
    batch = a_batch([0, 0], [1, 0], rewards=[0.0, 0.0], dtype=dtype)
    assert run(batch).kept.all()
    assert run(batch).advantages.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("normalise", adv.NORMALISATIONS.values())
@pytest.mark.parametrize("baseline", adv.BASELINES.values())
@pytest.mark.parametrize("zero_variance", [True, False])
def test_empty_effective_batch_has_no_nan(baseline, normalise, zero_variance):
    batches = [
        a_batch([0, 0, 1, 1], [1, 1, 0, 0]),
        a_batch([0, 0, 1, 1], [1, 0, 1, 0], no_verdict={0, 2}),
        a_batch([0, 1, 2], [1, 0, 1]),
        a_batch([0, 0], [1, 0], truncated={0, 1}),
        a_batch([0, 0], [1, 0], empty={1}),
        a_batch([], []),
    ]
    for batch in batches:
        result = run(batch, zero_variance=zero_variance, baseline=baseline, normalise=normalise)
        assert (result.advantages == 0).all()
        if zero_variance:
            assert (result.num_kept, result.num_kept_groups) == (0, 0)
            assert not result.kept.any()


def test_nan_without_a_verdict_is_ignored():
    batch = a_batch([0, 0, 0], [math.nan, 1, 0], no_verdict={0}, rewards=[math.nan, 1.0, -1.0])
    result = run(batch)
    assert result.kept.tolist() == [False, True, True]
    assert result.advantages.tolist() == [0.0, 1.0, -1.0]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans(), st.booleans()), max_size=20, min_size=1
    ),
    zero_variance=st.booleans(),
    seed=st.integers(0, 100),
)
def test_kept_groups_are_whole_and_independent_of_order(rows, zero_variance, seed):
    group, correct, verdict, cut = (list(column) for column in zip(*rows, strict=True))
    batch = a_batch(group, correct)
    batch |= {"has_verdict": torch.tensor(verdict), "truncated": torch.tensor(cut)}
    result = run(batch, zero_variance=zero_variance)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    again = run({k: v[order] for k, v in batch.items()}, zero_variance=zero_variance)
    assert torch.equal(again.kept, result.kept[order])
    torch.testing.assert_close(again.advantages, result.advantages[order], rtol=1e-10, atol=1e-12)
    for key in set(group):
        usable = [i for i, row in enumerate(rows) if row[0] == key and row[2] and not row[3]]
        mixed = len({correct[i] for i in usable}) == 2
        expected = len(usable) >= 2 and (mixed or not zero_variance)
        assert all(result.kept[i].item() is expected for i in usable)
    assert result.num_kept == int(result.kept.sum())
    assert abs(result.advantages.sum().item()) < 1e-9


def test_non_finite_generator_log_probs_are_dropped_and_counted():
    sampled = torch.tensor([False, True, True, True, True, True, False])
    generator = torch.tensor([0.0, -1.0, -math.inf, math.nan, -2.0, -3.0, math.nan])
    trainable = trainable_tokens(sampled, generator)
    assert trainable.tolist() == [False, True, False, False, True, True, False]
    assert num_nonfinite(sampled, generator) == 2
    completion = torch.tensor([0, 0, 0, 0, 1, 1, -1])
    trained = trained_tokens(trainable, completion, torch.tensor([True, False]))
    assert trained.tolist() == [False, True, False, False, False, False, False]


def test_padding_is_not_trained_whatever_is_kept():
    padding, yes = torch.full((3,), -1), torch.ones(3, dtype=torch.bool)
    for kept in (yes[:0], yes[:1], yes):
        assert not trained_tokens(yes, padding, kept).any()
    assert trained_tokens(yes, torch.tensor([0, -1, 2]), yes).tolist() == [True, False, True]
