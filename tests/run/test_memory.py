"""Memory of layouts: against sums by hand, what does not fit, and the nearest layout that does."""

import functools
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.config import Recipe, load_recipe
from scalerl.config.parts import RolloutSettings
from scalerl.errors import ClusterError, RecipeError, UsageError
from scalerl.rollout.torch.build import engine_advice
from scalerl.run.cluster.place import enter_cluster
from scalerl.run.memory import (
    RESERVE_BYTES,
    Gpus,
    Memory,
    ModelSizes,
    check_context_ranks,
    decide_checkpointing,
    generator_bytes,
    learner_bytes,
    memory_of,
    num_generators,
    settings_that_fit,
    why_not,
)
from scalerl.run.simulate import read_rates, splits

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads",)


def shape(*sizes: int, **more: Any) -> dict[str, Any]:
    return dict(zip(SIZES, sizes, strict=True)) | more


DENSE_8B = shape(151936, 4096, 12288, 36, 32, 8, head_dim=128, tie_word_embeddings=False)
EXPERTS_30B = shape(151936, 2048, 6144, 48, 32, 4, head_dim=128, tie_word_embeddings=False)
EXPERTS_30B |= {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
QWEN = shape(151936, 1536, 8960, 28, 12, 2)
EIGHT = shape(128256, 4096, 14336, 32, 32, 8)
THREE = shape(128256, 3072, 8192, 28, 24, 8)


def dense():
    return Qwen3Config(**DENSE_8B)


def llama():
    return LlamaConfig(**EIGHT, head_dim=128, tie_word_embeddings=False)


def experts():
    return Qwen3MoeConfig(**EXPERTS_30B)


@functools.cache
def sizes_of(make: Callable[[], Any]) -> ModelSizes:
    return ModelSizes.from_config(make())


def recipe(*overrides: str) -> Recipe:
    return load_recipe("scalerl", [*overrides])


def memory(settings: Recipe, gpus: str, make: Callable[[], Any] = dense) -> Memory:
    return memory_of(settings, sizes_of(make), Gpus.parse(gpus))


def test_sizes_of_a_dense_model_and_of_experts():
    sizes, moe = sizes_of(dense), sizes_of(experts)
    assert (sizes.head_params, sizes.cache_per_token) == (151936 * 4096, 2 * 36 * 8 * 128)
    # All experts take memory; only those a token is routed to keep activations.
    assert [sizes.params, moe.params] == pytest.approx([8.19e9, 30.5e9], rel=0.01)
    assert moe.kept_per_token() == 4 * 2048 + 2 * 32 * 128 + 2 * 4 * 128 + 4 * 8 * 768
    # 8 key-value heads on 16 ranks: each is on two of them.
    assert sizes.kept_per_token(16) == sizes.kept_per_token() + 32 * 128 + 2 * 8 * 128


def parts_of(settings: Recipe, slots: int = 10) -> tuple[dict[str, float], dict[str, float]]:
    sizes = sizes_of(dense)
    return learner_bytes(settings, sizes), generator_bytes(settings, sizes, slots)


def test_parts_add_up_by_hand():
    settings = ("rollout.generators=2", "rollout.slots=20", "learner.micro_batch_tokens=16384")
    sizes, (learner, generator) = sizes_of(dense), parts_of(recipe(*settings))
    assert learner["weights"] == 6 * sizes.params
    assert learner["optimiser"] == 12 * sizes.params
    assert learner["activations"] == 2 * 16384 * 36 * sizes.kept_per_token()
    assert memory(recipe(*settings), "8x400").slots == 10
    assert generator["cache"] == 10 * 16384 * sizes.cache_per_token * 2
    assert generator["weights"] == 2 * sizes.params + 4 * sizes.head_params
    sharded, _ = parts_of(recipe(*settings, "learner.ranks=4", "learner.sharding=full"))
    assert sharded["optimiser"] == learner["optimiser"] / 4
    assert learner["reserve"] == generator["reserve"] == RESERVE_BYTES


SHORT, WHOLE = (1024, 128), (16384, 512)
"""Context, and the part of it that prompts may take."""


@pytest.mark.parametrize(
    ("shape", "role", "tokens", "lengths", "changes", "measured", "within"),
    [
        (QWEN, "learner", 16384, SHORT, (), 69.0, 0.1),
        (THREE, "learner", 8192, SHORT, (), 82.24, 0.05),
        (EIGHT, "learner", 8192, SHORT, ("model.lora.rank=32",), 88.53, 0.05),
        (THREE, "learner", 16384, WHOLE, (), 101.76, 0.05),
        (EIGHT, "learner", 16384, WHOLE, ("model.lora.rank=32", "learner.gradient_checkpointing=true"), 59.59, 0.05),
        (THREE, "generator", 16384, (16384, 14336), (), 66.84, 0.05),
    ],
)
def test_estimate_is_near_what_was_measured(shape, role, tokens, lengths, changes, measured, within):
    """GiB that learners, and an engine of 32 slots, took on an H200 (docs/results/speed.md)."""
    sizes = ModelSizes.from_config(LlamaConfig(**shape, tie_word_embeddings=shape is not EIGHT))
    context, prompt = lengths
    settings = recipe(
        "rollout.generators=1",
        f"learner.micro_batch_tokens={tokens}",
        "learner.gradient_checkpointing=false",
        f"rollout.context={context}",
        f"rollout.max_prompt_tokens={prompt}",
        "length.name=none",
        f"length.max_length={context - prompt}",
        *changes,
    )
    parts = learner_bytes(settings, sizes) if role == "learner" else generator_bytes(settings, sizes, 32)
    assert (sum(parts.values()) - RESERVE_BYTES) / 2**30 == pytest.approx(measured, rel=within)


FEWER = LlamaConfig(**shape(151936, 4096, 12288, 4, 32, 8))
MORE_GPUS, FP8 = {"engine": "vllm", "vllm": {"tensor_parallel": 2}}, {"engine": "vllm", "vllm": {"quantisation": "fp8"}}


@pytest.mark.parametrize(
    ("config", "settings", "advised"),
    [
        (FEWER, {"engine": "torch"}, None),
        (FEWER, {"engine": "vllm"}, "torch"),
        (FEWER, MORE_GPUS, None),
        (FEWER, FP8, None),
        (LlamaConfig(**DENSE_8B), {"engine": "vllm"}, None),
        (Qwen3MoeConfig(num_hidden_layers=4), {"engine": "torch"}, "vllm"),
        (Qwen3MoeConfig(num_hidden_layers=4), {"engine": "vllm"}, None),
    ],
)
def test_the_faster_engine_is_advised(config, settings, advised):
    advice = engine_advice(RolloutSettings(**settings), config)
    assert (advice is None) == (advised is None)
    assert f'rollout.engine = "{advised}"' in (advice or 'rollout.engine = "None"')


LONG = ("rollout.context=131072", "learner.micro_batch_tokens=131072", "rollout.generators=8")
HYBRID = ("learner.sharding=hybrid", "learner.shard_size=2", "learner.ranks=4")
FEW = ("rollout.generators=1", "learner.ranks=4", "learner.sharding=full", "learner.context_ranks=4")


@pytest.mark.parametrize(
    "config, gpus, settings, expected",
    [
        (dense, "8x80", ("rollout.generators=4",), {"learner.ranks": 4, "learner.sharding": "full"}),
        (dense, "8x80", ("rollout.generators=7",), {"learner.ranks": 4, "rollout.generators": 4}),
        (experts, "64x80", ("rollout.generators=48",), {"learner.sharding": "full"}),
        (dense, "16x141", ("rollout.generators=8",), {"learner.sharding": "full"}),
        (dense, "3x141", FEW, {"learner.ranks": 2}),
        (dense, "8x80", ("rollout.slots=8", "learner.micro_batch_tokens=16384"), {"learner.sharding": "full"}),
        (dense, "8x80", ("rollout.generators=4", *HYBRID), {"learner.sharding": "full"}),
        (dense, "3x400", ("rollout.generators=1", *HYBRID), {"learner.ranks": 2}),
        (dense, "16x80", LONG, {"learner.sharding": "full"}),
    ],
)
def test_proposed_settings_fit(config, gpus, settings, expected):
    own = memory(recipe(*settings), gpus, config)
    changes = settings_that_fit(recipe(*settings), sizes_of(config), Gpus.parse(gpus))
    assert not own.fits
    assert changes is not None
    assert expected.items() <= changes.items()
    if settings == LONG:
        assert changes["learner.context_ranks"] > 1
    # Without hybrid sharding learner.shard_size is refused, and --set cannot remove it.
    hybrid = "learner.sharding=hybrid" in settings
    assert why_not(own, changes).endswith(", without learner.shard_size") is hybrid
    kept = [text for text in settings if text not in HYBRID[:2]]
    after = recipe(*kept, *(f"{key}={str(value).lower()}" for key, value in changes.items()))
    assert memory(after, gpus, config).fits


MANY = ("learner.ranks=12", "learner.sharding=full", "learner.context_ranks=6")
HEADS = "does not divide the model's 32 attention heads: with learner.ranks = 12 it can be 1 or 2 or 4"
ONE = "rollout.generators=1"
RECOMPUTES = "learner.gradient_checkpointing=true"
IS_OFF = "gradient checkpointing: off (learner.gradient_checkpointing is auto)"


@pytest.mark.parametrize(
    "name, gpus, settings, error, texts",
    [
        ("scalerl", "2x16", (), ClusterError, ["no layout on 2 such GPUs fits"]),
        (
            "scalerl",
            "8x80",
            ("rollout.generators=4",),
            ClusterError,
            ["a GPU of the learner needs 171 GB", "--set learner.ranks=4", "optimiser", "cache"],
        ),
        ("tiny-cpu", "4x80", ("rollout.generators=8",), ClusterError, ["are 9 GPUs, and there are 4"]),
        ("scalerl", "16x80", MANY, RecipeError, [HEADS]),
        ("scalerl", None, MANY, RecipeError, [HEADS]),
        ("scalerl", "8x400", (ONE,), None, [IS_OFF]),
        ("scalerl", "8x300", (ONE,), None, ["gradient checkpointing: on, since not all activations would fit"]),
        ("scalerl", "8x300", (ONE, RECOMPUTES), None, ["scalerl fits: 2 of 8 GPUs"]),
    ],
)
def test_check_prices_a_layout(tmp_path, name, gpus, settings, error, texts):
    dense().save_pretrained(tmp_path)
    own = settings if name == "tiny-cpu" else (*settings, f"model.path={tmp_path}")
    words = [word for text in own for word in ("--set", text)]
    result = CliRunner().invoke(app, ["train", name, "--check", *words, *(["--gpus", gpus] if gpus else [])])
    assert isinstance(result.exception, error or type(None)), result.exception
    assert "\n" not in str(result.exception)
    printed = f"{result.output}{result.exception}"
    assert [text for text in texts if text not in printed] == []
    is_auto = name == "scalerl" and error is None and RECOMPUTES not in settings
    assert ("gradient checkpointing:" in printed) == is_auto


def test_gpus_without_check_is_refused():
    assert isinstance(CliRunner().invoke(app, ["train", "tiny-cpu", "--gpus", "8x80"]).exception, UsageError)


def test_layout_of_a_cluster_is_not_priced_on_this_machine(monkeypatch):
    from scalerl.cli import layout

    monkeypatch.setattr(Gpus, "here", lambda: Gpus.parse("1x1"))
    more = ["rollout.generators=2", "learner.ranks=4", "learner.sharding=full"]
    for address in ("auto", "head:6379"):
        settings = load_recipe("tiny-cpu", [f"cluster.address={address}", *more])
        assert not layout.check_layout("tiny-cpu", settings, None)
    with pytest.raises(ClusterError, match="are 6 GPUs, and there are 1"):
        layout.check_layout("tiny-cpu", load_recipe("tiny-cpu", ["cluster.address=local", *more]), None)


@pytest.mark.parametrize("text", ["8", "x80", "8x", "8xabc", "0x80"])
def test_gpus_must_be_a_number_and_a_size(text):
    with pytest.raises(UsageError, match="such as 8x80"):
        Gpus.parse(text)


@pytest.mark.parametrize("gpus, slots", [("8x80", 23), ("8x141", 48)])
def test_shipped_recipe_for_a_node_fits_a_llama_of_8b(gpus, slots):
    node = load_recipe("scalerl-8b-node", ["model.path=x", "task=arithmetic"])
    for make in (llama, dense):
        own = memory(node, gpus, make)
        assert own.fits, why_not(own, None)
        assert own.num == {"learner": 3, "generator": 5}
        assert own.total("generator") <= node.rollout.vllm.memory_share * own.gpus.bytes_each
    assert memory(node, gpus, llama).slots == slots, "as the recipe says"
    one = ["task=arithmetic", "rollout.generators=0", "rollout.slots=1", "rollout.vllm.devices=[0]"]
    assert num_generators(load_recipe("scalerl-8b-node", one)) == 0, "vLLM is on the learner's GPUs"


@pytest.mark.parametrize("size, hours_per_step", [("80gb", 1.46), ("141gb", 0.78)])
def test_the_recipe_for_a_node_states_its_simulated_cost(size, hours_per_step):
    node = load_recipe("scalerl-8b-node")
    rates = read_rates(Path(__file__).parents[2] / "examples" / f"rates_8b_{size}.toml")
    (split,) = splits(node, rates, 8, node.rollout.generators)["PipelineRL-8"]
    pipeline = node.pipeline
    evaluated = node.evaluation.num_prompts * node.evaluation.samples_per_prompt / node.evaluation.every
    more = 1 + evaluated / (pipeline.groups_per_batch * pipeline.completions_per_group)
    assert split.gpu_hours_per_step * more == pytest.approx(hours_per_step, rel=0.05)
    assert split.lag_mean < 2


@pytest.mark.parametrize(
    "setting, gpus, recomputes",
    [
        # Without checkpointing the learner needs 335 GB (see above), within nine tenths of 373 GB.
        ("auto", "8x80", True), ("auto", "8x360", True), ("auto", "8x400", False),
        ("auto", None, False),  # not on a CPU
        *((str(own).lower(), gpus, own) for own in (True, False) for gpus in ("8x80", "8x400", None)),
    ],
)  # fmt: skip
def test_activations_are_recomputed_by_choice_or_by_need(setting, gpus, recomputes):
    settings = recipe(f"learner.gradient_checkpointing={setting}", "rollout.generators=1")
    decided = decide_checkpointing(settings, dense(), None if gpus is None else Gpus.parse(gpus))
    assert decided.model_copy(update={"learner": settings.learner}) == settings, "nothing else changes"
    assert decided.learner.gradient_checkpointing is recomputes


FULL = ("learner.ranks=8", "learner.sharding=full")


def test_context_ranks_divide_activations():
    settings = (*FULL, "rollout.generators=1", "rollout.slots=8", "learner.gradient_checkpointing=true")
    sizes = sizes_of(dense)
    parts = [parts_of(recipe(*settings, f"learner.context_ranks={size}"))[0] for size in (1, 4)]
    # With checkpointing a layer's input of every layer, and all of one layer.
    assert parts[0]["activations"] == 2 * 32768 * (36 * 4096 + sizes.kept_per_token())
    # Attention's result before and after the exchange.
    assert parts[1]["activations"] == 2 * 32768 / 4 * (36 * 4096 + sizes.kept_per_token() + 32 * 128)
    assert {part for part in parts[0] if parts[0][part] != parts[1][part]} == {"activations"}


def test_sequence_longer_than_a_micro_batch_counts():
    """It is never divided, so its pass is as long as it is."""
    kept = sizes_of(dense).kept_per_token()
    for context, tokens in ((131072, 131072), (16384, 32768)):
        learner, _ = parts_of(recipe(f"rollout.context={context}", "learner.micro_batch_tokens=32768"))
        assert learner["activations"] == 2 * tokens * 36 * kept


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "longrope", "yarn"])
def test_positions_that_depend_on_a_whole_pass_cannot_be_divided(kind, nested):
    table = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4}
    tables = {"full_attention": table, "sliding_attention": {"rope_type": "default"}} if nested else table
    config, divided = SimpleNamespace(**DENSE_8B, rope_parameters=tables), recipe(*FULL, "learner.context_ranks=2")
    refused = pytest.raises(RecipeError, match=rf"context_ranks is 2, but the positions of this model \({kind} in its")
    with nullcontext() if kind == "yarn" else refused:
        check_context_ranks(divided, config)
    check_context_ranks(recipe(*FULL), config)
    proposed = settings_that_fit(recipe(*LONG), sizes_of(dense)._replace(config=config), Gpus.parse("16x80"))
    assert (proposed is None) == (kind != "yarn")


def test_impossible_context_ranks_hold_no_device(tmp_path, monkeypatch):
    """A run says so before it connects to a cluster, and before it loads the model."""
    from scalerl.run.cluster import connect

    dense().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(connect, "connect", lambda address: pytest.fail("a cluster was joined"))
    words = ["learner.ranks=12", "learner.sharding=full", "learner.context_ranks=6", "cluster.address=head:1"]
    settings = recipe(*words, "rollout.generators=1", f"model.path={tmp_path / 'model'}")
    with ExitStack() as opened, pytest.raises(RecipeError, match="does not divide the model's 32 attention heads"):
        enter_cluster(settings, opened, pytest.fail)
