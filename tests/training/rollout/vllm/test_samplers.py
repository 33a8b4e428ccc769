"""The sampler inside vLLM chooses the tokens of our own sampling."""

import numpy as np
import pytest
import torch
from contracts.requests import make_request, mixed_requests

from scalerl.training.rollout.noise import uniforms
from scalerl.training.rollout.progress import SlotProgress
from scalerl.training.rollout.sampling import sample
from scalerl.training.rollout.vllm.choice import KEY, NOT_FINITE, RowSettings, SamplerRequest, leave_one_choice

SamplingParams = pytest.importorskip("vllm").SamplingParams
BatchUpdate = pytest.importorskip("vllm.v1.sample.logits_processor").BatchUpdate
samplers = pytest.importorskip("scalerl.training.rollout.vllm.samplers")
CPU = torch.device("cpu")


def params(request):
    return SamplingParams(extra_args={KEY: SamplerRequest.of(request)})


def logits_of(request, count):
    """Return the logits of an imaginary model, which depend on the request and its number of tokens."""
    return torch.randn(64, generator=torch.Generator().manual_seed(1000 * request.seed + count)) * 2


class Runner:
    def __init__(self, requests):
        self.sampler, self.outputs = samplers.OwnSampler(None, CPU, False), [[] for _ in requests]
        pairs = enumerate(zip(requests, self.outputs, strict=True))
        added = [(row, params(request), [1], output) for row, (request, output) in pairs]
        self.update = BatchUpdate(batch_size=len(requests), removed=[], added=added, moved=[])

    def step(self, logits):
        self.sampler.update_state(self.update)
        self.update = None
        left = self.sampler.apply(logits.clone())
        for output, token in zip(self.outputs, left.argmax(dim=-1).tolist(), strict=True):
            output.append(token)
        return left


def test_sampler_chooses_the_tokens_of_our_own_sampling():
    requests = mixed_requests(24)
    requests += [make_request(100 + number, temperature=heat, top_p=0.6) for number, heat in enumerate((0.0, 1.0))]
    runner = Runner(requests)
    progress = SlotProgress(len(requests), ())
    progress.start(list(range(len(requests))), [request.length for request in requests])
    settings = RowSettings.of([SamplerRequest.of(request) for request in requests], CPU)
    num_forced = 0
    for count in range(max(request.length.max_tokens for request in requests)):
        logits = torch.stack([logits_of(request, count) for request in requests])
        forced = progress.forced(1)[0]
        tokens, log_probs = sample(
            logits,
            torch.from_numpy(uniforms(settings.seeds, np.array(count))),
            settings.temperature,
            top_p=settings.top_p,
            greedy=settings.greedy,
        )
        expected = np.where(forced >= 0, forced, tokens.numpy())
        active = progress.active.copy()
        left = runner.step(logits)
        assert (torch.isfinite(left).sum(dim=1) == 1).all()
        assert left.argmax(dim=-1).numpy()[active].tolist() == expected[active].tolist()
        kept = torch.from_numpy(active & (forced < 0))
        assert torch.equal(left.amax(dim=-1)[kept], log_probs[kept])
        num_forced += int((forced >= 0)[active].sum())
        progress.apply(expected[None])
    assert num_forced > 10


def test_rows_of_other_requests_are_left_alone():
    request, logits = make_request(1), torch.randn(3, 64)
    first = samplers.OwnSampler(None, CPU, False)
    added = [(0, SamplingParams(), [1], []), (1, params(request), [1], []), (2, SamplingParams(), [1], [])]
    first.update_state(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    left = first.apply(logits.clone())
    assert torch.equal(left[[0, 2]], logits[[0, 2]])
    assert torch.isfinite(left[1]).sum() == 1
    assert not first.is_argmax_invariant()


def test_logits_that_are_not_finite_are_reported():
    logits = torch.full((1, 64), float("nan"))
    settings = RowSettings.of([SamplerRequest.of(make_request())], CPU)
    assert leave_one_choice(logits, settings, np.array([0])).amax() == NOT_FINITE
