import copy
import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from batches import VERSION, make_completion, make_group, random_batch
from learners import check_close, gpu_model, gradients_of, make_learner, recipe_of
from tiny_models import tiny_model

from scalerl.errors import PackingError, RecipeError
from scalerl.recipe.choose import choose
from scalerl.training.learner.packed_attention import (
    attend_packed,
    check_packing,
    pack,
    packed_attention,
    packed_hidden_states,
)
from scalerl.training.learner.step import compilation_s
from scalerl.training.loop.seams import Learner
from scalerl.training.models.load import hidden_states
from scalerl.training.rl.losses import LOSSES, LossInputs, TokenLoss
from scalerl.training.run.learners import build_learner
from scalerl.training.types import Batch

# Of a CPU without bf16 instructions, where the products are computed the slow way.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def slow_reference(model, batch, recipe):
    """The loss of a batch, one completion at a time, by the model's own logits; ScaleRL's advantages and average."""
    loss_of = choose(LOSSES, recipe.loss)
    kept, advantages = [], {}
    for g, group in enumerate(batch.groups):
        left = [
            (g, i)
            for i, completion in enumerate(group.completions)
            if group.correct[i] is not None and not completion.truncated and trained_of(completion)
        ]
        rewards = [group.rewards[i] for _, i in left]
        if len(left) >= 2 and len({group.correct[i] for _, i in left}) == 2:
            kept += left
            for pair, reward in zip(left, rewards, strict=True):
                advantages[pair] = reward - sum(rewards) / len(rewards)
    mean = sum(advantages.values()) / len(advantages)
    std = math.sqrt(sum((a - mean) ** 2 for a in advantages.values()) / len(advantages))
    num_prompts = len({g for g, _ in kept})

    total = torch.zeros((), dtype=torch.float64)
    for g, i in kept:
        completion = batch.groups[g].completions[i]
        prompt = list(completion.request.prompt_tokens)
        ids = torch.tensor([prompt + completion.tokens.tolist()])
        logits = model(input_ids=ids).logits[0] / completion.request.temperature
        log_probs = logits.log_softmax(-1)
        tokens = trained_of(completion)
        ours = torch.stack([log_probs[len(prompt) + t - 1, completion.tokens[t]] for t in tokens])
        in_prompt = sum(len(trained_of(batch.groups[h].completions[j])) for h, j in kept if h == g)
        inputs = LossInputs(
            log_probs=ours,
            generator_log_probs=torch.tensor([float(completion.log_probs[t]) for t in tokens]),
            advantages=torch.full_like(ours, advantages[g, i] / std),
            completion_of_token=torch.zeros(len(tokens), dtype=torch.long),
            trained=torch.ones(len(tokens), dtype=torch.bool),
        )
        token_loss = loss_of(inputs)
        total = total + token_loss.loss.sum() / (num_prompts * in_prompt)
    return total


def trained_of(completion):
    return [t for t in range(len(completion)) if not completion.forced[t] and math.isfinite(completion.log_probs[t])]


@pytest.mark.parametrize(
    "loss, family",
    [("cispo", "smollm"), ("dapo", "qwen3"), ("gspo", "qwen2"), ("tis", "llama_with_biases"), ("cispo", "smollm3")],
)
def test_the_gradient_is_that_of_one_completion_at_a_time(loss, family, float64):
    # Norms compute in FP32 also in a float64 model: sums of gradients would be rounded otherwise with shared prompts.
    overrides = (f"loss={loss}", "learner.micro_batch_tokens=60", "learner.share_prompts=false")
    batch = random_batch(1, num_groups=8, temperatures=(1.0, 0.7))
    learner = make_learner(*overrides, family=family, dtype=torch.float64)
    gradients, row = gradients_of(learner, batch)
    assert row["batch/micro_batches"] >= 2

    model = tiny_model(family, dtype=torch.float64)
    expected = slow_reference(model, batch, recipe_of(*overrides))
    expected.backward()
    assert row["loss/value"] == pytest.approx(expected.item(), abs=1e-12)
    parameters = dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, parameters[name].grad, rtol=1e-9, atol=1e-12, msg=name)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert row["optim/grad_norm"] == pytest.approx(norm)


@pytest.mark.parametrize(
    "family, window", [("smollm", None), ("qwen2", None), ("qwen2", 3), ("qwen3", None), ("smollm3", None)]
)
def test_a_packed_sequence_gives_what_it_gives_alone(family, window):
    """Hidden states and gradients in FP32, with positions from 0 in each; neighbours change nothing."""
    lengths, packed = [5, 9, 1, 4], tiny_model(family)
    if window is not None:
        packed.config.sliding_window = window
        for layer in packed.model.layers:
            layer.self_attn.sliding_window = window
    alone, ids = copy.deepcopy(packed), torch.randint(2, 23, (sum(lengths),))
    if window is not None:
        # The other one is given a mask.
        packed.config.layer_types = ["sliding_attention"] * packed.config.num_hidden_layers
        packed.model.has_sliding_layers = True
    attend_packed(packed)
    check_packing(functools.partial(packed_hidden_states, packed), packed.config, device=packed.device)
    mix = torch.randn(sum(lengths), 16)
    together = packed_hidden_states(packed, ids, pack(lengths))
    (together * mix).sum().backward()
    for part, states, factor in zip(ids.split(lengths), together.split(lengths), mix.split(lengths), strict=True):
        mask = None if window is None else windowed(len(part), window)
        expected = alone.base_model(input_ids=part[None], attention_mask=mask).last_hidden_state[0]
        (expected * factor).sum().backward()
        torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    for (name, ours), theirs in zip(packed.base_model.named_parameters(), alone.base_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5, msg=name)


def test_attention_patterns_that_few_tokens_do_not_show_are_checked():
    """Windows that a layer does not ask for, and patterns that packed attention does not have, are refused."""

    def check(model):
        attend_packed(model)
        return check_packing(functools.partial(packed_hidden_states, model), model.config, device=model.device)

    model = tiny_model("qwen2_windowed")
    assert check(model)
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    with pytest.raises(PackingError, match=r"attend to the last \[None, None\].*configuration says \[None, 5\]"):
        check(model)
    chunked = tiny_model("qwen3")
    chunked.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(PackingError, match="layers of chunked_attention"):
        check(chunked)


def windowed(length, window):
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return ((distance >= 0) & (distance < window))[None, None]


def test_a_model_whose_layers_mix_packed_sequences_is_refused():
    model = tiny_model()
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output + output.cumsum(dim=1))
    with pytest.raises(PackingError, match="a llama model cannot be trained: its layers mix packed sequences"):
        build_learner(model, recipe_of())
    heads = torch.zeros(1, 2, 3, 4)
    where = pack([3])
    with pytest.raises(PackingError, match="attention needs softcap"):
        packed_attention(
            model, heads, heads, heads, None, starts=where.starts, corners=where.corners, rows=1, width=3, longest=4,
            softcap=30.0,
        )  # fmt: skip


def test_the_given_model_is_left_as_it_was():
    """An engine copies it after the learner is made, and needs its masks."""
    model = tiny_model()
    learner = build_learner(model, recipe_of(), version=VERSION)
    assert model.config._attn_implementation == "sdpa"
    learner.step(random_batch(0))
    ids = torch.tensor([[3, 4, 5]])
    expected = packed_hidden_states(learner.policy.body, ids[0], pack([3]))
    torch.testing.assert_close(hidden_states(model, ids)[0], expected, rtol=1e-5, atol=1e-5)


def test_any_budget_of_tokens_gives_the_same_update():
    batch = random_batch(2, num_groups=8)
    settings = [("loss=gspo", f"learner.micro_batch_tokens={tokens}") for tokens in (1, 40, 100_000)]
    (first, first_row), *others = results = [gradients_of(make_learner(*each), batch) for each in settings]
    assert len({row["batch/micro_batches"] for _, row in results}) == 3
    for gradients, row in others:
        check_close(gradients, first, 1e-5)
        for key in first_row.keys() - {"batch/micro_batches"}:
            assert row[key] == pytest.approx(first_row[key], rel=1e-4, abs=1e-7), key


def test_checkpointing_changes_nothing_and_dropout_is_never_on():
    model = tiny_model()
    model.config.attention_dropout = 0.9
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    recipe = recipe_of("learner.gradient_checkpointing=true")
    with_dropout, row = gradients_of(build_learner(model, recipe, version=VERSION), random_batch(2))
    without, other_row = gradients_of(make_learner(), random_batch(2))
    assert row == other_row
    assert all(torch.equal(with_dropout[name], without[name]) for name in without)


def test_the_first_update_by_hand(float64):
    """Adam's first step is the gradient's sign; decay is on every parameter, norms too."""
    learner = make_learner("optimizer.warmup_steps=10", "optimizer.weight_decay=0.1", dtype=torch.float64)
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    gradients, _ = gradients_of(learner, random_batch(4))
    lr = 1e-3 / 10
    for name, weight in learner.weights().items():
        step = lr * gradients[name] / (gradients[name].abs() + 1e-15)
        torch.testing.assert_close(weight, before[name] * (1 - lr * 0.1) - step, rtol=1e-9, atol=1e-12, msg=name)


def test_a_long_gradient_is_clipped_and_its_own_norm_reported():
    batch = random_batch(5)
    free, row = gradients_of(make_learner("optimizer.grad_clip=0"), batch)
    limit = row["optim/grad_norm"] / 3
    clipped, clipped_row = gradients_of(make_learner(f"optimizer.grad_clip={limit}"), batch)
    assert clipped_row["optim/grad_norm"] == row["optim/grad_norm"]
    for name in free:
        torch.testing.assert_close(clipped[name], free[name] / 3, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("family", ["smollm", "llama_with_biases"])
def test_a_bf16_body_keeps_fp32_masters(family):
    """At the paper's learning rate masters move where bf16 weights could not; the body follows them."""
    learner = make_learner("model.dtype=bfloat16", "optimizer.lr=5e-7", family=family)
    for weight in learner.weights().values():
        weight.copy_(weight.bfloat16())
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    gradients, _ = gradients_of(learner, random_batch(6))
    exact, _ = gradients_of(make_learner(family=family), random_batch(6))
    moved = lost = total = 0
    for name, weight in learner.weights().items():
        assert weight.dtype == gradients[name].dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(gradients[name].flatten(), exact[name].flatten(), dim=0)
        assert cosine > 0.98, name
        # Neighbours in bf16 are 2^-8 to 2^-7 of a weight apart: half of that is more than 5e-7 from 2.6e-4 on.
        large = before[name].abs() > 2.6e-4
        moved += int((weight != before[name])[large].sum())
        lost += int((weight.bfloat16() == before[name].bfloat16())[large].sum())
        total += int(large.sum())
    assert moved > 0.5 * total
    assert lost == total
    body = dict(learner.policy.body.named_parameters())
    assert body.keys() == before.keys()
    for name, weight in learner.weights().items():
        assert torch.equal(body[name].bfloat16(), weight.bfloat16())
    # Positions need more digits than bf16 has.
    assert {buffer.dtype for buffer in learner.policy.body.buffers()} == {torch.float32}


@pytest.mark.gpu
def test_gpu_kernels_and_compiled_layers_keep_the_gradient():
    model, batch = gpu_model(tie_word_embeddings=True), random_batch(6, num_groups=8)
    on_cpu: Any = copy.deepcopy(model).to("cpu")  # pyright: ignore[reportArgumentType]
    exact, row = gradients_of(build_learner(on_cpu, recipe_of(), version=VERSION), batch)
    on_gpu = build_learner(model, recipe_of("model.dtype=bfloat16"), version=VERSION)
    gradients, gpu_row = gradients_of(on_gpu, batch)
    assert gpu_row["loss/value"] == pytest.approx(row["loss/value"], abs=0.02)
    for name in exact:
        cosine = torch.nn.functional.cosine_similarity(gradients[name].cpu().flatten(), exact[name].flatten(), dim=0)
        assert cosine > 0.98, name


@pytest.mark.gpu
def test_on_a_gpu_no_step_compiles():
    """All of it was compiled at the start, so that no step's time is a compiler's."""
    model = gpu_model(max_position_embeddings=128)
    learner = build_learner(model, recipe_of("model.dtype=bfloat16"), version=VERSION)
    before = compilation_s()
    assert before > 0
    for seed, num_groups in enumerate((4, 12, 1, 7)):
        learner.step(random_batch(seed, num_groups=num_groups, version=learner.version))
    assert compilation_s() == before


def test_time_spent_compiling_is_known():
    before = compilation_s()
    torch.compile(lambda value: value + 1, backend="eager")(torch.zeros(2))
    assert compilation_s() > before


def test_gradients_of_a_bf16_body_add_up_in_fp32():
    batch = random_batch(7, num_groups=8)
    single, _ = gradients_of(make_learner("model.dtype=bfloat16"), batch)
    many, row = gradients_of(make_learner("model.dtype=bfloat16", "learner.micro_batch_tokens=1"), batch)
    assert row["batch/micro_batches"] > 10
    for name in single:
        # A sum in bf16 would itself have two or three digits, and lose what is 256 times smaller than it.
        assert bool((many[name] != many[name].bfloat16().float()).any()), name
    check_close(many, single, 0.03)


def test_head_is_fp32_as_the_recipe_says():
    batch = random_batch(8)
    rows = {
        place: make_learner("model.dtype=bfloat16", f"model.fp32_head={place}").step(batch)
        for place in ("both", "learner", "generator", "none")
    }
    assert rows["both"] == rows["learner"]
    assert rows["none"] == rows["generator"]
    assert rows["none"]["loss/kl"] != rows["both"]["loss/kl"]
    assert rows["none"]["loss/kl"] == pytest.approx(rows["both"]["loss/kl"], rel=0.05)
    assert rows["none"]["optim/grad_norm"] == pytest.approx(rows["both"]["optim/grad_norm"], rel=0.05)
    # A float32 body has nothing to round.
    assert make_learner("model.fp32_head=none").step(batch) == make_learner().step(batch)


def test_an_empty_batch_is_a_step_without_an_update():
    learner = make_learner()
    same = [make_completion("0/b", i, [3], [2, 1]) for i in range(2)]
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    row = learner.step(Batch(version=VERSION, groups=[make_group(same, [True, True])]))
    assert learner.version == VERSION + 1
    assert row["batch/effective"] == row["batch/flops"] == row["optim/skipped"] == 0.0
    assert row["reward/correct_frac"] == 1.0
    assert not {"loss/value", "loss/kl", "optim/grad_norm"} & row.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in learner.weights().items())
    assert learner.step(random_batch(0, version=VERSION + 1))["batch/effective"] > 0


def broken(kind):
    """A loss that is not finite, or one that is and has a gradient that is not."""

    def loss(inputs):
        log_probs = inputs.log_probs
        nothing = log_probs - log_probs.detach()
        value = {"inf": log_probs * math.inf, "gradient": nothing.sqrt()}[kind]
        ones = torch.ones_like(log_probs)
        return TokenLoss(loss=value, ratio=ones.detach(), clipped=torch.zeros_like(inputs.trained))

    return loss


@pytest.mark.parametrize(("kind", "dtype"), [("inf", "float32"), ("gradient", "float32"), ("gradient", "bfloat16")])
def test_non_finite_updates_are_skipped(kind, dtype):
    learner, untouched = make_learner(f"model.dtype={dtype}"), make_learner(f"model.dtype={dtype}")
    for trained in (learner, untouched):
        trained.step(random_batch(0))
    good, learner.objective = learner.objective, replace(learner.objective, loss=broken(kind))
    row = learner.step(random_batch(1, version=VERSION + 1))
    learner.objective = good
    assert row["optim/skipped"] == 1.0
    assert all(math.isfinite(value) for value in row.values())
    assert learner.version == VERSION + 2
    state = untouched.state_dict()
    untouched.load_state_dict({**state, "counters": {**state["counters"], "version": torch.tensor(learner.version)}})
    # The moments are clean too: the next step is the one that would have come.
    rows = [trained.step(random_batch(2, version=VERSION + 2)) for trained in (learner, untouched)]
    assert rows[0] == rows[1]
    assert rows[0]["optim/skipped"] == 0.0
    for weight, expected in zip(learner.weights().values(), untouched.weights().values(), strict=True):
        assert torch.equal(weight, expected)


def test_weights_are_the_masters_and_tied_ones_appear_once():
    learner: Learner = make_learner(family="smollm")
    weights = learner.weights()
    assert "lm_head.weight" not in weights
    assert "lm_head.weight" in make_learner(family="llama").weights()
    before = weights["model.norm.weight"].clone()
    learner.step(random_batch(0))
    assert not torch.equal(weights["model.norm.weight"], before)
    assert not weights["model.norm.weight"].requires_grad


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="master weights must be float32"):
        make_learner(dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="a batch for version 9 came at 3"):
        make_learner().step(random_batch(0, version=9))
    with pytest.raises(RecipeError, match=r'loss "own_code:five_vector_loss" takes .* must take one positional'):
        make_learner("loss.name=own_code:five_vector_loss")
