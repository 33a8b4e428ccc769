"""A batch as tensors: which completions share a pass and their prompt, on which rank, and where each token goes."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import VERSION, lengths_of, make_completion, make_group, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.training.learner.batch import prepare
from scalerl.training.learner.share import Sizes, fewest_shared_tokens
from scalerl.training.rl.algorithm import reinforce
from scalerl.training.rl.filters import effective_batch
from scalerl.training.rl.weights import WEIGHTS
from scalerl.training.types import Batch

EFFECTIVE = functools.partial(effective_batch, drop_truncated=True, zero_variance=True)
ALGORITHM = functools.partial(reinforce, effective=EFFECTIVE, average=WEIGHTS["prompt"])


def prepared(batch, *, tokens=64, share_from=None, **others):
    return prepare(batch, share_from=share_from, algorithm=ALGORITHM, micro_batch_tokens=tokens, **others)


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
    assert micro.weights.advantages.tolist() == [1.0, 1.0, -1.0, -1.0]
    # One prompt with four trained tokens.
    assert micro.weights.policy.tolist() == [0.25] * 4
    assert micro.weights.imitation is micro.weights.kl is None
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


def sizes_of(completions, *, shares=True, **others):
    """Return all rows, and the sizes of the completions where prompts are shared if that pays, or never."""
    rows, options = np.arange(len(completions)), {"budget": 10**6, "share_from": 0 if shares else None} | others
    return rows, Sizes.of(completions).sharing(completions, rows, **options)


def completions_of(batch):
    return [completion for group in batch.groups for completion in group.completions]


def test_a_shared_prompt_by_hand():
    right = make_completion("0/a", 0, [5, 6, 3], [7, 8, 9, 1])
    wrong = make_completion("0/a", 1, [5, 6, 3], [4, 1])
    batch = Batch(version=VERSION, groups=[make_group([right, wrong], [True, False])])
    (micro,) = prepared(batch, share_from=0).micro_batches
    packing = micro.inputs.packing
    shared = packing.for_attention
    # The second starts at the last token of the prompt, where its first token is predicted.
    assert micro.inputs.ids.tolist() == [5, 6, 3, 7, 8, 9, 3, 4]
    assert packing.starts.tolist() == [0, 6, 8]
    assert packing.positions.tolist() == [0, 1, 2, 3, 4, 5, 2, 3]
    assert micro.inputs.place.tolist() == [2, 3, 4, 5, 6, 7]
    assert shared["keys"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6, 7]
    assert shared["key_starts"].tolist() == [0, 6, 10]
    assert shared["prefix"].tolist() == [0, 1]
    # The number of keys, 10, means that there is no further use.
    assert shared["uses"].tolist() == [[6, 10], [7, 10]]


def test_prefixes_by_hand():
    prompts, temperatures = [[5, 6, 3], [4], [5, 6, 3], [4], [5, 6, 3]], [1.0, 1.0, 1.0, 1.0, 0.5]
    completions = [
        make_completion("0/a", i, prompt, [7, 1], temperature=temperature)
        for i, (prompt, temperature) in enumerate(zip(prompts, temperatures, strict=True))
    ]
    rows, sizes = sizes_of(completions)
    parents, shared = sizes.prefixes(rows)
    # The last token of a prompt is never shared, so of a single one nothing is; nor at another temperature.
    assert parents.tolist() == [0, 1, 0, 3, 4]
    assert shared.tolist() == [0, 0, 2, 0, 0]


@pytest.mark.parametrize(("share_from", "tokens", "shares"), [(0, 64, True), (40, 64, False), (10, 8, False)])
def test_small_passes_share_no_prompts(share_from, tokens, shares):
    """Small by the tokens of the batch (at most 30 here), or by those of a pass."""
    batch = random_batch(0, num_groups=1, per_group=2, prompt=6, longest=7, clean=True)
    micro_batches = prepared(batch, tokens=tokens, share_from=share_from).micro_batches
    assert any(micro.inputs.packing.keys is not None for micro in micro_batches) == shares


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 300), ranks=st.integers(1, 4), shares=st.booleans())
def test_ranks_together_have_every_token_once(seed, tokens, ranks, shares):
    batch = random_batch(seed, temperatures=(1.0, 0.7))
    whole = prepared(batch, tokens=tokens, share_from=0 if shares else None)
    parts = [
        prepared(batch, tokens=tokens, share_from=0 if shares else None, rank=r, num_ranks=ranks) for r in range(ranks)
    ]

    def trained(results):
        return sorted(
            (index, place, weight, advantage)
            for result in results
            for micro in result.micro_batches
            for index, place, weight, advantage in zip(
                micro.completion_of_token.tolist(),
                micro.inputs.packing.positions[micro.inputs.place].tolist(),
                micro.weights.policy.tolist(),
                micro.weights.advantages.tolist(),
                strict=True,
            )
        )

    assert trained(parts) == trained([whole])
    for part in parts:
        assert part.num_passes == max(len(each.micro_batches) for each in parts)
        assert part.facts | {"batch/micro_batches": 0} == whole.facts | {"batch/micro_batches": 0}
        assert part.lengths.tolist() == whole.lengths.tolist()
        for micro in part.micro_batches:
            assert len(micro.inputs.ids) == sum(lengths_of(micro)) <= max(tokens, lengths_of(micro)[0])


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), ranks=st.integers(1, 5), shares=st.booleans())
def test_shares_of_ranks_are_even(seed, ranks, shares):
    rows, sizes = sizes_of(completions_of(random_batch(seed, num_groups=6)), shares=shares)
    parts = sizes.assign(rows, ranks)
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    costs = [int((sizes.length[part] - sizes.prefixes(part)[1]).sum()) for part in parts]
    assert costs == list(map(sizes.cost, parts))
    longest = sizes.length.max()
    # The last unit given to the fullest rank went there because it was the emptiest.
    largest_unit = max(sum(costs) / ranks, longest) + longest if shares else longest
    assert max(costs) - min(costs) <= largest_unit


def test_completions_of_a_prompt_stay_on_one_rank():
    completions = completions_of(random_batch(0, num_groups=4, prompt=8, longest=7, clean=True))
    rows, sizes = sizes_of(completions)
    prompts = [{completions[row].request.group for row in part} for part in sizes.assign(rows, 2)]
    assert prompts[0] | prompts[1] == {"0/0", "0/1", "0/2", "0/3"}
    assert not prompts[0] & prompts[1]


@pytest.mark.parametrize("shares", [True, False])
def test_one_long_group_is_divided_among_ranks(shares):
    completions = [make_completion("0/a", i, [3] * 9, [1] * 16) for i in range(8)]
    rows, sizes = sizes_of(completions, shares=shares)
    parts = sizes.assign(rows, 2)
    # With its prompt once, all of it has 8 + 8 x 16 = 136 tokens: a part of up to 68 is 3 completions.
    assert sorted(len(part) for part in parts) == ([3, 5] if shares else [4, 4])


def test_sharing_is_chosen_where_it_saves_a_tenth():
    def pays(prompt, lengths, **others):
        completions = [make_completion("0/a", i, [3] * prompt, [1] * length) for i, length in enumerate(lengths)]
        rows, sizes = sizes_of(completions, **others)
        return bool(sizes.prefixes(rows)[1].any())

    assert pays(128, [98] * 8)
    assert not pays(1, [8] * 8), "the last token of a prompt is never shared"
    assert not pays(128, [98]), "nobody to share with"
    assert pays(11, [40, 40]), "10 of 100 tokens"
    assert not pays(11, [41, 41])
    # 1800 tokens, and a rank's share of them, against where sharing starts.
    assert pays(128, [98] * 8, share_from=1000)
    assert not pays(128, [98] * 8, share_from=1000, budget=1000)
    assert not pays(128, [98] * 8, share_from=1000, num_ranks=2), "900 tokens each"


def test_on_a_gpu_small_models_share_in_large_passes_only():
    assert fewest_shared_tokens(135_000_000, gpu=False) == 0
    # Where sharing was measured: 28,600 tokens of a 135M model became slower, 14,600 of a 1.5B model faster.
    assert fewest_shared_tokens(135_000_000, gpu=True) > 28_600
    assert fewest_shared_tokens(1_540_000_000, gpu=True) < 14_600


def test_branches_share_the_verdict_of_their_conversation():
    """A conversation that began again is two sequences with one advantage; its tokens are pooled with the others'."""
    before = make_completion("0/a", 0, [5], [7, 8, 1])
    branched = replace(make_completion("0/a", 0, [5, 6, 6], [9, 1], forced=(0,)), branches=(before,))
    wrong = make_completion("0/a", 1, [5], [4, 1])
    batch = Batch(version=VERSION, groups=[make_group([branched, wrong], [True, False])])
    result = prepared(batch)
    (micro,) = result.micro_batches
    assert [sorted(each.tokens.tolist()) for each in micro.completions] == [[1, 9], [1, 7, 8], [1, 4]]
    assert micro.inputs.targets.tolist() == [1, 7, 8, 1, 4, 1]
    assert micro.weights.advantages.tolist() == [1.0] * 4 + [-1.0] * 2
    # One prompt with six trained tokens, and two completions to compare.
    assert micro.weights.policy.tolist() == pytest.approx([1 / 6] * 6)
    assert result.effective.num_kept == 2
    # Ratios of whole sequences do not span two branches.
    assert micro.completion_of_token.tolist() == [1, 0, 0, 0, 2, 2]
    assert sorted(micro.token.tolist()) == [0, 1, 2, 4, 5, 6]
    assert (branched.num_trained_tokens, branched.first_version) == (4, VERSION - 1)
    # The conversation alone, without its branch, has one token to train on.
    assert (
        prepared(
            Batch(version=VERSION, groups=[make_group([replace(branched, branches=()), wrong], [True, False])])
        ).facts["batch/trained_tokens"]
        == 3.0
    )
