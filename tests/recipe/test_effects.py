"""Settings without an effect are named; tests/training/run/test_effects.py runs three steps with every setting."""

import pytest

from scalerl.recipe.effects import only_for_sft, without_effect
from scalerl.recipe.load import given_keys, list_recipes, load_recipe
from scalerl.recipe.task_settings import DEMONSTRATION_SETTINGS, TASK_SETTINGS

SILENT = {
    ("loss=none", "kl.coefficient=1", "entropy=bonus"): {"entropy.name"},
    ("loss=none", "kl.coefficient=1", "correction=band"): {"correction.name"},
    ("critic.lr=0.1", "critic.warmup_steps=3"): {"critic.lr", "critic.warmup_steps"},
    ("kl.estimator=reverse", 'kl.reference={name="teacher", path="nowhere"}'): {
        "kl.estimator.name",
        "kl.reference.name",
        "kl.reference.path",
    },
    ("advantage.credit=states",): {"advantage.credit.name"},
    ("optimizer.decay_steps=9", "optimizer.final_lr_frac=0.5"): {"optimizer.decay_steps", "optimizer.final_lr_frac"},
    ("model.lora.alpha=64.0",): {"model.lora.alpha"},
    ("rollout.vllm.memory_share=0.5",): {"rollout.vllm.memory_share"},
    ("task.environment.max_turns=2",): {"task.environment.max_turns"},
}


@pytest.mark.parametrize("settings", SILENT)
def test_settings_without_an_effect_are_named(settings):
    said = without_effect(load_recipe("tiny-cpu", settings), gpu=False)
    assert {sentence.split(" = ")[0] for sentence in said} == SILENT[settings]


@pytest.mark.parametrize(
    "settings",
    [
        ("advantage.credit=gae", "filter.zero_variance=false", "critic.lr=0.1", "critic.warmup_steps=3"),
        ("kl.coefficient=0.5", "kl.estimator=reverse"),
        ("optimizer.schedule=linear", "optimizer.decay_steps=9", "optimizer.final_lr_frac=0.5"),
        ("model.lora.rank=4", "model.lora.alpha=64.0"),
        ("task.environment=calculator", "task.environment.max_turns=2", "advantage.credit=states"),
    ],
)
def test_settings_with_an_effect_are_not(settings):
    assert list(without_effect(load_recipe("tiny-cpu", settings), gpu=False)) == []


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_set_nothing_in_vain(name):
    assert list(without_effect(load_recipe(name), gpu=True)) == []


def test_defaults_fit_distillation():
    distil = ("loss=none", "kl.coefficient=1")
    recipe = load_recipe("tiny-cpu", distil)
    assert (recipe.filter.zero_variance, recipe.curriculum.name) == (False, "uniform")
    own = load_recipe("tiny-cpu", [*distil, "filter.zero_variance=true", "curriculum.threshold=0.5"])
    assert (own.filter.zero_variance, own.curriculum.name) == (True, "no_positive_resampling")
    scalerl = load_recipe("tiny-cpu")
    assert (scalerl.filter.zero_variance, scalerl.curriculum.name) == (True, "no_positive_resampling")


def test_a_file_that_distils_may_keep_the_filter(tmp_path):
    (tmp_path / "base.toml").write_text('extends = "tiny-cpu"\nloss = "none"\nkl.coefficient = 1.0\n')
    (tmp_path / "own.toml").write_text('extends = "base.toml"\nfilter.zero_variance = true\nloss = "none"\n')
    assert not load_recipe(tmp_path / "base.toml").filter.zero_variance
    assert load_recipe(tmp_path / "own.toml").filter.zero_variance


def test_settings_that_only_sft_reads_are_named_if_they_are_given():
    given = ["sft.lr=1e-3", "task.slip_rate=0.5", "task.min_terms=2", "optimizer.lr=1e-3", "sft={steps=3}"]
    recipe = load_recipe("tiny-cpu", given)
    said = list(only_for_sft(recipe, given_keys(given)))
    assert [sentence.split(" ")[0] for sentence in said] == ["sft.lr", "task.slip_rate", "sft.steps"]
    assert all(names <= TASK_SETTINGS[task].keys() for task, names in DEMONSTRATION_SETTINGS.items())
