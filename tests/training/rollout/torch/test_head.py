"""The generator's head beside a bf16 body has the learner's FP32 values, not rounded ones."""

import pytest
import torch
from tiny_models import sampled_model

from scalerl.training.rollout.torch.body import own_copy
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.rollout.torch.head import OutputHead

# A hidden state of one-hot rows gives the head's own values back.
EYE = torch.eye(32, dtype=torch.bfloat16)


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
@pytest.mark.parametrize("named", ["state_dict", "parameters"])
def test_pushed_fp32_head_is_exact_under_a_bf16_body(family, named):
    model = sampled_model(family)
    engine = TorchEngine(model, slots=2, max_length=64, stop_tokens=(), dtype=torch.bfloat16)
    head = engine.decoder.head
    assert torch.equal(head.logits(EYE).T, model.lm_head.weight)
    assert not torch.equal(model.lm_head.weight.bfloat16().float(), model.lm_head.weight)
    newer = sampled_model(family, seed=1)
    weights = newer.state_dict() if named == "state_dict" else dict(newer.named_parameters())
    engine.push_weights(weights, 1)
    assert torch.equal(head.logits(EYE).T, newer.lm_head.weight)
    assert torch.equal(engine.weights["lm_head.weight"], newer.lm_head.weight.bfloat16())


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_without_fp32_the_head_is_rounded(family):
    model = sampled_model(family)
    head = OutputHead(own_copy(model, dtype=torch.bfloat16, device=None), model, fp32=False)
    for source in (model, sampled_model(family, seed=1)):
        head.update(source.state_dict())
        assert torch.equal(head.logits(EYE).T, source.lm_head.weight.bfloat16().float())


def test_a_bias_follows_too():
    def biased(seed):
        model = sampled_model("llama", seed)
        model.lm_head = torch.nn.Linear(32, 64)
        return model

    model, newer = biased(0), biased(1)
    head = OutputHead(own_copy(model, dtype=torch.bfloat16, device=None), model, fp32=True)
    hidden = torch.randn(3, 32).bfloat16()
    for source in (model, newer):
        head.update(source.state_dict())
        torch.testing.assert_close(head.logits(hidden), source.lm_head(hidden.float()).detach())


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_gpu_pushed_fp32_head_is_not_rounded(family):
    engine = TorchEngine(
        sampled_model(family), slots=2, max_length=64, stop_tokens=(), dtype=torch.bfloat16, device="cuda"
    )
    newer = sampled_model(family, seed=1)
    engine.push_weights(newer.state_dict(), 1)
    with torch.inference_mode():
        logits = engine.decoder.head.logits(EYE.cuda()).T.cpu()
    torch.testing.assert_close(logits, newer.lm_head.weight.detach(), rtol=2.0**-15, atol=0)
