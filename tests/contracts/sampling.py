"""What every Engine that runs a model must do. A test module gives, besides `make_engine` as in contracts/engine.py:

model               a transformers causal LM of vocabulary 64, in FP32
make_engine(...)    an engine that runs a copy of it
new_weights         other weights of the same model, as a state_dict
"""

import copy
import math

import numpy as np
import pytest
import torch
from contracts.requests import advance, by_key, drain, make_request, mixed_requests
from played import STOPS, Echo, played_requests, playing, turns_engine

from scalerl.training.types import Completion, LengthPlan


@torch.no_grad()
def full_forward(model, completion: Completion) -> np.ndarray:
    """Log-probs of a completion by one pass over all of it, in float64."""
    request = completion.request
    tokens = torch.tensor([[*request.prompt_tokens, *completion.tokens.tolist()]])
    logits = model(tokens).logits[0].double() / (request.temperature or 1.0)
    expected = torch.log_softmax(logits, dim=-1)[len(request.prompt_tokens) - 1 : -1]
    return expected.gather(1, tokens[0, len(request.prompt_tokens) :, None])[:, 0].numpy()


@torch.no_grad()
def replay(models: dict, completion: Completion) -> np.ndarray:
    """Log-probs of a completion, token by token, each with the version that sampled it, over one mixed cache."""
    from transformers import DynamicCache

    request, cache = completion.request, DynamicCache()
    inputs, log_probs = torch.tensor([request.prompt_tokens]), []
    for token, version in zip(completion.tokens.tolist(), completion.versions.tolist(), strict=True):
        logits = models[version](inputs, past_key_values=cache).logits[0, -1].double()
        log_probs.append(torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)[token].item())
        inputs = torch.tensor([[token]])
    return np.array(log_probs)


def check_log_probs(model, completions, atol: float = 1e-4) -> None:
    """Sampled tokens have the log-probs of a full pass, forced ones 0."""
    for completion in completions:
        expected = np.where(completion.forced, 0.0, full_forward(model, completion))
        np.testing.assert_allclose(completion.log_probs, expected, atol=atol)


def with_weights(model, weights):
    other = copy.deepcopy(model)
    other.load_state_dict(weights)
    return other


def test_log_probs_equal_a_full_forward_pass(make_engine, model):
    engine = make_engine(slots=5, stop_tokens=(3,))
    engine.submit(mixed_requests(16))
    check_log_probs(model, drain(engine))


def test_update_in_flight_equals_a_replay_of_the_mixed_cache(make_engine, model, new_weights):
    plan = LengthPlan(answer_budget=30)
    requests = [make_request(number, prompt=range(1 + 3 * number), plan=plan) for number in range(6)]
    models = {0: model, 1: with_weights(model, new_weights)}
    # An engine that runs by itself may finish before a push reaches it: once in a while, not five times.
    for _ in range(5):
        engine = make_engine(slots=4, version=0)
        engine.submit(requests)
        completions = advance(engine, 4)
        engine.push_weights(new_weights, 1)
        completions += drain(engine)
        mixed = [completion for completion in completions if len(set(completion.versions.tolist())) > 1]
        for completion in completions:
            np.testing.assert_allclose(completion.log_probs, replay(models, completion), atol=1e-4)
        for completion in mixed:
            assert np.abs(completion.log_probs - full_forward(models[1], completion)).max() > 1e-3
        if len(mixed) == 4:
            return
    raise AssertionError("no push took effect within all four running completions")


def test_update_takes_effect_and_is_copied(make_engine, model, new_weights):
    pushed = {name: weight.clone() for name, weight in new_weights.items()}
    engine = make_engine()
    engine.push_weights(pushed, 1)
    with torch.no_grad():
        for weight in pushed.values():
            weight.zero_()
    engine.submit([make_request(plan=LengthPlan(answer_budget=20))])
    check_log_probs(with_weights(model, new_weights), drain(engine))


def test_changing_the_learners_model_leaves_the_engine(make_engine, model):
    engine = make_engine()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    engine.submit([make_request(plan=LengthPlan(answer_budget=20))])
    completions = drain(engine)
    model.load_state_dict(before)
    check_log_probs(model, completions)


def test_greedy_equals_generate(make_engine, model):
    prompts = [range(1, 9), range(20, 33), (7,)]
    engine = make_engine(slots=3)
    plan = LengthPlan(answer_budget=24)
    engine.submit([make_request(n, prompt=prompt, plan=plan, temperature=0.0) for n, prompt in enumerate(prompts)])
    for completion in drain(engine):
        inputs = torch.tensor([completion.request.prompt_tokens])
        expected = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=24, pad_token_id=0
        )
        assert completion.tokens.tolist() == expected[0, inputs.shape[1] :].tolist()
        np.testing.assert_allclose(completion.log_probs, full_forward(model, completion), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_sampling_frequencies_match_the_softmax(make_engine, model, temperature):
    count = 4000
    engine = make_engine(slots=128)
    plan = LengthPlan(answer_budget=1)
    engine.submit([make_request(number, plan=plan, temperature=temperature) for number in range(count)])
    observed = np.bincount([completion.tokens[0] for completion in drain(engine)], minlength=64)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3]])).logits[0, -1].double()
    expected = torch.softmax(logits / temperature, dim=-1).numpy() * count
    rare = expected < 5
    observed, expected = (
        np.append(observed[~rare], observed[rare].sum()),
        np.append(expected[~rare], expected[rare].sum()),
    )
    kept = expected > 0
    from scipy.stats import chisquare  # here: every process of the tests would import it for a second

    assert chisquare(observed[kept], expected[kept] * observed.sum() / expected.sum()).pvalue > 1e-3


def test_top_p_reports_log_probs_of_the_whole_distribution(make_engine, model):
    engine = make_engine(slots=64)
    plan = LengthPlan(answer_budget=1)
    engine.submit([make_request(number, plan=plan, top_p=0.4) for number in range(500)])
    with torch.no_grad():
        log_probs = torch.log_softmax(model(torch.tensor([[1, 2, 3]])).logits[0, -1].double(), dim=-1)
    ordered = log_probs.exp().sort(descending=True)
    size = int((ordered.values.cumsum(0) < 0.4).sum()) + 1
    seen = set()
    for completion in drain(engine):
        token = int(completion.tokens[0])
        seen.add(token)
        assert math.isclose(completion.log_probs[0], log_probs[token].item(), abs_tol=1e-4)
    assert seen == set(ordered.indices[:size].tolist())


def test_forced_tokens_are_context_like_any_other(make_engine, model):
    plan = LengthPlan(thinking_budget=6, marker=(11, 12, 13, 14), answer_budget=12)
    engine = make_engine(slots=4)
    engine.submit([make_request(number, plan=plan) for number in range(4)])
    completions = drain(engine)
    assert all(completion.forced.sum() == 4 for completion in completions)
    check_log_probs(model, completions)


def test_conversations_are_sampled_with_the_models_own_log_probs(make_engine, model):
    inner = make_engine(slots=6, stop_tokens=STOPS)
    engine = turns_engine({"own": playing(Echo)}, inner=inner, slots=6, context=64)
    engine.submit(played_requests(24))
    completions = drain(engine)
    assert len(completions) == 24
    assert max(len(completion.turns) for completion in completions) >= 3
    check_log_probs(model, completions)


def test_greedy_and_sampled_requests_can_be_mixed(make_engine):
    plan = LengthPlan(answer_budget=12)
    requests = [
        make_request(n, plan=plan, temperature=t, top_p=p) for n, (t, p) in enumerate([(0, 1), (1, 1), (1, 0.5)])
    ]
    engine = make_engine(slots=3)
    engine.submit(requests)
    together = by_key(drain(engine))
    for request in requests:
        engine.submit([request])
        (completion,) = drain(engine)
        assert completion.tokens.tolist() == together[request.key].tokens.tolist()
