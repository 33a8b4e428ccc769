"""Weights through CUDA IPC into another process, and the FP32 head there; needs a GPU and no vLLM."""

import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest
import torch
from cuda_receiver import receive
from until import wait_until

from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits, Peer
from scalerl.training.remote.weights import OnGpu
from scalerl.training.rl.logprobs import head_logits

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


class Summing:
    """An object in another process that reads weights where they are."""

    def facts(self) -> int:
        return os.getpid()

    def total(self, parcel: OnGpu) -> float:
        return sum(float(tensor.sum()) for tensor in parcel.values())

    def close(self) -> None: ...


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_later_child_maps_what_an_earlier_one_has_mapped(ending: str):
    """The end of a child removes its shared memory, and not the driver's, which has CUDA's events."""
    weights = {str(number): torch.full((3,), float(number), device="cuda") for number in range(20)}
    for _ in range(4):
        child = Peer(ChildLink(Summing), limits=Limits(silent_s=60.0), news=threading.Event())
        try:
            pid = _answer(child)
            child.send("total", OnGpu(weights))
            assert _answer(child) == 3.0 * sum(range(20))
            if ending == "killed":
                os.kill(pid, signal.SIGKILL)
        finally:
            child.kill()


def _answer(child: Peer) -> Any:
    _, value = wait_until(child.receive)
    return value
