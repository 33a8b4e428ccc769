import importlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.choose import choose, keyword_settings
from scalerl.config import (
    AXES,
    Recipe,
    body_dtype,
    imports_of,
    inert,
    list_recipes,
    load_recipe,
    mode_name,
    parts,
    settings_of,
)
from scalerl.config.parts import BudgetSettings, PipelineSettings
from scalerl.config.task_settings import TASK_SETTINGS
from scalerl.config.tree import DEFAULT_NAMES
from scalerl.errors import RecipeError
from scalerl.tasks.problems import TASKS
from scalerl.tasks.task import with_settings

PUBLISHED = {"base", "dapo", "grpo", "gspo", "magistral", "minimax", "scalerl"}


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
        "answer_budget": 2048,
    }
    assert recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group == 768
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.eps, optimizer.weight_decay) == (5e-7, 100, 1e-15, 0.01)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_what_all_the_papers_runs_share(name):
    recipe = load_recipe(name)
    assert recipe.reward.model_dump() == {"correct": 1.0, "wrong": -1.0, "threshold": 1.0}
    assert recipe.filter.drop_truncated
    assert (recipe.rollout.context, recipe.rollout.max_prompt_tokens) == (16384, 2048)
    assert (recipe.evaluation.every, recipe.evaluation.num_prompts, recipe.evaluation.samples_per_prompt) == (
        100,
        1000,
        16,
    )
    assert recipe.length == load_recipe("scalerl").length
    assert recipe.optimizer == load_recipe("scalerl").optimizer


def test_the_length_penalty_is_the_papers():
    length = load_recipe("scalerl", ["length=penalty"]).length.model_dump()
    assert length == {"name": "penalty", "max_length": 14336, "cache": 2048}


def test_defaults_are_scalerls():
    recipe = load_recipe("scalerl")
    assert Recipe(description=recipe.description, budget=BudgetSettings(gpu_hours=16000)) == recipe


DAPO = {"name": "dapo", "clip_low": 0.2, "clip_high": 0.26}
GRPO = {"name": "dapo", "clip_low": 0.2, "clip_high": 0.2}
GSPO = {"name": "gspo", "clip_low": 3e-3, "clip_high": 4e-3, "length_normalised": True}
CISPO = {"name": "cispo", "cap": 5.0}


@pytest.mark.parametrize(
    "name, mode, loss, weights, normalisation, zero_variance, head, batch",
    [
        ("base", "PipelineRL-8", DAPO, "sample", "prompt", False, "none", 768),
        ("grpo", "PPO-off-policy-8", GRPO, "sample", "prompt", False, "none", 768),
        ("dapo", "PPO-off-policy-8", DAPO, "prompt", "prompt", True, "none", 1280),
        ("gspo", "PipelineRL-8", GSPO, "sample", "prompt", False, "none", 768),
        ("magistral", "PipelineRL-8", DAPO, "prompt", "prompt", True, "none", 1280),
        ("minimax", "PPO-off-policy-8", CISPO, "prompt", "prompt", True, "both", 1280),
    ],
)
def test_comparison_recipes(name, mode, loss, weights, normalisation, zero_variance, head, batch):
    recipe = load_recipe(name)
    assert mode_name(recipe.pipeline) == mode
    assert recipe.loss.model_dump() == loss
    assert (recipe.weights.name, recipe.advantage.normalisation.name) == (weights, normalisation)
    assert (recipe.filter.zero_variance, recipe.model.fp32_head, recipe.curriculum.name) == (
        zero_variance,
        head,
        "uniform",
    )
    assert recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group == batch
    assert recipe.pipeline.completions_per_group == 16


@pytest.mark.parametrize("axis", ["loss", "weights", "curriculum"])
def test_a_new_choice_of_an_axis_touches_one_config_file(axis):
    source = Path(parts.__file__).with_name("recipe.py").read_text()
    named = [name for name, part in AXES[axis].items() if re.search(rf"\b{part.__name__}\b", source)]
    assert named == [DEFAULT_NAMES[axis]]


# -- files and extends -------------------------------------------------------------------------------------------------


def test_a_leave_one_out_recipe_is_two_lines(tmp_path):
    path = write(tmp_path, "loo.toml", 'extends = "scalerl"\nadvantage.normalisation = "prompt"\n')
    ours, scalerl = settings_of(load_recipe(path)), settings_of(load_recipe("scalerl"))
    differing = {key for key in ours | scalerl if ours.get(key) != scalerl.get(key)} - {"description"}
    assert differing == {"advantage.normalisation.name"}
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
            "seed=3",
            "loss.cap=4",
            "model.path=models/tiny base",
            "filter.zero_variance=false",
            'description="a = b"',
            "advantage.baseline=leave_one_out",
            "weights={name='constant', denominator=10}",
            "evaluation.sets.aime=file",
            "evaluation.sets.aime.path=aime.jsonl",
        ],
    )
    assert (recipe.seed, recipe.model.path, recipe.description) == (3, "models/tiny base", "a = b")
    assert recipe.loss.model_dump()["cap"] == 4.0
    assert not recipe.filter.zero_variance
    assert recipe.advantage.baseline.name == "leave_one_out"
    assert recipe.weights.model_dump() == {"name": "constant", "denominator": 10.0}
    assert dict(recipe.evaluation.sets["aime"]) == {"name": "file", "path": "aime.jsonl"}


@pytest.mark.parametrize("overrides", [["loss=dapo", "loss.clip_low=0.1"], ["loss.clip_low=0.1", "loss.name=dapo"]])
def test_the_order_of_a_name_and_its_settings_does_not_matter(overrides):
    loss = load_recipe("scalerl", overrides).loss
    assert loss.model_dump() == {"name": "dapo", "clip_low": 0.1, "clip_high": 0.26}


def test_the_last_override_of_a_key_wins():
    assert load_recipe("scalerl", ["seed=1", "seed=2"]).seed == 2


def test_the_description_says_what_was_changed(tmp_path):
    described = load_recipe("scalerl").description
    assert load_recipe("scalerl", ["loss.cap=4", "model.path=a\n b"]).description == (
        f"{described}; changed: loss.cap=4, model.path=a b"
    )
    assert load_recipe("scalerl", ["loss.cap=4", "description=mine"]).description == "mine"
    plain = write(tmp_path, "plain.toml", 'extends = "scalerl"\n')
    assert load_recipe(plain, ["loss.cap=4"]).description == ""


def test_an_override_cannot_smuggle_in_a_second_one():
    assert load_recipe("scalerl", ["model.path=1\nseed=9"]).seed == 0


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
    assert gsm8k.shared == {**sums.shared, "chat": True, "system": "Be brief."}
    assert load_recipe(write(tmp_path, "recipe.json", recipe.model_dump_json())) == recipe
    assert settings_of(recipe)["tasks.sums.weight"].doc
    assert len(choose(TASKS, sums)(2, 0).training) == 8


def test_shared_task_settings_are_those_of_with_settings():
    taken = {name: parameter.default for name, parameter in keyword_settings(with_settings).items()}
    assert parts.TaskSettings().shared == taken | {"graders": {}}  # an empty table is no graders


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{TWO_TASKS}[task]\nname = 'words'",
            'task.name is "words" and there are also tables [tasks.sums], [tasks.gsm8k]: a run',
        ),
        (f"{TWO_TASKS}['tasks'.'a/b']\nname = 'words'", 'tasks holds "a/b", but the name of a task may only have'),
        (f"{TWO_TASKS}[tasks.third]\nmax_number = 3", "tasks.third.name is not set"),
        (f"{TWO_TASKS}[evaluation.sets.sums]\nname = 'words'", "evaluation.sets.sums has the name of tasks.sums"),
        (TWO_TASKS.replace("weight = 3", "weight = 0"), "tasks.sums.weight is 0 but must be above 0"),
        (TWO_TASKS.replace("chat = true", "chat = 1"), "tasks.gsm8k.chat is 1 but must be true or false"),
    ],
)
def test_tasks_that_cannot_be_together(tmp_path, text, message):
    path = write(tmp_path, "two.toml", text)
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        load_recipe(path)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(str(path))


def test_file_of_problems_is_a_task(tmp_path):
    assert load_recipe("tiny-cpu", ["task=mine/sums.jsonl"]).task.model_extra == {"path": "mine/sums.jsonl"}
    write(tmp_path, "sums.parquet", "")
    path = write(tmp_path, "mine.toml", 'extends = "tiny-cpu"\ntask = "sums.parquet"\n')
    assert load_recipe(path).task.model_extra == {"path": str(tmp_path / "sums.parquet")}


def test_setting_by_hand_is_not_derived(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "own-model"\noptimizer.lr = 1e-5\n')
    recipe = load_recipe(path, ["rollout.slots=4"])
    assert {"optimizer.lr", "rollout.slots"} == {*load_recipe("own-model").derived} - {*recipe.derived}


def test_extended_task_can_be_unset(tmp_path):
    text = TWO_TASKS.replace('extends = "scalerl"', 'extends = "tiny-cpu"\ntask = ""')
    assert set(load_recipe(write(tmp_path, "two.toml", text)).tasks) == {"sums", "gsm8k"}


def test_older_recipe_gets_defaults_of_new_tables(tmp_path):
    recipe = load_recipe("tiny-cpu")
    written = recipe.model_dump(mode="json")
    del written["grading"]
    assert load_recipe(write(tmp_path, "recipe.json", json.dumps(written))) == recipe


# -- what a recipe says about itself -----------------------------------------------------------------------------------


def test_the_names_of_an_axis_are_documented_by_the_axis():
    recipe = load_recipe("dapo")
    assert settings_of(recipe)["loss.name"].doc == Recipe.model_fields["loss"].description
    custom = load_recipe("dapo", ["loss=my.losses:soft"])
    assert settings_of(custom)["loss.name"].doc == 'Import path of the function: "package.module:function".'


@pytest.mark.parametrize("name", list_recipes())
def test_every_setting_has_a_meaning(name):
    settings = settings_of(load_recipe(name)).values()
    assert [setting.key for setting in settings if not setting.doc.strip()] == []


def test_described_task_settings_are_those_of_the_task():
    assert TASK_SETTINGS.keys() == TASKS.keys()
    for name, function in TASKS.items():
        assert TASK_SETTINGS[name].keys() == keyword_settings(function).keys(), name


@pytest.mark.parametrize(
    "text, key, doc",
    [
        ("task={name='words', max_steps=2}", "task.max_steps", "Most operations of a story."),
        ("evaluation.sets.a={name='words', max_steps=2}", "evaluation.sets.a.max_steps", "Most operations of a story."),
        ("task={name='gym', dataset='sudoku', min_empty=3}", "task.min_empty", "A setting of sudoku."),
        ("task={name='my.tasks:riddles', year=3}", "task.year", "A setting of my.tasks:riddles."),
        ("loss={name='my.losses:soft', width=3.0}", "loss.width", "A setting of my.losses:soft."),
        ("task.year=3", "task.year", "A setting of the task to be named."),
    ],
)  # fmt: skip
def test_setting_of_another_choice_names_its_owner(text, key, doc):
    assert settings_of(load_recipe("scalerl", [text]))[key].doc == doc


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("scalerl").seed = 3


@given(st.integers(0, 20), st.booleans())
def test_three_numbers_name_the_regime(number, drain):
    if drain:
        pipeline = PipelineSettings(max_lag=number, push_every=number + 1, drain=True)
        assert mode_name(pipeline) == (f"PPO-off-policy-{number + 1}" if number else "synchronous")
    else:
        assert mode_name(PipelineSettings(max_lag=number)) == (f"PipelineRL-{number}" if number else "synchronous")


def test_an_fp32_head_is_inert_under_an_fp32_body():
    auto, half = load_recipe("scalerl"), load_recipe("scalerl", ["model.dtype=bfloat16"])
    assert (body_dtype(auto, gpu=False), body_dtype(auto, gpu=True)) == ("float32", "bfloat16")
    assert "model.fp32_head" in inert(auto, gpu=False)
    assert inert(auto, gpu=True) == inert(half, gpu=False) == {}


def test_leave_one_out_is_inert_under_prompt_normalisation():
    leave_one_out = "advantage.baseline=leave_one_out"
    assert inert(load_recipe("base", [leave_one_out]), gpu=True).keys() == {"advantage.baseline"}
    for recipe, overrides in [
        ("base", []),
        ("base", [leave_one_out, "advantage.normalisation=none"]),
        # Exact only while all kept groups are of one size, which no setting can promise.
        ("scalerl", [leave_one_out]),
    ]:
        assert inert(load_recipe(recipe, overrides), gpu=True) == {}


# -- the page of settings ----------------------------------------------------------------------------------------------


def test_page_of_settings_is_up_to_date(monkeypatch):
    """Made by `python docs/make_settings.py`."""
    docs = Path(__file__).parents[1] / "docs"
    monkeypatch.syspath_prepend(str(docs))
    make_settings = importlib.import_module("make_settings")
    assert (docs / "settings.md").read_text() == make_settings.page()
    assert make_settings.count() < 192  # 6 of them are those of environments


def test_code_of_others_that_a_recipe_runs_is_listed(tmp_path):
    assert imports_of(load_recipe("scalerl")) == {}
    text = """
extends = "tiny-cpu"
loss = {name = "mine:loss"}
rollout.vllm.python = "/bin/other"
task = {name = "mine:rows", system = "Answer: x", chat = true, graders.own.name = "mine:grade"}
evaluation.sets.more = {name = "words", grader = "mine:near"}
"""
    assert imports_of(load_recipe(write(tmp_path, "mine.toml", text))) == {
        "loss.name": "mine:loss",
        "rollout.vllm.python": "/bin/other",
        "task.name": "mine:rows",
        "task.graders.own.name": "mine:grade",
        "evaluation.sets.more.grader": "mine:near",
    }
