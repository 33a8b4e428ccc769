"""Settings that follow from the model and the problems (run/derive.py): what own-model makes of a folder and a file."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from scalerl.config import RecipeError, changed_recipe, load_recipe
from scalerl.run.derive import derive
from scalerl.run.run import Run

SUMS = [{"question": f"{n}+{n}=", "solution": f"twice {n}. #### {2 * n}"} for n in range(1, 101)]
LETTERS = [{"prompt": f"{n}?", "answer": "ABCD"[n % 4]} for n in range(40)]
WORDS = [{"prompt": f"{n}?", "answer": "some words"} for n in range(40)]


def own_model(folder: Path, rows: list[dict[str, str]], *overrides: str):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_recipe("own-model", ["model.path=tiny-base", f"task={path}", *overrides])


def test_everything_open_is_derived(tmp_path):
    recipe, made = derive(own_model(tmp_path, SUMS))
    assert recipe.derived == ()
    assert {each.key: each.value for each in made} == {
        "task.chat": False,
        "task.grader": "numeric",
        "rollout.max_prompt_tokens": 16,  # the longest has 8, in steps of 16
        "length.max_length": 64,
        "rollout.context": 80,
        "pipeline.groups_per_batch": 10,  # a tenth of the problems
        "rollout.slots": 80,
        "evaluation.num_prompts": 20,  # a fifth
        "optimizer.lr": 4e-5,
    }
    assert derive(recipe) == (recipe, ())


@pytest.mark.parametrize("rows, grader", [(SUMS, "numeric"), (LETTERS, "choice"), (WORDS, "exact")])
def test_grader_follows_from_the_references(tmp_path, rows, grader):
    assert derive(own_model(tmp_path, rows))[0].task.grader == grader


def test_what_is_set_stays_and_is_reckoned_with(tmp_path):
    overrides = ("length.max_length=40", "task.grader=exact", "pipeline.groups_per_batch=4")
    recipe, made = derive(own_model(tmp_path, SUMS, *overrides))
    assert (
        recipe.length.model_dump()["max_length"],
        recipe.task.grader,
        recipe.rollout.context,
        recipe.rollout.slots,
    ) == (
        40,
        "exact",
        56,
        32,
    )
    assert not {each.key for each in made} & {"length.max_length", "task.grader", "pipeline.groups_per_batch"}


def test_chat_template_of_the_tokenizer_is_used(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(str(files("scalerl") / "assets" / "tiny-base"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}====="
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    recipe, _ = derive(own_model(tmp_path, SUMS, f"model.path={folder}"))
    assert recipe.task.chat
    assert recipe.rollout.max_prompt_tokens == 16  # 8 and the 5 of the template


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["task=missing.jsonl"], "missing.jsonl cannot be read"),
        (['derived=["loss.cap"]'], '"loss.cap", which cannot be derived'),
    ],
)
def test_what_cannot_be_derived_is_said(tmp_path, overrides, message):
    with pytest.raises(Exception, match=message):
        derive(own_model(tmp_path, SUMS, *overrides))


def test_nothing_to_train_on():
    with pytest.raises(RecipeError, match=r"task\.name is not set"):
        derive(load_recipe("own-model", ["model.path=tiny-base"]))


def test_run_has_the_derived_settings(tmp_path):
    recipe = changed_recipe(own_model(tmp_path, SUMS), ["budget.steps=1", "evaluation.num_prompts=4"])
    run = Run(recipe, tmp_path / "run")
    run.train()
    written = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (written["derived"], written["rollout"]["context"], written["evaluation"]["num_prompts"]) == ([], 80, 4)
