"""Estimates of the time of a run, beside what was measured."""

import pytest
from transformers import Qwen2Config

from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.training.run.memory import Gpus, ModelSizes, checkpoint_bytes
from scalerl.training.run.pace import Pace, pace_of, rates_of, size_words

QWEN = Qwen2Config(
    vocab_size=151936,
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)
H200 = Gpus(1, 141e9)
PILOT = ("model.path=x", "length.max_length=384", "rollout.max_prompt_tokens=240", "rollout.context=624")


def recipe_of(*changes: str) -> Recipe:
    return load_recipe("gsm8k", [*PILOT, *changes])


def pace(*changes: str, gpus: Gpus = H200) -> Pace:
    return pace_of(recipe_of(*changes), ModelSizes.from_config(QWEN), gpus, 512)


def test_estimate_is_near_the_measured_step():
    # 100 steps took 378 s on an H200.
    assert 3.78 / 1.5 < pace().step_s < 3.78 * 1.5


@pytest.mark.parametrize(("filtered", "seconds"), [(True, 5.6), (False, 6.4)])
def test_estimate_with_longer_answers_is_near_the_measured_step(filtered: bool, seconds: float):
    # The pilot of docs/results/real-model.md: ScaleRL, and the baseline, which trains on every group.
    long = ["model.path=x", "length.max_length=768", "rollout.max_prompt_tokens=1024", "rollout.context=1792"]
    recipe = load_recipe("math", [*long, f"filter.zero_variance={str(filtered).lower()}"])
    assert seconds / 1.5 < pace_of(recipe, ModelSizes.from_config(QWEN), H200, 512).step_s < seconds * 1.5


def test_whole_budget_counts_evaluations_and_every_gpu():
    one = pace("budget.steps=200")
    assert one.steps == 200
    assert one.hours == pytest.approx((60 + 200 * (one.step_s + one.evaluation_s)) / 3600)
    assert pace("evaluation.every=1").evaluation_s == pytest.approx(10 * one.evaluation_s)
    assert pace("evaluation.num_prompts=500").evaluation_s == pytest.approx(2 * one.evaluation_s)
    rare = pace("evaluation.sets.rare={name='arithmetic', num_prompts=500, every=40}")
    assert rare.evaluation_s == pytest.approx((1 + 2 / 4) * one.evaluation_s)
    two = pace("learner.ranks=2", "learner.sharding=full", gpus=Gpus(2, 141e9))
    assert two.num_gpus == 2
    assert two.step_s < one.step_s
    by_hours = pace("budget.steps=100000", "budget.gpu_hours=1")
    assert by_hours.steps == pytest.approx(3600 / one.step_s)


def test_savings_cost_time():
    assert pace("model.lora.rank=32", "model.lora.bits=4").step_s > pace("model.lora.rank=32").step_s
    assert pace("optimizer.on_host=true").step_s > pace().step_s
    assert pace(gpus=Gpus(1, 24e9)).step_s > 3 * pace().step_s
    assert pace_of(recipe_of(), ModelSizes.from_config(QWEN), H200, 128).step_s > 1.3 * pace().step_s


@pytest.mark.parametrize(("gigabytes", "name"), [(16, "RTX 4090"), (24, "RTX 4090"), (80, "H100"), (139, "H200")])
def test_rates_are_of_the_nearest_size(gigabytes, name):
    assert rates_of(1e9 * gigabytes).name == name


@pytest.mark.parametrize(
    ("number", "words"),
    [(1_543_000_000, "1.54B"), (999_999_999, "1B"), (134_515_008, "135M"), (855_000, "0.855M"), (12_300, "12.3k")],
)
def test_sizes_are_written_as_people_do(number, words):
    assert size_words(number) == words


def test_checkpoint_has_weights_and_moments():
    sizes = ModelSizes.from_config(QWEN)
    assert checkpoint_bytes(recipe_of(), sizes) == 12 * sizes.shape.params
    assert checkpoint_bytes(recipe_of("optimizer.bits=8"), sizes) < 7 * sizes.shape.params
