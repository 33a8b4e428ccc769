"""Build vLLM engines from a recipe's rollout settings: a fleet of child processes that run vLLM."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from scalerl.recipe.parts import RolloutSettings
from scalerl.training.models.load import LoadedModel
from scalerl.training.models.lora import merged_weights
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits
from scalerl.training.remote.weights import Publisher, borrowed
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.rollout.fleet.generator import Generator
from scalerl.training.rollout.vllm.check import check_engine
from scalerl.training.rollout.vllm.install import require_vllm
from scalerl.training.rollout.vllm.spec import EngineSpec, engine_arguments, environment, visible_devices


def build_engine(model: LoadedModel, settings: RolloutSettings, **others: Any) -> Fleet:
    """Return one vLLM engine with a copy of the model; it is replaced if it dies."""
    weights = merged_weights(model.model)
    on_gpu = model.device.type == "cuda"
    return vllm_fleet(
        model,
        settings,
        on_gpu=on_gpu,
        first=weights,
        publish=Publisher(borrow=borrowed),
        weights=lambda: weights,
        **others,
    )


def vllm_fleet(
    model: LoadedModel,
    settings: RolloutSettings,
    *,
    dtype: torch.dtype,
    fp32_head: bool,
    on_gpu: bool,
    first: Mapping[str, Any],
    records_experts: bool = False,
    num: int = 1,
    gpus: Sequence[Sequence[int]] = (),
    **others: Any,
) -> Fleet:
    """Start vLLM engines, push the model's weights, `first`, and return the engines after they pass their check.

    vLLM reads the model's configuration, not its files. `gpus` are the numbers of each engine's GPUs, by default those
    of rollout.vllm.devices. `others` are arguments of the fleet.
    """
    assert settings.slots is not None, "training/run/parts.py has chosen the number of slots"
    if not settings.vllm.python:
        require_vllm()  # another interpreter checks this in the child
    spec = EngineSpec(
        config=model.model.config.to_json_string(),
        slots=settings.slots,
        context=settings.context,
        stop_tokens=tuple(model.stop_tokens),
        dtype=str(dtype).removeprefix("torch."),
        fp32_head=fp32_head,
        on_gpu=on_gpu,
        settings=settings.vllm,
        names=frozenset(first),
        records_experts=records_experts,
    )
    fleet = fleet_of(
        [_on(spec, each) for each in gpus or [()] * num],
        vocabulary=int(model.model.config.get_text_config().vocab_size),
        limits=Limits(silent_s=settings.silent_s),
        replacements=settings.max_replacements,
        **others,
    )
    with ExitStack() as opened:
        opened.callback(fleet.close)
        fleet.wait_ready()
        fleet.push_weights(first, 0)
        quantised = bool(settings.vllm.quantisation)
        with fleet.paused():  # the work of the check does not count as training
            check_engine(
                fleet, model, first, context=settings.context, quantised=quantised, records_experts=records_experts
            )
        opened.pop_all()
    return fleet


def _on(spec: EngineSpec, gpus: Sequence[int]) -> EngineSpec:
    return replace(spec, settings=spec.settings.model_copy(update={"devices": tuple(gpus)})) if gpus else spec


def fleet_of(
    specs: Sequence[EngineSpec],
    *,
    vocabulary: int,
    publish: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **others: Any,
) -> Fleet:
    """Start an engine for each spec; a wrong setting raises an error at once."""
    for spec in specs:
        engine_arguments(spec)
    return Fleet(
        lambda number: start(specs[number]),
        len(specs),
        max_length=specs[0].context,
        vocabulary=vocabulary,
        publish=publish or Publisher(),
        **others,
    )


def start(spec: EngineSpec) -> ChildLink:
    """Start a process that runs vLLM."""
    variables = environment(on_gpu=spec.on_gpu, compiled=spec.settings.engine_args.get("enforce_eager") is False)
    if (visible := visible_devices(spec.settings, os.environ, learner=0 if spec.on_gpu else None)) is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    make = functools.partial(_generator, spec)
    return ChildLink(make, python=spec.settings.python, variables=variables, has_log=True)


def _generator(spec: EngineSpec) -> Generator:
    require_vllm()
    from scalerl.training.rollout.vllm.engine import VllmEngine

    return Generator(VllmEngine(spec), slots=spec.slots)
