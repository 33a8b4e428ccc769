"""Weights through CUDA IPC into another process, and the FP32 head there; needs a GPU and no vLLM."""

import multiprocessing

import pytest
import torch
from cuda_receiver import receive

from scalerl.remote.weights import OnGpu
from scalerl.rl.logprobs import head_logits

pytestmark = pytest.mark.gpu
VOCABULARY, HIDDEN = 1000, 256


def test_weights_arrive_and_the_head_has_the_learners_values():
    torch.manual_seed(0)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs, VOCABULARY, HIDDEN), daemon=True)
    process.start()
    weights = {
        "body": torch.randn(HIDDEN, HIDDEN, device="cuda"),
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN, device="cuda"),
    }
    states = torch.randn(64, HIDDEN).bfloat16()
    for _ in range(10):
        for weight in weights.values():
            weight.add_(0.01 * torch.randn_like(weight))  # in place, as a learner does
        ours.send((OnGpu(weights), states))
        tensors, body, logits, rounded = ours.recv()
        assert all(torch.equal(tensors[name], weight.cpu()) for name, weight in weights.items())
        assert torch.equal(body, weights["body"].bfloat16().cpu())
        expected = head_logits(states.cuda(), weights["lm_head.weight"], fp32=True).float().cpu()
        scale = expected.abs().max()
        assert (logits - expected).abs().max() <= 1e-6 * scale
        assert (rounded - expected).abs().max() > 1e-4 * scale
    ours.send(None)
    process.join(30)
    assert process.exitcode == 0
