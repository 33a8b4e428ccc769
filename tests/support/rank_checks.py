"""What two and four ranks must give, checked inside them: run by tests/training/learner/test_ranks.py for each.

Each check runs on every rank, against a learner that has the whole model and batch in its own process.
"""

import datetime
import functools
import itertools
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from batches import VERSION, random_batch
from learners import foreseeing, gradients_of, recipe_of
from tiny_models import tiny_model

from scalerl.training.learner import torch_learner
from scalerl.training.learner.ranks.sharded import ShardedPolicy, device_mesh
from scalerl.training.learner.state import local
from scalerl.training.learner.step import TorchLearner
from scalerl.training.learner.team import Team
from scalerl.training.models.lora import wrap
from scalerl.training.run.learners import learner_settings
from scalerl.training.types import Batch


def exact_norms(model):
    """Make norms compute in the model's own dtype: those of transformers round to FP32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(
                lambda norm, values: torch.nn.functional.rms_norm(
                    values, norm.weight.shape, norm.weight, norm.variance_epsilon
                ),
                module,
            )
    return model


DEVICE = torch.device("cpu")
"""Where the checks of this process compute; `work` sets it."""


def num_local(rank):
    """The trained numbers that a rank holds; called in its process."""
    return sum(local(parameter).numel() for parameter in rank.learner.policy.parameters.values())


def settings_of(*overrides):
    return learner_settings(recipe_of(*overrides), gpu=False)


def alone(family, dtype, overrides):
    """A learner in this process, with the whole batch."""
    settings = settings_of(*overrides)
    model = exact_norms(tiny_model(family, dtype=dtype)).to(DEVICE)
    torch.manual_seed(0)
    learner: Any = torch_learner(wrap(model, settings.pop("lora")), version=VERSION, **settings)
    exact_norms(learner.policy.body)
    return learner


def replicated(family, dtype, overrides, folder):
    settings = settings_of(*overrides)
    model = exact_norms(tiny_model(family, dtype=dtype)).to(DEVICE)
    torch.manual_seed(0)
    team = Team(rank=dist.get_rank(), size=dist.get_world_size())
    learner: Any = torch_learner(wrap(model, settings.pop("lora")), version=VERSION, team=team, **settings)
    exact_norms(learner.policy.body)
    return learner


def sharded(family, dtype, overrides, folder, shard_size=None, compiled=None):
    settings = settings_of(*overrides)
    team = Team(rank=dist.get_rank(), size=dist.get_world_size())
    if team.rank == 0 and not (folder / f"{family}-{dtype}").exists():
        tiny_model(family, dtype=dtype).save_pretrained(folder / f"{family}-{dtype}")
    dist.barrier()
    torch.manual_seed(0)
    policy = ShardedPolicy(
        folder / f"{family}-{dtype}",
        device_mesh(DEVICE, team.size, shard_size or team.size),
        settings["learner"],
        device=DEVICE,
        master_dtype=dtype,
        **{name: settings.pop(name) for name in ("lora", "dtype", "fp32_head", "router_replay", "merges")},
        compiled=compiled,
    )
    if not compiled:
        exact_norms(policy.model)
    return TorchLearner(policy, team=team, version=VERSION, **settings)


def check_equal(make, family, dtype, overrides, folder, batch, tolerance):
    """The gradient, the row and the weights after the step are those of one process."""
    theirs, their_row = gradients_of(reference := alone(family, dtype, overrides), batch)
    learner = make(family, dtype, overrides, folder)
    ours, row = gradients_of(learner, batch)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=tolerance, msg=name)
    assert row.keys() == their_row.keys()
    for key in row.keys() - {"batch/micro_batches", "time/step_s"}:
        assert abs(row[key] - their_row[key]) <= 1e-5 * max(abs(their_row[key]), 1), (key, row[key], their_row[key])
    weights = dict(learner.policy.weights())
    for name, weight in reference.weights().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=max(tolerance, 1e-5), check_dtype=False)


def check_critic(batch):
    """Ranks with a critic have its values of the whole batch, and go on as one process."""
    overrides = ("advantage.credit=gae", "filter.zero_variance=false", "learner.micro_batch_tokens=24")
    ours, theirs = (
        foreseeing(make("smollm", torch.float32, overrides))
        for make in (functools.partial(replicated, folder=None), alone)
    )
    for version in (VERSION, VERSION + 1):
        rows = [each.step(replace(batch, version=version)) for each in (ours, theirs)]
        for key in rows[1].keys() - {"batch/micro_batches", "time/step_s"}:
            assert abs(rows[0][key] - rows[1][key]) <= 1e-4 * max(abs(rows[1][key]), 1), (key, *rows)
    for name, weight in theirs.critic.policy.parameters.items():
        torch.testing.assert_close(ours.critic.policy.parameters[name], weight, rtol=0, atol=1e-5)


def check_compiled(folder):
    """Compiled layers give the gradients of one process, and the warm-up compiles all that passes need."""
    from torch._dynamo.utils import counters

    # These prompts have two tokens: a shared prefix of one is a special case of the compiler.
    batch, apart = random_batch(1, num_groups=6), ("learner.share_prompts=false",)
    theirs, _ = gradients_of(alone("smollm", torch.float32, apart), batch)
    real = torch.compile
    # Traced without generating code, which takes a minute.
    torch.compile = functools.partial(real, backend="eager")
    try:
        learner = sharded("smollm", torch.float32, apart, folder, compiled=True)
    finally:
        torch.compile = real
    num_graphs = counters["stats"]["unique_graphs"]
    assert num_graphs > 0
    ours, _ = gradients_of(learner, batch)
    assert counters["stats"]["unique_graphs"] == num_graphs
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-6, msg=name)


def check_skips(make, folder):
    """A gradient that is not finite on one rank changes no weight on any."""
    learner = make("smollm", torch.float32, (), folder)
    before = {name: value.clone() for name, value in learner.policy.weights()}
    loss = learner.objective.loss

    def poisoned(inputs):
        result = loss(inputs)
        return (
            result
            if dist.get_rank() == 0
            else type(result)(
                **{name: getattr(result, name) for name in ("ratio", "clipped")}, loss=result.loss * float("nan")
            )
        )

    learner.objective = replace(learner.objective, loss=poisoned)
    row = learner.step(random_batch(1, num_groups=6, clean=True))
    assert row["optim/skipped"] == 1.0, row
    for name, weight in learner.policy.weights():
        assert torch.equal(weight, before[name]), name


def routed(batch):
    """The batch with experts for every token: any two of four, in two layers."""
    rng = np.random.default_rng(0)

    def with_experts(completion):
        num = len(completion.request.prompt_tokens) + len(completion) - 1
        pairs = np.array(list(itertools.combinations(range(4), 2)), dtype=np.int16)
        return replace(completion, experts=pairs[rng.integers(0, len(pairs), (num, 2))].reshape(num, 4))

    groups = [replace(group, completions=tuple(map(with_experts, group.completions))) for group in batch.groups]
    return replace(batch, groups=groups)


def all_checks(folder):
    """Yield the name and the function of every check."""
    many = random_batch(1, num_groups=6, temperatures=(1.0, 0.7))
    # One kept group of two: with prompts shared, one rank may have nothing.
    few = random_batch(5, num_groups=1, per_group=2, clean=True)
    empty = Batch(version=VERSION, groups=())
    small = ("learner.micro_batch_tokens=24",)
    # A mesh of two replicas, each of one rank.
    hybrid = functools.partial(sharded, shard_size=1)
    yield "compiled", lambda: check_compiled(folder)
    yield "critic", lambda: check_critic(many)
    yield "hybrid", lambda: check_equal(hybrid, "smollm", torch.float64, (), folder, many, 1e-12)
    for make in (replicated, sharded):
        name = make.__name__
        run = functools.partial(check_equal, make)
        for family in ("smollm", "llama_with_biases"):
            yield f"{name} {family} float64", lambda f=family, r=run: r(f, torch.float64, (), folder, many, 1e-12)
            yield f"{name} {family} float32", lambda f=family, r=run: r(f, torch.float32, small, folder, many, 1e-6)
        yield f"{name} few", lambda r=run: r("smollm", torch.float64, (), folder, few, 1e-12)
        yield f"{name} empty", lambda r=run: r("smollm", torch.float32, (), folder, empty, 1e-6)
        lora = ("model.lora.rank=2", *small)
        yield f"{name} lora", lambda r=run, o=lora: r("smollm", torch.float64, o, folder, many, 1e-12)
        recomputed = ("learner.gradient_checkpointing=true",)
        yield f"{name} checkpointing", lambda r=run, o=recomputed: r("qwen3", torch.float64, o, folder, many, 1e-12)
        yield f"{name} experts", lambda r=run: r("qwen3_moe", torch.float32, small, folder, many, 1e-6)
        replays = (*small, "model.router_replay=true")
        yield f"{name} replay", lambda r=run, o=replays: r("qwen3_moe", torch.float32, o, folder, routed(many), 1e-6)
        clipped = ("optimizer.grad_clip=0.01",)
        yield f"{name} clipped", lambda r=run, o=clipped: r("smollm", torch.float32, o, folder, many, 1e-6)
        yield f"{name} skips", lambda m=make: check_skips(m, folder)


def gpu_checks(folder):
    """Yield those that say whether ranks work on a GPU that they share; what they compute is checked on a CPU."""
    many = random_batch(1, num_groups=6, temperatures=(1.0, 0.7))
    small = ("learner.micro_batch_tokens=24",)
    for make in (replicated, sharded):
        run = functools.partial(check_equal, make)
        for family in ("smollm", "llama_with_biases"):
            name = f"{make.__name__} {family} on a GPU"
            yield name, lambda f=family, r=run: r(f, torch.float32, small, folder, many, 1e-5)


def work(rank, size, port, folder, failures, device="cpu"):
    """Run all checks on one rank; what fails is put into a list of (check, reason)."""
    global DEVICE
    DEVICE = torch.device(device)
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        # Generating code takes a minute, and has a test of its own.
        torch.compiler.set_stance("force_eager")
    wait = datetime.timedelta(seconds=120)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=wait)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
    num = 0
    try:
        checks = all_checks if DEVICE.type == "cpu" else gpu_checks
        for name, check in checks(Path(folder)):
            num += 1
            try:
                check()
            except BaseException as error:
                text = traceback.format_exc()
                failures.put((rank, name, text[-2000:]))
                if not isinstance(error, AssertionError):
                    return
            finally:
                dist.barrier()
    finally:
        failures.put((rank, "end", str(num)))
        dist.destroy_process_group()
