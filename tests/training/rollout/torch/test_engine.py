"""The torch engine: both contracts over the model families and both bodies, and what is its own."""

import copy
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.engine import *  # noqa: F403
from contracts.requests import by_key, drain, make_request, mixed_requests
from contracts.sampling import *  # noqa: F403
from contracts.sampling import check_log_probs
from tiny_models import SAMPLED, sampled_model
from torch.utils._python_dispatch import TorchDispatchMode

from scalerl.errors import EngineError
from scalerl.training.rollout.torch.body import FusedBody
from scalerl.training.rollout.torch.cache import SlotCache
from scalerl.training.rollout.torch.decoder import Decoder
from scalerl.training.rollout.torch.engine import TorchEngine, pass_tokens
from scalerl.training.rollout.torch.layout import HalvedRows
from scalerl.training.types import Completion, LengthPlan

BODIES = [*((family, True) for family in SAMPLED), ("llama-no-groups", False), ("qwen3", False)]


@pytest.fixture
def body():
    """A family, and whether to run it fused. Most of the contract is about requests, not models: one will do."""
    return "llama", True


@pytest.fixture
def halved_rows(monkeypatch):
    """As on a GPU, but down to one row."""
    halved = lambda slots, *, max_length, **_: HalvedRows(slots, max_length=max_length, least_rows=1)  # noqa: E731
    monkeypatch.setattr("scalerl.training.rollout.torch.decoder.RowLayout", halved)


@pytest.fixture
def model(body):
    return sampled_model(body[0])


@pytest.fixture
def new_weights(body):
    return sampled_model(body[0], seed=1).state_dict()


@pytest.fixture
def make_engine(model, body):
    def make(*, slots=4, stop_tokens=(), version=0):
        return TorchEngine(
            model, slots=slots, max_length=64, stop_tokens=stop_tokens, version=version, chunk=8, fused=body[1]
        )

    return make


def engine_of(model, **changes):
    """A small engine of a model, or of one of a family."""
    model = sampled_model(model) if isinstance(model, str) else model
    return TorchEngine(model, **{"slots": 4, "max_length": 64, "stop_tokens": ()} | changes)


@pytest.mark.parametrize("body", BODIES, ids=lambda pair: f"{pair[0]}-{'fused' if pair[1] else 'general'}")
def test_every_family_samples_with_the_models_own_log_probs(make_engine, model, new_weights):
    engine = make_engine(slots=5, stop_tokens=(3,))
    requests = mixed_requests(12)
    engine.submit(requests)
    check_log_probs(model, drain(engine))
    engine.push_weights(new_weights, 1)
    engine.submit(requests)
    model.load_state_dict(new_weights)
    check_log_probs(model, drain(engine))


@pytest.mark.usefixtures("halved_rows")
def test_halved_rows_sample_the_same(make_engine, model, monkeypatch):
    sent, send, sizes, launch = [], Decoder.send, set(), Decoder.launch
    monkeypatch.setattr(
        Decoder, "send", lambda self, *each: (sent.append(each[0].flags.c_contiguous), send(self, *each))[1]
    )
    monkeypatch.setattr(Decoder, "launch", lambda self, chunk: (launch(self, chunk), sizes.add(self.num_rows))[0])
    engine = make_engine(slots=8, stop_tokens=(3,))
    engine.submit(mixed_requests(20))
    completions = engine.poll()
    with engine.paused():
        engine.submit([make_request(number + 50) for number in range(6)])
        completions += drain(engine)
    check_log_probs(model, completions + drain(engine))
    assert all(sent), "a GPU waits for a copy from memory in another order"
    assert len(sizes) > 2


def places(thing: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return where each tensor lies that an object holds, by the names that lead to it."""
    if isinstance(thing, torch.Tensor):
        return {path: thing.data_ptr()}
    inner = thing if isinstance(thing, Mapping) else dict(enumerate(thing)) if isinstance(thing, list | tuple) else None
    if inner is None:
        is_ours = type(thing).__module__.startswith("scalerl.training.rollout.torch")
        inner = getattr(thing, "__dict__", {}) if is_ours else {}
    found = [places(value, (*path, str(name))) for name, value in inner.items()]
    return {name: place for each in found for name, place in each.items()}


def test_what_a_recorded_graph_reads_stays_in_its_place(make_engine, new_weights):
    """A CUDA graph reads the same memory at every replay, whatever was pushed or put aside since."""
    engine = make_engine(slots=5)
    before = places(engine)
    assert {path[0] for path in before} >= {"weights", "decoder"}
    assert len(before) > 20
    engine.submit(mixed_requests(12))
    engine.poll()
    engine.push_weights(new_weights, 1)
    with engine.paused():
        engine.submit([make_request(50)])
        drain(engine)
    drain(engine)
    after = places(engine)
    assert {path: after.get(path) for path in before} == before


def test_general_body_runs_where_the_fused_cannot():
    assert all(FusedBody.fits(sampled_model(family)) for family in SAMPLED)
    model = sampled_model("llama")
    model.config.rope_parameters["rope_type"] = "dynamic"
    assert not FusedBody.fits(model)
    model.config.model_type = "other"
    assert not FusedBody.fits(model)


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_the_chunk_changes_nothing_but_the_pace(chunk):
    model, requests = sampled_model("llama"), mixed_requests(10)
    results = []
    for size in (8, chunk):
        engine = engine_of(model, stop_tokens=(3, 9), chunk=size)
        engine.submit(requests)
        results.append(by_key(drain(engine)))
    for key, expected in results[0].items():
        assert results[1][key].tokens.tolist() == expected.tokens.tolist()
        assert results[1][key].forced.tolist() == expected.forced.tolist()


def test_launching_ahead_only_delays_new_weights():
    """As on a GPU, where the next chunk is under way before a poll returns."""
    model, newer, requests = sampled_model("llama"), sampled_model("llama", seed=1), mixed_requests(10)
    results = []
    for ahead in (False, True):
        engine = engine_of(model, stop_tokens=(3, 9), chunk=4)
        engine.launches_ahead = ahead
        engine.submit(requests)
        results.append(by_key(drain(engine)))
        engine.push_weights(newer.state_dict(), 1)
        engine.submit([make_request(plan=LengthPlan(answer_budget=16))])
        completions = engine.poll()
        engine.push_weights(newer.state_dict(), 2)
        (completion,) = completions + drain(engine)
        num_older = 8 if ahead else 4
        assert completion.versions.tolist() == [1] * num_older + [2] * (len(completion) - num_older)
    assert results[0] == results[1]


def test_non_finite_logits_name_the_request_and_are_fatal():
    model = sampled_model("llama")
    engine = engine_of(model, chunk=8)
    engine.submit([make_request(7, plan=LengthPlan(answer_budget=30))])
    engine.poll()
    broken = model.state_dict()
    broken["model.norm.weight"] = torch.full_like(broken["model.norm.weight"], float("nan"))
    engine.push_weights(broken, 1)
    for _ in range(2):
        with pytest.raises(EngineError, match="non-finite logits at token 8 of request 0/7#0, sampled with version 1"):
            engine.poll()


def test_any_failure_on_the_device_is_an_engine_error(monkeypatch):
    engine = engine_of("llama")
    engine.submit([make_request()])

    def fail(chunk):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine.decoder, "launch", fail)
    for _ in range(2):
        with pytest.raises(EngineError, match="the torch engine failed: RuntimeError: out of memory"):
            engine.poll()


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_pushed_weights_are_all_or_none(family):
    model = sampled_model(family)
    engine = engine_of(model)
    weights = model.state_dict()
    with pytest.raises(ValueError, match="has no weight"):
        engine.push_weights({**weights, "extra": torch.zeros(1)}, 1)
    with pytest.raises(ValueError, match=r"model.norm.weight is missing"):
        engine.push_weights({name: weight for name, weight in weights.items() if name != "model.norm.weight"}, 1)
    with pytest.raises(ValueError, match=r"model.norm.weight is \(3,\), not \(32,\)"):
        engine.push_weights({**weights, "model.norm.weight": torch.zeros(3)}, 1)
    assert engine.version == 0
    engine.push_weights(dict(model.named_parameters()), 1)  # Without the name of a tied head, and with gradients on.
    assert engine.version == 1


def test_training_goes_on_beside_the_engine():
    """The copy neither keeps gradients nor stops the learner's."""
    model = sampled_model("llama-tied")
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    engine = engine_of(model)
    engine.submit([make_request()])
    drain(engine)
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    assert model.config._attn_implementation != "scalerl_slots"
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's remark on a CPU without bf16 products
@pytest.mark.parametrize("family", ["llama", "llama-tied"])
@pytest.mark.parametrize("fp32_head", [True, False])
def test_a_bf16_engine_of_an_fp32_learner_follows_its_updates(family, fp32_head):
    model = sampled_model(family)
    engine = engine_of(model, dtype=torch.bfloat16, fp32_head=fp32_head)
    for version in (0, 1):
        if version:
            weights = sampled_model(family, seed=1).state_dict()
            model.load_state_dict(weights)
            engine.push_weights(weights, version)
        rounded = copy.deepcopy(model)
        for parameter in rounded.parameters():
            parameter.data = parameter.data.bfloat16()
        engine.submit([make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)])
        for completion in drain(engine):
            tokens = torch.tensor([[*completion.request.prompt_tokens, *completion.tokens.tolist()]])
            with torch.no_grad():
                hidden = rounded.model(tokens).last_hidden_state[0]
                exact, coarse = model.lm_head.weight, rounded.lm_head.weight
                logits = hidden.float() @ exact.T if fp32_head else (hidden @ coarse.T).float()
            expected = torch.log_softmax(logits, dim=-1)[2:-1].gather(1, tokens[0, 3:, None])[:, 0].numpy()
            # bf16 rounds differently along other shapes; a head or body of the wrong version is off by whole units.
            assert np.abs(completion.log_probs - expected).mean() < 0.15


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", {"max_length": 257}, "a context of 257 tokens is longer than the 256 of LlamaForCausalLM"),
        ("mistral", {"max_length": 33}, "window is 32 tokens, shorter than the context of 33"),
    ],
)
def test_unsupported_settings_are_refused(family, change, message):
    model = sampled_model(family)
    model.config.sliding_window = 32
    engine_of(model, max_length=32)
    with pytest.raises(ValueError, match=message):
        engine_of(model, **change)


def long_and_short_requests(num_rounds=1):
    """Contexts so far apart that a CPU's rows trade places, and prompts that share a pass, or take one alone."""
    lengths = (3, 150, 9, 80, 5, 200, 130, 4, 70, 2, 160, 30) * num_rounds
    rng = np.random.default_rng(0)
    return [
        make_request(number, prompt=rng.integers(0, 64, length), plan=LengthPlan(answer_budget=2 + 3 * (number % 12)))
        for number, length in enumerate(lengths)
    ]


def test_a_prompt_goes_where_its_slot_lies():
    model = sampled_model("llama")
    engine = engine_of(model, slots=6, max_length=240, chunk=4)
    engine.submit(long_and_short_requests())
    check_log_probs(model, drain(engine))


def make_cache(*, layers: int, slots: int, max_length: int, head_dim: int, prompt_tokens: int) -> SlotCache:
    config = SimpleNamespace(num_hidden_layers=layers, num_attention_heads=1, head_dim=head_dim)
    sizes = {"slots": slots, "max_length": max_length, "prompt_tokens": prompt_tokens}
    return SlotCache(config, **sizes, dtype=torch.float32, device=torch.device("cpu"))


def test_masks_of_a_long_context_need_little_memory():
    """A table of all of them would have as many numbers as the square of the context: 68 GB here."""
    cache = make_cache(layers=1, slots=1, max_length=131_072, head_dim=1, prompt_tokens=1)
    position = torch.tensor([0, 3, 7, 131_071])
    mask = cache.mask(position, 8)
    assert mask.shape == (4, 1, 1, 8)
    expected = torch.where(torch.arange(8) > position[:, None], -torch.inf, 0.0)
    assert torch.equal(mask[:, 0, 0], expected)


def test_prompt_of_many_slots_is_copied_in_parts():
    """The completions of a group share a prompt: all of them at once would be the cache once more."""
    cache = make_cache(layers=2, slots=12, max_length=8, head_dim=4, prompt_tokens=16)
    computed = cache.computed(2, 8)
    computed.normal_()
    rows, slots = torch.tensor([0, 1] * 5), torch.randperm(10)
    with Largest() as seen:
        cache.keep(computed, rows, slots)
    assert seen.numel == computed.numel()
    for row, slot in zip(rows, slots, strict=True):
        for layer in range(2):
            assert torch.equal(cache.keys[layer][slot], computed[0, layer, row])
            assert torch.equal(cache.values[layer][slot], computed[1, layer, row])
    assert not any(stored[10:].any() for stored in (*cache.keys, *cache.values))


class Largest(TorchDispatchMode):
    """Records the largest result of index_select."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index_select.default:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.gpu
@pytest.mark.parametrize(("slots", "graphs"), [(16, True), (16, False), (128, True)])
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3"])
def test_on_a_gpu_completions_have_the_models_log_probs(family, slots, graphs):
    """From 128 slots on, a step computes half of the rows when few are in use."""
    model, requests = sampled_model(family), mixed_requests(40 if slots == 16 else 150)
    engine = engine_of(model, slots=slots, stop_tokens=(3,), device="cuda", cuda_graphs=graphs)
    for version in (0, 1):
        engine.submit(requests)
        check_log_probs(model, drain(engine), atol=1e-3)
        weights = sampled_model(family, seed=1).state_dict()
        model.load_state_dict(weights)
        engine.push_weights(weights, version + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3"])
def test_on_a_gpu_prompts_of_any_length_are_computed_by_graphs(family, monkeypatch):
    """From the second time that a width is met; the longest are longer than a pass."""
    met, pass_over_prompts = Counter(), Decoder.run_prompts
    monkeypatch.setattr(
        Decoder, "run_prompts", lambda self, shape: (met.update([shape]), pass_over_prompts(self, shape))
    )
    model = sampled_model(family)
    engine = engine_of(model, slots=6, max_length=240, device="cuda", prefill_tokens=100)
    engine.submit(long_and_short_requests(num_rounds=3))
    check_log_probs(model, drain(engine), atol=1e-3)
    again = {shape for shape, times in met.items() if times > 1}
    assert {shape for shape in engine.decoder.graphs or () if isinstance(shape, tuple)} == again
    assert len({width for _, width in again}) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_a_completion_does_not_depend_on_its_batch(dtype):
    model, requests = sampled_model("qwen3"), mixed_requests(40)
    engine = engine_of(model, slots=16, stop_tokens=(3,), device="cuda", dtype=dtype)
    engine.submit(requests)
    together = by_key(drain(engine))
    for request in requests[::4]:
        engine.submit([request])
        (completion,) = drain(engine)
        assert completion.tokens.tolist() == together[request.key].tokens.tolist()


@pytest.mark.parametrize(("polls_before", "chunk"), [(1, 8), (2, 2), (5, 2)])
def test_pause_collects_the_chunk_that_was_launched_ahead(model, new_weights, polls_before, chunk):
    """As on a GPU, where a chunk is under way between two polls: its tokens count, and none is sampled twice."""

    def sampled(*, pause: bool) -> list[Completion]:
        engine = engine_of(model, chunk=chunk)
        engine.launches_ahead = True
        engine.submit(mixed_requests(10))
        polls = [engine.poll() for _ in range(polls_before)]
        engine.push_weights(new_weights, 1)
        if pause:
            with engine.paused():
                engine.submit([make_request(number + 50) for number in range(9)])
                assert len(drain(engine)) == 9
        while engine.num_pending:
            polls.append(engine.poll())
        return [completion for poll in polls for completion in poll]

    undisturbed, paused = sampled(pause=False), sampled(pause=True)
    assert by_key(paused) == by_key(undisturbed)
    assert [completion.request.key for completion in paused] == [completion.request.key for completion in undisturbed]


@pytest.mark.parametrize(
    ("num_params", "expected"), [(1e6, 4096), (135e6, 4096), (1.54e9, 512), (3.21e9, 256), (8.03e9, 256), (70e9, 256)]
)
def test_passes_over_prompts_shrink_with_the_model(num_params, expected):
    assert pass_tokens(int(num_params)) == expected
