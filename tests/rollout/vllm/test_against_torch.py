"""vLLM against the torch engine and the learner: same weights, same requests, same tokens."""

import numpy as np
import pytest
import torch
from contracts.requests import by_key, drain, make_request, mixed_requests
from contracts.sampling import check_log_probs
from played import STOPS as TURN_STOPS
from played import Echo, played_requests, playing, turns_engine
from vllm_models import llama, saved, spec

from scalerl.rl.logprobs import head_logits
from scalerl.rollout.torch.engine import TorchEngine
from scalerl.rollout.vllm.engine import VllmEngine
from scalerl.types import LengthPlan

STOPS = (3, 9)


def test_tokens_are_those_of_the_torch_engine(tmp_path):
    model = llama()
    requests = mixed_requests(500, longest=40)
    ours = TorchEngine(model, slots=64, max_length=64, stop_tokens=STOPS)
    theirs = VllmEngine(spec(saved(model, tmp_path), slots=64, stop_tokens=STOPS))
    results = []
    for engine in (ours, theirs):
        engine.submit(requests)
        results.append(by_key(drain(engine)))
    equal = [key for key, one in results[0].items() if one.tokens.tolist() == results[1][key].tokens.tolist()]
    assert len(equal) >= 495
    for key in equal:
        one, other = results[0][key], results[1][key]
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
        assert (one.finish, one.interrupted_at) == (other.finish, other.interrupted_at)
        assert one.forced.tolist() == other.forced.tolist()


def test_conversations_are_those_of_the_torch_engine(tmp_path):
    model = llama()
    theirs = VllmEngine(spec(saved(model, tmp_path), slots=16, context=128, stop_tokens=TURN_STOPS))
    results = []
    for inner in (TorchEngine(model, slots=16, max_length=128, stop_tokens=TURN_STOPS), theirs):
        engine = turns_engine({"own": playing(Echo)}, inner=inner, slots=16, context=128)
        engine.submit(played_requests(64))
        results.append(by_key(drain(engine)))
    equal = [key for key, one in results[0].items() if one.tokens.tolist() == results[1][key].tokens.tolist()]
    assert len(equal) >= 62
    check_log_probs(model, results[1].values())
    turns = [(len(one.request.prompt_tokens) + start, end) for one in results[1].values() for start, end in one.turns]
    assert len(turns) > 3 * 64 / 2
    # Of long conversations, whole blocks of the turns before are in the prefix cache.
    assert theirs.work.prefilled < sum(prompt - 1 for prompt, _ in turns)


@pytest.mark.parametrize("tied", [True, False])
def test_fp32_head_has_the_learners_values_under_an_fp16_body(tmp_path, tied):
    model = llama(tied=tied)
    engine = VllmEngine(spec(saved(model, tmp_path), dtype="float16", fp32_head=True))
    rounded = VllmEngine(spec(str(tmp_path), dtype="float16", fp32_head=False))
    hidden = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).half()
    for version in range(1, 11):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        for each in (engine, rounded):
            each.push_weights(model.state_dict(), version)
    expected = head_logits(hidden, model.get_output_embeddings().weight, fp32=True)
    scale = expected.abs().max()
    assert (engine.head_logits(hidden) - expected).abs().max() <= 1e-6 * scale
    assert (rounded.head_logits(hidden) - expected).abs().max() > 1e-4 * scale
    # And what is sampled with it: the body rounds, the head does not.
    engine.submit([make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)])
    check_log_probs(model, drain(engine), atol=0.05)


def test_a_group_shares_its_prompt_while_weights_are_the_same(tmp_path):
    model, newer = llama(), llama(seed=1)
    engine = VllmEngine(spec(saved(model, tmp_path), slots=8, context=128))
    prompt = [(5 * place) % 64 for place in range(70)]  # two blocks of 32 tokens, and 6 more
    requests = [make_request(number, prompt=prompt) for number in range(8)]
    engine.submit(requests)
    drain(engine)
    assert engine.work.prefilled == 69 + 7 * (69 - 64)
    assert engine.work.decoded == 64
    engine.push_weights(newer.state_dict(), 1)
    engine.submit(requests)
    check_log_probs(newer, drain(engine))
    assert engine.work.prefilled == 2 * (69 + 7 * (69 - 64))


def test_without_prefix_caching_every_prompt_is_computed(tmp_path):
    engine = VllmEngine(spec(saved(llama(), tmp_path), slots=8, context=128, settings={"prefix_caching": False}))
    engine.submit([make_request(number, prompt=range(60)) for number in range(4)])
    drain(engine)
    assert engine.work.prefilled == 4 * 59


def test_a_marker_may_contain_a_stop_token(tmp_path):
    """It is forced, so it ends nothing; vLLM by itself would stop there."""
    model = llama()
    engine = VllmEngine(spec(saved(model, tmp_path), stop_tokens=(6,)))
    torch_engine = TorchEngine(model, slots=4, max_length=64, stop_tokens=(6,))
    plan = LengthPlan(thinking_budget=2, marker=(6, 7), answer_budget=20)
    requests = [make_request(number, plan=plan) for number in range(8)]
    results = []
    for each in (engine, torch_engine):
        each.submit(requests)
        results.append(by_key(drain(each)))
    assert {key: one.tokens.tolist() for key, one in results[0].items()} == {
        key: one.tokens.tolist() for key, one in results[1].items()
    }
    assert any(len(completion) > 4 for completion in results[0].values())


def test_non_finite_logits_name_the_request_and_are_fatal(tmp_path):
    from scalerl.errors import EngineError

    model = llama()
    engine = VllmEngine(spec(saved(model, tmp_path)))
    engine.submit([make_request(7, plan=LengthPlan(answer_budget=30))])
    engine.poll()
    broken = model.state_dict()
    broken["model.norm.weight"] = torch.full_like(broken["model.norm.weight"], float("nan"))
    engine.push_weights(broken, 1)
    for _ in range(2):
        with pytest.raises(EngineError, match="non-finite logits at token 1 of request 0/7#0, sampled with version 1"):
            engine.poll()
