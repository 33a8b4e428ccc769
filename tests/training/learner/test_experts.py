"""Mixtures of experts: trained and sampled with equal log-probs, and counted by the parameters a token uses."""

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import make_group
from learners import recipe_of
from tiny_models import MIXTURES, chosen_experts, tiny_model
from transformers import AutoModelForCausalLM

from scalerl.errors import ModelError
from scalerl.training.models.shape import ModelShape
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.run.learners import build_learner
from scalerl.training.run.pack import pack_groups, unpack_groups
from scalerl.training.types import Batch, LengthPlan, Problem, Request


def sampled_batch(
    model, version, *, num_groups=3, per_group=4, prompt=12, records=False, pause=False, dtype=torch.float32
):
    """Completions that the engine samples from the model; a completion is correct if its first token is even."""
    engine = TorchEngine(model, slots=8, max_length=40, stop_tokens=(1,), dtype=dtype, records_experts=records)
    engine.push_weights(dict(model.named_parameters()), version)
    rng = np.random.default_rng(version)
    requests = []
    for number in range(num_groups):
        key = f"{version}/{number}"
        tokens = tuple(rng.integers(2, 23, prompt).tolist())
        problem = Problem(id=key, prompt=key, answer="", task="t")
        requests += [
            Request(
                group=key, index=i, problem=problem, prompt_tokens=tokens, seed=i, length=LengthPlan(answer_budget=12)
            )
            for i in range(per_group)
        ]
    engine.submit(requests)
    done = {}
    if pause:
        # Others take the slots for a while, and rows move between chunks.
        done |= {completion.request.key: completion for completion in engine.poll()}
        with engine.paused():
            engine.submit([replace(request, group=f"aside/{request.group}") for request in requests])
            while engine.num_pending:
                engine.poll()
    while engine.num_pending:
        done |= {completion.request.key: completion for completion in engine.poll()}
    engine.close()
    groups = []
    for start in range(0, len(requests), per_group):
        completions = [done[request.key] for request in requests[start : start + per_group]]
        correct = [bool(completion.tokens[0] % 2 == 0) for completion in completions]
        # One of each, so that no group is dropped.
        groups.append(make_group(completions, [True, False, *correct[2:]]))
    return Batch(version=version, groups=groups)


@pytest.mark.parametrize("family", MIXTURES)
def test_engine_and_learner_give_equal_log_probs(family):
    """Routing depends on a token's hidden state alone, so both ends choose the same experts in FP32, at every step."""
    model = tiny_model(family)
    learner = build_learner(model, recipe_of("filter.drop_truncated=false"))
    for version in range(3):
        row = learner.step(sampled_batch(model, version))
        assert row["batch/effective"] == 12
        assert row["loss/kl"] < 1e-9
        assert row["loss/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert row["optim/grad_norm"] > 0


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("family", MIXTURES)
def test_engine_records_the_experts_of_every_token(family, pause):
    model = tiny_model(family)
    batch = sampled_batch(model, 0, records=True, pause=pause)
    for group in batch.groups:
        for completion in group.completions:
            np.testing.assert_array_equal(completion.experts, chosen_experts(model, completion))
    arrays, meta = pack_groups(batch.groups)
    for group, restored in zip(batch.groups, unpack_groups(arrays, json.loads(json.dumps(meta))), strict=True):
        for one, other in zip(group.completions, restored.completions, strict=True):
            np.testing.assert_array_equal(one.experts, other.experts)


def other_experts(batch):
    """The batch as if a router of the engine had chosen two other experts for every second token of a completion."""

    def changed(completion):
        experts = completion.experts.copy()
        experts[::2, :2] = (experts[::2, :2] + 1) % 4
        return replace(completion, experts=experts)

    groups = [replace(group, completions=tuple(map(changed, group.completions))) for group in batch.groups]
    return replace(batch, groups=groups)


@pytest.mark.parametrize(("family", "shares"), [("qwen3_moe", "true"), ("olmoe", "false")])
def test_learner_replays_the_experts_of_the_engine(family, shares):
    settings = ("filter.drop_truncated=false", f"learner.share_prompts={shares}", "learner.micro_batch_tokens=60")
    batch = sampled_batch(tiny_model(family), 0, records=True)
    rows = {}
    for name, given, replays in (
        ("plain", batch, "false"),
        ("equal", batch, "true"),
        ("other", other_experts(batch), "true"),
        ("ignored", other_experts(batch), "false"),
    ):
        learner = build_learner(tiny_model(family), recipe_of(*settings, f"model.router_replay={replays}"))
        rows[name] = learner.step(given)
    assert rows["equal"]["loss/router_disagreement"] == 0
    assert "loss/router_disagreement" not in rows["plain"]
    for key in ("loss/value", "optim/grad_norm", "loss/kl"):
        assert rows["equal"][key] == pytest.approx(rows["plain"][key], rel=1e-5, abs=1e-9)
        assert rows["ignored"][key] == rows["plain"][key]
    # The first of two layers takes other experts for half of the tokens; the second may follow from it.
    assert 0.1 < rows["other"]["loss/router_disagreement"] < 0.8
    assert rows["other"]["loss/kl"] > 1e-6 > rows["equal"]["loss/kl"]


def test_replay_brings_the_learner_nearer_to_an_engine_that_rounds():
    family, rounded = "qwen3_moe", tiny_model("qwen3_moe")
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.copy_(weight.bfloat16())
    batch = sampled_batch(rounded, 0, num_groups=12, per_group=8, records=True)
    rows = [
        build_learner(tiny_model(family), recipe_of("filter.drop_truncated=false", f"model.router_replay={on}")).step(
            batch
        )
        for on in ("false", "true")
    ]
    assert 0 < rows[1]["loss/router_disagreement"] < 0.02
    assert rows[1]["loss/kl"] < 0.7 * rows[0]["loss/kl"]
    assert rows[1]["loss/ratio_max"] <= rows[0]["loss/ratio_max"]


@pytest.mark.gpu
def test_on_a_gpu_replay_brings_the_learner_nearer_to_the_engine():
    """Both have bf16 bodies of the same weights, and round differently: kernels and graphs, and compiled layers."""
    torch.manual_seed(0)
    config = copy.deepcopy(MIXTURES["qwen3_moe"])
    config.update({"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8})
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.to("cuda").eval()
    batch = sampled_batch(model, 0, num_groups=12, per_group=8, records=True, dtype=torch.bfloat16)
    settings = ("filter.drop_truncated=false", "model.dtype=bfloat16", "model.router_replay=true", "optimizer.lr=1e-12")
    learner = build_learner(model, recipe_of(*settings))
    replayed = learner.step(batch)
    bare = [
        replace(group, completions=tuple(replace(each, experts=None) for each in group.completions))
        for group in batch.groups
    ]
    plain = learner.step(Batch(version=learner.version, groups=bare))
    assert 0 < replayed["loss/router_disagreement"] < 0.1
    assert "loss/router_disagreement" not in plain or plain["loss/router_disagreement"] == 0
    assert replayed["loss/kl"] < plain["loss/kl"] < 0.01


def test_dense_models_have_nothing_to_replay():
    with pytest.raises(ModelError, match="no routers"):
        build_learner(tiny_model("llama"), recipe_of("model.router_replay=true"))


def test_flops_count_the_experts_that_a_token_uses():
    config = MIXTURES["qwen3_moe"]
    shape = ModelShape.from_config(config)
    attention = 2 * (16 * 4 * 8 + 16 * 2 * 8)
    router, experts = 4 * 16, 2 * 3 * 16 * 12
    assert shape.body_params == 2 * (attention + router + experts)
    more = copy.deepcopy(config)
    more.num_experts = 16
    assert ModelShape.from_config(more).body_params == shape.body_params + 2 * 12 * 16
