"""What a user reads when a recipe is wrong: where it came from, the field, the value, the choices, what was meant."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import RecipeError
from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import MIXED_RULES, RULES, SAMPLING_RULE, TASK_RULES
from scalerl.recipe.tree import known_keys


def problems(*overrides: str, recipe="scalerl") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return list(caught.value.problems)


def write(folder, name: str, text: str | bytes):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ('extends = "b.toml"', "extends goes in a circle"),
        ('extends = "a.toml"', "extends goes in a circle"),
        (r'extends = "nul\u0000.toml"', r'extends is "nul\u0000.toml", but no recipe or file can have a null byte'),
        ('extends = "missing.toml"', "missing.toml cannot be read: No such file or directory"),
        ('extends = "scalrl"', 'there is no recipe "scalrl"; did you mean "scalerl"?'),
        ('extends = "b"', 'there is no recipe "b"; did you mean "b.toml"?'),
        ("extends = 3", "extends is 3 but must be a recipe's name or file"),
        ("seed = ?", "a.toml is not valid TOML: Invalid value (at line 1, column 8)"),
        (b"seed = 1\ndescription = '\xe9'\n", "is not UTF-8 text (byte 0xe9 in line 2): save it as UTF-8"),
        ("seed = 1\n".encode("utf-16"), "is UTF-16 and not UTF-8 text: save it as UTF-8"),
    ],
)
def test_bad_files_say_which(tmp_path, text, message):
    path = write(tmp_path, "a.toml", text)
    write(tmp_path, "b.toml", 'extends = "a.toml"')
    (sentence,) = problems(recipe=path)
    assert message in sentence
    assert "a.toml" in sentence


def test_what_is_not_a_recipe_file_is_a_sentence(tmp_path):
    assert "recipe.json cannot be read: No such file" in problems(recipe=tmp_path)[0]
    assert "not valid JSON" in problems(recipe=write(tmp_path, "recipe.json", "{"))[0]
    assert "does not contain a table" in problems(recipe=write(tmp_path, "recipe.json", "[]"))[0]
    assert problems(recipe="a\0b") == [r'"a\u0000b", but no recipe or file can have a null byte in its name']


def test_an_error_names_the_file_it_came_from(tmp_path):
    write(tmp_path, "parent.toml", 'extends = "scalerl"\npipeline.push_every = 4\n')
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\nfilter.zero_varianse = true\nseed = 1\n')
    assert problems(recipe=child) == [
        f"{child}: filter.zero_varianse is not a setting of filter, which has zero_variance, refill, drop_truncated; "
        f'did you mean "zero_variance"?'
    ]
    write(tmp_path, "child.toml", 'extends = "parent.toml"\nseed = 1\n')
    (sentence,) = problems(recipe=child)
    assert sentence.startswith(f"{tmp_path / 'parent.toml'}: pipeline.drain is false, pipeline.push_every is 4")


def test_byte_order_mark_of_an_editor_is_skipped(tmp_path):
    path = write(tmp_path, "mine.toml", b'\xef\xbb\xbfextends = "tiny-cpu"\r\nseed = 5\r\n')
    assert load_recipe(path).seed == 5


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["seed", "=3", "loss..cap=3", ".=1", "="])
def test_a_malformed_override_shows_the_form(text):
    assert problems(text) == [f"--set {text}: must look like key=value, for example loss.cap=4"]


@pytest.mark.parametrize(
    "override, rest",
    [
        ("model.path=", "has no value; an empty one is written --set 'model.path=\"\"'"),
        ("loss.capp=3", 'loss.capp is not a setting of loss.name = "cispo", which has cap; did you mean "cap"?'),
        (
            "loss=cisp",
            'loss.name is "cisp" but must be one of "cispo", "dapo", "gspo", "tis", "none", or an import path '
            '"package.module:function"; did you mean "cispo"?',
        ),
        ("loss.clip_low=0.1", 'is a setting of "dapo", "gspo", but loss.name is "cispo", which has cap'),
        ("loss=3", 'loss is 3 but must be a name or a table with one; the names are "cispo", "dapo", "gspo", "tis"'),
        ("loss.name=[]", 'loss.name is [] but must be one of "cispo"'),
        ("loss=not ok:f", 'loss.name is "not ok:f" but must be an import path "package.module:function"'),
        ("weights=constant", 'weights.denominator is not set, but weights.name = "constant" needs it'),
        (
            "learner.gradient_checkpointing=atuo",
            'learner.gradient_checkpointing is "atuo" but must be true, false or "auto"; did you mean "auto"?',
        ),
        ("pipeline.max_lag=-1", "pipeline.max_lag is -1 but must be at least 0"),
        ("seed=9223372036854775808", "is 9223372036854775808 but must be below 9223372036854775808"),
        ("seed=1.5", "seed is 1.5 but must be a whole number"),
        ("seed=true", "seed is true but must be a whole number"),
        ("optimizer.lr=fast", 'optimizer.lr is "fast" but must be a number'),
        ("optimizer.lr=inf", "optimizer.lr is Infinity but must be a finite number"),
        ("task.environment.reward_range=[1, 2, 3]", "[1, 2, 3] but must be a list with at most 2 items"),
        ("filter.zero_variance=1", "filter.zero_variance is 1 but must be true or false"),
        ("model.path=3", "model.path is 3 but must be text"),
        ("model=3", "model is 3 but must be a table with path, dtype, fp32_head"),
        ("evaluation.sets.aime=3", "evaluation.sets.aime is 3 but must be a table"),
        ('sinks=["wandb", "x"]', 'sinks.1 is "x" but must be "tensorboard", "trackio" or "wandb"'),
        ("max_lagg=3", 'did you mean "pipeline.max_lag"?'),
        ("loss.temperatur=1", 'which has cap; did you mean "rollout.temperature"?'),
        ("batch_size=3", 'did you mean "pipeline.groups_per_batch"?'),
        ("optimizer.learning_rate=3", 'did you mean "optimizer.lr"?'),
        ("zzzz=3", "is not a setting of a recipe, which has description, seed"),
        (
            "advantage=batch",
            'advantage is "batch" but must be a table with baseline, normalisation, credit; did you mean '
            'advantage.normalisation = "batch"?',
        ),
        ("loss=PPO", '; PPO\'s clip is loss = "dapo" with'),
        ("advantage.baseline=rloo", '; RLOO is advantage.baseline = "leave_one_out"'),
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
    assert len(problems("seed=x", "pipeline.max_lag=-1", "loss.capp=1", "weights=tokn")) == 4


# -- combinations ------------------------------------------------------------------------------------------------------

TASK = 'task={name="programs", '
GRADERS = 'graders={a={name="exact"}}'
BROKEN = [
    ["pipeline.push_every=4"],
    ["pipeline.drain=true", "pipeline.push_every=8"],
    ["loss=none"],
    ["filter.refill=3", "filter.zero_variance=false"],
    ["curriculum=pools", "curriculum.hard=0.9"],
    ["kl.coefficient=1", "kl.reference=self"],
    ["kl.coefficient=1", "kl.reference=self", 'kl.reference.hint="{answer}"'],
    ["kl.coefficient=1", "rollout.temperature=0.7", 'kl.reference={name="server", url="http://h/v1", model="m"}'],
    ["correction=band", "correction.low=5"],
    ["entropy=clip_cov", "entropy.high=0.5"],
    ["length.thinking_min=12289"],
    ["length=penalty", "length.cache=14337"],
    ["length.answer_budget=2049"],
    ["length=none", "length.max_length=20000"],
    ["length=penalty", "length.max_length=20000"],
    ["learner.ranks=2"],
    ["learner.shard_size=2"],
    ["learner.ranks=8", "learner.sharding=hybrid"],
    ["learner.ranks=8", "learner.sharding=hybrid", "learner.shard_size=3"],
    ["learner.ranks=100000000000", "learner.sharding=hybrid", "learner.shard_size=3"],
    ["learner.ranks=8", "learner.sharding=full", "kl.coefficient=0.1"],
    ["learner.ranks=8", "learner.sharding=full", "advantage.credit=gae"],
    ["pipeline.completions_per_group=1"],
    ["advantage.credit=gae", "pipeline.completions_per_group=1"],
    ["learner.ranks=8", "learner.sharding=full", "optimizer.bits=8"],
    ["model.lora.rank=4", "optimizer.on_host=true"],
    ["model.lora.bits=4"],
    ["learner.ranks=8", "learner.sharding=full", "model.lora.rank=4", "model.lora.bits=4"],
    ["rollout.engine=vllm", "optimizer.on_host=true"],
    ["task.environment=calculator", "model.router_replay=true"],
    ["cluster.address=auto"],
    ["rollout.gpus_per_generator=2"],
    ["rollout.engine=vllm", "rollout.vllm.tensor_parallel=4", "rollout.gpus_per_generator=2"],
    ["model.trust_remote_code=true"],
    ["rollout.vllm.engine_args={trust_remote_code=true}"],
    ["task=programs", "tasks.a=programs"],
    ["tasks={'a/b'={name='programs'}}"],
    ["tasks.a=programs", "evaluation.sets.a=programs"],
    ["evaluation.sets.main=programs"],
    ["checkpoint.best=aime"],
    ['task.environment={name="calculator", step_s=5}'],
    ["reward.correct=-1"],
    ["grading.timeout_s=2"],
    ["optimizer.schedule=linear"],
    ["sft.epochs=1", "sft.steps=1"],
    [f'{TASK}grader="exact", {GRADERS}}}'],
    [TASK + GRADERS.replace('"exact"', '"exact", weight=0.0') + "}"],
    [TASK + GRADERS.replace("{a=", "{'a b'=") + "}"],
    ["task.environment.reward_range=[1.0, 1.0]"],
    ["tasks.a={max_number=3}"],
    ["evaluation.temperature=0"],
]


def test_impossible_combinations_have_the_values_and_a_remedy():
    remedies = {rule.remedy.partition("{")[0]: rule.keys for rule in (*RULES, *TASK_RULES, *MIXED_RULES, SAMPLING_RULE)}
    broken: set[str] = set()
    for overrides in BROKEN:
        (sentence,) = problems(*overrides)
        assert sentence.startswith(f"--set {overrides[-1]}: ")
        found = {remedy for remedy in remedies if remedy in sentence}
        assert found, sentence
        broken |= found
    untested = [keys for remedy, keys in remedies.items() if remedy not in broken]
    assert untested == ["budget.steps budget.gpu_hours budget.flops"]
    (sentence,) = problems("length.answer_budget=2049")
    assert sentence.endswith(": set rollout.context = 16385 or shorten the others")


def test_a_run_needs_an_end(tmp_path):
    (sentence,) = problems(recipe=write(tmp_path, "mine.toml", "seed = 1\n"))
    assert sentence.endswith("budget.flops is not set: a run needs an end, so give at least one of them")


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
