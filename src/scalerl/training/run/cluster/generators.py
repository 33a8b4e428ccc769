"""Build the engine of a recipe: in this process, or a fleet of generators in child processes or Ray actors."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scalerl.recipe.choose import entry
from scalerl.recipe.parts import LearnerSettings, ModelSettings, RolloutSettings
from scalerl.recipe.recipe import body_dtype, pushes_adapters
from scalerl.training.models.load import LoadedModel, load_model, name_elsewhere
from scalerl.training.models.lora import merged_weights, wrap
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits, Link
from scalerl.training.remote.weights import Publisher, borrowed
from scalerl.training.rollout import ENGINES
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.rollout.fleet.generator import Generator
from scalerl.training.run.cluster.place import Place


def make_engine(model: LoadedModel, settings: ModelSettings, rollout: RolloutSettings) -> Any:
    """Return an engine that samples from a copy of the model, on the model's device."""
    make = entry(ENGINES, rollout.engine, "rollout.engine")
    if pushes_adapters(settings, rollout):
        model = dataclasses.replace(model, model=wrap(model.model, settings.lora))
    return make(model, rollout, **_arithmetic(settings, gpu=model.device.type == "cuda"))


def _arithmetic(settings: ModelSettings, *, gpu: bool) -> dict[str, Any]:
    """Return the arguments of engines for dtypes and for recording experts."""
    return {
        "dtype": getattr(torch, body_dtype(settings, gpu=gpu)),
        "fp32_head": settings.fp32_head in ("both", "generator"),
        "records_experts": settings.router_replay,
    }


def load_engine(settings: ModelSettings, rollout: RolloutSettings, *, device: str = "") -> Any:
    """Load the model on a device, by default the only one that this process sees, and return an engine with a copy."""
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = target.type == "cuda"
    if gpu and target.index is not None:
        # Otherwise streams, events and graphs of the engine would be on the first GPU.
        torch.cuda.set_device(target)
    model = load_model(
        settings.required_path,
        # Load rounded weights: the first push brings every weight, and the device need not hold FP32 ones until then.
        # Only the frozen weights under adapters are loaded as the learner has them.
        dtype=None if pushes_adapters(settings, rollout) else getattr(torch, body_dtype(settings, gpu=gpu)),
        device=target,
        context=rollout.context,
        trust_remote_code=settings.trust_remote_code,
        bits=settings.lora.bits,
    )
    return make_engine(model, settings, rollout)


def build_fleet(
    model: LoadedModel,
    settings: ModelSettings,
    rollout: RolloutSettings,
    learner: LearnerSettings,
    *,
    place: Place,
    weights: Callable[[], Mapping[str, Any]],
    borrows: bool,
) -> "tuple[Fleet, FleetMeter]":
    """Start the generators of a recipe; they load the model while this returns.

    `weights` returns the learner's weights; with `borrows`, generators on the same machine read the learner's memory.
    `rollout.slots` is the number of slots of all generators together.
    """
    assert rollout.slots is not None
    # Other processes may have another working folder.
    settings = settings.model_copy(update={"path": name_elsewhere(settings.required_path)})
    slots = max(-(-rollout.slots // max(rollout.generators, 1)), 1)
    rollout = rollout.model_copy(update={"slots": slots})
    on_gpu = place.computes_on.type == "cuda"
    num_gpus = rollout.generator_gpus * int(on_gpu)
    gpus = [] if place.on_ray else gpus_of_generators(rollout, num_gpus, first=learner.ranks)
    publish = Publisher(on_ray=place.on_ray, borrow=borrowed if borrows and not place.on_ray else None)
    common: dict[str, Any] = {"weights": weights, "publish": publish}
    if gpus and rollout.engine == "vllm":
        from scalerl.training.rollout.vllm.build import vllm_fleet

        # Engines are checked with the model here, which is older than the weights of ranks that continue a run.
        loaded = merged_weights(model.model)
        fleet = vllm_fleet(
            model,
            rollout,
            **_arithmetic(settings, gpu=on_gpu),
            on_gpu=on_gpu,
            first=weights() if learner.sharding == "none" else loaded,
            num=len(gpus),
            gpus=gpus if num_gpus and rollout.generators else (),
            **common,
        )
    else:
        head: Any = model.model.get_output_embeddings()
        fleet = Fleet(
            _children(settings, rollout, gpus)
            if gpus
            else _actors(settings, rollout, num_gpus=num_gpus, num_cpus=place.cpus_per_generator),
            rollout.generators,
            max_length=rollout.context,
            vocabulary=int(head.weight.shape[0]),
            limits=Limits(silent_s=rollout.silent_s),
            replacements=rollout.max_replacements,
            **common,
        )
    return fleet, FleetMeter(fleet, slots)


def gpus_of_generators(rollout: RolloutSettings, num_gpus: int, *, first: int) -> list[Sequence[int]]:
    """Return the numbers of each generator's GPUs on this machine; the learner has the GPUs before `first`.

    Without rollout.generators, vLLM has the GPUs of rollout.vllm.devices, or shares the learner's.
    """
    num = rollout.generators
    if not num_gpus:
        return [()] * max(num, 1)
    if not num:
        return [rollout.vllm.devices or range(num_gpus)]
    return [range(start, start + num_gpus) for start in range(first, first + num * num_gpus, num_gpus)]


def _children(
    settings: ModelSettings, rollout: RolloutSettings, gpus: Sequence[Sequence[int]]
) -> Callable[[int], Link]:
    """Return a function that starts a generator as a process on this machine, on its GPUs or on the CPU."""
    threads = 1 if gpus[0] else max(torch.get_num_threads() // len(gpus), 1)
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}

    def start(number: int) -> ChildLink:
        device = f"cuda:{gpus[number][0]}" if gpus[number] else "cpu"
        return ChildLink(functools.partial(_generator, settings, rollout, device), variables=variables)

    return start


def _actors(
    settings: ModelSettings, rollout: RolloutSettings, *, num_gpus: int, num_cpus: float
) -> Callable[[int], Link]:
    """Return a function that starts a generator as a Ray actor; actors are spread over the nodes."""
    from scalerl.training.remote.actors import ActorLink, start_actor

    # If vLLM dies, its actor ends and is replaced.
    make = functools.partial(_generator, settings, rollout.model_copy(update={"max_replacements": 0}))

    def start(number: int) -> Link:
        options = {"num_gpus": num_gpus, "num_cpus": num_cpus, "scheduling_strategy": "SPREAD"}
        return ActorLink(start_actor("Generator", **options), make)

    return start


def _generator(settings: ModelSettings, rollout: RolloutSettings, device: str = "") -> Generator:
    """Return a generator; called in its own process, on a device of a child or on those that Ray gave to an actor."""
    assert rollout.slots is not None
    return Generator(load_engine(settings, rollout, device=device), slots=rollout.slots)


@dataclass
class FleetMeter:
    """Measures the work of a fleet in each step, for metrics.jsonl."""

    fleet: Fleet
    slots: int
    """Per generator."""

    def __post_init__(self) -> None:
        self._times = self.fleet.total.times
        self._num_lost = 0

    def row(self) -> dict[str, Any]:
        """Return columns on the generators' work since the last call."""
        before = self._times
        self._times = self.fleet.total.times
        times = self._times - before
        losses = self.fleet.losses[self._num_lost :]
        self._num_lost += len(losses)
        row: dict[str, Any] = {
            "generators/ready": self.fleet.num_ready,
            "generators/slots": self.slots,
            "generators/chunks": times.chunks,
            "generators/busy_s": times.busy_s,
            "generators/active_mean": times.active / max(times.chunks, 1),
            "generators/copy_s": times.copy_s / max(times.copies, 1),
            "generators/lost": len(losses),
        }
        if losses:
            row["lost"] = [
                {
                    "generator": loss.number,
                    "kind": loss.kind,
                    "reason": loss.reason,
                    "requests": loss.num_requests,
                }
                for loss in losses
            ]
        return row
