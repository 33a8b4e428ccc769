import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.config import Recipe, RecipeError, body_dtype, inert, list_recipes, load_recipe, mode_name, settings_of
from scalerl.config.parts import Budget, Pipeline
from scalerl.config.tree import known_keys

PUBLISHED = {"base", "dapo", "grpo", "gspo", "magistral", "minimax", "scalerl"}


def problems(*overrides: str, recipe="scalerl") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return list(caught.value.problems)


def write(folder, name: str, text: str):
    path = folder / name
    path.write_text(text)
    return path


# -- the published recipes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_loads_and_survives_json(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.description
    path = write(tmp_path, "recipe.json", recipe.model_dump_json())
    assert load_recipe(path) == recipe
    assert (
        load_recipe(name, [f"{key}={json.dumps(s.value)}" for key, s in settings_of(recipe).items() if s.value])
        == recipe
    )


def test_the_papers_recipes_are_here():
    assert set(list_recipes()) >= PUBLISHED


def test_scalerl_is_what_the_paper_says():
    recipe = load_recipe("scalerl")
    assert mode_name(recipe.pipeline) == "PipelineRL-8"
    assert recipe.loss.model_dump() == {"name": "cispo", "cap": 5.0}
    assert (recipe.weights.name, recipe.advantage.normalisation.name) == ("prompt", "batch")
    assert recipe.model.fp32_head == "both"
    assert recipe.filter.zero_variance
    assert recipe.curriculum.model_dump() == {"name": "no_positive_resampling", "threshold": 0.9, "history": "latest"}
    assert recipe.length.model_dump(exclude={"marker"}) == {
        "name": "interruption",
        "thinking_min": 10240,
        "thinking_max": 12288,
        "thinking_end": "</think>",
        "answer_budget": 2048,
    }
    assert recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group == 768
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.eps, optimizer.weight_decay) == (5e-7, 100, 1e-15, 0.01)


def test_defaults_are_scalerls():
    recipe = load_recipe("scalerl")
    assert Recipe(description=recipe.description, budget=Budget(gpu_hours=16000)) == recipe


@pytest.mark.parametrize(
    "name, mode, loss, weights, normalisation, zero_variance, head, batch",
    [
        ("base", "PipelineRL-8", "dapo", "sample", "prompt", False, "none", 768),
        ("grpo", "PPO-off-policy-8", "dapo", "sample", "prompt", False, "none", 768),
        ("dapo", "PPO-off-policy-8", "dapo", "prompt", "prompt", True, "none", 1280),
        ("gspo", "PipelineRL-8", "gspo", "sample", "prompt", False, "none", 768),
        ("magistral", "PipelineRL-8", "dapo", "prompt", "prompt", True, "none", 1280),
        ("minimax", "PPO-off-policy-8", "cispo", "prompt", "prompt", True, "both", 1280),
    ],
)
def test_comparison_recipes(name, mode, loss, weights, normalisation, zero_variance, head, batch):
    recipe = load_recipe(name)
    assert mode_name(recipe.pipeline) == mode
    assert (recipe.loss.name, recipe.weights.name, recipe.advantage.normalisation.name) == (
        loss,
        weights,
        normalisation,
    )
    assert (recipe.filter.zero_variance, recipe.model.fp32_head, recipe.curriculum.name) == (
        zero_variance,
        head,
        "uniform",
    )
    assert recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group == batch


def test_grpo_is_dapo_with_equal_clips():
    loss = load_recipe("grpo").loss.model_dump()
    assert loss == {"name": "dapo", "clip_low": 0.2, "clip_high": 0.2}


# -- files and extends -------------------------------------------------------------------------------------------------


def test_a_leave_one_out_recipe_is_two_lines(tmp_path):
    path = write(tmp_path, "loo.toml", 'extends = "scalerl"\nadvantage.normalisation = "prompt"\n')
    ours, scalerl = settings_of(load_recipe(path)), settings_of(load_recipe("scalerl"))
    differing = {key for key in ours | scalerl if ours.get(key) != scalerl.get(key)} - {"description"}
    assert differing == {"advantage.normalisation.name", "advantage.normalisation.eps"}
    assert load_recipe(path).description == ""


def test_settings_of_another_choice_do_not_leak_through_extends(tmp_path):
    parent = write(tmp_path, "parent.toml", 'extends = "scalerl"\nloss = { name = "dapo", clip_low = 0.1 }\n')
    for line in ('loss = "tis"', 'loss.name = "tis"', '[loss]\nname = "tis"'):
        child = write(tmp_path, "child.toml", f'extends = "parent.toml"\n{line}\n')
        assert load_recipe(child).loss.model_dump() == {"name": "tis", "cap": 2.0}
    child = write(tmp_path, "child.toml", 'extends = "./parent.toml"\n[loss]\nname = "dapo"\nclip_high = 0.3\n')
    assert load_recipe(child).loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.3}
    child = write(tmp_path, "child.toml", f'extends = "{parent}"\nloss.clip_high = 0.3\n')
    assert load_recipe(child).loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.3}


def test_a_setting_of_a_default_choice_is_kept_when_the_choice_is_then_named(tmp_path):
    write(tmp_path, "parent.toml", "loss.cap = 4.0\nbudget.steps = 1\n")
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\nloss = "cispo"\n')
    assert load_recipe(child).loss.model_dump() == {"name": "cispo", "cap": 4.0}


def test_extends_is_relative_to_its_file(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    write(tmp_path, "parent.toml", "seed = 5\nbudget.steps = 1\n")
    child = write(tmp_path / "inner", "child.toml", 'extends = "../parent.toml"\n')
    monkeypatch.chdir(tmp_path / "inner")
    assert load_recipe(child).seed == load_recipe("./child.toml").seed == 5


@pytest.mark.parametrize(
    "text, message",
    [
        ('extends = "b.toml"', "extends goes in a circle"),
        ('extends = "a.toml"', "extends goes in a circle"),
        ('extends = "missing.toml"', "missing.toml cannot be read: No such file or directory"),
        ('extends = "scalrl"', 'no recipe is called "scalrl"'),
        ("extends = 3", "extends is 3 but must be a recipe's name or file"),
        ("seed = ?", "a.toml is not valid TOML: Invalid value (at line 1, column 8)"),
    ],
)
def test_bad_files_say_which(tmp_path, text, message):
    path = write(tmp_path, "a.toml", text)
    write(tmp_path, "b.toml", 'extends = "a.toml"')
    (sentence,) = problems(recipe=path)
    assert message in sentence
    assert "a.toml" in sentence


def test_unreadable_files_are_sentences(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert problems(recipe=tmp_path / "binary.toml") == [f"{tmp_path / 'binary.toml'} is not UTF-8 text"]
    assert "cannot be read: Is a directory" in problems(recipe=tmp_path)[0]
    assert "not valid JSON" in problems(recipe=write(tmp_path, "recipe.json", "{"))[0]
    assert "holds no table" in problems(recipe=write(tmp_path, "recipe.json", "[]"))[0]


def test_an_error_names_the_file_it_came_from(tmp_path):
    write(tmp_path, "parent.toml", 'extends = "scalerl"\npipeline.push_every = 4\n')
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\nfilter.zero_varianse = true\nseed = 1\n')
    assert problems(recipe=child) == [
        f"{child}: filter.zero_varianse is no setting of filter, which has zero_variance, drop_truncated; "
        f'did you mean "zero_variance"?'
    ]
    write(tmp_path, "child.toml", 'extends = "parent.toml"\nseed = 1\n')
    (sentence,) = problems(recipe=child)
    assert sentence.startswith(f"{tmp_path / 'parent.toml'}: pipeline.push_every is 4")


# -- --set -------------------------------------------------------------------------------------------------------------


def test_overrides_are_toml_values_or_bare_text():
    recipe = load_recipe(
        "scalerl",
        [
            "seed=3",
            "loss.cap=4",
            "model.path=models/tiny base",
            "filter.zero_variance=false",
            'description="a = b"',
            "advantage.baseline=leave_one_out",
            "weights={name='constant', denominator=10}",
            "evaluation.sets.aime=jsonl",
            "evaluation.sets.aime.path=aime.jsonl",
        ],
    )
    assert (recipe.seed, recipe.model.path, recipe.description) == (3, "models/tiny base", "a = b")
    assert recipe.loss.model_dump()["cap"] == 4.0
    assert not recipe.filter.zero_variance
    assert recipe.advantage.baseline.name == "leave_one_out"
    assert recipe.weights.model_dump() == {"name": "constant", "denominator": 10.0}
    assert recipe.evaluation.sets["aime"].model_dump() == {"name": "jsonl", "path": "aime.jsonl"}


@pytest.mark.parametrize("overrides", [["loss=dapo", "loss.clip_low=0.1"], ["loss.clip_low=0.1", "loss.name=dapo"]])
def test_the_order_of_a_name_and_its_settings_does_not_matter(overrides):
    loss = load_recipe("scalerl", overrides).loss
    assert loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.26}


def test_the_last_override_of_a_key_wins():
    assert load_recipe("scalerl", ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("text", ["seed", "=3", "seed=", "loss..cap=3", ".=1"])
def test_a_malformed_override_shows_the_form(text):
    assert problems(text) == [f"--set {text}: must look like key=value, for example loss.cap=4"]


def test_an_override_cannot_smuggle_in_a_second_one():
    assert load_recipe("scalerl", ["model.path=1\nseed=9"]).seed == 0


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override, rest",
    [
        ("loss.capp=3", 'loss.capp is no setting of loss.name = "cispo", which has cap; did you mean "cap"?'),
        (
            "loss=cisp",
            'loss.name is "cisp" but must be one of "cispo", "dapo", "gspo", "tis", or an import path '
            '"package.module:function"; did you mean "cispo"?',
        ),
        (
            "loss.clip_low=0.1",
            'loss.clip_low is a setting of "dapo", "gspo", but loss.name is "cispo", which has cap',
        ),
        (
            "loss=3",
            'loss is 3 but must be a name or a table with one; the names are "cispo", "dapo", "gspo", "tis"',
        ),
        ("loss.name=[]", 'loss.name is [] but must be one of "cispo"'),
        ("loss=not ok:f", 'loss.name is "not ok:f" but must be an import path "package.module:function"'),
        ("weights=constant", 'weights.denominator is not set, and weights.name = "constant" needs it'),
        (
            "model.fp32_head=bth",
            'model.fp32_head is "bth" but must be one of "both", "generator", "learner", "none"; did you mean "both"?',
        ),
        ("curriculum.history=last", 'curriculum.history is "last" but must be one of "latest", "cumulative"'),
        ("pipeline.max_lag=-1", "pipeline.max_lag is -1 but must be at least 0"),
        ("loss.cap=0", "loss.cap is 0 but must be above 0"),
        ("curriculum.threshold=1.5", "curriculum.threshold is 1.5 but must be at most 1"),
        ("optimizer.beta1=1.0", "optimizer.beta1 is 1.0 but must be below 1"),
        ("pipeline.completions_per_group=1", "pipeline.completions_per_group is 1 but must be at least 2"),
        ("pipeline.max_lag=eight", 'pipeline.max_lag is "eight" but must be a whole number'),
        ("seed=1.5", "seed is 1.5 but must be a whole number"),
        ("seed=true", "seed is true but must be a whole number"),
        ("optimizer.lr=fast", 'optimizer.lr is "fast" but must be a number'),
        ("optimizer.lr=inf", "optimizer.lr is Infinity but must be a finite number"),
        ("filter.zero_variance=1", "filter.zero_variance is 1 but must be true or false"),
        ("model.path=3", "model.path is 3 but must be text"),
        ("model=3", "model is 3 but must be a table"),
        ("evaluation.sets.aime=3", "evaluation.sets.aime is 3 but must be a table"),
        ("max_lag=3", 'did you mean "pipeline.max_lag"?'),
        ("losss=dapo", "losss is no setting of a recipe, which has description, seed"),
        ("rollout.top_p=0.9", "top_p is for evaluation only (evaluation.top_p)"),
        ("extends=base", "extends cannot be set here"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_field_value_and_choices(override, rest):
    (sentence,) = problems(override)
    assert sentence.startswith(f"--set {override}: ")
    assert rest in sentence
    assert "\n" not in sentence


def test_all_problems_are_told_at_once():
    assert len(problems("seed=x", "pipeline.max_lag=-1", "loss.capp=1")) == 3


@pytest.mark.parametrize(
    "overrides, blamed, rest",
    [
        (
            ["pipeline.push_every=4"],
            0,
            "set pipeline.push_every = 1 (PipelineRL-8), or pipeline.drain = true and pipeline.max_lag = 3 "
            "(PPO-off-policy-4)",
        ),
        (["pipeline.drain=true", "pipeline.push_every=8"], 1, "set pipeline.max_lag = 7, or pipeline.push_every = 9"),
        (["length.thinking_min=12289"], 0, "length.thinking_min is 12289, above length.thinking_max = 12288"),
        (["length.marker=Stop."], 0, 'length.marker does not contain length.thinking_end = "</think>"'),
        (["length.answer_budget=2049"], 0, "set rollout.context = 16385 or shorten the others"),
        (["length=none", "length.max_length=20000"], 1, "rollout.max_prompt_tokens + length.max_length is 22048"),
        (["length=penalty", "length.cache=14337"], 1, "length.cache is 14337, above length.max_length = 14336"),
        (["reward.correct=-1"], 0, "a correct completion must be worth more"),
        (["evaluation.temperature=0"], 0, "set evaluation.samples_per_prompt = 1 or raise the temperature"),
    ],
)
def test_impossible_combinations_come_with_a_way_out(overrides, blamed, rest):
    (sentence,) = problems(*overrides)
    assert sentence.startswith(f"--set {overrides[blamed]}: ")
    assert rest in sentence


def test_a_run_needs_an_end(tmp_path):
    path = write(tmp_path, "mine.toml", "seed = 1\n")
    assert problems(recipe=path) == [
        f"{path}: budget is not set: give at least one of budget.steps, budget.gpu_hours, budget.flops"
    ]


def test_a_function_of_ones_own_keeps_its_settings():
    recipe = load_recipe("scalerl", ["loss=my.losses:soft", "loss.width=0.5"])
    assert recipe.loss.model_dump() == {"name": "my.losses:soft", "width": 0.5}


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(sorted(set(known_keys()))), JUNK | st.dictionaries(st.text(max_size=5), JUNK, max_size=2))
def test_no_value_of_any_setting_gives_more_than_sentences(tmp_path_factory, key, value):
    tree = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    path = write(tmp_path_factory.getbasetemp(), "junk.json", json.dumps({"extends": "scalerl", **tree}))
    sentences = ()
    try:
        load_recipe(path)
    except RecipeError as error:
        sentences = error.problems
    assert all("pydantic" not in sentence for sentence in sentences)


# -- what a recipe says about itself -----------------------------------------------------------------------------------


def test_every_setting_is_documented_once():
    for name in list_recipes():
        assert [setting.key for setting in settings_of(load_recipe(name)).values() if not setting.doc] == []


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("scalerl").seed = 3


@given(st.integers(0, 20), st.booleans())
def test_three_numbers_name_the_regime(number, drain):
    if drain:
        pipeline = Pipeline(max_lag=number, push_every=number + 1, drain=True)
        assert mode_name(pipeline) == (f"PPO-off-policy-{number + 1}" if number else "synchronous")
    else:
        assert mode_name(Pipeline(max_lag=number)) == (f"PipelineRL-{number}" if number else "synchronous")


def test_an_fp32_head_is_inert_under_an_fp32_body():
    auto, half = load_recipe("scalerl"), load_recipe("scalerl", ["model.dtype=bfloat16"])
    assert (body_dtype(auto, gpu=False), body_dtype(auto, gpu=True)) == ("float32", "bfloat16")
    assert "model.fp32_head" in inert(auto, gpu=False)
    assert inert(auto, gpu=True) == inert(half, gpu=False) == {}


def test_a_wrong_setting_fails_fast_and_before_torch(tmp_path):
    code = (
        "import sys\nfrom scalerl.config import RecipeError, load_recipe\nfrom scalerl.choose import choose\n"
        "try:\n    load_recipe('scalerl', ['loss=cisp'])\n"
        "except RecipeError as error:\n    print(error)\n"
        "assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()\n"
    )
    start = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "loss.name" in run.stdout
    # About 0.3 s on an idle core; the margin is for a busy one.
    assert time.perf_counter() - start < 3
