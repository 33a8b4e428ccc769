"""vLLM against the torch engine and the learner: same weights, same requests, same tokens."""

import numpy as np
import pytest
import torch
from contracts.requests import by_key, drain, make_request, mixed_requests
from contracts.sampling import check_log_probs
from cuda_receiver import logits_of
from played import STOPS as TURN_STOPS
from played import Echo, played_requests, playing, turns_engine
from vllm_models import llama

from scalerl.errors import EngineError, RecipeError
from scalerl.training.remote.weights import InMemory, SharedMemory, Unmapped
from scalerl.training.rl.logprobs import head_logits
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.types import LengthPlan

pytestmark = pytest.mark.xdist_group("engines")

INTERRUPTED = LengthPlan(thinking_budget=2, marker=(6, 7), answer_budget=20)


def with_turns(engine):
    return turns_engine({"own": playing(Echo)}, inner=engine, slots=16, context=128)


@pytest.mark.parametrize(
    ("requests", "stops", "wrapped", "least"),
    [
        (mixed_requests(500, longest=40), (3, 9), lambda engine: engine, 495),
        # The marker contains a stop token. It is forced, so it ends nothing; vLLM by itself would stop there.
        ([make_request(number, plan=INTERRUPTED) for number in range(8)], (6,), lambda engine: engine, 8),
        (played_requests(64), TURN_STOPS, with_turns, 62),
    ],
    ids=["mixed", "marker", "conversations"],
)
def test_tokens_are_those_of_the_torch_engine(engine_of, requests, stops, wrapped, least):
    model, results = llama(), []
    theirs = engine_of(slots=64, context=128, stop_tokens=stops)
    for engine in (TorchEngine(model, slots=64, max_length=128, stop_tokens=stops), theirs):
        engine = wrapped(engine)
        engine.submit(requests)
        results.append(by_key(drain(engine)))
    pairs = [(one, results[1][key]) for key, one in results[0].items()]
    pairs = [(one, other) for one, other in pairs if one.tokens.tolist() == other.tokens.tolist()]
    assert len(pairs) >= least
    for one, other in pairs:
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
        assert (one.finish, one.interrupted_at, one.turns) == (other.finish, other.interrupted_at, other.turns)
        assert one.forced.tolist() == other.forced.tolist()
    check_log_probs(model, results[1].values())
    if wrapped is with_turns:
        turns = [(len(one.request.prompt_tokens) + start, end) for _, one in pairs for start, end in one.turns]
        assert len(turns) > 3 * len(requests) / 2
        # Of long conversations, whole blocks of the turns before are in the prefix cache.
        assert theirs.work.prefilled < sum(prompt - 1 for prompt, _ in turns)
    else:
        assert any(len(one) > 4 for one, _ in pairs)


@pytest.mark.parametrize("tied", [True, False])
def test_fp32_head_has_the_learners_values_under_an_fp16_body(engine_of, tied):
    model = llama(tied=tied)
    engine, rounded = (engine_of(tied=tied, dtype="float16", fp32_head=fp32_head) for fp32_head in (True, False))
    hidden = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).half()
    for version in range(1, 11):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        for each in (engine, rounded):
            each.push_weights(model.state_dict(), version)
    expected = head_logits(hidden, model.get_output_embeddings().weight, fp32=True)
    scale = expected.abs().max()
    exact, coarse = (each.vllm.collective_rpc(logits_of, args=(hidden,))[0] for each in (engine, rounded))
    assert (exact - expected).abs().max() <= 1e-6 * scale
    assert (coarse - expected).abs().max() > 1e-4 * scale
    # And what is sampled with it: the body rounds, the head does not.
    engine.submit([make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)])
    check_log_probs(model, drain(engine), atol=0.05)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_group_shares_its_prompt_while_weights_are_the_same(engine_of, prefix_caching):
    newer = llama(seed=1)
    engine = engine_of(slots=8, context=128, settings={"prefix_caching": prefix_caching})
    prompt = [(5 * place) % 64 for place in range(70)]  # two blocks of 32 tokens, and 6 more
    once = 69 + 7 * (69 - 64 * prefix_caching)
    for version, model in enumerate((llama(), newer)):
        engine.push_weights(model.state_dict(), version)
        engine.submit([make_request(number, prompt=prompt) for number in range(8)])
        check_log_probs(model, drain(engine))
        assert (engine.work.prefilled, engine.work.decoded) == (once * (version + 1), 64 * (version + 1))


def test_weights_out_of_reach_leave_the_engine_as_it_was(engine_of, monkeypatch):
    def unmapped(parcel):
        raise Unmapped("mapping of buffer object failed")

    engine, older, newer = engine_of(), llama(), llama(seed=1)
    parcel = SharedMemory().publish(newer.state_dict().items())
    monkeypatch.setattr(InMemory, "open", unmapped)
    with pytest.raises(Unmapped):
        engine.push_weights(parcel, 1)
    monkeypatch.undo()
    for version, model in enumerate((older, newer)):
        engine.push_weights(model.state_dict(), version)
        engine.submit([make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)])
        check_log_probs(model, drain(engine))


def test_non_finite_logits_name_the_request_and_are_fatal(engine_of):
    engine, broken = engine_of("broken"), llama().state_dict()
    engine.submit([make_request(7, plan=LengthPlan(answer_budget=30))])
    engine.poll()
    broken["model.norm.weight"] = torch.full_like(broken["model.norm.weight"], float("nan"))
    engine.push_weights(broken, 1)
    for _ in range(2):
        with pytest.raises(EngineError, match="non-finite logits at token 1 of request 0/7#0, sampled with version 1"):
            engine.poll()


def test_wrong_arguments_name_the_setting(engine_of):
    with pytest.raises(RecipeError, match=r"rollout\.vllm.*no_such_argument"):
        engine_of(settings={"engine_args": {"no_such_argument": 1}})
