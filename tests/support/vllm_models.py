"""Models that vLLM runs on a CPU (heads of 32), and engines for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tiny_models import sampled_model
from transformers import LlamaConfig

from scalerl.recipe.parts import VllmSettings
from scalerl.training.remote.peer import Limits
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.rollout.vllm import engine as engine_module
from scalerl.training.rollout.vllm.build import fleet_of
from scalerl.training.rollout.vllm.engine import VllmEngine
from scalerl.training.rollout.vllm.spec import EngineSpec

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
VLLM_MODULES = ("vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")
"""What a process with vLLM imports first, which takes 13 s."""


def llama(*, tied: bool = False, seed: int = 0) -> Any:
    """Return a random Llama in FP32."""
    return sampled_model(LlamaConfig(**SHAPE, tie_word_embeddings=tied), seed)


def spec(model: Any, *, slots: int = 4, stop_tokens: tuple[int, ...] = (), **changes: Any) -> Any:
    settings = VllmSettings(**changes.pop("settings", {}))
    model.config.architectures = [type(model).__name__]
    return EngineSpec(
        config=model.config.to_json_string(),
        slots=slots,
        context=changes.pop("context", 64),
        stop_tokens=tuple(stop_tokens),
        settings=settings,
        **changes,
    )


def engine_on(
    cores: dict[str, Any], spec: EngineSpec, weights: Mapping[str, Any], version: int, *others: Any
) -> VllmEngine:
    """Return an engine in this process with these weights, on the vLLM of an earlier one with equal settings.

    vLLM starts slowly. It knows neither versions nor stop tokens, and forgets requests, prompts and weights before the
    next engine. `others` are settings that are not in the spec.
    """
    key = repr((replace(spec, stop_tokens=()), others))
    if key in cores:
        core = cores[key].engine_core.engine_core
        core.abort_requests(list(core.scheduler.requests))
        while core.scheduler.has_requests() or core.batch_queue:
            core.step_fn()
        assert core.reset_prefix_cache()
    with pytest.MonkeyPatch.context() as patch:
        if key in cores:
            patch.setattr(engine_module, "build_vllm", lambda spec: cores[key])
        engine = VllmEngine(spec)
    cores[key] = engine.vllm
    engine.push_weights(weights, version)
    return engine


def started(model: Any, num: int = 1, *, limits: Limits | None = None, replacements: int = 0, **changes: Any) -> Fleet:
    """Start engines of a model in child processes and wait for them; by default one that is lost ends the fleet."""
    fleet = fleet_of(
        [spec(model, **changes)] * num,
        vocabulary=SHAPE["vocab_size"],
        limits=limits or Limits(silent_s=10.0),
        replacements=replacements,
    )
    try:
        fleet.wait_ready()
        fleet.push_weights(model.state_dict(), 0)
    except BaseException:
        fleet.close()
        raise
    return fleet


def pids_of(fleet: Fleet) -> list[int]:
    return [pid or 0 for pid in fleet.pids]
