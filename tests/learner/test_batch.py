import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import VERSION, lengths_of, make_completion, make_group, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.learner.batch import prepare
from scalerl.learner.packed_attention import lengthened, pack
from scalerl.learner.share import Sizes
from scalerl.rl.filters import effective_batch
from scalerl.rl.weights import WEIGHTS
from scalerl.types import Batch

EFFECTIVE = functools.partial(effective_batch, drop_truncated=True, zero_variance=True)


def prepared(batch, *, tokens=64, weigh=WEIGHTS["prompt"], share_from=None, **settings):
    return prepare(
        batch, effective=EFFECTIVE, weigh=weigh, micro_batch_tokens=tokens, share_from=share_from, **settings
    )


def test_a_small_batch_by_hand():
    """One group of a right and a wrong completion, the right one with a forced token; another group of one verdict."""
    right = make_completion("0/a", 0, [5, 6], [7, 8, 9, 1], forced=(1, 2), log_probs=[-0.5, 0, 0, -0.25])
    wrong = make_completion("0/a", 1, [5, 6], [4, 1], log_probs=[-2.0, -1.0])
    dropped = [make_completion("0/b", i, [3], [2, 1]) for i in range(2)]
    batch = Batch(version=VERSION, groups=[make_group([right, wrong], [True, False]), make_group(dropped, [True] * 2)])
    result = prepared(batch)

    (micro,) = result.micro_batches
    # The longer first; the last token of each is predicted, never read.
    assert micro.inputs.ids.tolist() == [5, 6, 7, 8, 9, 5, 6, 4]
    assert lengths_of(micro) == [5, 3]
    assert micro.inputs.packing.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert micro.inputs.packing.starts.tolist() == [0, 5, 8]
    # A token is predicted one place before it stands: 7 and <1> of the first sequence, 4 and <1> of the second.
    assert micro.inputs.place.tolist() == [1, 4, 5 + 1, 5 + 2]
    assert micro.inputs.targets.tolist() == [7, 1, 4, 1]
    assert micro.generator_log_probs.tolist() == [-0.5, -0.25, -2.0, -1.0]
    assert micro.completion_of_token.tolist() == [0, 0, 1, 1]
    assert micro.advantages.tolist() == [1.0, 1.0, -1.0, -1.0]
    # One prompt with four trained tokens.
    assert micro.weights.tolist() == [0.25] * 4
    assert micro.inputs.temperature == 1.0

    assert result.effective.num_kept == 2
    # Of the eight sampled tokens, the last of each completion is fresh.
    assert sorted(result.lag.tolist()) == [0] * 4 + [1] * 4
    assert result.num_nonfinite == 0
    assert result.facts == {
        "batch/micro_batches": 1.0,
        "batch/trained_tokens": 4.0,
        "rollout/length_mean": 2.5,
        "rollout/length_max": 4.0,
        "rollout/interrupted_frac": 0.25,
        "reward/mean": 0.5,
        "reward/correct_frac": 0.75,
    }


def test_rewards_and_verdicts_are_of_graded_completions_only():
    completions = [make_completion("0/a", i, [3], [2, 1]) for i in range(3)]
    batch = Batch(version=VERSION, groups=[make_group(completions, [True, None, False])])
    facts = prepared(batch).facts
    assert facts["reward/mean"] == 0.0
    assert facts["reward/correct_frac"] == 0.5


def test_group_of_unequal_values_is_kept_though_none_is_correct():
    completions = [make_completion("0/a", index, [5], [1, 2]) for index in range(3)]
    group = replace(
        make_group(completions, [False, False, False]),
        values=(0.0, 0.25, 0.5),
        rewards=(-1.0, -0.5, 0.0),
        scores={"tests": (0.0, 0.25, 0.5), "style": (1.0, 1.0, None)},
    )
    made = prepared(Batch(version=VERSION, groups=[group]))
    assert (made.effective.num_kept, made.effective.num_zero_variance) == (3, 0)
    assert (made.facts["score/tests"], made.facts["score/style"]) == (0.25, 1.0)
    assert made.facts["reward/correct_frac"] == 0


def test_nothing_kept_needs_no_pass():
    dropped = [make_completion("0/b", i, [3], [2, 1]) for i in range(2)]
    result = prepared(Batch(version=VERSION, groups=[make_group(dropped, [None, None])]))
    assert result.micro_batches == ()
    assert "reward/mean" not in result.facts
    assert prepared(Batch(version=VERSION, groups=[])).micro_batches == ()


def test_the_order_of_passes_is_always_the_same():
    batch = random_batch(1, num_groups=20, temperatures=(1.0, 0.7))
    first, again = prepared(batch, tokens=50), prepared(batch, tokens=50)
    assert len(first.micro_batches) > 3
    for left, right in zip(first.micro_batches, again.micro_batches, strict=True):
        assert torch.equal(left.inputs.ids, right.inputs.ids)
        assert torch.equal(left.completion_of_token, right.completion_of_token)
    longest = [lengths_of(micro)[0] for micro in first.micro_batches]
    assert longest == sorted(longest, reverse=True)
    assert all(lengths_of(micro) == sorted(lengths_of(micro), reverse=True) for micro in first.micro_batches)


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=60), budget=st.integers(1, 1000))
def test_passes_are_as_full_as_whole_sequences_allow(lengths, budget):
    """No two neighbours fit into one, so there are at most twice as many as tokens need, and those too long."""
    completions = [make_completion("0/a", i, [3], np.ones(n)) for i, n in enumerate(lengths)]
    parts = Sizes.of(completions).split(np.arange(len(lengths)), budget)
    sizes = [[lengths[row] for row in rows] for rows in parts]
    assert sorted(size for part in sizes for size in part) == sorted(lengths)
    assert all(len(part) == 1 or sum(part) <= budget for part in sizes)
    assert all(sum(sizes_now) + sizes_next[0] > budget for sizes_now, sizes_next in itertools.pairwise(sizes))


@pytest.mark.parametrize("lengths", [[1], [4, 4], [5, 1, 3]])
def test_packing_by_a_loop(lengths):
    packing = pack(lengths)
    tokens = [(row, place) for row, length in enumerate(lengths) for place in range(length)]
    assert packing.positions.tolist() == [place for _, place in tokens]
    assert packing.starts.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert packing.corners.tolist() == [row * max(lengths) + place for row, place in tokens]
    assert (packing.rows, packing.width) == (len(lengths), max(lengths))
    assert packing.width <= packing.for_attention["longest"] < 2 * packing.width


@pytest.mark.parametrize("shared", [[0, 0, 0, 0], [0, 3, 2, 0]])
@pytest.mark.parametrize("num", [0, 1, 3])
def test_a_lengthened_packing_has_more_sequences_of_one_token(shared, num):
    lengths, parents = [4, 1, 3, 2], [0, 0, 0, 3]
    longer = lengthened(pack(lengths, parents, shared), num)
    expected = pack([*lengths, *[1] * num], [*parents, *range(4, 4 + num)], [*shared, *[0] * num])
    assert [part.tolist() for part in longer.sequences] == [part.tolist() for part in expected.sequences]
    assert torch.equal(longer.positions, expected.positions)
    assert (longer.keys is None) == (not any(shared))
