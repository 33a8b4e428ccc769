"""Memory of layouts: against sums by hand and measurements, what does not fit, and the nearest layout that does."""

from typing import Any

import pytest
from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig
from typer.testing import CliRunner

from scalerl.cli import app
from scalerl.cli.layout import why_not
from scalerl.errors import ClusterError, UsageError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import RolloutSettings
from scalerl.recipe.recipe import Recipe
from scalerl.training.rl.head_products import SPLIT_AT_ONCE
from scalerl.training.rl.logprobs import GPU_CHUNK
from scalerl.training.rollout.torch.build import engine_advice
from scalerl.training.run.memory import (
    RESERVE_BYTES,
    Gpus,
    Memory,
    ModelSizes,
    decide_checkpointing,
    generator_bytes,
    learner_bytes,
    memory_of,
    num_generators,
    settings_that_fit,
)


def shape(*sizes: int, **more: Any) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip((*names, "num_key_value_heads"), sizes, strict=True)) | more


OWN_HEAD: dict[str, Any] = {"head_dim": 128, "tie_word_embeddings": False}
DENSE = Qwen3Config(**shape(151936, 4096, 12288, 36, 32, 8), **OWN_HEAD)
MIXTURE: dict[str, Any] = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
EXPERTS = Qwen3MoeConfig(**shape(151936, 2048, 6144, 48, 32, 4), **OWN_HEAD, **MIXTURE)
EIGHT = LlamaConfig(**shape(128256, 4096, 14336, 32, 32, 8), **OWN_HEAD)
THREE = LlamaConfig(**shape(128256, 3072, 8192, 28, 24, 8), tie_word_embeddings=True)
QWEN = LlamaConfig(**shape(151936, 1536, 8960, 28, 12, 2), tie_word_embeddings=True)
FEWER = LlamaConfig(**shape(151936, 4096, 12288, 4, 32, 8))


SIZES: dict[int, ModelSizes] = {}


def sizes_of(config: Any) -> ModelSizes:
    if id(config) not in SIZES:
        SIZES[id(config)] = ModelSizes.from_config(config)
    return SIZES[id(config)]


def recipe(*overrides: str) -> Recipe:
    return load_recipe("scalerl", [*overrides])


def memory(settings: Recipe, gpus: str, config: Any = DENSE) -> Memory:
    return memory_of(settings, sizes_of(config), Gpus.parse(gpus))


def parts_of(*settings: str) -> tuple[dict[str, float], dict[str, float]]:
    sizes = sizes_of(DENSE)
    return learner_bytes(recipe(*settings), sizes), generator_bytes(recipe(*settings), sizes, 10)


def test_sizes_of_a_dense_model_and_of_experts():
    sizes, moe = sizes_of(DENSE), sizes_of(EXPERTS)
    assert (sizes.shape.head_params, sizes.cache_per_token) == (151936 * 4096, 2 * 36 * 8 * 128)
    # All experts take memory; only those a token is routed to keep activations.
    assert [sizes.shape.params, moe.shape.params] == pytest.approx([8.19e9, 30.5e9], rel=0.01)
    assert moe.kept_per_token == 4 * 2048 + 2 * 32 * 128 + 2 * 4 * 128 + 4 * 8 * 768


def test_parts_add_up_by_hand():
    settings = ("rollout.generators=2", "rollout.slots=20", "learner.micro_batch_tokens=16384")
    sizes, (learner, generator), shards = sizes_of(DENSE), parts_of(*settings), ("learner.ranks=4", FULL[1])
    # The head is not tied, so the body has no copy of it.
    assert learner["weights"] == 6 * sizes.shape.params - 2 * sizes.shape.head_params
    assert learner["optimiser"] == 12 * sizes.shape.params == 4 * parts_of(*settings, *shards)[0]["optimiser"]
    assert learner["activations"] == 2 * 16384 * 36 * sizes.kept_per_token
    assert memory(recipe(*settings), "8x400").slots == 10
    assert generator["cache"] == 10 * 16384 * sizes.cache_per_token * 2
    assert generator["weights"] == 2 * sizes.shape.params + 4 * sizes.shape.head_params
    assert learner["reserve"] == generator["reserve"] == RESERVE_BYTES
    # A sequence longer than a micro-batch is never divided, so its pass is as long as it is.
    longer, _ = parts_of("rollout.context=131072", "learner.micro_batch_tokens=32768")
    assert longer["activations"] == 8 * learner["activations"]


def test_recomputed_activations_are_inputs_of_layers_and_all_of_one():
    settings = (*FULL, "rollout.generators=1", "rollout.slots=8")
    sizes = sizes_of(DENSE)
    kept, recomputed = parts_of(*settings)[0], parts_of(*settings, RECOMPUTES)[0]
    assert recomputed["activations"] == 2 * 32768 * (36 * 4096 + sizes.kept_per_token)
    assert {part for part in kept if kept[part] != recomputed[part]} == {"activations"}


ONE, FULL = "rollout.generators=1", ("learner.ranks=8", "learner.sharding=full")
RECOMPUTES, LORA = "learner.gradient_checkpointing=true", "model.lora.rank=32"
SHORT, WHOLE = (1024, 128), (16384, 512)
"""Context, and the part of it that prompts may take."""


@pytest.mark.parametrize(
    ("config", "role", "tokens", "lengths", "changes", "measured", "within"),
    [
        (QWEN, "learner", 16384, SHORT, (), 69.0, 0.1),
        (THREE, "learner", 8192, SHORT, (), 82.24, 0.05),
        (EIGHT, "learner", 8192, SHORT, (LORA,), 88.53, 0.05),
        (THREE, "learner", 16384, WHOLE, (), 101.76, 0.05),
        (EIGHT, "learner", 16384, WHOLE, (LORA, RECOMPUTES), 59.59, 0.05),
        (THREE, "generator", 16384, (16384, 14336), (), 66.84, 0.05),
    ],
)
def test_estimate_is_near_what_was_measured(config, role, tokens, lengths, changes, measured, within):
    """GiB that learners, and an engine of 32 slots, took on an H200 (docs/results/speed.md)."""
    context, prompt = lengths
    lengths = (f"rollout.context={context}", f"rollout.max_prompt_tokens={prompt}", "length.name=none")
    passes = (f"length.max_length={context - prompt}", f"learner.micro_batch_tokens={tokens}")
    settings = recipe(ONE, "learner.gradient_checkpointing=false", *lengths, *passes, *changes)
    sizes = sizes_of(config)
    parts = learner_bytes(settings, sizes) if role == "learner" else generator_bytes(settings, sizes, 32)
    assert (sum(parts.values()) - RESERVE_BYTES) / 2**30 == pytest.approx(measured, rel=within)


@pytest.mark.parametrize(
    ("config", "settings", "advised"),
    [
        (FEWER, {"engine": "torch"}, None),
        (FEWER, {"engine": "vllm"}, "torch"),
        (FEWER, {"engine": "vllm", "vllm": {"tensor_parallel": 2}}, None),
        (FEWER, {"engine": "vllm", "vllm": {"quantisation": "fp8"}}, None),
        (DENSE, {"engine": "vllm"}, None),
        (Qwen3MoeConfig(num_hidden_layers=4), {"engine": "torch"}, "vllm"),
        (Qwen3MoeConfig(num_hidden_layers=4), {"engine": "vllm"}, None),
    ],
)
def test_the_faster_engine_is_advised(config, settings, advised):
    advice = engine_advice(RolloutSettings(**settings), config)
    assert (advice is None) == (advised is None)
    assert f'rollout.engine = "{advised}"' in (advice or 'rollout.engine = "None"')


LONG = ("rollout.context=65536", "learner.micro_batch_tokens=65536", "rollout.generators=8")
HYBRID = ("learner.sharding=hybrid", "learner.shard_size=2", "learner.ranks=4")
FEW = (ONE, "learner.ranks=4", "learner.sharding=full")


@pytest.mark.parametrize(
    "config, gpus, settings, expected",
    [
        (DENSE, "8x80", ("rollout.generators=4",), {"learner.ranks": 4, "learner.sharding": "full"}),
        (DENSE, "8x80", ("rollout.generators=7",), {"learner.ranks": 4, "rollout.generators": 4}),
        (EXPERTS, "64x80", ("rollout.generators=48",), {"learner.sharding": "full"}),
        (DENSE, "3x141", FEW, {"learner.ranks": 2}),
        (DENSE, "8x80", ("rollout.slots=8", "learner.micro_batch_tokens=16384"), {"learner.sharding": "full"}),
        (DENSE, "8x80", ("rollout.generators=4", *HYBRID), {"learner.sharding": "full"}),
        (DENSE, "3x400", (ONE, *HYBRID), {"learner.ranks": 2}),
        (DENSE, "16x80", LONG, {"learner.sharding": "full"}),
    ],
)
def test_proposed_settings_fit(config, gpus, settings, expected):
    own = memory(recipe(*settings), gpus, config)
    changes = settings_that_fit(recipe(*settings), sizes_of(config), Gpus.parse(gpus))
    assert not own.fits
    assert changes is not None
    assert expected.items() <= changes.items()
    # Without hybrid sharding learner.shard_size is refused, and --set cannot remove it.
    hybrid = "learner.sharding=hybrid" in settings
    assert why_not(own, changes).endswith(", without learner.shard_size") is hybrid
    kept = [text for text in settings if text not in HYBRID[:2]]
    after = recipe(*kept, *(f"{key}={str(value).lower()}" for key, value in changes.items()))
    assert memory(after, gpus, config).fits


def test_a_pass_keeps_both_parts_of_the_head_and_its_own_gradient():
    """In the backward pass both exist beside the gradient of the step; the peak of 3B on an H200 shows it."""
    sizes = sizes_of(DENSE)
    head, vocabulary = sizes.shape.head_params, sizes.config.vocab_size
    settings = recipe("learner.micro_batch_tokens=16384")
    chunk = 2 * GPU_CHUNK * vocabulary * 4
    assert learner_bytes(settings, sizes)["logits"] == chunk + 4 * head + 4 * head + 12 * SPLIT_AT_ONCE
    # A frozen head has no gradient.
    adapters = learner_bytes(recipe("learner.micro_batch_tokens=16384", "model.lora.rank=8"), sizes)["logits"]
    assert adapters == chunk + 4 * head + 12 * SPLIT_AT_ONCE


@pytest.mark.parametrize(
    "gpus, settings, error, texts",
    [
        ("2x16", (), ClusterError, ["no layout on 2 such GPUs fits"]),
        (
            "8x80",
            ("rollout.generators=4",),
            ClusterError,
            ["a GPU of the learner needs 172 GB", "--set learner.ranks=4", "optimiser", "cache"],
        ),
        ("4x80", ("rollout.generators=8",), ClusterError, ["are 9 GPUs, but there are 4"]),
        ("8x400", (ONE,), None, ["gradient checkpointing: off (learner.gradient_checkpointing is auto)"]),
        ("8x300", (ONE,), None, ["gradient checkpointing: on, because not all activations would fit"]),
        ("8x300", (ONE, RECOMPUTES), None, ["scalerl fits: 2 of 8 GPUs"]),
    ],
)
def test_check_prices_a_layout(tmp_path, gpus, settings, error, texts):
    DENSE.save_pretrained(tmp_path)
    words = [word for text in (*settings, f"model.path={tmp_path}") for word in ("--set", text)]
    result = CliRunner().invoke(app, ["train", "scalerl", "--check", *words, *(["--gpus", gpus] if gpus else [])])
    assert isinstance(result.exception, error or type(None)), result.exception
    assert "\n" not in str(result.exception)
    printed = f"{result.output}{result.exception}"
    assert [text for text in texts if text not in printed] == []
    assert ("gradient checkpointing:" in printed) == (error is None and RECOMPUTES not in settings)


def test_gpus_without_check_is_refused():
    assert isinstance(CliRunner().invoke(app, ["train", "tiny-cpu", "--gpus", "8x80"]).exception, UsageError)


@pytest.mark.parametrize("text", ["8", "x80", "8x", "8xabc", "0x80"])
def test_gpus_must_be_a_number_and_a_size(text):
    with pytest.raises(UsageError, match="such as 8x80"):
        Gpus.parse(text)


def test_layout_of_a_cluster_is_not_priced_on_this_machine(monkeypatch):
    from scalerl.cli import layout

    monkeypatch.setattr(Gpus, "here", lambda: Gpus.parse("1x1"))
    more = ["rollout.generators=2", "learner.ranks=4", "learner.sharding=full"]
    for address in ("auto", "head:6379"):
        settings = load_recipe("tiny-cpu", [f"cluster.address={address}", *more])
        assert not layout.check_layout("tiny-cpu", settings, None)
    with pytest.raises(ClusterError, match="are 6 GPUs, but there are 1"):
        layout.check_layout("tiny-cpu", load_recipe("tiny-cpu", ["cluster.address=local", *more]), None)


@pytest.mark.parametrize("size, slots", [("80", 23), ("141", 48)])
def test_recipe_for_a_node_fits(size, slots):
    node = load_recipe("scalerl-8b-node", ["model.path=x", "task=arithmetic"])
    for config in (EIGHT, DENSE):
        own = memory(node, f"8x{size}", config)
        assert own.fits, why_not(own, None)
        assert own.num == {"learner": 3, "generator": 5}
        assert own.total("generator") <= node.rollout.vllm.memory_share * own.gpus.bytes_each
    assert memory(node, f"8x{size}", EIGHT).slots == slots
    one = ["task=arithmetic", "rollout.generators=0", "rollout.slots=1", "rollout.vllm.devices=[0]"]
    assert num_generators(load_recipe("scalerl-8b-node", one)) == 0, "vLLM is on the learner's GPUs"


@pytest.mark.parametrize(
    "setting, gpus, recomputes",
    [
        # Without checkpointing the learner needs 335 GB, within nine tenths of 373 GB.
        ("auto", "8x360", True),
        ("auto", "8x400", False),
        ("auto", None, False),  # not on a CPU
        ("true", "8x400", True),
        ("true", None, True),
        ("false", "8x80", False),
    ],
)
def test_activations_are_recomputed_by_choice_or_by_need(setting, gpus, recomputes):
    settings = recipe(f"learner.gradient_checkpointing={setting}", ONE)
    decided = decide_checkpointing(settings, DENSE, None if gpus is None else Gpus.parse(gpus))
    assert decided.model_copy(update={"learner": settings.learner}) == settings, "nothing else changes"
    assert decided.learner.gradient_checkpointing is recomputes
