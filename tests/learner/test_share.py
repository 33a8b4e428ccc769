"""Prompts that are computed once for all their completions, and shares of a batch for each rank."""

import functools

import numpy as np
import pytest
import torch
from batches import VERSION, lengths_of, make_completion, make_group, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import gradients_of, make_learner, recipe_of
from rank_checks import exact_norms
from tiny_models import tiny_model

from scalerl.learner.batch import prepare
from scalerl.learner.packed_attention import attend_packed, pack, packed_hidden_states
from scalerl.learner.share import Sizes, fewest_shared_tokens
from scalerl.rl.filters import effective_batch
from scalerl.rl.weights import WEIGHTS
from scalerl.run.parts import build_learner
from scalerl.types import Batch

EFFECTIVE = functools.partial(effective_batch, drop_truncated=True, zero_variance=True)


def prepared(batch, *, tokens=64, **others):
    return prepare(batch, effective=EFFECTIVE, weigh=WEIGHTS["prompt"], micro_batch_tokens=tokens, **others)


def sizes_of(completions, *, shares=True, **others):
    """Return all rows, and the sizes of the completions where prompts are shared if that pays, or never."""
    rows, options = np.arange(len(completions)), {"budget": 10**6, "share_from": 0 if shares else None} | others
    return rows, Sizes.of(completions).sharing(completions, rows, **options)


def completions_of(batch):
    return [completion for group in batch.groups for completion in group.completions]


def long_prompts(seed, *, num_groups=4, per_group=4, prompt=9, longest=7, temperatures=(1.0,)):
    """Return a batch whose prompts are longer than its completions."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        tokens = rng.integers(2, 23, prompt + g % 3).tolist()
        temperature = float(rng.choice(temperatures))
        lengths = rng.integers(1, longest + 1, per_group)
        completions = [
            make_completion(
                f"0/{g}",
                i,
                tokens,
                rng.integers(1, 23, length),
                log_probs=np.log(rng.uniform(0.02, 0.3, length)),
                temperature=temperature,
            )
            for i, length in enumerate(lengths)
        ]
        groups.append(make_group(completions, [i % 2 == 0 for i in range(per_group)]))
    return Batch(version=VERSION, groups=groups)


def test_a_shared_prompt_by_hand():
    right = make_completion("0/a", 0, [5, 6, 3], [7, 8, 9, 1])
    wrong = make_completion("0/a", 1, [5, 6, 3], [4, 1])
    (micro,) = prepared(Batch(version=VERSION, groups=[make_group([right, wrong], [True, False])])).micro_batches
    packing = micro.inputs.packing
    shared = packing.for_attention
    # The second starts at the last token of the prompt, where its first token is predicted.
    assert micro.inputs.ids.tolist() == [5, 6, 3, 7, 8, 9, 3, 4]
    assert [part.tolist() for part in packing.sequences] == [[6, 2], [0, 0], [0, 2]]
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
    batch = long_prompts(0, num_groups=1, per_group=2)
    micro_batches = prepared(batch, tokens=tokens, share_from=share_from).micro_batches
    assert any(micro.inputs.packing.keys is not None for micro in micro_batches) == shares


@settings(deadline=None, max_examples=60)
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
                micro.weights.tolist(),
                micro.advantages.tolist(),
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
    completions = completions_of(long_prompts(0))
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


@pytest.mark.parametrize("family", ["smollm", "qwen3", "llama_with_biases"])
@pytest.mark.parametrize("budget", [30, 100_000])
def test_float64_gradient_is_that_of_a_prompt_per_completion(family, budget):
    batch, results = long_prompts(1, temperatures=(1.0, 0.7)), []
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for shares in ("true", "false"):
            recipe = recipe_of("loss=gspo", f"learner.share_prompts={shares}", f"learner.micro_batch_tokens={budget}")
            learner = build_learner(exact_norms(tiny_model(family, dtype=torch.float64)), recipe, version=VERSION)
            exact_norms(learner.policy.body)
            results.append(gradients_of(learner, batch))
    finally:
        torch.set_default_dtype(before)
    (shared, row), (alone, row_alone) = results
    for name in alone:
        torch.testing.assert_close(shared[name], alone[name], rtol=1e-12, atol=1e-13, msg=name)
    assert row["batch/flops"] < 0.75 * row_alone["batch/flops"]
    assert row["loss/value"] == pytest.approx(row_alone["loss/value"], abs=1e-13)


@pytest.mark.parametrize("settings", [(), ("learner.gradient_checkpointing=true",), ("model.lora.rank=2",)])
def test_fp32_gradient_is_that_of_a_prompt_per_completion(settings):
    batch = long_prompts(2)
    shared, row = gradients_of(make_learner(*settings), batch)
    alone, row_alone = gradients_of(make_learner(*settings, "learner.share_prompts=false"), batch)
    for name in alone:
        torch.testing.assert_close(shared[name], alone[name], rtol=0, atol=1e-6, msg=name)
    assert row["batch/flops"] < 0.75 * row_alone["batch/flops"]


@pytest.mark.parametrize("window", [None, 3, 6])
def test_a_continued_sequence_gives_what_it_gives_alone(window, monkeypatch):
    """Two sequences continue the first 4 tokens of a third; windows are computed in blocks of 2 queries."""
    monkeypatch.setattr("scalerl.learner.packed_attention.WINDOW_BLOCK", 2)
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
