"""vLLM on a GPU, as a run uses it: pytest -m "gpu and vllm" tests/training/rollout/vllm."""

import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.requests import by_key, drain, mixed_requests
from tiny_models import chosen_experts
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig
from vllm_models import pids_of

from scalerl.errors import EngineError
from scalerl.recipe.parts import RolloutSettings, VllmSettings
from scalerl.training.models.load import LoadedModel
from scalerl.training.rollout import ENGINES
from scalerl.training.rollout.vllm.check import check_engine

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]
CONTEXT, SLOTS, CACHE = 128, 64, 4 << 30


SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


def loaded_on_gpu(config):
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    config.architectures = [type(model).__name__]
    tokenizer: Any = None
    model = model.to("cuda").eval()
    return LoadedModel(model=model, tokenizer=tokenizer, stop_tokens=(3, 9), context=CONTEXT, device=model.device)


def build(name, loaded, **others):
    # A cache of given size: vLLM measures none, and does not mind what tests beside this one allocate.
    vllm = VllmSettings(memory_share=0.1, engine_args={"enforce_eager": True, "kv_cache_memory_bytes": CACHE})
    settings = RolloutSettings(slots=SLOTS, context=CONTEXT, vllm=vllm, max_replacements=0)
    return ENGINES[name](loaded, settings, dtype=torch.bfloat16, fp32_head=True, **others)


def poll_for(seconds, engine):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        engine.poll()
        time.sleep(0.05)


def used_bytes():
    free, total = torch.cuda.mem_get_info()
    return total - free


def test_vllm_returns_the_experts_of_its_tokens():
    """Those that transformers chooses, where rounding to bf16 does not decide."""
    loaded = loaded_on_gpu(Qwen3MoeConfig(**SHAPE, **EXPERTS, initializer_range=0.1))
    vllm = build("vllm", loaded, records_experts=True)
    vllm.submit(mixed_requests(64, longest=40))
    differs = []
    for completion in drain(vllm):
        own = chosen_experts(loaded.model, completion).reshape(-1, 2, 2)
        experts = completion.experts
        assert experts is not None
        assert experts.shape == (len(own), 4)
        differs.append((np.sort(own) != np.sort(experts.reshape(-1, 2, 2))).any(axis=-1).reshape(-1))
    vllm.close()
    assert np.concatenate(differs).mean() < 0.1


def test_vllm_samples_as_torch_and_frees_the_gpu_when_killed():
    loaded = loaded_on_gpu(LlamaConfig(**SHAPE))
    vllm, ours = build("vllm", loaded), build("torch", loaded)
    requests = mixed_requests(256, longest=40)
    results = []
    for engine in (ours, vllm):
        engine.submit(requests)
        results.append(by_key(drain(engine)))
    equal = [key for key, one in results[0].items() if one.tokens.tolist() == results[1][key].tokens.tolist()]
    assert len(equal) > 0.5 * len(requests)  # bf16 bodies round differently
    for key in equal:
        one, other = results[0][key], results[1][key]
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=0.1)
        assert (one.finish, one.interrupted_at) == (other.finish, other.interrupted_at)

    # A pause in the middle of answers changes none of them, and answers inside it are those of an idle engine.
    vllm.submit(requests)
    interrupted = vllm.poll()
    with vllm.paused():
        vllm.submit([replace(request, group=f"inside/{request.group}") for request in requests[:8]])
        inside = by_key(drain(vllm))
    after = by_key([*interrupted, *drain(vllm)])
    same = [key for key, one in results[1].items() if one.tokens.tolist() == after[key].tokens.tolist()]
    assert (len(after), len(inside)) == (len(requests), 8)
    assert len(same) > 0.5 * len(requests)

    # Pushes in the middle of answers: in place, as a learner does, and the engine is the learner's afterwards.
    vllm.submit(requests)
    mixed, version = [], 0
    while vllm.num_pending:
        mixed += vllm.poll()
        if version < 3 and vllm.work.decoded:
            version += 1
            with torch.no_grad():
                for weight in loaded.model.parameters():
                    weight.add_(0.01 * torch.randn_like(weight))
            vllm.push_weights(dict(loaded.model.named_parameters()), version)
    assert sum(len(set(one.versions.tolist())) > 1 for one in mixed) > 0
    assert check_engine(vllm, loaded, dict(loaded.model.named_parameters()), context=CONTEXT) < 1e-3

    alive = used_bytes()
    os.kill(pids_of(vllm)[0], signal.SIGKILL)
    with pytest.raises(EngineError, match="SIGKILL"):
        poll_for(10.0, vllm)
    for _ in range(100):
        if alive - used_bytes() > CACHE / 2:
            break
        time.sleep(0.1)
    assert alive - used_bytes() > CACHE / 2
    ours.close()
    vllm.close()
