"""What a user reads when a recipe is wrong: where it came from, the field, the value, the choices, what was meant."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.config import load_recipe
from scalerl.config.tree import known_keys
from scalerl.errors import RecipeError


def problems(*overrides: str, recipe="scalerl") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return list(caught.value.problems)


def write(folder, name: str, text: str):
    path = folder / name
    path.write_text(text)
    return path


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ('extends = "b.toml"', "extends goes in a circle"),
        ('extends = "a.toml"', "extends goes in a circle"),
        (r'extends = "nul\u0000.toml"', r'extends is "nul\u0000.toml", but no recipe or file can have a null byte'),
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


def test_a_file_without_its_suffix_is_suggested(tmp_path, monkeypatch):
    write(tmp_path, "mine.toml", 'extends = "scalerl"\n')
    child = write(tmp_path, "child.toml", 'extends = "mine"\n')
    monkeypatch.chdir(tmp_path)
    for recipe, meant in ((child, "mine.toml"), ("mine", "mine.toml"), ("scalrl", "scalerl")):
        assert f'; did you mean "{meant}"?' in problems(recipe=recipe)[0]
    assert problems(recipe="a\0b") == [r'"a\u0000b", but no recipe or file can have a null byte in its name']


def test_unreadable_files_are_sentences(tmp_path):
    file = tmp_path / "binary.toml"
    file.write_bytes(b"seed = 1\ndescription = '\xe9'\n")
    assert problems(recipe=file) == [f"{file} is not UTF-8 text (byte 0xe9 in line 2): save it as UTF-8"]
    file.write_bytes("seed = 1\n".encode("utf-16"))
    assert problems(recipe=file) == [f"{file} is UTF-16 and not UTF-8 text: save it as UTF-8"]
    assert "cannot be read: Is a directory" in problems(recipe=tmp_path)[0]
    assert "not valid JSON" in problems(recipe=write(tmp_path, "recipe.json", "{"))[0]
    assert "does not hold a table" in problems(recipe=write(tmp_path, "recipe.json", "[]"))[0]


def test_an_error_names_the_file_it_came_from(tmp_path):
    write(tmp_path, "parent.toml", 'extends = "scalerl"\npipeline.push_every = 4\n')
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\nfilter.zero_varianse = true\nseed = 1\n')
    assert problems(recipe=child) == [
        f"{child}: filter.zero_varianse is not a setting of filter, which has zero_variance, drop_truncated; "
        f'did you mean "zero_variance"?'
    ]
    write(tmp_path, "child.toml", 'extends = "parent.toml"\nseed = 1\n')
    (sentence,) = problems(recipe=child)
    assert sentence.startswith(f"{tmp_path / 'parent.toml'}: pipeline.push_every is 4")


# -- settings ----------------------------------------------------------------------------------------------------------


def test_byte_order_mark_of_an_editor_is_skipped(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b'\xef\xbb\xbfextends = "tiny-cpu"\r\nseed = 5\r\n')
    assert load_recipe(tmp_path / "mine.toml").seed == 5


@pytest.mark.parametrize("key", ["seed", "evaluation.seed"])
def test_seed_beyond_what_generators_take_is_refused(key):
    assert problems(f"{key}=9223372036854775808") == [
        f"--set {key}=9223372036854775808: {key} is 9223372036854775808 but must be below 9223372036854775808"
    ]


def test_override_without_a_value_says_how_to_write_an_empty_one():
    assert problems("model.path=") == [
        "--set model.path=: has no value; an empty one is written --set 'model.path=\"\"'"
    ]


@pytest.mark.parametrize("text", ["seed", "=3", "loss..cap=3", ".=1", "="])
def test_a_malformed_override_shows_the_form(text):
    assert problems(text) == [f"--set {text}: must look like key=value, for example loss.cap=4"]


@pytest.mark.parametrize(
    "override, rest",
    [
        ("loss.capp=3", 'loss.capp is not a setting of loss.name = "cispo", which has cap; did you mean "cap"?'),
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
        (
            "learner.gradient_checkpointing=atuo",
            'learner.gradient_checkpointing is "atuo" but must be one of true, false, "auto"; did you mean "auto"?',
        ),
        ("curriculum.history=last", 'curriculum.history is "last" but must be one of "latest", "cumulative"'),
        ("pipeline.max_lag=-1", "pipeline.max_lag is -1 but must be at least 0"),
        ("loss.cap=0", "loss.cap is 0 but must be above 0"),
        ("curriculum.threshold=1.5", "curriculum.threshold is 1.5 but must be at most 1"),
        ("optimizer.beta1=1.0", "optimizer.beta1 is 1.0 but must be below 1"),
        ("pipeline.completions_per_group=1", "pipeline.completions_per_group is 1 but must be at least 2"),
        ("pipeline.max_lag=eight", 'pipeline.max_lag is "eight" but must be a whole number'),
        ("seed=1.5", "seed is 1.5 but must be a whole number"),
        ("grading.timeout_s=0", "grading.timeout_s is 0 but must be above 0"),
        ("grading.timeout_s=1e9", "grading.timeout_s is 1000000000.0 but must be at most 86400"),
        ("grading.memory_limit_mb=512.5", "grading.memory_limit_mb is 512.5 but must be a whole number"),
        ("grading.timout_s=9", "is not a setting of grading, which has num_workers, timeout_s, cpu_limit_s, "),
        ("grading.timeout_s=2", "grading.cpu_limit_s is 3, above grading.timeout_s = 2, when the answer is given up"),
        ("seed=true", "seed is true but must be a whole number"),
        ("optimizer.lr=fast", 'optimizer.lr is "fast" but must be a number'),
        ("optimizer.lr=inf", "optimizer.lr is Infinity but must be a finite number"),
        ("filter.zero_variance=1", "filter.zero_variance is 1 but must be true or false"),
        ("model.path=3", "model.path is 3 but must be text"),
        ("model=3", "model is 3 but must be a table with path, dtype, fp32_head"),
        ("evaluation.sets.aime=3", "evaluation.sets.aime is 3 but must be a table"),
        ("max_lag=3", 'did you mean "pipeline.max_lag"?'),
        ("max_lagg=3", 'did you mean "pipeline.max_lag"?'),
        (
            "loss.temperatur=1",
            'is not a setting of loss.name = "cispo", which has cap; did you mean "rollout.temperature"?',
        ),
        ("batch_size=3", 'did you mean "pipeline.groups_per_batch"?'),
        ("learning_rate=3", 'did you mean "optimizer.lr"?'),
        ("optimizer.learning_rate=3", 'did you mean "optimizer.lr"?'),
        ("zzzz=3", "budget, checkpoint"),
        (
            "advantage=batch",
            'advantage is "batch" but must be a table with baseline ("mean", "leave_one_out"), normalisation ("batch", '
            '"prompt", "none"); did you mean advantage.normalisation = "batch"?',
        ),
        ("loss=grpo", '; GRPO is loss = "dapo" with loss.clip_low = loss.clip_high = 0.2, or the recipe grpo'),
        ("loss=PPO", '; PPO\'s clip is loss = "dapo" with'),
        ("loss=reinforce", '; REINFORCE with a capped ratio is loss = "cispo"'),
        ("loss=rloo", '; RLOO is advantage.baseline = "leave_one_out"'),
        ("advantage.baseline=rloo", '; RLOO is advantage.baseline = "leave_one_out"'),
        ("curriculum=npr", '; NPR is curriculum = "no_positive_resampling"'),
        ("losss=dapo", "losss is not a setting of a recipe, which has description, seed"),
        ("rollout.top_p=0.9", "top_p is for evaluation only (evaluation.top_p)"),
        ("extends=base", "extends cannot be set here"),
    ],
)
def test_wrong_setting_error_has_field_value_and_choices(override, rest):
    (sentence,) = problems(override)
    assert sentence.startswith(f"--set {override}: ")
    assert rest in sentence
    assert "\n" not in sentence


def test_all_problems_are_reported_at_once():
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
        (["rollout.vllm.engine_args={trust_remote_code=true}"], 0, "which no recipe sets: use --trust-"),
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
def test_any_value_gives_a_recipe_or_an_error_message(tmp_path_factory, key, value):
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


def test_a_wrong_setting_fails_before_torch_is_imported(tmp_path):
    code = (
        "import sys\nfrom scalerl.config import RecipeError, load_recipe\nfrom scalerl.choose import choose\n"
        "try:\n    load_recipe('scalerl', ['loss=cisp'])\n"
        "except RecipeError as error:\n    print(error)\n"
        "assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "loss.name" in run.stdout
