"""Mixtures of experts: trained and sampled with equal log-probs, and counted by the parameters a token uses."""

import copy

import numpy as np
import pytest
import torch
from learners import recipe_of
from tiny_models import MIXTURES, tiny_model

from scalerl.models.shape import ModelShape
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.run.parts import build_learner
from scalerl.types import Batch, Group, LengthPlan, Problem, Request


def sampled_batch(model, version, *, num_groups=3, per_group=4, prompt=12):
    """Completions that the engine samples from the model; a completion is correct if its first token is even."""
    engine = TorchEngine(model, slots=8, max_length=40, stop_tokens=(1,), dtype=torch.float32)
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
    while engine.num_pending:
        done |= {completion.request.key: completion for completion in engine.poll()}
    engine.close()
    groups = []
    for start in range(0, len(requests), per_group):
        completions = tuple(done[request.key] for request in requests[start : start + per_group])
        correct = [bool(completion.tokens[0] % 2 == 0) for completion in completions]
        # One of each, so that no group is dropped.
        correct[:2] = [True, False]
        rewards = tuple(1.0 if verdict else -1.0 for verdict in correct)
        request = completions[0].request
        groups.append(
            Group(
                key=request.group,
                problem=request.problem,
                completions=completions,
                correct=tuple(correct),
                rewards=rewards,
            )
        )
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


@pytest.mark.parametrize("family", MIXTURES)
def test_gradient_of_experts_is_that_of_a_prompt_per_completion(family):
    batch, results = sampled_batch(tiny_model(family), 0), []
    for shares in ("true", "false"):
        settings = (f"learner.share_prompts={shares}", "filter.drop_truncated=false", "learner.micro_batch_tokens=60")
        learner = build_learner(tiny_model(family), recipe_of(*settings))
        gradients = {}
        learner._optimizer.register_step_pre_hook(
            lambda *_, into=gradients, of=learner: into.update(
                {name: parameter.grad.clone() for name, parameter in of.policy.parameters.items()}
            )
        )
        row = learner.step(batch)
        results.append((gradients, row))
    (shared, row), (alone, row_alone) = results
    assert row["batch/flops"] < row_alone["batch/flops"]
    for name, gradient in alone.items():
        torch.testing.assert_close(shared[name], gradient, rtol=0, atol=1e-6, msg=name)


def test_flops_count_the_experts_that_a_token_uses():
    config = MIXTURES["qwen3_moe"]
    shape = ModelShape.from_config(config)
    attention = 2 * (16 * 4 * 8 + 16 * 2 * 8)
    router, experts = 4 * 16, 2 * 3 * 16 * 12
    assert shape.body_params == 2 * (attention + router + experts)
    more = copy.deepcopy(config)
    more.num_experts = 16
    assert ModelShape.from_config(more).body_params == shape.body_params + 2 * 12 * 16
