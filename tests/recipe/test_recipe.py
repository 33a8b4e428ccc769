import importlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.recipe.choose import choose, keyword_settings
from scalerl.recipe.load import list_recipes, load_recipe, read_override
from scalerl.recipe.parts import BudgetSettings, PipelineSettings
from scalerl.recipe.recipe import Recipe, code_outside, mode_name
from scalerl.recipe.task_settings import TASK_SETTINGS
from scalerl.recipe.tree import AXES, differences, settings_of
from scalerl.training.tasks.problems import TASKS


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
    assert load_recipe(path) == load_recipe(tmp_path) == recipe  # the folder of a run is its recipe
    settings = settings_of(recipe)
    assert load_recipe(name, [f"{key}={json.dumps(s.value)}" for key, s in settings.items() if s.value]) == recipe
    assert [key for key, setting in settings.items() if not setting.doc.strip()] == []


SCALERL = """
pipeline.max_lag=8 pipeline.push_every=1 pipeline.drain=false pipeline.groups_per_batch=48 loss.name=cispo loss.cap=5.0
pipeline.completions_per_group=16 weights.name=prompt advantage.normalisation.name=batch filter.zero_variance=true
filter.drop_truncated=true model.fp32_head=both curriculum.name=no_positive_resampling curriculum.threshold=0.9
curriculum.history=latest reward.correct=1.0 reward.wrong=-1.0 reward.threshold=1.0 length.name=interruption
length.thinking_min=10240 length.thinking_max=12288 length.answer_budget=2048 rollout.context=16384
rollout.max_prompt_tokens=2048 evaluation.every=100 evaluation.num_prompts=1000 evaluation.samples_per_prompt=16
optimizer.lr=5e-7 optimizer.warmup_steps=100 optimizer.eps=1e-15 optimizer.weight_decay=0.01
"""
UNCLIPPED = "curriculum.name=uniform advantage.normalisation.name=prompt"
CLIPPED = f"{UNCLIPPED} model.fp32_head=none loss.name=dapo loss.clip_low=0.2"
BY_SAMPLE = "weights.name=sample filter.zero_variance=false"
PIPELINE = "PipelineRL-8 (bounds the mean lag)"
PPO = "pipeline.max_lag=7 pipeline.push_every=8 pipeline.drain=true"
LARGE = "pipeline.groups_per_batch=80"
PUBLISHED = {
    "scalerl": "",
    "base": f"{CLIPPED} loss.clip_high=0.26 {BY_SAMPLE}",
    "grpo": f"{CLIPPED} loss.clip_high=0.2 {BY_SAMPLE} {PPO}",
    "dapo": f"{CLIPPED} loss.clip_high=0.26 {LARGE} {PPO}",
    "gspo": f"{CLIPPED} loss.name=gspo loss.clip_low=3e-3 loss.clip_high=4e-3 loss.length_normalised=true {BY_SAMPLE}",
    "magistral": f"{CLIPPED} loss.clip_high=0.26 {LARGE}",
    "minimax": f"{UNCLIPPED} {LARGE} {PPO}",
}
"""What each has otherwise than ScaleRL, besides its budget."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes(name):
    scalerl, recipe = load_recipe("scalerl"), load_recipe(name)
    known = dict(map(read_override, SCALERL.split()))
    assert {key: setting.value for key, setting in settings_of(scalerl).items() if key in known} == known
    changed = {key: value for key, (_, value) in differences(scalerl, recipe).items() if value is not None}
    expected = dict(map(read_override, PUBLISHED[name].split()))
    assert {key: value for key, value in changed.items() if key not in ("description", "budget.gpu_hours")} == expected
    assert mode_name(recipe.pipeline) == ("PPO-off-policy-8" if PPO in PUBLISHED[name] else PIPELINE)


def test_defaults_are_scalerls():
    recipe = load_recipe("scalerl")
    assert Recipe(description=recipe.description, budget=BudgetSettings(gpu_hours=16000)) == recipe
    length = load_recipe("scalerl", ["length=penalty"]).length.model_dump()
    assert length == {"name": "penalty", "max_length": 14336, "cache": 2048}


# -- files and extends -------------------------------------------------------------------------------------------------


def test_a_leave_one_out_recipe_is_two_lines(tmp_path):
    path = write(tmp_path, "loo.toml", 'extends = "scalerl"\nadvantage.normalisation = "prompt"\n')
    ours, scalerl = settings_of(load_recipe(path)), settings_of(load_recipe("scalerl"))
    differing = {key for key in ours | scalerl if ours.get(key) != scalerl.get(key)} - {"description"}
    assert differing == {"advantage.normalisation.name"}
    assert load_recipe(path).description == ""


TIS, FIFTH = {"name": "tis", "cap": 2.0}, {"name": "dapo", "clip_low": 0.1, "clip_high": 0.3}


@pytest.mark.parametrize(
    "lines, overrides, loss",
    [
        ('loss = "tis"', [], TIS),
        ('loss.name = "tis"', [], TIS),
        ('[loss]\nname = "tis"', [], TIS),
        ('[loss]\nname = "dapo"\nclip_high = 0.3', [], FIFTH),
        ("loss.clip_high = 0.3", [], FIFTH),
        ("", ["loss=dapo", "loss.clip_high=0.3"], FIFTH),
        # The order of a name and its settings does not matter.
        ("", ["loss=tis", "loss.cap=4"], TIS | {"cap": 4.0}),
        ("", ["loss.cap=4", "loss.name=tis"], TIS | {"cap": 4.0}),
    ],
)
def test_a_new_choice_has_its_defaults_and_the_same_one_its_settings(tmp_path, lines, overrides, loss):
    parent = write(tmp_path, "parent.toml", 'extends = "scalerl"\nloss = { name = "dapo", clip_low = 0.1 }\n')
    for extended in ("parent.toml", "./parent.toml", parent):
        child = write(tmp_path, "child.toml", f'extends = "{extended}"\n{lines}\n')
        assert load_recipe(child, overrides).loss.model_dump() == loss


def test_naming_the_default_choice_keeps_its_settings(tmp_path):
    write(tmp_path, "parent.toml", "loss.cap = 4.0\nbudget.steps = 1\n")
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\nloss = "cispo"\n')
    assert load_recipe(child).loss.model_dump() == {"name": "cispo", "cap": 4.0}


def test_extends_is_relative_to_its_file(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    write(tmp_path, "parent.toml", "seed = 5\nbudget.steps = 1\n")
    child = write(tmp_path / "inner", "child.toml", 'extends = "../parent.toml"\n')
    monkeypatch.chdir(tmp_path / "inner")
    assert load_recipe(child).seed == load_recipe("./child.toml").seed == 5


# -- --set -------------------------------------------------------------------------------------------------------------


def test_overrides_are_toml_values_or_bare_text():
    recipe = load_recipe(
        "scalerl",
        [
            "seed=2",
            "seed=3",
            "loss.cap=4",
            "model.path=models/tiny base",
            "sft.model=1\nbudget.steps=9",
            "filter.zero_variance=false",
            'description="a = b"',
            "advantage.baseline=leave_one_out",
            "weights={name='constant', denominator=10}",
            "evaluation.sets.aime=file",
            "evaluation.sets.aime.path=aime.jsonl",
        ],
    )
    assert (recipe.seed, recipe.model.path, recipe.description) == (3, "models/tiny base", "a = b")
    assert (recipe.sft.model, recipe.budget.steps) == ("1\nbudget.steps=9", None)
    assert recipe.loss.model_dump()["cap"] == 4.0
    assert not recipe.filter.zero_variance
    assert recipe.advantage.baseline.name == "leave_one_out"
    assert recipe.weights.model_dump() == {"name": "constant", "denominator": 10.0}
    assert dict(recipe.evaluation.sets["aime"]) == {"name": "file", "path": "aime.jsonl"}


def test_the_description_says_what_was_changed(tmp_path):
    described = load_recipe("scalerl").description
    assert load_recipe("scalerl", ["loss.cap=4", "model.path=a\n b"]).description == (
        f"{described}; changed: loss.cap=4, model.path=a b"
    )
    assert load_recipe("scalerl", ["loss.cap=4", "description=mine"]).description == "mine"
    plain = write(tmp_path, "plain.toml", 'extends = "scalerl"\n')
    assert load_recipe(plain, ["loss.cap=4"]).description == ""


# -- tasks -------------------------------------------------------------------------------------------------------------


TWO_TASKS = """
extends = "scalerl"
[tasks.sums]
name = "arithmetic"
weight = 3
num_problems = 8
[tasks.gsm8k]
name = "file"
path = "train.jsonl"
chat = true
system = "Be brief."
"""


def test_task_has_shared_settings_and_its_own(tmp_path):
    recipe = load_recipe(write(tmp_path, "two.toml", TWO_TASKS))
    sums, gsm8k = recipe.tasks["sums"], recipe.tasks["gsm8k"]
    assert recipe.task.name is None
    assert (sums.weight, gsm8k.weight) == (3.0, 1.0)
    assert dict(sums) == {"name": "arithmetic", "num_problems": 8}
    assert dict(gsm8k) == {"name": "file", "path": "train.jsonl"}
    assert (gsm8k.chat, gsm8k.system, sums.chat, sums.system) == (True, "Be brief.", False, "")
    assert load_recipe(write(tmp_path, "recipe.json", recipe.model_dump_json())) == recipe
    assert settings_of(recipe)["tasks.sums.weight"].doc
    assert len(choose(TASKS, sums)(2, 0).training) == 8
    unset = TWO_TASKS.replace('extends = "scalerl"', 'extends = "tiny-cpu"\ntask = ""')
    assert load_recipe(write(tmp_path, "two.toml", unset)).tasks == recipe.tasks


def test_file_of_problems_is_a_task(tmp_path):
    assert load_recipe("tiny-cpu", ["task=mine/sums.jsonl"]).task.model_extra == {"path": "mine/sums.jsonl"}
    write(tmp_path, "sums.parquet", "")
    path = write(tmp_path, "mine.toml", 'extends = "tiny-cpu"\ntask = "sums.parquet"\n')
    assert load_recipe(path).task.model_extra == {"path": str(tmp_path / "sums.parquet")}


def test_setting_by_hand_is_not_derived(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "own-model"\noptimizer.lr = 1e-5\n')
    recipe = load_recipe(path, ["rollout.slots=4"])
    assert {"optimizer.lr", "rollout.slots"} == {*load_recipe("own-model").derived} - {*recipe.derived}


def test_older_recipe_gets_defaults_of_new_tables(tmp_path):
    recipe = load_recipe("tiny-cpu")
    written = recipe.model_dump(mode="json")
    del written["grading"]
    assert load_recipe(write(tmp_path, "recipe.json", json.dumps(written))) == recipe


# -- what a recipe says about itself -----------------------------------------------------------------------------------


def test_described_task_settings_are_those_of_the_task():
    assert TASK_SETTINGS.keys() == TASKS.keys()
    for name, function in TASKS.items():
        assert TASK_SETTINGS[name].keys() == keyword_settings(function).keys(), name


STORY_STEPS = "Largest number of steps in a function."


@pytest.mark.parametrize(
    "text, key, doc",
    [
        ("task={name='programs', max_steps=2}", "task.max_steps", STORY_STEPS),
        ("evaluation.sets.a={name='programs', max_steps=2}", "evaluation.sets.a.max_steps", STORY_STEPS),
        ("task={name='gym', dataset='sudoku', min_empty=3}", "task.min_empty", "A setting of sudoku."),
        ("task={name='my.tasks:riddles', year=3}", "task.year", "A setting of my.tasks:riddles."),
        ("loss={name='my.losses:soft', width=3.0}", "loss.width", "A setting of my.losses:soft."),
        ("task.year=3", "task.year", "A setting of the task to be named."),
        ("loss=dapo", "loss.name", Recipe.model_fields["loss"].description),
        ("loss=my.losses:soft", "loss.name", 'Import path of the function: "package.module:function".'),
    ],
)  # fmt: skip
def test_every_setting_says_what_or_whose_it_is(text, key, doc):
    assert settings_of(load_recipe("scalerl", [text]))[key].doc == doc


def test_name_of_the_regime_says_what_is_bounded():
    assert mode_name(PipelineSettings(waits_for="batch")) == PIPELINE
    assert mode_name(PipelineSettings(waits_for="groups")) == "PipelineRL-8 (bounds every lag)"


@given(st.integers(0, 20), st.integers(1, 20), st.booleans())
def test_three_numbers_name_the_regime(max_lag, push_every, drain):
    """A name for each regime, and none for settings that make no regime."""
    name = mode_name(PipelineSettings(max_lag=max_lag, push_every=push_every, drain=drain))
    regime = f"PPO-off-policy-{push_every}" if drain else f"PipelineRL-{max_lag} (bounds the mean lag)"
    fits = max_lag == push_every - 1 if drain else push_every == 1
    assert name == ("" if not fits else regime if max_lag else "synchronous")


# -- the page of settings ----------------------------------------------------------------------------------------------


def test_page_of_settings_is_up_to_date(monkeypatch):
    """Made by `python docs/make_settings.py`."""
    docs = Path(__file__).parents[2] / "docs"
    monkeypatch.syspath_prepend(str(docs))
    make_settings = importlib.import_module("make_settings")
    assert (docs / "settings.md").read_text() == make_settings.page()
    # 6 of them are those of environments, 44 those of choices of an algorithm that ScaleRL does without.
    assert make_settings.count() < 232


def test_every_choice_is_on_the_page_of_choices():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    table = page.partition("Without a name")[0]
    for axis, choices in AXES.items():
        for name in choices:
            assert f'`{axis} = "{name}"`' in table, (axis, name)


def test_code_of_others_that_a_recipe_runs_is_listed(tmp_path):
    assert code_outside(load_recipe("scalerl")) == []
    text = """
extends = "tiny-cpu"
loss = {name = "mine:loss"}
rollout = {engine = "vllm", vllm.python = "/bin/other"}
evaluation.sets.more = {name = "programs", grader = "mine:near"}
evaluation.sets.agent = {name = "programs", environment = {name = "harness", program = "ev-il:play"}}
evaluation.sets.tools = {name = "programs", environment = {name = "tools", tools = ["calculator", "mine:tool"]}}

[task]
name = "my-rows:rows"
system = "Answer: x"
chat = true
graders.own.name = "mine:grade"
"""
    assert set(code_outside(load_recipe(write(tmp_path, "mine.toml", text)))) == {
        "mine:loss",
        "my-rows:rows",
        "mine:grade",
        "mine:near",
        "ev-il:play",
        "mine:tool",
        'rollout.vllm.python = "/bin/other"',
    }
